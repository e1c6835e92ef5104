"""Changes that cannot be decoded: if that is configured, each becomes one dead letter and is skipped afterwards."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deelog_schemas.config import Config, parse
from deelog_schemas.envelope import Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.header import HEADER_NAME, Kind, node_number, pack
from deelog_schemas.operation import Operation, Reason
from tests.spark.reference import dead_letters, held, in_parquet, in_topic, places, unordered
from tests.spark.scenes import Carried
from tests.spark.test_diff_job import Killed, configured, die, run, signals_of, table
from tests.spark.test_diff_loss import cut
from tests.spark.test_status import asked
from tests.support.changes import MEMBER, Cache
from tests.support.kafka import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = pytest.mark.parametrize(
    "size", [20_000, pytest.param(0, marks=pytest.mark.slow)], ids=["by the driver", "by executors"]
)


def tolerant(kafka: Broker, prefix: str, tmp_path: Path, **more: Any) -> Config:
    """All sinks, and a dead-letter topic."""
    fields = {
        "errors_tolerance": "all",
        "errors_deadletterqueue_topic_name": f"{prefix}.dlq",
    }
    return configured(kafka, prefix, tmp_path, **{**fields, **more})


def change(cache: Cache, segment: int, raw: bytes, value: bytes | None, kind: Kind = Kind.CHANGE) -> int:
    """Writes a record with any key and value at the segment's next position. Returns its offset."""
    live = cache.live[segment]
    live.sequence += 1
    offsets: list[int] = []
    with cache.batch():
        cache.produce(
            segment, kind, (live.epoch, live.sequence), raw, value, [("trace", b"t-%d" % live.sequence)], offsets.append
        )
    cache._producer.flush(30)
    return offsets[0]


def broken(cache: Cache, segment: int, number: int, value: bytes = b"{broken") -> int:
    """A change of a key with a value that is not JSON."""
    return change(cache, segment, cache.codec.key(cache.key(segment, number)), value)


def envelope(cache: Cache, segment: int, number: int) -> bytes:
    """A valid envelope."""
    operation = Operation(1, 1, Reason.PUT, cache.key(segment, number), b"unseen", None, 0, False)
    return cache.codec.change(operation, Stamp(segment, "n1", 5))


def values(config: Config, segment: int) -> list[tuple[str, bytes | None]]:
    """Op and new value of the differences of a segment."""
    return [(t.op, t.after and t.after.value) for t in in_topic(config, 2).get(segment, [])]


def check_sinks(config: Config) -> None:
    """All sinks have the content of the diff topic."""
    told = in_topic(config, 2)
    assert unordered(in_parquet(Path(config["diff.parquet.path"]))) == unordered(told)
    assert table(config) == held(told)


@SIZES
def test_letters(
    kafka: Broker,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    carried_by_driver: Carried,
    caplog: pytest.LogCaptureFixture,
    size: int,
) -> None:
    """The letters are the original records. Every sink has the others, and the keys keep their last good values."""
    carried_by_driver(size)
    config = tolerant(kafka, prefix, tmp_path)
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"good")
    whole = envelope(cache, 0, 0)
    raw = cache.codec.key(cache.key(0, 0))
    wanted = [
        (raw, b"{broken", "VALUE_CONVERTER"),
        (raw, b"{}", "VALUE_CONVERTER"),
        (raw, whole[:-1], "VALUE_CONVERTER"),  # its `after` is complete
        (raw, whole.replace(b'"op":"c"', b'"op":"r"'), "VALUE_CONVERTER"),
        (b"no key", whole, "KEY_CONVERTER"),
        (b'{"key":7}', None, "KEY_CONVERTER"),
    ]
    offsets = [change(cache, 0, k, v, Kind.CHANGE if v is not None else Kind.TOMBSTONE) for k, v, _ in wanted]
    cache.put(cache.key(0, 1), b"behind")
    with caplog.at_level(logging.WARNING, "deelog.diff"):
        told = run(config, spark)
    assert values(config, 0) == [("c", b"good"), ("c", b"behind")]
    check_sinks(config)
    assert told["dead_letters"] == len(wanted)
    assert f"{config.topics.changes}[0]@{offsets[0]}: the record value is not JSON" in caplog.text
    assert f"6 records cannot be decoded and were put on {prefix}.dlq" in caplog.text
    found = dead_letters(config)
    assert [(m.key(), m.value()) for m in found] == [(k, v) for k, v, _ in wanted]
    node = node_number(MEMBER)
    for number, (message, offset, (_, value, stage)) in enumerate(zip(found, offsets, wanted, strict=True)):
        kind = Kind.TOMBSTONE if value is None else Kind.CHANGE
        headers = message.headers()
        reason, part = headers.pop(), "Keys" if stage == "KEY_CONVERTER" else "Codec"
        assert reason[0] == "__connect.errors.exception.message"
        assert (b"the record key" if stage == "KEY_CONVERTER" else b"") in reason[1]
        assert headers == [
            (HEADER_NAME, pack(kind, 0, 1, 2 + number, node)),
            ("trace", b"t-%d" % (2 + number)),
            ("__connect.errors.topic", config.topics.changes.encode()),
            ("__connect.errors.partition", b"0"),
            ("__connect.errors.offset", b"%d" % offset),
            ("__connect.errors.stage", stage.encode()),
            ("__connect.errors.class.name", f"deelog_schemas.envelope.Json{part}".encode()),
            ("__connect.errors.exception.class.name", b"deelog_schemas.errors.RecordError"),
        ]
    assert signals_of(cache) == [], "on.data.loss is fail"
    assert "6 dead letters" in asked(config, tmp_path).output
    cache.put(cache.key(0, 0), b"good again")
    assert run(config, spark)["dead_letters"] == len(wanted)
    assert len(dead_letters(config)) == len(wanted)


@pytest.mark.slow
def test_the_first_of_a_batch_is_logged(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    config = tolerant(kafka, prefix, tmp_path)
    cache = Cache(config)
    run(config, spark)
    offsets = [broken(cache, 0, number) for number in range(3)]
    with caplog.at_level(logging.WARNING, "deelog.diff"):
        run(config, spark)
    assert [f"[0]@{offset}: the record value is not JSON" in caplog.text for offset in offsets] == [True, False, False]
    assert "3 records cannot be decoded" in caplog.text


@pytest.mark.slow
@SIZES
def test_reset_behind_one_in_the_same_batch(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried, size: int
) -> None:
    """The reset's row is compared with the key's last good value. The next reset does not read the record again."""
    carried_by_driver(size)
    config = tolerant(kafka, prefix, tmp_path)
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"same")
    cache.put(cache.key(0, 1), b"old")
    run(config, spark)
    offsets = [broken(cache, 0, 0), broken(cache, 0, 1), change(cache, 0, b"no key", envelope(cache, 0, 0))]
    whole = envelope(cache, 0, 1)
    offsets.append(broken(cache, 0, 1, whole[:-1]))
    cache.put(cache.key(0, 1), b"new", lost=True)
    cache.reset(0)
    told = run(config, spark)
    assert told["resets_rows"] == {"c": 2, "u": 1, "d": 0}, "two of the start"
    assert values(config, 0) == [("c", b"same"), ("c", b"old"), ("u", b"new")]
    assert places(config) == [(0, offset) for offset in offsets]
    check_sinks(config)
    cache.put(cache.key(0, 1), b"newer", lost=True)
    cache.reset(0)
    run(config, spark)
    assert values(config, 0)[3:] == [("u", b"newer")]


@SIZES
@pytest.mark.parametrize("kind", [Kind.CHANGE, pytest.param(Kind.READ, marks=pytest.mark.slow)])
def test_inside_a_reset_it_stops(
    kafka: Broker,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    carried_by_driver: Carried,
    size: int,
    kind: Kind,
) -> None:
    """It stops the job, and any start that reads it, even at its base: count and digest would not match."""
    carried_by_driver(size)
    config = tolerant(kafka, prefix, tmp_path)
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"v")
    run(config, spark)
    cache.begin(0)
    cache.rows(0)
    offset = change(cache, 0, cache.codec.key(cache.key(0, 0)), b"{broken", kind)
    cache.end(0)
    again = tolerant(kafka, prefix, tmp_path / "again")
    for which in (config, config, again):
        with pytest.raises(RecordError, match=rf"\[0\]@{offset}: the record value is not JSON"):
            run(which, spark)
    assert dead_letters(config) == []


@pytest.mark.slow
@SIZES
def test_what_is_not_ours_stops_whatever_the_tolerance(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried, size: int
) -> None:
    carried_by_driver(size)
    ours = [(HEADER_NAME, pack(Kind.CHANGE, 0, 1, 9, 0))]
    for number, (keyed, value, headers) in enumerate([(True, b"{}", []), (True, None, ours), (False, b"{}", ours)]):
        config = tolerant(kafka, f"{prefix}{number}", tmp_path / str(number))
        cache = Cache(config, cleanup="compact" if keyed else "delete")  # compaction needs keys
        run(config, spark)
        with cache.batch():
            cache.raw(cache.topics.changes, 0, cache.codec.key(b"x") if keyed else None, value, headers)
        with pytest.raises(RecordError, match=r"\[0\]@0: "):
            run(config, spark)
        assert dead_letters(config) == [], number


@pytest.mark.slow
def test_a_walk_that_was_cut_short_is_no_plan(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, carried_by_driver: Carried
) -> None:
    """A partition stops at a change that cannot be passed on, while a reset ends on the other one. The records after it
    are not lost if such changes are made dead letters later."""
    carried_by_driver(0)
    strict = tolerant(kafka, prefix, tmp_path, errors_tolerance="none")
    cache = Cache(strict)
    for segment in (0, 5):
        for number in range(3):
            cache.put(cache.key(segment, number), b"v")
    run(strict, spark)
    cache.put(cache.key(5, 0), None, lost=True)
    key = cache.key(7, 0)
    with cache.batch():
        cache.reset(0)
        broken(cache, 6, 0)
        for number in range(2500):  # more than one read returns
            cache.put(key, b"%d" % number)
        cache.reset(5)
    with pytest.raises(RecordError, match="is not a Debezium envelope of ours"):
        run(strict, spark)
    plans = Path(strict["diff.checkpoint.location"]) / "plans"
    assert [path.name for path in plans.glob("[0-9]*.json") if int(path.stem) > 0] == []
    lenient = tolerant(kafka, prefix, tmp_path)
    run(lenient, spark)
    assert len(dead_letters(lenient)) == 1
    assert values(lenient, 5)[-1] == ("d", None)
    told = {key: stored.value for key, stored in held(in_topic(lenient, 2)).items()}
    assert told == {key: entry.value for key, entry in cache.entries().items()}


POINTS = [
    ("batches.checkpoint.Checkpoint.write_plan", True),
    ("sinks.kafka.Writer.write", False),
    ("sinks.kafka.Writer.write", True),
    ("sinks.parquet.ParquetSink.write", False),
    ("sinks.jdbc.JdbcSink._land", True),
    ("batches.checkpoint.Checkpoint.write_state", False),
    ("batches.checkpoint.Checkpoint.write_state", True),
]


@pytest.mark.slow
def test_each_once_wherever_the_job_ends(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tolerant(kafka, prefix, tmp_path)
    cache = Cache(config)
    run(config, spark)
    wanted = []
    for number, point in enumerate(POINTS):
        cache.put(cache.key(0, number), b"v")
        wanted.append((0, broken(cache, 0, number)))
        wanted.append((1, broken(cache, 4, number)))
        with monkeypatch.context() as patch:
            die(patch, *point)
            with pytest.raises(Killed):
                run(config, spark)
    assert run(config, spark)["dead_letters"] == len(wanted)
    assert places(config) == sorted(wanted)
    check_sinks(config)


START_POINTS = [
    ("batches.checkpoint.Checkpoint.write_plan", True),
    ("sinks.kafka.Writer.write", False),
    ("sinks.kafka.Writer.write", True),
    ("batches.checkpoint.Checkpoint.finish_start", False),
    ("batches.checkpoint.Checkpoint.finish_start", True),
]


@pytest.mark.slow
@SIZES
def test_start_over_a_topic_that_holds_some(
    kafka: Broker,
    prefix: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    carried_by_driver: Carried,
    size: int,
) -> None:
    """The first start makes them dead letters, wherever it ends; a later one only those that came since."""
    carried_by_driver(size)
    config = tolerant(kafka, prefix, tmp_path, on_data_loss="reset")
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"good")
    wanted = [(0, broken(cache, 0, 0)), (0, broken(cache, 0, 1)), (1, broken(cache, 4, 0))]
    cache.put(cache.key(0, 1), b"behind")
    for point in START_POINTS:
        with monkeypatch.context() as patch:
            die(patch, *point)
            with pytest.raises(Killed):
                run(config, spark)
    told = run(config, spark)
    assert (told["dead_letters"], places(config)) == (3, wanted)
    assert values(config, 0) == [("c", b"good"), ("c", b"behind")]
    assert signals_of(cache)[-1]["data"]["segments"] == [0, 4]
    many = len(signals_of(cache))
    wanted.append((0, broken(cache, 0, 0, envelope(cache, 0, 0)[:-1])))
    for folder in ("again", "more"):
        told = run(tolerant(kafka, prefix, tmp_path / folder, on_data_loss="reset"), spark)
        assert told["dead_letters"] == (1 if folder == "again" else 0)
        assert places(config) == sorted(wanted)
        assert len(signals_of(cache)) == many + 1
    assert values(config, 0) == [("c", b"good"), ("c", b"behind")]


@pytest.mark.slow
def test_start_where_only_the_diff_topic_knows_the_last_good_value(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The head of the log is gone, and with it the record of key 2. A delete that is still there counts."""
    config = tolerant(kafka, prefix, tmp_path)
    cache = Cache(config, cleanup="compact,delete")
    for number in range(3):
        cache.put(cache.key(0, number), b"v")
    run(config, spark)
    cut(cache)
    broken(cache, 0, 0)
    cache.put(cache.key(0, 1), None)
    broken(cache, 0, 1)
    run(tolerant(kafka, prefix, tmp_path / "again"), spark)
    assert [(t.op, t.key) for t in in_topic(config, 2)[0]] == [
        *(("c", cache.key(0, number)) for number in range(3)),
        ("d", cache.key(0, 1)),
    ]


@pytest.mark.slow
def test_asked_for_once_and_repaired(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    config = tolerant(kafka, prefix, tmp_path, on_data_loss="reset")
    cache = Cache(config)
    run(config, spark)
    cache.put(cache.key(0, 0), b"v")
    broken(cache, 0, 0)
    cache.put(cache.key(0, 0), b"w", lost=True)
    run(config, spark)
    assert [s["data"]["segments"] for s in signals_of(cache)] == [[0]]
    cache.reset(0, "signal")
    run(config, spark)
    assert values(config, 0) == [("c", b"v"), ("u", b"w")]
    assert len(signals_of(cache)) == 1
    check_sinks(config)


@pytest.mark.parametrize("sink", ["parquet", "jdbc"])
def test_a_key_that_a_sink_cannot_decode_is_said_with_its_place_and_a_way_on(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, sink: str
) -> None:
    """The diff topic takes the key as it is; the other sinks need to read it."""
    name = "diff.jdbc.url" if sink == "parquet" else "diff.parquet.path"
    config, lenient = (
        parse({field: value for field, value in both.raw.items() if field != name}, "diff")
        for both in (configured(kafka, prefix, tmp_path), tolerant(kafka, prefix, tmp_path))
    )
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"good")  # a table without a row would be filled from the diff topic
    run(config, spark)
    offset = change(cache, 0, b"no key", envelope(cache, 0, 0))
    cache.put(cache.key(0, 1), b"behind")
    place = re.escape(f"{config.topics.changes}[0]@{offset}: the record key is not a Debezium envelope of ours; ")
    for _ in range(2):
        with pytest.raises(RecordError, match=f"^{place}[^\n]*errors.tolerance=all[^\n]*$"):
            run(config, spark)
    assert run(lenient, spark)["dead_letters"] == 1
    if sink == "jdbc":
        assert set(table(config)) == set(cache.entries())
    else:
        told = in_parquet(Path(config["diff.parquet.path"]))
        assert [t.key for t in told[0]] == [cache.key(0, 0), cache.key(0, 1)]
