"""`snapshot.mode` of a captured cache that has entries already."""

from __future__ import annotations

from typing import Any

import cachetools

import deelog_interceptors.cachetools as deelog
from deelog_schemas.header import Kind
from tests.interceptors.cachetools.test_capture import SECONDS, SEGMENTS, config, ready, told
from tests.support.memory import LiveMemory
from tests.support.waiting import waiting


def filled() -> Any:
    """A cache with forty entries from before the capture."""
    cache: Any = cachetools.LRUCache(100)
    for number in range(40):
        cache[f"k{number}"] = "there before"
    return cache


def test_no_data_sends_what_changes_and_a_restart_repairs(live: LiveMemory, prefix: str) -> None:
    cache = filled()
    with deelog.capture(cache, config(live, prefix, snapshot_mode="no_data")) as capture:
        ready(capture)
        cache["k1"] = "changed"
        del cache["k2"]
        cache["new"] = "v"
    topic = told(live, prefix)
    assert topic.entries == {"k1": "changed", "new": "v"}
    assert (topic.resets, topic.repeats) == ({}, 0)
    with deelog.capture(cache, config(live, prefix, snapshot_mode="no_data")) as capture:
        ready(capture)  # it restarted: changes in between are lost, and no mode prevents that reset
    topic = told(live, prefix)
    assert topic.entries == dict(cache)
    assert topic.resets == {"start": SEGMENTS}


def test_initial_only_sends_the_cache_and_lets_it_go(live: LiveMemory, prefix: str) -> None:
    cache = filled()
    capture = deelog.capture(cache, config(live, prefix, snapshot_mode="initial_only"))
    waiting(lambda: type(cache) is cachetools.LRUCache, SECONDS, "the end of the capture")
    cache["late"] = "not captured"
    capture.close()
    assert capture.failure is None
    topic = told(live, prefix)
    assert topic.entries == {f"k{n}": "there before" for n in range(40)}
    assert topic.resets == {"start": SEGMENTS}
    last = {r.header.segment: r.header.kind for r in live.records(f"{prefix}.sessions")}
    assert set(last.values()) == {Kind.RELEASE}
