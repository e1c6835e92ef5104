"""What a job tells of its batches."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deelog_spark import BatchReport, DiffJob
from tests.spark.processes import WAIT
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_job_tells_of_each_batch_and_is_stopped_also_after_an_error(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"))
    cache = Cache(config)
    cache.put(cache.key(0, 0), b"v")
    told: list[BatchReport] = []
    caplog.set_level(logging.INFO, "deelog.diff")

    def failing() -> None:
        with DiffJob(dict(config.raw), spark, told.append) as job:
            assert job.start(available_now=True).await_termination(WAIT)
            raise RuntimeError("the caller's")

    with pytest.raises(RuntimeError, match="the caller's"):
        failing()
    assert (told[0].batch, told[0].records, told[0].lag, told[0].resets_rows["c"]) == (-1, 0, 0, 1)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "deelog.diff"]
    assert lines == [asdict(report) for report in told]
    with DiffJob(config, spark) as again:  # nobody holds its checkpoint
        assert again.start(available_now=True).await_termination(WAIT)
