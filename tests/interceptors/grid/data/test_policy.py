"""The caches of segments: what they evict they record, and a peek is no use."""

from __future__ import annotations

import pytest

from deelog_interceptors.grid.data.policy import Value, make_cache, peek
from deelog_schemas.config import FIELDS


@pytest.mark.parametrize("policy", FIELDS["cache.policy"].allowed or ())
def test_what_is_evicted_is_recorded(policy: str) -> None:
    cache = make_cache(policy, 2)
    entries: dict[bytes, Value] = {b"%d" % number: (b"v%d" % number, number) for number in range(3)}
    for key, value in entries.items():
        cache[key] = value
    ((gone, value),) = cache.evicted
    assert value == entries[gone]
    assert {key: cache[key] for key in cache} == {key: entries[key] for key in entries.keys() - {gone}}


def test_a_peek_is_no_use() -> None:
    cache = make_cache("lru", 2)
    cache[b"a"] = cache[b"b"] = (b"v", None)
    assert (peek(cache, b"a"), peek(cache, b"c")) == ((b"v", None), None)
    cache[b"c"] = (b"v", None)
    assert [key for key, _ in cache.evicted] == [b"a"]
    assert (peek({b"a": (b"v", 1)}, b"a"), peek({}, b"a")) == ((b"v", 1), None)
