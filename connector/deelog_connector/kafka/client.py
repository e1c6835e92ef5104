"""Kafka, as the connector needs it: one transactional writer, a tail, scans and fences.

What the connector writes and reads goes through here. Everything here blocks; the runtime calls it from threads of
its own. Foreign errors end here, as `WriteFailed` or `KafkaUnusable`.

What librdkafka taught (and where it is heeded): `message.timeout.ms=0`, since a local timeout skips a message and
goes on; reports are used for errors alone, never for a position; `auto.offset.reset=error`; a new producer object
after any failure, since a fatal one is dead and the outcome of the others unknown.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from deelog_connector.core.effects import Cause
from deelog_connector.kafka.opening import (
    LOOK_SECONDS,
    REQUEST_SECONDS,
    KafkaUnauthorized,
    KafkaUnavailable,
    KafkaUnusable,
    begin_session,
    common_settings,
    failure,
    hear,
    opened,
    reason,
)
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.connections import Connections

log = logging.getLogger(__name__)
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_TRUNCATED: Final = frozenset(
    {KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
)
_REFUSED: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
    }
)


class WriteFailed(Exception):
    """A transaction was not committed. `cause` says what the core may assume; `denied`: this user may not write."""

    def __init__(self, cause: Cause, reason: str, *, denied: bool = False) -> None:
        super().__init__(f"{cause}: {reason}")
        self.cause, self.denied = cause, denied


class OutRecord(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


class InRecord(NamedTuple):
    """One record that was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def consumer_settings(config: Config) -> dict[str, Any]:
    """A consumer that commits nothing, reads committed records only, and fails rather than skip."""
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


class Writer:
    """One node's transactional producer. `open` gives a new session, which fences the one before.

    `has_written`: this node's writer before it has, so that a missing right is no reason to end any more.
    """

    def __init__(
        self, config: Config, transactional_id: str, max_message_bytes: int, has_written: bool = False
    ) -> None:
        self._config, self._transactional_id, self._max_message_bytes = config, transactional_id, max_message_bytes
        self._producer: Producer | None = None
        self._connections = Connections("producer", {})
        self._errors: list[KafkaError] = []
        topics, letters = config.topics, config["errors.deadletterqueue.topic.name"]
        # Of a transaction Kafka does not say which topic it refuses.
        written = " or ".join(filter(None, (topics.changes, topics.positions, letters)))
        self._asked = {"topic": ("Write", written), "transactional_id": ("Write", transactional_id)}
        self.has_written = has_written
        self.closing = False
        """Set from any thread: what waits for Kafka in vain is given up soon."""

    def open(self) -> None:
        """A new session; raises `WriteFailed(LOST)` where the brokers do not answer in time.

        Raises `KafkaUnusable` where they will never answer this client, unless it has written before: then there are
        changes to be kept until somebody mends that.
        """
        self.discard()
        self._errors = []
        try:
            producer, self._connections = opened(Producer, "producer", self.settings())
        except (KafkaUnusable, ConfigError) as error:
            if self.has_written:
                raise WriteFailed(Cause.LOST, str(error), denied=True) from error
            raise
        try:
            begin_session(producer, REQUEST_SECONDS)
        except KafkaException as error:
            hear(producer, self._connections)
            raise self._denied(error) or WriteFailed(Cause.LOST, reason(error, self._connections)) from error
        self._producer = producer

    def settings(self) -> dict[str, Any]:
        """Of the next session. Secrets are looked up for each: a password may have changed. Raises `ConfigError`."""
        return {
            **common_settings(self._config),
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            **dict(self._config.overrides("producer")),
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": self._config["transaction.timeout.ms"],
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "message.max.bytes": self._max_message_bytes,
            "delivery.report.only.error": True,
            "on_delivery": self._report,
        }

    def _report(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(error)  # nothing else: this runs inside the client's poll

    def _denied(self, error: KafkaException) -> Exception | None:
        """The error where this user may not write, or cannot connect; None where it is another one."""
        told = missing_acl(error.args[0], "producer", **self._asked)
        if told is None and not self._connections.hopeless:
            return None
        told = told or self._connections.why
        return WriteFailed(Cause.LOST, told, denied=True) if self.has_written else KafkaUnauthorized(told)

    def commit(self, records: Iterable[OutRecord]) -> None:
        """Writes all records in one transaction and commits it.

        Raises `WriteFailed`; the session is then dead, and what it has open is aborted by the next one. Raises
        `KafkaUnauthorized` where this user may not write, unless it has written before.
        """
        producer = self._producer
        if producer is None:
            raise WriteFailed(Cause.LOST, "no session is open")
        self._errors.clear()
        try:
            producer.begin_transaction()
            for record in records:
                self._produce(producer, record)
            self._commit(producer)
        except KafkaException as error:
            raise self._failure(error) from error
        self.has_written = True

    def _produce(self, producer: Producer, record: OutRecord) -> None:
        while True:
            try:
                producer.produce(
                    record.topic, record.value, record.key, partition=record.partition, headers=record.headers
                )
                return
            except BufferError as error:
                if self.closing:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from error
                producer.poll(0.1)  # the client's queue is full: let it send

    def _commit(self, producer: Producer) -> None:
        while True:
            try:
                producer.commit_transaction(REQUEST_SECONDS)
                return
            except KafkaException as error:
                # Kafka may be away for a minute: the same commit is tried again; it takes effect once. One that lets
                # this client in no more, after a change of passwords, is asked by a new one.
                hear(producer, self._connections)
                if not error.args[0].retriable() or self.closing or self._connections.hopeless:
                    raise

    def _failure(self, error: KafkaException) -> Exception:
        first = error.args[0]
        codes = {e.code() for e in self._errors} | {first.code()}
        self.discard()
        if codes & _FENCED:
            return WriteFailed(Cause.FENCED, first.str())
        if codes & _REFUSED:
            # After an abort librdkafka's next transaction fails with OUT_OF_ORDER_SEQUENCE_NUMBER ("skipped sequence
            # numbers", seen with 2.16 on a 4.3 broker): only a new session is good.
            return WriteFailed(Cause.REFUSED, "; ".join(sorted({e.str() for e in self._errors} | {first.str()})))
        for found in (*self._errors, first):
            if denied := self._denied(KafkaException(found)):
                return denied
        return WriteFailed(Cause.LOST, first.str())

    def discard(self) -> None:
        """Drops the session and what the client still has queued."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaException):  # a fatal error of a session that ends anyway
                producer.purge()
                producer.poll(0)


def fence(config: Config, transactional_ids: Iterable[str]) -> None:
    """Opens and drops a session under each id: aborts what it has open, refuses what its owner sends later."""
    for transactional_id in transactional_ids:
        try:
            settings = {**common_settings(config), **dict(config.overrides("producer"))}
            producer, connections = opened(Producer, "producer", {**settings, "transactional.id": transactional_id})
        except (KafkaUnusable, ConfigError) as error:
            raise WriteFailed(Cause.LOST, f"fencing {transactional_id}: {error}") from error
        try:
            begin_session(producer, REQUEST_SECONDS)
        except KafkaException as error:
            hear(producer, connections)
            told = reason(error, connections, transactional_id=("Write", transactional_id))
            raise WriteFailed(Cause.LOST, f"fencing {transactional_id}: {told}") from error
        finally:
            del producer  # not `close()`, which would wait for brokers that are away; a traceback would keep it


class Tail:
    """Follows all partitions of a topic from their beginning; `caught_up` once each was read to the end it had.

    The client tells of an end only when nothing comes for a moment, which on a topic that all nodes write to may be
    never: what is read of it counts too.

    With `newest` it begins with so many records of each partition, with `begin` at that offset of each. `serves`: one
    before it has read, so that a missing right is no reason to end any more.
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
                low, high = _bounds(self._consumer, self._connections, topic, partition)
            except KafkaUnavailable:
                self._consumer.close()
                raise
            self._ends[partition] = high
            start = low if newest is None else max(low, high - newest)
            assigned.append(TopicPartition(topic, partition, start if begin is None else min(max(low, begin), high)))
        self._next = {one.partition: one.offset for one in assigned}
        self._consumer.assign(assigned)

    def next_offset(self, partition: int) -> int:
        """Of the record that comes next."""
        return self._next[partition]

    @property
    def caught_up(self) -> bool:
        """Whether every partition was read to the end that it had when this began."""
        return not self._ends

    def read(self, seconds: float) -> list[InRecord]:
        """Up to 2000 records; raises `KafkaUnusable` where reading cannot go on.

        A right that is taken away while it reads is logged once: the client asks on, and reads on once it is back.
        """
        found = []
        for message in self._consumer.consume(2000, seconds):
            error = message.error()
            told = None if error is None else missing_acl(error, "consumer", **self._asked)
            if error is None:
                record = _record(message)
                self._next[record.partition] = record.offset + 1
                if record.offset + 1 >= self._ends.get(record.partition, math.inf):
                    del self._ends[record.partition]
                found.append(record)
                self._serves = True
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends.pop(cast("int", message.partition()), None)
                self._serves = True
            elif told is not None:
                if not self._serves:
                    raise KafkaUnauthorized(told)
                log.error("%s", told)
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaUnusable(f"cannot read {self._topic}[{message.partition()}] on: {error.str()}")
        return found

    def close(self) -> None:
        """Leaves."""
        self._consumer.close()


class Scanner:
    """Reads stretches of one topic's partitions, again and again. For one thread at a time.

    The consumer is made by the first `read`, and by the first one after a `close`.
    """

    def __init__(self, config: Config, topic: str) -> None:
        self._config, self._topic = config, topic
        self._asked = {"topic": ("Read", topic), "group": ("Read", config.topics.reader_group)}
        self._consumer: Consumer | None = None
        self._connections = Connections("consumer", {})

    def read(self, partition: int, offset: int, seconds: float) -> Iterator[list[InRecord]]:
        """Batches of records from `offset` (-1: the beginning) on, until the caller stops or `seconds` have passed.

        An offset that the partition does not have (any more) means its beginning: what READ then finds decides.
        Raises `KafkaUnavailable` where reading fails, `KafkaUnusable` or `ConfigError` where the consumer cannot be
        made: `close` it then.
        """
        consumer = self._consumer
        if consumer is None:
            made, self._connections = opened(Consumer, "consumer", consumer_settings(self._config))
            consumer = self._consumer = made
        low, high = _bounds(consumer, self._connections, self._topic, partition)
        start = offset if low <= offset <= high else low
        consumer.assign([TopicPartition(self._topic, partition, start)])
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                batch = []
                for message in consumer.consume(5000, 0.02):
                    failed = message.error()
                    if failed is None:
                        batch.append(_record(message))
                    elif failed.code() != KafkaError._PARTITION_EOF and not failed.retriable():
                        what = f"cannot read {self._topic}[{partition}]"
                        raise failure(what, KafkaException(failed), self._connections, **self._asked)
                if batch:
                    yield batch
        finally:
            consumer.unassign()

    def close(self) -> None:
        """Leaves."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def can_read(config: Config) -> None:
    """Raises `KafkaUnusable` or `ConfigError` where no consumer can be made by the configuration."""
    opened(Consumer, "consumer", consumer_settings(config))[0].close()


def _bounds(consumer: Consumer, connections: Connections, topic: str, partition: int) -> tuple[int, int]:
    """First and next offset of a partition; raises `KafkaUnavailable`."""
    until = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), LOOK_SECONDS)
        except KafkaException as error:
            hear(consumer, connections)
            if connections.hopeless or time.monotonic() > until or missing_acl(error.args[0], "consumer"):
                what = f"cannot read {topic}[{partition}]"
                raise failure(what, error, connections, topic=("Read", topic)) from error


def still_holds(config: Config, topic: str, partition: int, offset: int, leader_epoch: int) -> bool:
    """Whether the partition still has its log up to `offset`, as it was under `leader_epoch` (KIP-320).

    A broker that has just come back may name an end below its log's for a moment; the log itself tells. Raises
    `KafkaUnavailable` where there is no answer in time.
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


def _record(message: Message) -> InRecord:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    # The client gives a list of pairs, and values as bytes, for records that it read.
    headers = cast("list[tuple[str, bytes | None]] | None", message.headers())
    return InRecord(topic, partition, offset, message.key(), message.value(), headers)


__all__ = [
    "InRecord",
    "OutRecord",
    "Scanner",
    "Tail",
    "WriteFailed",
    "Writer",
    "can_read",
    "fence",
    "still_holds",
]
