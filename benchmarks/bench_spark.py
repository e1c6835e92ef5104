"""The Spark job: CPU per record and what resets cost, each against Spark reading the same topic in the same run.

    python -m benchmarks.bench_spark [--json] [--records 1000000] [--segments 256] [--partitions 4]
        [--batch 2000000]

`spark_steady_ratio` is the CPU (JVM and Python) of walking a topic by its headers over that of reading it into nothing,
each the second time, when the JVM is warm; `spark_diff_ratio` with the diff topic written, exactly once. All keys of
the topic are live afterwards. Then one segment is reset, and all of them: `spark_reset_one_ratio` is the seconds that
the reset adds, half a second aside, over a bare scan of the one partition of the diff topic that it must read, each the
second time (`spark_reset_first` is the first reset of a job); `spark_reset_all_ratio` those of all resets over a
shuffled-hash full outer join of the same rows, each the first time. A batch without records behind is taken off.
`spark_peer_all_ratio` and `spark_peer_one_ratio` are how much longer spark-extension's `diff` takes for the two
snapshots: it knows of no segments, and compares them whole. It is given them as tables of keys and values, read with
`from_json` as docs/consumers.md has it; `spark_peer_bytes_ratio` is that of whole envelopes compared as bytes, which is
quicker and finds every row changed, since a row says when it was written.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from gresearch.spark.diff import diff
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.common import Figure, kafka, parser, show
from deelog_schemas.config import Config
from deelog_schemas.keys import partition_of, segment_of
from deelog_spark.batches import tasks
from deelog_spark.diff_job import DiffJob
from deelog_spark.java_options import kafka_options
from deelog_spark.report import BatchReport
from deelog_spark.session import session
from deelog_spark.sinks.kafka import Written
from tests.support.changes import Cache, config_of, settled_ends

VALUE = b"v" * 100
WRITTEN_AT_ONCE = 10_000
RECORDS_PER_JOIN_TASK = 50_000
"""The peer's hash maps must fit into memory."""
MEMORY = "3g"
"""Of the JVM, for the peer's sake; the job itself has 1g."""
FREE_SECONDS = 0.5
"""What a reset may take beside the scan."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of wall clock, and of CPU in this process, the JVM and its Python workers."""

    wall: float
    cpu: float


def cpu_seconds() -> float:
    """CPU so far of this process and of Spark; not of Kafka, which is a child as well."""
    here = psutil.Process()
    spark = [c for c in here.children() if any("org.apache.spark" in part for part in c.cmdline())]
    found = [here, *spark, *(child for one in spark for child in one.children(recursive=True))]
    total = 0.0
    for process in found:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # a worker that ended now; its daemon counts it
        total += times.user + times.system
        if process is not here:
            total += times.children_user + times.children_system
    return total


def cost(act: Callable[[], Any]) -> Cost:
    """What it takes to do something."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    act()
    return Cost(time.perf_counter() - wall, cpu_seconds() - cpu)


def fill(cache: Cache, records: int) -> None:
    """As many puts, each of a key of its own, in transactions."""
    for first in range(0, records, WRITTEN_AT_ONCE):
        with cache.batch():
            for number in range(first, min(records, first + WRITTEN_AT_ONCE)):
                cache.put(b"user:%d" % number, VALUE)
        _tell(f"{min(records, first + WRITTEN_AT_ONCE):,} of {records:,} records written")


def first_key(segment: int, segments: int) -> bytes:
    """A key of a segment."""
    return next(key for key in (b"first:%d" % n for n in itertools.count()) if segment_of(key, segments) == segment)


def into_nothing(spark: SparkSession, config: Config, partitions: int, folder: Path) -> None:
    """Spark reads the whole change topic as the job does, and drops it."""
    source = spark.readStream.format("kafka").options(**kafka_options(config))
    source = source.option("assign", json.dumps({config.topics.changes: list(range(partitions))}))
    source = source.option("startingOffsets", "earliest")
    source = source.option("maxOffsetsPerTrigger", config["diff.max.offsets.per.trigger"])
    writing = source.load().writeStream.format("noop").trigger(availableNow=True)
    writing.option("checkpointLocation", str(folder / uuid.uuid4().hex)).start().awaitTermination()


def run_job(spark: SparkSession, config: Config) -> list[BatchReport]:
    """The job until it has read what is there; what it told of each batch."""
    told: list[BatchReport] = []
    with DiffJob(config, spark, told.append) as job:
        job.start(available_now=True).await_termination()
    return told


def batch_seconds(told: list[BatchReport]) -> float:
    """Of all batches of a run behind its start."""
    return sum(one.seconds for one in told if one.batch >= 0)


def steady(spark: SparkSession, config: Config) -> None:
    """The job over the whole topic with batches walked, and nothing written, by the driver neither: a mark of a batch
    that it carried itself would tell the next run that all below is there."""
    real, small = tasks.pass_on, DiffJob.SMALL_RECORDS

    def walked(
        spark: SparkSession, task: tasks.WalkTask, checkpoint: str, batch: int, patience: float
    ) -> list[tuple[tasks.Walked, Written]]:
        return [(found, Written(found.partition)) for found in tasks.walk(spark, task)]

    tasks.pass_on, DiffJob.SMALL_RECORDS = walked, 0
    try:
        run_job(spark, config)
    finally:
        tasks.pass_on, DiffJob.SMALL_RECORDS = real, small


def scan(spark: SparkSession, config: Config, topic: str, partitions: list[int], begin: dict[int, int]) -> DataFrame:
    """Bounded reading of some partitions, from `begin` or their first offset."""
    starts = {str(p): begin.get(p, -2) for p in partitions}
    source = spark.read.format("kafka").options(**kafka_options(config))
    source = source.option("startingOffsets", json.dumps({topic: starts}))
    source = source.option("endingOffsets", json.dumps({topic: {str(p): -1 for p in partitions}}))
    return source.option("assign", json.dumps({topic: partitions})).load()


def drop(rows: DataFrame) -> None:
    """Computes all of it and keeps nothing."""
    rows.write.format("noop").mode("append").save()


def join(new: DataFrame, old: DataFrame) -> None:
    """The peer for a reset of everything: a shuffled-hash full outer join by key that keeps what differs."""
    before = old.select("key", F.col("value").alias("was"))
    both = new.select("key", "value").hint("shuffle_hash").join(before, "key", "full_outer")
    drop(both.where(~F.col("value").eqNullSafe(F.col("was"))))


def peer_diff(new: DataFrame, old: DataFrame) -> None:
    """spark-extension's, which compares whole tables and keeps what differs."""
    found = diff(old.select("key", "value"), new.select("key", "value"), "key")
    drop(found.where(F.col("diff") != "N"))


def contents(rows: DataFrame, config: Config) -> DataFrame:
    """Keys and values of records, without those that have none; each key is taken to stand there once."""

    def inner(part: str, of: str) -> Any:
        wrapped = config[f"{part}.converter.schemas.enable"]
        found = F.from_json(F.col(part).cast("string"), f"payload {of}" if wrapped else of)
        return found["payload"] if wrapped else found

    entry = inner("value", "struct<after:struct<value:string>>")["after"]
    read = rows.select(inner("key", "struct<key:string>")["key"].alias("key"), entry["value"].alias("value"))
    return read.where("value is not null")


def _tell(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line}   ", end="", file=sys.stderr, flush=True)


def measure(bootstrap: str, records: int, segments: int, partitions: int, batch: int, folder: Path) -> Iterator[Figure]:
    """All figures, on a topic made for it, in batches of at most so many records."""
    place, saved = folder / "checkpoint", folder / "saved"
    more = {"segment_count": segments, "diff_trigger_interval_ms": 0, "diff_max_offsets_per_trigger": batch}
    config = config_of(bootstrap, f"bench{uuid.uuid4().hex[:8]}", str(place), **more)
    cache = Cache(config, partitions)
    spark = session("bench_spark")
    run_job(spark, config)  # the start, on an empty topic: all that follows comes through the stream
    with cache.batch():
        for segment in range(segments):
            cache.put(first_key(segment, segments), VALUE)
    run_job(spark, config)
    shutil.copytree(place, saved)
    fill(cache, records)

    def from_saved(run: Callable[[SparkSession, Config], Any]) -> Cost:
        shutil.rmtree(place)
        shutil.copytree(saved, place)
        return cost(lambda: run(spark, config))

    into_nothing(spark, config, partitions, folder)
    floor = cost(lambda: into_nothing(spark, config, partitions, folder))
    from_saved(steady)
    filtered = from_saved(steady)
    written = from_saved(run_job)
    yield "spark_nothing", floor.cpu / records * 1e6, "us"
    yield "spark_steady", filtered.cpu / records * 1e6, "us"
    yield "spark_diff", written.cpu / records * 1e6, "us"
    yield "spark_steady_ratio", filtered.cpu / floor.cpu, "ratio"
    yield "spark_diff_ratio", written.cpu / floor.cpu, "ratio"
    yield "spark_diff_rate", records / written.wall, "records/s"
    yield from resets(spark, config, cache, records)


def resets(spark: SparkSession, config: Config, cache: Cache, records: int) -> Iterator[Figure]:
    """A reset of one segment, then of all, with every key live."""
    told, changes, everywhere = config.topics.diff, config.topics.changes, list(range(cache.partitions))

    def batch_of(write: Callable[[], None]) -> float:
        write()
        return batch_seconds(run_job(spark, config))

    idle = min(batch_of(lambda: cache.put(first_key(0, cache.segments), b"again")) for _ in range(2))
    partition = partition_of(1, cache.partitions, cache.segments)
    drop(scan(spark, config, told, [partition], {}))
    bare = cost(lambda: drop(scan(spark, config, told, [partition], {}))).wall
    first, one = (batch_of(lambda: cache.reset(1)) - idle for _ in range(2))
    yield "spark_idle_batch", idle, "s"
    yield "spark_scan", bare, "s"
    yield "spark_reset_first", first, "s"
    yield "spark_reset_one", one, "s"
    yield "spark_reset_one_ratio", (one - FREE_SECONDS) / bare, "ratio"
    begin = settled_ends(config["bootstrap.servers"][0], changes, cache.partitions)
    for segment in range(cache.segments):
        cache.reset(segment)
    rows = [scan(spark, config, changes, everywhere, begin), scan(spark, config, told, everywhere, {})]
    every = batch_seconds(run_job(spark, config)) - idle
    yield "spark_reset_all", every, "s"
    spark.conf.set("spark.sql.shuffle.partitions", max(2, records // RECORDS_PER_JOIN_TASK))
    joined = cost(lambda: join(*rows)).wall
    yield "spark_join", joined, "s"
    yield "spark_reset_all_ratio", every / joined, "ratio"
    whole = cost(lambda: peer_diff(*rows)).wall
    peer = cost(lambda: peer_diff(*(contents(some, config) for some in rows))).wall
    spark.conf.unset("spark.sql.shuffle.partitions")
    yield "spark_peer_bytes", whole, "s"
    yield "spark_peer_bytes_ratio", whole / every, "ratio"
    yield "spark_peer", peer, "s"
    yield "spark_peer_all_ratio", peer / every, "ratio"
    yield "spark_peer_one_ratio", peer / one, "ratio"


def main() -> None:
    """See the module."""
    options = parser(__doc__)
    options.add_argument("--records", type=int, default=1_000_000, help="changes, each of a key of its own")
    options.add_argument("--segments", type=int, default=256)
    options.add_argument("--partitions", type=int, default=4)
    options.add_argument("--batch", type=int, default=2_000_000, help="diff.max.offsets.per.trigger")
    given = options.parse_args()
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-memory {MEMORY} pyspark-shell")
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        figures = measure(bootstrap, given.records, given.segments, given.partitions, given.batch, Path(folder))
        if given.json:
            show(list(figures), as_json=True)
            return
        for figure in figures:  # as they come: the last ones of a large topic take their time
            show([figure], as_json=False)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
