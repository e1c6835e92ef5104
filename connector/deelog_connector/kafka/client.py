"""Clients of librdkafka as they are made, and what they are refused as an error with its remedy.

Weighed in docs/decisions.md, "Errors of Kafka's clients".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.client_log import client_log
from deelog_schemas.kafka.connections import Connections, settle

C = TypeVar("C")
log = client_log("deelog_connector.kafka")

REQUEST_SECONDS: Final = 10.0
"""How long one request to the brokers may take before it is tried again or given up."""
LOOK_SECONDS: Final = 1.0
"""How long the first request may take before the client is asked whether it has a connection at all."""


def common_settings(config: Config) -> dict[str, Any]:
    """What every client is given first. The client's own messages go where ours go, not to stderr."""
    servers = ",".join(config["bootstrap.servers"])
    return {"bootstrap.servers": servers, "client.id": config["name"], "logger": log}


def opened(make: Callable[[dict[str, Any]], C], client: str, settings: Mapping[str, Any]) -> tuple[C, Connections]:
    """A new `producer`, `consumer` or `admin` client, and what it will say of its connections; `KafkaUnusable`."""
    connections = Connections(client, settings)
    try:
        return make({**settings, "error_cb": connections}), connections
    except KafkaException as error:  # a value that is none, a file that holds something else
        files = [name for name in settings if name.endswith(".location") and not os.access(settings[name], os.R_OK)]
        unreadable = "".join(f"; {name}: the file {settings[name]} cannot be read" for name in files)
        raise KafkaUnusable(f"{client}.override.*: {error.args[0].str()}{unreadable}") from error


def begin_session(producer: Any, seconds: float) -> None:
    """`init_transactions` of a new producer, which ends what others with its id have open; raises `KafkaException`.

    Connected first, which takes a takeover 0.06 s instead of 0.5 (`connections.settle`).
    """
    with contextlib.suppress(KafkaException):  # it will say why
        settle(producer, LOOK_SECONDS)
    producer.init_transactions(seconds)


def hear(client: Any, connections: Connections) -> None:
    """Lets a client report what became of its connections."""
    with contextlib.suppress(KafkaException):  # one that is spent says so once more
        connections.hear(client.poll)


def reason(error: KafkaException, connections: Connections, **asked: tuple[str, str]) -> str:
    """Why a request failed, as a sentence: a missing right, the connection, or else what the client says."""
    cause = error.args[0]
    return missing_acl(cause, connections.client, **asked) or connections.why or str(cause.str())


def failure(what: str, error: KafkaException, connections: Connections, **asked: tuple[str, str]) -> KafkaUnavailable:
    """The error of a request that failed: `KafkaUnauthorized` where a right is missing."""
    cause = error.args[0]
    kind = KafkaUnavailable if missing_acl(cause, connections.client, **asked) is None else KafkaUnauthorized
    return kind(f"{what}: {reason(error, connections, **asked)}")
