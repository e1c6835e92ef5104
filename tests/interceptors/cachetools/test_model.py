"""Arbitrary sequences of calls on every kind of cache, compared with a twin that is not captured.

After every call the result or exception and the content are the twin's, the replayed operations give the cache's
content, and each removed entry has the expected reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cachetools
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from deelog_schemas.operation import Operation
from tests.interceptors.cachetools.support import Attached, Clock

KEYS = st.sampled_from([*"abcdefg", "", "\0", "ä", "{tag}x", "\U0001f600"])
VALUES = st.text(max_size=4)


def length(value: str) -> int:
    return len(value)


class _Loud(cachetools.LRUCache[Any, Any]):
    """A user's subclass, as in cachetools' documentation."""

    def popitem(self) -> tuple[Any, Any]:
        key, value = super().popitem()
        self.evicted = key
        return key, value

    def __missing__(self, key: Any) -> Any:
        self[key] = value = f"<{key}>"[:3]
        return value


class _Own(cachetools.Cache[Any, Any]):
    """A user's policy on the base class. It refuses values that are too long."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if value != "no":
            super().__setitem__(key, value)

    def popitem(self) -> tuple[Any, Any]:
        key = max(self)
        return key, self.pop(key)

    def clear(self) -> None:
        for key in list(self):
            if key != "a":
                del self[key]


KINDS: dict[str, Callable[[Clock, Callable[[Any], int] | None], Any]] = {
    "Cache": lambda clock, size: cachetools.Cache(100, size),
    "LRU": lambda clock, size: cachetools.LRUCache(4, size),
    "LFU": lambda clock, size: cachetools.LFUCache(4, size),
    "FIFO": lambda clock, size: cachetools.FIFOCache(4, size),
    "RR": lambda clock, size: cachetools.RRCache(4, min, size),
    "TTL": lambda clock, size: cachetools.TTLCache(4, 3, clock, size),
    "TLRU": lambda clock, size: cachetools.TLRUCache(4, lambda k, v, now: now + len(v), clock, size),
    "loud": lambda clock, size: _Loud(4, size),
    "own": lambda clock, size: _Own(4, size),
}


class Machine(RuleBasedStateMachine):
    kind: str

    @initialize(sized=st.booleans(), full=st.booleans())
    def attach(self, sized: bool, full: bool) -> None:
        self.clock = Clock()
        make = KINDS[self.kind]
        size = length if sized else None
        self.cache, self.twin = make(self.clock, size), make(self.clock, size)
        self.attached = Attached(self.cache, full_before=full, unix_time=lambda moment: moment)

    def _call(self, does: Callable[[Any], Any], removal: str | None) -> None:
        """`removal`: the reason of removed entries that have not expired; None for several writes in one call."""
        before = dict(self.attached.core.entries)
        expiries = {
            entry.key: entry.expires_at for segment in range(16) for entry in self.attached.mirror.entries(segment)
        }
        results = []
        for cache in (self.cache, self.twin):
            try:
                results.append(does(cache))
            except (KeyError, ValueError, NotImplementedError) as error:
                results.append((type(error), error.args))
        assert results[0] == results[1]
        assert self._content(self.cache) == self._content(self.twin)
        operations = self.attached.drain()
        self.attached.check()
        if removal is not None:
            self._reasons(operations, before, expiries, removal)

    def _reasons(
        self, operations: list[Operation], before: dict[bytes, bytes], expiries: dict[bytes, int | None], removal: str
    ) -> None:
        for o in operations:
            if o.reason in ("put", "clear"):
                continue
            assert o.key in before
            expires_at = expiries[o.key]
            over = expires_at is not None and expires_at <= self.clock.now * 1000
            # An entry that is written again with a time in the past is an expiry, too.
            assert o.reason == ("expire" if over or o.key == self.cut_short else removal), o

    cut_short: bytes | None = None

    @staticmethod
    def _content(cache: Any) -> list[tuple[Any, Any]]:
        """The content with expired entries, in the order of the cache's own dictionary."""
        return [(key, cachetools.Cache.__getitem__(cache, key)) for key in cachetools.Cache.__iter__(cache)]

    @rule(key=KEYS, value=VALUES | st.just("no"))
    def set(self, key: str, value: str) -> None:
        self.cut_short = key.encode() if value == "" and self.kind == "TLRU" else None
        self._call(lambda cache: cache.__setitem__(key, value), "evict")
        self.cut_short = None

    @rule(key=KEYS, value=VALUES.filter(bool))
    def setdefault(self, key: str, value: str) -> None:
        self._call(lambda cache: cache.setdefault(key, value), "evict")

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), max_size=3))
    def update(self, pairs: list[tuple[str, str]]) -> None:
        self._call(lambda cache: cache.update(pairs), None)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self._call(lambda cache: cache.__delitem__(key), "remove")

    @rule(key=KEYS, default=st.booleans())
    def pop(self, key: str, default: bool) -> None:
        self._call(lambda cache: cache.pop(key, "?") if default else cache.pop(key), "remove")

    @rule()
    def popitem(self) -> None:
        self._call(lambda cache: cache.popitem(), "remove")

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        self._call(lambda cache: cache[key], "evict")

    @rule()
    def count(self) -> None:
        self._call(len, "none")

    @rule()
    def clear(self) -> None:
        self._call(lambda cache: cache.clear(), "remove")

    @rule(seconds=st.integers(1, 4))
    def later(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def expire(self) -> None:
        if hasattr(self.cache, "expire"):
            self._call(lambda cache: cache.expire(), "none")


def _case(kind: str) -> type:
    machine = type(f"Machine{kind}", (Machine,), {"kind": kind})
    case: type = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)  # type: ignore[attr-defined]
    return case


TestCache, TestLRU, TestLFU = _case("Cache"), _case("LRU"), _case("LFU")
TestFIFO, TestRR = _case("FIFO"), _case("RR")
TestTTL, TestTLRU = _case("TTL"), _case("TLRU")
TestSubclass, TestOwnPolicy = _case("loud"), _case("own")
