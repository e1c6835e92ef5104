"""Spark Connect: readers of the diff topic work through it; the job itself says that it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deelog_schemas.operation import Entry
from deelog_spark import DiffJob
from deelog_spark.errors import DiffError
from tests.spark.processes import written
from tests.spark.test_diff_job import configured, run
from tests.spark.test_tables import diff_ends
from tests.support.changes import Cache
from tests.support.kafka import Broker
from tests.support.spark import connect_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In a separate process: PySpark's functions belong to one kind of session at a time.
CLIENT = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from deelog_schemas.config import load
from deelog_spark import DiffJob, changes, latest
from deelog_spark.errors import DiffError

address, path, as_of = sys.argv[1:]
config = load(path, "diff")
spark = SparkSession.builder.remote(address).getOrCreate()
told = {}
told["session"] = type(spark).__module__

def entries(rows):
    return [[r.key, r.value, r.expires_at] for r in rows.collect()]

told["now"] = entries(latest(spark, config))
told["then"] = entries(latest(spark, config, as_of={int(p): n for p, n in json.loads(as_of).items()}))
query = changes(spark, config).writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
assert query.awaitTermination(60)
told["ops"] = sorted(r.op for r in spark.table("seen").collect())
told["refused"] = []
for given in (spark, None):
    try:
        DiffJob(config, given).start()
    except DiffError as error:
        told["refused"].append(str(error))
print(json.dumps(told))
"""


def entries(rows: list[Any]) -> dict[bytes, Entry]:
    return {key.encode(): Entry(key.encode(), value.encode(), expires_at) for key, value, expires_at in rows}


@pytest.mark.slow
def test_through_spark_connect(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, spark_jars: str
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    for segment in range(8):
        cache.put(cache.key(segment, 0), b"v", expires_at=1_800_000_000_000 + segment)
    run(config, spark)
    then, held = diff_ends(config, cache.partitions), cache.entries()
    cache.put(cache.key(0, 0), None)
    cache.put(cache.key(1, 0), b"lost", lost=True)
    cache.reset(1)
    run(config, spark)
    file = written(config, tmp_path)
    with connect_server(tmp_path, spark_jars) as address:
        command = [sys.executable, "-c", CLIENT, address, str(file), json.dumps(then)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["session"] == "pyspark.sql.connect.session"
    assert entries(told["now"]) == cache.entries()
    assert entries(told["then"]) == held != cache.entries()
    assert told["ops"] == ["c"] * 8 + ["d", "u"]
    for refused in told["refused"]:
        assert "does not run through Spark Connect" in refused
        assert "start the job by spark-submit or deelog diff" in refused
    assert len(told["refused"]) == 2


def test_an_environment_of_connect_is_refused(
    kafka: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(kafka, prefix, tmp_path)
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(DiffError, match="without SPARK_REMOTE"):
        DiffJob(config).start()
    assert not (tmp_path / "cp").exists()
