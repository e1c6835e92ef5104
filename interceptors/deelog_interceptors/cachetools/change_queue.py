"""What the write path and the connector's thread share: one queue of changes, and the room that it may take.

The write path appends plain tuples to a `collections.deque`, whose `append` is atomic and takes no lock; the
connector's thread takes them out in that order and only then assigns positions. That gives the same positions as
assigning them at the write: there is one process and one queue, nothing but this queue leads to the op log, and
the user's lock (or thread) ordered the changes of one key when they were appended. So the costly steps (segment,
`Operation`, encoding) stay out of the write.

Room is counted in bytes as `Operation.size` counts them. `taken` grows with every append and is written by the
writers only, `limit` by the connector's thread only: no counter has two writers, so none needs a lock. After each
drain the limit is set to what was drained plus what the op log has free, so that queue and op log together stay within
`max.queue.size` and `max.queue.size.in.bytes`. Removals are the exception: they append without asking for room, and
later writes wait longer for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from deelog_interceptors.cachetools.serialize import Raw
from deelog_schemas.operation import OVERHEAD, Reason, Trace, trace_size

CHECKED: Final = "checked"
"""In the place of a reason: the cache has the entry, as far as a check has seen. Without a raw value: how many it has
stands in the expiry's place."""
Change = tuple[Reason | str, Raw, Any, Any, float, Trace | None]
"""Reason, raw key, raw value (None: removed), the entry's expiry in the cache's own time or None, the write's time in
Unix seconds, and its trace context or None. A clear with raw keys in the place of a value: all others are gone, for the
reason in the expiry's place."""


def charge(raw_key: Raw, raw_value: Raw | frozenset[Raw] | None, trace: Trace | None = None) -> int:
    """The bytes that a change counts for: the `Operation.size` that it will have (without `before`)."""
    size = OVERHEAD + len(raw_key) + (0 if raw_value is None else len(raw_value))
    return size if trace is None else size + trace_size(trace)


@dataclass(slots=True, eq=False)
class ChangeQueue:
    """The queue and its counters. `writing` and `removing` are used under the user's lock."""

    queue: deque[Change] = field(default_factory=deque)
    taken: int = 0
    """Bytes ever appended."""
    limit: int = 0
    """A write that would take `taken` beyond this asks for room first."""
    writing: bool = False
    """Inside a `__setitem__`: a `popitem` is then an eviction."""
    removing: Reason = Reason.REMOVE
    """The reason that a `__delitem__` records now."""
    serial: int = 0
    """Counts the writes and removals, but for evictions: who finds another one was interrupted by such a call."""
    doubt: Any = None
    """What calls that did not end well may have changed: the last one, and those before it (see `Teller`)."""
