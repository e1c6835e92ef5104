"""The op log: per segment, in memory, the operations that Kafka is not yet known to hold.

One queue per segment: sequences are contiguous, and writing and pruning go by sequence. Only coalescing and the
corrections of a takeover ask for keys, and walk it. The budget is one for all segments of a node, since any of them may
be the busy one. Alternatives: docs/decisions.md, "One op log per segment".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from deelog_schemas.operation import Operation


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

    __slots__ = ("_budget", "_operations", "complete_from")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._operations: deque[Operation] = deque()
        self.complete_from = 1

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def oldest(self) -> Operation | None:
        """The operation that was captured first."""
        return self._operations[0] if self._operations else None

    def append(self, operation: Operation) -> None:
        """Adds an operation after the last one. The caller keeps the sequence."""
        budget = self._budget
        budget.operations += 1
        budget.bytes += operation.size
        budget.overdrawn += budget.operations > budget.max_operations or budget.bytes > budget.max_bytes
        self._operations.append(operation)

    def prune(self, sequence: int) -> int:
        """Drops what is at or below `sequence`, which Kafka holds; returns how many operations."""
        operations, count = self._operations, 0
        while operations and operations[0].sequence <= sequence:
            self._release(operations.popleft())
            count += 1
        self.complete_from = max(self.complete_from, sequence + 1)
        return count

    def cut(self, sequence: int) -> list[Operation]:
        """Drops what is above `sequence`, which the new primary does not have; returns it."""
        operations, dropped = self._operations, []
        while operations and operations[-1].sequence > sequence:
            dropped.append(operations.pop())
            self._release(dropped[-1])
        return dropped[::-1]

    def restart(self, complete_from: int) -> int:
        """Drops everything; the log is complete from the given sequence on. Returns how many operations."""
        count = len(self._operations)
        for operation in self._operations:
            self._release(operation)
        self._operations.clear()
        self.complete_from = complete_from
        return count

    def after(self, sequence: int, upto: int, limit: int) -> list[Operation]:
        """The operations in (sequence, upto], at most `limit`."""
        operations = self._operations
        if not operations or limit <= 0:
            return []
        # Sequences are contiguous unless a run was coalesced; skip what cannot be in range, then look.
        skip = max(0, min(len(operations), sequence - operations[-1].sequence + len(operations)))
        while skip and operations[skip - 1].sequence > sequence:
            skip -= 1
        within: list[Operation] = []
        for operation in islice(operations, skip, None):
            if operation.sequence > upto or len(within) == limit:
                break
            if operation.sequence > sequence:
                within.append(operation)
        return within

    def keys_after(self, sequence: int) -> set[bytes]:
        """The keys that have an operation above `sequence`."""
        return {o.key for o in self._operations if o.sequence > sequence}

    def coalesce(self, above: int, upto: int) -> int:
        """Replaces the operations of a key in (above, upto] by its newest one there; returns how many were dropped.

        The newest keeps its position and takes the first one's `existed` and `before`. The caller passes acknowledged
        sequences only (coalesce-acked), and none that a transaction holds.
        """
        first: dict[bytes, Operation] = {}
        last: dict[bytes, int] = {}
        for o in self._operations:
            if above < o.sequence <= upto:
                first.setdefault(o.key, o)
                last[o.key] = o.sequence
        kept: deque[Operation] = deque()
        for o in self._operations:
            inside = above < o.sequence <= upto
            if inside and last[o.key] != o.sequence:
                self._release(o)
                continue
            merged = o
            if inside and first[o.key] is not o:
                merged = o.merged(first[o.key])
                self._budget.bytes += merged.size - o.size
            kept.append(merged)
        gone = len(self._operations) - len(kept)
        self._operations = kept
        return gone

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def _release(self, operation: Operation) -> None:
        self._budget.operations -= 1
        self._budget.bytes -= operation.size
