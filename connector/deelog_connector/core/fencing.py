"""Fences: of the claimants that a takeover supersedes, and of those whose open transaction hides our own record."""

from __future__ import annotations

from collections.abc import Iterable

from deelog_connector.core.effects import Fence
from deelog_connector.core.rules import foreign
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.member import node_id_of


class Fencing:
    """See the module. One fence for takeovers is under way at a time; it serves all segments that wait for one."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._under_way = False

    def effects(self) -> list[Fence]:
        """The fence that takeovers wait for."""
        if self._under_way:
            return []
        waiting = [s for s in self._node.primaries.values() if s.phase is Phase.FENCE]
        if not waiting:
            return []
        self._under_way = True
        members = {member for s in waiting for member in foreign(s.victims, self._node.member)}
        return [self._fence(members, tuple(s.number for s in waiting))]

    def fenced(self, segments: Iterable[int]) -> None:
        """The claimants of these segments are fenced."""
        for number in segments:
            self._under_way = False
            segment = self._node.primaries.get(number)
            if segment and segment.phase is Phase.FENCE:
                segment.go(Phase.ACTIVE)

    def forget(self) -> None:
        """The fence under way is not answered."""
        self._under_way = False

    def lose_patience(self) -> None:
        """An open transaction on the positions topic has hidden our own record for too long."""
        node, waiting = self._node, []
        for segment in node.primaries.values():
            asked = segment.awaited and segment.phase in (Phase.LOOK, Phase.READ)
            if asked and node.now - segment.asked_at >= node.settings.patience:
                segment.asked_at = node.now
                waiting.append(segment)
        if waiting:
            self.waited_in_vain(waiting)

    def waited_in_vain(self, segments: Iterable[Segment]) -> None:
        """Our own records are hidden: fences the claimants of these segments that are superseded."""
        node = self._node
        node.counts.scans_in_vain += 1
        members = {
            member
            for segment in segments
            for epoch, member in node.positions.claimants(segment.number)
            if epoch < segment.epoch and node_id_of(member) != node_id_of(node.member)
        }
        if members:
            node.outbox.append(self._fence(members, ()))

    def _fence(self, members: set[str], segments: tuple[int, ...]) -> Fence:
        self._node.counts.fenced += len(members)
        return Fence(frozenset(map(node_id_of, members)), segments)
