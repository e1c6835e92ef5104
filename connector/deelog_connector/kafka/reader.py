"""A consumer that is assigned partitions by hand and commits no offsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.client import LOOK_SECONDS, brokers_answer, common_settings, failure, hear, opened
from deelog_connector.kafka.threads import Run
from deelog_connector.kafka_port import MAX_READ, InRecord, PartitionEnd
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.progress import MAX_STALL_SECONDS

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.05
"""Between two questions, where the client answers at once that it cannot."""
STALL_SECONDS: Final = 2.0
"""Seconds between two looks at the ends of the log. A partition that does not move from one to the next is lost."""
_TRUNCATED: Final = frozenset(
    {KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
)
_ANSWERS: Final = _TRUNCATED | {KafkaError._PARTITION_EOF}


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


class Reader:
    """See `kafka_port.Reader`. `run` runs one call at a time: a consumer that is closed while it reads crashes.

    librdkafka may lose a partition as it does for producers (see `progress`), so what it has read is compared with the
    ends of the log.
    """

    def __init__(self, run: Run, config: Config, topic: str, seconds: float) -> None:
        self._run, self._config, self._topic, self._seconds = run, config, topic, seconds
        self._asked = {"topic": ("Read", topic), "group": ("Read", config.topics.reader_group)}
        self._consumer, self._connections = opened(Consumer, "consumer", consumer_settings(config))
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        """By partition: the end that the client has last told. Markers of transactions count in it."""
        self._behind: dict[int, int] = {}
        """By partition: the offset reached at the last look, where there was more."""
        self._untold: dict[int, int] | None = None
        """What was read next at the last look, where the client did not tell the ends."""
        self._drained = False
        """Whether all that the client had fetched was read since the last look."""
        self._patience, self._look_at = STALL_SECONDS, 0.0
        self._problem: KafkaUnusable | None = None

    async def seek(self, offsets: Mapping[int, int]) -> None:
        await self._run(self._seek, dict(offsets))

    async def read(self, seconds: float) -> list[InRecord]:
        return await self._run(self._read, seconds)

    @property
    def caught_up(self) -> bool:
        # The client reports an end only when no record comes for a moment, which may never happen on a topic that all
        # nodes write to: reading past the end counts too.
        return not self._ends

    def next_offset(self, partition: int) -> int:
        return self._next[partition]

    async def close(self) -> None:
        await self._run(self._close)

    def _seek(self, offsets: dict[int, int]) -> None:
        try:
            lows, ends = self._bounds(offsets, time.monotonic() + self._seconds)
        except BaseException:
            self._assign(self._next)  # to hear why it failed may have taken records
            raise
        following = {p: offset if lows[p] <= offset <= ends[p] else lows[p] for p, offset in offsets.items()}
        self._assign(following)
        self._ends, self._next, self._problem = ends, following, None

    def _assign(self, offsets: Mapping[int, int]) -> None:
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in offsets.items()])
        self._reached, self._behind, self._look_at = {}, {}, time.monotonic() + self._patience
        self._untold = None

    def _bounds(self, partitions: Iterable[int], until: float) -> tuple[dict[int, int], dict[int, int]]:
        """Where each of these partitions begins and ends."""
        while True:
            try:
                return self._offsets(partitions, OFFSET_BEGINNING), self._offsets(partitions, OFFSET_END)
            except KafkaException as error:
                hear(self._consumer, self._connections)
                denied = missing_acl(error.args[0], "consumer")
                if denied or self._connections.hopeless or time.monotonic() > until:
                    what = f"cannot read {self._topic}"
                    raise failure(what, error, self._connections, topic=("Read", self._topic)) from error
                time.sleep(_PAUSE_SECONDS)

    def _offsets(self, partitions: Iterable[int], which: int) -> dict[int, int]:
        """The beginnings or the ends of these partitions. Raises `KafkaException`.

        One request to each broker: it waits behind that for records, on the same connection, so one for each partition
        would take `fetch.wait.max.ms` each.
        """
        asked = [TopicPartition(self._topic, partition, which) for partition in partitions]
        found = self._consumer.offsets_for_times(asked, LOOK_SECONDS) if asked else []
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return {one.partition: one.offset for one in found}

    def _read(self, seconds: float) -> list[InRecord]:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        records = []
        messages = self._consumer.consume(MAX_READ, seconds)
        for message in messages:
            error = message.error()
            if error is None:
                record = _record_of(message)
                records.append(record)
                self._next[record.partition] = record.offset + 1
                if record.offset + 1 >= self._ends.get(record.partition, record.offset + 2):
                    del self._ends[record.partition]
            elif error.code() == KafkaError._PARTITION_EOF:
                partition = cast("int", message.partition())
                self._ends.pop(partition, None)
                self._reached[partition] = cast("int", message.offset())
            else:
                problem = problem or self._problem_of(error, message)
        self._drained |= len(messages) < MAX_READ
        if time.monotonic() >= self._look_at:
            self._look()
        if problem is not None and not records:
            raise problem
        self._problem = problem  # the next call raises it: these records would be lost
        return records

    def _look(self) -> None:
        """Takes a new consumer where a partition has not moved since the last look, and there was more.

        Or where it has twice not told whether there is more, none has moved, and brokers answer others.
        """
        problem = ""
        try:
            behind = self._places_behind()
            lost = [p for p, offset in behind.items() if self._drained and self._behind.get(p) == offset]
            problem = f"reads no further in partitions {lost}" if lost else ""
            self._untold = None
        except KafkaException as error:  # where the user is refused, `read` reports it
            behind = {}
            if self._untold == self._next and not missing_acl(error.args[0], "consumer"):
                problem = f"does not tell the ends ({error.args[0].str()})" if brokers_answer(self._config) else ""
            self._untold = dict(self._next)
        if problem:
            log.warning("%s: the client %s: a new one goes on", self._topic, problem)
            try:
                client = opened(Consumer, "consumer", consumer_settings(self._config))
            except (ConfigError, KafkaUnusable) as error:  # a file of secrets or certificates is being written
                log.warning("%s; trying again", error)
                self._look_at = time.monotonic() + self._patience
                return
            self._consumer.close()
            self._consumer, self._connections = client
            self._patience = min(2 * self._patience, MAX_STALL_SECONDS)  # it may be the brokers that are slow
            self._assign(self._next)
            return
        if not behind and self._untold is None:
            self._patience = STALL_SECONDS
        self._behind, self._drained, self._look_at = behind, False, time.monotonic() + self._patience

    def _places_behind(self) -> dict[int, int]:
        """By partition that has more to read: the offset reached. Raises `KafkaException`."""
        ends = self._offsets(self._next, OFFSET_END)
        reached = {p: max(following, self._reached.get(p, 0)) for p, following in self._next.items()}
        return {p: offset for p, offset in reached.items() if ends[p] > offset}

    def _problem_of(self, error: KafkaError, message: Message) -> KafkaUnusable | None:
        if denied := missing_acl(error, "consumer", **self._asked):
            return KafkaUnauthorized(denied)
        if error.retriable() or error.code() == KafkaError._TRANSPORT:
            return None
        return KafkaUnusable(f"cannot read {self._topic}[{message.partition()}] on: {error.str()}")

    def _close(self) -> None:
        self._consumer.close()


def still_holds(config: Config, topic: str, end: PartitionEnd, seconds: float) -> bool:
    """See `kafka_port.Brokers`. It blocks."""
    failed = _answer_at(config, topic, end, seconds).error()
    return failed is None or failed.code() == KafkaError._PARTITION_EOF


def first_behind(config: Config, topic: str, end: PartitionEnd, seconds: float) -> InRecord | None:
    """The first record behind this end, whatever becomes of its transaction; None where there is none. It blocks."""
    message = _answer_at(config, topic, end, seconds)
    return _record_of(message) if message.error() is None else None


def _answer_at(config: Config, topic: str, end: PartitionEnd, seconds: float) -> Message:
    """What a new consumer gets there, also of open transactions: a record, or why there is none.

    Raises `KafkaUnavailable`.
    """
    settings = {**consumer_settings(config), "isolation.level": "read_uncommitted"}
    consumer, _ = opened(Consumer, "consumer", settings)
    try:
        consumer.assign([TopicPartition(topic, end.partition, end.offset, leader_epoch=end.leader_epoch)])
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            message = consumer.poll(0.2)
            failed = message.error() if message is not None else None
            if message is not None and (failed is None or failed.code() in _ANSWERS):
                return message
    finally:
        consumer.close()
    raise KafkaUnavailable(f"no answer about {topic}[{end.partition}]@{end.offset}")


def _record_of(message: Message) -> InRecord:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    # The client gives a list of pairs, and values as bytes, for records that it read.
    try:
        headers = cast("list[tuple[str, bytes | None]] | None", message.headers())
    except (SystemError, UnicodeDecodeError):
        # The binding's answer to a name that is not UTF-8. Without headers a record is refused where some are needed.
        headers = None
    return InRecord(topic, partition, offset, message.key(), message.value(), headers)
