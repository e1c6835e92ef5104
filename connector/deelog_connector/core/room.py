"""The op logs' budget, which all segments of a node share: what gives way when it is used up."""

from __future__ import annotations

from deelog_connector.core.resets import Resets
from deelog_connector.core.segment import Phase
from deelog_connector.core.state import NodeState


class Room:
    """See the module."""

    def __init__(self, node: NodeState, resets: Resets) -> None:
        self._node = node
        self._resets = resets

    def overflow(self, number: int) -> None:
        """Drops the segment's op log; its primary owes a reset."""
        segment = self._node.segments[number]
        self._node.counts.overflow["reset" if segment.is_primary else "backup"] += 1
        segment.log.restart(segment.last_sequence + 1)
        if segment.phase is Phase.STOPPED:
            segment.owe("overflow")  # somebody has to mend what stopped it first
        elif segment.is_primary:
            self._resets.request(number, "overflow")

    def coalesce(self, number: int) -> int:
        """Replaces a key's older operations by its newest one that every in-sync owner holds; returns how many went."""
        segment = self._node.segments[number]
        if segment.phase is not Phase.WRITING:
            return 0
        # Runs that wait are merged into one: else each coalescing leaves another operation of every changing key.
        low = max(segment.sent, segment.in_flight)
        # CHECK coalesce-acked: what an owner lacks may be lost, and what it replaced is then still to be written.
        upto = segment.log.fitting(low, segment.replicated, self._node.max_batch_bytes)
        dropped = segment.log.coalesce(low, upto)
        if dropped:
            segment.atomic_to = max(segment.atomic_to, upto)
            segment.ledger.coalesce(low, segment.atomic_to, dropped)
            self._node.counts.overflow["coalesce"] += 1
        return dropped

    def coalesce_all(self) -> int:
        """Coalesces every segment of this primary; returns how many operations it dropped."""
        return sum(self.coalesce(number) for number in list(self._node.primaries))

    def make(self, number: int, size: int) -> None:
        """Drops op logs until one more operation of `size` bytes fits.

        Backups' first, the longest of them before the others: that costs a reset only if a takeover follows. Then this
        segment's, then the other primaries'.
        """
        has_room = self._node.budget.has_room
        if has_room(size) or number not in self._node.segments:  # given away while a write waited
            return
        longest = sorted((s for s in self._node.segments.values() if len(s.log)), key=lambda s: -len(s.log))
        backups = [s.number for s in longest if not s.is_primary]
        primaries = [s.number for s in longest if s.is_primary and s.number != number]
        # Nothing of a stopped segment is pruned, and only a reset starts it again: the others shall not pay for it.
        stopped = [s.number for s in longest if s.phase is Phase.STOPPED]
        mine = [number] if len(self._node.segments[number].log) else []
        for other in (*stopped, *backups, *mine, *primaries):
            if has_room(size):
                return
            self.overflow(other)
