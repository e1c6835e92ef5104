"""`deelog diff` as a process: killed at any instant, ended by a signal, stopped by a record that is not ours."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from deelog_interceptors.demo.processes import deelog_command
from deelog_schemas.config import Config
from tests.spark import scenes
from tests.spark.reference import expected, in_parquet, in_topic, unordered
from tests.support.changes import Cache, config_of
from tests.support.kafka import Broker

KILLS = 3
WAIT = 120.0


class Job:
    """One process of `deelog diff`, begun by `command`."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        *options: str,
        command: Sequence[str] = (sys.executable, "-m", "deelog_spark.job"),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.progress = Path(config["diff.checkpoint.location"]) / "progress.json"
        file = folder / "diff.json"
        file.write_text(json.dumps({"name": "diff", "config": dict(config.raw)}))
        self.errors, self.output = folder / "stderr.txt", folder / "stdout.txt"
        with self.errors.open("w") as errors, self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--config", str(file), *options], stdout=output, stderr=errors, text=True, env=env
            )

    def running(self) -> str:
        """Waits for the one line."""
        until(lambda: "running\n" in self.output.read_text() or self.process.poll() is not None)
        line = self.output.read_text()
        assert "running\n" in line, self.said
        return line

    @property
    def said(self) -> str:
        """All that it has printed."""
        return self.errors.read_text() + self.output.read_text()

    def caught_up(self, cache: Cache) -> bool:
        """Whether the job says that it has read everything."""
        return bool(self.told().get("input_offsets") == {str(p): end for p, end in cache.ends().items()})

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.progress.read_text()) if self.progress.exists() else {}
        return found

    def wait_for_a_batch(self) -> None:
        before = self.told()["batches"]
        until(lambda: bool(self.told()["batches"] > before))

    def kill(self) -> list[psutil.Process]:
        """`kill -9` of the driver; what it leaves behind for its children to notice."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.close()
        return children

    def close(self) -> int:
        """Waits for the end; the exit code."""
        return self.process.wait(WAIT)


def until(condition: Callable[[], bool], seconds: float = WAIT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


@pytest.mark.timeout(600)
def test_killed_at_any_instant(kafka: Broker, prefix: str, tmp_path: Path, spark_jars: str) -> None:
    """Nothing twice and nothing missing in either sink, and totals that count once; then SIGTERM, then a stranger."""
    config = config_of(
        kafka.bootstrap,
        prefix,
        str(tmp_path / "cp"),
        diff_sinks="kafka,parquet",
        diff_parquet_path=str(tmp_path / "pq"),
        diff_max_offsets_per_trigger=100,
    )
    cache = Cache(config)
    player = scenes.Player(cache, seed=7)
    chance = random.Random(11)
    children: list[psutil.Process] = []
    job = Job(config, tmp_path)
    try:
        assert job.running().count("\n") == 1
        for _ in range(KILLS):
            for _ in range(15):
                player.turn()
            job.wait_for_a_batch()
            time.sleep(chance.random())  # any instant of a batch
            children += job.kill()
            job = Job(config, tmp_path)
            job.running()
        player.finish()
        until(lambda: job.caught_up(cache))
        wanted = expected(config, cache.partitions)
        assert in_topic(config, cache.partitions) == wanted
        assert unordered(in_parquet(tmp_path / "pq")) == unordered(wanted)
        told, rows = job.told(), [t for ts in wanted.values() for t in ts]
        for cause, name in (("change", "changes"), ("reset", "resets_rows")):
            assert told[name] == {op: sum(t.cause == cause and t.op == op for t in rows) for op in "cud"}

        children += psutil.Process(job.process.pid).children(recursive=True)
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.close() == 0, job.errors.read_text()
        until(lambda: not any(child.is_running() for child in children), 30)

        with cache.batch():
            cache.raw(config.topics.changes, 1, b"k", b"v", [])
        job = Job(config, tmp_path)
        job.running()
        assert job.close() == 4
        said = [line for line in job.errors.read_text().splitlines() if line.startswith("deelog diff: ")]
        assert len(said) == 1
        assert f"{config.topics.changes}[1]@" in said[0]
        assert "delete the checkpoint" in said[0]
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
            assert job.close() == wanted, job.said
        finally:
            job.process.kill()
        said = [line for line in job.errors.read_text().splitlines() if line.startswith("deelog diff: ")]
        assert [f"{config.topics.changes}[0]@" in line for line in said] == [True] * (wanted == 4)
        assert "Traceback" not in job.said
        assert (job.told()["resets_rows"]["c"], job.told()["changes"]["c"]) == (1, 0)
