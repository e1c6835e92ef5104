"""One captured write, as it is logged, replicated between owners, and turned into a record."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from deelog_schemas.header import Position

Trace = tuple[tuple[str, bytes], ...]
"""The trace context of a write, as record headers: `traceparent`, and `tracestate` if there is one."""


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
        """Its size in the op log's budget, in bytes: the payload and a fixed overhead for the object."""
        return OVERHEAD + len(self.key) + len(self.value or b"") + len(self.before or b"")

    @property
    def trace(self) -> Trace:
        """The trace headers of its record. Empty, except for a `TracedOperation`."""
        return ()

    def merged(self, first: Operation, reason: str) -> Operation:
        """This operation, in place of a run of older ones of its key that began with `first`, for another reason."""
        return self._replace(existed=first.existed, before=first.before, reason=reason)


class TracedOperation(Operation):
    """An operation with the trace context of its write.

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

    def merged(self, first: Operation, reason: str) -> Operation:
        """Keeps the newest trace: the replaced operations have no record that could carry theirs."""
        return TracedOperation.of(super().merged(first, reason), self._trace)


OVERHEAD = 200
"""Bytes of a Python operation besides its payload: the sum of `sys.getsizeof` of its parts, rounded up."""


TRACE_OVERHEAD = 300
"""Bytes of a trace besides its texts: the operation's dictionary, the pairs and Python's overhead, rounded up."""


def trace_size(trace: Trace) -> int:
    """The size of a trace in bytes. Writes of one span share a trace and each counts all of it: never too little."""
    return TRACE_OVERHEAD + sum(len(value) for _, value in trace)


class Entry(NamedTuple):
    """One live entry of a segment, as a reset reads it."""

    key: bytes
    value: bytes
    expires_at: int | None
