"""The items of one transaction, and what its commit means for each segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deelog_connector.core.effects import ControlItem, Item, OperationsItem, RowsItem, StateItem, TakenBackItem
from deelog_connector.core.segment import Phase, Reset, Segment, Snapshot
from deelog_connector.core.settings import StreamState
from deelog_connector.core.state import NodeState
from deelog_schemas.header import Kind, Position
from deelog_schemas.keys import claim_key, control_key, position_key, reset_key
from deelog_schemas.positions import ClaimState, PositionState, ResetState, State


@dataclass(frozen=True, slots=True)
class Advance:
    """What the commit does for a segment: valid while it is still in that phase of that generation."""

    segment: int
    generation: int
    phase: Phase
    value: int = 0
    """Highest sequence sent, or the number of rows of a reset."""
    first: int = 0
    """The lowest sequence of the operations."""
    count: int = 0
    """The number of operations."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the commit does for an incremental snapshot: valid while that one is the segment's."""

    segment: int
    snapshot: Snapshot
    upto: int
    rows: int


@dataclass(slots=True)
class Batch:
    """One transaction of a node."""

    node: NodeState
    items: list[Item] = field(default_factory=list)
    advances: list[Advance] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    entries: int = 0
    """The number of operations and rows in it."""
    size: int = 0
    """Of their keys and values, in bytes."""
    read: int = 0
    """The number of entries that were read of the cache for it, or for later ones."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """By partition the end as known when it was sent: its records are at this offset or later."""

    @property
    def writers(self) -> list[int]:
        """The segments with entries in it. If the broker refused a record, it is of one of them."""
        return sorted({i.segment for i in self.items if isinstance(i, OperationsItem | RowsItem | TakenBackItem)})

    @property
    def is_full(self) -> bool:
        """Whether it has as many entries, or bytes of them, as a transaction may have."""
        return self.entries >= self.node.settings.max_batch_size or self.size >= self.node.max_batch_bytes

    def take(self, sizes: Iterable[int]) -> int:
        """How many entries of these sizes in bytes go in until it is full, the one that fills it included."""
        limit, count = self.node.max_batch_bytes, 0
        for size in sizes:
            count += 1
            self.size += size
            if self.size >= limit:
                break
        self.entries += count
        return count

    def advance(self, segment: Segment, value: int = 0, first: int = 0, count: int = 0, ended: bool = False) -> None:
        """The commit takes the segment on from its present phase."""
        place = segment.number, segment.generation, segment.phase
        self.advances.append(Advance(*place, value, first, count, ended))

    def control(self, kind: Kind, segment: Segment, position: Position, fields: Mapping[str, Any]) -> bytes:
        """Adds a control record of the change topic; its entry key."""
        everything = {"epoch": segment.epoch, "member": self.node.member, **fields}
        number = self.node.next_number()
        item = ControlItem(kind, segment.number, segment.partition, position, number, everything)
        self.items.append(item)
        return entry_key(item, self.node.member)

    def state(self, kind: Kind, segment: Segment, position: Position, key: bytes, state: State | None) -> None:
        """Adds a record of the positions topic; `state` None removes the key."""
        self.items.append(StateItem(kind, segment.number, segment.partition, position, key, state))

    def claim_state(self, segment: Segment, position: Position) -> None:
        """Adds this member's claim, with the number that is awaited there."""
        member, settings = self.node.member, self.node.settings
        names, layout = (settings.prefix, settings.cache), (settings.segments, settings.partitions)
        above, spare = self.node.positions.above(segment.epoch), self.node.spare
        state = ClaimState(segment.epoch, member, *names, *layout, segment.awaited, spare, above)
        self.state(Kind.CLAIM_STATE, segment, position, claim_key(segment.number, member), state)

    def reset_state(self, segment: Segment, reset: Reset) -> None:
        """Adds the open reset."""
        state = ResetState(reset.reset_id, *reset.begin, reset.reason, reset.begin_offset, self.node.member)
        self.state(Kind.RESET_STATE, segment, reset.begin, reset_key(segment.number), state)

    def no_reset_state(self, segment: Segment, position: Position) -> None:
        """Removes it."""
        self.state(Kind.RESET_STATE, segment, position, reset_key(segment.number), None)

    def position(self, segment: Segment, position: Position, kind: Kind = Kind.POSITION) -> None:
        """Adds the position up to which the segment is written by this transaction, and from where to read it."""
        segment.is_unread = False  # this one takes its place
        ledger, changes, cache = segment.ledger, self.node.changes, self.node.cache
        source = ""
        if isinstance(cache, StreamState):
            source = cache.source(segment.number, position[1], tuple(e for e in segment.history if e[0] < position[0]))
        state = PositionState(
            *position,
            ledger.read_from,
            ledger.read_from_sequence,
            *ledger.coalesced(position[1]),
            ledger.base_offset,
            ledger.leader_epoch,
            changes.topic_id,
            self.node.member,
            source,
        )
        self.state(kind, segment, position, position_key(segment.number), state)

    def written_to(self, segment: Segment) -> Position | None:
        """The position up to which everything of a segment is written once this transaction is committed; None where
        a reader may already be beyond it.

        After operations of this transaction it is the last one's. Where none is left to write it is the last of the
        history: the next operation's is beyond it, and so it is beyond any phantom's.
        """
        for item in reversed(self.items):
            if isinstance(item, OperationsItem) and item.segment == segment.number:
                return item.operations[-1].position
        return segment.history[-1] if segment.sent == segment.last_sequence else None


def entry_key(item: ControlItem, member: str) -> bytes:
    """The reserved entry key of a control record."""
    name = item.kind.name.lower().replace("_", "-")
    return control_key(name, item.segment, member, item.number)
