"""Fences the transactional producer of another node. It blocks."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException, Producer

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka.client import abort_on, begin_session, common_settings, hear, is_held_up, opened, reason
from deelog_connector.kafka_port import REQUEST_SECONDS, WriteFailed
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl


def fence(
    config: Config, transactional_id: str, left_open: Sequence[tuple[str, int]] = (), seconds: float = REQUEST_SECONDS
) -> None:
    """Opens and drops a producer session with this id: aborts its open transaction, and fences its owner.

    Raises `WriteFailed(LOST)` where Kafka does not answer in time.
    """
    try:
        settings = {**common_settings(config), **dict(config.overrides("producer"))}
        # The client's own default may be above what the broker allows.
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": config["transaction.timeout.ms"]}
        producer, connections = opened(Producer, "producer", settings)
    except (KafkaUnusable, ConfigError) as error:
        raise WriteFailed(Cause.LOST, f"fencing {transactional_id}: {error}") from error
    try:
        begin_session(producer, seconds)
        if left_open:
            abort_on(producer, transactional_id, left_open, seconds)
    except KafkaException as error:
        hear(producer, connections)
        asked = {"transactional_id": ("Write", transactional_id)}
        why, denied = reason(error, connections, **asked), missing_acl(error.args[0], connections.client, **asked)
        raise WriteFailed(
            Cause.LOST, f"fencing {transactional_id}: {why}", denied=denied is not None, held_up=is_held_up(error)
        ) from error
    finally:
        del producer  # not `close()`, which would wait for unavailable brokers; a traceback would keep it
