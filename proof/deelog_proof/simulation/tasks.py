"""Coroutines that are run event by event."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any


class Yield:
    """Awaited in a task: it continues in a later event."""

    def __await__(self) -> Any:
        yield self


class Task:
    """A coroutine that is run event by event; a `session.Work`."""

    def __init__(self, work: Coroutine[Any, Any, None], later: Callable[[Callable[[], None]], None]) -> None:
        self._work, self._later = work, later
        self._done = self._cancelled = False
        self._error: BaseException | None = None
        self._calls: list[Callable[[Any], object]] = []
        later(self._step)

    def _step(self) -> None:
        if self._done:
            return
        try:
            self._work.send(None)
        except StopIteration:
            self._end()
        except Exception as error:  # noqa: BLE001 - kept for `exception()`
            self._error = error
            self._end()
        else:
            self._later(self._step)

    def _end(self) -> None:
        self._done = True
        for call in self._calls:
            call(self)

    def cancel(self) -> None:
        """Ends it at its await."""
        if not self._done:
            self._cancelled = True
            self._work.close()
            self._end()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def exception(self) -> BaseException | None:
        """The exception that it ended with, or None."""
        return self._error

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        """Called at the end."""
        self._calls.append(call)
