"""Builders for tests of single parts of the core: a node's state, segments in any phase, records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.settings import Settings
from deelog_connector.core.state import NodeState
from deelog_schemas.header import Kind
from deelog_schemas.keys import partition_of
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.positions import ClaimState, StateRecord

MEMBER = "n0@5"
SEGMENTS, PARTITIONS = 8, 2


class Entries:
    """A cache whose segment 0 has these entries."""

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = dict(entries)

    def entries(self, segment: int) -> list[Entry]:
        return [] if segment else [Entry(key, value, None) for key, value in sorted(self._entries.items())]

    def get(self, segment: int, key: bytes) -> Entry | None:
        return next((entry for entry in self.entries(segment) if entry.key == key), None)


def node(entries: Mapping[bytes, bytes] | None = None, max_operations: int = 1000, **settings: Any) -> NodeState:
    """A node without segments."""
    return NodeState(
        MEMBER, Settings(SEGMENTS, PARTITIONS, **settings), Entries(entries or {}), Budget(max_operations, 1_000_000)
    )


def primary(state: NodeState, number: int, phase: Phase = Phase.WRITING, **fields: Any) -> Segment:
    """A segment of which the node is primary, in epoch 7."""
    partition = partition_of(number, PARTITIONS, SEGMENTS)
    values: dict[str, Any] = {"epoch": 7, "history": ((7, 0),)} | fields
    segment = Segment(number, partition, OpLog(state.budget), phase=phase, **values)
    state.segments[number] = state.primaries[number] = segment
    return segment


def operation(sequence: int, key: bytes = b"k", value: bytes | None = b"v", reason: str = Reason.PUT) -> Operation:
    """An operation of epoch 7."""
    return Operation(7, sequence, reason, key, value, None, 0, True)


def captured(segment: Segment, *operations: Operation) -> None:
    """Adds acknowledged operations to the segment's op log and history."""
    for each in operations:
        segment.log.append(each)
        segment.history = ((each.epoch, each.sequence),)
        segment.acked = segment.replicated = each.sequence


def claimed(state: NodeState, number: int, epoch: int, member: str) -> None:
    """Applies a claim, as if it were read from the positions topic."""
    state.positions.apply(
        StateRecord("claim", number, member, ClaimState(epoch, member, "", "", SEGMENTS, PARTITIONS, 1))
    )


def scanned(
    offset: int, segment: int = 0, kind: Kind = Kind.CHANGE, key: bytes = b"k", sequence: int = 1
) -> ScannedRecord:
    """A record of epoch 7."""
    return ScannedRecord(offset, kind, segment, 7, sequence, key, {"id": 7})
