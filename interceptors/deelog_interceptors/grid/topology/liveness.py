"""What a controller knows since it took office: who was heard when, what they ask for, who is dead, whom to answer.

Pure, like the decision that is made of it (`controller.decide`): times are given. `ControllerService`, which
asks Kafka for the seat, fences and commits, keeps one of these for each term; so does the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable

from deelog_interceptors.grid.replication.frames import Heard, Heartbeat
from deelog_interceptors.grid.topology.controller import Situation
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.view import Registration, View
from deelog_schemas.member import is_newer_process, node_id_of


class Liveness:
    """One term of `member` as controller, from `view` on. `timeout`, `lease_expiry` (see `lease`) and times are in
    seconds.

    `asked` is when Kafka was asked for the record that confirmed the seat.
    """

    def __init__(
        self,
        member: str,
        registry: Registry,
        view: View,
        now: float,
        *,
        asked: float,
        timeout: float,
        lease_expiry: float,
    ) -> None:
        self.view = view
        """The last view; it outlasts a seat that was lost to Kafka's silence."""
        self._doubted: float | None = None
        self._member, self._registry, self._timeout, self._lease_expiry = member, registry, timeout, lease_expiry
        self._confirmed = asked
        self._since = self._ticked = now
        self._heard = dict.fromkeys(view.members, now)
        self._silent_since: dict[str, float] = {}
        """Of everybody who was heard, the dead included."""
        self._beats: dict[str, Heartbeat] = {}
        self._refused: set[str] = set()
        self._fenced: set[str] = set()
        self._condemned: frozenset[str] = frozenset()
        """Whom a view that is being made leaves out."""

    # -- what it hears ------------------------------------------------------------------------------------------------

    def heartbeat(self, member: str, beat: Heartbeat, now: float) -> tuple[bool, Heard | None]:
        """A member lives: whether that is news to decide on, and the answer, where nobody else can be controller."""
        before = self._beats.get(member)
        news = before is None or bool(beat.requests) or before.leaving != beat.leaving
        self._heard[member] = self._silent_since[member] = now
        self._refused.discard(member)
        self._beats[member] = beat
        # The lease: no answer to whom the view in the making takes for dead, nor from a seat that may be lost.
        if self._doubted is not None or member in self._condemned or not self._hears_all(now):
            return news, None
        return news, Heard(beat.number, self.view.topology_id)

    def _hears_all(self, now: float) -> bool:
        """While Kafka is away the seat cannot be confirmed; but the next controller would be heard no more."""
        if self._registry.controller != self._member:
            return False
        if self._misses_a_node and now - self._confirmed > self._timeout:
            return False
        return all(
            m == self._member or now - self._silent_since.get(m, self._since) <= self._timeout
            for m in self.view.members
        )

    @property
    def _misses_a_node(self) -> bool:
        """Whether a node that is known is not of the view: it may come back, and be controller unheard."""
        return not self._registry.members.keys() <= {node_id_of(member) for member in self.view.members}

    def refuse(self, member: str) -> bool:
        """Nobody listens at the member's address, or somebody else; whether that is news."""
        if member in self._refused:
            return False
        self._refused.add(member)
        return True

    def last_heard(self, member: str) -> float:
        """When the member was heard last, or since when it could have been."""
        return self._heard.get(member, self._since)

    # -- the seat -----------------------------------------------------------------------------------------------------

    def doubt(self, now: float) -> None:
        """After a pause of this process somebody else may have the seat: nobody is answered until it is confirmed."""
        self._doubted = now

    def to_confirm(self, now: float) -> bool:
        """Whether Kafka must be asked whether the seat is still this member's."""
        return self._doubted is not None or (self._misses_a_node and now - self._confirmed > self._timeout / 2)

    def confirm(self, asked: float) -> None:
        """It was, when Kafka was `asked` or later."""
        self._confirmed = asked
        if self._doubted is not None and asked >= self._doubted:
            self._doubted = None

    # -- who is dead --------------------------------------------------------------------------------------------------

    def forgive_own_pause(self, now: float) -> None:
        """A controller that was itself stopped heard nobody meanwhile; that says nothing of the others."""
        gap, self._ticked = now - self._ticked, now
        if gap > self._timeout / 2:
            self._heard = {member: at + gap for member, at in self._heard.items()}

    def declare_dead(self, now: float) -> list[str]:
        """Members known dead, of the view and of those heard of. They get no answer until `clear_dead`."""
        dead = [m for m in sorted(self.view.members.keys() | self._heard.keys()) if self._is_dead(m, now)]
        self._condemned = frozenset(dead)
        return dead

    def clear_dead(self) -> None:
        """The next view is there, or none is needed."""
        self._condemned = frozenset()

    def _is_dead(self, member: str, now: float) -> bool:
        silent = now - self.last_heard(member) > self._timeout
        return member != self._member and (silent or member in self._refused or self._replaced(member))

    def _replaced(self, member: str) -> bool:
        # CHECK incarnation: a restarted process is another member, and the one before it is dead at once.
        newest = self._registry.members.get(node_id_of(member))
        return newest is not None and is_newer_process(newest.member, member)

    def to_fence(self, dead: Iterable[str]) -> list[str]:
        """Those of the dead whose producer is still to be fenced; a newer process has fenced its predecessor."""
        return [m for m in dead if m not in self._fenced and m in self.view.members and not self._replaced(m)]

    def fenced(self, member: str) -> None:
        """Its producer is fenced."""
        self._fenced.add(member)

    # -- what follows -------------------------------------------------------------------------------------------------

    def situation(
        self, dead: frozenset[str], now: float, *, floor: int, copies: int, unclean: bool, settle: float
    ) -> Situation:
        """What is decided on. The dead are forgotten. `settle`: how long those who start together have to appear."""
        members = {m: known for m, known in self._alive().items() if m not in dead}
        # CHECK answers-carry-epochs: a request counts only in the very view that it was made in.
        requests = {
            m: beat.requests
            for m, beat in self._beats.items()
            if m in members and beat.topology_id == self.view.topology_id
        }
        settled = now - self._since > settle or len(members) > copies
        for member in dead:
            self._heard.pop(member, None)
            self._beats.pop(member, None)
        return Situation(self._member, members, dead, self._lapsed(now), requests, floor, copies, unclean, settled)

    def _alive(self) -> dict[str, Registration]:
        """Members that sent a heartbeat and are registered as what they are."""
        alive = {}
        for member, beat in self._beats.items():
            known = self._registry.members.get(node_id_of(member))
            if known is not None and known.member == member and member in self._heard:
                alive[member] = known._replace(leaving=beat.leaving)
        return alive

    def _lapsed(self, now: float) -> frozenset[str]:
        """Who was silent for so long that no lease of theirs holds; a refused connection proves nothing of the kind."""
        holders = {member for row in self.view.rows for member in row.in_sync}
        self._silent_since = {
            m: at for m, at in self._silent_since.items() if m in holders or m in self.view.members or m in self._beats
        }
        return frozenset(m for m in holders if now - self._silent_since.get(m, self._since) > self._lease_expiry)

    def follow(self, view: View) -> None:
        """The next view is committed."""
        self.view = view
        self._fenced -= view.members.keys()
