"""Applies views to roles: a method for each transition, and the release of a segment.

none ─────bootstrap as primary / backup──▶ primary, backup
backup ───promotion──▶ primary            (the takeover; moves no entries)
primary ──demotion───▶ backup             (drops entries that the new primary lacks later, by `Patch`)
primary, backup ──dropped──▶ none
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

from deelog_connector.cache_side import ReplicaSink
from deelog_connector.kafka_port import Clock
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.resp import replies
from deelog_interceptors.grid.topology.requests import RELEASED, RESET_DONE, STEPPED_DOWN, Request
from deelog_interceptors.grid.topology.view import SegmentState, State, View

log = logging.getLogger(__name__)

_HELD_UP = frozenset({"stopped", "owed", "begun", "rows"})
"""Phases that may last long, in which the connector writes no release."""
_LOST = replies.error("TRYAGAIN the segment's primary changed before the write was acknowledged")


class Roles:
    """Applies views to the segments of one member. `wake` wakes the connector."""

    def __init__(
        self,
        member: str,
        store: Store,
        core: ReplicaSink,
        replicator: Replicator,
        backup: Backup,
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.transitions: Counter[str] = Counter()
        self.given_away = 0
        """Segments that a view took from this node as primary, with a reset."""
        self.apply_ms = 0.0
        """How long the last view took to apply."""
        self._member, self._store, self._core = member, store, core
        self._replicator, self._backup, self._wake, self._clock = replicator, backup, wake, clock
        self._view: View | None = None

    def apply(self, view: View) -> None:
        """All changes of a view, in one step of the loop."""
        started = self._clock.monotonic()
        rows = self._view.rows if self._view is not None else (None,) * len(view.rows)
        for segment, row, before in zip(self._store.segments, view.rows, rows, strict=True):
            if row != before:
                self._apply(segment, row)
        self._view = view
        primaries = [segment for segment in self._store.segments if segment.role is Role.PRIMARY]
        self._replicator.follow(primaries, view.topology_id)
        self._backup.view_applied(view.topology_id)
        self.hand_over()
        self._wake()
        self.apply_ms = (self._clock.monotonic() - started) * 1000

    def _apply(self, segment: Segment, row: SegmentState) -> None:
        changed = row.epoch != segment.epoch or row.primary != segment.primary
        segment.primary, segment.in_sync = row.primary, row.in_sync
        self._core.met(row.in_sync)
        segment.members = tuple(member for member in row.holders if member != self._member)
        if row.state is State.ONLINE and row.primary == self._member:
            if segment.role is not Role.PRIMARY or changed:
                self._promote(segment, row)
        elif self._member in row.holders:
            self._log_loss(segment, row)
            if segment.role is Role.PRIMARY:
                self._demote(segment)
            elif changed or segment.role is Role.NONE:
                self._follow(segment)
        elif segment.role is not Role.NONE:
            self._log_loss(segment, row)
            self._drop(segment)
        segment.epoch = row.epoch

    def _promote(self, segment: Segment, row: SegmentState) -> None:
        # CHECK incarnation: the view names this very member, `<node.id>@<incarnation>`, not a node id.
        self.transitions[f"{segment.role}→primary"] += 1
        segment.epoch, segment.source, segment.staged, segment.held = row.epoch, None, None, None
        segment.releasing = segment.release_begun = segment.released = segment.stepped_down = False
        self._replicator.end(segment)
        segment.role = Role.PRIMARY
        segment.last = self._core.last_sequence(segment.number)
        self._replicator.begin(segment)
        self._store.become_primary(segment, row.epoch, row.must_reset)

    def _leave_primary(self, segment: Segment) -> None:
        segment.releasing = segment.release_begun = segment.released = segment.stepped_down = False
        self._replicator.end(segment)
        self._replicator.fail_pendings(segment, _LOST)

    def _demote(self, segment: Segment) -> None:
        self.transitions["primary→backup"] += 1
        self._leave_primary(segment)
        segment.role = Role.BACKUP
        segment.source = segment.staged = None
        self._store.become_backup(segment)

    def _follow(self, segment: Segment) -> None:
        """none or backup → backup of another primary or epoch; the primary will ask what it holds."""
        self.transitions[f"{segment.role}→backup"] += 1
        segment.role = Role.BACKUP
        segment.source = segment.staged = None

    def _log_loss(self, segment: Segment, row: SegmentState) -> None:
        """This node was cut off: operations that it acknowledged are lost, and only it knows which."""
        if segment.role is Role.PRIMARY:
            segment.held = segment.epoch, segment.acked
        if row.state is State.OFFLINE:
            return
        held, segment.held = segment.held, None
        if held is not None and row.must_reset and row.epoch != held[0]:
            self.given_away += 1
            log.warning(
                "segment %d was given to %s in epoch %d (%s) while this node held it: of what it acknowledged, up to "
                "@%d.%d, is lost what %s does not hold",
                *(segment.number, row.primary, row.epoch, row.must_reset, *held, row.primary),
            )

    def _drop(self, segment: Segment) -> None:
        self.transitions[f"{segment.role}→none"] += 1
        if segment.role is Role.PRIMARY:
            self._leave_primary(segment)
        segment.role = Role.NONE
        segment.source = segment.staged = None
        self._store.drop(segment)

    # -- release ----------------------------------------------------------------------------------------------------

    def hand_over(self) -> bool:
        """Begins to release segments that the view moves elsewhere; to be called repeatedly.

        A releasing segment takes no writes, and the connector writes no release while it is paused, while Kafka does
        not answer, or for a segment that is stopped, being reset, or on a partition that takes nothing: such a release
        is taken back until it can be written, and for good where nobody is to have the segment any more. Returns
        whether one was, so that blocked writes try again.
        """
        taken_back = False
        all_held_up = self._core.paused or self._core.waits(self._store.settings.failure_timeout)
        rows = self._view.rows if self._view is not None else ()
        for segment, row in zip(self._store.segments, rows, strict=False):
            if segment.role is not Role.PRIMARY or segment.released:
                continue
            held_up = all_held_up or self._core.phase(segment.number) in _HELD_UP
            if row.target is not None and not held_up and not self._core.withholds(segment.number):
                segment.releasing = True
                self.level_reached(segment)
            elif segment.releasing and self._core.keep(segment.number):
                segment.releasing = segment.release_begun = False
                self._store.opened(segment)
                taken_back = True
        return taken_back

    def level_reached(self, segment: Segment) -> None:
        """Releases a releasing segment once all of its operations are acknowledged."""
        if (
            segment.releasing
            and not segment.release_begun
            and segment.acked >= segment.last
            and not segment.stepped_down
        ):
            segment.release_begun = True
            self._core.release(segment.number)
            self._wake()

    def stepped_down(self, number: int) -> None:
        """The connector saw a higher claim: the segment takes no writes until the next view that promotes this node."""
        segment = self._store.segments[number]
        if segment.role is Role.PRIMARY:
            segment.stepped_down = True
            self._replicator.fail_pendings(segment, _LOST)

    def requests(self) -> Iterator[Request]:
        """Requests to the controller for the segments that this member is primary of."""
        for segment in self._store.segments:
            if segment.role is not Role.PRIMARY or self._view is None:
                continue
            if segment.released:
                yield Request(RELEASED, segment.number, segment.epoch)
            elif segment.stepped_down:
                yield Request(STEPPED_DOWN, segment.number, segment.epoch)
            elif self._view.rows[segment.number].must_reset and self._core.phase(segment.number) == "writing":
                yield Request(RESET_DONE, segment.number, segment.epoch)
