"""`deelog diff` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from deelog_schemas.config import Config
from tests.support.changes import Cache

WAIT = 120.0


class Job:
    """One process of the job. `module` is what is run, `more` its further environment."""

    def __init__(
        self, config: Config, folder: Path, module: str = "deelog_spark.job", more: Mapping[str, str] | None = None
    ) -> None:
        self.progress = Path(config["diff.checkpoint.location"]) / "progress.json"
        file = folder / "diff.json"
        file.write_text(json.dumps({"name": "diff", "config": dict(config.raw)}))
        self.errors = folder / "stderr.txt"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--config", str(file)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(more or {})},
            )

    def running(self) -> str:
        """Waits for the one line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        return line

    def caught_up(self, cache: Cache) -> bool:
        """Whether the job says that it has read everything."""
        return bool(self.told().get("input_offsets") == {str(p): end for p, end in cache.ends().items()})

    def told(self) -> dict[str, Any]:
        """Its totals so far."""
        found: dict[str, Any] = json.loads(self.progress.read_text()) if self.progress.exists() else {}
        return found

    def said(self) -> list[str]:
        """Its error lines."""
        return [line for line in self.errors.read_text().splitlines() if line.startswith("deelog diff: ")]

    def children(self) -> list[psutil.Process]:
        """The JVM and what runs below it; none once the process has ended."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def close(self) -> int:
        """Waits for the end; the exit code."""
        code = self.process.wait(WAIT)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def until(condition: Callable[[], bool], seconds: float = WAIT) -> None:
    """Waits for something that must happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
