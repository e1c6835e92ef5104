"""The controller in the simulation: `ControllerService` as events. Decisions are those of `controller.decide`."""

from __future__ import annotations

from typing import Any

import orjson

from deelog_interceptors.grid.replication.frames import Heard, Heartbeat
from deelog_interceptors.grid.topology.controller import decide
from deelog_interceptors.grid.topology.liveness import Liveness
from deelog_interceptors.grid.topology.view import View, encode_view
from deelog_proof.simulation.context import Context
from deelog_proof.simulation.process import Process
from deelog_schemas.member import node_id_of


class ControllerSeat:
    """The controller service of one member. Only the last producer session can commit a view."""

    def __init__(self, node: Process, world: Context) -> None:
        self.node, self._world = node, world
        self._session = 0
        self._term = 0
        self._nonce: Any = None
        self._confirmations = 0
        self._confirming = False
        self._asked = 0.0
        self._liveness: Liveness | None = None
        self._poked = False
        self._busy = False

    def start(self) -> None:
        """Joins the election."""
        self.node.request(self._poll)

    def heartbeat(self, member: str, beat: Heartbeat) -> Heard | None:
        """See `ControllerService.heartbeat`."""
        if self._liveness is None:
            return None
        news, answer = self._liveness.heartbeat(member, beat, self.node.engine.now)
        if news:
            self.changed()
        return answer

    def doubt(self) -> None:
        """See `ControllerService.doubt`."""
        if self._liveness is not None:
            self._liveness.doubt(self.node.engine.now)
            self._to_confirm()

    def refused(self, member: str) -> None:
        """See `ControllerService.refused`."""
        if self._liveness is not None and self._liveness.refuse(member):
            self.changed()

    def changed(self) -> None:
        """Decides soon."""
        if self._liveness is not None and not self._poked:
            self._poked = True
            self.node.after(0.003, self._tick, self._term)

    # -- election -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        mine = self._world.group.poll(self.node.member, self.node.engine.now)
        if mine and not self._session:
            self._session = self.node.kafka.init("controller", self.node.member)
            self._term += 1
            self._confirming = False
            self._to_confirm()
        elif not mine and self._session:
            self._lose()
        elif self._nonce is not None and self._nonce.is_set():
            self._nonce = None
            self._confirming = False
            if self._liveness is not None:
                self._liveness.confirm(self._asked)
            else:
                self._begin_term()
        self.node.after(0.03, self.node.request, self._poll)

    def _to_confirm(self) -> None:
        """Has Kafka confirm the controller, unless it does already."""
        if not self._confirming:
            self._confirming = True
            self.node.request(self._confirm)

    def _confirm(self) -> None:
        self._confirmations += 1
        self._asked = self.node.engine.now
        mark = f"{self.node.member} stands {self._confirmations}"
        self._nonce = self.node.registry.expect(mark)
        value = orjson.dumps({"member": self.node.member, "nonce": mark})
        if not self.node.kafka.publish_seated(self._session, "controller", value):
            self._lose()

    def _begin_term(self) -> None:
        # CHECK read-to-own-record: every view that was ever committed precedes the own record.
        registry, w = self.node.registry, self._world
        self._liveness = Liveness(
            self.node.member,
            registry,
            registry.view,
            self.node.engine.now,
            asked=self._asked,
            timeout=w.failure_timeout,
            lease_expiry=w.lease_expiry,
        )
        self._busy = self._poked = False
        self._tick_regularly(self._term)

    def _lose(self) -> None:
        self._liveness, self._session, self._nonce = None, 0, None
        self._term += 1

    def _tick_regularly(self, term: int) -> None:
        if term == self._term:
            self._tick(term)
            self.node.after(self._world.failure_timeout / 4, self._tick_regularly, term)

    def _tick(self, term: int) -> None:
        self._poked = False
        liveness = self._liveness
        if term != self._term or liveness is None or self._busy:
            return
        if liveness.to_confirm(self.node.engine.now):
            self._to_confirm()
            return
        liveness.forgive_own_pause(self.node.engine.now)
        dead = liveness.declare_dead(self.node.engine.now)
        self._busy = True
        self._fence(term, liveness, liveness.to_fence(dead), frozenset(dead))

    def _fence(self, term: int, liveness: Liveness, left: list[str], dead: frozenset[str]) -> None:
        if term != self._term:
            return
        if not left:
            self._decide(term, liveness, dead)
            return

        def fence() -> None:
            self.node.kafka.init(node_id_of(left[0]), self.node.member)
            liveness.fenced(left[0])
            self._fence(term, liveness, left[1:], dead)

        self.node.request(fence)

    def _decide(self, term: int, liveness: Liveness, dead: frozenset[str]) -> None:
        situation = liveness.situation(
            dead,
            self.node.engine.now,
            floor=self.node.core.highest_claim(),
            copies=self._world.copies,
            unclean=False,
            settle=0.1,
        )
        following = decide(liveness.view, situation)
        if following is None:
            self._busy = False
            liveness.clear_dead()
        else:
            self.node.request(lambda: self._commit(term, liveness, following))

    def _commit(self, term: int, liveness: Liveness, following: View) -> None:
        if term != self._term:
            return
        self._busy = False
        if not self.node.kafka.publish_seated(self._session, "view", encode_view(following)):
            self._lose()
            return
        self._world.checker.view_made(following)
        liveness.follow(following)
        liveness.clear_dead()
