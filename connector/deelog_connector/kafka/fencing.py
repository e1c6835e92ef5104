"""Fences the transactional producer of another node. It blocks."""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka.client import begin_session, common_settings, hear, opened, reason
from deelog_connector.kafka_port import REQUEST_SECONDS, WriteFailed
from deelog_schemas.config import Config, ConfigError


def fence(config: Config, transactional_id: str, seconds: float = REQUEST_SECONDS) -> None:
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
    except KafkaException as error:
        hear(producer, connections)
        why = reason(error, connections, transactional_id=("Write", transactional_id))
        raise WriteFailed(Cause.LOST, f"fencing {transactional_id}: {why}") from error
    finally:
        del producer  # not `close()`, which would wait for unavailable brokers; a traceback would keep it
