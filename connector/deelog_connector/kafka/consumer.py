"""Consumer settings of tail and scanner, and two checks that need a consumer."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka.client import LOOK_SECONDS, REQUEST_SECONDS, common_settings, failure, hear, opened
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.connections import Connections

_TRUNCATED: Final = frozenset(
    {KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
)


def consumer_settings(config: Config) -> dict[str, Any]:
    """Settings of a consumer that commits no offsets, reads committed records, and fails instead of skipping."""
    return {
        **common_settings(config),
        **dict(config.overrides("consumer")),
        "group.id": config.topics.reader_group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
    }


def bounds(consumer: Consumer, connections: Connections, topic: str, partition: int) -> tuple[int, int]:
    """Log start and end offset of a partition; raises `KafkaUnavailable`."""
    until = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), LOOK_SECONDS)
        except KafkaException as error:
            hear(consumer, connections)
            if connections.hopeless or time.monotonic() > until or missing_acl(error.args[0], "consumer"):
                what = f"cannot read {topic}[{partition}]"
                raise failure(what, error, connections, topic=("Read", topic)) from error


def can_read(config: Config) -> None:
    """Raises `KafkaUnusable` or `ConfigError` where no consumer can be made by the configuration."""
    opened(Consumer, "consumer", consumer_settings(config))[0].close()


def still_holds(config: Config, topic: str, partition: int, offset: int, leader_epoch: int) -> bool:
    """Whether the partition still has its log up to `offset`, as it was under `leader_epoch` (KIP-320).

    A broker that has just restarted may report an end below its log's for a moment; the log itself decides. Raises
    `KafkaUnavailable` where no broker answers in time.
    """
    consumer, _ = opened(Consumer, "consumer", consumer_settings(config))
    try:
        consumer.assign([TopicPartition(topic, partition, offset, leader_epoch=leader_epoch)])
        until = time.monotonic() + REQUEST_SECONDS
        while time.monotonic() < until:
            message = consumer.poll(0.2)
            failed = message.error() if message is not None else None
            if message is not None and (failed is None or failed.code() == KafkaError._PARTITION_EOF):
                return True
            if failed is not None and failed.code() in _TRUNCATED:
                return False
    finally:
        consumer.close()
    raise KafkaUnavailable(f"no answer about {topic}[{partition}]@{offset}")


__all__ = ["bounds", "can_read", "consumer_settings", "still_holds"]
