"""`deelog diff` as a process: killed at any instant, ended by a signal, stopped by a record that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kills import Kills, configured
from tests.spark.processes import Job
from tests.spark.tables import Sqlite
from tests.support.kafka import Broker

KILLS = 4
SEED = 3


@pytest.mark.timeout(600)
def test_killed_at_any_instant(own_kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str) -> None:
    """Nothing twice and nothing missing in any sink, and totals that count once; then SIGTERM, then a stranger."""
    database = Sqlite(tmp_path / "table.db")
    config = configured(own_kafka, prefix, tmp_path, database)
    run = Kills(config, database, own_kafka, tmp_path, SEED)
    report = run.play(KILLS)
    assert report.kinds.total() == KILLS

    with run.cache.batch():
        run.cache.raw(config.topics.changes, 1, b"k", b"v", [])
    job = Job(config, tmp_path)
    try:
        job.running()
        assert job.close() == 4
        (said,) = job.said()
        assert f"{config.topics.changes}[1]@" in said
        assert "delete the checkpoint" in said
        assert "Traceback" not in job.errors.read_text()
    finally:
        job.process.kill()
        job.close()
