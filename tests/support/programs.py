"""Our programs, started as a user starts them: their output, and the processes and files that they leave."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil

from tests.support.waiting import waiting


class Program:
    """A command with all its files below `directory`. Its processes are recognised by that path."""

    def __init__(self, directory: Path, command: list[str], cwd: Path | None = None) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.output = directory / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                cwd=cwd or directory,
            )

    def said(self, text: str) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return text in self.output.read_text()

    def spark_files(self) -> list[Path]:
        """Spark's temporary directory, while it exists."""
        return list(Path("/tmp").glob(f"deelog-spark-{self.process.pid}-*"))

    def left_processes(self) -> list[str]:
        """Command lines of processes that use the temporary directory."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.temporary) and process.is_running():
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def ended(self, seconds: float = 1000) -> int:
        """The exit code. Fails unless all processes and files are gone."""
        code = self.process.wait(seconds)
        waiting(lambda: not self.left_processes(), 20, f"the end of {self.left_processes()}")
        return code

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)
        waiting(lambda: not self.left_processes(), 20, "the end of all that a killed program started")
