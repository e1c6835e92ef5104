"""Reads deelog's topics with nothing of deelog: a plain consumer, and the format as `schemas/README.md` tells it.

On purpose it imports no code of the product: a mistake that writer and reader shared would otherwise prove itself.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

CHANGE, TOMBSTONE, READ, RESET_BEGIN, RESET_END = 1, 2, 3, 19, 20
CONTROL = {16, 17, 18, RESET_BEGIN, RESET_END}
_SILENCE_SECONDS = 60.0

Position = tuple[int, int]
State = tuple[bytes, int | None]
"""A value and when it expires, Unix milliseconds."""


class Record(NamedTuple):
    """A change, row or control record. `state` is None where the key is gone, or was none."""

    partition: int
    offset: int
    timestamp_ms: int
    kind: int
    segment: int
    position: Position
    key: bytes
    state: State | None
    reason: str | None
    """Why a key changed; null for a put. In a diff: `change` or `reset`."""
    ts_us: int
    control: dict[str, Any]


@dataclass(slots=True)
class Reset:
    """A reset as it stands in the topic; `end_ms` 0 where it has no end."""

    segment: int
    epoch: int
    reason: str
    reset_id: str
    begin_ms: int
    end_ms: int = 0
    rows: int = 0


@dataclass(slots=True)
class Topic:
    """A topic, folded. `records` are changes and rows by key, `problems` what no topic of ours may hold."""

    states: dict[bytes, State] = field(default_factory=dict)
    records: dict[bytes, list[Record]] = field(default_factory=dict)
    resets: list[Reset] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    changes: int = 0


def read(bootstrap: str, topic: str) -> Iterator[Any]:
    """All committed messages, to the end that the topic has now; in offset order within each partition.

    Not by `tests.support.topics`, which imports the product; and a long run's topic is folded as it comes.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-reader",  # required by the client; nothing is committed under it
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        missing, deadline = set(partitions), time.monotonic() + _SILENCE_SECONDS
        while missing:
            assert time.monotonic() < deadline, (
                f"{topic} is silent; partitions {sorted(missing)} are not read to the end"
            )
            for message in consumer.consume(2000, 0.1):
                error = message.error()
                deadline = time.monotonic() + _SILENCE_SECONDS
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    missing.discard(message.partition())
                else:
                    raise AssertionError(f"{topic}[{message.partition()}]: {error.str()}")
    finally:
        consumer.close()


def parse(message: Any) -> Record:
    """A message of a change or diff topic. AssertionError at one that the format does not allow."""
    headers = dict(message.headers() or ())
    version, kind, reserved, segment, epoch, sequence, _node = struct.unpack(">BBHIIQI", headers["deelog"])
    assert (version, reserved) == (1, 0), f"version {version}, reserved bytes {reserved:#x}"
    assert kind in CONTROL or kind in (CHANGE, TOMBSTONE, READ), f"kind {kind}"
    control = json.loads(headers.get("deelog.control", b"{}"))
    key, state, reason, ts_us = json.loads(message.key())["key"].encode(), None, None, 0
    if message.value() is not None:
        envelope = json.loads(message.value())
        source, after = envelope["source"], envelope["after"]
        assert (source["segment"], source["epoch"], source["seq"]) == (segment, epoch, sequence), "header and source"
        assert envelope["op"] == "r" if kind == READ else (envelope["op"] == "d") == (after is None), envelope["op"]
        state = None if after is None else (after["value"].encode(), after["expires_at"])
        reason, ts_us = source.get("cause", source["reason"]), source["ts_us"]
    place = (message.partition(), message.offset(), message.timestamp()[1])
    return Record(*place, kind, segment, (epoch, sequence), key, state, reason, ts_us, control)


@dataclass(slots=True)
class _Segment:
    states: dict[bytes, State] = field(default_factory=dict)
    last: Position = (0, 0)
    reset: Reset | None = None
    rows: dict[bytes, State] = field(default_factory=dict)


class ChangeFold:
    """Folds a change topic, and checks that no position comes twice, none is left out, and each reset is whole."""

    def __init__(self) -> None:
        self.topic = Topic()
        self._segments: dict[int, _Segment] = {}
        self._seen: set[tuple[int, Position]] = set()

    def take(self, record: Record) -> None:
        """The next record of its partition."""
        segment, topic = self._segments.setdefault(record.segment, _Segment()), self.topic
        place = f"segment {record.segment} at {record.partition}@{record.offset}"
        if record.kind == RESET_BEGIN:
            told = record.control
            segment.reset = Reset(record.segment, told["epoch"], told["reason"], told["id"], record.timestamp_ms)
            segment.rows, segment.last = {}, record.position
            topic.resets.append(segment.reset)
        elif record.kind == RESET_END:
            reset = segment.reset
            if reset is None or reset.reset_id != record.control["id"]:
                topic.problems.append(f"{place}: the end of a reset that is not open")
                return
            if len(segment.rows) != record.control["count"]:
                topic.problems.append(f"{place}: a reset of {len(segment.rows)} entries, not {record.control['count']}")
            reset.end_ms, segment.states, segment.reset = record.timestamp_ms, segment.rows, None
            segment.last = max(segment.last, record.position)
        elif record.kind == READ:
            if segment.reset is None or record.state is None:
                topic.problems.append(f"{place}: a row outside of a reset, or without an entry")
                return
            segment.rows[record.key] = record.state
            segment.reset.rows += 1
            segment.last = max(segment.last, record.position)  # what a row holds is not written again
            topic.records.setdefault(record.key, []).append(record)
        elif record.kind == CHANGE:
            self._change(record, segment, place)

    def _change(self, record: Record, segment: _Segment, place: str) -> None:
        topic, (epoch, sequence) = self.topic, record.position
        topic.changes += 1
        if (record.segment, record.position) in self._seen or record.position <= segment.last:
            topic.duplicates.append(f"{place}: position {record.position} behind {segment.last}")
            return
        self._seen.add((record.segment, record.position))
        # A new epoch may go back, to where its owner's own history ended, but nobody may leave out a number.
        if sequence > segment.last[1] + 1:
            topic.problems.append(f"{place}: {record.position} follows {segment.last}: operations are missing")
        segment.last = (epoch, sequence)
        topic.records.setdefault(record.key, []).append(record)
        states = segment.rows if segment.reset is not None else segment.states
        if record.state is None:
            states.pop(record.key, None)
        else:
            states[record.key] = record.state

    def finish(self) -> Topic:
        """What it has come to."""
        for number, segment in self._segments.items():
            self.topic.states.update(segment.states)
            if segment.reset is not None:
                self.topic.problems.append(f"segment {number}: a reset ({segment.reset.reason}) was never ended")
        return self.topic


def fold_diff(records: Iterator[Record]) -> Topic:
    """Folds a diff topic: creates, updates and deletes, each once, each of a key that is as it says."""
    topic, seen = Topic(), set()
    for record in records:
        if record.kind != CHANGE:
            continue
        topic.changes += 1
        identity = (record.key, record.position, record.reason)
        if identity in seen:
            topic.duplicates.append(f"{record.key!r} at {record.partition}@{record.offset}: {record.position} again")
        seen.add(identity)
        if record.state is not None:
            topic.states[record.key] = record.state
        elif topic.states.pop(record.key, None) is None:
            topic.problems.append(
                f"{record.key!r} at {record.partition}@{record.offset}: a delete of what is not there"
            )
    return topic
