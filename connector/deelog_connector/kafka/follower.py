"""The grid's topology topic: creates, follows and writes it.

Functions that block say so. The reader passes records on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from deelog_connector.errors import KafkaUnusable, TopologyError
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.client import common_settings, opened, reason
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.connections import Connections

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1
CALL_SECONDS: Final = 10.0
_MAX_RECORDS: Final = 500


class TopologyRecord(NamedTuple):
    """A record of the topology topic; `value` is None where the key is removed."""

    offset: int
    key: str
    value: bytes | None


def create_topology_topic(config: Config) -> None:
    """Creates the topology topic (one partition, compacted) if it is missing. Blocks. Raises `KafkaUnusable`."""
    KafkaAdmin(config).ensure(config.topics.topology, 1, {"cleanup.policy": "compact"})


class TopologyReader:
    """Follows the topology topic from its beginning, `read_committed`, in a thread of its own.

    `on_records` gets batches in order, `on_failure` the error that ended the reader; both are called on `loop`.
    You must call `stop()`.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        on_records: Callable[[list[TopologyRecord]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._topic, self._group = config.topics.topology, config.topics.reader_group
        self._settings = common_settings(config) | {
            "group.id": self._group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "reconnect.backoff.max.ms": 500,
            **config.overrides("consumer"),
        }
        self._loop, self._on_records, self._on_failure = loop, on_records, on_failure
        self._has_read = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deelog-topology", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Blocks until then."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            consumer, _ = opened(Consumer, "consumer", self._settings)
        except KafkaUnusable as error:
            hand_over(self._loop, self._on_failure, error)
            return
        try:
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            while not self._stop.is_set():
                records = [self._decoded(message) for message in consumer.consume(_MAX_RECORDS, POLL_SECONDS)]
                decoded = [record for record in records if record is not None]
                if decoded:
                    hand_over(self._loop, self._on_records, decoded)
        except (KafkaException, TopologyError, UnicodeDecodeError) as error:
            hand_over(self._loop, self._on_failure, error)
        finally:
            consumer.close()

    def _decoded(self, message: Any) -> TopologyRecord | None:
        error = message.error()
        if error is None:
            self._has_read = True
            return TopologyRecord(message.offset(), (message.key() or b"").decode(), message.value())
        refused = missing_acl(error, "consumer", topic=("Read", self._topic), group=("Read", self._group))
        if refused is not None:
            if not self._has_read:
                raise TopologyError(refused)
            log.warning("%s", refused)  # the client retries, and reads on once the ACL is back
            return None
        if error.fatal() or error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError._AUTO_OFFSET_RESET,
        ):
            raise TopologyError(f"topic {self._topic}: {error.str()}; was it deleted? Restart the nodes")
        log.warning("topic %s: %s", self._topic, error.str())
        return None


def hand_over(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # The loop is closed: there is no receiver, and the stop flag ends the reader's thread.
        log.info("the event loop ended before %s", getattr(function, "__name__", "a callback"))


def publish(config: Config, key: str, value: bytes) -> None:
    """Writes one record to the topology topic, outside any transaction. Blocks until Kafka has acknowledged it."""
    topic = config.topics.topology
    settings = common_settings(config)
    settings |= {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0, "linger.ms": 0}
    producer, connections = opened(Producer, "producer", settings | dict(config.overrides("producer")))
    failures: list[KafkaError] = []

    def report(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    producer.produce(topic, value, key.encode(), partition=0, on_delivery=report)
    left = _flushed(producer, connections)
    if left or failures:
        silence = connections.why or f"no answer within {CALL_SECONDS:.0f} s"
        why = reason(KafkaException(failures[0]), connections, topic=("Write", topic)) if failures else silence
        producer.purge()
        producer.flush(1)
        raise TopologyError(f"topic {topic}: {key} cannot be written: {why}")


def _flushed(producer: Any, connections: Connections) -> int:
    """Flushes for at most the time of a call; returns the number of records not delivered."""
    until = time.monotonic() + CALL_SECONDS
    while True:
        left = int(producer.flush(POLL_SECONDS))
        if not left or connections.hopeless or time.monotonic() > until:
            return left
