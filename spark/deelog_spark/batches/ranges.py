"""Bounded ranges of both topics, folded segment by segment, in tasks or in the driver.

A start and a reset's difference need two things of a segment: its content in the diff topic, and the change topic's
records from a known offset on. Both topics keep a segment on the same partition. So a task takes one partition of both:
it reads the diff topic's range, then the change topic's, spills the records by segment (`spill.py`) and folds each
segment: by columns (`by_columns.py`) or, where something unusual happened, by records (`by_records.py`). Memory holds
the records of a few segments, whatever the topic holds. The driver folds small ranges itself, by the same function:
Spark needs a second to begin, and many more where it is cold. Alternatives: docs/decisions.md, "How ranges are folded".
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from deelog_schemas.config import Config
from deelog_schemas.envelope import Codec
from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, SIZE, Kind
from deelog_schemas.keys import partition_of
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record, decode
from deelog_spark.batches import tasks
from deelog_spark.batches.checkpoint import undamaged
from deelog_spark.batches.columns import batches_of
from deelog_spark.batches.spill import Spill, bucket
from deelog_spark.folding import by_columns
from deelog_spark.folding.by_records import ResetMismatch
from deelog_spark.folding.diff_record import (
    CHANGE,
    RESET,
    ROW_DDL,
    ROW_ORDER,
    ROW_SCHEMA,
    Renderer,
    Row,
    Undecodable,
    codec_of,
    entry_of,
    tolerant,
)
from deelog_spark.folding.walk import matrix
from deelog_spark.kafka import Reader, headers_of
from deelog_spark.session import uri_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE: Final = "state"
"""The cause of a row that carries a segment's state, pickled in `value`."""
ERROR: Final = "error"
"""The cause of a row that carries an error, likewise."""
SMALL_RECORDS: Final = 50_000
"""The driver folds ranges of at most so many offsets."""
_ROWS: Final = ds.field("cause").isin([CHANGE, RESET])
_CHUNK: Final = 5_000
_SCHEMA: Final = pa.schema(
    [("offset", pa.int64()), *((name, pa.binary()) for name in ("header", "control", "key", "value"))]
)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `[begin, end)` of some partitions of a topic."""

    topic: str
    begin: Mapping[int, int]
    end: Mapping[int, int]

    def size(self) -> int:
        """The number of offsets."""
        return sum(max(0, end - self.begin[p]) for p, end in self.end.items())


@dataclass(frozen=True, slots=True)
class Layout:
    """The topics, and how segments map to their partitions."""

    changes: str
    diff: str
    partitions: int
    segments: int

    def fits(self, segment: int, partition: int) -> bool:
        """Whether the segment's records belong on the partition."""
        return segment < self.segments and partition_of(segment, self.partitions, self.segments) == partition


class Tables:
    """The records of one segment in both topics, for the folds by records and by columns.

    `old` (diff topic) and `new` (change topic) have the columns of `_SCHEMA` in offset order, read from `partition`.
    `tolerant`: `entry` raises `Undecodable` for a change that cannot be decoded, which a fold may pass over.
    """

    def __init__(
        self, old: pa.Table, new: pa.Table, partition: int, layout: Layout, codec: Codec, tolerant: bool = False
    ) -> None:
        self._old, self._new, self._partition = old, new, partition
        self._layout, self.codec, self._tolerant = layout, codec, tolerant

    def columns(self) -> tuple[by_columns.Columns | None, by_columns.Columns | None]:
        """The diff topic's columns and the change topic's; None for one that has to be folded by records."""
        new = by_columns.columns_of(self._new)
        if new is not None and self._tolerant and not self._decodable(new.of(Kind.CHANGE, Kind.TOMBSTONE)):
            new = None
        return by_columns.columns_of(self._old), new

    def _decodable(self, rows: by_columns.Columns) -> bool:
        try:
            for kind, key, value in zip(rows.raw[:, 1], rows.keys.to_pylist(), rows.values.to_pylist(), strict=True):
                entry_of(self.codec, Kind(kind), key, value)
        except Undecodable:
            return False
        return True

    def control(self, offset: int) -> dict[str, Any]:
        """The content of the change topic's control record at `offset`."""
        at = int(np.searchsorted(self._new["offset"].to_numpy(), offset))
        return next(self._decoded(self._new.slice(at, 1), self._layout.changes)).control

    def entries(self, partition: int, only: frozenset[int] | None = None) -> dict[int, dict[bytes, Entry]]:
        """The segment's entries in the diff topic, by segment and key."""
        last: dict[bytes, Record] = {}
        for record in self._decoded(self._old, self._layout.diff):
            last[record.key] = record
        entries: dict[int, dict[bytes, Entry]] = {}
        for record in last.values():
            try:
                key, entry = self.entry(record)
            except RecordError as error:
                raise error.at(record.topic, record.partition, record.offset) from error
            if entry is not None:
                entries.setdefault(record.header.segment, {})[key] = entry
        return entries

    def records(self, partition: int, begin: int, end: int) -> Iterator[Record]:
        """The segment's records in the change topic; RecordError for a foreign one."""
        return self._decoded(self._new, self._layout.changes)

    def entry(self, record: Record) -> tuple[bytes, Entry | None]:
        """Key and entry of a change, row or tombstone; RecordError where it cannot be decoded."""
        kind = record.header.kind
        try:
            return entry_of(self.codec, kind, record.key, record.value)
        except Undecodable as error:
            if self._tolerant and kind is not Kind.READ:
                raise
            raise RecordError(str(error)) from error

    def _decoded(self, rows: pa.Table, topic: str) -> Iterator[Record]:
        for batch in rows.to_batches(_CHUNK):
            for offset, header, control, key, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                partition = self._partition
                named = ((HEADER_NAME, header), (CONTROL_HEADER_NAME, control))
                record = decode(topic, partition, offset, key, value, [h for h in named if h[1] is not None])
                segment = record.header.segment
                if not self._layout.fits(segment, partition):
                    problem = RecordError(
                        f"segment {segment} does not belong on this partition with "
                        f"segment.count={self._layout.segments}: the record was written with another segment.count or "
                        "by something else"
                    )
                    raise problem.at(topic, partition, offset)
                yield record


def no_records(config: Config) -> Tables:
    """The tables of a segment without a record in either topic."""
    empty = _SCHEMA.empty_table()
    return Tables(empty, empty, 0, Layout("", "", 1, 1), codec_of(config), tolerant(config))


Work = Callable[[Tables, Renderer, int, int], tuple[list[Row], Any]]
"""`(tables, renderer, segment, partition)` to rows and the segment's state; shipped to tasks."""


@dataclass(frozen=True, slots=True)
class FoldTask:
    """How to fold the segments `wanted`: shipped to every task."""

    config: Config
    layout: Layout
    old: OffsetRange
    """Of the diff topic."""
    new: OffsetRange
    """Of the change topic, of the same partitions."""
    wanted: frozenset[int]
    work: Work

    def run(self, partitions: Iterable[int], reader: Reader) -> Iterator[pa.RecordBatch]:
        """The rows of each segment, and a row of cause STATE or ERROR."""
        yield from batches_of(self._rows(partitions, reader))

    def _rows(self, partitions: Iterable[int], reader: Reader) -> Iterator[Row]:
        codec, passes = codec_of(self.config), tolerant(self.config)
        renderer = Renderer(codec)
        for partition in partitions:
            with closing(Spill(_SCHEMA)) as old, closing(Spill(_SCHEMA)) as new:
                self._put(old, self.old, partition, reader)
                self._put(new, self.new, partition, reader)
                for raw in sorted(old.names() | new.names(), key=lambda raw: (bucket(raw), raw or b"")):
                    tables = Tables(old.take(raw), new.take(raw), partition, self.layout, codec, passes)
                    yield from self._segment(raw, tables, partition, renderer)

    def run_there(self, partitions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """The same in a task."""
        with tasks.reader(self.config) as reader:
            yield from self.run(partitions, reader)

    def _put(self, spill: Spill, offsets: OffsetRange, partition: int, reader: Reader) -> None:
        """Spills the range's records of the wanted segments; the names are segment numbers as in a header."""
        every = len(self.wanted) == self.layout.segments
        # Foreign records are taken too: folding them raises their error.
        mine = pa.array([None, *(number.to_bytes(4, "big") for number in self.wanted)], pa.binary())
        begin, end = offsets.begin[partition], offsets.end[partition]
        for messages in reader.chunks(offsets.topic, partition, begin, end):
            pairs = zip(*map(headers_of, messages), strict=True)
            headers, controls = (pa.array(column, pa.binary()) for column in pairs)
            names = _names(headers)
            if not every:
                chosen = np.flatnonzero(pc.is_in(names, mine))
                if not len(chosen):
                    continue
                names, headers, controls = (column.take(pa.array(chosen)) for column in (names, headers, controls))
                messages = [messages[row] for row in chosen.tolist()]
            at = pa.array([message.offset() for message in messages], pa.int64())
            keys = pa.array([message.key() for message in messages], pa.binary())
            values = pa.array([message.value() for message in messages], pa.binary())
            spill.put(names, pa.RecordBatch.from_arrays([at, headers, controls, keys, values], schema=_SCHEMA))

    def _segment(self, raw: bytes | None, tables: Tables, partition: int, renderer: Renderer) -> list[Row]:
        number = -1 if raw is None else int.from_bytes(raw, "big")
        try:
            if number not in self.wanted or not self.layout.fits(number, partition):  # reading it raises why
                tables.entries(partition)
                return [_result(ERROR, (None, f"{r.topic}: not expected")) for r in tables.records(partition, 0, 0)]
            rows, state = self.work(tables, renderer, number, partition)
        except ResetMismatch as error:
            return [_result(ERROR, (error.ended, str(error.error)))]
        except RecordError as error:
            return [_result(ERROR, (None, str(error)))]
        return [*rows, _result(STATE, (number, state))]


def _names(headers: pa.BinaryArray) -> pa.BinaryArray:
    """The segment's four bytes in each header; null where the length is not that of our header."""
    raw = matrix(headers)
    if raw is None:
        names = [h[4:8] if h is not None and len(h) == SIZE else None for h in headers.to_pylist()]
        return pa.array(names, pa.binary())
    ends = np.arange(0, 4 * len(raw) + 1, 4, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(raw[:, 4:8]))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(raw), buffers)


def fold(spark: Callable[[], SparkSession], reader: Reader, task: FoldTask, place: Path) -> None:
    """Folds every partition of a task, and writes the rows to the new directory `place`."""
    partitions = sorted(task.new.end)
    if task.old.size() + task.new.size() <= SMALL_RECORDS:
        place.mkdir()
        with pq.ParquetWriter(place / "0.parquet", ROW_SCHEMA) as writer:
            for batch in task.run(partitions, reader):
                writer.write_batch(batch)
        return
    tasks.run_tasks(spark(), partitions, task.run_there, ROW_DDL).write.parquet(uri_of(place))


def count(written: Path | None) -> int:
    """The number of rows in a directory that `fold` wrote."""
    return 0 if written is None else ds.dataset(written).count_rows(filter=_ROWS)


def size(written: Path | None) -> int:
    """About how many bytes they take in memory: what they take in the files before these are compressed.

    CheckpointError where a file is damaged.
    """
    if written is None:
        return 0
    with undamaged(written):
        metadata = [pq.read_metadata(file) for file in written.glob("*.parquet")]
    return sum(one.row_group(group).total_byte_size for one in metadata for group in range(one.num_row_groups))


def rows_of(written: Path) -> pa.Table:
    """The rows in such a directory, in the order in which they are written to the diff topic.

    CheckpointError where a file is damaged.
    """
    with undamaged(written):
        table = ds.dataset(written, ROW_SCHEMA).to_table(filter=_ROWS)
    return table.sort_by([(name, "ascending") for name in ROW_ORDER])


def states(written: Path) -> dict[int, Any]:
    """The state of each segment in such a directory. Raises its first error: RecordError or `ResetMismatch`."""
    table = ds.dataset(written).to_table(filter=~_ROWS, columns=["cause", "value"])
    results = [(cause, pickle.loads(value)) for cause, value in zip(*table.to_pydict().values(), strict=True)]
    for cause, (ended, text) in results:
        if cause == ERROR:
            raise RecordError(text) if ended is None else ResetMismatch(ended, RecordError(text))
    return dict(pair for _, pair in results)


def _result(cause: str, pair: tuple[Any, Any]) -> Row:
    return Row(0, 0, 0, cause, "", b"", b"", pickle.dumps(pair))
