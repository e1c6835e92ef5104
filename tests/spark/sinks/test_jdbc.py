"""The jdbc sink with real databases: a SQLite file and a PostgreSQL server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deelog_schemas.config import Config
from deelog_spark import DiffJob
from deelog_spark.errors import BusyError, DiffError, SinkError
from deelog_spark.sinks import jdbc
from deelog_spark.sinks.jdbc import JdbcSink
from tests.spark import scenes
from tests.spark.processes import WAIT
from tests.spark.reference import expected, held, in_topic
from tests.spark.scenes import Carried
from tests.spark.tables import Database, OnPostgres, Sqlite, in_table, in_table_now
from tests.spark.test_diff_job import run
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker
from tests.support.postgres import PASSWORD, Postgres, running_postgres
from tests.support.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRY = "struct<key:string,value:string,expires_at:bigint>"
ROWS = (
    f"cache string, segment int, op string, key string, before {ENTRY}, after {ENTRY}, epoch bigint, sequence bigint, "
    "cause string, ts timestamp, partition int, offset bigint"
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests: the prefix keeps their rows apart."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Sqlite(tmp_path / "table.db")
    return OnPostgres(request.getfixturevalue("postgres"))


def configured(bootstrap: str, prefix: str, tmp_path: Path, database: Database, **more: Any) -> Config:
    return config_of(bootstrap, prefix, str(tmp_path / "cp"), **{**database.fields, **more})


def without_table(bootstrap: str, prefix: str, tmp_path: Path) -> Config:
    """The same job without the jdbc sink."""
    return config_of(bootstrap, prefix, str(tmp_path / "cp"))


def on_one_table(config: Config, database: Database) -> None:
    """The table is what the reference tells, or the diff topic, which start overs have a say in."""
    assert in_table(database, config) == held(in_topic(config, 2))


# -- against the reference -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [20_000, pytest.param(0, marks=pytest.mark.slow)], ids=["by the driver", "by executors"]
)
def test_what_the_cache_holds(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, postgres: Postgres, size: int,
    carried_by_driver: Carried,
) -> None:  # fmt: skip
    carried_by_driver(size)
    database = OnPostgres(postgres)
    config = configured(kafka.bootstrap, prefix, tmp_path, database, diff_max_offsets_per_trigger=150)
    cache = Cache(config)
    run(config, spark)
    assert in_table(database, config) == {}
    scenes.scripted(cache)
    scenes.close(cache)
    player = scenes.Player(cache, 5)
    for _ in range(20):
        player.turn()
    player.finish()
    run(config, spark)
    found = in_table(database, config)
    assert found == held(expected(config, cache.partitions))
    assert {k: (s.value, s.expires_at) for k, s in found.items()} == {
        k: (e.value, e.expires_at) for k, e in cache.entries().items()
    }


@pytest.mark.slow
def test_many_rows_of_a_key_in_one_batch(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    config = configured(kafka.bootstrap, prefix, tmp_path, database)
    cache = Cache(config)
    key = cache.key
    run(config, spark)
    for n in range(3):
        cache.put(key(0, n), b"v", expires_at=1_800_000_000_000 + n)
    run(config, spark)
    assert {s.expires_at for s in in_table(database, config).values()} == {1_800_000_000_000 + n for n in range(3)}
    for n in range(3):  # all of it in one batch: only the last one counts
        cache.put(key(0, n), None)
        cache.put(key(0, n), b"again")
    cache.put(key(0, 1), None)
    cache.put(key(0, 3), b"short-lived")
    cache.put(key(0, 3), None)
    scenes.two_resets(cache, 1)
    scenes.two_resets(cache, 4)
    cache.live[4].entries.clear()
    cache.reset(4, "restart")  # deletes at the very positions of what it deletes
    run(config, spark)
    found = in_table(database, config)
    assert found == held(expected(config, cache.partitions))
    assert sorted(found) == sorted(cache.entries())
    assert (found[key(0, 0)].value, found[key(0, 0)].expires_at) == (b"again", None)


ODD = ["'; drop table deelog_entries; --", '"', "a", "A", "a ", " a", "\\x00", "%", "_", "a\tb\r\n", "ß\U0001f600é",
       "e\u0301", "{\"key\":1}", "?", "null", "0", "x" * 2000]  # fmt: skip


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True)
def test_odd_keys_and_large_values(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    config = configured(kafka.bootstrap, prefix, tmp_path, database)
    cache = Cache(config)
    run(config, spark)
    for n, key in enumerate(ODD):
        cache.put(key.encode(), f"{n} '\\ {key}".encode())
    cache.put(b"large", b"0123456789" * 95_000)
    cache.put(b"large too", "ü€\U0001f600'\\\n".encode() * 60_000, expires_at=1)
    cache.put(b"empty", b"")
    run(config, spark)
    assert in_table(database, config) == held(expected(config, cache.partitions))
    for key in ODD[::2]:
        cache.put(key.encode(), None)
    run(config, spark)
    found = in_table(database, config)
    assert found == held(expected(config, cache.partitions))
    assert len(found) == len(ODD) // 2 + 3


@pytest.mark.parametrize("database", ["postgres", pytest.param("sqlite", marks=pytest.mark.slow)], indirect=True)
def test_bytes_in_a_schema(kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, database: Database) -> None:
    schema = "main"
    if isinstance(database, OnPostgres):
        schema = "deep"
        database.run("create schema if not exists deep")
    table = {"diff_jdbc_table": f"{schema}.raw_entries"}
    config = configured(
        kafka.bootstrap, prefix, tmp_path, database, cache_key_format="bytes", cache_value_format="bytes", **table
    )
    cache = Cache(config)
    run(config, spark)
    for key in (b"\x00", b"\xff\xfe", b"a"):
        cache.put(key, key + b"\x00\xff")
    cache.put(b"\x00", None)
    run(config, spark)
    assert in_table(database, config) == held(expected(config, cache.partitions))
    with pytest.raises(SinkError, match=r"raw_entries.*has other columns .*name another table"):
        run(configured(kafka.bootstrap, prefix, tmp_path, database, **table), spark)


@pytest.mark.slow
def test_caches_share_a_table(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    configs = [configured(kafka.bootstrap, f"{prefix}{n}", tmp_path / str(n), database) for n in range(2)]
    caches = [Cache(config) for config in configs]
    for cache, config in zip(caches, configs, strict=True):
        cache.put(b"same", config["topic.prefix"].encode())
        cache.put(b"gone", b"v")
        run(config, spark)
    caches[0].put(b"gone", None)
    run(configs[0], spark)
    assert {k: s.value for k, s in in_table(database, configs[0]).items()} == {b"same": f"{prefix}0".encode()}
    assert {k: s.value for k, s in in_table(database, configs[1]).items()} == {
        b"same": f"{prefix}1".encode(),
        b"gone": b"v",
    }


# -- filled from the diff topic --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_that_is_behind_is_filled(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    """The sink switched on later, another table, a table emptied, one from a backup, and a start over."""
    config = configured(kafka.bootstrap, prefix, tmp_path, database)
    without = without_table(kafka.bootstrap, prefix, tmp_path)
    other = configured(kafka.bootstrap, prefix, tmp_path, database, diff_jdbc_table="other_entries")
    mine = f"topic_prefix = '{prefix}'"
    cache = Cache(config)
    run(without, spark)
    for segment in range(8):
        cache.put(cache.key(segment, 0), b"v")
    cache.put(cache.key(0, 1), b"v")
    cache.put(cache.key(0, 1), None)
    run(without, spark)
    run(config, spark)
    on_one_table(config, database)
    assert len(in_table(database, config)) == 8

    (mark,) = database.rows(f"select * from deelog_batches where {mine} and target = 'deelog_entries'")
    cache.put(cache.key(1, 0), None)
    run(other, spark)
    on_one_table(other, database)
    run(config, spark)  # which missed a batch meanwhile
    on_one_table(config, database)

    database.run(f"delete from deelog_entries where {mine}")
    run(config, spark)
    on_one_table(config, database)

    database.run(f"update deelog_entries set value = 'of the backup' where {mine}")
    database.run(f"update deelog_batches set batch = {mark['batch']} where {mine}")
    run(config, spark)
    on_one_table(config, database)

    cache.put(cache.key(2, 0), None)
    cache.put(cache.key(3, 0), b"w")
    again = configured(kafka.bootstrap, prefix, tmp_path / "again", database)
    database.run(f"update deelog_entries set epoch = 99 where {mine}")  # of a cache that has begun anew
    run(again, spark)
    on_one_table(again, database)
    assert len(in_table(database, config)) == 6


# -- marks and positions ---------------------------------------------------------------------------------------------


@pytest.fixture
def sink(prefix: str, tmp_path: Path, spark: SparkSession, database: Database) -> JdbcSink:
    """A sink with an empty table behind batch 0 of checkpoint `cp`."""
    made = JdbcSink(configured("127.0.0.1:1", prefix, tmp_path, database), lambda: spark, lambda: False)
    made.open()
    empty = spark.createDataFrame([], ROWS).selectExpr("*", "after.value AS value", "after.expires_at AS expires_at")
    made.fill(empty, "cp", 0)
    return made


def rows(spark: SparkSession, *told: tuple[str, str | None, tuple[int, int]]) -> DataFrame:
    """Differences as (key, value, position), in the order of their offsets."""
    return spark.createDataFrame(
        [
            ("c", 0, "d" if v is None else "u", k, None, None if v is None else (k, v, None), *p, "change", NOW, 0, n)
            for n, (k, v, p) in enumerate(told)
        ],
        ROWS,
    )


def test_a_batch_that_is_there_is_not_written_again(
    sink: JdbcSink, spark: SparkSession, database: Database, prefix: str
) -> None:
    question = f"select key, value from deelog_entries where topic_prefix = '{prefix}' order by key"
    sink.write(rows(spark, ("a", "1", (1, 1)), ("b", "1", (1, 2))), "cp", 1)
    assert database.rows(question) == [{"key": "a", "value": "1"}, {"key": "b", "value": "1"}]
    database.run(f"update deelog_entries set value = 'seen' where topic_prefix = '{prefix}'")
    sink.write(rows(spark, ("a", "1", (1, 1)), ("b", None, (1, 2))), "cp", 1)
    assert database.rows(question) == [{"key": "a", "value": "seen"}, {"key": "b", "value": "seen"}]
    sink.write(None, "cp", 2)
    sink.write(rows(spark, ("a", "2", (1, 3))), "cp", 2)
    assert database.rows(question) == [{"key": "a", "value": "seen"}, {"key": "b", "value": "seen"}]
    assert sink.holds("cp", 2)
    assert not sink.holds("cp", 3)
    assert not sink.holds("cp", 1), "an older copy of the checkpoint may plan batch 2 with other records"
    assert not sink.holds("other", 2)
    with pytest.raises(BusyError, match=r"filled by another checkpoint \(cp\)"):
        sink.write(rows(spark, ("a", "3", (1, 4))), "other", 9)


def test_a_table_that_has_lost_batches_takes_no_further_one_until_it_is_filled(
    sink: JdbcSink, spark: SparkSession, database: Database, prefix: str
) -> None:
    """The database has failed over to a standby without the last commits, or was restored, while the job runs."""
    mine = f"where topic_prefix = '{prefix}'"
    question = f"select key, value from deelog_entries {mine} order by key"
    sink.write(rows(spark, ("a", "1", (1, 1))), "cp", 1)
    sink.write(rows(spark, ("b", "1", (1, 2))), "cp", 2)
    database.run(f"delete from deelog_entries {mine} and key = 'b'; update deelog_batches set batch = 1 {mine}")
    for batch in (None, rows(spark, ("c", "1", (1, 3)))):
        with pytest.raises(DiffError, match=r"deelog_entries has batch 1 .*start the job again: it fills") as caught:
            sink.write(batch, "cp", 3)
        assert type(caught.value) is DiffError, "to start again is all that is needed"
    assert database.rows(question) == [{"key": "a", "value": "1"}]
    entries = rows(spark, ("a", "1", (1, 1)), ("b", "1", (1, 2)))
    latest = entries.selectExpr("*", "after.value AS value", "after.expires_at AS expires_at")
    sink.start(None, lambda: latest, "cp", 2)
    sink.write(rows(spark, ("c", "1", (1, 3))), "cp", 3)
    assert database.rows(question) == [{"key": key, "value": "1"} for key in "abc"]


def test_a_row_of_a_higher_position_stays(sink: JdbcSink, spark: SparkSession, database: Database, prefix: str) -> None:
    question = f"select key, value from deelog_entries where topic_prefix = '{prefix}' order by key"
    sink.write(rows(spark, *((key, "new", (2, 5)) for key in "abcdef")), "cp", 1)
    older = [("a", "old", (2, 4)), ("b", None, (2, 4)), ("c", "old", (1, 9)), ("d", None, (1, 9))]
    sink.write(rows(spark, *older, ("e", "same", (2, 5)), ("f", None, (2, 5)), ("g", None, (9, 9))), "cp", 2)
    told = {row["key"]: row["value"] for row in database.rows(question)}
    assert told == {"a": "new", "b": "new", "c": "new", "d": "new", "e": "same"}


def test_an_end_before_the_commit_undoes_the_mark(
    sink: JdbcSink, spark: SparkSession, database: Database, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sink._apply

    def dying(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(sink, "_apply", dying)
    with pytest.raises(KeyboardInterrupt):
        sink.write(rows(spark, ("a", "1", (1, 1))), "cp", 1)
    monkeypatch.undo()
    question = f"select key from deelog_entries where topic_prefix = '{prefix}'"
    assert database.rows(question) == []
    sink.write(rows(spark, ("a", "1", (1, 1))), "cp", 1)
    assert database.rows(question) == [{"key": "a"}]


def test_what_other_attempts_have_staged_counts_for_nothing(
    sink: JdbcSink, spark: SparkSession, database: Database, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sink._stage

    def with_a_zombie(*args: Any) -> str:
        attempt = real(*args)
        table = "deelog_entries_staging"
        database.run(
            f"insert into {table} select 'zombie', op, topic_prefix, cache, segment, 'z', value, expires_at, epoch, "
            f"sequence, ts_us from {table} where attempt = '{attempt}'"
        )
        return attempt

    monkeypatch.setattr(sink, "_stage", with_a_zombie)
    sink.write(rows(spark, ("a", "1", (1, 1))), "cp", 1)
    monkeypatch.undo()
    sink.write(rows(spark, ("b", "1", (1, 2))), "cp", 2)
    question = f"select key from deelog_entries where topic_prefix = '{prefix}' order by key"
    assert database.rows(question) == [{"key": "a"}, {"key": "b"}]
    assert database.rows(f"select key from deelog_entries_staging where topic_prefix = '{prefix}'") == []


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_database_down_for_a_while(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_postgres() as server:
        database = OnPostgres(server)
        config = configured(kafka.bootstrap, prefix, tmp_path, database)
        cache = Cache(config)
        job = DiffJob(config, spark).start()
        try:
            cache.put(b"a", b"before")  # so that a batch without it does not wait for the database
            rows_there = f"select 1 from deelog_entries where topic_prefix = '{prefix}'"
            waiting(lambda: database.rows(rows_there), WAIT, "the table")
            server.stop()
            cache.put(b"a", b"while it is away")
            waiting(lambda: sum(map(len, in_topic(config, 2).values())) == 2, WAIT, "the diff topic")
            server.start()
            waiting(lambda: in_table_now(database, config) == held(in_topic(config, 2)), WAIT, "the table")
            assert not job.await_termination(0)
        finally:
            job.stop()

        # The job makes its sinks by name: no argument reaches them. Speed does not matter, the database stays away.
        monkeypatch.setattr(jdbc, "RETRY_SECONDS", 2.0)
        job = DiffJob(config, spark).start()
        try:
            server.stop()
            cache.put(b"b", b"for longer")
            with pytest.raises(DiffError, match=r"did not answer for 2 s .*start the job again: it goes on") as caught:
                job.await_termination(WAIT)
            assert type(caught.value) is DiffError
        finally:
            job.stop()
        with pytest.raises(DiffError, match="did not answer"):  # and a start says the same
            run(config, spark)
        server.start()
        run(config, spark)
        assert in_table(database, config) == held(expected(config, cache.partitions))
        assert len(in_table(database, config)) == 2


def test_a_locked_file_is_waited_for(prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    database = Sqlite(tmp_path / "table.db")
    config = configured(
        "127.0.0.1:1", prefix, tmp_path, database, diff_jdbc_url=f"{database.fields['diff_jdbc_url']}?busy_timeout=50"
    )
    refused = 0
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:

        def stopping() -> bool:
            """Asked after each attempt that failed."""
            nonlocal refused
            refused += 1
            if refused == 3:
                other.execute("rollback")
            return False

        other.execute("begin exclusive")
        JdbcSink(config, lambda: spark, stopping).open()
    assert refused == 3


def test_an_end_that_is_asked_for_ends_the_waiting(prefix: str, tmp_path: Path, spark: SparkSession) -> None:
    fields = {"diff_jdbc_url": "jdbc:postgresql://127.0.0.1:1/none"}
    stops = iter((False, True))
    sink = JdbcSink(config_of("127.0.0.1:1", prefix, str(tmp_path), **fields), lambda: spark, lambda: next(stops))
    with pytest.raises(DiffError, match="did not answer"):
        sink.open()
    assert next(stops, None) is None, "it waited on"


def test_a_table_that_does_not_fit(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, database: Database
) -> None:
    database.run("create table other_columns (id integer primary key, value text)")
    config = configured(kafka.bootstrap, prefix, tmp_path, database, diff_jdbc_table="other_columns")
    cache = Cache(config)
    cache.put(b"a", b"v")
    said = r'"other_columns" has other columns \(id .*\) than the jdbc sink needs \(topic_prefix text, .*drop this one'
    with pytest.raises(SinkError, match=f"(?i){said}"):
        run(config, spark)
    assert in_topic(config, 2) == {}, "nothing was written before"

    first = configured(kafka.bootstrap, prefix, tmp_path, database)
    sink = JdbcSink(first, lambda: spark, lambda: False)
    sink.open()
    database.run(f"create table without_key ({', '.join(f'{n} {t}' for n, t in sink._types().items())})")
    config = configured(kafka.bootstrap, prefix, tmp_path, database, diff_jdbc_table="without_key")
    with pytest.raises(SinkError, match=r"without_key cannot be written \(.*ON CONFLICT.*\): mend that"):
        run(config, spark)
    for table in ("other_columns", "without_key", "without_key_staging"):
        database.run(f"drop table if exists {table}")
    run(first, spark)
    assert len(in_table(database, first)) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"diff_jdbc_url": "jdbc:mysql://db/app"}, r"diff\.jdbc\.url: no JDBC driver .*DEELOG_SPARK_JARS"),
        (
            {"diff_jdbc_url": "jdbc:sqlite:/none/such/table.db"},
            r"diff\.jdbc\.table: .*Unable to open.*check diff\.jdbc\.url",
        ),
    ],
)
def test_a_driver_or_place_that_is_not_there(
    prefix: str, tmp_path: Path, spark: SparkSession, fields: dict[str, str], said: str
) -> None:
    config = configured("127.0.0.1:1", prefix, tmp_path, Sqlite(tmp_path / "table.db"), **fields)
    with pytest.raises(SinkError, match=said):
        JdbcSink(config, lambda: spark, lambda: False).open()


def test_a_database_of_another_kind_is_refused(
    prefix: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(jdbc.DIALECTS, "SQLite")
    config = configured("127.0.0.1:1", prefix, tmp_path, Sqlite(tmp_path / "table.db"))
    with pytest.raises(SinkError, match=r"diff\.jdbc\.url: SQLite is not supported, PostgreSQL .*collapse\(\)"):
        JdbcSink(config, lambda: spark, lambda: False).open()


def test_a_wrong_password_is_said_at_once_and_not_shown(
    prefix: str, tmp_path: Path, spark: SparkSession, postgres: Postgres
) -> None:
    fields = OnPostgres(postgres).fields | {"diff_jdbc_password": f"{PASSWORD}x"}
    config = configured("127.0.0.1:1", prefix, tmp_path, OnPostgres(postgres), **fields)
    assert PASSWORD not in str(config.raw)
    with pytest.raises(SinkError, match=r"password authentication failed.*diff\.jdbc\.password") as caught:
        JdbcSink(config, lambda: spark, lambda: False).open()
    assert PASSWORD not in str(caught.value)


def test_text_that_the_database_refuses_stops_the_job(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, postgres: Postgres
) -> None:
    """PostgreSQL's text holds no NUL. The other sinks have the batch; without jdbc the job goes on."""
    database = OnPostgres(postgres)
    config = configured(kafka.bootstrap, prefix, tmp_path, database)
    cache = Cache(config)
    run(config, spark)
    cache.put(b"a", b"with \x00 in it")
    with pytest.raises(SinkError, match=r"invalid byte sequence .*0x00\)?.*leave diff\.jdbc\.url out") as caught:
        run(config, spark)
    assert "with" not in str(caught.value).partition("(")[0]
    cache.put(b"a", b"without")
    run(without_table(kafka.bootstrap, prefix, tmp_path), spark)
    run(config, spark)
    on_one_table(config, database)
