"""What a consumer that knows nothing of resets holds of a segment, and what a reset takes back of it.

A stock consumer upserts by key: rows of a reset it reads as upserts, but of keys that are not among them it hears
nothing. `reset.strategy` says what it is told. Whoever resets has lost its memory of what it wrote, or never had one:
Kafka alone knows which keys such a consumer holds, so the segment is read again up to the reset's own begin. From the
begin of the last completed reset where that one took back as well, since what was held then stands behind it; from the
partition's beginning otherwise. By what the log shows, not by what the positions topic says of it: a log that was cut
or compacted, or a node of another strategy, cannot mislead it.

Weighed: a record of all keys ever written, kept by every owner (memory for ever, lost with the owners all the same), a
delete for each key that *was* in some node's memory (the keys that matter are those nobody remembers), and this, which
costs a read per reset and remembers nothing in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from deelog_connector.core.effects import ScannedRecord
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry


class Strategy(StrEnum):
    """`reset.strategy`."""

    MARKER = "marker"
    """Begin and end say it: nothing is taken back."""
    TOMBSTONES = "tombstones"
    """Keys that Kafka holds and the cache does not are deleted, before the rows."""
    RESEND = "resend"
    """Every key that Kafka holds is deleted; those that live directly before their rows, in the same transaction."""

    @property
    def takes_back(self) -> bool:
        """Whether consumers that know nothing of resets are told what is gone."""
        return self is not Strategy.MARKER


TAKING_BACK = frozenset(str(s) for s in Strategy if s.takes_back)


@dataclass(slots=True)
class KeysInKafka:
    """The keys that such a consumer holds, folded from `start` (-1: the partition's beginning) on."""

    start: int
    keys: set[bytes] = field(default_factory=set)
    _id: str = ""
    """Of the reset that begins at `start`, if it takes back; `_ended`: its end was read as well, and all of it stands
    there; `_torn`: some of it does not."""
    _ended: bool = False
    _torn: bool = False
    _taken: set[bytes] = field(default_factory=set)
    """Keys that it takes back, and does not tell of again; `_rows`: how many of those that it tells of stand there."""
    _rows: int = 0
    _empty: bool = True

    @property
    def whole(self) -> bool:
        """Whether nothing below `start` can still be held."""
        return self.start < 0 or self._ended

    @property
    def in_vain(self) -> bool:
        """Whether it never will be `whole`: no reset that takes back begins at `start`, or not all of it is there."""
        return not self.whole and not self._empty and (self._torn or not self._id)

    def apply(self, record: ScannedRecord) -> None:
        """Folds the segment's next record, in offset order, whatever its position: such a consumer knows of none."""
        if record.offset < self.start:
            return
        control = record.control
        if record.kind is Kind.RESET_BEGIN:
            if record.offset == self.start and control.get("strategy") in TAKING_BACK:
                self._id = control["id"]
        elif record.kind is Kind.RESET_END:
            if self._id and control["id"] == self._id and not self._ended:
                taken, rows = control.get("taken_back", 0), control.get("count", 0)
                self._torn = taken > len(self._taken) or rows > self._rows
                self._ended = not self._torn
        elif record.gone:
            self.keys.discard(record.key)
            if record.kind is Kind.TOMBSTONE and self._id and not self._ended:
                self._taken.add(record.key)
        elif record.kind in (Kind.CHANGE, Kind.READ):
            self.keys.add(record.key)
            self._taken.discard(record.key)
            self._rows += record.kind is Kind.READ and not self._ended
        self._empty = False


def taken_back(strategy: Strategy, held: set[bytes], entries: Sequence[Entry]) -> tuple[list[bytes], set[bytes]]:
    """What a reset deletes before its rows, in order, and which rows follow a delete of their own.

    `entries` are those of the reset. No key of theirs is among the first, so that none that lives is deleted by a
    transaction that does not bring it back: what an abandoned reset left behind is never missing more than the cache.
    """
    live = {e.key for e in entries}
    again = held & live if strategy is Strategy.RESEND else set()
    return sorted(held - live), again
