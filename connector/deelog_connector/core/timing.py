"""How long segments stay in the phases of a takeover and of a reset, and how long resets take altogether.

Told by what `poll` finds, since the core reads no clock: a phase that a segment enters and leaves between two polls is
counted with the one before. The shell polls after every event, so that is a phase that needed no event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deelog_connector.core.durations import Durations
from deelog_connector.core.segment import Phase, Segment

UNDECIDED: Final = (Phase.CLAIM, Phase.LOOK, Phase.FENCE, Phase.ACTIVE, Phase.READ)
"""The phases of a takeover, up to the decision."""
RESETTING: Final = (Phase.OWED, Phase.BEGUN, Phase.ROWS)
"""The phases of a reset."""
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

    def changed(self, segment: Segment, now: float) -> None:
        """The segment is in another phase than at the poll before."""
        before = self.phases.get(segment.noted)
        if before is not None:
            before.add(now - segment.noted_at)
        segment.noted, segment.noted_at = segment.phase, now

    def resets(self, primaries: Iterable[Segment], now: float) -> None:
        """Call it after a change, and at each poll while a reset is under way."""
        running = self.resetting
        if any(segment.phase in RESETTING for segment in primaries):
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
