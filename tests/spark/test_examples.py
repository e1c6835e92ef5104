"""The examples of docs/diff-consumers.md, each run unchanged with a real diff topic."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deelog_connector.devkafka import jars
from deelog_schemas.config import Config
from deelog_schemas.operation import Entry
from tests.interceptors.grid.cluster import Grid
from tests.spark import scenes
from tests.spark.processes import written
from tests.spark.reference import in_topic
from tests.spark.test_diff_job import configured, run
from tests.spark.test_tables import diff_ends
from tests.support.changes import Cache
from tests.support.java import QUICK
from tests.support.kafka import Broker
from tests.support.spark import HOME, connect_server
from tools.pyfiles import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES = ROOT / "docs" / "examples" / "consumers"
Example = Callable[..., None]
LANGUAGE = {".py": "python", ".yml": "yaml"}


@pytest.fixture
def config(kafka: Broker, prefix: str, tmp_path: Path) -> Config:
    return configured(kafka, prefix, tmp_path)


@pytest.fixture
def example(config: Config, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Runs an example as a program, in this process's session: `example(name, *arguments after the file)`."""
    file = written(config, tmp_path)

    def started(name: str, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, str(file), *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert spark.streams.active == [], "it has not ended"

    return started


def asked(command: list[str], folder: Path) -> str:
    """Runs a program to its end. Returns its output."""
    env = {**os.environ, "SPARK_HOME": str(HOME)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changed(cache: Cache) -> None:
    """A delete, two updates of a key, a create, and a reset that repairs a loss."""
    cache.put(cache.key(7, 0), None)
    cache.put(cache.key(0, 0), b"first")
    cache.put(cache.key(0, 0), b"then")
    cache.put(cache.key(7, 1), b"comes", expires_at=1_800_000_000_000)
    cache.put(cache.key(1, 0), b"lost", lost=True)
    cache.reset(1)


def entries(rows: DataFrame) -> dict[bytes, Entry]:
    """The rows of a kept table, as a cache's entries."""
    return stored([(row.key, row.value, row.expires_at) for row in rows.collect()])


def stored(rows: list[Any]) -> dict[bytes, Entry]:
    """The same from key, value and expires_at of each row."""
    assert len({key for key, *_ in rows}) == len(rows), "a key twice"
    return {key.encode(): Entry(key.encode(), value.encode(), expires_at) for key, value, expires_at in rows}


def keeps_equal(cache: Cache, config: Config, spark: SparkSession, keep: Callable[[], str]) -> None:
    """`keep` brings the table up to date with the diff topic and prints its rows: at first, and after changes."""
    for later in (False, True):
        if later:
            changed(cache)
        run(config, spark)
        assert stored(json.loads(keep().splitlines()[-1])) == cache.entries()


@pytest.mark.slow
def test_count_changes(config: Config, tmp_path: Path, spark: SparkSession, example: Example) -> None:
    cache = Cache(config)
    run(config, spark)
    table = tmp_path / "counts.sqlite"
    wanted: Counter[tuple[str, str]] = Counter()
    for minute in (13, 14, 14):  # the last adds to the existing files
        cache._clock = (1_700_000_000 + (minute - 13) * 60) * 1_000_000
        cache.put(cache.key(0, 0), b"v")
        cache.put(cache.key(0, 0), None)
        cache.put(cache.key(5, 1), b"v")
        run(config, spark)
        example("count_changes.py", table, tmp_path / "counts")
        wanted[f"2023-11-14 22:{minute}", "d"] += 1
    told = [t for ts in in_topic(config, 2).values() for t in ts]
    assert sum(t.op == "d" for t in told) == 3
    connection = sqlite3.connect(table)
    rows = connection.execute("SELECT minute, op, changes FROM counts").fetchall()
    connection.close()
    assert {(minute, op): n for minute, op, n in rows if op == "d"} == wanted
    assert sum(n for *_, n in rows) == len(told)


@pytest.mark.slow
def test_keep_parquet(config: Config, tmp_path: Path, spark: SparkSession, example: Example) -> None:
    kept(config, tmp_path, spark, example, "keep_parquet.py", lambda p: spark.read.parquet(str(p / "current")))
    assert len(list((tmp_path / "table").glob("[0-9]*"))) == 2


def kept(
    config: Config,
    tmp_path: Path,
    spark: SparkSession,
    example: Example,
    name: str,
    read: Callable[[Path], DataFrame],
) -> None:
    """Keeps a table over three batches, the last one tried twice. It has the cache's entries each time."""
    cache = Cache(config)
    run(config, spark)
    scenes.scripted(cache)
    cache.put(cache.key(7, 0), b"goes")
    scenes.close(cache)
    player = scenes.Player(cache, 3)
    for number in range(3):
        run(config, spark)
        example(name, tmp_path / "table", tmp_path / "keep")
        assert entries(read(tmp_path / "table")) == cache.entries()
        if number == 0:
            cache.put(cache.key(7, 0), None)
            for _ in range(20):
                player.turn()
            player.finish()
        elif number == 1:
            cache.put(cache.key(7, 0), b"is back")
    newest = max((tmp_path / "keep" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # the process ended after the sink's write
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    example(name, tmp_path / "table", tmp_path / "keep")
    assert entries(read(tmp_path / "table")) == cache.entries()


DELTA = """
import json, runpy, sys
from pyspark.sql import SparkSession

example, file, table, checkpoint, *settings = sys.argv[1:]
builder = SparkSession.builder.master("local[2]")
for setting in settings:
    builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
sys.argv = [example, file, table, checkpoint]
runpy.run_path(example, run_name="__main__")
rows = spark.read.format("delta").load(table).collect()
print(json.dumps([[row.key, row.value, row.expires_at] for row in rows]))
"""


@pytest.mark.slow
def test_keep_delta(config: Config, tmp_path: Path, spark: SparkSession, spark_jars: str) -> None:
    """In a separate process: Delta must be in a session from its start."""
    cache = Cache(config)
    scenes.scripted(cache)
    cache.put(cache.key(7, 0), b"goes")
    scenes.close(cache)
    delta = ",".join(map(str, jars.fetch("spark-delta")))
    settings = (
        f"spark.jars={spark_jars},{delta}",
        "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions=2",
        "spark.databricks.delta.snapshotPartitions=2",
        "spark.ui.enabled=false",
        f"spark.driver.extraJavaOptions={QUICK}",
    )
    file = written(config, tmp_path)
    command = [sys.executable, "-c", DELTA, str(EXAMPLES / "keep_delta.py")]
    arguments = [str(file), str(tmp_path / "table"), str(tmp_path / "keep"), *settings]
    keeps_equal(cache, config, spark, lambda: asked([*command, *arguments], tmp_path))


KEPT = """
import json, sys
from pyspark.sql import SparkSession
rows = SparkSession.builder.remote(sys.argv[1]).getOrCreate().read.table(sys.argv[2]).collect()
print(json.dumps([[row.key, row.value, row.expires_at] for row in rows]))
"""


@pytest.mark.slow
def test_auto_cdc(config: Config, tmp_path: Path, spark: SparkSession, spark_jars: str) -> None:
    """Two runs of the pipeline by one server: the tables are in its memory."""
    cache = Cache(config)
    scenes.scripted(cache)
    cache.put(cache.key(7, 0), b"goes")
    scenes.close(cache)
    table = "lake.caches.sessions"  # as in the file
    spec = (EXAMPLES / "auto_cdc.yml").read_text("utf-8")
    places = {"/var/lib/deelog/auto_cdc": str(tmp_path / "storage")}
    places["/etc/deelog/diff.properties"] = str(written(config, tmp_path))
    for place, here in places.items():
        assert place in spec
        spec = spec.replace(place, here)
    (tmp_path / "auto_cdc.yml").write_text(spec)
    shutil.copy(EXAMPLES / "auto_cdc.py", tmp_path)
    catalog = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
    paths = ",".join([spark_jars, *map(str, jars.fetch("spark-tables"))])
    with connect_server(tmp_path, paths, spark_sql_catalog_lake=catalog) as address:
        pipeline = [str(HOME / "bin" / "spark-pipelines"), "run", "--spec", "auto_cdc.yml", "--remote", address]

        def keep() -> str:
            asked(pipeline, tmp_path)
            return asked([sys.executable, "-c", KEPT, address, table], tmp_path)

        keeps_equal(cache, config, spark, keep)


@pytest.mark.slow
def test_invalidate(
    kafka: Broker, config: Config, prefix: str, tmp_path: Path, spark: SparkSession, example: Example
) -> None:
    """The second cache is a grid node, which speaks the Redis protocol."""
    cache = Cache(config)
    old, changed, deleted, repaired = (cache.key(n, 0) for n in range(4))
    for key in (old, changed, deleted, repaired):
        cache.put(key, b"v")
    run(config, spark)
    grid = Grid(tmp_path / "second", kafka.bootstrap, f"{prefix}second")
    grid.directory.mkdir()
    try:
        grid.start(1)
        with grid.nodes["n1"].redis as second:
            invalidate = ("invalidate.py", f"redis://127.0.0.1:{grid.nodes['n1'].port}", tmp_path / "invalidate")
            for key in (old, changed, deleted, repaired):
                second.set(key, b"v")
            example(*invalidate)
            assert [second.exists(key) for key in (old, changed, deleted, repaired)] == [1, 1, 1, 1]
            cache.put(changed, b"w")
            cache.put(deleted, None)
            cache.put(repaired, b"lost", lost=True)
            cache.reset(3)
            run(config, spark)
            example(*invalidate)
            assert [second.exists(key) for key in (old, changed, deleted, repaired)] == [1, 0, 0, 0]
    finally:
        grid.end()


@pytest.mark.slow
def test_as_of(config: Config, spark: SparkSession, example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    cache = Cache(config)
    scenes.scripted(cache)
    scenes.close(cache)
    run(config, spark)
    then, held = diff_ends(config, cache.partitions), cache.entries()
    cache.put(cache.key(0, 0), None)
    cache.put(cache.key(1, 0), b"later")
    run(config, spark)
    capsys.readouterr()
    example("as_of.py", json.dumps(then))
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {t["key"].encode(): Entry(t["key"].encode(), t["value"].encode(), t["expires_at"]) for t in told}
    assert found == held != cache.entries()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_the_page_shows_the_example_as_it_stands(path: Path) -> None:
    page = (ROOT / "docs" / "diff-consumers.md").read_text("utf-8")
    assert f"(examples/consumers/{path.name})" in page
    assert f"```{LANGUAGE[path.suffix]}\n{path.read_text('utf-8')}```\n" in page
