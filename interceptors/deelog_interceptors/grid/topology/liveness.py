"""What a controller knows of the members in its term: last heartbeats, requests, who is dead, whom to answer.

Pure, like the decision made from it (`controller.decide`): times are arguments. `ControllerService`, which does the
I/O, keeps one for each term.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deelog_interceptors.grid.replication.frames import Heard, Heartbeat
from deelog_interceptors.grid.topology.controller import Situation
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.view import Registration, View
from deelog_schemas.member import is_newer_process, node_id_of

BEATS: Final = 5
"""Heartbeats of each member in a failure timeout."""
LATE_BEATS: Final = 2
"""Who was not heard for so many heartbeats' time is perhaps cut off."""
REFUSALS: Final = 2
"""So many refused connections, and no heartbeat when the next one was due, are the end of a member's process."""


class Liveness:
    """One term of `member` as controller, from `view` on. `timeout`, `lease_expiry` (see `lease`) and times are in
    seconds.

    `asked` is when the controller began to commit the record that confirmed it.
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
        """The last view."""
        self._doubted: float | None = None
        self._member, self._registry, self._timeout, self._lease_expiry = member, registry, timeout, lease_expiry
        self._confirmed = asked
        self._since = self._ticked = now
        self._heard = dict.fromkeys(view.members, now)
        self._silent_since: dict[str, float] = {}
        """By member, when it was last heard; includes the dead."""
        self._beats: dict[str, Heartbeat] = {}
        self._refused: dict[str, int] = {}
        """How many connections the member's address has refused since the member was last heard."""
        self._fenced: set[str] = set()
        self._declared_dead: frozenset[str] = frozenset()
        """The members that the next view leaves out, while it is being committed."""

    # -- input --------------------------------------------------------------------------------------------------------

    def heartbeat(self, member: str, beat: Heartbeat, now: float) -> tuple[bool, Heard | None]:
        """Returns whether a decision is due, and the answer; None where another member may be controller."""
        before = self._beats.get(member)
        if before is not None and beat.number < before.number:
            return False, None  # one of an earlier connection: what it says is over
        news = before is None or bool(beat.requests) or before.leaving != beat.leaving
        if self._was_silent(member, now):
            # It may be late: what a cut held back arrives when it heals, and its sender may have another controller.
            self.doubt(now)
            news = True
        self._heard[member] = self._silent_since[member] = now
        self._refused.pop(member, None)
        self._beats[member] = beat
        # The lease: no answer to a member that the next view takes for dead, nor while another may be controller.
        if self._doubted is not None or member in self._declared_dead or not self._hears_all(now):
            return news, None
        return news, Heard(beat.number, self.view.topology_id)

    def _hears_all(self, now: float) -> bool:
        """Whether no other member can be controller: a member that became controller would stop its heartbeats here."""
        if self._registry.controller != self._member:
            return False
        if self._misses_a_node and now - self._confirmed > self._timeout:
            return False
        return not any(self._was_silent(m, now) for m in self.view.members)

    def _was_silent(self, member: str, now: float) -> bool:
        """Whether a member of the view was not heard for so long that it may have another controller."""
        known = member in self.view.members and member != self._member
        return known and now - self.silent_since(member) > self._timeout

    @property
    def _misses_a_node(self) -> bool:
        """Whether a registered node is missing from the view: it may come back as controller, unheard here."""
        return not self._registry.members.keys() <= {node_id_of(member) for member in self.view.members}

    def refuse(self, member: str) -> bool:
        """The member's address refused a connection, or another answered. Returns whether that may be its end."""
        self._refused[member] = self._refused.get(member, 0) + 1
        return self._refused[member] >= REFUSALS

    def last_heard(self, member: str) -> float:
        """When the member was last heard; the start of the term where it never was."""
        return self._heard.get(member, self._since)

    def silent_since(self, member: str) -> float:
        """When the member was last heard, whatever paused the controller; the start of the term where it never was."""
        return self._silent_since.get(member, self._since)

    # -- confirmation -------------------------------------------------------------------------------------------------

    def doubt(self, now: float) -> None:
        """Another may be controller, after a pause of this process or a cut: no heartbeat is answered until Kafka
        confirms this one."""
        self._doubted = now

    def to_confirm(self, now: float) -> bool:
        """Whether Kafka must confirm that this member is still controller."""
        return self._doubted is not None or (self._misses_a_node and now - self._confirmed > self._timeout / 2)

    def confirm(self, asked: float) -> None:
        """Kafka confirmed it, at `asked` or later."""
        self._confirmed = asked
        if self._doubted is not None and asked >= self._doubted:
            self._doubted = None

    def is_behind(self, now: float) -> bool:
        """Whether a member that lives has a later view, which is lost with the topic: it registers with it again."""
        last = self.view.topology_id
        return any(b.topology_id > last and now - self._heard[m] <= self._timeout for m, b in self._beats.items())

    def has_heard_all(self, since: float) -> bool:
        """Whether each member of the view has told since then which view it knows."""
        return all(m == self._member or self._silent_since.get(m, since) > since for m in self.view.members)

    # -- who is dead --------------------------------------------------------------------------------------------------

    def forgive_own_pause(self, now: float) -> None:
        """Discounts a pause of the controller itself: the silence of others meanwhile proves nothing."""
        gap, self._ticked = now - self._ticked, now
        if gap > self._timeout / 2:
            self._heard = {member: at + gap for member, at in self._heard.items()}

    def declare_dead(self, now: float) -> list[str]:
        """The dead among the members of the view and those heard. Their heartbeats get no answer until `clear_dead`."""
        dead = [m for m in sorted(self.view.members.keys() | self._heard.keys()) if self._is_dead(m, now)]
        self._declared_dead = frozenset(dead)
        return dead

    def clear_dead(self) -> None:
        """The next view is committed, or none is needed."""
        self._declared_dead = frozenset()

    def _is_dead(self, member: str, now: float) -> bool:
        silence = now - self.last_heard(member)
        gone = self._refused.get(member, 0) >= REFUSALS and silence > self._timeout / BEATS
        return member != self._member and (silence > self._timeout or gone or self._replaced(member))

    def _replaced(self, member: str) -> bool:
        # CHECK incarnation: a restarted process is another member; its predecessor is dead at once.
        newest = self._registry.members.get(node_id_of(member))
        return newest is not None and is_newer_process(newest.member, member)

    def hears_too_few(self, now: float) -> bool:
        """Whether less than half of the view's members are heard now: it may be this node that is cut off.

        Those whose connections ended at the same time are not silent for the whole timeout at the same time.
        """
        members = [member for member in self.view.members if not self._replaced(member)]
        return 2 * sum(self._is_heard(member, now) for member in members) < len(members)

    def _is_heard(self, member: str, now: float) -> bool:
        in_time = now - self.last_heard(member) <= LATE_BEATS * self._timeout / BEATS
        return member == self._member or (in_time and self._refused.get(member, 0) < REFUSALS)

    def unreachable(self, dead: frozenset[str], group: frozenset[str]) -> frozenset[str]:
        """Those of the dead whom Kafka hears, by its `group` of nodes."""
        return frozenset(member for member in dead & group if not self._replaced(member))

    def to_fence(self, dead: Iterable[str]) -> list[str]:
        """Those of the dead whose producer is still to be fenced; a newer process has fenced its predecessor."""
        unfenced = [m for m in dead if m in self.view.members and m not in self._fenced]
        return [m for m in unfenced if not self._replaced(m) and not self._has_left(m)]

    def _has_left(self, member: str) -> bool:
        """Whether it gave all away before it ended. A fence would come late, and meet the process that replaces it."""
        return self.view.members[member].leaving and not any(member in row.holders for row in self.view.rows)

    def fenced(self, member: str) -> None:
        """The member's producer is fenced."""
        self._fenced.add(member)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def situation(
        self,
        dead: frozenset[str],
        lapsed: frozenset[str],
        now: float,
        *,
        floor: int,
        copies: int,
        unclean: bool,
        settle: float,
    ) -> Situation:
        """The input of the next decision; forgets the dead.

        `lapsed`: those that are lost, and whose leases have run out. `settle`: seconds in which members may register.
        """
        members = {m: known for m, known in self._alive().items() if m not in dead}
        # CHECK answers-carry-epochs: a request counts only in the view that it was made in.
        requests = {
            m: beat.requests
            for m, beat in self._beats.items()
            if m in members and beat.topology_id == self.view.topology_id
        }
        # Who lives and was not heard yet would lose what it owns.
        unheard = self.view.members.keys() - members.keys() - dead
        settled = now - self._since > settle or (len(members) > copies and not unheard)
        for member in dead:
            self._heard.pop(member, None)
            self._beats.pop(member, None)
        return Situation(self._member, members, dead, lapsed, requests, floor, copies, unclean, settled)

    def _alive(self) -> dict[str, Registration]:
        """Members that sent a heartbeat and whose incarnation is the registered one."""
        alive = {}
        for member, beat in self._beats.items():
            known = self._registry.members.get(node_id_of(member))
            if known is not None and known.member == member and member in self._heard:
                alive[member] = known._replace(leaving=beat.leaving)
        return alive

    def lapsed(self, now: float) -> frozenset[str]:
        """Members silent for so long that their leases have run out; a refused connection does not prove that."""
        holders = {member for row in self.view.rows for member in row.in_sync}
        return frozenset(m for m in holders if now - self.silent_since(m) > self._lease_expiry)

    def leaves_nobody(self, lapsed: frozenset[str]) -> bool:
        """Whether a segment has lost all that were in sync, if those whose lease has run out are lost."""
        return any(row.in_sync and lapsed.issuperset(row.in_sync) for row in self.view.rows)

    def follow(self, view: View) -> None:
        """The next view is committed."""
        self.view = view
        self._fenced -= view.members.keys()
