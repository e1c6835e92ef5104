"""Makes clients of librdkafka, and turns their errors into ours with a remedy.

Weighed in docs/decisions.md, "Errors of Kafka's clients".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.client_log import client_log
from deelog_schemas.kafka.connections import Connections, settle

C = TypeVar("C")
log = client_log("deelog_connector.kafka")

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
        files = [name for name in settings if name.endswith(".location") and not os.access(settings[name], os.R_OK)]
        unreadable = "".join(f"; {name}: the file {settings[name]} cannot be read" for name in files)
        raise KafkaUnusable(f"{client}.override.*: {error.args[0].str()}{unreadable}") from error


def begin_session(producer: Any, seconds: float) -> None:
    """`init_transactions` of a new producer, which fences others with its id. Raises `KafkaException`.

    It connects first: a takeover then takes 0.06 s instead of 0.5 (`connections.settle`).
    """
    with contextlib.suppress(KafkaException):  # `init_transactions` reports the reason
        settle(producer, LOOK_SECONDS)
    producer.init_transactions(seconds)


def hear(client: Any, connections: Connections) -> None:
    """Polls a client, so that it reports errors of its connections."""
    with contextlib.suppress(KafkaException):  # a client with a fatal error raises it again
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
