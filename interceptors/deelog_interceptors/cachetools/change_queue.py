"""What the write path and the connector's thread share: one queue of changes, and the room that is left for it.

The write path appends plain tuples to a `collections.deque`, whose `append` is atomic and takes no lock; the
connector's thread takes them out in that order and only then assigns positions. That gives the same positions as
assigning them at the write: there is one process and one queue, nothing but this queue leads to the op log, and
the order of the changes of one key was settled by the user's lock (or thread) when they were appended. What costs
time, segment, `Operation`, encoding, is so kept out of the write.

Room is counted in bytes as `Operation.size` counts them. `taken` grows with every append and is written by the
writers only, `limit` by the connector's thread only: no counter has two writers, so none needs a lock. The limit is
raised after each drain by what the op log then has free, and the queue is inside it: both together stay within
`max.queue.size` and `max.queue.size.in.bytes`, but for removals, which append without asking and are made up for by
the writes that follow.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from deelog_interceptors.cachetools.serialize import Raw
from deelog_schemas.operation import OVERHEAD, Reason, Trace, trace_size

Change = tuple[Reason, Raw, Raw | None, Any, float, Trace | None]
"""Reason, raw key, raw value (None: gone), the entry's expiry in the cache's own time or None, Unix seconds, and the
trace context of the write where one is wanted and there is one."""


def charge(raw_key: Raw, raw_value: Raw | None, trace: Trace | None = None) -> int:
    """What a change takes of the room, in bytes; the `Operation.size` that it will have (without `before`)."""
    size = OVERHEAD + len(raw_key) + (0 if raw_value is None else len(raw_value))
    return size if trace is None else size + trace_size(trace)


class ChangeQueue:
    """The queue and its counters. `writing` and `removing` say, under the user's lock, what the cache is doing."""

    __slots__ = ("limit", "queue", "removing", "taken", "writing")

    def __init__(self) -> None:
        self.queue: deque[Change] = deque()
        self.taken = 0
        """Bytes ever appended."""
        self.limit = 0
        """A write that would take `taken` beyond this asks for room first."""
        self.writing = False
        """Inside a `__setitem__`: a `popitem` is the cache's own, an eviction."""
        self.removing = Reason.REMOVE
        """What a `__delitem__` is, right now."""
