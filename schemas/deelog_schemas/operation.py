"""One captured write, as it is logged, replicated between owners, and turned into a record."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


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
    Unix milliseconds or None, `ts_us` the primary's wall clock in microseconds. `existed` tells an update from a
    create. `before` is the value before the operation under `before.image=full`, else None. A clear has an empty
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
    def position(self) -> tuple[int, int]:
        """`(epoch, sequence)`."""
        return self.epoch, self.sequence

    @property
    def size(self) -> int:
        """Bytes that it counts for in an op log's budget: its payload and a flat charge for the object."""
        return OVERHEAD + len(self.key) + len(self.value or b"") + len(self.before or b"")


OVERHEAD = 200
"""Bytes of a Python operation beside its payload, by `sys.getsizeof` of its parts; rounded up."""


class Entry(NamedTuple):
    """One live entry of a segment, as a reset reads it."""

    key: bytes
    value: bytes
    expires_at: int | None
