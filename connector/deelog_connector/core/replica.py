"""What this node holds of each segment, as primary or as backup: history and op log, and how a backup catches up."""

from __future__ import annotations

from deelog_connector.core import history as past
from deelog_connector.core.history import History
from deelog_connector.core.rules import holds_all_after, knows_what_it_drops
from deelog_connector.core.state import NodeState
from deelog_schemas.operation import Operation, Reason, Trace, TracedOperation


class Replica:
    """See the module. Methods take the number of a segment and work on this node's copy of it."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._segments = node.segments

    def append(
        self,
        segment: int,
        reason: str,
        key: bytes,
        value: bytes | None,
        expires_at: int | None,
        ts_us: int,
        existed: bool,
        before: bytes | None = None,
        trace: Trace | None = None,
        skipped: int = 0,
    ) -> Operation:
        """The primary captures an operation: it takes the segment's next position. Never fails, never waits.

        `expires_at` is in Unix milliseconds, `ts_us` in Unix microseconds. `skipped`: so many of a stream's operations
        before it have given way to later ones of their keys.
        """
        seg = self._segments[segment]
        epoch, sequence = seg.epoch, past.last_of(seg.history) + 1
        if skipped:
            seg.ledger.coalesce(sequence - 1, sequence + skipped, skipped)
            sequence += skipped
        if seg.wrong:
            seg.wrong.discard(key)
            seg.corrected_at = sequence
        operation = Operation(epoch, sequence, reason, key, value, expires_at, ts_us, existed, before)
        if trace is not None:
            operation = TracedOperation.of(operation, trace)
        seg.history = past.extended(seg.history, (epoch, sequence))
        seg.log.append(operation)
        return operation

    def apply(self, segment: int, operation: Operation) -> None:
        """A backup applied an operation of the primary. Operations come in sequence order; a hole is noted."""
        seg = self._node.segment(segment)
        if operation.sequence != seg.last_sequence + 1:
            # A hole means lost operations: never fill it silently.
            seg.log.restart(operation.sequence)
        seg.history = past.extended(seg.history, operation.position)
        if self._node.budget.has_room(operation.size):
            seg.log.append(operation)
        else:  # backups never block: they drop, and `complete_from` says so
            self._node.counts.overflow["backup"] += 1
            seg.log.restart(operation.sequence + 1)

    def history(self, segment: int) -> History:
        """What this node knows of the segment's past; empty where it never heard of it."""
        seg = self._segments.get(segment)
        return seg.history if seg else ()

    def last_sequence(self, segment: int) -> int:
        """The highest sequence assigned or applied."""
        return past.last_of(self.history(segment))

    def complete_from(self, segment: int) -> int:
        """No operation at or above this sequence is missing from the op log."""
        return self._node.segment(segment).log.complete_from

    def operations_after(self, segment: int, sequence: int) -> list[Operation] | None:
        """What a backup lacks that holds everything up to `sequence`; None where the op log has not all of it."""
        log = self._node.segment(segment).log
        # CHECK catch-up-by-ops: by operations wherever that is possible, so that the backup can resume one day.
        if not holds_all_after(log.complete_behind(sequence), sequence):
            return None
        operations = [o for o in log if o.sequence > sequence]
        # What was coalesced away is missing: no backup can apply what follows as operations.
        return operations if len(operations) == self.last_sequence(segment) - sequence else None

    def truncate(self, segment: int, sequence: int) -> list[bytes] | None:
        """Drops what the new primary does not have; the keys that it touched, None where they are not known."""
        seg = self._node.segment(segment)
        if not knows_what_it_drops(seg.log.complete_from, seg.last_sequence, sequence):
            return None
        dropped = seg.log.cut(sequence)
        seg.history = past.cut(seg.history, sequence)
        if seg.written is not None:  # it is a sequence of one's own history
            seg.written = min(seg.written, sequence)
        if any(o.reason == Reason.CLEAR for o in dropped):
            return None
        return sorted({o.key for o in dropped})

    def adopt(self, segment: int, history: History) -> None:
        """Takes the primary's history, cut at what this backup holds of it; more comes by `apply`."""
        seg = self._node.segment(segment)
        last = seg.last_sequence
        assert past.common_point(history, seg.history) == last, f"segment {segment}: truncate before adopt"
        seg.history = past.cut(history, last) if past.last_of(history) > last else history

    def install(self, segment: int, history: History, sequence: int) -> None:
        """A transferred state as of `sequence` has replaced the segment's entries."""
        seg = self._node.segment(segment)
        # CHECK transfer-is-not-ops: what came as state is in no op log; this node can vouch only for what follows.
        seg.log.restart(sequence + 1)
        seg.history = past.cut(history, sequence) if past.last_of(history) > sequence else history
        seg.written = None
