"""Resets of the segments that this node writes: who asks for one, what its transactions hold, and when it is over.

A reset is a begin record, all entries of the segment as of one position, and an end record. With a `reset.strategy`
that takes back, deletes of keys that Kafka holds and the cache does not come before the rows.
"""

from __future__ import annotations

from itertools import chain

from deelog_connector.core.batch import Batch
from deelog_connector.core.effects import Effect, ReadRows, RowsItem, TakenBackItem
from deelog_connector.core.ledger import CommittedRun
from deelog_connector.core.reset_strategy import KeysInKafka, Strategy, taken_back
from deelog_connector.core.segment import RESETTING, UNDECIDED, Phase, Requested, Reset, Segment
from deelog_connector.core.settings import StreamState
from deelog_connector.core.snapshot_mode import ResetSchedule
from deelog_connector.core.snapshots import Snapshots
from deelog_connector.core.state import NodeState
from deelog_schemas.digest import entry_digest, format_digest
from deelog_schemas.header import Kind, Position
from deelog_schemas.operation import Entry, Reason


class Resets:
    """See the module."""

    def __init__(self, node: NodeState, snapshots: Snapshots) -> None:
        self._node = node
        self._snapshots = snapshots
        self._to_read: list[tuple[Segment, Reset]] = []
        self.configured()

    def configured(self) -> None:
        """Takes the interval from the settings."""
        self._schedule = ResetSchedule(self._node.settings.segments, self._node.settings.reset_interval)

    # -- requests -------------------------------------------------------------------------------------------------

    def request(self, number: int, reason: str) -> None:
        """A reset of a segment that this node writes: asked for by a signal, an overflow, a loss in Kafka."""
        segment = self._node.segments[number]
        reset = segment.reset
        at_once = segment.phase in (Phase.WRITING, Phase.STOPPED)
        instead = segment.phase is Phase.OWED and reset is not None and reset.reason == Reason.CLEAR
        if at_once or instead:
            segment.reset, segment.generation = None, segment.generation + 1
            segment.owe(reason)
            if at_once:
                # CHECK recheck-after-fence: a stopped segment has looked at nothing since.
                segment.go(Phase.ACTIVE if segment.phase is Phase.STOPPED and segment.recheck else Phase.OWED)
        elif reset is None or reset.position is not None:
            segment.owe(reason)  # after this takeover, or after the reset whose rows are read already
        # CHECK nothing-over-a-hole: from here on nothing of the segment is written but its begin.

    def ask(self, number: int, reason: str) -> None:
        """A reset of any segment: its primary does it.

        The primary may be gone and its successor not be known yet, or not write now, and be superseded before it does:
        each owner remembers the request, and resets if it is promoted and no reset has ended since.
        """
        segment = self._node.segments.get(number)
        if segment is None:
            return
        base_offset = self._node.positions.base_offset(number)
        segment.requested = Requested(reason, base_offset, self._node.changes.topic_id)
        if segment.is_primary:
            self.request(number, reason)

    def requested(self, segment: Segment) -> str | None:
        """The reason of a reset that was asked for before this node was promoted, and that is still to be done."""
        requested = segment.requested
        now = self._node.positions.base_offset(segment.number), self._node.changes.topic_id
        return None if requested is None or now != requested[1:] else requested.reason

    def start_scheduled(self) -> None:
        """`reset.interval.ms`: one segment at a time, and none that is to be released.

        Where records are hidden none is begun, and none that was is waited for.
        """
        primaries, hidden = self._node.primaries, self._node.hidden
        for number in self._schedule.due(self._node.wall_us):
            segment = primaries.get(number)
            others = [other for other in self._node.writable(primaries.values()) if other.partition not in hidden]
            if any(other.phase in RESETTING for other in others):
                return
            if segment is not None and (segment.phase in UNDECIDED or segment.partition in hidden):
                continue
            if segment is not None and segment.phase is Phase.WRITING and not segment.release_wanted:
                self.request(number, "interval")
            self._schedule.done(number)

    # -- what is written ------------------------------------------------------------------------------------------

    def begin(self, batch: Batch, segment: Segment) -> None:
        """Adds the begin of a reset that is owed, or of a captured clear."""
        node = self._node
        reset = segment.reset
        if reset is None:
            begin = (segment.epoch, segment.last_sequence)
            reset = Reset(self._new_id(), segment.owed or "unknown", begin)
            segment.reset, segment.owed = reset, None
        strategy = node.settings.reset_strategy
        fields = {"id": reset.reset_id, "reason": reset.reason, "strategy": str(strategy)}
        marker = batch.control(Kind.RESET_BEGIN, segment, reset.begin, fields)
        segment.await_marker(marker, node.changes.stable_end(segment.partition))
        if strategy.takes_back:
            known = segment.known.position
            segment.collect_keys(KeysInKafka(max(segment.ledger.base_offset, known.base_offset if known else -1)))
        batch.reset_state(segment, reset)
        batch.advance(segment)

    def clear(self, segment: Segment, position: Position) -> None:
        """A captured clear is written as a begin and an end at its position, without rows."""
        segment.reset = Reset(self._new_id(), Reason.CLEAR, position, position=position)
        segment.go(Phase.OWED)

    def rows(self, batch: Batch, segment: Segment) -> None:
        """Adds deletes and rows, at most a chunk of them, until the batch is full; after the last ones the end."""
        reset = segment.reset
        assert reset is not None
        if reset.position is None and (reset.asked or batch.read >= self._node.settings.max_batch_size):
            return  # there may be hundreds of segments, and the loop stands meanwhile
        position = reset.position or self._read_entries(batch, segment, reset)
        if position is None:
            return
        if reset.keys_in_kafka is not None:
            self._take_back(reset, reset.keys_in_kafka)
        # CHECK reset-acked-only: a row whose position is not acknowledged may never have happened.
        if segment.acked < position[1] and reset.reason != Reason.CLEAR:
            return
        if reset.cursor == 0:
            batch.reset_state(segment, reset)  # names the begin's offset before the first row, in the same transaction
        settings, start = self._node.settings, max(0, reset.cursor - len(reset.gone))
        room = min(settings.max_batch_size - batch.entries, settings.chunk_size)
        first = reset.gone[reset.cursor : reset.cursor + room]
        rows = reset.entries[start : max(0, reset.cursor + room - len(reset.gone))]
        fitting = batch.take(chain(map(len, first), (len(e.key) + len(e.value) for e in rows)))
        del first[fitting:], rows[max(0, fitting - len(first)) :]
        upto = reset.cursor + fitting
        ended = upto == reset.size
        place = segment.number, segment.partition, position, reset.reason
        gone = first + [e.key for e in rows if e.key in reset.again]
        batch.entries += len(gone) - len(first)
        if gone:
            batch.items.append(TakenBackItem(*place, gone))
        if rows:
            reset.digest += sum(entry_digest(e.key, e.value) for e in rows)
            batch.items.append(RowsItem(*place, rows, start == 0, ended))
        if ended:
            self._end(batch, segment, reset, position)
        batch.advance(segment, upto, ended=ended)

    def _new_id(self) -> str:
        return f"{self._node.member}/{self._node.next_number()}"

    def _read_entries(self, batch: Batch, segment: Segment, reset: Reset) -> Position | None:
        """The position of the rows; None: a stream is still to read them."""
        cache = self._node.cache
        if isinstance(cache, StreamState):
            self._to_read.append((segment, reset))
            return None
        # Entries and last position are read together, in one step of the one thread that changes both.
        reset.position = (segment.epoch, segment.last_sequence)
        reset.entries = cache.entries(segment.number)
        batch.read += len(reset.entries)
        return reset.position

    def ask_streams(self) -> list[Effect]:
        """Asks streams once for the rows of each reset under way."""
        asked, self._to_read = self._to_read, []
        effects: list[Effect] = []
        for segment, reset in asked:
            if segment.reset is reset:
                reset.asked = True
                effects.append(ReadRows(segment.number, reset.reset_id))
        return effects

    def rows_read(self, number: int, reset_id: str, entries: list[Entry]) -> bool:
        """A stream has read a segment's entries, as `ReadRows` asked, at its last sequence; whether they count."""
        segment = self._node.primaries.get(number)
        reset = segment.reset if segment is not None and segment.phase is Phase.ROWS else None
        if segment is None or reset is None or reset.reset_id != reset_id or reset.position is not None:
            return False
        reset.position, reset.entries = (segment.epoch, segment.last_sequence), entries
        return True

    def _take_back(self, reset: Reset, keys_in_kafka: KeysInKafka) -> None:
        strategy = self._node.settings.reset_strategy
        if strategy is Strategy.TOMBSTONES and self._node.settings.may_skip:
            # A filter may drop the row of a key that such a consumer holds: it must not keep the old value.
            strategy = Strategy.RESEND
        reset.gone, reset.again = taken_back(strategy, keys_in_kafka.keys, reset.entries)
        reset.keys_in_kafka = None

    def _end(self, batch: Batch, segment: Segment, reset: Reset, position: Position) -> None:
        fields = {"id": reset.reset_id, "count": len(reset.entries), "digest": format_digest(reset.digest)}
        if reset.gone:
            fields["taken_back"] = len(reset.gone)  # rows that follow their own delete are among the count
        batch.control(Kind.RESET_END, segment, position, fields)
        segment.ledger.rebase(reset.begin_offset, self._node.changes.leader_epoch(segment.partition))
        segment.count_gaps(position[1])
        batch.position(segment, position)
        batch.no_reset_state(segment, position)
        segment.in_flight = max(segment.in_flight, position[1])

    # -- what came of it ------------------------------------------------------------------------------------------

    def begun(self, segment: Segment) -> None:
        """The begin is read back."""
        assert segment.reset is not None
        segment.reset.begin_offset = segment.marker_offset
        segment.go(Phase.ROWS)

    def rows_committed(self, segment: Segment, cursor: int, ended: bool) -> None:
        """Deletes and rows up to `cursor` are committed; `ended`: the end as well."""
        reset, counts = segment.reset, self._node.counts
        assert reset is not None
        assert reset.position is not None
        deleted = min(cursor, len(reset.gone)) - min(reset.cursor, len(reset.gone))
        counts.reset_deletes += deleted
        counts.reset_rows += cursor - reset.cursor - deleted
        reset.cursor = cursor
        if not ended:
            return
        counts.resets[reset.reason] += 1
        if reset.reason == Reason.CLEAR:
            counts.written += 1
        else:
            self._node.reset_here.add(segment.number)
            self._snapshots.covered_by_reset(segment, len(reset.entries))
        sequence = reset.position[1]
        segment.reset, segment.sent = None, sequence
        segment.ledger.replaced(CommittedRun(sequence, sequence, 0, reset.begin_offset))
        segment.go(Phase.OWED if segment.owed else Phase.WRITING)
