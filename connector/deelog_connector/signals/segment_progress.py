"""Resets and takeovers as notifications: what changed in the segments of a node since one last looked.

No reset and no takeover is missed: each of their steps is a transaction, which a poll begins. Weighed in
docs/decisions.md, "Progress of segments is read from their phases".

Many segments change at once, so one notification speaks for all of them: a round of resets or takeovers on this node
begins with the first and is COMPLETED, with all that are done, when none is open; what is done in between comes as
IN_PROGRESS, a few times a second at most.
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
    """A segment when one last looked: the takeover and the reset that were under way."""

    epoch: int
    taking: bool
    reset: str
    """Its aggregate; empty for none."""
    reason: str
    rows: int


NOTHING: Final = Look(0, False, "", "", 0)


@dataclass(slots=True)
class Round:
    """What is told together, from the first segment to the last."""

    open: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    """Of which nobody was told yet; as those that are `done` and `failed`."""
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    """All that are done."""
    reasons: set[str] = field(default_factory=set)
    rows: int = 0
    under_way: bool = False


class SegmentProgress:
    """`look` after every poll, `tell` a few times a second."""

    def __init__(self, notifications: Notifications, member: str) -> None:
        self._notifications, self._member = notifications, member
        self._seen: dict[int, Look] = {}
        self._rounds = {name: Round() for name in (OWNER, INITIAL, RESET)}

    def look(self, primaries: Sequence[Segment]) -> None:
        """Notes what has begun and ended."""
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
        # A recheck is no takeover: its epoch is the one that it has already.
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

    def tell(self) -> None:
        """Tells what was noted since."""
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
        self._notifications.tell(
            aggregate, kind, segments=ranges(segments), member=self._member, reason=reason, total_rows_scanned=rows
        )
