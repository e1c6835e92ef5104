"""Makes clients of librdkafka, and turns their errors into ours with a remedy.

Weighed in docs/decisions.md, "Errors of Kafka's clients".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import HELD_UP_SECONDS
from deelog_schemas.config import Config, ConfigError, FieldError
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.client_log import client_log
from deelog_schemas.kafka.connections import ADMIN_SETTINGS, Connections, settle
from deelog_schemas.kafka.names import abort_key

C = TypeVar("C")
log = client_log("deelog_connector.kafka")

PRODUCER_ERRORS: Final = (KafkaException, SystemError)
"""What a call of a producer with delivery reports raises.

Where the client has a fatal error, and reports come with it, confluent-kafka 2.16 calls back while that error is
raised: `SystemError: … returned a result with an exception set` (its issue 865). The fatal error can be asked for.
"""
LOOK_SECONDS: Final = 1.0
"""Seconds that the first request may take before the connection is checked."""


def common_settings(config: Config) -> dict[str, Any]:
    """The settings of every client. Its messages go to our log, not to stderr.

    A client dials a broker that is back within half a second; its default would be ten.
    """
    servers = ",".join(config["bootstrap.servers"])
    return {
        "bootstrap.servers": servers,
        "client.id": config["name"],
        "reconnect.backoff.max.ms": 500,
        "logger": log,
    }


def opened(make: Callable[[dict[str, Any]], C], client: str, settings: Mapping[str, Any]) -> tuple[C, Connections]:
    """A new `producer`, `consumer` or `admin` client, and its connection errors. Raises `KafkaUnusable`."""
    connections = Connections(client, settings)
    try:
        return make({**settings, "error_cb": connections}), connections
    except KafkaException as error:  # an invalid value, or a file with other content
        raise KafkaUnusable(f"{client}.override.*: {_refusal(error, settings)}") from error


def _refusal(error: KafkaException, settings: Mapping[str, Any]) -> str:
    """Why no client was made of these settings."""
    files = [name for name in settings if name.endswith(".location") and not os.access(settings[name], os.R_OK)]
    unreadable = "".join(f"; {name}: the file {settings[name]} cannot be read" for name in files)
    return f"{error.args[0].str()}{unreadable}"


def refused_settings(config: Config) -> list[FieldError]:
    """What the client library refuses of the settings given to each client. No broker is waited for.

    Raises `ConfigError` for references that cannot be looked up.
    """
    errors = []
    consumers = {"group.id": config.topics.reader_group}  # without one there is none
    for client, make, needed in (
        ("producer", Producer, {}),
        ("consumer", Consumer, consumers),
        ("admin", AdminClient, {}),
    ):
        settings = {**common_settings(config), **needed, **dict(config.overrides(client))}
        try:
            make(settings)
        except KafkaException as error:
            errors.append(FieldError(f"{client}.override.*", _refusal(error, settings)))
    return errors


def admin_client(config: Config) -> tuple[AdminClient, Connections]:
    """A new admin client, and its connection errors. Raises `KafkaUnusable`, and `ConfigError` for secrets."""
    settings = {**common_settings(config), **ADMIN_SETTINGS, **dict(config.overrides("admin"))}
    return opened(AdminClient, "admin", settings)


def brokers_answer(config: Config) -> bool:
    """Whether a broker answers a client that has just been made."""
    # The topic exists, or at least is not created by this.
    return _answers(config, lambda client: client.list_topics("__transaction_state", LOOK_SECONDS))


def coordinator_answers(config: Config, group: str) -> bool:
    """Whether the coordinator of the group answers a client that has just been made."""
    return _answers(
        config,
        lambda client: described_group(client, group, LOOK_SECONDS),
    )


def described_group(client: AdminClient, group: str, seconds: float) -> Any:
    """What the group's coordinator says of it. Raises `KafkaException`; drop the client then.

    librdkafka 2.16 aborts the process where the coordinator is found when the request's time has just passed (its
    issue 4605). So the request has an hour, and it is waited for here.
    """
    try:
        return client.describe_consumer_groups([group], request_timeout=3600)[group].result(seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def _answers(config: Config, ask: Callable[[Any], object]) -> bool:
    try:
        client, _ = admin_client(config)
        ask(client)
    except (KafkaException, KafkaUnusable, ConfigError):
        return False
    return True


_TIMEOUT_TOO_LONG: Final = (
    "transaction.timeout.ms is above the brokers' transaction.max.timeout.ms: lower it here, or raise it there"
)


def begin_session(producer: Any, seconds: float) -> None:
    """`init_transactions` of a new producer, which fences others with its id. Raises `KafkaException`.

    It connects first: a takeover then takes 0.06 s instead of 0.5 (`connections.settle`).
    """
    with contextlib.suppress(KafkaException):  # `init_transactions` reports the reason
        settle(producer, LOOK_SECONDS)
    first = min(seconds, HELD_UP_SECONDS)
    try:
        producer.init_transactions(first)
    except KafkaException as error:
        cause = error.args[0]
        if cause.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:  # librdkafka names a setting that no broker has
            raise KafkaException(KafkaError(cause.code(), _TIMEOUT_TOO_LONG)) from error
        if is_held_up(error) or not cause.retriable() or first == seconds:
            raise
        producer.init_transactions(seconds - first)


def abort_on(producer: Any, transactional_id: str, left_open: Iterable[tuple[str, int]], seconds: float) -> None:
    """Aborts a transaction with a record for each of these partitions, and with it what its id has left open there.

    A broker leaves a transaction open on a partition that has no leader when it ends (4.3.1: the coordinator takes the
    partition for one that is deleted). The next marker of the id ends it there. Raises `KafkaException`.
    """
    producer.begin_transaction()
    for topic, partition in left_open:
        producer.produce(topic, b"", abort_key(transactional_id), partition)
    if left := producer.flush(seconds):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} of them are not written", retriable=True))
    producer.abort_transaction(seconds)


def is_held_up(error: KafkaException) -> bool:
    """Whether the last transaction of the id is decided and does not end."""
    return bool(error.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS)


def hear(client: Any, connections: Connections) -> None:
    """Polls a client, so that it reports errors of its connections."""
    with contextlib.suppress(*PRODUCER_ERRORS):  # a client with a fatal error raises it again
        connections.hear(client.poll)


def reason(error: KafkaException, connections: Connections, **asked: tuple[str, str]) -> str:
    """Why a request failed: a missing ACL, what a broker answered, or the connection."""
    cause = error.args[0]
    if denied := missing_acl(cause, connections.client, **asked):
        return denied
    # _NOENT, "No leaders found": the brokers answered that they do not have the topic, or no leader of a partition.
    answered = cause.code() > 0 or cause.code() == KafkaError._NOENT
    return str(cause.str()) if answered and not connections.hopeless else connections.why


def failure(what: str, error: KafkaException, connections: Connections, **asked: tuple[str, str]) -> KafkaUnavailable:
    """The error of a failed request: `KafkaUnauthorized` where an ACL is missing."""
    cause = error.args[0]
    kind = KafkaUnavailable if missing_acl(cause, connections.client, **asked) is None else KafkaUnauthorized
    return kind(f"{what}: {reason(error, connections, **asked)}")
