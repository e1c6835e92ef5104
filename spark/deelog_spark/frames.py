"""The job's DataFrames: a batch cut by header, filtered by mark, fed to the sinks.

Values stay in the JVM until the Kafka sink takes them: the plan and the filter get the 24-byte header and the control
header alone (6.4 µs per record against 8.4 with key and value through Python). Both are the same walk (`marks.py`),
so a batch costs one more reading of Kafka (3.3 µs per record) and nothing has to be kept in between.
"""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deelog_schemas.config import Config
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME
from deelog_spark.errors import DiffError
from deelog_spark.marks import Ended, Marks, Segment, located
from deelog_spark.rows import CHANGE, ROW_ORDER, ROW_SCHEMA, Renderer, Row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from deelog_spark.writer import Writer, Written

Batches = Iterator[pa.RecordBatch]
_BLOB: Final = "blob binary"
_ROW_COLUMNS: Final = list(Row._fields)


@dataclass(frozen=True, slots=True)
class Walk:
    """What a task needs to walk its partition: shipped to every task of a batch."""

    topic: str
    partitions: int
    count: int
    segments: Mapping[int, Segment]
    void: frozenset[tuple[int, int]]

    def marks(self) -> Marks:
        """A fresh walk."""
        return Marks(self.segments, self.void, self.partitions, self.count)


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk of one partition found."""

    partition: int
    segments: dict[int, Segment]
    ended: list[Ended]
    records: int
    repeats: int
    size: int
    """Bytes of keys and values."""
    error: str | None


def codec_of(config: Config) -> JsonCodec:
    """The codec of the diff topic. Schema names are the change topic's: a key must be the same bytes in both."""
    connector = config["connector.class"].removeprefix("deelog.").removesuffix("Connector").lower()
    return JsonCodec(
        config.topics.changes,
        connector,
        config["topic.prefix"],
        config["cache.name"],
        config["cache.key.format"],
        config["cache.value.format"],
        config["key.converter.schemas.enable"],
        config["value.converter.schemas.enable"],
        cause=True,
    )


# -- cutting and walking -----------------------------------------------------------------------------------------------


def cut(raw: DataFrame) -> DataFrame:
    """Kafka's columns to partition, offset, header, control, key, value; a header that is not there is null."""
    from pyspark.sql import functions as F

    def header(name: str) -> Column:
        # The last of that name, as every reader takes it.
        return F.try_element_at(F.filter("headers", lambda h: h["key"] == F.lit(name)), F.lit(-1))["value"]

    return raw.select(
        "partition",
        "offset",
        header(HEADER_NAME).alias("header"),
        header(CONTROL_HEADER_NAME).alias("control"),
        "key",
        "value",
    )


def walk(records: DataFrame, task: Walk, small: bool) -> list[Walked]:
    """Walks every partition of a batch by headers alone; a `small` batch on the driver, without Python workers."""
    headers = records.select("partition", "offset", "header", "control", _size())
    mapper = functools.partial(_walk, task)
    if small:
        parts = by_partition(headers.toArrow())
        found = [blob for _, part in parts for batch in mapper(iter([part])) for blob in batch["blob"]]
        return sorted((pickle.loads(blob.as_py()) for blob in found), key=lambda w: w.partition)
    rows = headers.mapInArrow(mapper, _BLOB).collect()
    return sorted((pickle.loads(row["blob"]) for row in rows), key=lambda w: w.partition)


def _size() -> Column:
    from pyspark.sql import functions as F

    return (F.octet_length("key") + F.coalesce(F.octet_length("value"), F.lit(0))).alias("size")


def by_partition(table: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A small table as one batch per partition, in its order."""
    for partition in pc.unique(table["partition"]):
        (batch,) = table.filter(pc.equal(table["partition"], partition)).combine_chunks().to_batches()
        yield partition.as_py(), batch


def _walk(task: Walk, batches: Batches) -> Batches:
    walker = Walker(task)
    for batch in batches:
        if walker.error is None and len(batch):
            walker.take(batch)
    if walker.place[0] >= 0:
        yield _blob(walker.found)


class Walker:
    """Walks one partition, an Arrow batch at a time, with the columns that `walk` selects."""

    def __init__(self, task: Walk) -> None:
        self._task, self._marks = task, task.marks()
        self.place = (-1, -1)
        self.error: str | None = None
        self._size = 0

    def take(self, batch: pa.RecordBatch) -> Any:
        """Which of the batch's rows count; where one is not ours, `error` says so and the answer is worth nothing."""
        self.place = _in_order(self.place, batch)
        without = np.flatnonzero(batch["size"].is_null())
        good = batch.slice(0, without[0]) if len(without) else batch
        self._size += pc.sum(good["size"]).as_py() or 0
        row = len(good)
        try:
            flags = self._marks.steps(self.place[0], *_walked(good))
            if row == len(batch):
                return flags
            problem = RecordError("the record has no key")
        except RecordError as refused:
            problem, row = refused, self._marks.row
        where = [batch[name][row].as_py() for name in ("offset", "header", "control")]
        self.error = str(located(problem, self._task.topic, self.place[0], *where))
        return None

    @property
    def ended(self) -> bool:
        """Whether a reset has ended: how it differs rests on more than this walk."""
        return bool(self._marks.ended)

    @property
    def found(self) -> Walked:
        """What there was up to here."""
        marks = self._marks
        return Walked(self.place[0], marks.now, marks.ended, marks.records, marks.repeats, self._size, self.error)


def _blob(found: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(found)], pa.binary())], ["blob"])


def _walked(batch: pa.RecordBatch) -> tuple[Any, pa.BinaryArray, pa.Array]:
    """What `Marks.steps` takes of a batch."""
    return batch["offset"].to_numpy(), batch["header"].cast(pa.binary()), batch["control"]


def _in_order(place: tuple[int, int], batch: pa.RecordBatch) -> tuple[int, int]:
    """The batch's last place; DiffError unless it continues `place`, one partition in offset order."""
    partitions, offsets = batch["partition"].to_numpy(), batch["offset"].to_numpy()
    before = np.concatenate(([place[1]], offsets[:-1]))
    first = place[0] if place[0] >= 0 else partitions[0]
    wrong = np.flatnonzero((partitions != first) | (offsets <= before))
    if len(wrong):
        at = wrong[0]
        raise DiffError(
            f"a task got {partitions[at]}@{offsets[at]} behind {first}@{before[at]}: one task must read one whole "
            "partition in order; remove minPartitions and maxRecordsPerPartition"
        )
    return int(first), int(offsets[-1])


def kept(records: DataFrame, task: Walk) -> DataFrame:
    """The captured changes that count, as columns of `Row`."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType

    def flags(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        marks = task.marks()
        for partition, offset, header, control in batches:
            if len(partition):
                rows = (offset.to_numpy(), header.cast(pa.binary()), control)
                yield pa.array(marks.steps(partition[0].as_py(), *rows))
            else:
                yield pa.array([], pa.bool_())

    flags.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    arrow_udf: Any = F.arrow_udf  # type: ignore[attr-defined]
    counts = arrow_udf(flags, BooleanType()).asNondeterministic()
    flagged = records.withColumn("counts", counts("partition", "offset", "header", "control"))
    return flagged.where("counts").select(
        "partition",
        "offset",
        F.lit(0).alias("ordinal"),
        F.lit(CHANGE).alias("cause"),
        F.lit("").alias("op"),
        "header",
        "key",
        "value",
    )


def kept_table(records: DataFrame, task: Walk) -> pa.Table:
    """The same of a small batch, brought to the driver."""
    table, parts = records.toArrow(), []
    for partition, batch in by_partition(table):
        flags = task.marks().steps(partition, *_walked(batch))
        parts.append(pa.table(batch).filter(pa.array(flags)))
    table = pa.concat_tables(parts) if parts else table
    columns = {
        "ordinal": pa.repeat(pa.scalar(0, pa.int32()), len(table)),
        "cause": pa.repeat(pa.scalar(CHANGE), len(table)),
        "op": pa.repeat(pa.scalar(""), len(table)),
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table.select(_ROW_COLUMNS).cast(ROW_SCHEMA)


def merged_table(changes: pa.Table, rows: pa.Table) -> pa.Table:
    """`merged` of a small batch."""
    order = [(name, "ascending") for name in ROW_ORDER]
    return pa.concat_tables([changes, rows.cast(ROW_SCHEMA)]).sort_by(order)


def merged(changes: DataFrame, rows: DataFrame, partitions: int) -> DataFrame:
    """Captured changes and rows of resets in the order of their causes: before begin, difference, behind end."""
    both = changes.unionByName(rows)
    return ordered(both, partitions)


def ordered(rows: DataFrame, partitions: int) -> DataFrame:
    """Rows in the order in which they leave, a task per partition."""
    return rows.repartition(partitions, "partition").sortWithinPartitions(*ROW_ORDER)


# -- the Kafka sink ----------------------------------------------------------------------------------------------------


def write_kafka(
    rows: DataFrame, config: Config, checkpoint: str, batch: int, ends: dict[int, int], first: bool = False
) -> list[Written]:
    """Writes a batch to the diff topic, a transaction per output partition, where it was not written yet."""
    task = functools.partial(_write, config, checkpoint, batch, ends, first)
    return [pickle.loads(row["blob"]) for row in rows.mapInArrow(task, _BLOB).collect()]


def pass_on(
    records: DataFrame, task: Walk, config: Config, checkpoint: str, batch: int, ends: dict[int, int]
) -> list[tuple[Walked, Written]]:
    """Walks a batch and writes it to the diff topic in one reading.

    A partition in which a reset ends, or that holds what is not ours, is left unwritten: its walk says so, and is whole
    but for what comes behind what is not ours.
    """
    columns = records.select("partition", "offset", "header", "control", "key", "value", _size())
    mapper = functools.partial(_pass_on, task, config, checkpoint, batch, ends)
    return [pickle.loads(row["blob"]) for row in columns.mapInArrow(mapper, _BLOB).collect()]


def _pass_on(
    task: Walk, config: Config, checkpoint: str, batch: int, ends: dict[int, int], batches: Batches
) -> Batches:
    from deelog_spark.writer import Halt

    walker = Walker(task)
    some = (one for one in batches if len(one))
    first = next(some, None)
    if first is None:
        return

    def rows() -> Iterator[Row]:
        for one in itertools.chain([first], some):
            flags = walker.take(one)
            if walker.error is not None:
                break
            if walker.ended:
                continue
            kept = one if flags.all() else one.filter(pa.array(flags))
            columns = (kept[name].to_pylist() for name in ("partition", "offset", "header", "key", "value"))
            for partition, offset, header, key, value in zip(*columns, strict=True):
                yield Row(partition, offset, 0, CHANGE, "", header, key, value)
        if walker.error is not None or walker.ended:
            raise Halt

    partition = first["partition"][0].as_py()
    written = _writer(config).write(partition, rows(), checkpoint, batch, ends[partition])
    yield _blob((walker.found, written))


_writers: dict[str, Writer] = {}


def _writer(config: Config) -> Writer:
    """This process's writer: a worker serves batch after batch, its producers stay."""
    from deelog_spark.writer import Writer

    name = repr(sorted(config.raw.items()))
    if name not in _writers:
        _writers.clear()
        _writers[name] = Writer(config, Renderer(codec_of(config)))
    return _writers[name]


def _write(config: Config, checkpoint: str, batch: int, ends: dict[int, int], first: bool, batches: Batches) -> Batches:
    for partition, group in itertools.groupby(rows_of(batches), key=lambda row: row.partition):
        yield _blob(_writer(config).write(partition, group, checkpoint, batch, ends[partition], first))


def rows_of(batches: Batches) -> Iterator[Row]:
    """Arrow batches with the columns of `Row` as rows."""
    for batch in batches:
        # Through Arrow's lists, a column at a time: no object per cell but the value.
        yield from map(Row, *(batch.column(name).to_pylist() for name in _ROW_COLUMNS))


# -- decoded -----------------------------------------------------------------------------------------------------------


def decoded(rows: DataFrame, config: Config) -> DataFrame:
    """Rows of a batch or records of the diff topic as columns: cache, segment, op, key, before, after, epoch,
    sequence, cause, ts, and the partition and offset of the cause. JVM only."""
    from pyspark.sql import functions as F

    entry = "struct<key:string,value:string,expires_at:bigint>"
    envelope = f"op string, before {entry}, after {entry}, source struct<ts_us:bigint,cause:string>"
    envelope = f"payload struct<{envelope}>" if config["value.converter.schemas.enable"] else envelope
    key = "payload struct<key:string>" if config["key.converter.schemas.enable"] else "key string"
    parsed = rows.select(
        "partition",
        "offset",
        "cause",
        number("header", 5, 4).cast("int").alias("segment"),
        number("header", 9, 4).alias("epoch"),
        number("header", 13, 8).alias("sequence"),
        _inner(F.from_json(F.col("key").cast("string"), key), config["key.converter.schemas.enable"]).alias("k"),
        _inner(F.from_json(F.col("value").cast("string"), envelope), config["value.converter.schemas.enable"]).alias(
            "v"
        ),
    )
    key_of, value_of = _native(config["cache.key.format"]), _native(config["cache.value.format"])

    def entry_of(name: str) -> Column:
        found = F.col(f"v.{name}")
        native = F.struct(
            key_of(found["key"]).alias("key"),
            value_of(found["value"]).alias("value"),
            found["expires_at"].alias("expires_at"),
        )
        return F.when(found.isNotNull(), native)

    # A tombstone that stands for its delete has no envelope: what is known is the key.
    nothing = F.struct(
        key_of(F.col("k.key")).alias("key"),
        value_of(F.lit(None).cast("string")).alias("value"),
        F.lit(None).cast("bigint").alias("expires_at"),
    )
    return parsed.select(
        F.lit(config["cache.name"]).alias("cache"),
        "segment",
        F.coalesce("v.op", F.lit("d")).alias("op"),
        key_of(F.col("k.key")).alias("key"),
        F.when(F.col("v").isNull(), nothing).otherwise(entry_of("before")).alias("before"),
        entry_of("after").alias("after"),
        "epoch",
        "sequence",
        F.coalesce("cause", "v.source.cause").alias("cause"),
        F.timestamp_micros("v.source.ts_us").alias("ts"),
        "partition",
        "offset",
    )


def number(column: str, first: int, length: int) -> Column:
    """A big-endian number in a binary column (`first` counts from 1), as bigint."""
    from pyspark.sql import functions as F

    return F.conv(F.hex(F.substring(column, first, length)), 16, 10).cast("bigint")


def _inner(parsed: Column, wrapped: bool) -> Column:
    return parsed["payload"] if wrapped else parsed


def _native(format_name: str) -> Callable[[Column], Column]:
    from pyspark.sql import functions as F

    return F.unbase64 if format_name == "bytes" else _same


def _same(column: Column) -> Column:
    return column


def kafka_options(config: Config) -> dict[str, str]:
    """What every reader of ours must be told."""
    return {
        "kafka.bootstrap.servers": ",".join(config["bootstrap.servers"]),
        "kafka.isolation.level": "read_committed",
        # A range often ends with a transaction's marker, behind which a fetch waits for more: 500 ms by default.
        "kafka.fetch.max.wait.ms": "10",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
