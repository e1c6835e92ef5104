"""What the next transaction holds: control records of all segments that wait for one, rows, then operations.

One transaction is under way at a time, and it carries every segment that can move; so a takeover of eighty segments
takes as many transactions as that of one. Control records come first (there are at most a few per segment); rows and
operations share what is left of `max_batch_size`, beginning with another segment each time so that none starves. Rows
of incremental snapshots come last and take what room is left, one chunk at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from deelog_connector.core.effects import ControlItem, Item, OperationsItem, RowsItem, StateItem, TakenBackItem
from deelog_connector.core.reset_strategy import KeysInKafka, Strategy, taken_back
from deelog_connector.core.segment import Phase, Reset, Segment, Snapshot
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_schemas.digest import digest_of
from deelog_schemas.header import Kind
from deelog_schemas.keys import claim_key, control_key, position_key, release_key, reset_key
from deelog_schemas.operation import Entry, Reason
from deelog_schemas.positions import ClaimState, PositionState, ReleaseState, ResetState, State

SNAPSHOT_REASON: Final = "snapshot"
MAX_TURNS: Final = 5
"""Of a key in an incremental snapshot, on average."""


class CacheState(Protocol):
    """How the core looks at the cache: at once, without I/O, consistent with the last sequence of the segment."""

    def entries(self, segment: int) -> list[Entry]:
        """All live entries of a segment."""

    def get(self, segment: int, key: bytes) -> Entry | None:
        """One live entry."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the core needs of the configuration, in its own words. Times in seconds."""

    segments: int
    partitions: int
    max_batch_size: int = 8192
    chunk_size: int = 1024
    """Rows of one segment in one transaction, at most."""
    commit_interval: float = 0.05
    heartbeat_interval: float = 5.0
    patience: float = 10.0
    """How long to wait for one's own record on the positions topic before superseded claimants are fenced."""
    max_operations: int = 500_000
    max_bytes: int = 268_435_456
    acks_all: bool = True
    reset_strategy: Strategy = Strategy.MARKER
    reset_interval: float = 0.0
    """Each segment is reset again after so long, 0: never."""
    snapshot_mode: SnapshotMode = SnapshotMode.INITIAL
    may_skip: bool = False
    """Whether an operation that is written may tell nothing: a filter drops it, or a transform fails on it."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What a committed transaction did for a segment: valid while it is still in that phase of that turn."""

    segment: int
    turn: int
    phase: Phase
    value: int = 0
    """Highest sequence sent, or the number of rows of a reset."""
    first: int = 0
    count: int = 0
    """Of the operations: the lowest sequence, and how many."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a committed transaction did for an incremental snapshot: valid while that one is the segment's."""

    segment: int
    snapshot: Snapshot
    upto: int
    rows: int


@dataclass(slots=True)
class Batch:
    """The items of one transaction and what their commit means."""

    items: list[Item] = field(default_factory=list)
    advances: list[Advance] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    entries: int = 0
    """Operations and rows in it."""

    @property
    def writers(self) -> list[int]:
        """The segments whose entries are in it: among them is what a broker refused."""
        return sorted({i.segment for i in self.items if isinstance(i, OperationsItem | RowsItem | TakenBackItem)})


class BatchBuilder:
    """Builds batches. Holds no state of its own but the count that makes control records unique."""

    def __init__(self, member: str, settings: Settings, state: CacheState) -> None:
        self.member = member
        self.settings = settings
        self.topic_id = ""
        self.leader_epochs: dict[int, int] = {}
        self._state = state
        self._numbers = 0

    def control(self, batch: Batch, segments: Sequence[Segment], ends: Callable[[int], int]) -> None:
        """Adds claims, actives and begins. `ends` gives the end of a partition as known before this transaction."""
        gathering = {s.partition for s in segments if s.gathers}
        for segment in segments:
            if segment.phase is Phase.CLAIM:
                self._claim(batch, segment, ends(segment.partition))
            elif segment.phase is Phase.ACTIVE:
                self._active(batch, segment, ends(segment.partition))
            elif segment.phase is Phase.OWED:
                # The keys that Kafka holds take memory: of one partition at a time, whose log is read once for all.
                if self.settings.reset_strategy.takes_back and not gathering <= {segment.partition}:
                    continue
                gathering |= {segment.partition} if self.settings.reset_strategy.takes_back else set()
                self._begin(batch, segment, ends(segment.partition))

    def entries(self, batch: Batch, segments: Sequence[Segment], room: int) -> None:
        """Adds rows and operations of these segments, at most about `room` of them."""
        for segment in segments:
            if batch.entries >= room:
                return
            if segment.phase is Phase.ROWS:
                self._rows(batch, segment, room - batch.entries)
            elif segment.phase is Phase.WRITING:
                self._operations(batch, segment, room - batch.entries)

    def snapshots(self, batch: Batch, segments: Sequence[Segment], room: int) -> None:
        """Adds chunks of incremental snapshots behind the operations, at most about `room` entries in all, or one."""
        for segment in segments:
            if batch.chunks and batch.entries >= room:
                return
            if segment.snapshot is not None and segment.phase is Phase.WRITING and not segment.release_wanted:
                self._chunk(batch, segment, segment.snapshot)

    def renewals(self, batch: Batch, segments: Sequence[Segment], now: float) -> None:
        """Renews the position of idle segments, so that silence and progress can be told apart."""
        interval = self.settings.heartbeat_interval
        for segment in segments:
            idle = segment.phase is Phase.WRITING and segment.written == segment.sent == segment.last_sequence
            if idle and interval and now - segment.renewed_at >= interval:
                segment.renewed_at = now
                self._position(batch, segment, segment.history[-1], Kind.POSITION_RENEWAL)

    def release(self, batch: Batch, segment: Segment, end: int) -> None:
        """Adds the release of a drained segment: its last record."""
        position = (segment.epoch, segment.last_sequence)
        marker = self._put_control(batch, Kind.RELEASE, segment, position, {"known": True})
        _await(segment, marker, end)
        # The release takes the claim's place and its rank: nobody needs to fence this member, or its node, for it. It
        # comes first: whoever reads up to a record of its own, which may stand between the two, must find one of them.
        state = ReleaseState(*position, self.member, known=True)
        self._put_state(batch, Kind.RELEASE_STATE, segment, position, release_key(segment.number), state)
        self._put_state(batch, Kind.CLAIM_STATE, segment, position, claim_key(segment.number, self.member), None)

    # -- control records ------------------------------------------------------------------------------------------

    def _claim(self, batch: Batch, segment: Segment, end: int) -> None:
        position = (segment.epoch, segment.last_sequence)
        segment.awaited = self._number()
        _await(segment, self._put_control(batch, Kind.CLAIM, segment, position, self._map()), end)
        # CHECK claim-key-per-member, position-is-not-claim, claims-outlive-compaction: a key of its own for each
        # claimant, on the topic that keeps it.
        self._claim_state(batch, segment, position)
        batch.advances.append(Advance(segment.number, segment.turn, Phase.CLAIM))

    def _active(self, batch: Batch, segment: Segment, end: int) -> None:
        position = (segment.epoch, segment.last_sequence)
        segment.awaited = self._number()
        marker = self._put_control(batch, Kind.ACTIVE, segment, position, {})
        if segment.recheck:
            _await(segment, marker, end)
        else:  # READ goes on where LOOK ended
            segment.marker, segment.marker_offset = marker, -1
        self._claim_state(batch, segment, position)
        # CHECK claims-outlive-compaction: only whoever fenced a claimant removes its claim, here.
        for _, member in sorted(segment.victims):
            self._put_state(batch, Kind.CLAIM_STATE, segment, position, claim_key(segment.number, member), None)
        batch.advances.append(Advance(segment.number, segment.turn, Phase.ACTIVE))

    def _begin(self, batch: Batch, segment: Segment, end: int) -> None:
        reset = segment.reset
        if reset is None:
            begin = (segment.epoch, segment.last_sequence)
            reset = Reset(f"{self.member}/{self._number()}", segment.owed or "unknown", begin)
            segment.reset, segment.owed = reset, None
        strategy = self.settings.reset_strategy
        fields = {"id": reset.reset_id, "reason": reset.reason, "strategy": str(strategy)}
        _await(segment, self._put_control(batch, Kind.RESET_BEGIN, segment, reset.begin, fields), end)
        if strategy.takes_back:
            known = segment.known.position
            segment.gather(KeysInKafka(max(segment.base_offset, known.base_offset if known else -1)))
        self._reset_state(batch, segment, reset)
        batch.advances.append(Advance(segment.number, segment.turn, Phase.OWED))

    def clear_reset(self, position: tuple[int, int]) -> Reset:
        """A captured clear, to be written as a begin and an end that carry its position."""
        return Reset(f"{self.member}/{self._number()}", Reason.CLEAR, position, position=position, digest=digest_of(()))

    # -- rows and operations --------------------------------------------------------------------------------------

    def _rows(self, batch: Batch, segment: Segment, room: int) -> None:
        reset = segment.reset
        assert reset is not None
        if reset.position is None:
            # Entries and last position are read together, in one step of the one thread that changes both.
            reset.position = (segment.epoch, segment.last_sequence)
            reset.entries = self._state.entries(segment.number)
            reset.digest = digest_of((e.key, e.value) for e in reset.entries)
        if reset.held is not None:
            strategy = self.settings.reset_strategy
            if strategy is Strategy.TOMBSTONES and self.settings.may_skip:
                strategy = Strategy.RESEND  # a row may be left out on its way: of a key that such a consumer holds
            reset.gone, reset.again = taken_back(strategy, reset.held.keys, reset.entries)
            reset.held = None
        # CHECK reset-acked-only: a row whose position is not acknowledged may never have happened.
        if segment.acked < reset.position[1] and reset.reason != Reason.CLEAR:
            return
        if reset.cursor == 0:
            self._reset_state(batch, segment, reset)  # names the begin's offset before, with, the first row
        upto = min(reset.size, reset.cursor + min(room, self.settings.chunk_size))
        ended, start = upto == reset.size, max(0, reset.cursor - len(reset.gone))
        rows = reset.entries[start : max(0, upto - len(reset.gone))]
        place = segment.number, segment.partition, reset.position, reset.reason
        gone = reset.gone[reset.cursor : upto] + [e.key for e in rows if e.key in reset.again]
        if gone:
            batch.items.append(TakenBackItem(*place, gone))
        if rows:
            batch.items.append(RowsItem(*place, rows, start == 0, ended))
        batch.entries += len(gone) + len(rows)
        if ended:
            self._end(batch, segment, reset)
        batch.advances.append(Advance(segment.number, segment.turn, Phase.ROWS, upto, ended=ended))

    def _end(self, batch: Batch, segment: Segment, reset: Reset) -> None:
        assert reset.position is not None
        fields = {"id": reset.reset_id, "count": len(reset.entries), "digest": reset.digest}
        if reset.gone:
            fields["taken_back"] = len(reset.gone)  # rows that follow their own delete are among the count
        self._put_control(batch, Kind.RESET_END, segment, reset.position, fields)
        segment.base_offset = segment.read_from = reset.begin_offset
        segment.read_from_sequence = -1
        segment.candidate = segment.seen = None
        self._position(batch, segment, reset.position, Kind.POSITION)
        self._put_state(batch, Kind.RESET_STATE, segment, reset.position, reset_key(segment.number), None)
        segment.in_flight = max(segment.in_flight, reset.position[1])

    def _operations(self, batch: Batch, segment: Segment, room: int) -> None:
        if segment.atomic_to > segment.sent:
            # CHECK correct-phantoms, coalesce-acked: a run that must stand in one transaction, however long.
            if segment.acked < segment.atomic_to:
                return
            room = max(room, segment.atomic_to - segment.sent)
        operations = segment.log.after(segment.sent, segment.acked, room)
        for index, operation in enumerate(operations):
            if operation.reason == Reason.CLEAR:
                del operations[index:]
                if not operations:
                    segment.reset = self.clear_reset(operation.position)
                    segment.go(Phase.OWED)
                break
        if not operations:
            return
        last = operations[-1]
        batch.items.append(OperationsItem(segment.number, segment.partition, operations))
        batch.entries += len(operations)
        segment.in_flight = max(segment.in_flight, last.sequence)
        self._position(batch, segment, last.position, Kind.POSITION)
        first, count = operations[0].sequence, len(operations)
        batch.advances.append(Advance(segment.number, segment.turn, Phase.WRITING, last.sequence, first, count))

    def _chunk(self, batch: Batch, segment: Segment, snapshot: Snapshot) -> None:
        position = _level(batch, segment)
        if position is None:
            return
        if snapshot.keys is None:
            snapshot.keys = [entry.key for entry in self._state.entries(segment.number)]
            snapshot.most = MAX_TURNS * len(snapshot.keys)
            snapshot.behind = segment.last_sequence  # a key that is gone here lives until its delete is written
        if snapshot.cursor == len(snapshot.keys) and position[1] < snapshot.behind:
            return
        upto = min(len(snapshot.keys), snapshot.cursor + self.settings.chunk_size)
        # The op log holds every operation beyond `position`: an entry whose key has none there is as Kafka has it at
        # that position (so it is acknowledged: CHECK reset-acked-only); any other is written as a change soon.
        pending = segment.log.keys_after(position[1])
        chunk = snapshot.keys[snapshot.cursor : upto]
        keys = [key for key in chunk if key not in pending]
        if len(keys) < len(chunk):
            snapshot.behind = segment.last_sequence
        if self.settings.may_skip:
            # That change may be left out on its way: such a key has another turn, and not without end.
            snapshot.keys += [key for key in chunk if key in pending][: snapshot.most - len(snapshot.keys)]
        rows = [entry for key in keys if (entry := self._state.get(segment.number, key)) is not None]
        if rows:
            place = (segment.number, segment.partition, position)
            batch.items.append(RowsItem(*place, SNAPSHOT_REASON, rows, False, False, incremental=True))
            batch.entries += len(rows)
        elif upto == len(snapshot.keys) and position[1] >= snapshot.behind:
            # That it is through is told behind a transaction: one who owns the segment no more gets none.
            self._position(batch, segment, position, Kind.POSITION_RENEWAL)
        batch.chunks.append(Chunk(segment.number, snapshot, upto, len(rows)))

    # -- items ----------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _map(self) -> dict[str, Any]:
        return {"segments": self.settings.segments, "partitions": self.settings.partitions}

    def _put_control(
        self, batch: Batch, kind: Kind, segment: Segment, position: tuple[int, int], fields: dict[str, Any]
    ) -> bytes:
        number = self._number()
        everything = {"epoch": segment.epoch, "member": self.member, **fields}
        item = ControlItem(kind, segment.number, segment.partition, position, number, everything)
        batch.items.append(item)
        return entry_key(item, self.member)

    def _put_state(
        self, batch: Batch, kind: Kind, segment: Segment, position: tuple[int, int], key: bytes, state: State | None
    ) -> None:
        batch.items.append(StateItem(kind, segment.number, segment.partition, position, key, state))

    def _claim_state(self, batch: Batch, segment: Segment, position: tuple[int, int]) -> None:
        state = ClaimState(
            segment.epoch, self.member, self.settings.segments, self.settings.partitions, segment.awaited
        )
        self._put_state(batch, Kind.CLAIM_STATE, segment, position, claim_key(segment.number, self.member), state)

    def _reset_state(self, batch: Batch, segment: Segment, reset: Reset) -> None:
        state = ResetState(reset.reset_id, *reset.begin, reset.reason, reset.begin_offset, self.member)
        self._put_state(batch, Kind.RESET_STATE, segment, reset.begin, reset_key(segment.number), state)

    def _position(self, batch: Batch, segment: Segment, position: tuple[int, int], kind: Kind) -> None:
        state = PositionState(
            *position,
            segment.read_from,
            segment.read_from_sequence,
            segment.coalesced_to,
            segment.base_offset,
            self.leader_epochs.get(segment.partition, -1),
            self.topic_id,
            self.member,
        )
        self._put_state(batch, kind, segment, position, position_key(segment.number), state)


def _level(batch: Batch, segment: Segment) -> tuple[int, int] | None:
    """The position up to which everything of a segment is written once this transaction is; None where it is not
    known that no reader's mark lies beyond it.

    Behind operations of this transaction it is the last one's. Where none is left to write it is that of a renewal:
    the next operation's lies beyond it, and so it lies beyond any phantom's.
    """
    for item in reversed(batch.items):
        if isinstance(item, OperationsItem) and item.segment == segment.number:
            return item.operations[-1].position
    return segment.history[-1] if segment.sent == segment.last_sequence else None


def _await(segment: Segment, marker: bytes, end: int) -> None:
    """The segment waits until this control record of its own is read back; it stands at or behind `end`."""
    segment.marker, segment.marker_offset = marker, -1
    segment.scan, segment.scan_next = None, end


def entry_key(item: ControlItem, member: str) -> bytes:
    """The reserved entry key under which a control record stands."""
    name = item.kind.name.lower().replace("_", "-")
    return control_key(name, item.segment, member, item.number)
