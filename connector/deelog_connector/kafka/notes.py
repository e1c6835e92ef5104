"""The producer of notifications, heartbeats and progress of snapshots, which may be lost.

It must not hold up the capture: nothing here waits or raises. librdkafka's queue is short: a record is dropped after a
minute, or when the queue is full. After a minute all that is queued goes with its client, which may be one that its
library has lost (see `progress`). All are counted.
Weighed in docs/decisions.md, "Notifications have a producer of their own".
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deelog_connector.kafka.client import PRODUCER_ERRORS, common_settings
from deelog_connector.kafka.threads import Run
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl

log = logging.getLogger(__name__)

QUEUE: Final = 1000
"""Most records in the queue."""
PATIENCE_MS: Final = 60_000
CLOSE_SECONDS: Final = 2.0


class Notes:
    """See `kafka_port.Notes`. For one thread."""

    def __init__(self, run: Run, config: Config) -> None:
        self._run, self._config = run, config
        self._producer: Producer | None = None
        self._dropped = 0
        self._late = False

    @property
    def dropped(self) -> int:
        if self._producer is not None:
            with contextlib.suppress(*PRODUCER_ERRORS):  # a fatal error: the second `send` from now has a new producer
                self._producer.poll(0)  # serves delivery reports
        return self._dropped

    def send(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        try:
            if self._producer is not None:
                self._producer.poll(0)
            if self._late:
                self._leave()
            if self._producer is None:
                self._producer = Producer({**_settings(self._config), "on_delivery": self._report})
            self._producer.produce(topic, value, key, -1 if partition is None else partition)
        except BufferError:
            self._dropped += 1
        except KafkaException as error:
            self._drop(error.args[0], topic)
        except ConfigError as error:
            self._dropped += 1
            log.warning("a record for %s is dropped: %s", topic, error)

    async def close(self) -> None:
        await self._run(self._close)

    def _close(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(*PRODUCER_ERRORS):  # a fatal error
                self._producer.flush(CLOSE_SECONDS)
        self._leave()

    def _leave(self) -> None:
        producer, self._producer = self._producer, None
        self._late = False
        if producer is not None:
            self._dropped += len(producer)
            producer.purge()

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and error.code() != KafkaError._PURGE_QUEUE:
            self._drop(error, message.topic() or "")

    def _drop(self, error: KafkaError, topic: str) -> None:
        self._dropped += 1
        why = missing_acl(error, "producer", topic=("Write", topic)) or error.str()
        log.warning("a record for %s is dropped: %s", topic, why)
        self._late |= error.code() == KafkaError._MSG_TIMED_OUT
        if error.fatal() or error.code() == KafkaError._FATAL:  # of a client whose fatal error `dropped` has heard
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
