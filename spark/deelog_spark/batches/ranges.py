"""Bounded ranges of both topics, brought together segment by segment, and folded by whoever holds one.

A reset's difference and a start need two things of a segment: what the diff topic tells, and the change topic's records
from a known offset on. Both topics keep a segment on the same partition, so a task takes one partition of both: it
reads the diff topic's range, then the change topic's, puts the records away by segment (`spill.py`), and folds each
segment: `calm.py` by columns or, where that has doubts, `fold.py`, the reference itself, by records. Memory is that of
a few segments' records, old and new, whatever the topic holds. Small regions the driver takes itself by the same
function: Spark takes a second to begin with, and many more where it is cold.

Weighed: the driver alone (one core, all entries of a partition in its memory), Spark's source for Kafka and a shuffle
by segment (reading alone costs the JVM 10 µs of CPU per record, librdkafka 4.5; the shuffle and the way to Python 10
more, for what the partitions bring anyway), an aggregation and a join by key in the JVM (the fold's rules would stand
there a second time, in SQL, and count and digest with them), and this.
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
"""Cause of a row that is no row: what a task has to say beside its rows, pickled in `value`."""
ERROR: Final = "error"
"""The same, of what stopped it."""
SMALL_RECORDS: Final = 50_000
"""Regions of no more offsets are read by the driver."""
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
        """How many offsets."""
        return sum(max(0, end - self.begin[p]) for p, end in self.end.items())


@dataclass(frozen=True, slots=True)
class Layout:
    """The topics and how segments lie on their partitions."""

    changes: str
    diff: str
    partitions: int
    segments: int

    def fits(self, segment: int, partition: int) -> bool:
        """Whether a record of the segment may stand on the partition."""
        return segment < self.segments and partition_of(segment, self.partitions, self.segments) == partition


class Tables:
    """Both topics as one segment's task has them: `fold` reads them by records, `calm` by columns.

    `old` and `new` have the columns of `_SCHEMA` in offset order, all of them read from `partition`. `tolerant`: a
    change that cannot be decoded is `Undecodable`, which `fold` may pass over, not the end.
    """

    def __init__(
        self, old: pa.Table, new: pa.Table, partition: int, layout: Layout, codec: Codec, tolerant: bool = False
    ) -> None:
        self._old, self._new, self._partition = old, new, partition
        self._layout, self.codec, self._tolerant = layout, codec, tolerant

    def sides(self) -> tuple[by_columns.Side | None, by_columns.Side | None]:
        """The diff topic's columns, and the change topic's; None where records alone can tell what is wrong."""
        new = by_columns.side(self._new)
        if new is not None and self._tolerant and not self._all_read(new.of(Kind.CHANGE, Kind.TOMBSTONE)):
            new = None
        return by_columns.side(self._old), new

    def _all_read(self, side: by_columns.Side) -> bool:
        try:
            for kind, key, value in zip(side.raw[:, 1], side.keys.to_pylist(), side.values.to_pylist(), strict=True):
                entry_of(self.codec, Kind(kind), key, value)
        except Undecodable:
            return False
        return True

    def control(self, offset: int) -> dict[str, Any]:
        """Of the change topic's control record at `offset`."""
        at = int(np.searchsorted(self._new["offset"].to_numpy(), offset))
        return next(self._taken(self._new.slice(at, 1), self._layout.changes)).control

    def told(self, partition: int, only: frozenset[int] | None = None) -> dict[int, dict[bytes, Entry]]:
        """The segment's entries that the diff topic tells of, by segment."""
        last: dict[bytes, Record] = {}
        for record in self._taken(self._old, self._layout.diff):
            last[record.key] = record
        found: dict[int, dict[bytes, Entry]] = {}
        for record in last.values():
            key, entry = self.entry(record)
            if entry is not None:
                found.setdefault(record.header.segment, {})[key] = entry
        return found

    def records(self, partition: int, begin: int, end: int) -> Iterator[Record]:
        """The segment's records of the change topic; RecordError where one is not ours."""
        return self._taken(self._new, self._layout.changes)

    def entry(self, record: Record) -> tuple[bytes, Entry | None]:
        """Key and entry of a change, row or tombstone; RecordError with its place where it is not ours."""
        kind = record.header.kind
        try:
            return entry_of(self.codec, kind, record.key, record.value)
        except Undecodable as error:
            placed = error.at(record.topic, record.partition, record.offset)
            passes = self._tolerant and kind is not Kind.READ
            raise (Undecodable(str(placed), error.key) if passes else placed) from error

    def _taken(self, part: pa.Table, topic: str) -> Iterator[Record]:
        for batch in part.to_batches(_CHUNK):
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


def nothing(config: Config) -> Tables:
    """Of a segment of which nothing stands in either topic."""
    empty = _SCHEMA.empty_table()
    return Tables(empty, empty, 0, Layout("", "", 1, 1), codec_of(config), tolerant(config))


Work = Callable[[Tables, Renderer, int, int], tuple[list[Row], Any]]
"""`(tables, renderer, segment, partition)` to rows and what else there is to say; shipped to tasks."""


@dataclass(frozen=True, slots=True)
class Task:
    """Partitions of both topics, segment by segment: shipped to every task."""

    config: Config
    layout: Layout
    regions: tuple[OffsetRange, OffsetRange]
    """Of the diff topic and of the change topic, of the same partitions."""
    wanted: frozenset[int]
    work: Work

    def run(self, partitions: Iterable[int], reader: Reader) -> Iterator[pa.RecordBatch]:
        """What the work makes of each segment, and STATE or ERROR of it."""
        yield from batches_of(self._rows(partitions, reader))

    def _rows(self, partitions: Iterable[int], reader: Reader) -> Iterator[Row]:
        codec, passes = codec_of(self.config), tolerant(self.config)
        renderer = Renderer(codec)
        for partition in partitions:
            with closing(Spill(_SCHEMA)) as old, closing(Spill(_SCHEMA)) as new:
                for spill, region in zip((old, new), self.regions, strict=True):
                    self._put(spill, region, partition, reader)
                for raw in sorted(old.names() | new.names(), key=lambda raw: (bucket(raw), raw or b"")):
                    tables = Tables(old.take(raw), new.take(raw), partition, self.layout, codec, passes)
                    yield from self._segment(raw, tables, partition, renderer)

    def run_there(self, partitions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """The same in a task."""
        with tasks.reader(self.config) as reader:
            yield from self.run(partitions, reader)

    def _put(self, spill: Spill, region: OffsetRange, partition: int, reader: Reader) -> None:
        """What the region holds of the wanted segments, by their numbers as a header has them."""
        every = len(self.wanted) == self.layout.segments
        # What is not ours is taken as well, to say so.
        mine = pa.array([None, *(number.to_bytes(4, "big") for number in self.wanted)], pa.binary())
        for messages in reader.chunks(region.topic, partition, region.begin[partition], region.end[partition]):
            told = zip(*map(headers_of, messages), strict=True)
            headers, controls = (pa.array(column, pa.binary()) for column in told)
            names = _names(headers)
            if not every:
                chosen = np.flatnonzero(pc.is_in(names, mine))
                if not len(chosen):
                    continue
                names, headers, controls = (column.take(pa.array(chosen)) for column in (names, headers, controls))
                messages = [messages[row] for row in chosen.tolist()]
            offsets = pa.array([message.offset() for message in messages], pa.int64())
            keys = pa.array([message.key() for message in messages], pa.binary())
            values = pa.array([message.value() for message in messages], pa.binary())
            spill.put(names, pa.RecordBatch.from_arrays([offsets, headers, controls, keys, values], schema=_SCHEMA))

    def _segment(self, raw: bytes | None, tables: Tables, partition: int, renderer: Renderer) -> list[Row]:
        number = -1 if raw is None else int.from_bytes(raw, "big")
        try:
            if number not in self.wanted or not self.layout.fits(number, partition):  # reading it says why
                tables.told(partition)
                return [_said(ERROR, (None, f"{r.topic}: not expected")) for r in tables.records(partition, 0, 0)]
            found, state = self.work(tables, renderer, number, partition)
        except ResetMismatch as error:
            return [_said(ERROR, (error.ended, str(error.error)))]
        except RecordError as error:
            return [_said(ERROR, (None, str(error)))]
        return [*found, _said(STATE, (number, state))]


def _names(headers: pa.BinaryArray) -> pa.BinaryArray:
    """The segment in each header, as it stands there; null where one is not as long as ours."""
    raw = matrix(headers)
    if raw is None:
        found = [h[4:8] if h is not None and len(h) == SIZE else None for h in headers.to_pylist()]
        return pa.array(found, pa.binary())
    ends = np.arange(0, 4 * len(raw) + 1, 4, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(raw[:, 4:8]))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(raw), buffers)


def folded(spark: Callable[[], SparkSession], reader: Reader, task: Task, place: Path) -> None:
    """Writes to the directory `place` what a task makes of its partitions: rows, and among them STATE and ERROR."""
    partitions = sorted(task.regions[1].end)
    if sum(region.size() for region in task.regions) <= SMALL_RECORDS:
        place.mkdir()
        with pq.ParquetWriter(place / "0.parquet", ROW_SCHEMA) as writer:
            for batch in task.run(partitions, reader):
                writer.write_batch(batch)
        return
    tasks.tasks(spark(), partitions, task.run_there, ROW_DDL).write.parquet(uri_of(place))


def count(written: Path | None) -> int:
    """How many rows there are in what `folded` was written to."""
    return 0 if written is None else ds.dataset(written).count_rows(filter=_ROWS)


def rows_of(written: Path) -> pa.Table:
    """The rows, in the order in which they leave."""
    table = ds.dataset(written).to_table(filter=_ROWS)
    return table.sort_by([(name, "ascending") for name in ROW_ORDER])


def said(written: Path) -> dict[int, Any]:
    """What the work said of each segment. Raises the first error of a task: RecordError, or `ResetMismatch`."""
    table = ds.dataset(written).to_table(filter=~_ROWS, columns=["cause", "value"])
    told = [(cause, pickle.loads(value)) for cause, value in zip(*table.to_pydict().values(), strict=True)]
    for cause, (ended, text) in told:
        if cause == ERROR:
            raise RecordError(text) if ended is None else ResetMismatch(ended, RecordError(text))
    return dict(pair for _, pair in told)


def _said(cause: str, told: tuple[Any, Any]) -> Row:
    return Row(0, 0, 0, cause, "", b"", b"", pickle.dumps(told))
