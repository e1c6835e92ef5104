"""All entries of a node. On a primary they change here only: change and capture are one step.

Weighed in docs/decisions.md, "Writes go through the store".
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from deelog_connector.cache_side import ReplicaSink
from deelog_connector.kafka_port import Clock
from deelog_interceptors.grid.data.policy import EvictingCache, Value, make_cache, peek
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.settings import Settings
from deelog_schemas.operation import Entry, Operation, Reason

_EXPIRE_AT_ONCE: Final = 500
"""Entries that one run of the timer expires before it yields the loop."""
_HEAP_SLACK: Final = 50_000


class Store:
    """`on_operation` is called with each captured operation, once it is in the op log."""

    def __init__(
        self, settings: Settings, core: ReplicaSink, on_operation: Callable[[Segment, Operation], None], clock: Clock
    ) -> None:
        self.settings = settings
        self.core = core
        self.segments = [Segment(number) for number in range(settings.segments)]
        self.evicted = self.expired = 0
        self._on_operation, self._clock = on_operation, clock
        self._heap: list[tuple[int, int, bytes]] = []
        self._heap_limit = _HEAP_SLACK
        self._to_queue: dict[Segment, None] = {}
        """Segments that take writes, and whose expiries are not in the heap yet."""

    def now_us(self) -> int:
        """Unix microseconds."""
        return self._clock.time_ns() // 1000

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self._clock.time_ns() // 1_000_000

    # -- reading --------------------------------------------------------------------------------------------------

    def find(self, segment: Segment, key: bytes) -> Value | None:
        """The live entry; on a primary this counts as a use, and an entry past its time expires now."""
        data = self._evicting(segment) if segment.role is Role.PRIMARY and not segment.closed else segment.data
        if key not in data:
            return None
        value = data[key]
        if value[1] is None or value[1] > self.now_ms():
            return value
        if segment.role is Role.PRIMARY and not segment.closed:
            self._gone(segment, key, Reason.EXPIRE)
            self.expired += 1
        return None

    def entries(self, segment: Segment) -> Iterator[Entry]:
        """All entries, including those past their expiry: only the primary's operation removes them."""
        for key in segment.data:
            value = peek(segment.data, key)
            assert value is not None
            yield Entry(key, *value)

    # -- writing, on a primary --------------------------------------------------------------------------------------

    def put(self, segment: Segment, key: bytes, value: bytes, expires_at: int | None) -> int:
        """Sets an entry; returns the operation's sequence. What the policy evicts for it is captured before it.

        With `skip.messages.without.change`, a write that changes nothing counts as a use and makes no operation:
        there is nothing to replicate. The segment's last sequence is returned, which covers the entry's own.
        """
        data = self._evicting(segment)
        before = peek(data, key)
        data[key] = (value, expires_at)
        if before == (value, expires_at) and self.settings.changes_only:
            return segment.last
        if data.evicted:
            self._evictions(segment, data)
        if expires_at is not None:
            self._expires(segment, key, expires_at)
        return self._append(segment, Reason.PUT, key, value, expires_at, before)

    def remove(self, segment: Segment, key: bytes) -> int:
        """Removes an existing entry; returns the operation's sequence."""
        return self._gone(segment, key, Reason.REMOVE)

    def clear(self, segment: Segment) -> int:
        """Removes all entries as one operation; returns its sequence."""
        segment.data.clear()
        return self._append(segment, Reason.CLEAR, b"", None, None, None)

    def _gone(self, segment: Segment, key: bytes, reason: Reason) -> int:
        before = peek(segment.data, key)
        del segment.data[key]
        return self._append(segment, reason, key, None, None, before)

    def _evicting(self, segment: Segment) -> EvictingCache:
        """The cache of a primary. A backup's map becomes one at the first use, unless it holds too much: all maps of a
        view at once would hold up the loop for a second with 500,000 entries. Its order becomes the policy's order."""
        held = segment.data
        if not isinstance(held, dict):
            return held
        segment.data = cache = make_cache(self.settings.policy, self.settings.capacity)
        for key, value in held.items():
            cache[key] = value
        self._evictions(segment, cache)
        return cache

    def plain(self, segment: Segment) -> dict[bytes, Value]:
        """The map of a backup, which evicts and expires nothing (CHECK primary-decides-eviction). What was a primary's
        becomes one at the first use."""
        if not isinstance(segment.data, dict):
            segment.data = {entry.key: (entry.value, entry.expires_at) for entry in self.entries(segment)}
        return segment.data

    def _evictions(self, segment: Segment, cache: EvictingCache) -> None:
        # CHECK primary-decides-eviction: captured here, on the primary, as operations of their own.
        evicted, cache.evicted = cache.evicted, []
        self.evicted += len(evicted)
        for key, before in evicted:
            self._append(segment, Reason.EVICT, key, None, None, before)

    def _append(
        self,
        segment: Segment,
        reason: str,
        key: bytes,
        value: bytes | None,
        expires_at: int | None,
        before: Value | None,
    ) -> int:
        image = before[0] if before is not None and self.settings.before_full else None
        operation = self.core.append(
            segment.number, reason, key, value, expires_at, self.now_us(), before is not None, image
        )
        segment.last = operation.sequence
        self._on_operation(segment, operation)
        return operation.sequence

    # -- applying, on a backup --------------------------------------------------------------------------------------

    def apply(self, segment: Segment, operation: Operation) -> None:
        """Applies what the primary captured."""
        data = self.plain(segment)
        if operation.value is not None:
            data[operation.key] = (operation.value, operation.expires_at)
        elif operation.reason == Reason.CLEAR:
            data.clear()
        elif operation.key in data:
            del data[operation.key]
        self.core.apply(segment.number, operation)

    # -- roles ------------------------------------------------------------------------------------------------------

    def become_primary(self, segment: Segment, epoch: int, must_reset: str | None) -> None:
        """none, backup or primary → primary in a new epoch."""
        self.core.promote(segment.number, epoch, must_reset)
        segment.last = self.core.last_sequence(segment.number)
        if len(segment.data) > self.settings.capacity:
            self._evicting(segment)
        self.opened(segment)

    def opened(self, segment: Segment) -> None:
        """A primary takes writes, for the first time or again. `expire_due` queues its expiries, and is to be called
        soon: a closed segment skips them."""
        self._to_queue[segment] = None

    def become_backup(self, segment: Segment) -> None:
        """primary → backup."""
        self.core.demote(segment.number)

    def drop(self, segment: Segment) -> None:
        """primary or backup → none: drops the segment's entries and positions."""
        self.core.forget(segment.number)
        segment.data = {}

    # -- expiry -----------------------------------------------------------------------------------------------------

    def expire_due(self, now: int) -> float | None:
        """Queues the expiries of one segment that takes writes since the last call, or expires what is due at `now`
        (Unix ms). Returns the seconds until the next call: 0 where there is more to do now, None where nothing expires.
        """
        if self._to_queue:
            segment, _ = self._to_queue.popitem()
            if segment.role is Role.PRIMARY and not segment.closed:
                for key, _, expires_at in self.entries(segment):
                    if expires_at is not None:
                        self._expires(segment, key, expires_at)
            return 0.0
        heap = self._heap
        for _ in range(_EXPIRE_AT_ONCE):
            if not heap:
                return None
            at, number, key = heap[0]
            if at > now:
                return (at - now) / 1000
            heapq.heappop(heap)
            segment = self.segments[number]
            if segment.role is not Role.PRIMARY or segment.closed:
                continue  # `opened` queues it again
            value = peek(segment.data, key)
            if value is not None and value[1] == at:
                self._gone(segment, key, Reason.EXPIRE)
                self.expired += 1
        return 0.0

    def _expires(self, segment: Segment, key: bytes, at: int) -> None:
        heapq.heappush(self._heap, (at, segment.number, key))
        if len(self._heap) > self._heap_limit:
            # Overwritten expiries stay in the heap until they are due; this bounds them.
            self._heap = [
                (entry.expires_at, s.number, entry.key)
                for s in self.segments
                if s.role is Role.PRIMARY
                for entry in self.entries(s)
                if entry.expires_at is not None
            ]
            heapq.heapify(self._heap)
            self._heap_limit = 2 * len(self._heap) + _HEAP_SLACK
