"""A check finds what has passed the capture by, of every kind, and nothing else."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import cachetools
import pytest

import deelog_interceptors.cachetools as deelog
from deelog_interceptors.cachetools import checking
from deelog_interceptors.cachetools.checking import Checker
from deelog_interceptors.cachetools.expiry import expiry_of
from tests.interceptors.cachetools.support import Attached, Clock
from tests.interceptors.cachetools.test_capture import config, told
from tests.interceptors.cachetools.test_telling import (
    BROKEN,
    EACH_KIND,
    HANDLERS,
    KINDS,
    Instant,
    Interrupted,
    instants,
    interrupt,
    made,
)
from tests.support.memory import LiveMemory

SIZE = 100
CLASSES: dict[str, Callable[[], Any]] = {
    "LRUCache": lambda: cachetools.LRUCache(SIZE),
    "TTLCache": lambda: cachetools.TTLCache(SIZE, 10, timer=Clock()),
    "TLRUCache": lambda: cachetools.TLRUCache(SIZE, lambda key, value, now: now + 10, timer=Clock()),
    "user's": lambda: Own(SIZE),
}


class Own(cachetools.LRUCache[Any, Any]):
    """A user's class: the capture keeps its keys."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)


def checker(attached: Attached, lock: Any = None) -> Checker:
    """One whose queue is drained by whoever asks whether that goes on."""

    def alive() -> bool:
        trace = sys.gettrace()
        sys.settrace(None)  # another thread does this
        attached.take(1000)
        sys.settrace(trace)
        return True

    return Checker(
        attached.cache, attached.context, attached.mirror, lock or nullcontext(), expiry_of(attached.cache), alive
    )


def passed_by(cache: Any) -> None:
    """Writes that nobody captures: a change, an entry, and a removal."""
    plain: Any = type(cache).__mro__[1]
    plain.__setitem__(cache, "b", "changed")
    plain.__setitem__(cache, "new", "1")
    plain.__delitem__(cache, "c")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("kind", [{}, {"key_serializer": "json", "value_serializer": "json"}])
def test_what_passed_the_capture_by_is_told(name: str, kind: dict[str, Any]) -> None:
    attached = Attached(CLASSES[name](), **kind)
    cache = attached.cache
    cache.update(a="1", b="2", c="3", d="4")
    attached.drain()
    one = checker(attached)
    assert one.check(60) == 0
    assert attached.core.operations[4:] == []
    passed_by(cache)
    operations = len(attached.core.operations)
    assert one.check(60) == 3
    attached.check()
    text = (lambda key: f'"{key}"'.encode()) if kind else str.encode
    correct = {(o.reason, o.key, o.existed) for _, o in attached.core.operations[operations:]}
    assert correct == {("correct", text("b"), True), ("correct", text("new"), False), ("correct", text("c"), True)}
    assert one.check(60) == 0
    assert attached.keys.known is None or set(attached.keys.known) == set(cache)
    del cache["new"], cache["b"]
    cache["c"] = "5"
    attached.check()
    assert (one.check(60), attached.mirror.diverged) == (0, 3)


def test_a_value_that_was_changed_in_its_place_is_told() -> None:
    attached = Attached(cachetools.LRUCache(9), value_serializer="json")
    attached.cache["a"], attached.cache["b"] = [1], [1]
    attached.drain()
    attached.cache["a"].append(2)
    assert checker(attached).check(60) == 1
    assert attached.core.entries == {b"a": b"[1,2]", b"b": b"[1]"}


def test_one_that_cannot_be_captured_any_more_stays_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    attached = Attached(cachetools.LRUCache(9), value_serializer="json")
    attached.cache["a"], attached.cache["b"] = [1], [1]
    attached.drain()
    attached.cache["a"].append(object())
    attached.cache["b"].append("x" * 1000)
    assert checker(attached).check(60) == 0
    assert attached.core.entries == {b"a": b"[1]", b"b": b"[1]"}
    assert len(caplog.messages) == 1
    assert "cannot be captured any more as it is" in caplog.messages[0]


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("handler", ["raises", *HANDLERS])
def test_a_handler_comes_at_any_instant_of_a_check(kind: str, handler: str) -> None:
    caches: list[Any] = []

    def do(instant: Instant) -> None:
        attached, _ = made("LRUCache", **KINDS[kind])
        caches[:] = [attached.cache]
        passed_by(attached.cache)
        with instant, suppress(Interrupted):
            checker(attached).check(60)
        attached.drain()
        checker(attached).check(60)
        attached.check()

    def handle() -> None:
        with suppress(*BROKEN):
            HANDLERS[handler](caches[0])

    assert len(list(instants(do, interrupt if handler == "raises" else handle))) > 20


def test_what_an_interrupted_call_has_changed_is_told_by_a_check() -> None:
    def do(instant: Instant) -> None:
        attached, _ = made("LRUCache")
        with instant, suppress(Interrupted):
            attached.cache["b"] = "5"
        checker(attached).check(60)
        assert attached.changes.doubt is None
        attached.check()

    assert len(list(instants(do))) > 3


def test_a_check_ends_with_the_capture() -> None:
    attached = Attached(cachetools.LRUCache(SIZE))
    attached.cache.update(a="1", b="2")
    cachetools.LRUCache.__delitem__(attached.cache, "a")
    one = Checker(attached.cache, attached.context, attached.mirror, nullcontext(), None, lambda: False)
    attached.mirror.surplus = 1  # of an earlier one
    assert one.check(60) == 0
    assert [change[0] for change in attached.changes.queue] == ["put", "put", "checked"]


def test_a_connector_that_takes_nothing_is_not_waited_for_longer_than_that() -> None:
    attached = Attached(cachetools.LRUCache(9))
    attached.cache["a"] = "1"
    attached.changes.limit = attached.changes.taken
    one = Checker(attached.cache, attached.context, attached.mirror, nullcontext(), None, lambda: True)
    with pytest.raises(TimeoutError, match=r"not checked within 0\.1 s: does the connector write, or is it paused"):
        one.check(0.1)


def test_a_check_within_a_check_ends() -> None:
    """As a handler of a signal does it."""
    found: list[int] = []

    def do(instant: Instant) -> None:
        attached, _ = made("LRUCache")
        attached_now[:] = [attached]
        passed_by(attached.cache)
        with instant:
            found.append(checker(attached).check(60))
        attached.check()

    attached_now: list[Attached] = []
    assert len(list(instants(do, lambda: found.append(checker(attached_now[0]).check(60))))) > 20


def test_what_is_told_expires_when_the_entry_does() -> None:
    attached = Attached(cachetools.TTLCache(9, 10, timer=Clock()), unix_time=lambda moment: moment)
    attached.cache["b"] = "1"
    cachetools.TTLCache.__setitem__(attached.cache, "b", "2")
    assert checker(attached).check(60) == 1
    assert [(o.reason, o.expires_at) for _, o in attached.core.operations] == [("put", 10_000), ("correct", 10_000)]


def test_entries_that_are_skipped_are_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    attached = Attached(cachetools.LRUCache(9), skips=True)
    attached.cache.update(a="1", b=[2])
    assert checker(attached).check(60) == 0
    assert (attached.told(), attached.skipped.number, len(caplog.messages)) == ([], 1, 1)


def test_a_queue_that_is_full_is_waited_for_and_entries_come_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    attached, slices = Attached(cachetools.LRUCache(5000)), 0
    attached.cache.update((f"k{number}", "v") for number in range(5000))
    attached.drain()
    one = checker(attached)
    some = one._some

    def counting(keys: list[Any]) -> bool:
        nonlocal slices
        slices += 1
        attached.changes.limit = attached.mirror.drained + 10_000
        has_room = some(keys)
        assert attached.changes.taken <= attached.changes.limit
        return has_room

    monkeypatch.setattr(one, "_some", counting)
    monkeypatch.setattr(checking, "_POLL_SECONDS", 0.0)
    assert one.check(60) == 0
    assert slices > 20


def test_a_check_beside_writers_of_other_threads_finds_nothing() -> None:
    attached, lock, ends = Attached(cachetools.LRUCache(SIZE)), threading.RLock(), threading.Event()

    def write(number: int) -> None:
        draw = random.Random(number)
        while not ends.is_set():
            with lock:
                if draw.random() < 0.8:
                    attached.cache[f"k{draw.randrange(150)}"] = f"{draw.random()}"
                else:
                    attached.cache.pop(f"k{draw.randrange(150)}", None)
            ends.wait(0.0001)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        one = checker(attached, lock)
        assert [one.check(60) for _ in range(20)] == [0] * 20
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    attached.check()


def test_a_capture_checks_until_it_is_closed(live: LiveMemory, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    cache: Any = cachetools.LRUCache(SIZE)
    cache.update(b="2", c="3")
    with deelog.capture(cache, config(live, prefix), lock=threading.Lock()) as capture:
        capture.wait_until_streaming()
        passed_by(cache)
        assert (capture.check(), capture.check(), capture.diverged) == (3, 0, 3)
        assert "3 entries differed from what was captured; they are told now" in caplog.messages
    assert told(live, prefix).entries == dict(cache) == {"b": "changed", "new": "1"}
    with pytest.raises(deelog.CaptureFailed, match="cache sessions: its capture has ended"):
        capture.check()
