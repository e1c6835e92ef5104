"""Sends notifications, heartbeats and progress of snapshots, which may be lost.

It must not hold up the capture: nothing here waits or raises. librdkafka's queue is short: a record is dropped after a
minute, so that the oldest go first while Kafka is unavailable, or when the queue is full. Both are counted.
Weighed in docs/decisions.md, "Notifications have a producer of their own".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deelog_connector.kafka.client import common_settings
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl

log = logging.getLogger(__name__)

QUEUE: Final = 1000
"""Most records in the queue."""
PATIENCE_MS: Final = 60_000
CLOSE_SECONDS: Final = 2.0


class BestEffortProducer:
    """`send` and `poll` return at once, `close` within `CLOSE_SECONDS`. For one thread. `dropped` counts."""

    def __init__(self, config: Config) -> None:
        self._settings = _settings(config)
        self._producer: Producer | None = None
        self.dropped = 0

    def send(self, topic: str, key: bytes, value: bytes, partition: int = -1) -> None:
        """Queues a record; by default its key chooses the partition."""
        try:
            if self._producer is None:
                self._producer = Producer({**self._settings, "on_delivery": self._report})
            self._producer.produce(topic, value, key, partition)
        except BufferError:
            self.dropped += 1
        except KafkaException as error:
            self._drop(error.args[0], topic)

    def poll(self) -> None:
        """Serves delivery reports; call it regularly."""
        if self._producer is not None:
            self._producer.poll(0)

    def renew(self, config: Config) -> Callable[[], None]:
        """The next record makes a producer by `config`. Call the result in another thread to flush the old one."""
        self._settings = _settings(config)
        old, self._producer = self._producer, None
        return lambda: None if old is None else self._finish(old)

    def close(self) -> None:
        """Flushes the queue, or drops it after `CLOSE_SECONDS`."""
        if self._producer is not None:
            self._finish(self._producer)
            self._producer = None

    def _finish(self, producer: Producer) -> None:
        self.dropped += producer.flush(CLOSE_SECONDS)
        producer.purge()

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and error.code() != KafkaError._PURGE_QUEUE:
            self._drop(error, message.topic() or "")

    def _drop(self, error: KafkaError, topic: str) -> None:
        self.dropped += 1
        why = missing_acl(error, "producer", topic=("Write", topic)) or error.str()
        log.warning("a record for %s is dropped: %s", topic, why)
        if error.fatal():
            self._producer = None  # the next record makes a new one


def _settings(config: Config) -> dict[str, Any]:
    return {
        **common_settings(config),
        "linger.ms": 20,
        "partitioner": "murmur2_random",  # as Java's producer
        **dict(config.overrides("producer")),
        "enable.idempotence": True,
        "acks": "all",
        "queue.buffering.max.messages": QUEUE,
        "message.timeout.ms": PATIENCE_MS,
    }
