"""Fences: of the claimants that a takeover supersedes."""

from __future__ import annotations

from collections.abc import Iterable

from deelog_connector.core.effects import Fence, Producer
from deelog_connector.core.segment import Phase, Segment, in_phase
from deelog_connector.core.state import NodeState


class Fencing:
    """See the module. One fence of a producer is under way at a time; it serves all takeovers that wait for it."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._under_way: set[Producer] = set()
        """The producers whose fence takeovers wait for."""

    def effects(self, working: Iterable[Segment]) -> list[Fence]:
        """The fences that takeovers wait for."""
        waiting: dict[Producer, list[tuple[int, int]]] = {}
        for segment in in_phase(working, Phase.FENCE):
            for producer in segment.unfenced - self._under_way:
                waiting.setdefault(producer, []).append((segment.number, segment.epoch))
        self._under_way.update(waiting)
        self._node.counts.fenced += len(waiting)
        return [Fence(producer, tuple(waiting[producer])) for producer in sorted(waiting)]

    def fenced(self, producer: Producer, takeovers: Iterable[tuple[int, int]]) -> None:
        """The producer is fenced. That counts for the takeovers that asked for it: it came after their claims."""
        self._under_way.discard(producer)
        for number, epoch in takeovers:
            segment = self._node.primaries.get(number)
            # CHECK claim-before-fence: a later takeover of the segment has others to fence, and its claim came later.
            if segment is None or segment.phase is not Phase.FENCE or segment.epoch != epoch:
                continue
            self._without(segment, producer)

    def opened(self) -> None:
        """This node's session is open, by which its producer is fenced for all takeovers."""
        for segment in self._node.primaries.values():
            if segment.phase is Phase.FENCE:
                self._without(segment, self._node.producer)

    def forget(self) -> None:
        """The fences under way are not answered."""
        self._under_way.clear()

    def _without(self, segment: Segment, producer: Producer) -> None:
        segment.unfenced -= {producer}
        if not segment.unfenced:
            segment.go(Phase.ACTIVE)
