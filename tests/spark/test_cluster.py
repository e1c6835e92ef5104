"""The job outside of this environment: from its zip, on a standalone cluster, with other numbers of cores."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from deelog_schemas.config import Config
from tests.spark import scenes
from tests.spark.processes import WAIT, Job
from tests.spark.reference import expected, in_parquet, in_topic, unordered
from tests.support.changes import Cache, config_of
from tests.support.java import QUICK
from tests.support.kafka import Broker
from tests.support.spark import DRIVER_NEEDS, EXECUTORS_NEED, python_with, pythons, standalone, submit
from tests.support.waiting import waiting
from tools import pyfiles
from tools.pyfiles import ROOT, build

pytestmark = pytest.mark.spark

BY_EXECUTORS = """
from deelog_spark import DiffJob
from deelog_spark.batches import ranges
from deelog_spark.cli import diff

DiffJob.SMALL_RECORDS = ranges.SMALL_RECORDS = 0  # nothing goes through the driver
diff()
"""


def both_sinks(kafka: Broker, prefix: str, tmp_path: Path) -> Config:
    return config_of(
        kafka.bootstrap,
        prefix,
        str(tmp_path / "cp"),
        diff_parquet_path=str(tmp_path / "pq"),
        diff_max_offsets_per_trigger=400,
    )


def check(cache: Cache, config: Config) -> None:
    """Both sinks have exactly the differences of the reference."""
    wanted = expected(config, cache.partitions)
    assert in_topic(config, cache.partitions) == wanted
    assert unordered(in_parquet(Path(config["diff.parquet.path"]))) == unordered(wanted)


@pytest.fixture
def away(tmp_path: Path) -> dict[str, str]:
    """The variables of environments in which driver and executors have what they need, but no deelog."""
    driver = python_with(tmp_path / "driver", DRIVER_NEEDS)
    return pythons(driver, python_with(tmp_path / "executor", EXECUTORS_NEED))


def test_the_same_sources_give_the_same_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any time, in any folder, and with any other files next to them."""
    one = build(tmp_path / "one")
    other = tmp_path / "elsewhere"
    for package in pyfiles.PACKAGES:
        shutil.copytree(ROOT / package, other / package, copy_function=shutil.copyfile)
        (other / package / "__pycache__").mkdir(exist_ok=True)
        (other / package / "__pycache__" / "old.pyc").touch()
        for number, path in enumerate((other / package).rglob("*.py")):
            path.chmod(0o600)
            os.utime(path, (1e9 + number, 1e9 + number))
    shutil.copyfile(ROOT / "pyproject.toml", other / "pyproject.toml")
    monkeypatch.setattr(pyfiles, "ROOT", other)
    again = build(tmp_path / "two")
    assert (again.name, again.read_bytes()) == (one.name, one.read_bytes())


@contextmanager
def running(config: Config, folder: Path, *options: str, command: list[str], env: dict[str, str]) -> Iterator[Job]:
    """The job by spark-submit: the JVM is the process, the driver's Python its child. Fails if a process is left."""
    job = Job(config, folder, *options, command=command, env=env)
    children: list[psutil.Process] = []
    try:
        yield job
    finally:
        if job.process.poll() is None:
            children = job.children()
            job.process.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        job.close()


def goes_on(job: Job, cache: Cache) -> None:
    """Waits until the job has read everything."""
    waiting(lambda: job.caught_up(cache) or job.process.poll() is not None, WAIT, "the job to catch up")
    assert job.caught_up(cache), job.printed


def driver(job: Job) -> psutil.Process:
    """The Python process that spark-submit has started. It handles signals, which would just kill the JVM."""
    children = psutil.Process(job.process.pid).children()
    return next(c for c in children if c.status() != psutil.STATUS_ZOMBIE and "--config" in c.cmdline())


@pytest.mark.slow
def test_from_the_zip_alone(kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str, away: dict[str, str]) -> None:
    """Two cores, ended by SIGTERM; then one, on the same checkpoint."""
    config = both_sinks(kafka, prefix, tmp_path)
    cache = Cache(config)
    job = tmp_path / "job.py"
    job.write_text((ROOT / "spark" / "deelog_spark" / "job.py").read_text())
    start = partial(submit, job, jars=spark_jars, pyfiles=build(tmp_path))
    with running(config, tmp_path, command=start(master="local[2]"), env=away) as first:
        first.running()
        scenes.scripted(cache)
        goes_on(first, cache)
        driver(first).send_signal(signal.SIGTERM)
        assert first.close() == 0, first.printed
    scenes.close(cache)
    scenes.two_resets(cache, 4)
    with running(config, tmp_path, "--available-now", command=start(master="local[1]"), env=away) as second:
        assert second.close() == 0, second.printed
    check(cache, config)


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker(
    kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str, away: dict[str, str]
) -> None:
    """Executors read, fold and write, and one worker dies."""
    config = both_sinks(kafka, prefix, tmp_path)
    cache = Cache(config)
    player = scenes.Player(cache, seed=5)
    job = tmp_path / "job.py"
    job.write_text(BY_EXECUTORS)
    small = (
        "--executor-memory",
        "512m",
        "--conf",
        f"spark.executor.extraJavaOptions={QUICK}",
        "--driver-java-options",
        QUICK,
    )
    start = partial(submit, job, *small, jars=spark_jars, pyfiles=build(tmp_path))
    with (
        standalone(tmp_path / "cluster", workers=2) as cluster,
        running(config, tmp_path, command=start(master=cluster.url), env=away) as first,
    ):
        first.running()
        for _ in range(30):
            player.turn()
        goes_on(first, cache)
        assert [cluster.executors(number) for number in range(2)] == [1, 1]
        for _ in range(60):
            player.turn()
        cluster.workers[1].kill()
        player.finish()
        goes_on(first, cache)
        check(cache, config)
        driver(first).send_signal(signal.SIGTERM)
        assert first.close() == 0, first.printed
