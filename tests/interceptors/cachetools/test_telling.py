"""Exceptions of a signal handler, and writes of one, at every instant of a call: the topic is what the cache is.

CPython runs such handlers where a function begins, behind calls and at jumps back. Tried: each of these instants, of
every operation, class and kind of keys, and alarms at random times.
"""

from __future__ import annotations

import dis
import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from types import FrameType
from typing import Any

import cachetools
import pytest

from deelog_interceptors.cachetools.errors import NotCapturable
from tests.interceptors.cachetools.support import Attached, Clock

BROKEN = (KeyError, StopIteration, ValueError, AttributeError, RuntimeError)
"""What cachetools raises where it was interrupted between its own structures."""
SIZE = 3
_TRACED = ("deelog_interceptors.cachetools", "cachetools")
_BEHIND = ("CALL", "JUMP_BACKWARD", "FOR_ITER", "SEND")


class Interrupted(Exception):
    """What the handler raises."""


class Own(cachetools.LRUCache[Any, Any]):
    """A user's class: the capture relies on none of its methods."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)


class Instant:
    """Calls `handler` once, at the `number`-th instant within `with`."""

    def __init__(self, number: int, handler: Callable[[], None]) -> None:
        self._left, self._handler = number, handler
        self._before: dict[FrameType, str] = {}
        self._names: dict[Any, dict[int, str]] = {}

    @property
    def came(self) -> bool:
        """Whether it did."""
        return self._left <= 0

    def __enter__(self) -> Instant:
        self._former = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._former)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(_TRACED):
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._may_come()
        elif event == "opcode":
            code = frame.f_code
            if code not in self._names:
                self._names[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
            if self._before.get(frame, "").startswith(_BEHIND):
                self._may_come()
            self._before[frame] = self._names[code].get(frame.f_lasti, "")
        return self._trace

    def _may_come(self) -> None:
        self._left -= 1
        if self._left == 0:
            sys.settrace(None)
            self._handler()


def interrupt() -> None:
    raise Interrupted


CLASSES: dict[str, Callable[[Clock], Any]] = {
    "Cache": lambda _: cachetools.Cache(SIZE),
    "FIFOCache": lambda _: cachetools.FIFOCache(SIZE),
    "LRUCache": lambda _: cachetools.LRUCache(SIZE),
    "LFUCache": lambda _: cachetools.LFUCache(SIZE),
    "RRCache": lambda _: cachetools.RRCache(SIZE, choice=min),
    "TTLCache": lambda clock: cachetools.TTLCache(SIZE, 10, timer=clock),
    "TLRUCache": lambda clock: cachetools.TLRUCache(SIZE, lambda key, value, now: now + 10, timer=clock),
    "Own": lambda _: Own(SIZE),
}
OPERATIONS: dict[str, Callable[[Any], object]] = {
    "new": lambda cache: cache.__setitem__("d", "4"),
    "again": lambda cache: cache.__setitem__("b", "5"),
    "del": lambda cache: cache.__delitem__("b"),
    "del of none": lambda cache: cache.__delitem__("none"),
    "pop": lambda cache: cache.pop("c"),
    "popitem": lambda cache: cache.popitem(),
    "update": lambda cache: cache.update(a="7", e="8"),
    "clear": lambda cache: cache.clear(),
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "serialized": {"key_serializer": "json", "value_serializer": "json"},
    "traced": {"trace": lambda: (("traceparent", b"00"),)},
}
SLOWER = [kind for kind in KINDS if kind != "plain"]
EACH_KIND = ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOWER)]


def made(name: str, **kind: Any) -> tuple[Attached, Clock]:
    """A captured cache that is full."""
    clock = Clock()
    attached = Attached(CLASSES[name](clock), **kind)
    for key in "abc":
        attached.cache[key] = key.upper()
    attached.drain()
    return attached, clock


def instants(do: Callable[[Instant], None], handler: Callable[[], None] = interrupt) -> Iterator[int]:
    """Calls `do` with each instant that comes in it."""
    for number in range(1, 5000):
        instant = Instant(number, handler)
        do(instant)
        if not instant.came:
            return
        yield number
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *product(CLASSES, ["plain"]),
        *(pytest.param(*slower, marks=pytest.mark.slow) for slower in product(["TTLCache", "Own"], SLOWER)),
    ],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_is_interrupted_at_any_instant(name: str, kind: str, operation: str) -> None:
    def do(instant: Instant) -> None:
        attached, _ = made(name, **KINDS[kind])
        with instant, suppress(Interrupted, NotCapturable, *BROKEN):
            OPERATIONS[operation](attached.cache)
        attached.check()
        with suppress(*BROKEN):
            attached.cache["f"] = "9"
        attached.check()

    assert len(list(instants(do))) > 3


@pytest.mark.parametrize("name", ["TTLCache", "TLRUCache"])
@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("operation", ["expire", "new", "popitem", "clear"])
def test_expiry_is_interrupted_at_any_instant(name: str, kind: str, operation: str) -> None:
    def do(instant: Instant) -> None:
        attached, clock = made(name, **KINDS[kind])
        clock.now = 5.0
        attached.cache["b"] = "later"
        clock.now = 12.0
        with instant, suppress(Interrupted, NotCapturable, *BROKEN):
            {"expire": lambda cache: cache.expire(), **OPERATIONS}[operation](attached.cache)
        attached.check()

    assert len(list(instants(do))) > 3


HANDLERS: dict[str, Callable[[Any], object]] = {
    "writes it": lambda cache: cache.__setitem__("b", "handler"),
    "deletes it": lambda cache: cache.pop("b", None),
    "clears": lambda cache: cache.clear(),
}


@pytest.mark.parametrize(
    ("name", "kind"), [*product(["LRUCache", "TTLCache", "Own"], ["plain"]), ("LRUCache", "serialized")]
)
@pytest.mark.parametrize("operation", ["again", "del", "clear"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_writes_at_any_instant(name: str, kind: str, operation: str, handler: str) -> None:
    caches: list[Any] = []

    def do(instant: Instant) -> None:
        attached, _ = made(name, **KINDS[kind])
        caches[:] = [attached.cache]
        with instant, suppress(*BROKEN):
            OPERATIONS[operation](attached.cache)
        attached.check()
        for key in list(cachetools.Cache.__iter__(attached.cache)):  # its own may not end any more
            with suppress(*BROKEN):
                del attached.cache[key]
        attached.check()

    def handle() -> None:
        with suppress(*BROKEN):
            HANDLERS[handler](caches[0])

    assert len(list(instants(do, handle))) > 3


@pytest.mark.parametrize("name", CLASSES)
def test_alarms_at_random(name: str) -> None:
    draw, attached = random.Random(1), made(name)[0]
    cache = attached.cache

    def alarm(*_: object) -> None:
        raise Interrupted

    former, left = signal.signal(signal.SIGALRM, alarm), signal.setitimer(signal.ITIMER_REAL, 0)[0]
    came = 0
    gc.collect()
    gc.disable()  # Python ignores what an alarm raises within a finalizer, of whoever's garbage
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.00002, 0.0004))
                while True:
                    with suppress(*BROKEN):
                        key, kind = f"k{draw.randrange(8)}", draw.randrange(10)
                        if kind < 6:
                            cache[key] = f"{draw.random()}"
                        elif kind < 8:
                            cache.pop(key, None)
                        else:
                            cache.popitem() if kind == 8 else cache.clear()
            except Interrupted:
                signal.setitimer(signal.ITIMER_REAL, 0)
                came += 1
            attached.check()
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)  # of a test's own limit
    assert came == 300


class Lists(cachetools.LRUCache[Any, Any]):
    """A user's class."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)


@pytest.mark.parametrize(
    "make", [cachetools.Cache, cachetools.LRUCache, Lists, lambda size: cachetools.TTLCache(size, 10)]
)
@pytest.mark.parametrize("kind", [{}, {"key_serializer": "json"}])
def test_what_cannot_be_captured_is_skipped_where_that_is_wanted(
    make: Callable[[int], Any], kind: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    attached = Attached(make(3), skips=True, max_entry_bytes=100, **kind)
    cache, name = attached.cache, (lambda key: f'"{key}"') if kind else (lambda key: key)
    cache["a"] = "1"
    cache["a"] = ["of no text"]
    assert cache["a"] == ["of no text"]
    assert attached.told() == [("put", name("a")), ("remove", name("a"))]
    cache["a"], cache["b"] = "2", "x" * 101
    assert attached.told() == [("put", name("a"))]
    cache[frozenset((1,))] = "3"
    cache["a"] = b"\xff"
    del cache["a"], cache["b"]
    cache.pop(frozenset((1,)))
    assert attached.told() == [("remove", name("a"))]
    assert attached.skipped.number == 4
    assert len(caplog.messages) == 1
    assert "on_uncapturable=skip): a value of type list cannot be captured" in caplog.messages[0]
    cache.update(a="1", b=["2"], c="3", d="4", e="5")
    attached.drain()
    assert len(cache) == 3
    attached.check()
    for key in "vwxyz":
        cache[key] = [key]
    attached.drain()
    assert (len(cache), attached.core.entries) == (3, {})
    cache.clear()
    cache["a"] = "1"
    attached.check()
    with pytest.raises(NotCapturable):
        Attached(make(3)).cache["a"] = ["of no text"]
