"""Follows a topic. It blocks: call it from a thread."""

from __future__ import annotations

import logging
import math
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.client import opened
from deelog_connector.kafka.consumer import bounds, consumer_settings
from deelog_connector.kafka.records import InRecord, record_of
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl

log = logging.getLogger(__name__)


class Tail:
    """Follows all partitions of a topic from their beginning; `caught_up` once each was read to its first end.

    The client reports an end only when no record comes for a moment, which may never happen on a topic that all nodes
    write to: reading past the end counts too.

    With `newest` it begins with the last records of each partition, with `begin` at that offset of each. `serves`: an
    earlier tail has read, so a missing ACL is no longer fatal.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        partitions: int,
        newest: int | None = None,
        begin: int | None = None,
        serves: bool = False,
    ) -> None:
        self._topic = topic
        self._asked = {"topic": ("Read", topic), "group": ("Read", config.topics.reader_group)}
        self._consumer, self._connections = opened(Consumer, "consumer", consumer_settings(config))
        self._ends: dict[int, int] = {}
        self._serves = serves
        assigned = []
        for partition in range(partitions):
            try:
                low, high = bounds(self._consumer, self._connections, topic, partition)
            except KafkaUnavailable:
                self._consumer.close()
                raise
            self._ends[partition] = high
            start = low if newest is None else max(low, high - newest)
            assigned.append(TopicPartition(topic, partition, start if begin is None else min(max(low, begin), high)))
        self._next = {one.partition: one.offset for one in assigned}
        self._consumer.assign(assigned)

    def next_offset(self, partition: int) -> int:
        """The offset of the next record to read."""
        return self._next[partition]

    @property
    def caught_up(self) -> bool:
        """Whether every partition was read to the end that it had at the start."""
        return not self._ends

    def read(self, seconds: float) -> list[InRecord]:
        """Up to 2000 records; raises `KafkaUnusable` where reading cannot go on.

        An ACL that is removed while it reads is logged once: the client retries, and reads on once it is back.
        """
        records = []
        for message in self._consumer.consume(2000, seconds):
            error = message.error()
            denied = None if error is None else missing_acl(error, "consumer", **self._asked)
            if error is None:
                record = record_of(message)
                self._next[record.partition] = record.offset + 1
                if record.offset + 1 >= self._ends.get(record.partition, math.inf):
                    del self._ends[record.partition]
                records.append(record)
                self._serves = True
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends.pop(cast("int", message.partition()), None)
                self._serves = True
            elif denied is not None:
                if not self._serves:
                    raise KafkaUnauthorized(denied)
                log.warning("%s", denied)
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaUnusable(f"cannot read {self._topic}[{message.partition()}] on: {error.str()}")
        return records

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()


__all__ = ["Tail"]
