"""Fences: of the claimants that a takeover supersedes, and of those whose open transaction hides our own record."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from deelog_connector.core.effects import Fence, Producer
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.member import node_id_of


class Fencing:
    """See the module. One fence of a producer is under way at a time; it serves all takeovers that wait for it."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._under_way: set[Producer] = set()
        """The producers whose fence takeovers wait for."""
        self._in_vain: set[Producer] = set()
        """Those that are fenced since records of ours are hidden. It takes as long as their transaction."""

    def effects(self) -> list[Fence]:
        """The fences that takeovers wait for."""
        waiting: dict[Producer, list[tuple[int, int]]] = {}
        for segment in self._node.primaries.values():
            if segment.phase is Phase.FENCE:
                for producer in segment.unfenced - self._under_way:
                    waiting.setdefault(producer, []).append((segment.number, segment.epoch))
        self._under_way.update(waiting)
        return self._fences({producer: tuple(takeovers) for producer, takeovers in waiting.items()})

    def fenced(self, producer: Producer, takeovers: Iterable[tuple[int, int]]) -> None:
        """The producer is fenced. That counts for the takeovers that asked for it: it came after their claims."""
        (self._under_way if takeovers else self._in_vain).discard(producer)
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

    def _without(self, segment: Segment, producer: Producer) -> None:
        segment.unfenced -= {producer}
        if not segment.unfenced:
            segment.go(Phase.ACTIVE)

    def forget(self) -> None:
        """The fences under way are not answered."""
        self._under_way.clear()
        self._in_vain.clear()

    def lose_patience(self) -> None:
        """An open transaction on the positions topic has hidden our own record for too long."""
        node, waiting = self._node, []
        for segment in node.writable():
            asked = segment.awaited and segment.phase in (Phase.LOOK, Phase.READ)
            if asked and node.now - segment.asked_at >= node.settings.patience:
                segment.asked_at = node.now
                waiting.append(segment)
        if waiting:
            self.waited_in_vain(waiting)

    def waited_in_vain(self, segments: Collection[Segment]) -> None:
        """Our own records are hidden: fences the claimants of these segments that are superseded."""
        node = self._node
        node.counts.scans_in_vain += 1
        producers: set[Producer] = set()
        for segment in segments:
            # Of either topic: what hides our record may hide the claim there, too.
            claims, spares = node.positions.claimants(segment.number), node.positions.spares(segment.number)
            if segment.scan is not None:
                claims, spares = claims | segment.scan.claims, spares | segment.scan.spares
            superseded = [claim for claim in claims if claim[0] < segment.epoch]
            producers |= node.producers_of(superseded, spares)
            # Who claims with its spare producer has left the other one in a transaction that did not end.
            producers |= {Producer(node_id_of(member)) for _, member in superseded if member in spares}
        if node.has_switched:
            producers.add(node.producer._replace(spare=not node.spare))
        producers -= {node.producer, *self._in_vain}
        self._in_vain |= producers
        partitions = frozenset(segment.partition for segment in segments)
        node.outbox += self._fences(dict.fromkeys(producers, ()), partitions)

    def _fences(
        self, takeovers: Mapping[Producer, tuple[tuple[int, int], ...]], hidden_on: frozenset[int] = frozenset()
    ) -> list[Fence]:
        self._node.counts.fenced += len(takeovers)
        return [Fence(producer, takeovers[producer], hidden_on) for producer in sorted(takeovers)]
