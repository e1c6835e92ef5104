"""Reads ranges of the change topic. It blocks: call it from a thread."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deelog_connector.kafka.client import failure, opened
from deelog_connector.kafka.consumer import bounds, consumer_settings
from deelog_connector.kafka.records import InRecord, record_of
from deelog_schemas.config import Config
from deelog_schemas.kafka.connections import Connections


class Scanner:
    """Reads ranges of one topic's partitions. For one thread at a time.

    The consumer is made by the first `read`, and by the first one after a `close`.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self._config, self._topic = config, topic
        self._asked = {"topic": ("Read", topic), "group": ("Read", config.topics.reader_group)}
        self._consumer: Consumer | None = None
        self._connections = Connections("consumer", {})

    def read(self, partition: int, offset: int, seconds: float) -> Iterator[list[InRecord]]:
        """Batches of records from `offset` (-1: the beginning) on, until the caller stops or `seconds` have passed.

        If the partition does not have the offset (any more), reading starts at its beginning; READ decides by the
        records. Raises `KafkaUnavailable` where reading fails, `KafkaUnusable` or `ConfigError` where no consumer can
        be made: call `close` then.
        """
        consumer = self._consumer
        if consumer is None:
            made, self._connections = opened(Consumer, "consumer", consumer_settings(self._config))
            consumer = self._consumer = made
        low, high = bounds(consumer, self._connections, self._topic, partition)
        start = offset if low <= offset <= high else low
        consumer.assign([TopicPartition(self._topic, partition, start)])
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                batch = []
                for message in consumer.consume(5000, 0.02):
                    failed = message.error()
                    if failed is None:
                        batch.append(record_of(message))
                    elif failed.code() != KafkaError._PARTITION_EOF and not failed.retriable():
                        what = f"cannot read {self._topic}[{partition}]"
                        raise failure(what, KafkaException(failed), self._connections, **self._asked)
                if batch:
                    yield batch
        finally:
            consumer.unassign()

    def close(self) -> None:
        """Closes the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


__all__ = ["Scanner"]
