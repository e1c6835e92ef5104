"""Notifications of resets and takeovers, from the changes of a node's segments since the last look.

No reset or takeover is missed: each of their steps is a transaction, which a poll begins. Weighed in
docs/decisions.md, "Progress of segments is read from their phases".

Many segments change at once, so one notification covers all of them. A round of resets or takeovers on this node
is STARTED with the first segment and COMPLETED, with all of them, when none is open; between, IN_PROGRESS is sent a
few times a second at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from deelog_connector.core.segment import Phase, Segment
from deelog_connector.signals.notifications import Notifications, ranges
from deelog_schemas.operation import Reason

INITIAL, RESET, OWNER = "Initial Snapshot", "Segment Reset", "Owner Change"
_FIRST_REASONS: Final = ("initial", "start")
_TAKING: Final = (Phase.CLAIM, Phase.LOOK, Phase.FENCE, Phase.ACTIVE, Phase.READ)


class Look(NamedTuple):
    """A segment at the last look, with its running takeover and reset."""

    epoch: int
    taking: bool
    reset: str
    """The reset's aggregate; empty without one."""
    reason: str
    rows: int


NOTHING: Final = Look(0, False, "", "", 0)


@dataclass(slots=True)
class Round:
    """Segments that are notified of together, from the first to the last."""

    open: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    """Since the last notification, as `done` and `failed`."""
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    """All completed segments of the round."""
    reasons: set[str] = field(default_factory=set)
    rows: int = 0
    under_way: bool = False


class SegmentProgress:
    """Call `look` after every poll, `announce` a few times a second."""

    def __init__(self, notifications: Notifications, member: str) -> None:
        self._notifications, self._member = notifications, member
        self._seen: dict[int, Look] = {}
        self._rounds = {name: Round() for name in (OWNER, INITIAL, RESET)}

    def look(self, primaries: Sequence[Segment]) -> None:
        """Records what has begun and ended since the last look."""
        if not self._notifications.enabled:
            return
        now = {segment.number: self._of(segment) for segment in primaries}
        phases = {segment.number: segment.phase for segment in primaries}
        for number in self._seen.keys() | now.keys():
            before, after = self._seen.get(number, NOTHING), now.get(number, NOTHING)
            if before == after:
                continue
            if after.taking and (not before.taking or after.epoch != before.epoch):
                self._begin(OWNER, number, after)
            if before.taking and not after.taking:
                self._end(OWNER, number, number in now, before)
            if after.reset and not before.reset:
                self._begin(after.reset, number, after)
            if before.reset and not after.reset:
                self._end(before.reset, number, phases.get(number) is Phase.WRITING, before)
        self._seen = now

    def _of(self, segment: Segment) -> Look:
        before = self._seen.get(segment.number, NOTHING)
        # A recheck is no takeover: its epoch stays.
        taking = segment.phase in _TAKING and (before.taking or segment.epoch != before.epoch)
        reset, reason = segment.reset, segment.owed or ""
        if reset is not None and reset.reason != Reason.CLEAR:
            reason = reset.reason
        aggregate = "" if not reason else INITIAL if reason in _FIRST_REASONS else RESET
        return Look(segment.epoch, taking, aggregate, reason, len(reset.entries) if reset is not None else 0)

    def _begin(self, aggregate: str, number: int, look: Look) -> None:
        round_ = self._rounds[aggregate]
        round_.open.add(number)
        round_.begun.add(number)
        if look.reason and aggregate != OWNER:
            round_.reasons.add(look.reason)

    def _end(self, aggregate: str, number: int, whole: bool, look: Look) -> None:
        round_ = self._rounds[aggregate]
        round_.open.discard(number)
        (round_.done if whole else round_.failed).add(number)
        (round_.whole.add if whole else round_.whole.discard)(number)
        round_.rows += look.rows if whole and aggregate != OWNER else 0

    def announce(self) -> None:
        """Sends notifications of what was recorded since the last call."""
        for aggregate, round_ in self._rounds.items():
            if not (round_.begun or round_.done or round_.failed):
                continue
            if not round_.under_way:
                self._say(aggregate, "STARTED", round_, round_.begun | round_.done | round_.failed)
                round_.under_way = True
            if round_.failed:
                self._say(aggregate, "ABORTED", round_, round_.failed)
            if round_.done and round_.open:
                self._say(aggregate, "IN_PROGRESS", round_, round_.done)
            elif round_.done:
                self._say(aggregate, "COMPLETED", round_, round_.whole)
            if not round_.open:
                self._rounds[aggregate] = Round()
            else:
                round_.begun, round_.done, round_.failed = set(), set(), set()

    def _say(self, aggregate: str, kind: str, round_: Round, segments: set[int]) -> None:
        rows = None if aggregate == OWNER or kind == "STARTED" else round_.rows
        reason = ",".join(sorted(round_.reasons)) or None
        self._notifications.notify(
            aggregate, kind, segments=ranges(segments), member=self._member, reason=reason, total_rows_scanned=rows
        )
