"""One captured write, as it is logged, replicated between owners, and turned into a record."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from deelog_schemas.header import Position

Trace = tuple[tuple[str, bytes], ...]
"""The trace context of a write, as the headers of its record: `traceparent`, and `tracestate` where there is one."""


class Reason(StrEnum):
    """Why an entry changed."""

    PUT = "put"
    REMOVE = "remove"
    EXPIRE = "expire"
    EVICT = "evict"
    CLEAR = "clear"
    CORRECT = "correct"


class Operation(NamedTuple):
    """One operation of a segment's history.

    `key` and `value` are the captured bytes; `value` is None where the entry is gone afterwards. `expires_at` is in
    Unix milliseconds or None, `ts_us` the primary's wall clock in microseconds. `existed` distinguishes an update from
    a create. `before` is the value before the operation under `before.image=full`, else None. A clear has an empty
    key.
    """

    epoch: int
    sequence: int
    reason: str
    key: bytes
    value: bytes | None
    expires_at: int | None
    ts_us: int
    existed: bool
    before: bytes | None = None

    @property
    def position(self) -> Position:
        return self.epoch, self.sequence

    @property
    def size(self) -> int:
        """Bytes that it counts for in an op log's budget: its payload and a flat charge for the object."""
        return OVERHEAD + len(self.key) + len(self.value or b"") + len(self.before or b"")

    @property
    def trace(self) -> Trace:
        """The headers that its record carries beside ours; none but for a `TracedOperation`."""
        return ()

    def merged(self, first: Operation) -> Operation:
        """This one in the place of an older run of its key, which began with `first`."""
        return self._replace(existed=first.existed, before=first.before)


class TracedOperation(Operation):
    """An operation that knows under which trace it was written.

    Weighed in docs/decisions.md, "Where an operation's trace context is kept".
    """

    _trace: Trace = ()

    @classmethod
    def of(cls, operation: Operation, trace: Trace) -> TracedOperation:
        """The operation with its trace."""
        made = cls._make(operation)
        made._trace = trace
        return made

    @property
    def size(self) -> int:
        return super().size + trace_size(self._trace)

    @property
    def trace(self) -> Trace:
        return self._trace

    def merged(self, first: Operation) -> Operation:
        """With the newest one's trace: those that gave way have no record to carry theirs."""
        return TracedOperation.of(super().merged(first), self._trace)


OVERHEAD = 200
"""Bytes of a Python operation beside its payload, by `sys.getsizeof` of its parts; rounded up."""


TRACE_OVERHEAD = 300
"""Bytes of a trace beside its texts: the operation's own dictionary, the pairs, what Python adds; rounded up."""


def trace_size(trace: Trace) -> int:
    """Bytes that a trace counts for. Writes of one span share it, and each counts it whole: never too little."""
    return TRACE_OVERHEAD + sum(len(value) for _, value in trace)


class Entry(NamedTuple):
    """One live entry of a segment, as a reset reads it."""

    key: bytes
    value: bytes
    expires_at: int | None
