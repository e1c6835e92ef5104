"""Which keys a consumer holds that knows nothing of resets, and what a reset deletes of them.

A stock consumer upserts by key: it reads rows of a reset as upserts, and learns nothing of keys that are not among
them. `reset.strategy` says what it gets. A node that resets does not remember what was written: only Kafka knows which
keys such a consumer holds, so the segment is read again up to the begin of the reset. It is read from the begin of the
last complete reset if that one deleted keys as well, since everything that was held then is after it; otherwise from
the partition's beginning. The log decides that, not the positions topic: a log that was cut or compacted, or a node
with another strategy, cannot mislead it. Alternatives: docs/decisions.md, "What a reset takes back is read from Kafka".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from deelog_connector.core.effects import ScannedRecord
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry


class Strategy(StrEnum):
    """`reset.strategy`, which has no word for RESEND: TOMBSTONES becomes that where rows may be left out."""

    MARKER = "marker"
    """Begin and end records only: nothing is deleted."""
    TOMBSTONES = "tombstones"
    """Keys that Kafka holds and the cache does not are deleted, before the rows."""
    RESEND = "resend"
    """Every key that Kafka holds is deleted; those that live directly before their rows, in the same transaction."""

    @property
    def takes_back(self) -> bool:
        """Whether keys are deleted for consumers that know nothing of resets."""
        return self is not Strategy.MARKER


TAKING_BACK = frozenset(str(s) for s in Strategy if s.takes_back)


@dataclass(slots=True)
class KeysInKafka:
    """The keys that such a consumer holds, folded from `start` (-1: the partition's beginning) on."""

    start: int
    keys: set[bytes] = field(default_factory=set)
    _id: str = ""
    """Of the reset that begins at `start`, if it deletes keys."""
    _ended: bool = False
    """Its end was read as well, and it is complete."""
    _torn: bool = False
    """Its end was read, and it is not complete."""
    _deleted: set[bytes] = field(default_factory=set)
    """Keys that it deletes, and sends no row of."""
    _rows: int = 0
    """How many of its rows were read."""
    _empty: bool = True

    @property
    def whole(self) -> bool:
        """Whether no key can be held whose last record is below `start`."""
        return self.start < 0 or self._ended

    @property
    def in_vain(self) -> bool:
        """Whether it never will be `whole`: no reset that deletes keys begins at `start`, or it is not complete."""
        return not self.whole and not self._empty and (self._torn or not self._id)

    def apply(self, record: ScannedRecord) -> None:
        """Folds the segment's next record, in offset order, whatever its position: such a consumer ignores it."""
        if record.offset < self.start:
            return
        control = record.control
        if record.kind is Kind.RESET_BEGIN:
            if record.offset == self.start and control.get("strategy") in TAKING_BACK:
                self._id = control["id"]
        elif record.kind is Kind.RESET_END:
            if self._id and control["id"] == self._id and not self._ended:
                taken, rows = control.get("taken_back", 0), control.get("count", 0)
                self._torn = taken > len(self._deleted) or rows > self._rows
                self._ended = not self._torn
        elif record.gone:
            self.keys.discard(record.key)
            if record.kind is Kind.TOMBSTONE and self._id and not self._ended:
                self._deleted.add(record.key)
        elif record.kind in (Kind.CHANGE, Kind.READ):
            self.keys.add(record.key)
            self._deleted.discard(record.key)
            self._rows += record.kind is Kind.READ and not self._ended
        self._empty = False


def taken_back(strategy: Strategy, held: set[bytes], entries: Sequence[Entry]) -> tuple[list[bytes], set[bytes]]:
    """What a reset deletes before its rows, in order, and which rows follow a delete of their own.

    `entries` are those of the reset. No key of theirs is among the first, so that none that lives is deleted by a
    transaction that does not write it again: an abandoned reset never leaves out more than the cache does.
    """
    live = {e.key for e in entries}
    again = held & live if strategy is Strategy.RESEND else set()
    return sorted(held - live), again
