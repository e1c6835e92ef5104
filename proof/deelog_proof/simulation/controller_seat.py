"""The controller's seat in the simulation: what `ControllerService` does, as events; it decides with `decide`."""

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
    """One member's part. A view is committed by the session that was taken last, or not at all."""

    def __init__(self, node: Process, world: Context) -> None:
        self.node, self._world = node, world
        self._seat = 0
        self._term = 0
        self._nonce: Any = None
        self._stood = 0
        self._asking = False
        self._asked = 0.0
        self._book: Liveness | None = None
        self._poked = False
        self._busy = False

    def start(self) -> None:
        """Begins to stand for election."""
        self.node.request(self._poll)

    def heartbeat(self, member: str, beat: Heartbeat) -> Heard | None:
        """See `ControllerService.heartbeat`."""
        if self._book is None:
            return None
        news, answer = self._book.heartbeat(member, beat, self.node.engine.now)
        if news:
            self.changed()
        return answer

    def doubt(self) -> None:
        """See `ControllerService.doubt`."""
        if self._book is not None:
            self._book.doubt(self.node.engine.now)
            self._ask()

    def refused(self, member: str) -> None:
        """Nobody listens there."""
        if self._book is not None and self._book.refuse(member):
            self.changed()

    def changed(self) -> None:
        """Look soon."""
        if self._book is not None and not self._poked:
            self._poked = True
            self.node.after(0.003, self._tick, self._term)

    # -- the seat -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        mine = self._world.group.poll(self.node.member, self.node.engine.now)
        if mine and not self._seat:
            self._seat = self.node.kafka.init("controller", self.node.member)
            self._term += 1
            self._asking = False
            self._ask()
        elif not mine and self._seat:
            self._lose()
        elif self._nonce is not None and self._nonce.is_set():
            self._nonce = None
            self._asking = False
            if self._book is not None:
                self._book.confirm(self._asked)
            else:
                self._take_office()
        self.node.after(0.03, self.node.request, self._poll)

    def _ask(self) -> None:
        """Has the seat confirmed, unless that is under way."""
        if not self._asking:
            self._asking = True
            self.node.request(self._stand)

    def _stand(self) -> None:
        self._stood += 1
        self._asked = self.node.engine.now
        mark = f"{self.node.member} stands {self._stood}"
        self._nonce = self.node.registry.expect(mark)
        value = orjson.dumps({"member": self.node.member, "nonce": mark})
        if not self.node.kafka.publish_seated(self._seat, "controller", value):
            self._lose()

    def _take_office(self) -> None:
        # CHECK read-to-own-record: every view that was ever committed stands before one's own record.
        registry, w = self.node.registry, self._world
        self._book = Liveness(
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
        self._book, self._seat, self._nonce = None, 0, None
        self._term += 1

    def _tick_regularly(self, term: int) -> None:
        if term == self._term:
            self._tick(term)
            self.node.after(self._world.failure_timeout / 4, self._tick_regularly, term)

    def _tick(self, term: int) -> None:
        self._poked = False
        book = self._book
        if term != self._term or book is None or self._busy:
            return
        if book.to_confirm(self.node.engine.now):
            self._ask()
            return
        book.forgive_own_pause(self.node.engine.now)
        dead = book.declare_dead(self.node.engine.now)
        self._busy = True
        self._fence(term, book, book.to_fence(dead), frozenset(dead))

    def _fence(self, term: int, book: Liveness, left: list[str], dead: frozenset[str]) -> None:
        if term != self._term:
            return
        if not left:
            self._decide(term, book, dead)
            return

        def fence() -> None:
            self.node.kafka.init(node_id_of(left[0]), self.node.member)
            book.fenced(left[0])
            self._fence(term, book, left[1:], dead)

        self.node.request(fence)

    def _decide(self, term: int, book: Liveness, dead: frozenset[str]) -> None:
        situation = book.situation(
            dead,
            self.node.engine.now,
            floor=self.node.core.highest_claim(),
            copies=self._world.copies,
            unclean=False,
            settle=0.1,
        )
        following = decide(book.view, situation)
        if following is None:
            self._busy = False
            book.clear_dead()
        else:
            self.node.request(lambda: self._commit(term, book, following))

    def _commit(self, term: int, book: Liveness, following: View) -> None:
        if term != self._term:
            return
        self._busy = False
        if not self.node.kafka.publish_seated(self._seat, "view", encode_view(following)):
            self._lose()
            return
        self._world.checker.view_made(following)
        book.follow(following)
        book.clear_dead()
