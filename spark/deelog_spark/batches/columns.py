"""Rows of a batch and records of a topic as columns: of Arrow for tasks, of Spark for sinks and readers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deelog_schemas import formats
from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.header import HEADER_NAME
from deelog_spark.folding.diff_record import (
    CHANGE,
    ROW_DDL,
    ROW_ORDER,
    ROW_SCHEMA,
    Row,
    codec_of,
    renderer_of,
    tolerant,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Batches = Iterator[pa.RecordBatch]
_CHUNK: Final = 5_000
_CHUNK_BYTES: Final = 16 << 20
_LONGEST: Final = str(2**31 - 1)
"""Characters of a value; where it is longer than Jackson's own limit, Spark makes null of it."""
_PLAIN: Final = "partition int, offset bigint, {}cause string, header binary, key binary, value binary"


def rows_of(batches: Batches) -> Iterator[Row]:
    """Rows of Arrow batches with the columns of `Row`."""
    for batch in batches:
        # Through Arrow's lists, a column at a time: no object per cell but the value.
        yield from map(Row, *(batch.column(name).to_pylist() for name in Row._fields))


def batches_of(rows: Iterable[Row]) -> Batches:
    """Rows as Arrow batches of bounded size."""
    for some in _chunks(rows):
        columns = zip(*some, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW_SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Some thousand rows at a time, or fewer large ones: a column of Arrow ends at 2 GB, a task's memory sooner."""
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row.key) + len(row.value or b"")
        if len(some) == _CHUNK or size >= _CHUNK_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def merged(changes: DataFrame, rows: DataFrame, partitions: int) -> DataFrame:
    """Captured changes and rows of resets, in the order of their causes."""
    return ordered(changes.unionByName(rows), partitions)


def ordered(rows: DataFrame, partitions: int) -> DataFrame:
    """Rows in the order in which they are written, a task per partition."""
    return rows.repartitionById(partitions, "partition").sortWithinPartitions(*ROW_ORDER)


def decodable(rows: DataFrame, config: Config) -> DataFrame:
    """The rows without those that became dead letters."""
    return rows.mapInArrow(functools.partial(_decodable, config), ROW_DDL) if tolerant(config) else rows


def _decodable(config: Config, batches: Batches) -> Batches:
    renderer = renderer_of(config)
    for batch in batches:
        yield from batches_of(row for row in rows_of(iter([batch])) if row.cause != CHANGE or renderer.reads(row))


def cut(raw: DataFrame) -> DataFrame:
    """Partition, offset, timestamp, header, key and value of a Kafka source's records; a missing header is null."""
    from pyspark.sql import functions as F

    # The last one of that name, as in every other reader.
    ours = F.try_element_at(F.filter("headers", lambda h: h["key"] == F.lit(HEADER_NAME)), F.lit(-1))["value"]
    return raw.select("partition", "offset", "timestamp", ours.alias("header"), "key", "value")


def decoded(rows: DataFrame, config: Config, topic: str, *, timestamp: bool = False) -> DataFrame:
    """Rows of a batch, or records of the diff topic, with keys and values decoded.

    Columns: cache, segment, op, key, before, after, epoch, sequence, cause, ts, partition, offset, and with `timestamp`
    that of `rows`. No Python runs where keys and values are JSON. One that cannot be decoded ends the query with its
    place: `topic` is the one that partition and offset are of. Spark is asked for no schema: a declarative pipeline
    forbids that while it defines its queries.
    """
    from pyspark.sql import functions as F

    entry = "struct<key:string,value:string,expires_at:bigint>"
    envelope = f"op:string,before:{entry},after:{entry},source:struct<ts_us:bigint,cause:string>"
    more = ["timestamp"] if timestamp else []
    rows = rows.select("partition", "offset", *more, "cause", "header", "key", "value")
    if not in_jvm(config):
        columns = _PLAIN.format("timestamp timestamp, " if timestamp else "")
        rows = rows.mapInArrow(functools.partial(_plain, config, topic), columns)
    parsed = rows.select(
        "partition",
        "offset",
        *more,
        "cause",
        number("header", 5, 4).cast("int").alias("segment"),
        number("header", 9, 4).alias("epoch"),
        number("header", 13, 8).alias("sequence"),
        _parsed(topic, "key", "key:string", "key").alias("k"),
        _parsed(topic, "value", envelope, "op").alias("v"),
    )
    binary = config["binary.handling.mode"]
    key_of, value_of = _native(config["cache.key.format"], binary), _native(config["cache.value.format"], binary)

    def entry_of(name: str) -> Column:
        image = F.col(f"v.{name}")
        native = F.struct(
            key_of(image["key"]).alias("key"),
            value_of(image["value"]).alias("value"),
            image["expires_at"].alias("expires_at"),
        )
        return F.when(image.isNotNull(), native)

    # A tombstone whose delete was compacted away has a key and no envelope.
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
        *more,
    )


def in_jvm(config: Config) -> bool:
    """Whether the JVM alone decodes the records."""
    return all(config[f"{part}.converter"] == "json" for part in formats.PARTS)


def _plain(config: Config, topic: str, batches: Batches) -> Batches:
    """Keys and values of any format as JSON without a schema block."""
    codec = codec_of(config)
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        keys, values = [], []
        for partition, offset, key, value in zip(
            *(columns[name].to_pylist() for name in ("partition", "offset", "key", "value")), strict=True
        ):
            try:
                keys.append(codec.plain_key(key))
                values.append(None if value is None else codec.plain_value(value))
            except RecordError as error:
                raise error.at(topic, partition, offset) from error
        columns |= {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        yield pa.RecordBatch.from_pydict(columns)


def number(column: str, first: int, length: int) -> Column:
    """A big-endian number in a binary column (`first` counts from 1), as bigint."""
    from pyspark.sql import functions as F

    return F.conv(F.hex(F.substring(column, first, length)), 16, 10).cast("bigint")


def _parsed(topic: str, column: str, fields: str, needed: str) -> Column:
    """JSON of these fields, with a schema block or without: what is there may be of another configuration.

    Null where the column is. Ends the query at one that lacks the field `needed`.
    """
    from pyspark.sql import functions as F

    text = F.col(column).cast("string")
    parsed = F.from_json(text, f"struct<payload:struct<{fields}>,{fields}>", {"maxStringLen": _LONGEST})
    own = F.when(parsed[needed].isNotNull(), parsed)
    place = F.concat(F.lit(f"{topic}["), "partition", F.lit("]@"), "offset")
    foreign = F.raise_error(F.concat(place, F.lit(f": the record {column} is not a Debezium envelope of ours")))
    whole = F.coalesce(parsed["payload"], own.dropFields("payload"), foreign)
    return F.when(F.col(column).isNotNull(), whole)


def _native(format_name: str, binary: str) -> Callable[[Column], Column]:
    from pyspark.sql import functions as F

    if format_name != "bytes":
        return _same
    if binary == "base64-url-safe":
        return lambda column: F.unbase64(F.translate(column, "-_", "+/"))
    return F.unhex if binary == "hex" else F.unbase64


def _same(column: Column) -> Column:
    return column
