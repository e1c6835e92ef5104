"""Incremental snapshots: a segment's rows are sent once more, by chunks, while changes of it are written."""

from __future__ import annotations

from typing import Final

from deelog_connector.core.batch import Batch, Chunk
from deelog_connector.core.effects import RowsItem, SnapshotRead, SnapshotRefused
from deelog_connector.core.segment import Phase, Segment, Snapshot
from deelog_connector.core.settings import StreamState
from deelog_connector.core.state import NodeState
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry

SNAPSHOT_REASON: Final = "snapshot"
MAX_TRIES: Final = 5
"""Of a key in an incremental snapshot, on average."""


class Snapshots:
    """See the module."""

    def __init__(self, node: NodeState) -> None:
        self._node = node

    def start(self, number: int) -> Snapshot:
        """A new one, instead of any that is under way."""
        snapshot = self._node.segments[number].snapshot = Snapshot()
        return snapshot

    def may_start(self, number: int) -> bool:
        """Whether this node writes a segment, and no incremental snapshot of it is under way."""
        segment = self._node.primaries.get(number)
        return segment is not None and segment.phase is Phase.WRITING and segment.snapshot is None and not segment.owed

    def of(self, number: int) -> Snapshot | None:
        """The incremental snapshot of a segment that is under way."""
        segment = self._node.primaries.get(number)
        return None if segment is None else segment.snapshot

    def vouching(self, number: int) -> tuple[int, bool]:
        """The epoch in which this node is a segment's primary, -1 if it is not, and whether all rows that it has sent
        are vouched for."""
        segment = self._node.primaries.get(number)
        return (-1, False) if segment is None else (segment.epoch, not segment.ledger.has_unverified_rows)

    def stop(self, number: int) -> None:
        """Sends no more of it; what was sent stays."""
        if number in self._node.primaries:
            self._node.primaries[number].snapshot = None

    def chunk(self, batch: Batch, segment: Segment, snapshot: Snapshot) -> None:
        """Adds the rows of the next chunk, where a position for them is known."""
        position = batch.written_to(segment)
        if position is None:
            return
        cache, settings = self._node.cache, self._node.settings
        assert not isinstance(cache, StreamState), "a stream's segment is reset instead"
        if snapshot.keys is None:
            snapshot.keys = [entry.key for entry in cache.entries(segment.number)]
            snapshot.max_keys = MAX_TRIES * len(snapshot.keys)
            snapshot.complete_at = segment.last_sequence  # a removed key lives in Kafka until its delete is written
        if snapshot.cursor == len(snapshot.keys) and position[1] < snapshot.complete_at:
            return
        # The op log holds every operation beyond `position`: an entry whose key has none there is as Kafka has it at
        # that position (so it is acknowledged: CHECK reset-acked-only); any other is written as a change soon.
        pending = segment.log.keys_after(position[1])
        chunk = snapshot.keys[snapshot.cursor : snapshot.cursor + settings.chunk_size]
        rows: list[Entry] = []
        again, size, upto = [], 0, snapshot.cursor
        for key in chunk:
            upto += 1
            if key in pending:
                again.append(key)
            elif (entry := cache.get(segment.number, key)) is not None:
                rows.append(entry)
                size += len(entry.key) + len(entry.value)
                if size >= self._node.max_batch_bytes:
                    break
        if len(rows) < upto - snapshot.cursor:  # what removed an entry may be a clear, which has no key
            snapshot.complete_at = segment.last_sequence
        if settings.may_skip:
            # A filter may drop that change: such a key is tried again, but not for ever.
            snapshot.keys += again[: snapshot.max_keys - len(snapshot.keys)]
        if rows:
            place = (segment.number, segment.partition, position)
            batch.items.append(RowsItem(*place, SNAPSHOT_REASON, rows, False, False, incremental=True))
            batch.entries, batch.size = batch.entries + len(rows), batch.size + size
        elif upto == len(snapshot.keys) and position[1] >= snapshot.complete_at:
            # The end is announced after a transaction only: who does not own the segment any more gets none.
            batch.position(segment, position, Kind.POSITION_RENEWAL)
        batch.chunks.append(Chunk(segment.number, snapshot, upto, len(rows)))

    def committed(self, batch: Batch) -> None:
        """The chunks of this transaction are committed."""
        for chunk in batch.chunks:
            segment, snapshot = self._node.primaries.get(chunk.segment), chunk.snapshot
            if segment is None or segment.snapshot is not snapshot:
                continue
            snapshot.cursor, snapshot.rows = chunk.upto, snapshot.rows + chunk.rows
            if chunk.rows and not self._node.settings.may_skip:  # a filter may have dropped some of them
                segment.ledger.rows_committed(chunk.rows, batch.ends.get(segment.partition, -1))
            self._node.counts.snapshot_rows += chunk.rows
            if snapshot.cursor == len(snapshot.keys or ()) and segment.sent >= snapshot.complete_at:
                self._end(segment, snapshot, SnapshotRead(segment.number, snapshot.rows, segment.epoch))

    def covered_by_reset(self, segment: Segment, rows: int) -> None:
        """A reset has sent all of the segment, and later."""
        if segment.snapshot is not None:
            self._end(segment, segment.snapshot, SnapshotRead(segment.number, rows, segment.epoch))

    def refused(self, segment: Segment, batch: Batch) -> bool:
        """The broker refused a record of this segment: gives up a snapshot with rows in the batch; whether it did."""
        snapshot = segment.snapshot
        if snapshot is None or not any(chunk.segment == segment.number for chunk in batch.chunks):
            return False
        self._end(segment, snapshot, SnapshotRefused(segment.number))
        return True

    def _end(self, segment: Segment, snapshot: Snapshot, effect: SnapshotRead | SnapshotRefused) -> None:
        snapshot.over, segment.snapshot = True, None
        self._node.outbox.append(effect)
