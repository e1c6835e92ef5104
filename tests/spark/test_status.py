"""`deelog diff --status` of a job that ran with a real Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import javaproperties
from click.testing import CliRunner, Result

from deelog_schemas.config import Config
from deelog_spark.cli import diff
from tests.spark import scenes
from tests.spark.test_diff_job import configured, run
from tests.support.changes import Cache
from tests.support.kafka import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def asked(config: Config, folder: Path, *options: str) -> Result:
    path = folder / "diff.properties"
    path.write_text(javaproperties.dumps(dict(config.raw), timestamp=False))
    return CliRunner().invoke(diff, ["--config", str(path), "--status", *options])


def test_status_tells_lag_open_resets_and_totals(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = configured(kafka, prefix, tmp_path)
    cache = Cache(config)
    nothing = asked(config, tmp_path)
    assert (nothing.exit_code, "holds no checkpoint of a diff job: start one" in nothing.output) == (5, True)
    run(config, spark)
    told = json.loads(asked(config, tmp_path, "--json").output)
    assert (told["batch"], told["lag"], told["records"]) == (0, {"0": 0, "1": 0}, 0)
    scenes.scripted(cache)
    run(config, spark)
    told = json.loads(asked(config, tmp_path, "--json").output)
    assert told["lag"] == {"0": 0, "1": 0}
    assert told["open_resets"] == {"6": {"offset": cache.live[6].begin, "reason": "overflow"}}
    assert told["resets"] == {"overflow": 3, "takeover": 1, "restart": 1}
    ends = cache.ends()
    cache.put(cache.key(0, 0), b"later")
    (partition,) = [p for p, end in cache.ends().items() if end > ends[p]]
    text = asked(config, tmp_path)
    assert text.exit_code == 0
    assert f"lag:         2 offsets (2 on partition {partition})" in text.output  # the record and its marker
    assert f"  segment 6: overflow, since offset {cache.live[6].begin}" in text.output
    assert "2 repeats, 5 resets; wrote c" in text.output
