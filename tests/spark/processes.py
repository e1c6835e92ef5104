"""`deelog diff` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from deelog_schemas.config import Config
from deelog_spark.batches.checkpoint import Checkpoint
from tests.support.changes import Cache
from tests.support.waiting import waiting

WAIT = 280.0


def written(config: Config, folder: Path) -> Path:
    """Writes the configuration to a file, in Kafka Connect's format."""
    file = folder / "diff.json"
    file.write_text(json.dumps({"name": "diff", "config": dict(config.raw)}))
    return file


class Job:
    """One process of the job, started by `command` in the environment `env` or in this one's."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        *options: str,
        command: Sequence[str] = (sys.executable, "-m", "deelog_spark.job"),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.progress = Path(config["diff.checkpoint.location"]) / "progress.json"
        file = written(config, folder)
        self.errors, self.output = folder / "stderr.txt", folder / "stdout.txt"
        with self.errors.open("w") as errors, self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--config", str(file), *options], stdout=output, stderr=errors, text=True, env=env
            )

    def running(self) -> str:
        """Waits for the line `running`. Returns the output."""
        waiting(lambda: "running\n" in self.output.read_text() or self.process.poll() is not None, WAIT, "the start")
        line = self.output.read_text()
        assert "running\n" in line, self.printed
        return line

    @property
    def printed(self) -> str:
        """All of its output."""
        return self.errors.read_text() + self.output.read_text()

    def caught_up(self, cache: Cache) -> bool:
        """Whether the job reports that it has read everything."""
        return bool(self.told().get("input_offsets") == {str(p): end for p, end in cache.ends().items()})

    def told(self) -> dict[str, Any]:
        """Its totals so far."""
        found: dict[str, Any] = json.loads(self.progress.read_text()) if self.progress.exists() else {}
        return found

    def said(self) -> list[str]:
        """Its error lines."""
        return [line for line in self.errors.read_text().splitlines() if line.startswith("deelog diff: ")]

    def children(self) -> list[psutil.Process]:
        """The JVM and its child processes; none once the process has ended."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def close(self) -> int:
        """Waits for the end. Returns the exit code."""
        return self.process.wait(WAIT)


def until_read(cache: Cache) -> None:
    """Waits until a running job, in any process, has read to the change topic's end."""
    ends, checkpoint = cache.ends(), Checkpoint(cache.config["diff.checkpoint.location"])
    waiting(lambda: (done := checkpoint.now()) is not None and done.end == ends, WAIT, f"the job to read to {ends}")
