"""Output while something runs: a live bar on a terminal, otherwise plain lines with the time."""

from __future__ import annotations

import sys
import time
from textwrap import wrap
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

PLAIN_EVERY_SECONDS = 5.0
_INDENT = 10
_LEAST_WIDTH = 30


class Display:
    """Shows events (`say`) and the progress of a load (`advance`). Use it in a `with` block, from any thread."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._begin = time.monotonic()
        self._last_line = 0.0
        self._task: TaskID | None = None
        self._unit = ""
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def say(self, text: str) -> None:
        """Prints a text with the seconds since the beginning. A long first line is wrapped, others are not."""
        first, *more = text.splitlines()
        wrapped = wrap(first, max(_LEAST_WIDTH, self.console.width - _INDENT), break_on_hyphens=False)
        begin = f"{time.monotonic() - self._begin:6.1f} s  "
        lines = [begin + wrapped[0], *(" " * _INDENT + line for line in wrapped[1:]), *more]
        self.console.print("\n".join(lines), markup=False)

    def begin(self, what: str, total: int | None, unit: str = "writes acknowledged") -> None:
        """A load of `total` operations begins (None: unknown); `unit` names what is counted."""
        self._unit = unit
        self._task = self._bar.add_task(what, total=total, note="")
        self._last_line = time.monotonic()

    def advance(self, done: int, note: str = "") -> None:
        """How many operations are done."""
        if self._task is None:
            return
        self._bar.update(self._task, completed=done, note=note)
        if not self.console.is_terminal and time.monotonic() - self._last_line >= PLAIN_EVERY_SECONDS:
            self._last_line = time.monotonic()
            total = self._bar.tasks[0].total
            of = "" if total is None else f" of {total:,.0f}"
            self.say(f"{done:,}{of} {self._unit}{', ' + note if note else ''}")

    def end(self) -> None:
        """The load is over; removes its bar."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
