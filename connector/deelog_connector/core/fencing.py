"""Fences: of the claimants that a takeover supersedes, and of those whose open transaction hides our own record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deelog_connector.core.effects import Fence
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.member import node_id_of


class Fencing:
    """See the module. One fence of a node is under way at a time; it serves all takeovers that wait for it."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._under_way: set[str] = set()
        """The nodes whose fence takeovers wait for."""

    def effects(self) -> list[Fence]:
        """The fences that takeovers wait for."""
        waiting: dict[str, list[tuple[int, int]]] = {}
        for segment in self._node.primaries.values():
            if segment.phase is Phase.FENCE:
                for node_id in segment.unfenced - self._under_way:
                    waiting.setdefault(node_id, []).append((segment.number, segment.epoch))
        self._under_way.update(waiting)
        return self._fences({node_id: tuple(takeovers) for node_id, takeovers in waiting.items()})

    def fenced(self, node_id: str, takeovers: Iterable[tuple[int, int]]) -> None:
        """The node is fenced. That counts for the takeovers that asked for it: it came after their claims."""
        if takeovers:
            self._under_way.discard(node_id)
        for number, epoch in takeovers:
            segment = self._node.primaries.get(number)
            # CHECK claim-before-fence: a later takeover of the segment has others to fence, and its claim came later.
            if segment is None or segment.phase is not Phase.FENCE or segment.epoch != epoch:
                continue
            segment.unfenced -= {node_id}
            if not segment.unfenced:
                segment.go(Phase.ACTIVE)

    def forget(self) -> None:
        """The fences under way are not answered."""
        self._under_way.clear()

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
        node.outbox += self._fences({node_id_of(member): () for member in members})

    def _fences(self, takeovers: Mapping[str, tuple[tuple[int, int], ...]]) -> list[Fence]:
        self._node.counts.fenced += len(takeovers)
        return [Fence(node_id, takeovers[node_id]) for node_id in sorted(takeovers)]
