"""Bounded ranges of both topics, brought together segment by segment, and folded by whoever holds one.

A reset's difference and a start need two things of a segment: what the diff topic tells, and the change topic's records
from a known offset on. Spark reads both, filters by header in the JVM, and gives each segment's rows to one task, the
diff topic's first, each in offset order; there `calm.py` folds them by columns or, where that has doubts, `fold.py`,
the reference itself, by records. Memory is that of one segment's records, old and new, whatever the topic holds.

Small regions the driver reads itself, and folds by the same functions: Spark takes a second to begin with, and many
more where it is cold.

Weighed: the driver alone (one core, all entries of a partition in its memory: 12 µs per record), an aggregation and a
join by key in the JVM (the fold's rules would stand there a second time, in SQL, and count and digest with them), and
this.
"""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from deelog_schemas.config import Config
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, SIZE, Kind
from deelog_schemas.keys import partition_of
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record, decode
from deelog_spark import calm, frames
from deelog_spark.fold import Void
from deelog_spark.kafka import Cluster
from deelog_spark.rows import RESET, ROW_DDL, ROW_ORDER, ROW_SCHEMA, Renderer, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE: Final = "state"
"""Cause of a row that is no row: what a task has to say beside its rows, pickled in `value`."""
ERROR: Final = "error"
"""The same, of what stopped it."""
SMALL_RECORDS: Final = 50_000
"""Regions of no more offsets are read by the driver, and of no more than SMALL_BYTES of keys and values."""
SMALL_BYTES: Final = 16 << 20
_CHUNK: Final = 5_000
_SCHEMA: Final = pa.schema(
    [
        ("segment", pa.binary()),
        ("source", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        *((name, pa.binary()) for name in ("header", "control", "key", "value")),
    ]
)
"""What tasks get: `segment` as it stands in the header, `source` 0 for the diff topic."""
_OLD: Final = 0
_READ_BY: Final = ("partition", "offset", "header", "control", "key", "value")


@dataclass(frozen=True, slots=True)
class Region:
    """Offsets `[begin, end)` of some partitions of a topic."""

    topic: str
    begin: Mapping[int, int]
    end: Mapping[int, int]


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

    `table` has the columns of `_SCHEMA`, the diff topic's rows first, each topic's in offset order.
    """

    def __init__(self, table: pa.Table, layout: Layout, codec: JsonCodec) -> None:
        old = pc.sum(pc.equal(table["source"], _OLD)).as_py() or 0
        self._parts = table.slice(0, old), table.slice(old)
        self._layout, self.codec = layout, codec

    def sides(self, partition: int) -> tuple[calm.Side | None, calm.Side | None]:
        """The diff topic's columns, and the change topic's; None where records alone can tell what is wrong."""
        old, new = self._parts
        return self._side(old, partition), self._side(new, partition)

    def _side(self, part: pa.Table, partition: int) -> calm.Side | None:
        return calm.side(part) if pc.all(pc.equal(part["partition"], partition)).as_py() is not False else None

    def control(self, offset: int) -> dict[str, Any]:
        """Of the change topic's control record at `offset`."""
        part = self._parts[1]
        return next(self._taken(part.filter(pc.equal(part["offset"], offset)), self._layout.changes)).control

    def told(self, partition: int, only: frozenset[int] | None = None) -> dict[int, dict[bytes, Entry]]:
        """The segment's entries that the diff topic tells of, by segment."""
        last: dict[bytes, Record] = {}
        for record in self._taken(self._parts[0], self._layout.diff):
            last[record.key] = record
        found: dict[int, dict[bytes, Entry]] = {}
        for record in last.values():
            key, entry = self.entry(record)
            if entry is not None:
                found.setdefault(record.header.segment, {})[key] = entry
        return found

    def records(self, partition: int, begin: int, end: int) -> Iterator[Record]:
        """The segment's records of the change topic; RecordError where one is not ours."""
        return self._taken(self._parts[1], self._layout.changes)

    def entry(self, record: Record) -> tuple[bytes, Entry | None]:
        """Key and entry of a change, row or tombstone; RecordError with its place where it is not ours."""
        try:
            key = self.codec.decode_key(record.key)
            if record.header.kind is Kind.TOMBSTONE:
                return key, None
            if record.value is None:
                raise RecordError("a change without a value")
            return key, self.codec.decode_value(record.value).after
        except RecordError as error:
            raise error.at(record.topic, record.partition, record.offset) from error

    def _taken(self, part: pa.Table, topic: str) -> Iterator[Record]:
        for batch in part.to_batches(_CHUNK):
            for partition, offset, header, control, key, value in zip(
                *(batch[name].to_pylist() for name in _READ_BY), strict=True
            ):
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
    return Tables(_SCHEMA.empty_table(), Layout("", "", 1, 1), frames.codec_of(config))


Work = Callable[[Tables, Renderer, int, int], tuple[list[Row], Any]]
"""`(tables, renderer, segment, partition)` to rows and what else there is to say; shipped to tasks."""


def read(spark: SparkSession, config: Config, region: Region) -> DataFrame:
    """A region as `frames.cut` gives it."""

    def told(offsets: Mapping[int, int]) -> str:
        return orjson.dumps({region.topic: {str(p): offset for p, offset in sorted(offsets.items())}}).decode()

    source = spark.read.format("kafka").options(**frames.kafka_options(config))
    source = source.option("assign", orjson.dumps({region.topic: sorted(region.end)}).decode())
    return frames.cut(
        source.option("startingOffsets", told(region.begin)).option("endingOffsets", told(region.end)).load()
    )


def folded(
    spark: Callable[[], SparkSession],
    cluster: Cluster,
    config: Config,
    layout: Layout,
    regions: tuple[Region, Region],
    segments: Iterable[int],
    work: Work,
    place: Path,
) -> None:
    """Writes to the directory `place` what `work` makes of each of `segments`: rows, and among them STATE and ERROR.

    `regions` are those of the diff topic and of the change topic, of the same partitions.
    """
    wanted = frozenset(segments)
    here = functools.partial(_fold, config, layout, wanted, work)
    small = _small(cluster, layout, regions, wanted)
    if small is not None:
        place.mkdir()
        with pq.ParquetWriter(place / "0.parquet", ROW_SCHEMA) as writer:
            for batch in here(iter([small])):
                writer.write_batch(batch)
        return
    _both(spark(), config, layout, regions, wanted).mapInArrow(here, ROW_DDL).write.parquet(place.as_uri())


def _small(
    cluster: Cluster, layout: Layout, regions: tuple[Region, Region], wanted: frozenset[int]
) -> pa.RecordBatch | None:
    """The rows of small regions as tasks would get them; None where they are not small."""
    if sum(region.end[p] - region.begin[p] for region in regions for p in region.end) > SMALL_RECORDS:
        return None
    mine = {number.to_bytes(4, "big") for number in wanted}
    rows: list[tuple[Any, ...]] = []
    size = 0
    for source, region in enumerate(regions):
        for partition, end in sorted(region.end.items()):
            for message in cluster.read(region.topic, partition, region.begin[partition], end):
                headers = dict(message.headers() or ())
                header, control = headers.get(HEADER_NAME), headers.get(CONTROL_HEADER_NAME)
                segment = None if header is None else header[4:8]
                if segment in mine or header is None or len(header) != SIZE or len(wanted) == layout.segments:
                    key, value = message.key(), message.value()
                    rows.append((segment, source, partition, message.offset(), header, control, key, value))
                    size += len(key or b"") + len(value or b"")
                    if size > SMALL_BYTES:
                        return None
    rows.sort(key=lambda row: (row[0] or b"", row[1], row[3]))
    return pa.RecordBatch.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], _SCHEMA)


def _both(
    spark: SparkSession, config: Config, layout: Layout, regions: tuple[Region, Region], wanted: frozenset[int]
) -> DataFrame:
    """The same rows, by Spark: all of a segment in one task, in order."""
    from pyspark.sql import functions as F

    number = F.substring("header", 5, 4)
    old, new = (read(spark, config, region).withColumn("source", F.lit(n)) for n, region in enumerate(regions))
    both = old.unionByName(new)
    if len(wanted) < layout.segments:
        mine = number.isin([F.lit(n.to_bytes(4, "big")) for n in sorted(wanted)])
        # What is not ours goes to a task as well, which says so.
        both = both.where(mine | F.col("header").isNull() | (F.octet_length("header") != F.lit(SIZE)))
    tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    grouped = both.withColumn("segment", number).repartition(tasks, "segment")
    return grouped.sortWithinPartitions("segment", "source", "offset").select(*_SCHEMA.names)


def count(written: Path | None) -> int:
    """How many rows there are in what `folded` was written to."""
    return 0 if written is None else ds.dataset(written).count_rows(filter=ds.field("cause") == RESET)


def rows_of(written: Path) -> pa.Table:
    """The rows, in the order in which they leave."""
    table = ds.dataset(written).to_table(filter=ds.field("cause") == RESET)
    return table.sort_by([(name, "ascending") for name in ROW_ORDER])


def said(written: Path) -> dict[int, Any]:
    """What the work said of each segment. Raises the first error of a task: RecordError, or `Void`."""
    table = ds.dataset(written).to_table(filter=ds.field("cause") != RESET, columns=["cause", "value"])
    told = [(cause, pickle.loads(value)) for cause, value in zip(*table.to_pydict().values(), strict=True)]
    for cause, (ended, text) in told:
        if cause == ERROR:
            raise RecordError(text) if ended is None else Void(ended, RecordError(text))
    return dict(pair for _, pair in told)


def _fold(
    config: Config, layout: Layout, wanted: frozenset[int], work: Work, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    codec = frames.codec_of(config)
    renderer = Renderer(codec)
    for raw, group in itertools.groupby(_runs(batches), key=operator.itemgetter(0)):
        tables = Tables(pa.Table.from_batches([part for _, part in group]), layout, codec)
        number = int.from_bytes(raw or b"", "big")
        yield from _batches(_segment(number, tables, layout, wanted, work, renderer))


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes | None, pa.RecordBatch]]:
    """Parts of one segment each, with its number as it stands in the header."""
    for batch in batches:
        runs = pc.run_end_encode(batch["segment"])
        first = 0
        for end, raw in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            yield raw, batch.slice(first, end - first)
            first = end


def _segment(
    number: int, tables: Tables, layout: Layout, wanted: frozenset[int], work: Work, renderer: Renderer
) -> list[Row]:
    partition = partition_of(number, layout.partitions, layout.segments)
    try:
        if number not in wanted:  # not ours: reading it says why
            tables.told(partition)
            return [_said(ERROR, (None, f"{r.topic}: not expected")) for r in tables.records(partition, 0, 0)]
        found, state = work(tables, renderer, number, partition)
    except Void as error:
        return [_said(ERROR, (error.ended, str(error.error)))]
    except RecordError as error:
        return [_said(ERROR, (None, str(error)))]
    return [*found, _said(STATE, (number, state))]


def _said(cause: str, told: tuple[Any, Any]) -> Row:
    return Row(0, 0, 0, cause, "", b"", b"", pickle.dumps(told))


def _batches(rows: list[Row]) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(rows), _CHUNK):
        columns = zip(*rows[first : first + _CHUNK], strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW_SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)
