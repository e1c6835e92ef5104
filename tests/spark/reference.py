"""The expected differences, by the reference reader of the change topic, and the contents of the sinks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds

from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change, SegmentReader, difference
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record
from deelog_spark.folding.diff_record import codec_of, connected, op_of
from tests.support.changes import settled_ends
from tests.support.topics import messages, read_topic


class DiffRecord(NamedTuple):
    """One difference. Only those of a reset have `before`, which comes from the job's own state."""

    segment: int
    op: str
    key: bytes
    before: Entry | None
    after: Entry | None
    position: tuple[int, int]
    cause: str


def read(config: Config, topic: str, partitions: int) -> list[Record]:
    """All committed records of a topic, by partition and offset, once no transaction is open."""
    servers = ",".join(config["bootstrap.servers"])
    settled_ends(servers, topic, partitions)
    return sorted(read_topic(servers, topic), key=lambda r: (r.partition, r.offset))


def expected(
    config: Config,
    partitions: int,
    start: Mapping[int, int] | None = None,
    records: Sequence[Record] | None = None,
    letters: list[tuple[int, int]] | None = None,
) -> dict[int, list[DiffRecord]]:
    """The differences of a reader that began with the first record, by segment, in order.

    A reader without state that begins at the offsets `start` first emits each segment's entries at that offset; for a
    segment in an open reset it emits nothing until the end. `records` are those of a topic that has fewer by now.
    `letters` gets partition and offset of each change that cannot be decoded; without it such a change is an error.
    """
    codec = codec_of(connected(config))
    start = start or {}

    def entry(record: Record) -> tuple[bytes, Entry | None]:
        key = codec.decode_key(record.key)
        return key, None if record.value is None else codec.decode_value(record.value).after

    records = read(config, config.topics.changes, partitions) if records is None else records
    readers = {record.header.segment: SegmentReader(record.header.segment) for record in records}
    told: dict[int, list[DiffRecord]] = defaultdict(list)

    def tell(number: int, changes: list[Change], record: Record | None) -> None:
        for change in changes:
            op = op_of(change.before, change.after)
            if record is not None and change.cause == "change" and record.value is not None:
                op = codec.decode_value(record.value).op  # the op of the capture
            before = change.before if change.cause == "reset" else None
            told[number].append(DiffRecord(number, op, change.key, before, change.after, change.position, change.cause))

    for record in records:
        if record.offset < start.get(record.partition, 0):
            readers[record.header.segment].apply(record, entry)
    for number, reader in readers.items():
        reader.entries = {} if reader.open is not None else reader.entries
        tell(number, difference({}, reader.entries, reader.mark), None)
    for record in records:
        if record.offset >= start.get(record.partition, 0):
            number = record.header.segment
            reader = readers[number]
            try:
                tell(number, reader.apply(record, entry), record)
            except RecordError:
                if letters is None or reader.open is not None:
                    raise
                reader.mark = record.header.position  # the key keeps its last good value
                letters.append((record.partition, record.offset))
    return dict(told)


def in_topic(config: Config, partitions: int, records: Sequence[Record] | None = None) -> dict[int, list[DiffRecord]]:
    """The diff topic's differences, by segment, in order. Fails unless each delete has its tombstone right after it.
    `records` are those of a topic that has fewer by now."""
    codec = codec_of(connected(config))
    told: dict[int, list[DiffRecord]] = defaultdict(list)
    due: Record | None = None
    for record in read(config, config.topics.diff, partitions) if records is None else records:
        header = record.header
        if due is not None:
            assert (record.value, record.key) == (None, due.key), "a delete without its tombstone"
            assert header == due.header._replace(kind=Kind.TOMBSTONE)
            due = None
            continue
        assert record.value is not None, "a tombstone without its delete"
        assert header.kind is Kind.CHANGE
        envelope = codec.decode_value(record.value)
        cause = envelope.source["cause"]
        before = envelope.before if cause == "reset" else None
        assert envelope.op == "c" or envelope.before is not None
        key = codec.decode_key(record.key)
        told[header.segment].append(
            DiffRecord(header.segment, envelope.op, key, before, envelope.after, header.position, cause)
        )
        if envelope.op == "d" and config["tombstones.on.delete"]:
            due = record
    return dict(told)


def in_parquet(path: Path) -> dict[int, list[DiffRecord]]:
    """The parquet sink's differences, by segment, in order."""
    table = ds.dataset(path, partitioning="hive").to_table()
    rows = sorted(table.to_pylist(), key=lambda r: (r["batch"], r["partition"], r["offset"]))
    told: dict[int, list[DiffRecord]] = defaultdict(list)
    for row in rows:
        before = _entry(row["before"]) if row["cause"] == "reset" else None
        position = (row["epoch"], row["sequence"])
        key = row["key"].encode()
        told[row["segment"]].append(
            DiffRecord(row["segment"], row["op"], key, before, _entry(row["after"]), position, row["cause"])
        )
    return dict(told)


def dead_letters(config: Config) -> list[Any]:
    """The messages of the dead-letter topic, which has one partition."""
    servers, topic = ",".join(config["bootstrap.servers"]), config["errors.deadletterqueue.topic.name"]
    settled_ends(servers, topic, 1)
    return messages(servers, topic)


def places(config: Config) -> list[tuple[int, int]]:
    """Partition and offset of each dead letter, from its headers, in order."""
    told = [dict(message.headers()) for message in dead_letters(config)]
    return sorted((int(h["__connect.errors.partition"]), int(h["__connect.errors.offset"])) for h in told)


class Stored(NamedTuple):
    """A row of a table with the cache's entries."""

    segment: int
    value: bytes
    expires_at: int | None
    position: tuple[int, int]


def held(told: dict[int, list[DiffRecord]]) -> dict[bytes, Stored]:
    """The entries after all differences, by key."""
    found: dict[bytes, Stored] = {}
    for row in (row for rows in told.values() for row in rows):
        found.pop(row.key, None)
        if row.after is not None:
            found[row.key] = Stored(row.segment, row.after.value, row.after.expires_at, row.position)
    return found


def unordered(told: dict[int, list[DiffRecord]]) -> dict[int, list[DiffRecord]]:
    """The differences for sinks that do not keep the order of a reset's rows."""
    return {number: sorted(rows, key=lambda t: (t.position, t.cause, t.key, t.op)) for number, rows in told.items()}


def _entry(row: dict[str, Any] | None) -> Entry | None:
    if row is None:
        return None
    return Entry(row["key"].encode(), (row["value"] or "").encode(), row["expires_at"])
