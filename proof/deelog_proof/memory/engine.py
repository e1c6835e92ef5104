"""Time, order and randomness: one heap of events, one stream of random numbers per name.

Streams are per name so that leaving out a line of a script changes little of the rest.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
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
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._streams: dict[str, random.Random] = {}

    def stream(self, name: str) -> random.Random:
        """The random numbers of one name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = random.Random(f"{self.seed}/{name}")
        return stream

    def at(self, moment: float, call: Callable[..., object], *args: Any) -> None:
        """Calls at a time, now at the earliest."""
        self._count += 1
        now = self.now
        heapq.heappush(self._heap, (moment if moment > now else now, self._count, call, args))

    def after(self, delay: float, call: Callable[..., object], *args: Any) -> None:
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

    def run(self, until: Callable[[], object] | None = None, seconds: float = 3600.0, steps: int = 1_000_000) -> None:
        """Runs events until this is true, or for this time without it.

        Raises `TimeoutError` where it does not become true, and where there are more steps: they would never end.
        """
        end, last = self.now + seconds, self.steps + steps
        while until is None or not until():
            if not self._heap or self._heap[0][0] > end:
                if until is not None:
                    raise TimeoutError(f"waited {seconds:g} s in vain" if self._heap else "nothing is left to happen")
                self.now = end
                return
            if self.steps >= last:
                raise TimeoutError(f"{steps} steps without an end")
            self.step()
