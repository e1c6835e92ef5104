"""Child processes that end with their parent; each has its own session and log.

On Linux the kernel kills a child when the thread that started it ends, so start children from the main thread. A
child's descendants (a JVM that Python started) are in its process group and are killed with it. On other systems a
`kill -9` of the parent leaves children running; every other end does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from deelog_connector.devkafka import ports
from deelog_connector.devkafka.running import dying_with_parent
from deelog_schemas.errors import DeelogError

_POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0
_TAIL_LINES = 20
_TAIL_BYTES = 65_536
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.01


class ProcessError(DeelogError):
    """A child ended or did not answer; the message ends with its log's last lines."""


def deelog_command(*arguments: str) -> list[str]:
    """The command line of `deelog` in this interpreter."""
    return [sys.executable, "-m", "deelog_connector", *arguments]


class Child:
    """One command that may be started again after it ended. `log` gets the output of all starts."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        # A library that is not Python's may end the process: its log then says what each thread was doing.
        self._env = {"PYTHONFAULTHANDLER": "1", **os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0

    @property
    def pid(self) -> int | None:
        """The process id, None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while it runs or before its first start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Starts it; call this from the main thread."""
        if self.pid is not None:
            raise RuntimeError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                dying_with_parent(self._command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self.log.parent,
                start_new_session=True,
            )

    def send(self, number: int) -> None:
        """Sends a signal. `RuntimeError` while it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} does not run")
        self._process.send_signal(number)

    def kill(self) -> None:
        """`kill -9` of its process group. No error while it does not run."""
        self._end(signal.SIGKILL)

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """SIGTERM, and `kill` where that takes longer than `seconds`."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a stopped process does not get SIGTERM
            with contextlib.suppress(TimeoutError):
                until(lambda: self.pid is None, seconds, f"end of {self.name}")
        self.kill()

    def line(self, prefix: str) -> str | None:
        """The first line of its output since its last start that begins with `prefix`, without the prefix."""
        with self.log.open("rb") as log:
            log.seek(self._begin)
            lines = log.read().decode(errors="replace").splitlines(keepends=True)
        matching = (line for line in lines if line.startswith(prefix) and line.endswith("\n"))
        return next((line[len(prefix) :].strip() for line in matching), None)

    def must_run(self) -> None:
        """Raises `ProcessError` if it has ended."""
        if self.pid is None:
            raise ProcessError(f"{self.name} ended with exit code {self.exit_code}; its log {self.tail()}")

    def tail(self) -> str:
        """The end of its log, for messages: its last lines, and what a crash has left behind them."""
        if not self.log.exists():
            return "is empty"
        with self.log.open("rb") as log:
            log.seek(max(self._begin, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        fatal = next((n for n, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
        lines = lines[max(fatal - _TAIL_LINES, 0) :]
        return "ends with:\n  " + "\n  ".join(lines) if lines else "is empty"

    def _end(self, number: int) -> None:
        process = self._process
        if process is None:
            return
        # The group outlives its leader while a grandchild runs; its id is not reused until then.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(_STOP_SECONDS)


def until(condition: Callable[[], bool], seconds: float, what: str, every: float = _POLL_SECONDS) -> float:
    """Polls `condition` and returns the seconds taken. After `seconds` raises `TimeoutError` with `what`."""
    begin = time.monotonic()
    if not ports.until(condition, begin + seconds, every):
        raise TimeoutError(f"waited {seconds:g} s in vain for: {what}")
    return time.monotonic() - begin


@contextmanager
def ends_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block like Ctrl-C, with everything cleaned up; further ones wait."""
    hook = sys.unraisablehook

    def end(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not dropped.__code__:
            frame = frame.f_back
        if frame is not None:  # nothing is raised from there either
            send_again(number)
            return
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def dropped(told: sys.UnraisableHookArgs) -> None:
        # The signal came amid a finalizer, from where nothing is raised.
        if not isinstance(told.exc_value, (KeyboardInterrupt, SystemExit)):
            hook(told)
            return
        number = signal.SIGINT if isinstance(told.exc_value, KeyboardInterrupt) else int(told.exc_value.code or 0) - 128
        signal.signal(number, end)
        send_again(number)

    def send_again(number: int) -> None:
        again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    former = {number: signal.signal(number, end) for number in _ENDING}
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in former.items():
            signal.signal(number, handler)
