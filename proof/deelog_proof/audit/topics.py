"""The content of the topics, read by a plain consumer that shares no code with the connector or the Spark job.

Only the record format and the reading rule (`deelog_schemas`) are shared. Topics are read `read_committed` into memory,
from the first offset to their end at the start of reading: this is for demos and tests.
"""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson
import tenacity
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from deelog_proof.load.history import Captured, content_of
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import DeelogError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind, Position
from deelog_schemas.operation import Entry, Reason
from deelog_schemas.records import Record, decode

_REQUEST_SECONDS = 15.0
_SILENCE_SECONDS = 30.0
_TURN_SECONDS = 0.1
_AT_ONCE = 2000
_QUIET = 2  # syslog's critical: brokers are killed on purpose


class ReadError(DeelogError):
    """A topic could not be read to its end."""


class Read(NamedTuple):
    """A record with Kafka's timestamp, Unix milliseconds."""

    record: Record
    timestamp_ms: int


class Ownership(NamedTuple):
    """An ACTIVE record: from here on `member` writes the segment."""

    segment: int
    epoch: int
    member: str
    timestamp_ms: int


@dataclass(slots=True)
class ChangeTopic:
    """The change topic, folded and counted."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    captured: dict[bytes, list[Captured]] = field(default_factory=dict)
    """Change records by key, in offset order."""
    reset_ends: dict[int, list[int]] = field(default_factory=dict)
    """By segment: when completed resets ended, Unix microseconds."""
    resets: Counter[str] = field(default_factory=Counter)
    open_resets: int = 0
    reset_rows: int = 0
    written: int = 0
    duplicates: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    owners: list[Ownership] = field(default_factory=list)


@dataclass(slots=True)
class DiffTopic:
    """The diff topic, folded by key and counted by cause (`changes`, `resets`) and op."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(
        default_factory=lambda: {cause: dict.fromkeys("cud", 0) for cause in ("changes", "resets")}
    )
    duplicates: int = 0


_CAUSES: Final = {"change": "changes", "reset": "resets"}


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(KafkaException),
    stop=tenacity.stop_after_delay(_REQUEST_SECONDS),
    wait=tenacity.wait_fixed(_TURN_SECONDS),
    reraise=True,
)
def end_offsets(bootstrap: str, topic: str, committed: bool = True) -> dict[int, int]:
    """End offsets by partition; with `committed` the last stable offsets."""
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    try:
        admin = _admin(bootstrap)
        found = admin.list_topics(topic, timeout=_REQUEST_SECONDS).topics[topic]
        if found.error is not None:  # this broker may hear of the topic later than others
            raise KafkaException(found.error)
        asked = {TopicPartition(topic, partition): latest for partition in found.partitions}
        offsets = admin.list_offsets(asked, isolation_level=level, request_timeout=_REQUEST_SECONDS)
        return {part.partition: future.result(_REQUEST_SECONDS).offset for part, future in offsets.items()}
    except KafkaException:
        # After a broker's restart a client may go on using the leader epoch that it remembers.
        _admin.cache_clear()
        raise


@lru_cache(maxsize=4)
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": _QUIET})


def read_topic(bootstrap: str, topic: str) -> Iterator[Read]:
    """All committed records, in offset order within each partition. Raises `RecordError` at a foreign record."""
    ends = end_offsets(bootstrap, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "deelog-demo-verification",  # required by the client; nothing is committed under it
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": _QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        missing = set(ends)
        heard = time.monotonic()
        while missing:
            # It waits for the full count or the timeout: hence a short timeout.
            messages = consumer.consume(_AT_ONCE, _TURN_SECONDS)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_SECONDS:
                raise ReadError(f"{topic} gave no record for {_SILENCE_SECONDS:g} s; partitions {sorted(missing)} lack")
            message: Any  # the client types partition and offset as optional
            for message in messages:
                error = message.error()
                if error is None:
                    yield _read(topic, message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Only an end at or after the wanted one counts: a lagging fetch may report an earlier one.
                    if message.offset() >= ends[message.partition()]:
                        missing.discard(message.partition())
                else:
                    raise ReadError(f"{topic}[{message.partition()}]: {error.str()}")
    finally:
        consumer.close()


def _reading(topic: str, redis: bool, cause: bool = False) -> tuple[JsonCodec, Callable[[bytes], bytes]]:
    """How values are read, and what a client wrote by a value."""
    value_format, value_of = ("json", _string_of) if redis else ("string", bytes)
    return JsonCodec(topic, "", "", "", value_format=value_format, cause=cause), value_of


def _string_of(value: bytes) -> bytes:
    found = orjson.loads(value)
    text: str = found["value"]
    match found["type"]:
        case "string":
            return text.encode()
        case "string.base64":
            return base64.b64decode(text)
    raise ReadError(f"a string was written, not {value[:80]!r}")


def fold_changes(topic: str, reads: Iterable[Read], redis: bool = False) -> ChangeTopic:
    """Folds and counts the records of a change topic: JSON, text keys, any order of partitions.

    Values are text, or with `redis` the strings of a server, as a client wrote them.
    """
    fold = _ChangeFold(*_reading(topic, redis))
    for read in reads:
        fold.take(read)
    return fold.finish()


def fold_diff(topic: str, reads: Iterable[Read], redis: bool = False) -> DiffTopic:
    """Folds and counts the records of a diff topic, as `fold_changes` does."""
    codec, value_of = _reading(topic, redis, cause=True)
    diff = DiffTopic()
    seen: set[tuple[Any, ...]] = set()
    for record, _ in reads:
        key = codec.decode_key(record.key)
        if record.value is None:
            diff.entries.pop(key, None)
            continue
        envelope = codec.decode_value(record.value)
        cause = envelope.source["cause"]
        diff.counts[_CAUSES[cause]][envelope.op] += 1
        identity = (key, record.header.position, cause)
        diff.duplicates += identity in seen
        seen.add(identity)
        if envelope.after is None:
            diff.entries.pop(key, None)
        else:
            diff.entries[key] = envelope.after._replace(value=value_of(envelope.after.value))
    return diff


class _ChangeFold:
    def __init__(self, codec: JsonCodec, value_of: Callable[[bytes], bytes]) -> None:
        self._codec, self._value_of = codec, value_of
        self._readers: dict[int, SegmentReader] = {}
        self._highest: dict[int, Position] = {}
        self._seen = ChangeTopic()

    def take(self, read: Read) -> None:
        record, seen = read.record, self._seen
        header = record.header
        segment = header.segment
        reader = self._readers.setdefault(segment, SegmentReader(segment))
        if header.kind is Kind.ACTIVE:
            seen.owners.append(Ownership(segment, record.control["epoch"], record.control["member"], read.timestamp_ms))
        elif header.kind is Kind.READ:
            seen.reset_rows += 1
        elif header.kind is Kind.CHANGE:
            self._change(record)
        completed = len(reader.resets)
        reader.apply(record, self._decode)
        for reason in reader.resets[completed:]:
            seen.resets[reason] += 1
            seen.reset_ends.setdefault(segment, []).append(read.timestamp_ms * 1000 + 999)

    def _change(self, record: Record) -> None:
        seen, segment, position = self._seen, record.header.segment, record.header.position
        seen.written += 1
        # Counted independently of the reader's own count of repeats, which this checks.
        seen.duplicates += position <= self._highest.get(segment, (0, 0))
        self._highest[segment] = max(position, self._highest.get(segment, (0, 0)))
        assert record.value is not None
        envelope = self._codec.decode_value(record.value)
        reason = envelope.source["reason"] or str(Reason.PUT)
        seen.reasons[reason] += 1
        content = content_of(self._value_of(envelope.after.value) if envelope.after else None)
        key = self._codec.decode_key(record.key)
        seen.captured.setdefault(key, []).append(Captured(content, envelope.source["ts_us"], reason))

    def _decode(self, record: Record) -> tuple[bytes, Entry | None]:
        key = self._codec.decode_key(record.key)
        return key, None if record.value is None else self._codec.decode_value(record.value).after

    def finish(self) -> ChangeTopic:
        for reader in self._readers.values():
            for key, entry in reader.entries.items():
                self._seen.entries[key] = entry._replace(value=self._value_of(entry.value))
            self._seen.open_resets += reader.open is not None
        return self._seen


def _read(topic: str, message: Any) -> Read:
    _, timestamp = message.timestamp()
    record = decode(
        topic, message.partition(), message.offset(), message.key(), message.value(), message.headers()
    )  # fmt: skip
    return Read(record, timestamp)
