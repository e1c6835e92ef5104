"""How long segments stay in the phases of a takeover and of a reset, and how long resets take altogether.

Measured by `poll`, since the core reads no clock: a phase that a segment enters and leaves between two polls is counted
with the one before. The shell polls after every event, so that is a phase that needed no event.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from deelog_connector.core.durations import Durations
from deelog_connector.core.segment import RESETTING, UNDECIDED, Phase, Segment

TIMED: Final = (*UNDECIDED, *RESETTING, Phase.RELEASING)


class Timing:
    """Seconds by phase, of takeovers as a whole, and of the time in which any segment was being reset."""

    def __init__(self) -> None:
        self.phases = {phase: Durations() for phase in TIMED}
        self.takeovers = Durations()
        self.reset_began: float | None = None
        """When the resets that are under way, or the last ones, began: `now` of a poll."""
        self.reset_ended: float | None = None
        """When no segment was being reset any more; None while one is."""

    def observe(self, working: Collection[Segment], now: float) -> list[float]:
        """Compares each segment with the poll before; the seconds of the takeovers that have ended since."""
        ended = []
        changed = self.resetting
        for segment in working:
            if segment.phase is not segment.noted:
                self._phase_changed(segment, now)
                changed = True
            if segment.promoted_at is None and segment.phase in UNDECIDED:
                segment.promoted_at = now
            elif segment.promoted_at and segment.phase is Phase.WRITING:
                ended.append(now - segment.promoted_at)
                self.takeovers.add(ended[-1])
                segment.promoted_at = 0.0
        if changed:
            self._observe_resets(working, now)
        return ended

    def _phase_changed(self, segment: Segment, now: float) -> None:
        before = self.phases.get(segment.noted)
        if before is not None:
            before.add(now - segment.noted_at)
        segment.noted, segment.noted_at = segment.phase, now

    def _observe_resets(self, working: Collection[Segment], now: float) -> None:
        running = self.resetting
        if any(segment.phase in RESETTING for segment in working):
            if not running:
                self.reset_began, self.reset_ended = now, None
        elif running:
            self.reset_ended = now

    @property
    def resetting(self) -> bool:
        """Whether a reset was under way at the last poll."""
        return self.reset_began is not None and self.reset_ended is None

    def reset_seconds(self, now: float) -> float:
        """How long the resets under way, or the last ones, have taken."""
        if self.reset_began is None:
            return 0.0
        return (now if self.reset_ended is None else self.reset_ended) - self.reset_began
