"""What the parts of the core share: one node's segments, settings, and what it knows of both topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from deelog_connector.core.effects import Effect, Producer
from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.positions_table import PositionsTable
from deelog_connector.core.rules import foreign
from deelog_connector.core.scan import Claimant
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.settings import CacheState, Settings, StreamState
from deelog_schemas.keys import partition_of
from deelog_schemas.member import node_id_of
from deelog_schemas.positions import ClaimState

MAX_SAMPLES: Final = 10_000


@dataclass(slots=True)
class Counts:
    """What the core has done since it was made."""

    takeovers: int = 0
    takeover_ms: list[float] = field(default_factory=list)
    """From promotion to the phase `writing`, of the last `MAX_SAMPLES` takeovers."""
    resets: Counter[str] = field(default_factory=Counter)
    """Completed resets by reason."""
    resets_aborted: int = 0
    """Resets that ended because the broker refused one of their rows."""
    reset_rows: int = 0
    snapshot_rows: int = 0
    reset_deletes: int = 0
    """Keys that resets deleted before their rows."""
    written: int = 0
    pruned: int = 0
    transactions: int = 0
    refused: int = 0
    """Transactions of this node that were fenced or lost."""
    fenced: int = 0
    corrections: int = 0
    overflow: Counter[str] = field(default_factory=Counter)
    truncations: int = 0
    scans_in_vain: int = 0

    def takeover_ended(self, seconds: float) -> None:
        """One more takeover."""
        self.takeovers += 1
        self.takeover_ms.append(round(seconds * 1000, 1))
        del self.takeover_ms[:-MAX_SAMPLES]


@dataclass(slots=True)
class KnownTopic:
    """A topic as it was last seen; it may be deleted and made again."""

    topic_id: str = ""
    former: set[str] = field(default_factory=set)
    """Ids that it had: a broker whose metadata are behind may still tell one."""

    def is_another(self, topic_id: str) -> bool:
        """Takes the id that a broker tells; whether the topic was made again since the last one."""
        if topic_id == self.topic_id or topic_id in self.former:
            return False
        before, self.topic_id = self.topic_id, topic_id
        self.former.add(before)
        return before != ""


@dataclass(slots=True)
class ChangeTopic(KnownTopic):
    """The change topic. The dictionaries are by partition."""

    ends: dict[int, int] = field(default_factory=dict)
    """Of all records, also those of open transactions."""
    stable: dict[int, int] = field(default_factory=dict)
    """Last stable offsets."""
    leader_epochs: dict[int, int] = field(default_factory=dict)
    cut_in: dict[int, int] = field(default_factory=dict)
    """The leader epoch in which the log was last found to be cut."""

    def end(self, partition: int) -> int:
        """The end of all records; -1 before the first look."""
        return self.ends.get(partition, -1)

    def stable_end(self, partition: int) -> int:
        """The last stable offset: whatever is committed from now on is behind it. -1 before the first look."""
        return self.stable.get(partition, -1)

    def leader_epoch(self, partition: int) -> int:
        """The leader epoch at the last look; -1 before the first."""
        return self.leader_epochs.get(partition, -1)


MAX_BATCH_BYTES: Final = 16 << 20
"""Keys and values of one transaction, before they are encoded: a second or two where a broker's quota is 10 MB/s."""
MIN_BATCH_BYTES: Final = 64 << 10


@dataclass(slots=True)
class NodeState:
    """One node's state. `member` is `<node.id>@<incarnation>`. The numbers that it uses begin above `first_number`."""

    member: str
    settings: Settings
    """Replaced as a whole when the configuration changes: read it here each time."""
    cache: CacheState | StreamState
    budget: Budget
    first_number: int = 0
    counts: Counts = field(default_factory=Counts)
    positions: PositionsTable = field(default_factory=PositionsTable)
    changes: ChangeTopic = field(default_factory=ChangeTopic)
    segments: dict[int, Segment] = field(default_factory=dict)
    """All that this node owns, as primary or as backup."""
    primaries: dict[int, Segment] = field(default_factory=dict)
    """Those that this node is primary of."""
    outbox: list[Effect] = field(default_factory=list)
    """Effects for the next poll."""
    spare: bool = False
    """Whether the session is that of the spare producer."""
    withheld: frozenset[int] = frozenset()
    """Partitions to which nothing is written for now, and of which nothing is read."""
    hidden: set[int] = field(default_factory=set)
    """Partitions on which a transaction that stays open hides what was written: so it was found by a scan in vain."""
    max_batch_bytes: int = MAX_BATCH_BYTES
    """Of keys and values in the next transaction: less where Kafka is slow."""
    renewed_from: float = 0.0
    """No position of a primary was renewed before this moment."""
    reset_here: set[int] = field(default_factory=set)
    """Segments that this process has reset."""
    now: float = 0.0
    """Of the last poll, in seconds of a clock that never goes back."""
    wall_us: int = 0
    """Of the last poll, Unix microseconds."""
    claimed: set[int] = field(default_factory=set)
    """Segments of which a claim of this process was read."""
    met: set[str] = field(default_factory=set)
    """Members that the interceptor has seen own segments, whatever the positions topic tells of them."""
    _used: int = 0

    @property
    def producer(self) -> Producer:
        """The producer by which this node writes."""
        return Producer(node_id_of(self.member), self.spare)

    def producers_of(self, claimants: Iterable[Claimant], spares: Container[str]) -> frozenset[Producer]:
        """The producers by which they may still write, but for this node's own.

        A member of `spares` claims with its spare producer: the other one is closed, and has to claim anew.
        """
        members = foreign(claimants, self.member, spares, self.spare)
        return frozenset(Producer(node_id_of(member), member in spares) for member in members)

    def segment(self, number: int) -> Segment:
        """The segment, a new one where this node had none. Raises `ValueError` for a number that does not exist."""
        segment = self.segments.get(number)
        if segment is None:
            count = self.settings.segments
            if not 0 <= number < count:
                raise ValueError(f"segment {number} does not exist (segment.count={count})")
            partition = partition_of(number, self.settings.partitions, count)
            segment = self.segments[number] = Segment(number, partition, OpLog(self.budget))
        return segment

    def primaries_of(self, partition: int) -> list[Segment]:
        """The primaries whose changes are on this partition."""
        return [segment for segment in self.primaries.values() if segment.partition == partition]

    def writable(self, segments: Iterable[Segment]) -> list[Segment]:
        """Of these segments those whose partition is not withheld."""
        return [s for s in segments if s.partition not in self.withheld] if self.withheld else list(segments)

    def working(self) -> list[Segment]:
        """The primaries for which a poll may have something to do: of thousands most are written, and rest.

        What rests begins to work by an event. Only the renewal of its position comes without: see `renewed_from`.
        """
        rests = Phase.WRITING
        return [
            s
            for s in self.primaries.values()
            if s.phase is not rests or s.acked > s.sent or s.noted is not rests or s.release_wanted or s.snapshot
        ]

    def took(self, seconds: float, size: int, *, committed: bool = True) -> bool:
        """A transaction with so many bytes took so long to be committed, or to fail; whether that was too long.

        What is in time shall stay in time: one that fails ends the resets under way, which then begin anew. Of one that
        is too slow half is tried, not of what it might have had: each try that is too large costs a
        `transaction.timeout.ms`.
        """
        timeout = self.settings.transaction_timeout
        too_long = seconds > timeout / 4
        if too_long:
            if size > MIN_BATCH_BYTES:  # else it was not its size
                self.max_batch_bytes = max(MIN_BATCH_BYTES, min(self.max_batch_bytes, size) // 2)
        elif committed and seconds < timeout / 8:
            self.max_batch_bytes = min(MAX_BATCH_BYTES, max(self.max_batch_bytes, 2 * size))
        return too_long

    def own(self, segment: Segment) -> None:
        """The node is primary from now on."""
        self.primaries[segment.number] = segment
        self.renewed_from = min(self.renewed_from, segment.renewed_at)

    def demote(self, number: int) -> None:
        """The node is backup from now on, or will be: history and op log stay."""
        segment = self.segment(number)
        segment.go(Phase.IDLE)
        segment.reset, segment.owed, segment.marker, segment.snapshot = None, None, None, None
        segment.release_wanted = False
        self.primaries.pop(number, None)
        hidden = segment.partition in self.hidden
        if hidden and not any(other.marker is not None for other in self.primaries_of(segment.partition)):
            self.hidden.discard(segment.partition)  # nobody looks there any more

    def next_number(self) -> int:
        """A number that this member has not used: for control records, claims and resets."""
        self._used += 1
        return self.first_number + self._used

    def is_of_a_twin(self, segment: int, claim: ClaimState) -> bool:
        """Whether a claim that is read is another process's of this member, and the first of the segment."""
        if claim.member != self.member:
            return False
        if self.first_number < claim.number <= self.first_number + self._used:
            self.claimed.add(segment)
        return segment not in self.claimed

    def take_outbox(self) -> list[Effect]:
        """Empties the outbox."""
        effects, self.outbox = self.outbox, []
        return effects
