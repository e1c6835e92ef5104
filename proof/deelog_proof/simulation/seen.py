"""What the checker has read of one segment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from deelog_proof.memory.log import Log
from deelog_proof.simulation.stock_consumer import StockConsumer
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind, Position
from deelog_schemas.operation import Entry
from deelog_schemas.records import ON_CHANGES, ON_POSITIONS, Record, decode


@dataclass(slots=True)
class Seen:
    """One segment as read from the topic."""

    reader: SegmentReader
    active: tuple[int, int] = (0, 0)
    """Epoch and node number of the ACTIVE of the highest epoch; a late one of a fenced node does not count."""
    stock: StockConsumer = field(default_factory=StockConsumer)
    positions: set[Position] = field(default_factory=set)
    """Of committed changes, ends of resets, and skipped operations."""
    skipped: Position = (0, 0)
    """The highest position that was skipped."""
    value_at: dict[bytes, Position] = field(default_factory=dict)
    """By key, the position of the record with its value."""
    damaged: bool = False
    """Records of it were removed on purpose: not checked until a reset ends after the offset `mended_from`."""
    mended_from: int = -1
    resets: list[tuple[float, str]] = field(default_factory=list)
    owners_lost: list[float] = field(default_factory=list)
    lost_at: float = -1.0
    loose: bool = False
    """Whether operations of it gave way to others: its sequences may have gaps."""
    lost: list[tuple[float, Position]] = field(default_factory=list)
    """`(time, position)` of lost changes; (0, 0) for records of a reset."""
    rows_lost: list[tuple[float, tuple[int, int]]] = field(default_factory=list)
    """`(time, active)` of lost rows of an incremental snapshot by the owner; only it knows what it wrote."""
    taken: set[bytes | None] = field(default_factory=set)
    """Keys that the last reset has taken back so far and not sent again."""
    row: Position = (0, 0)
    """Position of the last row of an incremental snapshot."""
    asked: int = 0
    """Incremental snapshots that were requested; `begun`: their number when the last one began."""
    begun: int = 0
    resent: dict[bytes, Entry] | None = None
    """The state of a consumer that starts at the last one. `whole`: that one, which `sender` began, is complete."""
    whole: bool = False
    sender: str = ""


def positions_of(record: Record) -> set[Position]:
    """The positions that a record writes to the topic."""
    epoch, sequence = record.header.position
    if record.header.kind is Kind.SKIPPED:
        return {(epoch, each) for each in range(record.control["first"], sequence + 1)}
    return {(epoch, sequence)} if record.header.kind in (Kind.CHANGE, Kind.RESET_END) else set()


def active_of(record: Record) -> tuple[int, int]:
    """The epoch and the node number of an ACTIVE."""
    return record.control["epoch"], record.header.node


def epochs_told(changes: Log, positions: Log) -> Counter[int]:
    """By segment the highest epoch of which one of both topics tells, in one partition."""
    told = Counter[int]()
    for log, kinds in ((changes, ON_CHANGES), (positions, ON_POSITIONS)):
        for raw in log.read(log.first, log.end)[0]:
            header = decode(*raw, kinds).header
            told[header.segment] = max(told[header.segment], header.epoch)
    return told
