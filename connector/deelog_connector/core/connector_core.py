"""The connector's core: one node's part in the protocol, for all segments of one cache.

It decides, and does no I/O, reads no clock and draws no randomness: events come in as calls, `poll(now)` gives the
effects to carry out (`effects.py`). The shell that carries them out, a simulation, and the tests drive the same code.

Weighed: a coroutine per segment (reads well; but its state is a stack frame that no test can look at, and eighty of
them need eighty transactions), an event loop of actors, and this: plain data per segment (`segment.py`), and in
each poll one transaction that moves every segment that can move.

A call that is not valid in a segment's phase is an assertion: a bug of ours stops the connector rather than lose data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deelog_connector.core import history as past
from deelog_connector.core.batch import SNAPSHOT_REASON, Batch, BatchBuilder, CacheState, Settings
from deelog_connector.core.effects import (
    Cause,
    Commit,
    Corrected,
    Effect,
    Fence,
    OpenProducer,
    Released,
    Scan,
    ScannedRecord,
    SnapshotRead,
    SnapshotRefused,
    SteppedDown,
    Superseded,
)
from deelog_connector.core.history import History
from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.positions_table import PositionsTable
from deelog_connector.core.reset_strategy import KeysInKafka
from deelog_connector.core.rules import (
    advanced_read_from,
    foreign,
    holds_all_after,
    is_overtaken,
    knows_what_it_drops,
    outranking,
    to_correct,
    to_fence,
    where_to_read,
)
from deelog_connector.core.scan import CommittedRun, SegmentScan, reason_to_reset
from deelog_connector.core.segment import RECHECK, Phase, Requested, Segment, Snapshot
from deelog_connector.core.snapshot_mode import ResetSchedule
from deelog_connector.core.timing import RESETTING, UNDECIDED, Timing
from deelog_schemas.keys import partition_of
from deelog_schemas.member import is_newer_process, node_id_of
from deelog_schemas.operation import Operation, Reason, Trace, TracedOperation
from deelog_schemas.positions import ClaimState, PositionState, StateRecord


@dataclass(slots=True)
class Counts:
    """What the core has done since it was made."""

    takeovers: int = 0
    takeover_seconds: list[float] = field(default_factory=list)
    """From promotion to the phase `writing`, of the last `MAX_SAMPLES` takeovers."""
    resets: Counter[str] = field(default_factory=Counter)
    resets_aborted: int = 0
    """Resets that ended since the broker refused one of their rows."""
    reset_rows: int = 0
    snapshot_rows: int = 0
    reset_deletes: int = 0
    """Keys that resets took back before their rows."""
    written: int = 0
    pruned: int = 0
    transactions: int = 0
    refused: int = 0
    """Transactions of this node that were fenced or lost."""
    fenced: int = 0
    corrections: int = 0
    overflows: Counter[str] = field(default_factory=Counter)
    truncations: int = 0
    scans_in_vain: int = 0


MAX_SAMPLES = 10_000
REQUESTED_SECONDS = 60.0
"""How long a backup has a reset in mind that its primary was to do: longer than a node that is gone goes unnoticed."""

_SNAPSHOTS = ("unknown_history", "start")
"""Reasons that are no loss where nothing of a segment stands in Kafka: its first snapshot."""


class ConnectorCore:
    """See the module. `member` is `<node.id>@<incarnation>`; `state` is how the core looks at the cache."""

    def __init__(self, member: str, settings: Settings, state: CacheState) -> None:
        self.member = member
        self.settings = settings
        self.counts = Counts()
        self.timing = Timing()
        self.paused = False
        """Nothing is written while this is set: op logs grow, and takeovers wait with their claims."""
        self.closed = False
        """No producer is opened while this is set; `close_producer` sets it, and who resumes clears it."""
        self.table = PositionsTable()
        self.budget = Budget(settings.max_operations, settings.max_bytes)
        self._state = state
        self._builder = BatchBuilder(member, settings, state)
        self._segments: dict[int, Segment] = {}
        self._primaries: dict[int, Segment] = {}
        self._outbox: list[Effect] = []
        self._incorrect: list[tuple[Segment, int, set[bytes]]] = []
        """Phantoms by segment and turn. They are corrected in `poll`, whose effects are carried out before anything
        else is captured: a write that is told of sooner than a correction before it would overtake it."""
        self._producer = "none"  # none, opening, open
        self._batch: Batch | None = None
        self._token = 0
        self._committed_at = 0.0
        self._suspects: list[list[int]] = []
        """After a refusal: the groups of segments still to be tried by themselves, innermost last."""
        self._fencing: tuple[int, ...] = ()
        self._scanning: dict[int, frozenset[bytes]] = {}
        """By partition the markers that the scan under way was sent for; `_read_to`: how far it has come."""
        self._read_to: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._batch_ends: dict[int, int] = {}
        """The ends as known when the transaction under way was made up."""
        self._cuts: dict[int, int] = {}
        """By partition the leader epoch under which it was last found to be cut."""
        self._turn = 0
        self._turns = ResetSchedule(settings.segments, settings.reset_interval)
        self._reset_once: set[int] = set()
        """Segments that this process has reset."""

    @property
    def segments(self) -> int:
        """`segment.count`."""
        return self.settings.segments

    # -- capture and replication ----------------------------------------------------------------------------------

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
    ) -> Operation:
        """The primary captures an operation: it takes the segment's next position. Never fails, never waits."""
        seg = self._segments[segment]
        operation = Operation(seg.epoch, seg.last_sequence + 1, reason, key, value, expires_at, ts_us, existed, before)
        if trace is not None:
            operation = TracedOperation.of(operation, trace)
        seg.history = past.extended(seg.history, (seg.epoch, operation.sequence))
        seg.log.append(operation)
        return operation

    def apply(self, segment: int, operation: Operation) -> None:
        """A backup applied an operation of the primary. Operations come in sequence order; a hole is noted."""
        seg = self._segment(segment)
        if operation.sequence != seg.last_sequence + 1:
            # A hole means lost operations: never fill it silently.
            seg.log.restart(operation.sequence)
        seg.history = past.extended(seg.history, operation.position)
        if self.has_room(operation.size):
            seg.log.append(operation)
        else:  # backups never block: they drop, and say so by where they are complete from
            self.counts.overflows["backup"] += 1
            seg.log.restart(operation.sequence + 1)

    def acked(self, segment: int, sequence: int) -> None:
        """Operations up to here count as acknowledged in the present epoch."""
        seg = self._segments[segment]
        seg.acked = max(seg.acked, sequence)
        if self.settings.acks_all:
            seg.replicated = seg.acked

    def replicated(self, segment: int, sequence: int) -> None:
        """Every in-sync owner holds the operations up to here."""
        seg = self._segments[segment]
        seg.replicated = max(seg.replicated, sequence)

    def has_room(self, size: int) -> bool:
        """Whether the op logs' budget takes one more operation of `size` bytes (`Operation.size`)."""
        return self.budget.has_room(size)

    def overflow(self, segment: int) -> None:
        """The segment's op log is dropped; its primary owes a reset."""
        seg = self._segments[segment]
        self.counts.overflows["reset" if seg.is_primary else "backup"] += 1
        seg.log.restart(seg.last_sequence + 1)
        if seg.phase is Phase.STOPPED:
            seg.owed = "overflow"  # it waits for somebody to mend what stopped it
        elif seg.is_primary:
            self.request_reset(segment, "overflow")

    def coalesce(self, segment: int) -> int:
        """Older acknowledged operations of a key give way to its newest one; returns how many went."""
        seg = self._segments[segment]
        # Runs that wait merge into one: else each coalescing leaves another operation of every key that changes.
        low = max(seg.sent, seg.in_flight)
        # CHECK coalesce-acked: what is not acknowledged may never have happened and replaces nothing.
        gone = seg.log.coalesce(low, seg.acked) if seg.phase is Phase.WRITING else 0
        if gone:
            seg.atomic_to = max(seg.atomic_to, seg.acked)
            seg.coalesced_to = seg.atomic_to
            self.counts.overflows["coalesce"] += 1
        return gone

    def coalesce_all(self) -> int:
        """Coalesces every segment of this primary; returns how many operations went."""
        return sum(self.coalesce(number) for number in list(self._primaries))

    def make_room(self, segment: int, size: int) -> None:
        """Drops op logs until one more operation of `size` bytes fits.

        Backups' first, the longest of them before the others: that costs a reset only where a takeover follows. Then
        this segment's, then the other primaries'.
        """
        if self.has_room(size):
            return
        long = sorted((s for s in self._segments.values() if len(s.log)), key=lambda s: -len(s.log))
        backups = [s.number for s in long if not s.is_primary]
        primaries = [s.number for s in long if s.is_primary and s.number != segment]
        # Nothing of one that was stopped is pruned, and its way back is a reset: the others shall not pay for it.
        stopped = [s.number for s in long if s.phase is Phase.STOPPED]
        for number in (*stopped, *backups, segment, *primaries):
            if self.has_room(size):
                return
            self.overflow(number)

    def request_reset(self, segment: int, reason: str) -> None:
        """A reset of a segment that this node writes: asked for by a signal, an overflow, a loss in Kafka."""
        seg = self._segments[segment]
        opened = seg.reset
        at_once = seg.phase in (Phase.WRITING, Phase.STOPPED)
        instead = seg.phase is Phase.OWED and opened is not None and opened.reason == Reason.CLEAR
        if at_once or instead:
            seg.reset, seg.owed, seg.turn = None, reason, seg.turn + 1
            if at_once:
                # CHECK recheck-after-fence: one that was stopped looked at nothing while it stood still.
                seg.go(Phase.ACTIVE if seg.phase is Phase.STOPPED and seg.recheck else Phase.OWED)
        elif opened is None or opened.position is not None:
            seg.owed = reason  # after this takeover, or after the reset whose rows are read already
        # CHECK nothing-over-a-hole: from here on nothing of the segment is written but its begin.

    def ask_reset(self, segment: int, reason: str) -> None:
        """The same of any segment, which whoever writes it will do.

        That one may be gone and its successor not be known yet, so that nobody would do it: a backup has it in mind for
        `REQUESTED_SECONDS`, and does it if it is promoted meanwhile and no reset has ended since.
        """
        seg = self._segments.get(segment)
        if seg is not None and seg.is_primary:
            self.request_reset(segment, reason)
        elif seg is not None:
            seg.requested = Requested(reason, self._base_offset(segment), self._now + REQUESTED_SECONDS)

    def _base_offset(self, segment: int) -> int:
        position = self.table.positions.get(segment)
        return position.base_offset if position else -1

    def snapshot(self, segment: int) -> Snapshot:
        """Sends a segment that is being written once more, by chunks, while writes to it go on: `SnapshotRead` tells
        when it is through. A reset meanwhile does the same at once; a takeover, here or elsewhere, forgets it."""
        seg = self._segments[segment]
        found = seg.snapshot = Snapshot()
        if seg.base_offset < 0:
            # Never reset (`snapshot.mode=no_data`): rows outside of a reset would be all that tells of most keys, and
            # readers of ours pass them over. So this is where it gets its base.
            self.request_reset(segment, SNAPSHOT_REASON)
        return found

    def may_snapshot(self, segment: int) -> bool:
        """Whether this node writes a segment, and no incremental snapshot of it is under way."""
        seg = self._primaries.get(segment)
        return seg is not None and seg.phase is Phase.WRITING and seg.snapshot is None and not seg.owed

    def snapshot_of(self, segment: int) -> Snapshot | None:
        """The incremental snapshot that is under way in a segment."""
        seg = self._primaries.get(segment)
        return None if seg is None else seg.snapshot

    def stop_snapshot(self, segment: int) -> None:
        """Sends no more of it; what was sent stays."""
        if segment in self._primaries:
            self._primaries[segment].snapshot = None

    # -- roles ----------------------------------------------------------------------------------------------------

    def promote(self, segment: int, epoch: int, must_reset: str | None = None) -> None:
        """This very member is primary in `epoch`: the takeover begins. `must_reset` says why a reset must come.

        Raises `ValueError` for an epoch that is not above the one this member last owned the segment in.
        """
        seg = self._segment(segment)
        if epoch <= seg.epoch:
            raise ValueError(f"segment {segment}: epoch {epoch} is not above {seg.epoch}")
        seg.epoch, seg.acked, seg.replicated, seg.turn = epoch, 0, 0, seg.turn + 1
        seg.history = past.opened(seg.history, epoch)
        requested, seg.requested = seg.requested, None
        seg.owed = must_reset or seg.owed
        if requested and self._now < requested.until and self._base_offset(segment) == requested.base_offset:
            seg.owed = seg.owed or requested.reason
        seg.reset, seg.recheck, seg.release_wanted, seg.promoted_at = None, False, False, None
        seg.noted = Phase.IDLE
        seg.snapshot = None
        seg.watched, seg.unwatched = [], []
        seg.victims, seg.atomic_to = frozenset(), 0
        seg.go(Phase.CLAIM)
        self._primaries[segment] = seg

    def demote(self, segment: int) -> None:
        """Is backup from now on, or will be: history and op log stay."""
        seg = self._segment(segment)
        seg.go(Phase.IDLE)
        seg.reset, seg.owed, seg.marker, seg.release_wanted, seg.snapshot = None, None, None, False, None
        self._primaries.pop(segment, None)

    def forget(self, segment: int) -> None:
        """No owner any more: history and op log are gone."""
        seg = self._segments.pop(segment, None)
        self._primaries.pop(segment, None)
        if seg is not None:
            seg.log.restart(1)

    def release(self, segment: int) -> None:
        """Gives a segment away, or stops: once everything is written, its release is committed and read back."""
        self._segments[segment].release_wanted = True

    def keep(self, segment: int) -> bool:
        """Takes a release back, where it is not on its way to Kafka; whether it did."""
        seg = self._segments[segment]
        if seg.phase not in (Phase.RELEASING, Phase.RELEASED):
            seg.release_wanted = False
        return not seg.release_wanted

    # -- catch-up -------------------------------------------------------------------------------------------------

    def history(self, segment: int) -> History:
        """What this node knows of the segment's past; empty where it never heard of it."""
        seg = self._segments.get(segment)
        return seg.history if seg else ()

    def last_sequence(self, segment: int) -> int:
        """The highest sequence assigned or applied."""
        return past.last_of(self.history(segment))

    def complete_from(self, segment: int) -> int:
        """No operation at or above this is missing from the op log."""
        return self._segment(segment).log.complete_from

    def operations_after(self, segment: int, sequence: int) -> list[Operation] | None:
        """What a backup that holds up to `sequence` lacks; None where the op log has not all of it."""
        log = self._segment(segment).log
        # CHECK catch-up-by-ops: by operations wherever that is possible, so that the backup can resume one day.
        if not holds_all_after(log.complete_from, sequence):
            return None
        found = [o for o in log if o.sequence > sequence]
        # What was coalesced away is missing: no backup can apply what follows as operations.
        return found if len(found) == self.last_sequence(segment) - sequence else None

    def truncate(self, segment: int, sequence: int) -> list[bytes] | None:
        """Drops what the new primary does not have; the keys it touched, or None where they are not known any more."""
        seg = self._segment(segment)
        if not knows_what_it_drops(seg.log.complete_from, seg.last_sequence, sequence):
            return None
        dropped = seg.log.cut(sequence)
        seg.history = past.cut(seg.history, sequence)
        if seg.written is not None:  # it speaks of one's own history
            seg.written = min(seg.written, sequence)
        if any(o.reason == Reason.CLEAR for o in dropped):
            return None
        return sorted({o.key for o in dropped})

    def adopt(self, segment: int, history: History) -> None:
        """Takes the primary's history, cut at what this backup holds of it; more comes by `apply`."""
        seg = self._segment(segment)
        held = seg.last_sequence
        assert past.common_point(history, seg.history) == held, f"segment {segment}: truncate before adopt"
        seg.history = past.cut(history, held) if past.last_of(history) > held else history

    def install(self, segment: int, history: History, sequence: int) -> None:
        """A transferred state cut at `sequence` was swapped in whole."""
        seg = self._segment(segment)
        # CHECK transfer-is-not-ops: what came as state is in no op log; this node can vouch only for what follows.
        seg.log.restart(sequence + 1)
        seg.history = past.cut(history, sequence) if past.last_of(history) > sequence else history
        seg.written = None

    # -- looking --------------------------------------------------------------------------------------------------

    def phase(self, segment: int) -> str:
        """The segment's phase; `idle` for a backup."""
        seg = self._segments.get(segment)
        return str(seg.phase if seg else Phase.IDLE)

    def written(self, segment: int) -> int | None:
        """The highest sequence of its own history that Kafka is known, by reading back, to hold."""
        seg = self._segments.get(segment)
        return seg.written if seg else None

    def highest_claim(self) -> int:
        """The highest epoch ever claimed, 0 for none."""
        return self.table.highest_claim

    def primaries(self) -> Sequence[Segment]:
        """The segments that this node is primary of."""
        return list(self._primaries.values())

    def owned(self) -> Sequence[Segment]:
        """The segments that this node knows of, as primary or as backup."""
        return list(self._segments.values())

    def captured_after(self, segment: int, sequence: int) -> int | None:
        """When the first operation beyond `sequence` that the op log has was captured, Unix microseconds."""
        seg = self._segments.get(segment)
        found = seg.log.after(sequence, seg.last_sequence, 1) if seg else []
        return found[0].ts_us if found else None

    @property
    def finished(self) -> bool:
        """Whether the snapshot is all that was asked for (`snapshot.mode=initial_only`), and stands in Kafka."""
        done = all(s.phase is Phase.WRITING and not s.owed for s in self._primaries.values())
        return not self.settings.snapshot_mode.goes_on and bool(self._primaries) and done

    def unwritten(self) -> int:
        """Operations of primaries that Kafka is not known to hold, and resets that are not over."""
        return sum(
            1 if s.phase is not Phase.WRITING or s.owed else s.last_sequence - (s.written or 0)
            for s in self._primaries.values()
            if s.phase is not Phase.RELEASED
        )

    # -- events: the positions topic, watched ends, the signal ------------------------------------------------------

    def state_read(self, record: StateRecord) -> None:
        """The next record of the positions topic; the shell reads all its partitions from the beginning on."""
        self.table.apply(record)
        seg = self._segments.get(record.segment)
        state = record.state
        if seg is None or state is None:
            return
        if isinstance(state, PositionState):
            self._position_read(seg, state)
        elif isinstance(state, ClaimState) and state.member == self.member and state.number == seg.awaited:
            # CHECK read-to-own-record: what was known when one's own record came, no later and no earlier.
            seg.awaited, seg.known = 0, self.table.known(seg.number)
            self._start_scan(seg)

    def _position_read(self, seg: Segment, state: PositionState) -> None:
        # CHECK prune-in-history: a position that this node never had says nothing of its own operations.
        if not past.holds(seg.history, state.position):
            return
        before = seg.written
        seg.written = max(before or 0, state.sequence)
        self.counts.pruned += seg.log.prune(state.sequence)
        # CHECK read-from-trails: only what every in-sync owner holds lies below.
        advanced = advanced_read_from(seg.candidate, seg.written, seg.replicated, seg.atomic_to)
        if advanced is not None and seg.candidate is not None:
            seg.read_from, seg.read_from_sequence = advanced, seg.candidate[1]
            seg.candidate = None

    def end_of(self, partition: int) -> tuple[int, int]:
        """The last stable offset that was seen, and the leader epoch then; (-1, -1) before the first."""
        return self._ends.get(partition, -1), self._builder.leader_epochs.get(partition, -1)

    def doubts(self, partition: int, offset: int, leader_epoch: int) -> bool:
        """Whether the log itself must be asked if it still is what it was: it ends below an offset that was seen, or
        has another leader, under whom it may have been cut and have grown again past that offset."""
        seen, epoch = self.end_of(partition)
        return seen > 0 and (offset < seen or leader_epoch != epoch)

    def end_read(self, partition: int, offset: int, leader_epoch: int, intact: bool | None = None) -> list[int]:
        """The partition's last stable offset as the broker gave it just now; the segments that lost records, if any.

        `intact` is what the log answered where `doubts` asked for it: whether it still holds all up to the offset seen
        last, under the leader epoch of then. Not asked, an end below that offset is a truncation: those segments owe a
        reset. An intact log that ends below is a broker that has just come back: its high watermark trails. Under
        another leader, what was committed since then is looked for: the segments read again what Kafka holds.
        """
        seen, epoch = self.end_of(partition)
        if intact and offset < seen:
            return []
        self._builder.leader_epochs[partition] = leader_epoch
        self._ends[partition] = offset
        if intact is False or offset < seen:
            self.counts.truncations += 1
            self._cuts[partition] = leader_epoch
            return self._lost(partition, "truncated")
        for seg in self._primaries.values():
            if seg.partition != partition:
                continue
            if epoch not in (-1, leader_epoch):
                self._recheck(seg)
            if seg.phase is not Phase.WRITING:
                continue  # what was committed is looked for first
            seg.watched, seg.unwatched = seg.unwatched, []
            # Whatever stands below this offset was put into a transaction before now. Only the next look, which finds
            # the log whole, vouches for what was in flight at this one.
            if seg.candidate is None and seg.seen is not None and (seg.written or 0) >= seg.seen[1]:
                seg.candidate, seg.seen = seg.seen, None
            if seg.seen is None:
                seg.seen = (offset, max(seg.in_flight, seg.sent))
        return []

    def topic_is(self, topic_id: str) -> None:
        """The change topic's id. Another one than before means that it was deleted and made again."""
        before, self._builder.topic_id = self._builder.topic_id, topic_id
        if before and before != topic_id:
            self._ends.clear()
            self._cuts.clear()
            for partition in range(self.settings.partitions):
                self._ends[partition] = 0
                self._lost(partition, "topic_recreated")
            self._reopen()

    def _lost(self, partition: int, reason: str) -> list[int]:
        concerned = [s for s in self._primaries.values() if s.partition == partition]
        for seg in concerned:
            seg.owed, seg.read_from, seg.base_offset, seg.written = reason, 0, 0, None
            seg.candidate = seg.seen = None
            self._recheck(seg)  # whatever it waits for may be gone as well
        return [s.number for s in concerned]

    # -- events: answers to effects -------------------------------------------------------------------------------

    def producer_opened(self) -> None:
        """A new session of the producer is open."""
        self._producer = "open"

    def committed(self, token: int) -> None:
        """The transaction is committed, says the client. What that means for positions is read back."""
        batch = self._take(token)
        self.counts.transactions += 1
        for advance in batch.advances:
            seg = self._primaries.get(advance.segment)
            if seg is None or seg.turn != advance.turn or seg.phase is not advance.phase:
                continue
            seg.asked_at = self._now
            if seg.phase is Phase.CLAIM:
                seg.go(Phase.LOOK)
                self._start_scan(seg)
            elif seg.phase is Phase.ACTIVE:
                seg.go(Phase.READ)
                seg.victims = frozenset()
                self._start_scan(seg)
            elif seg.phase is Phase.OWED:
                seg.go(Phase.BEGUN)
            elif seg.phase is Phase.ROWS:
                self._rows_committed(seg, advance.value, advance.ended)
            elif seg.phase is Phase.WRITING:
                self.counts.written += advance.value - seg.sent
                seg.sent = advance.value
                above = self._batch_ends.get(seg.partition, -1)
                seg.wrote(CommittedRun(advance.first, advance.value, advance.count, above))
        if self._suspects and batch.writers and not self._untested(self._suspects[-1]):
            self._suspects.pop()
        self._chunks_written(batch)

    def _chunks_written(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            seg, snapshot = self._primaries.get(chunk.segment), chunk.snapshot
            if seg is None or seg.snapshot is not snapshot:
                continue
            snapshot.cursor, snapshot.rows = chunk.upto, snapshot.rows + chunk.rows
            if chunk.rows and not self.settings.may_skip:  # else some of them may have been left out on their way
                seg.wrote_beside(chunk.rows, self._batch_ends.get(seg.partition, -1))
            self.counts.snapshot_rows += chunk.rows
            if snapshot.cursor == len(snapshot.keys or ()) and seg.sent >= snapshot.behind:
                self._snapshot_over(seg, SnapshotRead(seg.number, snapshot.rows))

    def _snapshot_over(self, seg: Segment, told: SnapshotRead | SnapshotRefused) -> None:
        assert seg.snapshot is not None
        seg.snapshot.over, seg.snapshot = True, None
        self._outbox.append(told)

    def _rows_committed(self, seg: Segment, cursor: int, ended: bool) -> None:
        reset = seg.reset
        assert reset is not None
        assert reset.position is not None
        deleted = min(cursor, len(reset.gone)) - min(reset.cursor, len(reset.gone))
        self.counts.reset_deletes += deleted
        self.counts.reset_rows += cursor - reset.cursor - deleted
        reset.cursor = cursor
        if not ended:
            return
        self.counts.resets[reset.reason] += 1
        self.counts.written += reset.reason == Reason.CLEAR
        if reset.reason != Reason.CLEAR:
            self._reset_once.add(seg.number)
            if seg.snapshot is not None:  # the reset sent all of it, and later
                self._snapshot_over(seg, SnapshotRead(seg.number, len(reset.entries)))
        seg.reset, seg.sent = None, reset.position[1]
        seg.wrote(CommittedRun(reset.position[1], reset.position[1], 0, reset.begin_offset))
        seg.atomic_to = 0
        seg.go(Phase.OWED if seg.owed else Phase.WRITING)

    def commit_failed(self, token: int, cause: Cause) -> None:
        """The transaction is not committed, or nobody knows."""
        batch = self._take(token)
        if cause is Cause.REFUSED:
            self._bisect(batch)
        else:
            self.counts.refused += 1
        self._reopen()

    @property
    def idle(self) -> bool:
        """Nothing is under way in Kafka: no transaction, no session being opened, no scan."""
        return self._batch is None and self._producer != "opening" and not self._scanning

    def opening_given_up(self) -> None:
        """The session that was asked for does not come. `poll` asks for another, unless `closed`."""
        assert self._producer == "opening"
        self._producer = "none"

    def close_producer(self) -> None:
        """Ends the session of a paused connector. Behind the next one every segment looks again, as after a failure."""
        assert self.paused, "what is not paused would open another session at once"
        assert self.idle, "a transaction, an open or a scan is under way"
        self.closed = True
        self._reopen()

    def configured(self, settings: Settings) -> None:
        """Other limits and times from now on; the map of segments stays."""
        assert (settings.segments, settings.partitions) == (self.settings.segments, self.settings.partitions)
        self.settings = self._builder.settings = settings
        self.budget.max_operations, self.budget.max_bytes = settings.max_operations, settings.max_bytes

    def _bisect(self, batch: Batch) -> None:
        """The broker refused a record: find its segment by halves; it stops, visibly, and the others go on."""
        writers = batch.writers
        if self._suspects:
            self._suspects.pop()
        if len(writers) > 1:
            half = len(writers) // 2
            self._suspects += [writers[half:], writers[:half]]
            return
        for number in writers:
            seg = self._primaries.get(number)
            if seg and seg.snapshot is not None and any(c.segment == number for c in batch.chunks):
                # Perhaps it was a row of that: the operations are tried again without.
                self._snapshot_over(seg, SnapshotRefused(number))
            elif seg and seg.phase in (Phase.WRITING, Phase.ROWS):
                self.counts.resets_aborted += seg.phase is Phase.ROWS
                seg.reset, seg.stopped_by = None, "the broker refused a record of it (too large?)"
                seg.go(Phase.STOPPED)

    def _untested(self, group: Iterable[int]) -> bool:
        """Whether a suspect has yet to write what it may be stopped for: a reset does it a chunk at a time."""
        found = [seg for number in group if (seg := self._primaries.get(number)) is not None]
        return any(seg.phase in UNDECIDED or seg.phase in RESETTING for seg in found)

    def _reopen(self) -> None:
        """Nothing is assumed of what was under way: a new session, and each segment looks again (section 6)."""
        if self._producer != "opening":  # a session that is not open yet holds nothing
            self._producer = "none"
        for seg in self._primaries.values():
            # CHECK recheck-after-fence
            self._recheck(seg)

    def _recheck(self, seg: Segment) -> None:
        target = RECHECK.get(seg.phase)
        if target is None:
            return
        seg.recheck, seg.turn = target is not Phase.CLAIM, seg.turn + 1
        seg.owed = seg.owed or (seg.reset.reason if seg.reset and seg.reset.reason != Reason.CLEAR else None)
        seg.reset, seg.marker, seg.scan = None, None, None
        if seg.phase is not target:
            seg.phase = target

    def fenced(self, segments: Iterable[int]) -> None:
        """The claimants of these segments are fenced."""
        for number in segments:
            self._fencing = ()
            seg = self._primaries.get(number)
            if seg and seg.phase is Phase.FENCE:
                seg.go(Phase.ACTIVE)

    def scanned(self, partition: int, records: Iterable[ScannedRecord]) -> None:
        """Records of the change topic, in offset order; those that nobody waits for are passed over."""
        # A scan serves those whose marker it was sent for: whoever began to wait since may want what it has passed.
        served = self._scanning.get(partition, frozenset())
        for record in records:
            self._read_to[partition] = record.offset + 1
            seg = self._primaries.get(record.segment)
            if seg is None or seg.marker not in served or not seg.listens:
                continue
            if seg.marker_offset >= 0 or record.offset < seg.scan_next:
                continue
            seg.scan_next = record.offset + 1
            if record.key == seg.marker:
                seg.marker_offset = record.offset
            elif seg.scan is not None:
                seg.scan.apply(record)
            elif seg.reset is not None and seg.reset.held is not None:
                seg.reset.held.apply(record)

    def scan_ended(self, partition: int, reached: bool) -> None:
        """A scan is over; not reached: somebody's open transaction hides the rest."""
        served, read_to = self._scanning.pop(partition, frozenset()), self._read_to.pop(partition, -1)
        concerned = [s for s in self._primaries.values() if s.partition == partition and s.marker is not None]
        if not reached:
            self.counts.scans_in_vain += 1
            self._fence_superseded(concerned)
        for seg in concerned:
            if seg.marker in served and seg.marker_offset < 0:
                # All up to there was offered to it, though its own last record may lie far below. To one that has found
                # its marker nothing was offered behind that.
                seg.scan_next = max(seg.scan_next, read_to)
            held = seg.reset.held if seg.reset is not None else None
            if held is not None and (held.in_vain or (seg.marker_offset >= 0 and not held.whole)):
                seg.gather(KeysInKafka(-1))
            elif seg.marker_offset >= 0:
                seg.marker = None
                self._marker_read(seg)

    def _fence_superseded(self, concerned: Sequence[Segment]) -> None:
        members = {
            member
            for seg in concerned
            for epoch, member in self.table.claimants(seg.number)
            if epoch < seg.epoch and node_id_of(member) != node_id_of(self.member)
        }
        if members:
            self._outbox.append(Fence(frozenset(map(node_id_of, members)), ()))
            self.counts.fenced += len(members)

    # -- the takeover ---------------------------------------------------------------------------------------------

    def _start_scan(self, seg: Segment) -> None:
        """Once the claim is committed and read on the positions topic: from where to read the change topic."""
        if seg.phase not in (Phase.LOOK, Phase.READ) or seg.awaited or seg.scan is not None:
            return
        seg.scan = SegmentScan(seg.history)
        if seg.owed is not None:
            return  # a reset comes whatever stands there; read on from the end that was known before
        position, seg.read_from = seg.known.position, -1
        start = where_to_read(seg.history, seg.epoch, position, seg.known.reset, self._builder.topic_id)
        seg.owed = start.owed
        if position is not None and position.leader_epoch < self._cuts.get(seg.partition, -1):
            seg.owed = "truncated"  # its last owner did not live to say so
        elif start.offset is not None:
            seg.scan.written = start.written
            seg.read_from = start.offset
            # One's own record stands behind the end that was seen before it, and that may lie below where the position
            # says, in a log that was cut.
            seg.scan_next = min(start.offset, seg.scan_next)
            seg.base_offset = position.base_offset if position else -1
            self._expect(seg, position, start.written is not None and seg.known.reset is None)

    def _expect(self, seg: Segment, position: PositionState | None, trusted: bool) -> None:
        """What READ must find, by the positions topic. `trusted`: it begins at the position's `read_from`."""
        assert seg.scan is not None
        seg.read_from_sequence = -1
        if position is None:
            return
        leader_epoch = self._builder.leader_epochs.get(seg.partition, -1)
        seg.coalesced_to = max(seg.coalesced_to, position.coalesced_to)
        if not trusted:
            seg.scan.told = position.sequence  # beyond this history: who has read it, and is not told, keeps it
            end = past.end_of(seg.history, position.epoch)
            above = past.last_of(seg.history) if end < 0 else end
        else:
            above = seg.read_from_sequence = position.read_from_sequence
            if position.sequence > above:
                seg.scan.expected = position.sequence
        if position.member != self.member or not seg.recheck:
            # By a promotion a member forgets its own runs: then what it wrote is missed as another's would be.
            seg.scan.others = (max(above, seg.coalesced_to), seg.scan_next)
            seg.scan.unwatched = position.leader_epoch != leader_epoch
        seg.scan.runs = [*seg.watched, *seg.unwatched]
        seg.scan_next = min([seg.scan_next, *(run.offset for run in seg.scan.runs)])
        seg.scan.from_begin = seg.scan_next <= position.base_offset

    def _marker_read(self, seg: Segment) -> None:
        if seg.phase is Phase.LOOK:
            self._look(seg)
        elif seg.phase is Phase.READ:
            self._decide(seg)
        elif seg.phase is Phase.BEGUN:
            assert seg.reset is not None
            seg.reset.begin_offset = seg.marker_offset
            seg.go(Phase.ROWS)
        elif seg.phase is Phase.RELEASING:
            seg.go(Phase.RELEASED)
            self._outbox.append(Released(seg.number))

    def _look(self, seg: Segment) -> None:
        """CLAIM is read: step down before a higher claim, else fence every other claimant."""
        assert seg.scan is not None
        # CHECK claim-then-look
        if self._step_down(seg, seg.known.ranked | seg.scan.claims):
            return
        seg.victims = to_fence(seg.known.claims | seg.scan.claims, self.member)
        # CHECK fencing, claim-before-fence: the claim stands; now nobody before it may write behind it.
        seg.go(Phase.FENCE if foreign(seg.victims, self.member) else Phase.ACTIVE)

    def _step_down(self, seg: Segment, seen: Iterable[tuple[int, str]]) -> bool:
        found = outranking(seen, seg.epoch, self.member)
        if found is None:
            return False
        epoch, member = found
        if is_newer_process(member, self.member):
            self._outbox.append(Superseded(member))
            return True
        self.demote(seg.number)
        self._outbox.append(SteppedDown(seg.number, f"{member} claimed epoch {epoch}, above {seg.epoch}"))
        return True

    def _decide(self, seg: Segment) -> None:
        """ACTIVE is read: resume behind what Kafka holds, or owe a reset."""
        scan = seg.scan
        assert scan is not None
        if seg.recheck and self._step_down(seg, seg.known.ranked | scan.claims):
            return
        seg.recheck = False
        reason = reason_to_reset(scan, seg.log.complete_from, seg.owed, seg.known.reset is not None)
        unwritten = seg.log.after(scan.written or 0, seg.last_sequence, 1)
        if reason is None and is_overtaken(unwritten[0].position if unwritten else None, scan.ahead):
            reason = "phantom_ahead"
        in_kafka = seg.known.position is not None or seg.known.reset is not None
        lost = reason is not None and (in_kafka or reason not in _SNAPSHOTS or seg.log.complete_from > 1)
        # No mode holds back what repairs a loss.
        snapshot = self.settings.snapshot_mode.snapshot(in_kafka, seg.number not in self._reset_once)
        if lost or snapshot:
            seg.owed = "initial" if reason == "unknown_history" and not in_kafka else reason or snapshot
            seg.go(Phase.OWED)
            return
        if not in_kafka:
            self._begin_without_data(seg, scan)
        assert scan.written is not None
        seg.go(Phase.WRITING)
        offset = min([seg.read_from, *(run.offset for run in scan.runs)])
        seg.watched, seg.unwatched = [], scan.inherited() or scan.to_find_again(offset)
        seg.written = seg.sent = seg.in_flight = scan.written
        seg.candidate = seg.seen = None
        self.counts.pruned += seg.log.prune(scan.written)
        if scan.phantoms:
            self._incorrect.append((seg, seg.turn, scan.phantoms))

    def _begin_without_data(self, seg: Segment, scan: SegmentScan) -> None:
        """The segment's life in Kafka begins at its ACTIVE, with the first operation of its history."""
        seg.owed, scan.written = None, 0
        seg.read_from, seg.read_from_sequence, seg.base_offset = seg.marker_offset, 0, -1

    def _correct(self, seg: Segment, phantoms: set[bytes]) -> None:
        # An operation that is pending makes up for a phantom of its key, unless it may tell nothing.
        pending = set() if self.settings.may_skip else seg.log.keys_after(seg.sent)
        operations = []
        for key in to_correct(phantoms, pending):
            entry = self._state.get(seg.number, key)
            # CHECK correct-phantoms: what no survivor holds gives way to what this node's state holds.
            value, expires_at = (entry.value, entry.expires_at) if entry else (None, None)
            operations.append(self.append(seg.number, Reason.CORRECT, key, value, expires_at, self._wall_us, True))
        if operations:
            self.counts.corrections += len(operations)
            seg.atomic_to = seg.last_sequence
            self._outbox.append(Corrected(seg.number, operations))

    # -- poll -----------------------------------------------------------------------------------------------------

    _now = 0.0
    _wall_us = 0

    def poll(self, now: float, wall_us: int) -> list[Effect]:
        """What to do now. Call again after every event, and at `next_poll()` at the latest.

        `now` is in seconds of a clock that never goes back; a wall clock that is put back would end all writing until
        it has caught up. `wall_us` is Unix microseconds, for what is captured here.
        """
        self._now, self._wall_us = now, wall_us
        self._note_times(now)
        self._lose_patience(now)
        self._reset_in_turn(wall_us)
        incorrect, self._incorrect = self._incorrect, []
        for seg, turn, phantoms in incorrect:
            if self._primaries.get(seg.number) is seg and seg.turn == turn and seg.phase is Phase.WRITING:
                self._correct(seg, phantoms)
        effects, self._outbox = self._outbox, []
        if self._producer == "none" and self._batch is None and not self.closed:
            self._producer = "opening"
            effects.append(OpenProducer())
        effects += self._fences()
        effects += self._scans()
        if self._producer == "open" and self._batch is None and not self.paused:
            batch = self._next_batch(now)
            if batch.items:
                self._batch, self._batch_ends = batch, dict(self._ends)
                self._token += 1
                self._committed_at = now
                effects.append(Commit(self._token, batch.items))
            else:
                self._chunks_written(batch)  # of keys that are gone, or come as changes: there is nothing to write
                effects, self._outbox = effects + self._outbox, []
        return effects

    def next_poll(self, now: float) -> float:
        """Seconds until `poll` has something to do without any event."""
        return max(0.0, self._committed_at + self.settings.commit_interval - now)

    def _note_times(self, now: float) -> None:
        changed = self.timing.resetting
        for seg in self._primaries.values():
            if seg.phase is not seg.noted:
                self.timing.changed(seg, now)
                changed = True
            if seg.promoted_at is None and seg.phase in UNDECIDED:
                seg.promoted_at = now
            elif seg.promoted_at and seg.phase is Phase.WRITING:
                self.counts.takeovers += 1
                self.timing.takeovers.add(now - seg.promoted_at)
                self.counts.takeover_seconds.append(now - seg.promoted_at)
                del self.counts.takeover_seconds[:-MAX_SAMPLES]
                seg.promoted_at = 0.0
        if changed:
            self.timing.resets(self._primaries.values(), now)

    def _lose_patience(self, now: float) -> None:
        """An open transaction on the positions topic hides one's own record for too long: fence who is superseded."""
        waiting: list[Segment] = []
        for seg in self._primaries.values():
            asked = seg.awaited and seg.phase in (Phase.LOOK, Phase.READ)
            if asked and now - seg.asked_at >= self.settings.patience:
                seg.asked_at = now
                waiting.append(seg)
        if waiting:
            self.counts.scans_in_vain += 1
            self._fence_superseded(waiting)

    def _reset_in_turn(self, wall_us: int) -> None:
        """`reset.interval.ms`: one at a time, and none that is to be given away."""
        for number in self._turns.waiting(wall_us):
            seg = self._primaries.get(number)
            if any(s.phase in RESETTING for s in self._primaries.values()):
                return
            if seg is not None and seg.phase in UNDECIDED:
                continue
            if seg is not None and seg.phase is Phase.WRITING and not seg.release_wanted:
                self.request_reset(number, "interval")
            self._turns.over(number)

    def _fences(self) -> list[Effect]:
        if self._fencing:
            return []
        waiting = [s for s in self._primaries.values() if s.phase is Phase.FENCE]
        if not waiting:
            return []
        members = {m for s in waiting for m in foreign(s.victims, self.member)}
        self._fencing = tuple(s.number for s in waiting)
        self.counts.fenced += len(members)
        return [Fence(frozenset(map(node_id_of, members)), self._fencing)]

    def _scans(self) -> list[Effect]:
        waiting: dict[int, list[Segment]] = {}
        in_flight = {i.segment for i in self._batch.items} if self._batch else set()
        for seg in self._primaries.values():
            if seg.listens and seg.number not in in_flight:
                waiting.setdefault(seg.partition, []).append(seg)
        effects: list[Effect] = []
        for partition, found in waiting.items():
            if partition in self._scanning:
                continue
            # What consumers hold may begin far below, and nobody waits for it: takeovers go first.
            found = [s for s in found if not s.gathers] or found
            markers = frozenset(s.marker for s in found if s.marker is not None)
            self._scanning[partition] = markers
            keys = frozenset(s.number for s in found if s.gathers)
            effects.append(Scan(partition, min(s.scan_next for s in found), markers, keys))
        return effects

    def _next_batch(self, now: float) -> Batch:
        batch, room = Batch(), self.settings.max_batch_size
        primaries = list(self._primaries.values())
        self._builder.control(batch, primaries, lambda p: self._ends.get(p, -1))
        if self._suspects:
            group = [s for s in primaries if s.number in self._suspects[-1]]
            self._builder.entries(batch, group, room)
            self._builder.snapshots(batch, group, room)
            if not batch.items and not self._untested(self._suspects[-1]):
                self._suspects.pop()
            return batch
        ready = sum(s.acked - s.sent for s in primaries if s.phase is Phase.WRITING and s.acked > s.sent)
        due = now - self._committed_at >= self.settings.commit_interval
        if batch.items or due or ready >= room or any(s.phase is Phase.ROWS for s in primaries):
            self._turn = (self._turn + 1) % max(1, len(primaries))
            self._builder.entries(batch, primaries[self._turn :] + primaries[: self._turn], room)
            if not batch.items:  # a clear came first in its segment: that is a begin
                self._builder.control(batch, primaries, lambda p: self._ends.get(p, -1))
        if batch.items or due:
            self._builder.snapshots(batch, primaries[self._turn :] + primaries[: self._turn], room)
        if due:
            self._builder.renewals(batch, primaries, now)
            self._releases(batch, primaries)
        return batch

    def _releases(self, batch: Batch, primaries: Sequence[Segment]) -> None:
        for seg in primaries:
            drained = seg.phase is Phase.WRITING and seg.written == seg.sent == seg.last_sequence and not seg.owed
            if seg.release_wanted and drained and not seg.watches_beside:
                seg.go(Phase.RELEASING)
                self._builder.release(batch, seg, self._ends.get(seg.partition, -1))

    def _take(self, token: int) -> Batch:
        batch, self._batch = self._batch, None
        assert batch is not None
        assert token == self._token, f"transaction {token} is not under way"
        return batch

    def _segment(self, number: int) -> Segment:
        seg = self._segments.get(number)
        if seg is None:
            if not 0 <= number < self.settings.segments:
                raise ValueError(f"segment {number} is not one of {self.settings.segments}")
            partition = partition_of(number, self.settings.partitions, self.settings.segments)
            seg = self._segments[number] = Segment(number, partition, OpLog(self.budget))
        return seg
