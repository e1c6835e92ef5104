"""What a connector sends beside its changes: notifications, heartbeats, progress of snapshots.

It may not hold up the capture: nothing here waits, and nothing is raised. librdkafka's queue is kept short: what
waits for a minute is given up, so that the oldest goes first while Kafka is away, and so is what finds the queue
full. Both are counted. Weighed in docs/decisions.md, "Notifications have a producer of their own".
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
"""Records that wait, at most."""
PATIENCE_MS: Final = 60_000
CLOSE_SECONDS: Final = 2.0


class BestEffortProducer:
    """`send` and `poll` return at once, `close` within `CLOSE_SECONDS`. For one thread. `dropped` counts."""

    def __init__(self, config: Config) -> None:
        self._settings = _settings(config)
        self._producer: Producer | None = None
        self.dropped = 0

    def send(self, topic: str, key: bytes, value: bytes, partition: int = -1) -> None:
        """Hands a record over; by default its key chooses the partition."""
        try:
            if self._producer is None:
                self._producer = Producer({**self._settings, "on_delivery": self._report})
            self._producer.produce(topic, value, key, partition)
        except BufferError:
            self.dropped += 1
        except KafkaException as error:
            self._drop(error.args[0], topic)

    def poll(self) -> None:
        """Hears what became of records; call it now and then."""
        if self._producer is not None:
            self._producer.poll(0)

    def renew(self, config: Config) -> Callable[[], None]:
        """The next record makes a producer by `config`; what is returned sends what waits, on another thread."""
        self._settings = _settings(config)
        old, self._producer = self._producer, None
        return lambda: None if old is None else self._finish(old)

    def close(self) -> None:
        """Sends what waits, or gives it up."""
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
        log.warning("a record for %s is given up: %s", topic, why)
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
