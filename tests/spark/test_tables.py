"""The tables for other jobs, `changes` and `latest`, compared with the simulated cache."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from deelog_schemas.config import Config, ConfigError
from deelog_schemas.header import HEADER_NAME, Kind, pack
from deelog_schemas.operation import Entry
from deelog_spark import DiffJob, changes, collapse, latest, real_time
from deelog_spark.errors import DiffError, LossError, TopicError
from deelog_spark.kafka import Cluster
from tests.spark import scenes
from tests.spark.processes import WAIT
from tests.spark.reference import in_topic
from tests.spark.scenes import Carried
from tests.spark.test_diff_job import configured, run
from tests.support.changes import Cache, config_of, settled_ends
from tests.support.kafka import Broker
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LAG_MS = 1000


def entries(rows: DataFrame) -> dict[bytes, Entry]:
    """The rows of `latest`, as a cache's entries."""
    found = {row.key.encode(): Entry(row.key.encode(), row.value.encode(), row.expires_at) for row in rows.collect()}
    assert len(found) == rows.count()
    return found


def diff_ends(config: Config, partitions: int) -> dict[int, int]:
    """The ends of the diff topic, once all that was committed can be read."""
    return settled_ends(",".join(config["bootstrap.servers"]), config.topics.diff, partitions)


def test_changes_streams_the_diff_topic(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(kafka, prefix, tmp_path, before_image="full", cache_value_format="bytes", max_entry_bytes=1000)
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"\xff\x00", expires_at=1_800_000_000_000)
    cache.put(cache.key(0, 0), b"w")
    cache.put(cache.key(0, 0), None)
    cache.put(cache.key(1, 0), b"lost", lost=True)
    cache.reset(1)
    run(config, spark)
    told = streamed(spark, config, prefix).orderBy("segment", "sequence")
    rows = [r.asDict(recursive=True) for r in told.collect()]
    assert list(rows[0]) == [
        "cache", "segment", "op", "key", "before", "after", "epoch", "sequence", "cause", "ts", "partition", "offset",
        "timestamp"
    ]  # fmt: skip
    key = cache.key(0, 0).decode()
    value = {"key": key, "value": bytearray(b"\xff\x00"), "expires_at": 1_800_000_000_000}
    assert [(r["op"], r["before"] and bytes(r["before"]["value"]), r["cause"]) for r in rows] == [
        ("c", None, "change"),
        ("u", b"\xff\x00", "change"),
        ("d", b"w", "change"),
        ("c", None, "reset"),
    ]
    assert rows[0]["after"] == value
    assert rows[0]["ts"] is not None
    assert rows[0]["partition"] == rows[1]["partition"] == rows[2]["partition"]
    assert rows[0]["offset"] < rows[1]["offset"] < rows[2]["offset"]
    assert (rows[0]["epoch"], rows[0]["sequence"], rows[0]["cache"], rows[0]["segment"]) == (1, 1, "c", 0)


def test_changes_asks_spark_for_no_schema(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A declarative pipeline forbids it where queries are defined."""
    config = config_of("127.0.0.1:9", "p", "unused")
    kind = type(spark.range(1))
    for name in ("schema", "columns", "dtypes"):
        monkeypatch.setattr(kind, name, property(lambda _: pytest.fail("it asked for a schema")))
    assert changes(spark, config).isStreaming


def test_a_reader_gives_the_fields_that_it_needs(spark: SparkSession) -> None:
    given = {"bootstrap.servers": "127.0.0.1:9", "topic.prefix": "shop", "cache.name": "sessions"}
    assert changes(spark, given).isStreaming
    for ask in (changes, latest, real_time):
        with pytest.raises(ConfigError, match=r"topic\.prefix: is required"):
            ask(spark, {"bootstrap.servers": "127.0.0.1:9", "cache.name": "sessions"})


def test_a_tombstone_whose_delete_compaction_may_have_taken_is_a_delete(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Who was away for so long reads of a deleted key nothing else; a fresh one stands behind its delete."""
    fresh = configured(kafka, prefix, tmp_path, cache_value_format="bytes")
    cache = Cache(fresh)
    run(fresh, spark)
    cache.put(cache.key(0, 0), b"old")
    cache.put(cache.key(0, 0), None)
    run(fresh, spark)
    diff_ends(fresh, cache.partitions)
    ended = time.time()
    waiting(lambda: time.time() > ended + LAG_MS / 1000, WAIT, "a delete that is as old as the lag")
    late = configured(kafka, prefix, tmp_path, reader_max_lag_ms=LAG_MS, cache_value_format="bytes")
    for asked, causes in ((late, ["change", "change", None]), (fresh, ["change", "change"])):
        rows = streamed(spark, asked, f"{prefix}{len(causes)}").orderBy("offset").collect()
        assert [row.cause for row in rows] == causes
    alone, delete = spark.table(f"{prefix}3").orderBy("offset").collect()[2], rows[1]
    assert (alone.op, alone.key, alone.after, alone.ts) == ("d", delete.key, None, None)
    assert (alone.epoch, alone.sequence, alone.segment) == (delete.epoch, delete.sequence, delete.segment)
    assert (alone.before.key, alone.before.value) == (delete.key, None)


@pytest.mark.parametrize(
    "size", [20_000, pytest.param(0, marks=pytest.mark.slow)], ids=["by the driver", "by executors"]
)
@pytest.mark.parametrize("whole", [True, False], ids=["a reset that can be read by columns", "one that cannot"])
def test_a_difference_has_the_time_of_its_cause(
    kafka: Broker,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    carried_by_driver: Carried,
    size: int,
    whole: bool,
) -> None:
    """Whatever the job was away for: with its own clock, a watermark would run ahead of the changes behind a reset."""
    carried_by_driver(size)
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"lost", lost=True)
    cache.reset(0)
    if not whole:
        cache.reset(0)  # two in one batch are folded record by record
    cache.put(cache.key(2, 0), b"v")
    cache.put(cache.key(2, 0), None)
    cache.live[2].sequence += 1
    header = pack(Kind.TOMBSTONE, 2, 1, cache.live[2].sequence, 1)
    with cache.batch():  # its delete was compacted away
        cache.raw(config.topics.changes, 0, cache.codec.key(cache.key(2, 0)), None, [(HEADER_NAME, header)])
    waiting(lambda: changes_of(config, cache)[-1].value() is None, WAIT, "the tombstone")
    records = changes_of(config, cache)
    ends = [one for one in records if dict(one.headers())[HEADER_NAME][1] == Kind.RESET_END]
    at = time.time() + 2
    waiting(lambda: time.time() > at, WAIT, "the job to be late")
    run(config, spark)
    found = {row.offset: row for row in streamed(spark, config, f"{prefix}n").where("partition = 0").collect()}
    (by_reset,) = (row for row in found.values() if row.cause == "reset")
    bare = max((row for row in found.values() if row.segment == 2), key=lambda row: row.sequence)
    assert milliseconds(by_reset.ts) == ends[0].timestamp()[1]
    assert (bare.op, bare.cause, bare.sequence) == ("d", "change", cache.live[2].sequence)
    assert milliseconds(bare.ts) == records[-1].timestamp()[1]
    written = {one.offset(): one.timestamp()[1] for one in changes_of(config, cache, config.topics.diff)}
    assert {offset: milliseconds(row.timestamp) for offset, row in found.items()}.items() <= written.items()


def changes_of(config: Config, cache: Cache, topic: str = "") -> list[Any]:
    """The records of partition 0."""
    topic = topic or config.topics.changes
    with closing(Cluster(config)) as cluster:
        return list(cluster.reader.read(topic, 0, 0, cluster.ends(topic, cache.partitions)[0]))


def streamed(spark: SparkSession, config: Config, name: str) -> DataFrame:
    """What `changes()` gives today, as a table of that name."""
    query = changes(spark, config).writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    return spark.table(name)


def milliseconds(moment: datetime) -> int:
    """Of a row's timestamp."""
    return round(moment.timestamp() * 1000)


def test_collapse_gives_the_last_row_of_each_key(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Also if a reset deletes a key at the position of the key's last change: positions alone do not give the order."""
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    run(config, spark)
    scenes.scripted(cache)
    run(config, spark)
    last = {t.key: t for rows in in_topic(config, cache.partitions).values() for t in rows}
    batches: list[DataFrame] = []
    found: list[Any] = []

    def take(batch: DataFrame, number: int) -> None:
        batches.append(batch)
        found.extend(collapse(batch).collect())

    query = changes(spark, config).writeStream.foreachBatch(take).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert len(batches) == 1
    assert collapse(batches[0]).columns == batches[0].columns
    assert len(found) == len(last)
    for row in found:
        told = last[row["key"].encode()]
        assert (row["op"], row["segment"], row["cause"]) == (told.op, told.segment, told.cause)
        assert (row["epoch"], row["sequence"]) == told.position
        assert (row["after"] and row["after"]["value"].encode()) == (told.after and told.after.value)
    assert last[cache.key(5, 1)].op == "d"


def test_latest_is_what_the_cache_holds(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    scenes.scripted(cache)
    scenes.close(cache)
    run(config, spark)
    then, held = diff_ends(config, cache.partitions), cache.entries()
    assert entries(latest(spark, config)) == held
    assert len(held) > 5
    player = scenes.Player(cache, 3)
    for _ in range(30):
        player.turn()
    player.finish()
    run(config, spark)
    now = latest(spark, config)
    assert now.columns == [
        "cache", "segment", "key", "value", "expires_at", "epoch", "sequence", "cause", "ts", "partition", "offset"
    ]  # fmt: skip
    assert entries(now) == cache.entries() != held
    assert entries(latest(spark, config, as_of=then)) == held
    assert entries(latest(spark, config, as_of=dict.fromkeys(then, 0))) == {}


def test_latest_has_no_tombstone_and_no_key_whose_delete_compaction_took(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = configured(kafka, prefix, tmp_path, tombstones_on_delete="false", cache_value_format="bytes")
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"a")
    cache.put(cache.key(0, 0), None)
    cache.put(cache.key(0, 1), b"\xff\x00", expires_at=1_800_000_000_000)
    run(config, spark)
    diff_ends(config, cache.partitions)
    (row,) = latest(spark, config).collect()
    assert (row.key.encode(), bytes(row.value), row.expires_at) == (cache.key(0, 1), b"\xff\x00", 1_800_000_000_000)


def test_offsets_that_cannot_be_answered(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(kafka, prefix, tmp_path, reader_max_lag_ms=LAG_MS)
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"a")
    run(config, spark)
    written = time.time()
    for as_of, kind, said in (
        ({0: 0}, DiffError, r"as_of names partitions \[0\].*has \[0, 1\]: name each"),
        ({0: 0, 1: 0, 2: 0}, DiffError, "name each"),
        ({0: 0, 1: 10**9}, LossError, "as_of asks for 1000000000"),
        ({0: -1, 1: 0}, LossError, "as_of asks for -1"),
    ):
        with pytest.raises(kind, match=said):
            latest(spark, config, as_of=as_of)
    waiting(lambda: time.time() > written + LAG_MS / 1000, WAIT, "records older than the lag")
    with pytest.raises(LossError, match=r"may be compacted by now.*min.compaction.lag.ms is 1000\)"):
        latest(spark, config, as_of={0: 0, 1: 0})


def test_latest_without_a_diff_topic(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(TopicError, match=f"topic {prefix}.c.diff does not exist"):
        latest(spark, configured(kafka, prefix, tmp_path))


def test_what_is_not_ours_stops_the_question(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"a")
    run(config, spark)
    with cache.batch():
        cache.raw(config.topics.diff, 0, b"k", b"v", [])
    diff_ends(config, cache.partitions)
    found: Any = latest(spark, config)
    with pytest.raises(Exception, match="was not written by the diff job of this version"):
        found.collect()


def test_real_time_mode_delivers_every_partition(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Before the end of the query's one batch, for which a micro-batch would wait. The query has all task slots; the
    job works beside it, since its driver handles small batches itself."""
    config = config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"))
    cache, out = Cache(config), f"{prefix}-out"
    cache.admin.create_topics([NewTopic(out, 1)])[out].result(30)
    keys = {cache.key(segment, 0) for segment in range(cache.segments)}
    seen = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": out})
    seen.assign([TopicPartition(out, 0, 0)])
    job = DiffJob(config, spark).start()
    try:
        rows = changes(spark, config).selectExpr("key", "op AS value")
        sink = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": out, "checkpointLocation": str(tmp_path / "out")}
        writing = rows.writeStream.format("kafka").options(**sink).outputMode("update")
        query = writing.trigger(**real_time(spark, config, "5 minutes")).start()
        try:
            for key in keys:
                cache.put(key, b"v")
            found: set[Any] = set()

            def all_seen() -> bool:
                found.update(message.key() for message in seen.consume(100, 0.1))
                return found >= keys or not query.isActive

            waiting(all_seen, WAIT, "a row of every segment")
            assert (query.exception(), found, query.lastProgress) == (None, keys, None)
        finally:
            query.stop()
    finally:
        job.stop()
        seen.close()


def test_real_time_mode_without_a_slot_for_each_partition_is_refused(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = configured(kafka, prefix, tmp_path)
    with pytest.raises(TopicError, match="does not exist: run the job that writes it first"):
        real_time(spark, config)
    Cache(config, 3)
    run(config, spark)
    with pytest.raises(DiffError, match=r"a task slot for each of the 3 partitions .* has 2: .*local\[3\]"):
        real_time(spark, config)
