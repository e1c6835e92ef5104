"""The connector's core: one node's part in the protocol, for all segments of one cache.

It decides, and does no I/O, reads no clock and draws no randomness: events come in as calls, `poll(now)` returns the
effects to carry out (`effects.py`). The shell that carries them out, a simulation, and the tests drive the same code.
Each segment is plain data (`segment.py`); each poll has one transaction, which moves every segment that can move.

A call that is not valid in a segment's phase is an assertion: a bug of ours stops the connector rather than lose data.
Alternatives: docs/decisions.md, "One state per segment, one transaction for all".
"""

from __future__ import annotations

from collections.abc import Sequence

from deelog_connector.core.effects import Effect, EndHanging, PositionRead, Superseded
from deelog_connector.core.fencing import Fencing
from deelog_connector.core.hanging import HangingTransactions
from deelog_connector.core.log_watch import LogWatch
from deelog_connector.core.oplog import Budget
from deelog_connector.core.replica import Replica
from deelog_connector.core.resets import Resets
from deelog_connector.core.room import Room
from deelog_connector.core.scans import Scans
from deelog_connector.core.segment import POSITIONS_LOST, Phase, Segment, Snapshot
from deelog_connector.core.settings import CacheState, Settings, StreamState
from deelog_connector.core.snapshots import SNAPSHOT_REASON, Snapshots
from deelog_connector.core.state import NodeState
from deelog_connector.core.takeover import Takeover
from deelog_connector.core.timing import Timing
from deelog_connector.core.transactions import Transactions
from deelog_schemas.member import Member, is_newer_process
from deelog_schemas.positions import ClaimState, PositionState, StateRecord


class ConnectorCore:
    """See the module. `member` is `<node.id>@<incarnation>`; `cache` is the core's view of the cache.

    Two processes that start in the same millisecond are one member. Each gives a `first_number` of its own, at random,
    and so tells its claims from the other's.

    Most of its methods are those of its parts, which `__init__` lists. `segment` is a segment's number everywhere.
    """

    def __init__(self, member: str, settings: Settings, cache: CacheState | StreamState, first_number: int = 0) -> None:
        budget = Budget(settings.max_operations, settings.max_bytes)
        self._node = node = NodeState(member, settings, cache, budget, first_number)
        self._segments, self._primaries = node.segments, node.primaries
        self._fencing = Fencing(node)
        self._log_watch = LogWatch(node)
        self._replica = Replica(node)
        self._hanging = HangingTransactions(node)
        self._scans = Scans(node, self._hanging)
        self._snapshots = Snapshots(node)
        self._resets = Resets(node, self._snapshots)
        self._room = Room(node, self._resets)
        self._takeover = Takeover(node, self._replica)
        parts = (self._takeover, self._resets, self._snapshots, self._room, self._hanging)
        self._transactions = Transactions(node, *parts)

        self.member = member
        self.counts = node.counts
        self.timing = Timing()
        self.table = node.positions
        self.budget = budget
        # Capture, replication and catch-up.
        self.met = node.met.update
        self.append = self._replica.append
        self.apply = self._replica.apply
        self.history = self._replica.history
        self.last_sequence = self._replica.last_sequence
        self.complete_from = self._replica.complete_from
        self.operations_after = self._replica.operations_after
        self.truncate = self._replica.truncate
        self.adopt = self._replica.adopt
        self.install = self._replica.install
        # The op logs' budget.
        self.has_room = budget.has_room
        self.overflow = self._room.overflow
        self.coalesce = self._room.coalesce
        self.coalesce_all = self._room.coalesce_all
        self.make_room = self._room.make
        # Resets and incremental snapshots.
        self.request_reset = self._resets.request
        self.rows_read = self._resets.rows_read
        self.ask_reset = self._resets.ask
        self.may_snapshot = self._snapshots.may_start
        self.snapshot_of = self._snapshots.of
        self.stop_snapshot = self._snapshots.stop
        self.vouching = self._snapshots.vouching
        # The log's ends.
        self.end_of = self._log_watch.end_of
        self.doubts = self._log_watch.doubts
        self.end_read = self._log_watch.end_read
        # Answers to effects, and what was noticed without them.
        self.session_lost = self._transactions.reopen
        self.opening_given_up = self._transactions.opening_given_up
        self.committed = self._transactions.committed
        self.commit_failed = self._transactions.commit_failed
        self.fenced = self._fencing.fenced
        self.hanging_found = self._scans.hanging_found
        self.waited_in_vain = self._hanging.waited_in_vain
        self.scanned = self._scans.scanned
        self.log_was_cut = self._takeover.log_was_cut
        self.counted = self._takeover.counted
        self.resumed = self._takeover.resumed

    def newer_process(self) -> str | None:
        """The newest process of this node that the positions tell of, where that is not this one.

        Ask before the first claim: so what this member has claimed is that of one that started in the same millisecond.
        """
        if self.member in self.table.members():
            return self.member
        newer = (member for member in self.table.members() if is_newer_process(member, self.member))
        return max(newer, key=lambda member: Member.parse(member).incarnation, default=None)

    # -- roles ----------------------------------------------------------------------------------------------------

    def promote(self, segment: int, epoch: int, must_reset: str | None = None) -> None:
        """This very member is primary in `epoch`: the takeover begins. `must_reset` says why a reset must come.

        Raises `ValueError` for an epoch that is not above the one in which this member last owned the segment.
        """
        seg = self._node.segment(segment)
        if epoch <= seg.epoch:
            raise ValueError(f"segment {segment}: epoch {epoch} is not above {seg.epoch}")
        seg.promote(epoch, must_reset, self._resets.requested(seg), isinstance(self._node.cache, StreamState))
        self._node.own(seg)

    def demote(self, segment: int) -> None:
        """The node is backup from now on, or will be: history and op log stay."""
        self._node.demote(segment)

    def forget(self, segment: int) -> None:
        """The node is no owner any more: history and op log are gone."""
        if segment in self._primaries:
            self._node.demote(segment)
        if (seg := self._segments.pop(segment, None)) is not None:
            seg.log.restart(1)

    def release(self, segment: int) -> None:
        """Hands a segment over, or stops: once everything is written, its release is committed and read back."""
        self._segments[segment].release_wanted = True

    def keep(self, segment: int) -> bool:
        """Takes a release back, unless it is read back already; whether it did. It may arrive all the same: then the
        segment is claimed again."""
        seg = self._segments[segment]
        if seg.phase is not Phase.RELEASED:
            seg.release_wanted = False
        return not seg.release_wanted

    def waits(self, seconds: float) -> bool:
        """Whether Kafka has not answered for so long: a transaction, the opening of a session, a release."""
        since = self._node.now - seconds
        releasing = any(s.phase is s.noted is Phase.RELEASING and s.noted_at < since for s in self._primaries.values())
        return releasing or self._transactions.waits_since < since

    def withholds(self, segment: int) -> bool:
        """Whether nothing is written to the segment's partition for now."""
        return segment in self._segments and self._segments[segment].partition in self._node.withheld

    # -- acknowledgements and snapshots ---------------------------------------------------------------------------

    def acked(self, segment: int, sequence: int) -> None:
        """Every in-sync owner holds the operations up to here, so that they count as acknowledged."""
        self.acked_here(segment, sequence)
        seg = self._segments[segment]
        seg.replicated = max(seg.replicated, sequence)

    def acked_here(self, segment: int, sequence: int) -> None:
        """Operations up to here count as acknowledged in the present epoch, whoever holds them."""
        seg = self._segments[segment]
        seg.acked = max(seg.acked, sequence)

    def snapshot(self, segment: int) -> Snapshot:
        """Sends a segment that is being written once more, by chunks, while writes to it go on.

        `SnapshotRead` tells when it is complete. A reset meanwhile completes it at once; a takeover, here or elsewhere,
        ends it without any effect.
        """
        snapshot = self._snapshots.start(segment)
        if self._segments[segment].ledger.base_offset < 0 or isinstance(self._node.cache, StreamState):
            # Never reset (`snapshot.mode=no_data`): readers pass over rows outside of a reset, and for most keys there
            # would be nothing else. So it is reset instead, which gives it a base; as is a stream's.
            self.request_reset(segment, SNAPSHOT_REASON)
        return snapshot

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings of today."""
        return self._node.settings

    @property
    def segments(self) -> int:
        """`segment.count`."""
        return self._node.settings.segments

    def phase(self, segment: int) -> str:
        """The segment's phase; `idle` for a backup."""
        seg = self._segments.get(segment)
        return str(seg.phase if seg else Phase.IDLE)

    def written(self, segment: int) -> int | None:
        """The highest sequence of its own history that Kafka is known, by reading back, to hold."""
        seg = self._segments.get(segment)
        return seg.written if seg else None

    def highest_claim(self) -> int:
        """The highest epoch ever claimed; 0 for none."""
        return self.table.highest_claim

    def position(self, segment: int) -> PositionState | None:
        """The segment's position that was read last, of whomever."""
        return self.table.positions.get(segment)

    def primaries(self) -> Sequence[Segment]:
        """The segments that this node is primary of."""
        return list(self._primaries.values())

    def owned(self) -> Sequence[Segment]:
        """The segments that this node has, as primary or as backup."""
        return list(self._segments.values())

    def captured_after(self, segment: int, sequence: int) -> int | None:
        """When the first operation of the op log after `sequence` was captured, Unix microseconds; None for none."""
        seg = self._segments.get(segment)
        operations = seg.log.after(sequence, seg.last_sequence, 1) if seg else []
        return operations[0].ts_us if operations else None

    @property
    def finished(self) -> bool:
        """Whether the snapshot is all that was asked for (`snapshot.mode=initial_only`), and is in Kafka."""
        asked = not self.settings.snapshot_mode.goes_on and bool(self._primaries)
        return asked and all(s.phase is Phase.WRITING and not s.owed for s in self._primaries.values())

    def unwritten(self) -> int:
        """Operations of primaries that Kafka is not known to hold, and one for each takeover or reset under way."""
        return sum(
            1 if s.phase is not Phase.WRITING or s.owed or s.undecided else s.last_sequence - (s.written or 0)
            for s in self._primaries.values()
            if s.phase is not Phase.RELEASED
        )

    @property
    def withheld(self) -> frozenset[int]:
        """Partitions to which nothing is written, and of which nothing is read, while this is set.

        Their segments wait where they are, and look at Kafka again before they go on: a transaction that ended when
        their partition had no leader is left open there until the same producer writes to it.
        """
        return self._node.withheld

    @withheld.setter
    def withheld(self, partitions: frozenset[int]) -> None:
        before, self._node.withheld = self._node.withheld, partitions
        for segment in self._node.primaries.values():
            if segment.partition in before - partitions:
                segment.look_again()

    @property
    def touches_withheld(self) -> bool:
        """Whether the transaction under way has records for a partition that is withheld."""
        node, written = self._node, self._transactions.segments
        return any(s.number in written and s.partition in node.withheld for s in node.primaries.values())

    # -- the producer and the configuration -----------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Nothing is written while this is set: op logs grow, and takeovers wait with their claims."""
        return self._transactions.paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._transactions.paused = paused

    @property
    def closed(self) -> bool:
        """No producer is opened while this is set. `close_producer` sets it; whoever resumes clears it."""
        return self._transactions.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._transactions.closed = closed

    @property
    def idle(self) -> bool:
        """Whether nothing is under way in Kafka: no transaction, no session being opened, no scan."""
        return self._transactions.idle and self._scans.idle

    def close_producer(self) -> None:
        """Ends the session of a paused connector. After the next one opens, every segment looks again."""
        assert self.paused, "what is not paused would open another session at once"
        assert self.idle, "a transaction, an open or a scan is under way"
        self.closed = True
        self._transactions.reopen()

    def renew(self) -> None:
        """Another shell from now on: what is under way is not answered, and nothing is assumed of it."""
        self._scans.forget()
        self._fencing.forget()
        self._hanging.forget()
        self._transactions.forget()

    def configured(self, settings: Settings) -> None:
        """Other limits and times from now on; the map of segments stays."""
        assert (settings.segments, settings.partitions) == (self.settings.segments, self.settings.partitions)
        self._node.settings = settings
        self._resets.configured()
        self.budget.max_operations, self.budget.max_bytes = settings.max_operations, settings.max_bytes

    def producer_opened(self, spare: bool = False) -> None:
        """A new session is open: of the node's producer, or of its spare one."""
        self._transactions.producer_opened(spare)
        self._fencing.opened()

    def hanging_ended(self, effect: EndHanging) -> None:
        """What a producer had left open on a partition is ended, or that failed."""
        self._hanging.ended(effect)
        if effect.producer.node_id == self._node.producer.node_id:
            for segment in self._node.primaries_of(effect.partition):
                segment.look_again()  # records of ours that count as committed may be gone

    # -- events ---------------------------------------------------------------------------------------------------

    def state_read(self, record: StateRecord) -> None:
        """The next record of the positions topic; the shell reads all its partitions from the beginning on."""
        self.table.apply(record)
        seg, state = self._segments.get(record.segment), record.state
        if isinstance(state, ClaimState) and self._node.is_of_a_twin(record.segment, state):
            self._node.outbox.append(Superseded(self.member))
        if isinstance(state, PositionState) and isinstance(self._node.cache, StreamState):
            self._node.outbox.append(PositionRead(record.segment, state))
        if seg is None:
            return
        if isinstance(state, PositionState):
            self._log_watch.position_read(seg, state)
        elif isinstance(state, ClaimState):
            self._takeover.claim_read(seg, state)

    def topic_is(self, topic_id: str) -> bool:
        """The change topic's id; whether it is another one than before: the topic was deleted and created again."""
        recreated = self._log_watch.topic_is(topic_id)
        if recreated:
            self._transactions.reopen()
        return recreated

    def positions_lost(self) -> None:
        """The positions topic was made again, or has lost records: what this node owns is claimed and reset anew.

        What was read of it stays known. It is true, and a takeover of now knows no other claimants to fence.
        """
        for segment in self._primaries.values():
            segment.owed = POSITIONS_LOST
        self.table.certain.clear()
        self._transactions.reopen()

    def scan_ended(self, partition: int, reached: bool, at_end: bool = False) -> None:
        """A scan is over; see `Scans.ended`."""
        for seg in self._scans.ended(partition, reached, at_end):
            if seg.phase is Phase.LOOK:
                self._takeover.look(seg)
            elif seg.phase is Phase.READ:
                self._takeover.decide(seg)
            elif seg.phase is Phase.BEGUN:
                self._resets.begun(seg)
            elif seg.phase is Phase.RELEASING:
                self._takeover.released(seg)

    def poll(self, now: float, wall_us: int) -> list[Effect]:
        """What to do now. Call again after every event, and at `next_poll()` at the latest.

        `now` is in seconds of a clock that never goes back; a wall clock that is put back would end all writing until
        it has caught up. `wall_us` is Unix microseconds, for what is captured here.
        """
        node = self._node
        node.now, node.wall_us = now, wall_us
        self._resets.start_scheduled()
        self._takeover.tell_streams()
        self._takeover.correct()
        working = node.working()
        for seconds in self.timing.observe(working, now):
            node.counts.takeover_ended(seconds)
        self._hanging.lose_patience(working)
        effects = node.take_outbox()
        effects += self._transactions.open()
        effects += self._fencing.effects(working)
        effects += self._scans.effects(working, self._transactions.segments)
        effects += self._transactions.begin(working)
        return effects + self._resets.ask_streams()

    def next_poll(self, now: float) -> float:
        """Seconds until `poll` has something to do without any event."""
        return self._transactions.next_poll(now)
