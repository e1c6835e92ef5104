"""The positions topic as a table: the latest state per key, in the order in which it was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from deelog_connector.core.scan import Claimant
from deelog_connector.core.segment import PositionsView
from deelog_schemas.positions import ClaimState, PositionState, ReleaseState, ResetState, State, StateRecord

T = TypeVar("T")


@dataclass(slots=True)
class PositionsTable:
    """What the positions topic holds, by segment."""

    claims: dict[int, dict[str, ClaimState]] = field(default_factory=lambda: defaultdict(dict))
    positions: dict[int, PositionState] = field(default_factory=dict)
    resets: dict[int, ResetState] = field(default_factory=dict)
    releases: dict[int, ReleaseState] = field(default_factory=dict)
    highest_claim: int = 0
    """Highest epoch ever claimed; claims that were removed or released since count as well."""
    certain: set[int] = field(default_factory=set)
    """Segments of which a position was read since the topic was lost last."""

    def apply(self, record: StateRecord) -> None:
        """Takes the next record of the topic."""
        segment, state = record.segment, record.state
        if record.what == "claim":
            if isinstance(state, ClaimState):
                self.claims[segment][record.member] = state
                self.claimed(max(state.epoch, state.highest))
            else:
                self.claims[segment].pop(record.member, None)
        elif record.what == "position":
            _put(self.positions, segment, state if isinstance(state, PositionState) else None)
            (self.certain.add if isinstance(state, PositionState) else self.certain.discard)(segment)
        elif record.what == "reset":
            _put(self.resets, segment, state if isinstance(state, ResetState) else None)
        else:
            _put(self.releases, segment, state if isinstance(state, ReleaseState) else None)
            if isinstance(state, ReleaseState):
                self.claimed(max(state.epoch, state.highest))

    def claimed(self, epoch: int) -> None:
        """An epoch was claimed, whichever topic tells of it."""
        self.highest_claim = max(self.highest_claim, epoch)

    def above(self, epoch: int) -> int:
        """The highest epoch ever claimed, where that is above this one; else 0."""
        return self.highest_claim if self.highest_claim > epoch else 0

    def members(self) -> frozenset[str]:
        """Those that have claimed or released a segment."""
        claimed = frozenset(member for claims in self.claims.values() for member in claims)
        return claimed | {release.member for release in self.releases.values()}

    def claimants(self, segment: int) -> frozenset[Claimant]:
        """`(epoch, member)` of every claim of a segment."""
        return frozenset((c.epoch, c.member) for c in self.claims[segment].values())

    def base_offset(self, segment: int) -> int:
        """Where the last complete reset of a segment begins; -1 for none."""
        position = self.positions.get(segment)
        return position.base_offset if position else -1

    def known(self, segment: int) -> PositionsView:
        """A segment's state now."""
        release = self.releases.get(segment)
        released = (release.epoch, release.member) if release else None
        position, reset = self.positions.get(segment), self.resets.get(segment)
        certain = segment in self.certain
        return PositionsView(self.claimants(segment), position, reset, released, self.spares(segment), certain)

    def holds(self, segment: int, state: State) -> bool:
        """Whether this is the last state of its key that was read."""
        if isinstance(state, ClaimState):
            return self.claims[segment].get(state.member) == state
        tables: dict[type, Mapping[int, State]] = {
            PositionState: self.positions,
            ResetState: self.resets,
            ReleaseState: self.releases,
        }
        return tables[type(state)].get(segment) == state

    def spares(self, segment: int) -> frozenset[str]:
        """The members whose claims of a segment are those of their spare producers."""
        return frozenset(c.member for c in self.claims[segment].values() if c.spare)


def _put(table: dict[int, T], segment: int, state: T | None) -> None:
    if state is None:
        table.pop(segment, None)
    else:
        table[segment] = state
