"""What the JVM makes of a batch's rows, whatever configuration they were written with.

Bad input tried here: a value that is no envelope, a key that is none, a value above Jackson's limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deelog_schemas import formats
from deelog_schemas.config import Config
from deelog_schemas.envelope import Stamp
from deelog_schemas.header import Kind, pack
from deelog_schemas.operation import Operation, Reason
from deelog_spark.batches import columns
from deelog_spark.folding.diff_record import CHANGE, ROW_SCHEMA, Row
from tests.support.changes import config_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = config_of("127.0.0.1:1", "p", "/nowhere")
WITH_SCHEMAS = config_of("127.0.0.1:1", "p", "/nowhere", value_converter_schemas_enable="true")


def row(config: Config, offset: int, value: bytes) -> Row:
    codec = formats.codec_of(config, "cachetools")
    operation = Operation(1, offset, Reason.PUT, b"k", value, None, 5, True)
    raw = codec.change(operation, Stamp(0, "n", 5))
    return Row(0, offset, 0, CHANGE, "", pack(Kind.CHANGE, 0, 1, offset, 0), codec.key(b"k"), raw)


def decoded(spark: SparkSession, config: Config, *rows: Row) -> list[Any]:
    frame = spark.createDataFrame(pa.Table.from_batches(columns.batches_of(rows), ROW_SCHEMA))
    return columns.decoded(frame, config, "t").selectExpr("op", "key", "after.value", "length(after.value)").collect()


def test_each_partition_is_a_task_of_its_own(spark: SparkSession) -> None:
    """By a hash 100 partitions are some 65 tasks, of which some have three."""
    rows = [row(PLAIN, n, b"1")._replace(partition=n % 100) for n in range(200)]
    frame = spark.createDataFrame(pa.Table.from_batches(columns.batches_of(rows), ROW_SCHEMA))
    tasks = columns.ordered(frame, 100).rdd.glom().map(lambda part: [(r.partition, r.offset) for r in part]).collect()
    assert sorted(tasks) == [[(n, n), (n, n + 100)] for n in range(100)]


@pytest.mark.parametrize("config", [PLAIN, WITH_SCHEMAS])
def test_both_wrappings_are_read(spark: SparkSession, config: Config) -> None:
    rows = row(PLAIN, 1, b"1"), row(WITH_SCHEMAS, 2, b"2")
    assert [tuple(r)[:3] for r in decoded(spark, config, *rows)] == [("u", "k", "1"), ("u", "k", "2")]


def test_no_length_of_a_value_makes_it_null(spark: SparkSession) -> None:
    """Jackson takes strings of 20,000,000 characters, if it is not told otherwise."""
    (found,) = decoded(spark, PLAIN, row(PLAIN, 1, b"x" * 20_000_001))
    assert found[3] == 20_000_001


def test_a_tombstone_is_a_delete(spark: SparkSession) -> None:
    (found,) = decoded(spark, PLAIN, row(PLAIN, 1, b"1")._replace(value=None))
    assert tuple(found)[:3] == ("d", "k", None)


@pytest.mark.parametrize("value", [b"{}", b"x", b"null", b'{"payload":1}'])
@pytest.mark.parametrize("part", ["key", "value"])
def test_what_is_no_envelope_is_no_delete(spark: SparkSession, part: str, value: bytes) -> None:
    bad: Any = {part: value}
    with pytest.raises(Exception, match=rf"t\[0\]@1: the record {part} is not a Debezium envelope of ours"):
        decoded(spark, PLAIN, row(PLAIN, 1, b"1")._replace(**bad))
