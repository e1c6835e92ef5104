"""How long things took, as Prometheus counts it: a sum, and how many stayed within each bound.

Alternatives: docs/decisions.md, "Durations are counted by bounds".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Durations:
    """Seconds. A value that equals a bound is within it."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Counts one more."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self._counts)

    def within(self) -> Iterator[tuple[float, int]]:
        """Each bound with the number of values up to it; the last bound is infinite."""
        reached = 0
        for bound, count in zip((*BOUNDS, float("inf")), self._counts, strict=True):
            reached += count
            yield bound, reached
