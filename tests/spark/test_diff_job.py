"""The job compared with the reference reader, on a real Kafka and a real Spark."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from deelog_schemas import canonical
from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.header import HEADER_NAME, Kind, pack
from deelog_spark import DiffJob, diff_job
from deelog_spark.batches.checkpoint import Checkpoint
from deelog_spark.batches.plan import Planner
from deelog_spark.errors import BusyError, CheckpointError, DiffError, TopicError
from deelog_spark.folding.diff_record import renderer_of
from deelog_spark.kafka import Cluster
from deelog_spark.sinks.kafka import Writer
from tests.spark import scenes
from tests.spark.reference import expected, held, in_parquet, in_topic, read, unordered
from tests.spark.scenes import Carried
from tests.spark.tables import Sqlite, in_table
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker
from tests.support.topics import messages
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def config(kafka: Broker, prefix: str, tmp_path: Path) -> Config:
    """All sinks."""
    return configured(kafka, prefix, tmp_path)


def configured(kafka: Broker, prefix: str, tmp_path: Path, **more: Any) -> Config:
    sinks = {"diff_parquet_path": str(tmp_path / "pq")}
    sinks |= Sqlite(tmp_path / "table.db").fields
    return config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"), **{**sinks, **more})


def run(config: Config, spark: SparkSession) -> dict[str, Any]:
    """Runs the job to the end of the topic. Returns its progress."""
    job = DiffJob(config, spark)
    try:
        job.start(available_now=True)
        assert job.await_termination(240)
    finally:
        job.stop()
    found: dict[str, Any] = json.loads((Path(config["diff.checkpoint.location"]) / "progress.json").read_text())
    return found


def check(cache: Cache, config: Config) -> None:
    """All sinks have exactly the differences of the reference."""
    wanted = expected(config, cache.partitions)
    assert in_topic(config, cache.partitions) == wanted
    assert unordered(in_parquet(Path(config["diff.parquet.path"]))) == unordered(wanted)
    assert table(config) == held(wanted)


def table(config: Config) -> Any:
    """The content of the table."""
    return in_table(Sqlite(Path(config["diff.jdbc.url"].removeprefix("jdbc:sqlite:"))), config)


@pytest.mark.parametrize(
    "size", [20_000, pytest.param(0, marks=pytest.mark.slow)], ids=["by the driver", "by executors"]
)
def test_scripted(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried, size: int
) -> None:
    carried_by_driver(size)
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    run(config, spark)  # the job starts before the first record
    scenes.scripted(cache)
    told = run(config, spark)
    check(cache, config)
    assert 6 not in in_topic(config, 2) or all(t.key != cache.key(6, 1) for t in in_topic(config, 2)[6])
    assert told["resets"] == {"overflow": 3, "takeover": 1, "restart": 1}
    assert told["repeats"] == 2
    assert told["input_offsets"] == {str(p): end for p, end in cache.ends().items()}
    scenes.close(cache)
    told = run(config, spark)
    check(cache, config)
    rows = [t for ts in in_topic(config, 2).values() for t in ts]
    for cause, name in (("change", "changes"), ("reset", "resets_rows")):
        assert told[name] == {op: sum(t.cause == cause and t.op == op for t in rows) for op in "cud"}
    entries = {t.key: t.after for t in rows}
    assert {k: e for k, e in entries.items() if e is not None} == cache.entries()


@pytest.mark.slow
def test_random_batches_cut_anywhere(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried
) -> None:
    carried_by_driver(45, 400)  # some batches go through the driver, some do not
    config = configured(kafka, prefix, tmp_path, diff_max_offsets_per_trigger=60)
    cache = Cache(config)
    run(config, spark)
    player = scenes.Player(cache, 1)
    for _ in range(50):
        player.turn()
    run(config, spark)
    check(cache, config)
    player.finish()
    run(config, spark)
    check(cache, config)
    found = {t.key: t.after for ts in in_topic(config, 2).values() for t in ts}
    assert {k: e for k, e in found.items() if e is not None} == cache.entries()


@pytest.mark.slow
def test_places_with_blanks_in_their_names(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried
) -> None:
    """Checkpoint and parquet sink, through Spark's tasks."""
    carried_by_driver(0)
    config = configured(kafka, prefix, tmp_path / "100% of it, \u00e4 #1")
    cache = Cache(config)
    run(config, spark)
    scenes.two_resets(cache, 4)
    run(config, spark)
    check(cache, config)


class Killed(Exception):
    """Simulates the end of the process at this point."""


POINTS = [
    ("batches.checkpoint.Checkpoint.write_plan", False),
    ("batches.checkpoint.Checkpoint.write_plan", True),
    ("sinks.kafka.Writer.write", True),
    ("sinks.parquet.ParquetSink.write", False),
    ("sinks.parquet.ParquetSink.write", True),
    ("sinks.jdbc.JdbcSink._stage", False),
    ("sinks.jdbc.JdbcSink._stage", True),
    ("sinks.jdbc.JdbcSink._land", False),
    ("sinks.jdbc.JdbcSink._land", True),
    ("batches.checkpoint.Checkpoint.write_state", False),
    ("batches.checkpoint.Checkpoint.write_state", True),
]


@pytest.mark.slow
def test_end_at_every_point(config: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done before the end is recognised, the rest is done later, and totals count once."""
    cache = Cache(config)
    run(config, spark)
    for number, (name, behind) in enumerate(POINTS):
        key = cache.key(0, number)
        cache.put(key, b"v")
        cache.put(cache.key(4, 0), b"w%d" % number)
        cache.put(cache.key(1, number), b"lost", lost=True)
        cache.reset(1)
        cache.put(key, None)
        with monkeypatch.context() as patch:
            die(patch, name, behind)
            with pytest.raises(Killed):
                run(config, spark)
    told = run(config, spark)
    check(cache, config)
    assert told["resets"] == {"overflow": len(POINTS)}
    assert told["changes"] == {"c": len(POINTS) + 1, "u": len(POINTS) - 1, "d": len(POINTS)}
    assert told["resets_rows"] == {"c": len(POINTS), "u": 0, "d": 0}


@pytest.mark.parametrize(
    "point", [0, 3, *(pytest.param(point, marks=pytest.mark.slow) for point in (1, 2, 4, 5, 6, 7, 8))]
)
def test_end_of_a_start(config: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, point: int) -> None:
    cache = Cache(config)
    for segment in range(8):
        cache.put(cache.key(segment, 0), b"v")
    with monkeypatch.context() as patch:
        die(patch, *POINTS[point])
        with pytest.raises(Killed):
            run(config, spark)
    cache.put(cache.key(0, 0), b"w")
    told = run(config, spark)
    rows = in_topic(config, 2)
    assert unordered(in_parquet(Path(config["diff.parquet.path"]))) == unordered(rows)
    assert table(config) == held(rows)
    assert {number: len(r) for number, r in rows.items()} == {0: 2 if point else 1, **dict.fromkeys(range(1, 8), 1)}
    assert told["resets_rows"]["c"] == 8


def die(patch: pytest.MonkeyPatch, name: str, behind: bool) -> None:
    """Ends the job at the first call of `name`, or after that call."""
    module, cls, method = name.rsplit(".", 2)
    owner = getattr(__import__(f"deelog_spark.{module}", fromlist=[cls]), cls)
    real = getattr(owner, method)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("claims"):  # of a start, before it is planned
            return real(*args, **kwargs)
        if behind:
            real(*args, **kwargs)
        raise Killed

    patch.setattr(owner, method, dying)


def fails(*_: Any) -> None:
    """Raises as py4j does when a task fails."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    jvm.java.util.ArrayList().get(7)


def fails_otherwise(*_: Any) -> None:
    """Raises an error for which PySpark has a special type."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    jvm.java.lang.Integer.parseInt("7 or so")


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [("diff_job.DiffJob._write_here", fails, "Index 7"), ("batches.plan.Planner.start", fails_otherwise, "7 or so")],
    ids=["in a batch", "in a start"],
)
def test_spark_that_fails_stops_the_job_with_one_line(
    config: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, how: Any, said: str
) -> None:
    cache = Cache(config)
    if how is fails:
        run(config, spark)
    cache.put(cache.key(0, 0), b"v")
    with monkeypatch.context() as patch:
        module, cls, method = name.rsplit(".", 2)
        owner = getattr(__import__(f"deelog_spark.{module}", fromlist=[cls]), cls)
        patch.setattr(owner, method, how)
        with pytest.raises(DiffError, match=rf"^Spark: [^\n]*{said}[^\n]*start the job again[^\n]*$"):
            run(config, spark)
    run(config, spark)
    assert {t.key for ts in in_topic(config, 2).values() for t in ts} == set(cache.entries())


@pytest.mark.slow
def test_start_over_emits_differences_only(config: Config, spark: SparkSession, tmp_path: Path) -> None:
    cache = Cache(config)
    for segment in range(8):
        cache.put(cache.key(segment, 0), b"v")
        cache.put(cache.key(segment, 1), b"v")
        cache.reset(segment)
    run(config, spark)
    before = in_topic(config, 2)
    cache.put(cache.key(0, 0), b"w")
    cache.put(cache.key(1, 1), None)
    cache.put(cache.key(2, 5), b"new")
    cache.put(cache.key(2, 5), b"newer")
    cache.begin(3)
    cache.put(cache.key(3, 0), b"held")
    again = configured_again(config, tmp_path)
    run(again, spark)
    after = in_topic(config, 2)
    assert table(again) == held(after)
    fresh = [t for number, rows in after.items() for t in rows[len(before[number]) :]]
    assert sorted((t.op, t.key, t.after and t.after.value, t.cause) for t in fresh) == [
        ("c", cache.key(2, 5), b"newer", "reset"),
        ("d", cache.key(1, 1), None, "reset"),
        ("u", cache.key(0, 0), b"w", "reset"),
    ]
    cache.rows(3)
    cache.end(3)
    cache.put(cache.key(3, 1), b"last")
    run(again, spark)
    found = {t.key: t.after for ts in in_topic(config, 2).values() for t in ts}
    assert {k: e for k, e in found.items() if e is not None} == cache.entries()
    assert table(again) == held(in_topic(config, 2))


def configured_again(config: Config, tmp_path: Path) -> Config:
    """The same job with an empty checkpoint."""
    servers, prefix = ",".join(config["bootstrap.servers"]), config["topic.prefix"]
    sinks = {"diff_parquet_path": str(tmp_path / "pq2")}
    sinks["diff_jdbc_url"] = config["diff.jdbc.url"]
    return config_of(servers, prefix, str(tmp_path / "cp2"), **sinks)


FOREIGN = {"no header": (b"{}", []), "value": (b"{broken", [(HEADER_NAME, pack(Kind.CHANGE, 0, 1, 9, 0))])}
"""Value and headers of one that the walk over the headers stops at, and of one that stops the rendering of rows.
`folding/test_walk.py` and `folding/test_diff_record.py` have the others."""


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000, 0], ids=["by the driver", "by executors"])
def test_foreign_records_stop_the_job(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried, size: int
) -> None:
    carried_by_driver(size)
    for number, (what, (value, headers)) in enumerate(FOREIGN.items()):
        config = configured(kafka, f"{prefix}{number}", tmp_path / str(number))
        cache = Cache(config)
        run(config, spark)
        cache.put(cache.key(7, 0), b"v")
        cache.put(cache.key(0, 0), b"v")
        with cache.batch():
            cache.raw(cache.topics.changes, 0, cache.codec.key(b"x"), value, headers)
        for _ in range(2 if what == "value" else 1):  # and it stays stopped
            with pytest.raises(RecordError) as caught:
                run(config, spark)
            assert str(caught.value).startswith(f"{config.topics.changes}[0]@2: "), what
            assert "delete the checkpoint" in str(caught.value)
        assert 0 not in in_topic(config, 2), "rows of a transaction that could not be finished"
        if what == "value":  # the remedy
            for segment in range(8):
                cache.reset(segment, "signal")
            again = configured(kafka, f"{prefix}{number}", tmp_path / "again")
            run(again, spark)
            assert {t.key for ts in in_topic(again, 2).values() for t in ts} == set(cache.entries())


def test_reset_that_does_not_match_stops_the_job(config: Config, spark: SparkSession) -> None:
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"v")
    cache.begin(0)
    cache.rows(0)
    cache.end(0, count=2)
    with pytest.raises(RecordError, match=r"\[0\]@\d+: .*count 2.*reset-segment"):
        run(config, spark)


def test_reset_that_does_not_match_is_asked_for_again(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = configured(kafka, prefix, tmp_path, on_data_loss="reset")
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"v")
    cache.put(cache.key(0, 0), b"w", lost=True)
    cache.begin(0)
    cache.rows(0)
    cache.end(0, count=2)
    cache.put(cache.key(0, 0), b"held")
    run(config, spark)
    assert [(t.op, t.after and t.after.value) for t in in_topic(config, 2)[0]] == [("c", b"v")]
    cache.reset(0, "signal")
    told = run(config, spark)
    assert [(t.op, t.after and t.after.value) for t in in_topic(config, 2)[0]] == [("c", b"v"), ("u", b"held")]
    assert told["resets"] == {"signal": 1}
    signals = signals_of(cache)
    assert [s["data"]["segments"] for s in signals] == [[0], [0]]  # once found, once at the start that still waits
    assert signals[0]["type"] == "reset-segment"
    assert signals[0]["data"]["cache"] == "c"


def test_one_that_a_start_finds_is_asked_for_again(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """No position names it as complete: it lies above the base, as one does whose owner was lost right behind it."""
    config = configured(kafka, prefix, tmp_path, on_data_loss="reset")
    cache = Cache(config)
    for number, key in enumerate((cache.key(0, 0), cache.key(1, 0))):
        cache.put(key, b"v")
        cache.begin(number)
        cache.rows(number)
        cache.live[number].begin = -1
        cache.end(number, count=2 - number)
    strict = configured(kafka, prefix, tmp_path / "strict")
    with pytest.raises(RecordError, match=r"\[0\]@\d+: .*count 2.*reset-segment.*on.data.loss=reset"):
        run(strict, spark)
    run(config, spark)
    assert [(t.key, t.op) for ts in in_topic(config, 2).values() for t in ts] == [(cache.key(1, 0), "c")]
    assert [s["data"]["segments"] for s in signals_of(cache)] == [[0]]
    cache.reset(0, "signal")
    run(config, spark)
    assert {t.key: t.op for ts in in_topic(config, 2).values() for t in ts} == dict.fromkeys(cache.entries(), "c")


def signals_of(cache: Cache) -> list[dict[str, Any]]:
    """The signals on the signal topic."""
    found = messages(",".join(cache.config["bootstrap.servers"]), cache.topics.signal)
    assert {message.key() for message in found} <= {cache.config["topic.prefix"].encode()}
    return [canonical.loads(message.value(), "signal") for message in found]


def test_checkpoint_of_another_topic_is_refused(
    config: Config, kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    run_on(config, spark)
    other = configured(kafka, prefix + "x", tmp_path)
    Cache(other)
    with pytest.raises(CheckpointError, match=r"belongs to topic .*delete this one"):
        run(other, spark)
    more = configured(kafka, prefix, tmp_path, segment_count=16)
    with pytest.raises(CheckpointError, match="belongs to segments 8, not to 16"):
        run(more, spark)


@pytest.mark.slow
def test_checkpoint_of_an_earlier_version_goes_on(config: Config, spark: SparkSession) -> None:
    cache = Cache(config)
    run(config, spark)
    scenes.scripted(cache)
    run(config, spark)
    removed: set[str] = set()
    place = Path(config["diff.checkpoint.location"])
    (place / "begun.json").unlink()  # a file of later versions
    for path in place.rglob("*.json"):
        if path.name != "progress.json":
            found = json.loads(path.read_text())
            state = found.get("state", found)
            for name in ("kept", "newest_ms"):  # fields of later versions
                del state[name]
            removed.add(str(path.relative_to(place)))
            path.write_text(json.dumps(found))
    assert {"start.json"} < removed
    cache.put(cache.key(0, 0), b"later")
    run(config, spark)
    check(cache, config)


@pytest.mark.slow
def test_checkpoint_of_another_layout_is_refused(config: Config, spark: SparkSession) -> None:
    cache = run_on(config, spark)
    cache.put(cache.key(0, 0), b"told")
    run(config, spark)
    path = Path(config["diff.checkpoint.location"]) / "start.json"
    found = json.loads(path.read_text())
    for layout in (found["layout"] - 1, found["layout"] + 1):
        path.write_text(json.dumps({"layout": layout, "of": "which nothing else is known"}))
        with pytest.raises(CheckpointError, match=rf"has layout {layout}, this version knows 2: delete it"):
            run(config, spark)
    shutil.rmtree(path.parent)
    run(config, spark)  # the remedy
    check(cache, config)


def run_on(config: Config, spark: SparkSession) -> Cache:
    cache = Cache(config)
    run(config, spark)
    return cache


def test_topic_created_anew_is_refused(config: Config, spark: SparkSession) -> None:
    cache = run_on(config, spark)
    for topic in (config.topics.changes, config.topics.positions, config.topics.signal):
        cache.admin.delete_topics([topic])[topic].result(30)
    Cache(config)
    with pytest.raises(CheckpointError, match="belongs to topic_id"):
        run(config, spark)


def test_two_jobs(config: Config, spark: SparkSession, tmp_path: Path) -> None:
    cache = run_on(config, spark)
    first = DiffJob(config, spark).start()
    try:
        with pytest.raises(BusyError, match="another diff job uses the checkpoint"):
            run(config, spark)
    finally:
        first.stop()
    run(configured_again(config, tmp_path), spark)  # continues the diff topic
    cache.put(cache.key(0, 0), b"v")
    with pytest.raises(BusyError, match="written with another checkpoint"):
        run(config, spark)


def test_who_goes_on_while_another_one_starts_writes_nothing(
    config: Config, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has fenced it, and has not written yet: a fenced producer is replaced."""
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"1")
    cache.reset(0)
    first = DiffJob(config, spark).start()
    waiting(lambda: in_topic(config, 2), 60, "the first entry")
    real = Planner._fold

    def slow(self: Planner, *args: Any) -> Any:
        found = real(self, *args)
        cache.put(cache.key(0, 0), b"2")
        with pytest.raises(BusyError, match=r"another diff job .* writes"):
            first.await_termination(60)
        return found

    monkeypatch.setattr(Planner, "_fold", slow)
    again = configured_again(config, tmp_path)
    try:
        run(again, spark)
    finally:
        first.stop()
    assert [(t.op, t.after and t.after.value) for t in in_topic(again, 2)[0]] == [("c", b"1"), ("u", b"2")]


def test_a_start_that_was_not_finished_is_planned_anew_behind_another_job(
    config: Config, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"1")
    with monkeypatch.context() as patch:
        die(patch, "batches.checkpoint.Checkpoint.write_plan", True)
        with pytest.raises(Killed):
            run(config, spark)
    other = configured_again(config, tmp_path)
    run(other, spark)
    cache.put(cache.key(0, 0), None)
    run(other, spark)
    before = in_topic(config, 2)
    run(config, spark)
    assert in_topic(config, 2) == before


def test_a_start_whose_rows_cannot_be_written_does_not_count(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was planned with a tolerance that it has no more."""
    letters = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": f"{prefix}.dlq"}
    tolerant = configured(kafka, prefix, tmp_path, on_data_loss="reset", **letters)
    cache = Cache(tolerant)
    cache.put(cache.key(0, 0), b"v")
    cache.garble(cache.key(0, 1))
    with monkeypatch.context() as patch:
        die(patch, "batches.checkpoint.Checkpoint.write_plan", True)
        with pytest.raises(Killed):
            run(tolerant, spark)
    with pytest.raises(RecordError, match=r"stop what else writes"):
        run(configured(kafka, prefix, tmp_path, on_data_loss="reset"), spark)
    run(tolerant, spark)
    assert [t.key for t in in_topic(tolerant, 2)[0]] == [cache.key(0, 0)]


@pytest.mark.parametrize("renamed", [True, False])
def test_a_diff_topic_that_is_another_one_is_refused(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, renamed: bool
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"v")
    run(config, spark)
    topic = config.topics.diff
    if renamed:
        config = configured(kafka, prefix, tmp_path, diff_topic=f"{topic}2")
    else:
        cache.admin.delete_topics([topic])[topic].result(30)
        waiting(lambda: topic not in cache.admin.list_topics(timeout=10).topics, 30, "the end of the topic")
    with pytest.raises(CheckpointError, match=r"belongs to diff(_id)? .*delete this one"):
        run(config, spark)
    more = {"diff_topic": f"{topic}2"} if renamed else {}
    config = configured(kafka, prefix, tmp_path, diff_checkpoint_location=str(tmp_path / "cp2"), **more)
    run(config, spark)
    assert [t.key for t in in_topic(config, 2)[0]] == [cache.key(0, 0)]


def test_fewer_segments_than_the_nodes_have_are_refused(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    two = {"topic_creation_default_partitions": 2}
    cache = Cache(configured(kafka, prefix, tmp_path, **two))
    for segment in range(8):
        cache.reset(segment)
    few = configured(kafka, prefix, tmp_path, segment_count=4, **two)
    with pytest.raises(CheckpointError, match=r"knows segment 7, and segment\.count is 4"):
        run(few, spark)


def test_another_number_of_segments_than_the_cache_has_is_refused(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    cache = Cache(configured(kafka, prefix, tmp_path))
    cache.claim(5)
    more = configured(kafka, prefix, tmp_path, segment_count=256)
    with pytest.raises(CheckpointError, match=r"has segment\.count=8, and here it is 256: set segment\.count=8"):
        run(more, spark)


def test_large_rows_of_a_reset_do_not_go_through_the_driver(
    config: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch in which the reset ends is small; what it brings is not."""
    monkeypatch.setattr(DiffJob, "SMALL_BYTES", 100_000)
    cache = Cache(config)
    for number in range(3):
        cache.put(cache.key(0, number), b"%d" % number * 50_000)
    run(config, spark)  # neither do those of a start
    for number in range(3):
        cache.put(cache.key(0, number), b"x%d" % number * 50_000, lost=True)
    cache.begin(0)
    cache.rows(0)
    run(config, spark)
    cache.end(0)
    run(config, spark)
    states = (Path(config["diff.checkpoint.location"]) / "state").glob("*.json")
    last = max((json.loads(path.read_text()) for path in states), key=lambda state: int(state["number"]))
    assert (last["rows"], last["small"]) == (3, False)
    assert {t.key: t.after for t in in_topic(config, 2)[0]} == cache.entries()


def test_lost_group_offset_stops_the_job(config: Config, spark: SparkSession) -> None:
    cache = run_on(config, spark)
    cache.admin.delete_consumer_groups([config.topics.diff_group])[config.topics.diff_group].result(30)
    cache.put(cache.key(0, 0), b"v")
    with pytest.raises(CheckpointError, match="holds no offset"):
        run(config, spark)


def commits(config: Config) -> int:
    """How many offsets and markers Kafka has of the job's group, and of others that share its partition."""
    topic, group, number = "__consumer_offsets", config.topics.diff_group, 0
    for character in group:  # as Java's `hashCode`
        number = (31 * number + ord(character)) % 2**32
    signed = number - 2**32 if number >= 2**31 else number
    with closing(Consumer({"bootstrap.servers": ",".join(config["bootstrap.servers"]), "group.id": "none"})) as reader:
        count = len(reader.list_topics(topic, 20).topics[topic].partitions)
        return reader.get_watermark_offsets(TopicPartition(topic, abs(signed) % count), timeout=20)[1]


def test_a_job_that_runs_for_a_minute_a_day_renews_its_offsets(config: Config, spark: SparkSession) -> None:
    run_on(config, spark)
    before = commits(config)
    run(config, spark)
    assert commits(config) >= before + 4  # on two partitions an offset, and a marker


def test_a_job_renews_its_offsets_while_nothing_changes(
    config: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_job, "_RENEW_SECONDS", 0.2)
    cache = run_on(config, spark)
    monkeypatch.setattr(diff_job, "_LOOK_SECONDS", 0.1)
    job = DiffJob(config, spark).start()
    try:
        marks = [job._writer.stored(partition) for partition in range(2)]
        before = commits(config)
        waiting(lambda: commits(config) >= before + 8, 60, "two renewals")
    finally:
        job.stop()
    writer = Writer(config, renderer_of(config))
    assert [writer.stored(partition) for partition in range(2)] == marks
    with pytest.raises(BusyError, match="another diff job"):
        writer.renew([0], "of another job")
    writer.close()
    cache.put(cache.key(0, 0), b"v")
    run(config, spark)
    check(cache, config)


def aged(config: Config, ms: int) -> None:
    """The job's states become that much older."""
    for path in (Path(config["diff.checkpoint.location"]) / "state").glob("*.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"written_ms": content["written_ms"] - ms}))


def test_not_the_age_of_the_state_but_that_of_what_is_unread_makes_a_job_start_over(
    config: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again = "what is unread is older than reader.max.lag.ms: starting over from the base offsets"
    cache = run_on(config, spark)
    for key in (cache.key(0, 0), cache.key(7, 0)):
        cache.put(key, b"first")
    run(config, spark)
    aged(config, 2 * int(config["reader.max.lag.ms"]))
    cache.put(cache.key(0, 0), b"young")
    run(config, spark)
    assert again not in caplog.messages

    aged(config, 2 * int(config["reader.max.lag.ms"]))
    run(config, spark)  # nothing is unread
    assert again not in caplog.messages
    for behind in (False, True):
        ends = job_ends(config)
        found = {partition: end + 1 if behind else -1 for partition, end in ends.items()}
        aged(config, 2 * int(config["reader.max.lag.ms"]))
        cache.put(cache.key(0, 0), b"later")
        monkeypatch.setattr(Cluster, "since", lambda *_, found=found: found)
        caplog.clear()
        run(config, spark)
        assert again in caplog.messages
        assert job_ends(config) != ends
    rows = held(in_topic(config, cache.partitions))
    assert {key: row.value for key, row in rows.items()} == {k: entry.value for k, entry in cache.entries().items()}


def job_ends(config: Config) -> dict[int, int]:
    state = Checkpoint(config["diff.checkpoint.location"]).now()
    assert state is not None
    return dict(state.end)


@pytest.mark.parametrize("again", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_diff_topic_that_is_deleted_ends_an_idle_job(
    config: Config, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(diff_job, "_LOOK_SECONDS", 0.1)
    cache, topic = run_on(config, spark), config.topics.diff
    job = DiffJob(config, spark).start()
    try:
        cache.admin.delete_topics([topic])[topic].result(30)
        if again:
            made = NewTopic(topic, num_partitions=2, replication_factor=1)
            waiting(lambda: topic not in cache.admin.list_topics(timeout=20).topics, 30, "the end of the topic")
            cache.admin.create_topics([made])[topic].result(30)
        why = "was deleted and made again: delete the checkpoint" if again else "was deleted: delete the checkpoint"
        with pytest.raises(CheckpointError, match=why):
            job.await_termination(60)
    finally:
        job.stop()


def test_topics_that_do_not_fit(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = configured(kafka, prefix, tmp_path, reader_max_lag_ms=1_000_000_000)
    Cache(config)
    with pytest.raises(TopicError, match=r"min\.compaction\.lag\.ms"):
        run(config, spark)
    config = configured(kafka, prefix, tmp_path)
    job = DiffJob(config, spark)
    job._checkpoint.lock()
    job.stop()
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(config.topics.diff, num_partitions=3)])[config.topics.diff].result(30)
    with pytest.raises(TopicError, match="3 partitions"):
        run(config, spark)


@pytest.mark.slow
def test_schemas_and_no_tombstones(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    fields = {
        "key_converter_schemas_enable": True,
        "value_converter_schemas_enable": True,
        "tombstones_on_delete": False,
        "cache_value_format": "json",
    }
    config = configured(kafka, prefix, tmp_path, **fields)
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b'{"a":1}')
    cache.put(cache.key(0, 0), None)
    cache.put(cache.key(0, 0), b"[]", lost=True)
    cache.reset(0)
    run(config, spark)
    check(cache, config)
    schemas = [json.loads(r.value or b"")["schema"] for r in read(config, config.topics.diff, 2)]
    assert schemas[0] == schemas[-1]
    source = next(f for f in schemas[0]["fields"] if f["field"] == "source")
    assert "cause" in [f["field"] for f in source["fields"]]


@pytest.mark.parametrize("settings", [{"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}], ids=str)
def test_a_diff_topic_that_would_forget_is_refused(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, settings: dict[str, str]
) -> None:
    """The topic was created by others, with the broker's settings. Its records are the only state that there is."""
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    topic = NewTopic(config.topics.diff, num_partitions=2, replication_factor=1, config=settings)
    cache.admin.create_topics([topic])[config.topics.diff].result(30)
    with pytest.raises(TopicError, match=r"set cleanup\.policy=compact and min\.compaction\.lag\.ms to"):
        run(config, spark)


def test_a_diff_topic_that_forgets_deletes_soon_is_told(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache, lag = Cache(config), str(config["reader.max.lag.ms"])
    settings = {"cleanup.policy": "compact", "min.compaction.lag.ms": lag, "delete.retention.ms": "1000"}
    topic = NewTopic(config.topics.diff, num_partitions=2, replication_factor=1, config=settings)
    cache.admin.create_topics([topic])[config.topics.diff].result(30)
    run(config, spark)
    assert [m.partition(":")[2][:25] for m in caplog.messages if m.startswith("topic")] == [" delete.retention.ms=1000"]


def test_a_start_that_was_planned_for_another_topic_is_planned_anew(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start ended after its plan, and had a wrong prefix, which was then corrected."""
    first, second = (configured(kafka, f"{prefix}{n}", tmp_path) for n in range(2))
    for config, value in ((first, b"1"), (second, b"2")):
        cache = Cache(config)
        cache.put(cache.key(0, 0), value)
    with monkeypatch.context() as patched:
        die(patched, "batches.checkpoint.Checkpoint.finish_start", behind=False)
        with pytest.raises(Killed):
            run(first, spark)
    run(second, spark)
    assert {key: stored.value for key, stored in held(in_topic(second, 2)).items()} == {cache.key(0, 0): b"2"}
