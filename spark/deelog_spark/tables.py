"""What everybody else reads: the diff topic as a stream of differences, and as the table that they add up to.

Weighed for `latest`: the change topic folded by the reading rule (resets, control records, marks: as much work as the
job's start, for each question), its checkpoint (holds marks, no entries), and the diff topic's last record per key:
one scan, one aggregation, in the JVM. The last one; it tells what the job has told so far.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import orjson

from deelog_schemas.config import Config
from deelog_schemas.header import Kind
from deelog_spark.batches.columns import cut, decoded, in_jvm
from deelog_spark.errors import DiffError, LossError, TopicError
from deelog_spark.folding.diff_record import connected
from deelog_spark.java_options import kafka_options
from deelog_spark.kafka import Cluster
from deelog_spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def changes(spark: SparkSession, config: Config, **options: Any) -> DataFrame:
    """The diff topic as a streaming DataFrame, one row per difference, in order per key.

    Columns: cache, segment (int), op (c, u, d), key, before and after (struct key, value, expires_at: milliseconds
    or null), epoch, sequence (position of the cause), cause (change, reset), ts (timestamp), partition and offset of
    the record: a key stays on one partition, where offsets order what happened to it. Keys and values are strings, or
    binary with format `bytes`. `before` has the value on rows of a reset and with `before.image=full`, else the key
    alone; it is null on c. `options` are the Kafka source's own, such as startingOffsets (default earliest). A record
    that is not ours stops the query. Stateless: in JSON nothing runs in Python; other formats need deelog and its extra
    for them on the executors.
    """
    wanted = {"startingOffsets": "earliest", **options, **kafka_options(config)}
    raw = spark.readStream.format("kafka").options(**wanted).option("subscribe", config.topics.diff).load()
    return decoded(_differences(cut(raw), config, tombstones=False), connected(config))


def real_time(spark: SparkSession, config: Config, every: str = "5 seconds") -> dict[str, str]:
    """What makes a query over `changes()` one of Spark's real-time mode: `.trigger(**real_time(spark, config))`.

    Rows arrive some milliseconds behind their commit instead of a micro-batch later; `every` is how often the query
    writes its checkpoint. Spark's limits: output mode `update`, no `foreachBatch`, no Python in the query, sinks Kafka,
    `foreach`, console and memory, each of which gets what came since the last checkpoint again after a failure.

    Checked here is what Spark does not check: a task stays on each partition of the diff topic for good, and partitions
    beyond the application's task slots would deliver nothing, in silence. Keep the slots free of other queries. Raises
    `DiffError` where they do not suffice, through Spark Connect, which does not tell them, and before Spark 4.2;
    `TopicError` where there is no diff topic.
    """
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if not in_jvm(config):
        raise DiffError("real-time mode takes no Python in the query, which only records in JSON can do without")
    if is_connect(spark):
        raise DiffError("real-time mode is not offered through Spark Connect, which does not tell the task slots")
    if "realTime" not in inspect.signature(DataStreamWriter.trigger).parameters:
        raise DiffError(
            f"real-time mode needs PySpark 4.2 or newer, this is {spark.version}: use a micro-batch trigger"
        )
    with closing(Cluster(config)) as cluster:
        partitions = _diff_partitions(cluster, config)
    slots = spark.sparkContext.defaultParallelism
    if slots < partitions:
        raise DiffError(
            f"real-time mode needs a task slot for each of the {partitions} partitions of {config.topics.diff}, this "
            f"application has {slots}: start it with more cores (local[{partitions}], --total-executor-cores), or use "
            "a micro-batch trigger"
        )
    return {"realTime": every}


def collapse(rows: DataFrame) -> DataFrame:
    """The last difference of each key, for a MERGE in a `foreachBatch` of your own: a batch DataFrame.

    Takes rows of `changes()`, be they of several caches, and gives the same columns. One row per cache and key: the one
    of the highest offset, as it is. So `op` tells whether the key is there after the batch (c, u) or not (d), not what
    the batch did to it: take c and u alike, and let a d pass that finds nothing. `before` is what was there before that
    row, not before the batch. (epoch, sequence) never falls from batch to batch, and may stay: a guard against older
    rows must let equal ones through. The same batch gives the same rows. Rows have no order. JVM only, one shuffle.
    """
    from pyspark.sql import functions as F

    last = F.max_by(F.struct(*rows.columns), "offset").alias("last")
    return rows.groupBy("cache", "segment", "key").agg(last).select("last.*")


def latest(spark: SparkSession, config: Config, as_of: Mapping[int, int] | None = None) -> DataFrame:
    """What the cache holds, as the diff topic tells: a batch DataFrame with one row per live key.

    Columns: cache, segment, key, value, expires_at (milliseconds or null; who is past it is deleted when the cache
    does so), epoch, sequence, cause and ts of the last difference, partition and offset where it stands. `as_of` are
    offsets of the diff topic by partition, all of them: what was told below. Without it, all that is committed now.
    The same call gives the same rows again only with `as_of`. In JSON, JVM only.

    Raises `TopicError` where there is no diff topic; `LossError` for offsets that are not there (any more), or so old
    that compaction may have taken what stood below; `DiffError` where `as_of` lacks a partition.
    """
    from pyspark.sql import functions as F

    topic = config.topics.diff
    with closing(Cluster(config)) as cluster:
        partitions = _diff_partitions(cluster, config)
        begins, ends = cluster.begins(topic, partitions), cluster.ends(topic, partitions)
        if as_of is not None:
            _check_as_of(cluster, topic, as_of, begins, ends)
            ends = dict(as_of)

    records = _bounded(spark, config, topic, begins, ends)
    columns = ("header", "value", "cause", "offset")
    last = _differences(records, config, tombstones=True).groupBy("partition", "key")
    rows = last.agg(F.max_by(F.struct(*columns), "offset").alias("last")).select("partition", "key", "last.*")
    entries = decoded(rows.where(F.col("value").isNotNull()), connected(config)).where("op <> 'd'")
    return entries.select(
        "cache",
        "segment",
        "key",
        F.col("after.value").alias("value"),
        F.col("after.expires_at").alias("expires_at"),
        "epoch",
        "sequence",
        "cause",
        "ts",
        "partition",
        "offset",
    )


def _diff_partitions(cluster: Cluster, config: Config) -> int:
    topic = config.topics.diff
    try:
        return cluster.layout(topic).partitions
    except TopicError as error:
        raise TopicError(f"topic {topic} does not exist: run the job that writes it first (deelog diff)") from error


def _bounded(
    spark: SparkSession, config: Config, topic: str, begin: Mapping[int, int], end: Mapping[int, int]
) -> DataFrame:
    """Offsets `[begin, end)` of partitions of a topic, as `cut` gives them."""

    def told(offsets: Mapping[int, int]) -> str:
        return orjson.dumps({topic: {str(p): offset for p, offset in sorted(offsets.items())}}).decode()

    source = spark.read.format("kafka").options(**kafka_options(config))
    source = source.option("assign", orjson.dumps({topic: sorted(end)}).decode())
    return cut(source.option("startingOffsets", told(begin)).option("endingOffsets", told(end)).load())


def _check_as_of(
    cluster: Cluster, topic: str, as_of: Mapping[int, int], begins: Mapping[int, int], ends: Mapping[int, int]
) -> None:
    if set(as_of) != set(ends):
        raise DiffError(f"as_of names partitions {sorted(as_of)}, {topic} has {sorted(ends)}: name each of them")
    lag = int(cluster.settings(topic)["min.compaction.lag.ms"])
    for partition, offset in as_of.items():
        if not begins[partition] <= offset <= ends[partition]:
            raise LossError(
                f"{topic}[{partition}] holds offsets [{begins[partition]}, {ends[partition]}], as_of asks for {offset}"
            )
    for partition, offset in as_of.items():
        # Compaction takes a record when a later one of its key is older than the lag: the first one that does not
        # count tells whether any could be.
        behind = next(cluster.reader.read(topic, partition, offset, ends[partition]), None)
        age = 0 if behind is None else time.time() * 1000 - behind.timestamp()[1]
        if age > lag:
            raise LossError(
                f"{topic}[{partition}]: what stood below offset {offset} may be compacted by now (the record there is "
                f"{age / 1000:.0f} s old, min.compaction.lag.ms is {lag}): ask for later offsets"
            )


def _differences(records: DataFrame, config: Config, tombstones: bool) -> DataFrame:
    """Records of the diff topic, as `columns.cut` gives them, with `cause`; what is not ours stops the query."""
    from pyspark.sql import functions as F

    kind = F.hex(F.substring("header", 1, 2))
    foreign = F.raise_error(
        F.concat(
            F.lit(f"{config.topics.diff}["),
            F.col("partition"),
            F.lit("]@"),
            F.col("offset"),
            F.lit(": this record was not written by the diff job of this version"),
        )
    )
    change, tombstone = f"01{int(Kind.CHANGE):02X}", f"01{int(Kind.TOMBSTONE):02X}"
    ours = F.when(kind == change, True).when(kind == tombstone, tombstones).otherwise(foreign.cast("boolean"))
    return records.where(ours).withColumn("cause", F.lit(None).cast("string"))
