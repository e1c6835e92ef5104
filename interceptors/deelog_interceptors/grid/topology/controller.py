"""The controller's decision: the next view from the last one, the live members and the primaries' requests. Pure.

Weighed in docs/decisions.md, "Views are worked out from the whole situation".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deelog_interceptors.grid.topology.placement import place
from deelog_interceptors.grid.topology.requests import GROW, RELEASED, RESET_DONE, SHRINK, STEPPED_DOWN, Request
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View

log = logging.getLogger(__name__)

VALID: Final[dict[State, frozenset[State]]] = {
    State.NON_EXISTENT: frozenset({State.NEW}),
    State.NEW: frozenset({State.ONLINE}),
    State.ONLINE: frozenset({State.ONLINE, State.OFFLINE}),
    State.OFFLINE: frozenset({State.ONLINE, State.NON_EXISTENT}),
}
"""The valid transitions of a segment. Online → Online is an election."""

OWNERS_LOST: Final = "owners_lost"
UNCLEAN_ELECTION: Final = "unclean_election"


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a decision besides the view.

    `members` live and may be elected; `dead` are known dead: process gone, producer fenced. Members of the view in
    neither may still be alive. The leases of `lapsed` have run out: they acknowledge nothing (see `lease`). `requests`
    are by sender, and were made in the last view. `floor` is the highest claim in Kafka. `settled`: members that
    started at the same time have had time to register.
    """

    controller: str
    members: Mapping[str, Registration]
    dead: frozenset[str] = frozenset()
    lapsed: frozenset[str] = frozenset()
    requests: Mapping[str, Sequence[Request]] = field(default_factory=dict)
    floor: int = 0
    copies: int = 2
    unclean: bool = False
    settled: bool = True


def decide(view: View, situation: Situation) -> View | None:
    """The next view, or None where nothing changes. Its topology id is above the view's and above `floor`."""
    return _Decision(view, situation).next()


class _Decision:
    def __init__(self, view: View, situation: Situation) -> None:
        self.view = view
        self.now = situation
        self.topology_id = max(view.topology_id, situation.floor) + 1
        kept = {name: member for name, member in view.members.items() if name not in situation.dead}
        self.members = kept | dict(situation.members)
        self.live = [name for name in self.members if name in situation.members]
        self.staying = [name for name in self.live if not self.members[name].leaving]
        self.requests: dict[int, list[tuple[str, Request]]] = {}
        for sender, requests in situation.requests.items():
            for request in requests:
                self.requests.setdefault(request.segment, []).append((sender, request))

    def next(self) -> View | None:
        rows: Sequence[SegmentState] = self.view.rows
        if self.now.settled and self.staying:
            placed = place([row.owners for row in rows], self.staying, self.now.copies)
            rows = [row._replace(owners=owners) for row, owners in zip(rows, placed, strict=True)]
        rows = tuple(self._row(number, row) for number, row in enumerate(rows))
        view = View(self.topology_id, self.now.controller, self.members, rows)
        same = view._replace(topology_id=self.view.topology_id) == self.view
        return None if same and not self._must_answer() else view

    def _must_answer(self) -> bool:
        """A primary asks to remove a member that is not in sync, and stops waiting for it only with a new view."""
        return any(
            request.kind == SHRINK and request.member not in self.view.rows[number].in_sync
            for number, requests in self.requests.items()
            for _, request in requests
        )

    def _row(self, number: int, row: SegmentState) -> SegmentState:
        if row.state is State.NON_EXISTENT:
            row = self._go(number, row, State.NEW)
        if row.state is State.NEW:
            return self._first(number, row)
        if row.state is State.ONLINE:
            row = self._requested(number, row)
        row = self._without_dead(number, row)
        if row.state is State.OFFLINE:
            return self._offline(number, row)
        return self._targeted(self._trimmed(row))

    def _go(self, number: int, row: SegmentState, state: State, **changes: Any) -> SegmentState:
        """The row in another state. An invalid transition is logged and leaves the row as it was."""
        if state not in VALID[row.state]:
            log.error("segment %d: refused the transition from %s to %s", number, row.state, state)
            return row
        return row._replace(state=state, **changes)

    def _elected(self, number: int, row: SegmentState, primary: str, **changes: Any) -> SegmentState:
        """Online under `primary` in a new epoch. `must_reset` stays."""
        return self._go(
            number, row, State.ONLINE, primary=primary, epoch=self.topology_id, target=None, **changes
        )  # CHECK incarnation: the new epoch is for a member that has joined, not for a node id

    def _first(self, number: int, row: SegmentState) -> SegmentState:
        if not self.now.settled or not row.owners:
            return row
        return self._elected(number, row, row.owners[0], in_sync=row.owners[:1])

    def _requested(self, number: int, row: SegmentState) -> SegmentState:
        """Applies the requests of the segment's primary in this epoch; skips all others."""
        for sender, request in self.requests.get(number, ()):
            if sender != row.primary or request.epoch != row.epoch:
                continue
            if request.kind == GROW and request.member in row.owners and request.member in self.live:
                # CHECK in-sync-order: the primary asks once it waits for the newcomer; only then is it admitted.
                if request.member not in row.in_sync:
                    row = row._replace(in_sync=(*row.in_sync, request.member))
            elif request.kind == SHRINK and request.member != row.primary:
                row = row._replace(in_sync=tuple(m for m in row.in_sync if m != request.member))
            elif request.kind == RESET_DONE:
                row = row._replace(must_reset=None)
            elif request.kind in (RELEASED, STEPPED_DOWN):
                row = self._handed_over(number, row)
        return row

    def _handed_over(self, number: int, row: SegmentState) -> SegmentState:
        """Preferred election, reassignment and controlled shutdown: each elects an in-sync owner that stays."""
        wanted = (row.target, *row.owners, *row.in_sync, row.primary)
        for member in wanted:
            if member is not None and member in row.in_sync and member in self.staying:
                return self._elected(number, row, member)
        return row  # nobody can take it: it stays with the leaving member

    def _without_dead(self, number: int, row: SegmentState) -> SegmentState:
        """Removes dead members from the in-sync set, unless all are dead. A segment with a dead primary is Offline."""
        if row.state is State.ONLINE and row.primary not in self.members:
            row = self._go(number, row, State.OFFLINE, primary=None, target=None)
        left = tuple(member for member in row.in_sync if member in self.members)
        return row._replace(in_sync=left) if left else row

    def _offline(self, number: int, row: SegmentState) -> SegmentState:
        """The offline election: a member in sync; any member where all their leases lapsed or unclean is allowed."""
        # The longest in sync comes first: a newcomer that took a state has no operations to resume with.
        candidates = [m for m in row.in_sync if m in self.live or (m in self.members and not self.now.settled)]
        for member in sorted(candidates, key=lambda m: self.members[m].leaving):
            # A new controller has not heard every member yet.
            return self._elected(number, row, member) if member in self.live else row
        # The lease: a member in sync may be cut off from the controller, but not from its clients.
        maybe_alive = any(m in self.members or m not in self.now.lapsed for m in row.in_sync)
        if not self.now.settled or (maybe_alive and not self.now.unclean):
            return row
        for member in (*(m for m in row.owners if m in self.staying), *self.staying):
            reason = UNCLEAN_ELECTION if maybe_alive else OWNERS_LOST
            return self._elected(number, row, member, in_sync=(member,), must_reset=reason)
        return row

    def _trimmed(self, row: SegmentState) -> SegmentState:
        """Once all owners are in sync and one of them is primary, only they stay in sync."""
        if row.primary in row.owners and set(row.owners) < set(row.in_sync):
            return row._replace(in_sync=row.owners)
        return row

    def _targeted(self, row: SegmentState) -> SegmentState:
        """Sets the member that the primary releases the segment for, or None."""
        ready = [member for member in row.owners if member in row.in_sync and member in self.staying]
        if row.target in ready or row.primary not in self.live:  # one that is not heard could not tell that it has
            return row
        target: str | None = None
        if row.primary not in self.staying:
            rest = [member for member in row.in_sync if member in self.staying and member != row.primary]
            target = next(iter(ready + rest), None)
        elif ready and (row.primary not in row.owners or row.owners[0] in ready):
            target = ready[0]
        return row._replace(target=target if target != row.primary else None)
