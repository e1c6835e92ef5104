"""`snapshot.mode` and `reset.interval.ms`: which resets come although nothing was lost. Pure policy, as Debezium's
`Snapshotter` is: it is asked what to do and looks at nothing.

A reset that repairs a loss is none of its business: DECIDE asks for that first, and no mode holds it back. So
`when_needed` is what every mode does anyway, and the same as `initial`.

Weighed for `no_data`: a reset without rows, which gives readers a base as any reset does, and tells them the segment is
empty; that is not true, and the next comparison of digests, or `before` of a diff, would build on it. Instead there is
no reset: the segment is written from its first captured operation on, its position stands in Kafka as ever, and a
reader knows of the keys that changed since and of no others. Its base offset stays unknown, which readers take for the
beginning of the topic. Nothing is claimed about the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum


class SnapshotMode(StrEnum):
    """`snapshot.mode`."""

    INITIAL = "initial"
    ALWAYS = "always"
    NO_DATA = "no_data"
    WHEN_NEEDED = "when_needed"
    INITIAL_ONLY = "initial_only"

    def snapshot(self, in_kafka: bool, first: bool) -> str | None:
        """Why a segment that lost nothing is reset when it is taken over; None: it is not.

        `in_kafka`: something of it stands there. `first`: this process has never reset it.
        """
        if not in_kafka:
            return None if self is SnapshotMode.NO_DATA else "initial"
        return "snapshot" if self is SnapshotMode.ALWAYS and first else None

    @property
    def goes_on(self) -> bool:
        """Whether changes are captured behind the snapshot."""
        return self is not SnapshotMode.INITIAL_ONLY


class ResetSchedule:
    """Whose turn it is to be reset again: one segment after the other, each once in `interval` seconds (0: never).

    By the wall clock, of which every owner knows the same: a takeover or restart does not begin to count anew, as it
    would with a time since the last reset. A clock that is put back or forward costs a turn too many.
    """

    def __init__(self, segments: int, interval: float) -> None:
        self._segments = segments
        self._step_us = interval * 1e6 / segments
        self._tick = -1
        self._waiting: dict[int, None] = {}

    def waiting(self, wall_us: int) -> Iterator[int]:
        """The segments whose turn has come and is not over, longest first."""
        if self._step_us:
            tick = int(wall_us / self._step_us)
            if tick != self._tick and self._tick >= 0:
                missed = range(max(self._tick + 1, tick - self._segments + 1), tick + 1) or (tick,)
                self._waiting |= dict.fromkeys(number % self._segments for number in missed)
            self._tick = tick
        return iter(tuple(self._waiting))

    def over(self, segment: int) -> None:
        """It was reset, or is not this node's to reset."""
        self._waiting.pop(segment, None)
