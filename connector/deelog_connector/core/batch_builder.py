"""What the next transaction holds: control records of all segments that wait for one, rows, then operations.

One transaction is under way at a time, and it carries every segment that can move; so a takeover of eighty segments
takes as many transactions as that of one. Control records come first (there are at most a few per segment); rows and
operations share what is left of `max_batch_size`, beginning with another segment each time so that none starves. Rows
of incremental snapshots come last and take what room is left, one row at least. It is bounded in bytes as well, since
it has to be sent in time: docs/decisions.md, "A transaction takes a part of its time".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from deelog_connector.core.batch import Batch
from deelog_connector.core.effects import OperationsItem
from deelog_connector.core.resets import Resets
from deelog_connector.core.segment import Phase, Segment, in_phase
from deelog_connector.core.snapshots import Snapshots
from deelog_connector.core.state import NodeState
from deelog_connector.core.takeover import Takeover
from deelog_schemas.header import Kind
from deelog_schemas.operation import Reason


class BatchBuilder:
    """See the module."""

    def __init__(self, node: NodeState, takeover: Takeover, resets: Resets, snapshots: Snapshots) -> None:
        self._node = node
        self._takeover = takeover
        self._resets = resets
        self._snapshots = snapshots
        self._next_first = 0

    def next(self, working: list[Segment], due: bool) -> Batch:
        """The next batch, perhaps empty. `due`: the commit interval is over, few operations will do."""
        batch, room = Batch(self._node), self._node.settings.max_batch_size
        working, rotated = self._node.writable(working), list[Segment]()
        self._control(batch, working)
        self._begins(batch, working)
        ready = sum(s.acked - s.sent for s in in_phase(working, Phase.WRITING) if s.acked > s.sent)
        if batch.items or due or ready >= room or in_phase(working, Phase.ROWS):
            rotated = self._rotated(working)
            self._entries(batch, rotated)
            if not batch.items:  # a clear came first in its segment: that is a begin
                self._begins(batch, working)
        if batch.items or due:
            self._chunks(batch, rotated)
        if due:
            self._renewals(batch)
            self._releases(batch, working)
        return batch

    def only(self, numbers: Sequence[int]) -> Batch:
        """The next batch, perhaps empty, with entries of these segments only."""
        batch = Batch(self._node)
        primaries = self._node.writable(self._node.primaries.values())
        group = [s for s in primaries if s.number in numbers]
        self._control(batch, primaries)
        self._begins(batch, group)
        self._entries(batch, group)
        self._chunks(batch, group)
        return batch

    def _rotated(self, working: list[Segment]) -> list[Segment]:
        """These, beginning with another one each time: of all primaries, so that it does not depend on who rests."""
        everyone = self._node.writable(self._node.primaries.values())
        self._next_first = (self._next_first + 1) % max(1, len(everyone))
        before = {segment.number for segment in everyone[: self._next_first]} if working else ()
        return [s for s in working if s.number not in before] + [s for s in working if s.number in before]

    def _control(self, batch: Batch, segments: Sequence[Segment]) -> None:
        for segment in in_phase(segments, Phase.CLAIM, Phase.ACTIVE):
            if segment.phase is Phase.CLAIM:
                self._takeover.claim(batch, segment)
            else:
                self._takeover.active(batch, segment)

    def _begins(self, batch: Batch, segments: Sequence[Segment]) -> None:
        """Of resets of these segments. Who may not write its rows now keeps the keys of its reset, and holds up nobody.

        The keys that Kafka holds take memory: of one partition at a time, whose log is read once for all. One whose log
        cannot be read on holds up nobody either.
        """
        owed, takes_back = in_phase(segments, Phase.OWED), self._node.settings.reset_strategy.takes_back
        collecting = {s.partition for s in segments if s.collects_keys} if owed and takes_back else set()
        collecting -= self._node.hidden
        for segment in owed:
            if not takes_back or collecting <= {segment.partition}:
                collecting.add(segment.partition)
                self._resets.begin(batch, segment)

    def _entries(self, batch: Batch, segments: Sequence[Segment]) -> None:
        for segment in in_phase(segments, Phase.ROWS, Phase.WRITING):
            if batch.is_full:
                return
            if segment.phase is Phase.ROWS:
                self._resets.rows(batch, segment)
            else:
                self._operations(batch, segment)

    def _operations(self, batch: Batch, segment: Segment) -> None:
        room, upto, whole = self._node.settings.max_batch_size - batch.entries, segment.acked, False
        if segment.atomic_to > segment.sent:
            # CHECK correct-phantoms, coalesce-acked: a run that must be in one transaction, however long.
            if segment.acked < segment.atomic_to:
                return
            room, upto, whole = segment.atomic_to - segment.sent, segment.atomic_to, True
        operations = segment.log.after(segment.sent, upto, room)
        for index, operation in enumerate(operations):
            if operation.reason == Reason.CLEAR:
                del operations[index:]
                if not operations:
                    self._resets.clear(segment, operation.position)
                break
        if not operations:
            return
        if whole:
            batch.entries, batch.size = batch.entries + len(operations), batch.size + sum(o.size for o in operations)
        else:
            del operations[batch.take(o.size for o in operations) :]
        last = operations[-1]
        batch.items.append(OperationsItem(segment.number, segment.partition, operations))
        segment.in_flight = max(segment.in_flight, last.sequence)
        batch.position(segment, last.position)
        known, number = self._node.positions, segment.number
        if number in known.resets and known.base_offset(number) == segment.ledger.base_offset:
            # A position of behind its end is read, and what removed it is not: it was cut off the positions topic.
            batch.no_reset_state(segment, last.position)
        batch.advance(segment, last.sequence, operations[0].sequence, len(operations))

    def _chunks(self, batch: Batch, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if batch.chunks and batch.is_full:
                return
            if segment.snapshot is not None and segment.phase is Phase.WRITING and not segment.release_wanted:
                self._snapshots.chunk(batch, segment, segment.snapshot)

    def _renewals(self, batch: Batch) -> None:
        """Positions of idle segments are renewed, so that readers can tell silence from progress.

        One that was lost before it was read is written again.
        """
        node, now = self._node, self._node.now
        interval = node.settings.heartbeat_interval or math.inf
        if now - node.renewed_from < interval:
            return
        for segment in in_phase(node.writable(node.primaries.values()), Phase.WRITING):
            is_due = segment.is_drained and now - segment.renewed_at >= interval
            is_gone = segment.is_unread and segment.sent == segment.last_sequence and not segment.undecided
            if is_due or is_gone:
                segment.renewed_at = now
                batch.position(segment, segment.history[-1], Kind.POSITION_RENEWAL)
                if segment.number in node.positions.resets:  # one that has ended, as what is gone has said
                    batch.no_reset_state(segment, segment.history[-1])
        primaries = node.primaries.values()
        unread = any(segment.is_unread for segment in primaries)
        node.renewed_from = -math.inf if unread else min((segment.renewed_at for segment in primaries), default=now)

    def _releases(self, batch: Batch, segments: Sequence[Segment]) -> None:
        for segment in segments:
            drained = segment.release_wanted and segment.is_drained and not segment.owed
            # Only this node could notice the loss of rows that are not verified.
            if drained and not segment.ledger.has_unverified_rows:
                self._takeover.release(batch, segment)
