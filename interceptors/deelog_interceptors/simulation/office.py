"""The controller's seat in the simulation: what `grid.office.Office` does, as events; it decides with `decide`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from deelog_interceptors.grid.controller import Situation, decide
from deelog_interceptors.grid.frames import Heard, Heartbeat
from deelog_interceptors.grid.view import View, encode_view, incarnation_of, node_id_of

if TYPE_CHECKING:
    from deelog_interceptors.simulation.node import Node


class Group:
    """Kafka's group protocol, as far as it gives the seat to one of those who ask for it."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.heard: dict[str, float] = {}
        self.holder: str | None = None
        self.changes = 0

    def poll(self, member: str, now: float) -> bool:
        """A member is there; whether the seat is its."""
        self.heard[member] = now
        live = [m for m, at in self.heard.items() if now - at <= self.timeout]
        if self.holder not in live:
            self.holder = min(live)
            self.changes += 1
        return self.holder == member


class Office:
    """One member's part. A view is committed by the session that was taken last, or not at all."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._world = node.world
        self._seat = 0
        self._term = 0
        self._nonce: Any = None
        self._stood = 0
        self._view: View | None = None
        self._since = self._ticked = 0.0
        self._heard: dict[str, float] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._refused: set[str] = set()
        self._fenced: set[str] = set()
        self._silent_since: dict[str, float] = {}
        self._condemned: frozenset[str] = frozenset()
        self._doubted = False
        self._poked = False
        self._busy = False

    def start(self) -> None:
        """Stands for the office."""
        self.node.request(self._poll)

    def heartbeat(self, member: str, beat: Heartbeat) -> Heard | None:
        """See `grid.office.Office.heartbeat`."""
        if self._view is None or self.node.registry.controller != self.node.member:
            return None
        before = self._beats.get(member)
        self._heard[member] = self._silent_since[member] = self.node.engine.now
        self._refused.discard(member)
        self._beats[member] = beat
        if before is None or beat.requests or before.leaving != beat.leaving:
            self.changed()
        # The lease: no answer to whom the view in the making takes for dead, nor from a seat that may be lost.
        if self._doubted or member in self._condemned or not self._hears_all(self._view):
            return None
        return Heard(beat.number, self._view.topology_id)

    def _hears_all(self, view: View) -> bool:
        now, timeout = self.node.engine.now, self._world.failure_timeout
        return all(
            m == self.node.member or now - self._silent_since.get(m, self._since) <= timeout for m in view.members
        )

    def doubt(self) -> None:
        """See `grid.office.Office.doubt`."""
        if self._view is not None and not self._doubted:
            self._doubted = True
            self.node.request(self._stand)

    def refused(self, member: str) -> None:
        """Nobody listens there."""
        if self._view is not None and member not in self._refused:
            self._refused.add(member)
            self.changed()

    def changed(self) -> None:
        """Look soon."""
        if self._view is not None and not self._poked:
            self._poked = True
            self.node.after(0.003, self._tick, self._term)

    # -- the seat -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        mine = self._world.group.poll(self.node.member, self.node.engine.now)
        if mine and not self._seat:
            self._seat = self.node.kafka.init("controller", self.node.member)
            self._term += 1
            self.node.request(self._stand)
        elif not mine and self._seat:
            self._lose()
        elif self._nonce is not None and self._nonce.is_set():
            self._nonce = None
            if self._doubted:
                self._doubted = False
            else:
                self._take_office()
        self.node.after(0.03, self.node.request, self._poll)

    def _stand(self) -> None:
        self._stood += 1
        mark = f"{self.node.member} stands {self._stood}"
        self._nonce = self.node.registry.expect(mark)
        value = orjson.dumps({"member": self.node.member, "nonce": mark})
        if not self.node.kafka.publish_seated(self._seat, "controller", value):
            self._lose()

    def _take_office(self) -> None:
        # CHECK read-to-own-record: every view that was ever committed stands before one's own record.
        now = self.node.engine.now
        self._view = self.node.registry.view
        self._since = self._ticked = now
        self._heard = dict.fromkeys(self._view.members, now)
        self._beats, self._refused, self._fenced, self._busy, self._poked = {}, set(), set(), False, False
        self._silent_since, self._condemned = {}, frozenset()
        self._tick_regularly(self._term)

    def _lose(self) -> None:
        self._view, self._seat, self._nonce, self._doubted = None, 0, None, False
        self._term += 1

    def _tick_regularly(self, term: int) -> None:
        if term == self._term:
            self._tick(term)
            self.node.after(self._world.failure_timeout / 4, self._tick_regularly, term)

    def _tick(self, term: int) -> None:
        self._poked = False
        if term != self._term or self._view is None or self._busy or self._doubted:
            return
        now, timeout = self.node.engine.now, self._world.failure_timeout
        gap, self._ticked = now - self._ticked, now
        if gap > timeout / 2:
            self._heard = {member: at + gap for member, at in self._heard.items()}
        dead = [m for m in sorted(self._view.members.keys() | self._heard.keys()) if self._is_dead(m)]
        new = [m for m in dead if m not in self._fenced and m in self._view.members and not self._replaced(m)]
        self._busy, self._condemned = True, frozenset(dead)
        self._fence(term, new, frozenset(dead))

    def _is_dead(self, member: str) -> bool:
        silent = self.node.engine.now - self._heard.get(member, self._since) > self._world.failure_timeout
        return member != self.node.member and (silent or member in self._refused or self._replaced(member))

    def _replaced(self, member: str) -> bool:
        newest = self.node.registry.members.get(node_id_of(member))
        return newest is not None and incarnation_of(newest.member) > incarnation_of(member)

    def _fence(self, term: int, left: list[str], dead: frozenset[str]) -> None:
        if term != self._term:
            return
        if not left:
            self._decide(term, dead)
            return

        def fence() -> None:
            self.node.kafka.init(node_id_of(left[0]), self.node.member)
            self._fenced.add(left[0])
            self._fence(term, left[1:], dead)

        self.node.request(fence)

    def _decide(self, term: int, dead: frozenset[str]) -> None:
        view, registered = self._view, self.node.registry.members
        assert view is not None
        members = {}
        for member, beat in self._beats.items():
            known = registered.get(node_id_of(member))
            if known is not None and known.member == member and member in self._heard and member not in dead:
                members[member] = known._replace(leaving=beat.leaving)
        # CHECK answers-carry-epochs: a request counts only in the very view that it was made in.
        requests = {
            m: beat.requests for m, beat in self._beats.items() if m in members and beat.topology_id == view.topology_id
        }
        copies = self._world.copies
        settled = self.node.engine.now - self._since > 0.1 or len(members) > copies
        floor = self.node.core.highest_claim()
        lapsed = self._lapsed(view)
        situation = Situation(self.node.member, members, dead, lapsed, requests, floor, copies, False, settled)
        following = decide(view, situation)
        for member in dead:
            self._heard.pop(member, None)
            self._beats.pop(member, None)
        if following is None:
            self._busy, self._condemned = False, frozenset()
        else:
            self.node.request(lambda: self._commit(term, following))

    def _lapsed(self, view: View) -> frozenset[str]:
        now, holders = self.node.engine.now, {member for row in view.rows for member in row.in_sync}
        return frozenset(m for m in holders if now - self._silent_since.get(m, self._since) > self._world.lapse)

    def _commit(self, term: int, following: View) -> None:
        if term != self._term:
            return
        self._busy = False
        if not self.node.kafka.publish_seated(self._seat, "view", encode_view(following)):
            self._lose()
            return
        self._world.judge.view_made(following)
        self._fenced -= following.members.keys()
        self._view, self._condemned = following, frozenset()
