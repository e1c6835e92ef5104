"""`deelog diff` as a process: killed at any time, ended by a signal, stopped by a foreign record."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from deelog_proof.harness.child import deelog_command
from deelog_spark.cli import diff
from tests.spark.kills import Kills, configured
from tests.spark.processes import WAIT, Job, written
from tests.spark.reference import held, in_topic
from tests.spark.tables import Sqlite
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker
from tests.support.waiting import waiting

KILLS = 4
SEED = 3


@pytest.mark.slow
def test_killed_at_any_instant(own_kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str) -> None:
    """No sink has repeated or missing rows, and totals count once. Then SIGTERM, then a foreign record."""
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


@pytest.mark.slow
def test_available_now_ends_by_itself(kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str) -> None:
    """With exit code 0 at the topic's end, with 4 on a foreign record."""
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


@pytest.mark.slow
def test_several_caches_by_one_application(kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str) -> None:
    """Each diff topic gets its cache's differences. A foreign record in one change topic ends the application with its
    exit code, and the next run continues with both."""
    configs, caches, files = [], [], []
    for name in ("carts", "sessions"):
        folder = tmp_path / name
        folder.mkdir()
        config = config_of(kafka.bootstrap, f"{prefix}-{name}", str(folder / "cp"))
        configs.append(config)
        caches.append(Cache(config))
        files.append(written(config, folder))

    def job() -> Job:
        return Job(configs[0], tmp_path, "--config", str(files[1]), command=deelog_command("diff"))

    def told() -> list[set[bytes]]:
        return [set(held(in_topic(config, cache.partitions))) for config, cache in zip(configs, caches, strict=True)]

    first = job()
    try:
        waiting(
            lambda: first.output.read_text().count("running\n") == 2 or first.process.poll() is not None,
            WAIT,
            "both jobs to run",
        )
        keys = [cache.key(0, number) for number, cache in enumerate(caches)]
        for cache, key in zip(caches, keys, strict=True):
            cache.put(key, b"v")
        waiting(lambda: told() == [{key} for key in keys], WAIT, "both differences")
        first.process.terminate()
        assert first.close() == 0, first.printed
        assert [f"{config.topics.changes} -> " in first.printed for config in configs] == [True, True]
    finally:
        first.process.kill()
    with caches[1].batch():
        caches[1].raw(configs[1].topics.changes, 0, b"k", b"v", [])
    second = job()
    try:
        assert second.close() == 4, second.printed
        (said,) = second.said()
        assert f"{configs[1].topics.changes}[0]@" in said
        assert "Traceback" not in second.printed
    finally:
        second.process.kill()


def test_caches_that_would_share_a_checkpoint_are_refused(tmp_path: Path) -> None:
    """All other conflicts between the two jobs are reported, too, at once and before anything starts."""
    files = []
    for name in ("carts", "sessions"):
        more = {"cache_name": name, "diff_topic": "one", "diff_metrics_port": 9000}
        config = config_of("127.0.0.1:1", "shop", str(tmp_path / "cp"), **more, diff_parquet_path=str(tmp_path / "p"))
        (tmp_path / name).mkdir()
        files.append(written(config, tmp_path / name))
    found = CliRunner().invoke(diff, ["--config", str(files[0]), "--config", str(files[1])])
    assert found.exit_code == 2
    for field in ("diff.checkpoint.location", "diff.topic", "diff.parquet.path", "diff.metrics.port"):
        assert f"{field} = " in found.output
    assert not (tmp_path / "cp").exists()
