"""The op log: per segment, in memory, the operations that Kafka is not yet known to hold.

One list per segment, in which a sequence is found by bisection: writing and pruning are slices. Only coalescing and the
corrections of a takeover ask for keys, and walk it. The budget is one for all segments of a node, since any of them may
be the busy one. Alternatives: docs/decisions.md, "One op log per segment".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Final

from deelog_schemas.operation import Operation, Reason

_sequence: Final = itemgetter(Operation._fields.index("sequence"))
_size: Final = attrgetter("size")
_last: Final = itemgetter(1)


@dataclass(slots=True)
class Budget:
    """What all op logs of a node may hold together, and do hold."""

    max_operations: int
    max_bytes: int
    operations: int = 0
    bytes: int = 0
    overdrawn: int = 0
    """Appends beyond the limits: a primary always appends."""

    def has_room(self, size: int) -> bool:
        """Whether one more operation of `size` bytes fits."""
        return self.operations < self.max_operations and self.bytes + size <= self.max_bytes


class OpLog:
    """The operations of one segment in sequence order, contiguous from `complete_from` on.

    `complete_from`: no operation at or above this sequence is missing here. Only `restart` lowers it.
    """

    __slots__ = ("_budget", "_merged", "_operations", "complete_from")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._operations: list[Operation] = []
        self.complete_from = 1
        self._merged: list[tuple[int, int]] = []
        """In each (above, upto] operations tell of what was before earlier ones of their keys. In order, and apart."""

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def oldest(self) -> Operation | None:
        """The operation that was captured first."""
        return self._operations[0] if self._operations else None

    def append(self, operation: Operation) -> None:
        """Adds an operation after the last one. The caller keeps the sequence."""
        budget = self._budget
        budget.operations = operations = budget.operations + 1
        budget.bytes = size = budget.bytes + operation.size
        if operations > budget.max_operations or size > budget.max_bytes:
            budget.overdrawn += 1
        self._operations.append(operation)

    def prune(self, sequence: int) -> int:
        """Drops what is at or below `sequence`, which Kafka holds; returns how many operations."""
        count = self._upto(sequence)
        if count:
            self._release(self._operations[:count])
            del self._operations[:count]
        if self.complete_from <= sequence:
            self.complete_from = sequence + 1
        del self._merged[: bisect_right(self._merged, sequence, key=_last)]
        return count

    def cut(self, sequence: int) -> list[Operation]:
        """Drops what is above `sequence`, which the new primary does not have; returns it."""
        count = self._upto(sequence)
        dropped = self._operations[count:]
        self._release(dropped)
        del self._operations[count:]
        if any(above < sequence < upto for above, upto in self._merged):
            # What is left lacks what gave way to what is dropped.
            self.restart(sequence + 1)
        self._merged = [run for run in self._merged if run[1] <= sequence]
        return dropped

    def complete_behind(self, sequence: int) -> int:
        """No operation at or above the result is missing here, nor tells of what was before one up to `sequence`.

        Another owner may have written a part of what gave way here.
        """
        within = (upto + 1 for above, upto in self._merged if above < sequence < upto)
        return next(within, self.complete_from)

    def run_behind(self, sequence: int) -> int:
        """The last operation above this one to which others gave way; 0: there is none."""
        last = self._merged[-1][1] if self._merged else 0
        return last if last > sequence else 0

    def restart(self, complete_from: int) -> int:
        """Drops everything; the log is complete from the given sequence on. Returns how many operations."""
        dropped, self._operations = self._operations, []
        self._release(dropped)
        self.complete_from = complete_from
        self._merged.clear()
        return len(dropped)

    def after(self, sequence: int, upto: int, limit: int) -> list[Operation]:
        """The operations in (sequence, upto], at most `limit`."""
        operations = self._operations
        first = self._upto(sequence)
        end = min(len(operations), first + limit)
        return operations[first : bisect_right(operations, upto, first, end, key=_sequence)]

    def gaps_after(self, sequence: int) -> list[tuple[int, int]]:
        """Where sequences above this one gave way to later ones here: that of the operation behind, and how many."""
        operations = self._operations[self._upto(sequence) :]
        before = max(sequence, self.complete_from - 1)
        if not operations or operations[-1].sequence - before == len(operations):
            return []
        befores = chain((before,), map(_sequence, operations))
        gaps = ((o.sequence, o.sequence - 1 - last) for o, last in zip(operations, befores, strict=False))
        return [gap for gap in gaps if gap[1]]

    def keys_after(self, sequence: int) -> set[bytes]:
        """The keys that have an operation above `sequence`."""
        return {o.key for o in self._operations[self._upto(sequence) :]}

    def coalesce(self, above: int, upto: int) -> int:
        """Replaces the operations of a key in (above, upto] by its newest one there; returns how many were dropped.

        The newest keeps its position and takes the first one's `existed` and `before`. A clear replaces all before it.
        The caller passes sequences that every in-sync owner holds (coalesce-acked), and none that a transaction holds.
        """
        run = slice(self._upto(above), self._upto(upto))
        dropped = self._operations[run]
        cleared = max((index for index, o in enumerate(dropped) if o.reason == Reason.CLEAR), default=0)
        within = dropped[cleared:]
        kept = within[:1] if within and within[0].reason == Reason.CLEAR else []
        within = within[len(kept) :]  # a clear's key is no entry's, and empty as one may be
        first, last = {o.key: o for o in reversed(within)}, {o.key: o for o in within}
        # CHECK correct-phantoms: a filter may drop what a correction gives way to, but no correction.
        reasons = {o.key: o.reason for o in within} | {o.key: o.reason for o in within if o.reason == Reason.CORRECT}
        newest = (o for o in within if last[o.key] is o)
        kept += (o if first[o.key] is o else o.merged(first[o.key], reasons[o.key]) for o in newest)
        self._operations[run] = kept
        merged = [(first[key].sequence - 1, o.sequence) for key, o in last.items() if first[key] is not o]
        if cleared:
            merged.append((dropped[0].sequence - 1, dropped[cleared].sequence))
        if merged:
            first_here = bisect_right(self._merged, above, key=_last)
            self._merged[first_here:] = _apart(self._merged[first_here:] + merged)
        self._release(dropped)
        self._budget.operations += len(kept)
        self._budget.bytes += sum(map(_size, kept))
        return len(dropped) - len(kept)

    def fitting(self, above: int, upto: int, size: int) -> int:
        """The highest sequence up to `upto` that can be coalesced into one run of `size` bytes."""
        if self._budget.bytes <= size:
            return upto
        last: dict[bytes, int] = {}
        for operation in self._operations[self._upto(above) : self._upto(upto)]:
            size -= operation.size - last.get(operation.key, 0)
            last[operation.key] = operation.size
            if size < 0:
                return operation.sequence - 1
        return upto

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def _upto(self, sequence: int) -> int:
        """How many operations are at or below `sequence`."""
        return bisect_right(self._operations, sequence, key=_sequence)

    def _release(self, operations: Sequence[Operation]) -> None:
        self._budget.operations -= len(operations)
        self._budget.bytes -= sum(map(_size, operations))


def _apart(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same in order, where those that overlap are one."""
    found: list[tuple[int, int]] = []
    for above, upto in sorted(runs):
        if found and above < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], upto)
        else:
            found.append((above, upto))
    return found
