"""A segment's entries on its primary: a cachetools cache that records what it evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final, Protocol

import cachetools

Value = tuple[bytes, int | None]
"""A value and when it expires, in Unix milliseconds."""


class EvictingCache(Protocol):
    """What the store needs of a cache."""

    evicted: list[tuple[bytes, Value]]
    """Evicted since the list was last emptied; the reader empties it."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __contains__(self, key: object) -> bool: ...
    def __getitem__(self, key: bytes) -> Value: ...
    def __setitem__(self, key: bytes, value: Value) -> None: ...
    def __delitem__(self, key: bytes) -> None: ...
    def clear(self) -> None: ...


def _recording(base: Any) -> Callable[[int], EvictingCache]:
    class Recording(base):  # type: ignore[misc]
        def __init__(self, maxsize: int) -> None:
            super().__init__(maxsize)
            self.evicted: list[tuple[bytes, Value]] = []

        def popitem(self) -> tuple[bytes, Value]:
            item: tuple[bytes, Value] = super().popitem()
            self.evicted.append(item)
            return item

    return Recording


_POLICIES: Final = {
    "lru": _recording(cachetools.LRUCache),
    "lfu": _recording(cachetools.LFUCache),
    "fifo": _recording(cachetools.FIFOCache),
    "rr": _recording(cachetools.RRCache),
}

_peek: Final[Callable[[Any, bytes], Value]] = cachetools.Cache.__getitem__


def make_cache(policy: str, capacity: int) -> EvictingCache:
    """An empty cache of at most `capacity` entries."""
    return _POLICIES[policy](capacity)


def peek(data: EvictingCache | MutableMapping[bytes, Value], key: bytes) -> Value | None:
    """The entry; does not count as a use."""
    if isinstance(data, dict):
        return data.get(key)
    return _peek(data, key) if key in data else None
