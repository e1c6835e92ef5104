"""`deelog diff` as a process: killed at any instant, ended by a signal, stopped by a record that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from deelog_interceptors.demo.processes import deelog_command
from tests.spark.kills import Kills, configured
from tests.spark.processes import Job
from tests.spark.tables import Sqlite
from tests.support.changes import Cache, config_of
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


def test_available_now_ends_by_itself(kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str) -> None:
    """With 0 at the topic's end, with 4 on a record that is not ours."""
    config = config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"))
    cache = Cache(config)
    for wanted in (0, 4):
        cache.put(cache.key(0, wanted), b"v")
        if wanted:
            with cache.batch():
                cache.raw(config.topics.changes, 0, b"k", b"v", [])
        job = Job(config, tmp_path, "--available-now", command=deelog_command("diff"))
        try:
            assert job.close() == wanted, job.printed
        finally:
            job.process.kill()
        assert [f"{config.topics.changes}[0]@" in line for line in job.said()] == [True] * (wanted == 4)
        assert "Traceback" not in job.printed
        assert (job.told()["resets_rows"]["c"], job.told()["changes"]["c"]) == (1, 0)
