"""The takeover of a segment: claim, look, fence, be active, read, decide; and its end, the release.

The node claims the segment, and looks at every other claim once its own is read back. It steps down before a higher
one, and fences the others. After its ACTIVE nobody else can write: it reads what Kafka holds up to there, and either
resumes after that or owes a reset.
"""

from __future__ import annotations

from collections.abc import Iterable

from deelog_connector.core import history as past
from deelog_connector.core.batch import Batch
from deelog_connector.core.effects import Correct, Corrected, Count, Decided, Place, Released, SteppedDown, Superseded
from deelog_connector.core.ledger import Inherited
from deelog_connector.core.replica import Replica
from deelog_connector.core.rules import (
    epoch_in_use,
    is_overtaken,
    outranking,
    to_correct,
    to_fence,
    where_to_read,
)
from deelog_connector.core.scan import SegmentScan, reason_to_reset
from deelog_connector.core.segment import Counted, Phase, Segment
from deelog_connector.core.settings import StreamState
from deelog_connector.core.state import NodeState
from deelog_schemas.header import Kind
from deelog_schemas.keys import claim_key, release_key
from deelog_schemas.member import is_newer_process
from deelog_schemas.operation import Operation, Reason
from deelog_schemas.positions import ClaimState, PositionState, ReleaseState

_WRITES = (Phase.OWED, Phase.BEGUN, Phase.ROWS, Phase.WRITING, Phase.STOPPED)
"""The phases behind a decision in which a higher claim is news."""
_SNAPSHOTS = ("unknown_history", "start")
"""Reasons that are no loss where Kafka holds nothing of a segment: its first snapshot."""


class Takeover:
    """See the module."""

    def __init__(self, node: NodeState, replica: Replica) -> None:
        self._node = node
        self._replica = replica
        self._to_correct: list[tuple[Segment, int, set[bytes]]] = []
        """Phantoms by segment and generation."""
        self._decided: list[tuple[Segment, int, int | None]] = []
        """What streams are to hear, by segment and generation."""

    # -- what is written ------------------------------------------------------------------------------------------

    def claim(self, batch: Batch, segment: Segment) -> None:
        """Adds a claim to both topics."""
        node, position = self._node, (segment.epoch, segment.last_sequence)
        segment.awaited = node.next_number()
        fields = {"segments": node.settings.segments, "partitions": node.settings.partitions}
        marker = batch.control(Kind.CLAIM, segment, position, {**fields, **self._producer()})
        segment.await_marker(marker, node.changes.stable_end(segment.partition))
        # CHECK claim-key-per-member, position-is-not-claim, claims-outlive-compaction: a key of its own for each
        # claimant, on the topic that keeps it.
        batch.claim_state(segment, position)
        batch.advance(segment)

    def active(self, batch: Batch, segment: Segment) -> None:
        """Adds an ACTIVE; the first one of a takeover removes the claims of those that were fenced."""
        position = (segment.epoch, segment.last_sequence)
        segment.awaited = self._node.next_number()
        fields: dict[str, object] = {**self._producer()}
        if not isinstance(self._node.cache, StreamState):  # whose history is not known yet
            fields["opened"] = past.opened_at(segment.history, segment.epoch)
        marker = batch.control(Kind.ACTIVE, segment, position, fields)
        if segment.recheck or segment.uncounted:
            segment.await_marker(marker, self._node.changes.stable_end(segment.partition))
        else:  # READ goes on where LOOK ended
            segment.marker, segment.marker_offset = marker, -1
        batch.claim_state(segment, position)
        # CHECK claims-outlive-compaction: only whoever fenced a claimant removes its claim, here. Not where the session
        # was lost since: one that was fenced may have claimed again, and the next owner must hear of that.
        for _, member in sorted(segment.victims) if not segment.recheck else ():
            batch.state(Kind.CLAIM_STATE, segment, position, claim_key(segment.number, member), None)
        batch.advance(segment)

    def _producer(self) -> dict[str, bool]:
        """What a CLAIM and an ACTIVE say of the producer that writes them."""
        return {"spare": True} if self._node.spare else {}

    def release(self, batch: Batch, segment: Segment) -> None:
        """Adds the release of a drained segment: its last record."""
        node, position = self._node, (segment.epoch, segment.last_sequence)
        segment.go(Phase.RELEASING)
        marker = batch.control(Kind.RELEASE, segment, position, {"known": True})
        segment.await_marker(marker, node.changes.stable_end(segment.partition))
        # The release takes the claim's place and its rank: nobody needs to fence this member, or its node, for it. It
        # comes first: who reads up to a record of its own, which may be between the two, must find one of them.
        state = ReleaseState(*position, node.member, known=True, highest=node.positions.above(segment.epoch))
        batch.state(Kind.RELEASE_STATE, segment, position, release_key(segment.number), state)
        batch.state(Kind.CLAIM_STATE, segment, position, claim_key(segment.number, node.member), None)

    # -- what came of it ------------------------------------------------------------------------------------------

    def committed(self, segment: Segment) -> None:
        """The claim or the ACTIVE of this segment is committed."""
        if segment.phase is Phase.CLAIM:
            segment.go(Phase.LOOK)
        else:
            segment.go(Phase.READ)
            segment.victims = frozenset()
        self._start_scan(segment)

    def claim_read(self, segment: Segment, claim: ClaimState) -> None:
        """A claim is read on the positions topic: perhaps the member's own that it waits for."""
        if claim.member == self._node.member and claim.number == segment.awaited:
            # CHECK read-to-own-record: what was known when one's own record came, no later and no earlier.
            before, scan = segment.known.position, segment.scan
            segment.awaited, segment.known = 0, self._node.positions.known(segment.number)
            if scan is None:
                self._start_scan(segment)
            elif segment.known.position != before:
                self._expect_more(segment, scan)
        elif claim.epoch > segment.epoch and claim.member != self._node.member and segment.phase in _WRITES:
            segment.look_again()  # who claims this has fenced this node, or has not and should have

    def released(self, segment: Segment) -> None:
        """The release is read back."""
        if not segment.release_wanted or segment.sent != segment.last_sequence:  # taken back meanwhile
            # CHECK release-is-final
            segment.look_again()
            return
        segment.go(Phase.RELEASED)
        self._node.outbox.append(Released(segment.number))

    # -- look -----------------------------------------------------------------------------------------------------

    def look(self, segment: Segment) -> None:
        """CLAIM is read: step down before a higher claim, else fence every other claimant."""
        scan, known = segment.scan, segment.known
        assert scan is not None
        # CHECK claim-then-look
        if self._step_down(segment, known.ranked | scan.claims) or self._is_superseded(segment, scan):
            return
        member = self._node.member
        segment.victims = to_fence(known.claims | scan.claims, member)
        # CHECK fencing, claim-before-fence: the claim is committed; now nobody before it may write after it.
        segment.unfenced = self._node.producers_of(segment.victims, known.spares | scan.spares)
        segment.go(Phase.FENCE if segment.unfenced else Phase.ACTIVE)

    def _step_down(self, segment: Segment, claims: Iterable[tuple[int, str]]) -> bool:
        node = self._node
        higher = outranking(claims, segment.epoch, node.member)
        if higher is None:
            return False
        epoch, member = higher
        if is_newer_process(member, node.member):
            node.outbox.append(Superseded(member))
            return True
        self._give_way(segment, epoch, f"{member} claimed epoch {epoch}, not below {segment.epoch}")
        return True

    def _is_superseded(self, segment: Segment, scan: SegmentScan) -> bool:
        """Steps down before records of somebody whose claim is lost."""
        known, member = segment.known, self._node.member
        epoch = epoch_in_use(scan.writers, known.position, known.is_certain, segment.epoch, member)
        if epoch:
            self._give_way(segment, epoch, f"there are records of epoch {epoch}, not below {segment.epoch}")
        return epoch > 0

    def _give_way(self, segment: Segment, epoch: int, reason: str) -> None:
        node = self._node
        node.positions.claimed(epoch)  # the positions topic may have lost it
        node.demote(segment.number)
        node.outbox.append(SteppedDown(segment.number, reason))

    # -- read -----------------------------------------------------------------------------------------------------

    def _start_scan(self, segment: Segment) -> None:
        """Once the claim is committed and read on the positions topic: from where to read the change topic."""
        if segment.phase not in (Phase.LOOK, Phase.READ) or segment.awaited or segment.scan is not None:
            return
        if segment.is_counting:
            self._node.outbox.append(Count(segment.number, segment.generation, segment.known.position))
            return
        scan = segment.scan = SegmentScan(segment.history)
        changes, ledger = self._node.changes, segment.ledger
        position, reset = segment.known.position, segment.known.reset
        if not segment.known.is_certain:
            # Where claims are lost, whoever took over since has written behind the last position.
            behind = position.read_from if position and position.topic_id == changes.topic_id else 0
            segment.scan_next = min(segment.scan_next, behind)
        if segment.owed is not None:  # a reset comes anyway; read on from the end that was known before
            return
        ledger.read_from = ledger.leader_epoch = -1
        start = where_to_read(segment.history, segment.epoch, position, reset, changes.topic_id)
        segment.owed = start.owed
        if position is not None and position.leader_epoch < changes.cut_in.get(segment.partition, -1):
            segment.owed = "truncated"  # its last owner died before it could say so
        elif start.offset is not None:
            scan.written = start.written
            ledger.read_from = start.offset
            # One's own record is after the end that was seen before it. In a log that was cut, that may be below the
            # position's offset.
            segment.scan_next = min(start.offset, segment.scan_next)
            ledger.base_offset = position.base_offset if position else -1
            # This node may not have heard yet of the leader under whom the position was written.
            known = changes.leader_epoch(segment.partition)
            ledger.leader_epoch = max(position.leader_epoch, known) if position else known
            self._expect(segment, scan, position, start.written is not None)

    def log_was_cut(self, partition: int, place: Place) -> None:
        """The log does not hold all up to there any more, which segments of that partition begin to read behind."""
        for segment in self._node.primaries_of(partition):
            scan = segment.scan
            if scan is not None and scan.place is not None and scan.place.leader_epoch == place.leader_epoch:
                segment.owed = segment.owed or "truncated"

    def counted(self, number: int, generation: int, counted: Counted) -> None:
        """A stream has counted a segment's operations, as `Count` of that generation asked."""
        segment = self._node.primaries.get(number)
        if segment is None or segment.generation != generation or segment.phase is not Phase.READ:
            return
        segment.uncounted, segment.owed = False, counted.lost
        segment.history = past.opened(counted.history, segment.epoch)
        segment.log.restart(counted.complete_from)
        self._start_scan(segment)

    def resumed(self, number: int) -> None:
        """A stream has heard what came of the takeover, and appends from there on."""
        self._node.segments[number].undecided = False

    def _expect(self, segment: Segment, scan: SegmentScan, position: PositionState | None, trusted: bool) -> None:
        """What READ must find, by the positions topic. `trusted`: it begins at the position's `read_from`."""
        ledger = segment.ledger
        ledger.read_from_sequence = -1
        if position is None:
            return
        above = position.read_from_sequence
        if not trusted:
            scan.expect_beyond(position)
        else:
            ledger.read_from_sequence = above
            if position.sequence > above:
                scan.expected = position.sequence
        if trusted or not ledger.is_complete:
            segment.gaps_known(position)
        if position.member != self._node.member or not ledger.is_complete or position.sequence > segment.sent:
            # By a promotion a member forgets its own runs, and of a transaction it has none whose answer it did not
            # wait for: then what it wrote is missed as another's would be.
            scan.inherited = [Inherited.of(segment.history, position, segment.scan_next)]
        if position.leader_epoch != self._node.changes.leader_epoch(segment.partition):
            # Also where it is one's own: it may have been written after a takeover that had not heard of this leader.
            scan.unverified_from = position.read_from
            # One that begins where its segment does may have been written under a later leader than was known then.
            looked = above > 0 or position.read_from > position.base_offset >= 0
            if looked and position.leader_epoch >= 0 < position.read_from:
                # Below that READ reads nothing, and its owner may not have heard of a cut.
                scan.place = Place(position.leader_epoch, position.read_from)
        scan.runs = ledger.unverified
        segment.scan_next = min([segment.scan_next, *(run.offset for run in scan.runs)])
        scan.from_base = segment.scan_next <= position.base_offset

    def _expect_more(self, segment: Segment, scan: SegmentScan) -> None:
        """What an old owner wrote between this node's claim and its own fence, as its positions have it.

        Some of it may have been cut away before the fence. Nobody else misses it.
        """
        position = segment.known.position
        if position is None:
            return
        ledger, changes = segment.ledger, self._node.changes
        of_this = ledger.read_from >= 0 and position.topic_id == changes.topic_id
        if of_this and past.holds(segment.history, position.position):
            # What gave way is counted from where the next owner begins.
            ledger.read_from, ledger.read_from_sequence = position.read_from, position.read_from_sequence
            ledger.leader_epoch = max(ledger.leader_epoch, position.leader_epoch)
            segment.gaps_known(position)
        if position.sequence <= position.read_from_sequence:
            return
        offset = scan.inherited[0].offset if scan.inherited else position.read_from
        inherited = Inherited.of(segment.history, position, offset)
        if inherited.upto <= inherited.shared:
            scan.expected = max(scan.expected, position.sequence)
        else:
            scan.expect_beyond(position)
        scan.inherited.append(inherited)

    # -- decide ---------------------------------------------------------------------------------------------------

    def decide(self, segment: Segment) -> None:
        """ACTIVE is read: resume after what Kafka holds, or owe a reset."""
        scan, known = segment.scan, segment.known
        assert scan is not None
        if segment.recheck and self._step_down(segment, known.ranked | scan.claims):
            return
        if self._is_superseded(segment, scan):
            return
        segment.recheck, segment.in_vain = False, 0
        log, written = segment.log, scan.written or 0
        reason = reason_to_reset(scan, log.complete_behind(written), segment.owed)
        unwritten = log.after(written, segment.last_sequence, 1)
        if reason is None and is_overtaken(unwritten[0].position if unwritten else None, scan.ahead):
            reason = "phantom_ahead"
        in_kafka = known.position is not None or known.reset is not None or not scan.is_empty
        lost = reason is not None and (in_kafka or reason not in _SNAPSHOTS or segment.log.complete_from > 1)
        # No mode holds back what repairs a loss.
        first = segment.number not in self._node.reset_here
        snapshot = self._node.settings.snapshot_mode.snapshot(in_kafka, first)
        if lost or snapshot:
            segment.owed = "initial" if reason == "unknown_history" and not in_kafka else reason or snapshot
            segment.go(Phase.OWED)
            self._tell_stream(segment, None)
            return
        if not in_kafka:
            segment.owed, scan.written = None, 0
            segment.ledger.begin(segment.marker_offset, self._node.changes.leader_epoch(segment.partition))
        assert scan.written is not None
        self._resume(segment, scan, scan.written)

    def _resume(self, segment: Segment, scan: SegmentScan, written: int) -> None:
        ledger, last = segment.ledger, segment.known.position
        segment.go(Phase.WRITING)
        is_beyond = last is not None and not past.holds(segment.history, last.position)
        if not ledger.is_complete and (is_beyond or ledger.read_from_sequence < 0):
            # What is missing else was cut away, perhaps under a leader of whom this node has not heard.
            ledger.coalesced_runs = scan.gaps(written, ledger.read_from_sequence, last)
            segment.count_gaps(written)
        offset = min([ledger.read_from, *(run.offset for run in scan.runs)])
        ledger.resume(scan.to_find_again(offset, ledger.read_from_sequence))
        # An old owner may have ended a reset after this node's claim was read. A reader that begins at an older reset
        # would hold keys for ever whose rows that one left out.
        ledger.base_offset = max(ledger.base_offset, *scan.complete_resets.values(), -1)
        segment.written = segment.sent = segment.in_flight = written
        self._node.counts.pruned += segment.log.prune(written)
        self._tell_stream(segment, written)
        # CHECK coalesce-acked: what gave way before this takeover leaves a run that is one transaction after it, too.
        gaps = segment.log.gaps_after(written)
        if gaps and not isinstance(self._node.cache, StreamState):
            segment.atomic_to = max(segment.atomic_to, gaps[-1][0], segment.log.run_behind(written))
        phantoms = scan.phantoms | scan.shown if self._node.settings.may_skip else scan.phantoms
        if phantoms:
            self._to_correct.append((segment, segment.generation, phantoms))

    def _tell_stream(self, segment: Segment, written: int | None) -> None:
        """A stream hears what came of a takeover, and numbers what it appends from there on."""
        if not segment.undecided:
            return
        segment.uncounted = False
        if written is not None:
            # What is not in Kafka yet takes the new epoch: where an old one ends depends on who counts.
            segment.history = past.opened(past.cut(segment.history, written), segment.epoch)
            segment.log.restart(written + 1)
        self._decided.append((segment, segment.generation, written))

    def tell_streams(self) -> None:
        """Streams hear what came of their takeovers, where that is still so."""
        decided, self._decided = self._decided, []
        for segment, generation, written in decided:
            if segment.generation == generation and segment.is_primary:
                self._node.outbox.append(Decided(segment.number, written))

    def correct(self) -> None:
        """Appends the corrections of phantoms, in a poll of their own.

        The poll's effects are carried out before anything else is captured: a write that is replicated before a
        correction ahead of it would overtake it.
        """
        waiting, self._to_correct = self._to_correct, []
        for segment, generation, phantoms in waiting:
            same = self._node.primaries.get(segment.number) is segment and segment.generation == generation
            if same and segment.phase is Phase.WRITING:
                self._correct(segment, phantoms)

    def _correct(self, segment: Segment, phantoms: set[bytes]) -> None:
        node = self._node
        # A pending operation makes up for a phantom of its key, unless a filter may drop it.
        pending = set() if node.settings.may_skip else segment.log.keys_after(segment.sent)
        if isinstance(node.cache, StreamState):
            segment.wrong = phantoms - pending
            segment.corrected_at = segment.last_sequence
            node.counts.corrections += len(segment.wrong)
            node.outbox.append(Correct(segment.number, frozenset(segment.wrong)))
            return
        operations: list[Operation] = []
        for key in to_correct(phantoms, pending):
            entry = node.cache.get(segment.number, key)
            # CHECK correct-phantoms: what no survivor holds gives way to what this node's cache holds.
            value, expires_at = (entry.value, entry.expires_at) if entry else (None, None)
            operation = self._replica.append(segment.number, Reason.CORRECT, key, value, expires_at, node.wall_us, True)
            operations.append(operation)
        # CHECK read-from-trails: `read_from` stays below the phantoms until all that makes up for them is written.
        segment.atomic_to = segment.last_sequence
        if operations:
            node.counts.corrections += len(operations)
            node.outbox.append(Corrected(segment.number, operations))
