"""The reading rule: how a segment's records, in offset order, become its entries.

Shared by everything that reads the change topic: the reference reader of the tests, the demo's comparison, and the
Spark job, whose vectorised fold is tested against this one. Weighed in docs/decisions.md, "The reading rule is per
segment".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deelog_schemas.digest import digest_of
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind, Position
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record

START: Position = (0, 0)


class Change(NamedTuple):
    """One key's change as a reader emits it; `before` is the entry that it emitted last."""

    key: bytes
    before: Entry | None
    after: Entry | None
    position: Position
    cause: str
    """`change` or `reset`."""


@dataclass(slots=True)
class OpenReset:
    """A reset of which no end was read yet, with the entries and the mark that it has so far."""

    reset_id: str
    reason: str
    mark: Position
    entries: dict[bytes, Entry] = field(default_factory=dict)


def fold_step(
    entries: dict[bytes, Entry], mark: Position, kind: Kind, position: Position, key: bytes, entry: Entry | None
) -> Position:
    """Folds one record into `entries`, between a begin and its end; returns the new mark.

    A row counts at or above the mark. A change counts only above it: a row includes the operations up to its position.
    A tombstone above the mark is a delete of which compaction removed the record with the envelope.
    """
    if kind is Kind.READ:
        if position < mark or entry is None:
            return mark
        entries[key] = entry
        return position
    if position <= mark:
        return mark
    if entry is None:
        entries.pop(key, None)
    else:
        entries[key] = entry
    return position


@dataclass(slots=True)
class SegmentReader:
    """One segment as a reader sees it.

    `entries` is what it has emitted, `mark` the highest position applied, `repeats` the number of records that were
    read twice. A writer never writes a committed position twice: alert on this number.
    """

    segment: int
    mark: Position = START
    entries: dict[bytes, Entry] = field(default_factory=dict)
    open: OpenReset | None = None
    resets: list[str] = field(default_factory=list)
    """Reasons of the completed resets, in order."""
    repeats: int = 0

    def apply(self, record: Record, decode: Callable[[Record], tuple[bytes, Entry | None]]) -> list[Change]:
        """Applies the segment's next record and returns the changes to emit.

        `decode` gives key and entry of a change, row or tombstone; it is not called for control records.
        Raises `RecordError` where a reset's end does not match what was read; add the record's place by `at`.
        """
        kind, position = record.header.kind, record.header.position
        if kind is Kind.RESET_BEGIN:
            self.mark = max(self.mark, position)
            control = record.control
            self.open = OpenReset(control["id"], control["reason"], position)
            return []
        if kind is Kind.RESET_END:
            return self._end(record)
        if kind not in (Kind.CHANGE, Kind.TOMBSTONE, Kind.READ):
            # Claim, active and release move no mark: a new owner still writes operations of the old epoch. Skipped
            # emits nothing.
            return []
        opened = self.open
        mark = opened.mark if opened else self.mark
        if kind is Kind.READ and opened is None:
            return []
        if _is_repeat(kind, position, mark):
            self.repeats += kind is not Kind.READ
            return []
        if kind is Kind.TOMBSTONE and position == mark:
            return []
        key, entry = decode(record)
        if opened:
            opened.mark = fold_step(opened.entries, mark, kind, position, key, entry)
            return []
        before = self.entries.get(key)
        self.mark = fold_step(self.entries, mark, kind, position, key, entry)
        return [Change(key, before, entry, position, "change")]

    def _end(self, record: Record) -> list[Change]:
        position, control, opened = record.header.position, record.control, self.open
        self.mark = max(self.mark, position)
        if opened is None or opened.reset_id != control["id"]:
            return []  # an end closes only its own begin
        check_end(opened.entries, control)
        self.open = None
        self.mark = max(self.mark, opened.mark)
        changes = difference(self.entries, opened.entries, position)
        self.entries = opened.entries
        self.resets.append(opened.reason)
        return changes


def _is_repeat(kind: Kind, position: Position, mark: Position) -> bool:
    if kind is Kind.CHANGE:
        return position <= mark
    return position < mark


def check_end(entries: Mapping[bytes, Entry], control: Mapping[str, Any]) -> None:
    """Raises `RecordError` unless count and digest of a reset's end are those of the entries that were read."""
    count, digest = len(entries), digest_of((e.key, e.value) for e in entries.values())
    if (count, digest) != (control["count"], control["digest"]):
        raise RecordError(
            f"reset {control['id']} ends with count {control['count']}, digest {control['digest']}, but {count} "
            f"entries of digest {digest} were read: records are missing; ask for a reset of the segment (signal "
            "reset-segment)"
        )


def difference(old: Mapping[bytes, Entry], new: Mapping[bytes, Entry], position: Position) -> list[Change]:
    """The fewest changes that turn `old` into `new`, by key."""
    changes = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before != after:
            changes.append(Change(key, before, after, position, "reset"))
    return changes
