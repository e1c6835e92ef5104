"""Time, order and randomness: one heap of events, one stream of random numbers per name.

Streams are per name so that leaving out a line of a script changes little of the rest.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any


class Engine:
    """`now` is in seconds from 0. Events at the same time run in the order in which they were added."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self.order = 0
        """A hash of the times of all events so far: a difference between two runs soon shows here."""
        self._count = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        """The random numbers of one name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = random.Random(f"{self.seed}/{name}")
        return stream

    def at(self, moment: float, call: Callable[..., None], *args: Any) -> None:
        """Calls at a time, now at the earliest."""
        self._count += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._count, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Calls after a delay."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, call, args))

    def step(self) -> bool:
        """Runs the next event; returns whether there was one."""
        if not self._heap:
            return False
        moment, _, call, args = heapq.heappop(self._heap)
        self.now = moment
        self.steps += 1
        self.order = hash((self.order, moment))
        call(*args)
        return True


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
