"""The diff topic as DataFrames: a stream of differences, and the table that they add up to.

Alternatives for `latest`: docs/decisions.md.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import orjson

from deelog_schemas.config import Config, Given, Role, config_of
from deelog_schemas.header import Kind
from deelog_spark.batches.columns import cut, decoded, in_jvm
from deelog_spark.errors import DiffError, LossError, TopicError
from deelog_spark.folding.diff_record import connected
from deelog_spark.java_options import kafka_options
from deelog_spark.kafka import Cluster
from deelog_spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_CLOCKS_MS: Final = 60_000
"""So much may the clocks of brokers and Spark differ, or a tenth of the lag."""


def changes(spark: SparkSession, config: Given, **options: Any) -> DataFrame:
    """The diff topic as a streaming DataFrame, one row per difference, in order per key.

    Columns: cache, segment (int), op (c, u, d), key, before and after (struct key, value, expires_at: milliseconds
    or null), epoch, sequence (position of the cause), cause (change, reset), ts (when the cache did what caused it, by
    its nodes' clocks; of a start of the job, by the job's), partition, offset and timestamp of the record (Kafka's:
    when the job wrote it). A key stays on one partition, where offsets give its order. Keys and values are strings,
    or binary with format `bytes`. `before` has the value on rows of a reset and with `before.image=full`, else only
    the key; it is null on c. `options` are those of the Kafka source, such as startingOffsets (default earliest). A
    foreign record stops the query.

    Once a delete is older than `reader.max.lag.ms`, compaction may have taken it and left its tombstone: that is a d
    with neither cause nor ts, and with the key alone in `before`; the delete's own row may come before it. A query
    that was away for longer than that and the topic's delete.retention.ms may miss deletes: begin it anew. The query
    has no state. No Python runs for JSON; other formats need deelog and its extra for them on the executors.

    `config` is a file, a dict of its fields, of which a reader needs `bootstrap.servers`, `topic.prefix`, `cache.name`
    and the formats, or a `Config`. Raises `ConfigError`.
    """
    config = config_of(config, Role.CLIENT)
    wanted = {"startingOffsets": "earliest", **options, **kafka_options(config)}
    raw = spark.readStream.format("kafka").options(**wanted).option("subscribe", config.topics.diff).load()
    rows = _differences(cut(raw), config, tombstones=_may_be_alone(config["reader.max.lag.ms"]))
    return decoded(rows, connected(config), config.topics.diff, timestamp=True)


def real_time(spark: SparkSession, config: Given, every: str = "5 seconds") -> dict[str, str]:
    """The trigger of a query over `changes()` in Spark's real-time mode: `.trigger(**real_time(spark, config))`.

    Rows arrive some milliseconds after their commit instead of a micro-batch later; `every` is how often the query
    writes its checkpoint. Spark's limits: output mode `update`, no `foreachBatch`, no Python in the query, sinks Kafka,
    `foreach`, console and memory, each of which gets the rows since the last checkpoint again after a failure.

    A task stays on each partition of the diff topic, and Spark reads nothing of partitions beyond the application's
    task slots, without an error. So this counts the slots; keep them free of other queries. Raises `DiffError` where
    they are too few, with Spark Connect, which does not report them, and before Spark 4.2; `TopicError` where there is
    no diff topic.
    """
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    config = config_of(config, Role.CLIENT)
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

    Takes rows of `changes()`, also of several caches, and gives the same columns: per cache and key the row of the
    highest offset, unchanged. So `op` tells whether the key exists after the batch (c, u) or not (d), not what the
    batch did to it: treat c and u alike, and ignore a d that finds nothing. `before` is the entry before that row, not
    before the batch. (epoch, sequence) never falls from batch to batch, and may stay: a guard against older rows must
    let equal ones through. The same batch gives the same rows. Rows have no order. No Python runs; one shuffle does.
    """
    from pyspark.sql import functions as F

    last = F.max_by(F.struct(*rows.columns), "offset").alias("last")
    return rows.groupBy("cache", "segment", "key").agg(last).select("last.*")


def latest(spark: SparkSession, config: Given, as_of: Mapping[int, int] | None = None) -> DataFrame:
    """The cache's content according to the diff topic: a batch DataFrame with one row per live key.

    Columns: cache, segment, key, value, expires_at (milliseconds or null; an expired entry stays until the cache
    deletes it), epoch, sequence, cause and ts of the last difference, its partition and offset. `as_of` has an offset
    of the diff topic for every partition: only records below count. Without it, all that is committed now; only with
    it does the same call give the same rows again. No Python runs for JSON.

    Raises `TopicError` where there is no diff topic; `LossError` for offsets that are gone, or so old that records
    below may be compacted away; `DiffError` where `as_of` lacks a partition. `config` as for `changes`.
    """
    from pyspark.sql import functions as F

    config = config_of(config, Role.CLIENT)
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
    entries = decoded(rows.where(F.col("value").isNotNull()), connected(config), topic).where("op <> 'd'")
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

    def as_json(offsets: Mapping[int, int]) -> str:
        return orjson.dumps({topic: {str(p): offset for p, offset in sorted(offsets.items())}}).decode()

    source = spark.read.format("kafka").options(**kafka_options(config))
    source = source.option("assign", orjson.dumps({topic: sorted(end)}).decode())
    return cut(source.option("startingOffsets", as_json(begin)).option("endingOffsets", as_json(end)).load())


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
        # Compaction removes a record once a later one of its key is older than the lag. The oldest one that could be
        # such a later record is the one at `offset`.
        first = next(cluster.reader.read(topic, partition, offset, ends[partition]), None)
        age = 0 if first is None else time.time() * 1000 - first.timestamp()[1]
        if age > lag:
            raise LossError(
                f"{topic}[{partition}]: records below offset {offset} may be compacted by now (the record there is "
                f"{age / 1000:.0f} s old, min.compaction.lag.ms is {lag}): ask for later offsets"
            )


def _may_be_alone(lag_ms: int) -> Column:
    """Whether the delete before a tombstone may be compacted away, which Kafka keeps for `lag_ms` at least."""
    from pyspark.sql import functions as F

    age = F.unix_millis(F.current_timestamp()) - F.unix_millis("timestamp")
    return age > lag_ms - min(_CLOCKS_MS, lag_ms // 10)


def _differences(records: DataFrame, config: Config, tombstones: Column | bool) -> DataFrame:
    """Records of the diff topic, of the columns that `cut` gives, with `cause`; a foreign one stops the query.

    `tombstones`: which of them.
    """
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
