"""`snapshot.mode` and `reset.interval.ms`: which resets come although nothing was lost. Pure policy, as Debezium's
`Snapshotter` is.

No mode holds back a reset that repairs a loss: DECIDE asks for that first. So Debezium's `when_needed` would be
the same as `initial`.

With `no_data` there is no reset: the segment is written from its first captured operation on, and a reader knows only
of the keys that have changed since. Its base offset stays unknown, which readers take for the beginning of the topic.
Alternatives: docs/decisions.md, "`no_data` makes no reset".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum


class SnapshotMode(StrEnum):
    """`snapshot.mode`."""

    INITIAL = "initial"
    ALWAYS = "always"
    NO_DATA = "no_data"
    INITIAL_ONLY = "initial_only"

    def snapshot(self, in_kafka: bool, first: bool) -> str | None:
        """Why a segment that lost nothing is reset when it is taken over; None: it is not.

        `in_kafka`: Kafka holds something of it. `first`: this process has never reset it.
        """
        if not in_kafka:
            return None if self is SnapshotMode.NO_DATA else "initial"
        return "snapshot" if self is SnapshotMode.ALWAYS and first else None

    @property
    def goes_on(self) -> bool:
        """Whether changes are captured after the snapshot."""
        return self is not SnapshotMode.INITIAL_ONLY


class ResetSchedule:
    """Which segment is due for its next reset: one after the other, each once in `interval` seconds (0: never).

    By the wall clock, which is the same for every owner: a takeover or restart does not start the interval again, as it
    would with a time since the last reset. A clock that is put back or forward costs a reset too many.
    """

    def __init__(self, segments: int, interval: float) -> None:
        self._segments = segments
        self._step_us = interval * 1e6 / segments
        self._tick = -1
        self._waiting: dict[int, None] = {}

    def due(self, wall_us: int) -> Iterator[int]:
        """The segments that are due, longest first."""
        if self._step_us:
            tick = int(wall_us / self._step_us)
            if tick != self._tick and self._tick >= 0:
                missed = range(max(self._tick + 1, tick - self._segments + 1), tick + 1) or (tick,)
                self._waiting |= dict.fromkeys(number % self._segments for number in missed)
            self._tick = tick
        return iter(tuple(self._waiting))

    def done(self, segment: int) -> None:
        """The segment is done: it was reset, or another node resets it."""
        self._waiting.pop(segment, None)
