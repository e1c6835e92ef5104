"""The expiry timer, with a loop that only keeps its scheduled calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import pytest

from deelog_interceptors.grid.data.expiry import ExpiryTimer
from deelog_interceptors.grid.data.store import Store


class Loop:
    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay, call))
        return self.timers[-1]

    @property
    def due(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]


class Timer:
    def __init__(self, delay: float, call: Callable[[], None]) -> None:
        self.delay, self.call, self.cancelled = delay, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Due:
    """A store in which the next entries expire after these seconds, and then none."""

    def __init__(self, *seconds: float) -> None:
        self.left = list(seconds)

    @staticmethod
    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def expire_due(self, now: int) -> float | None:
        assert abs(now / 1000 - time.time()) < 60
        return self.left.pop(0) if self.left else None


def timer(store: Due, loop: Loop) -> ExpiryTimer:
    return ExpiryTimer(cast(Store, store), cast(asyncio.AbstractEventLoop, loop))


def test_it_runs_at_the_earliest_moment_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    expiry = timer(Due(), loop)
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    for seconds in (0.75, 0.25, 0.5):
        expiry.run_at(now / 1e9 + seconds)
    (due,) = loop.due
    assert due.delay == pytest.approx(0.25, abs=0.002)


def test_it_looks_once_a_second_at_a_clock_that_may_be_put_forward() -> None:
    loop = Loop()
    expiry = timer(Due(3600.0, 3599.0, 0.0), loop)
    expiry.run_at(time.time() + 3600)
    for looked in range(1, 5):
        assert len(loop.timers) == looked
        loop.timers[-1].call()
    assert [t.delay for t in loop.timers] == [1.0, 1.0, 1.0, 0.0]


def test_it_runs_again_when_the_store_says_so_and_rests_when_nothing_is_due() -> None:
    loop = Loop()
    expiry = timer(Due(0.4), loop)
    expiry.run_at(0.0)
    loop.timers[0].call()
    assert [t.delay for t in loop.timers] == [0.0, pytest.approx(0.4, abs=0.1)]
    loop.timers[1].call()
    assert len(loop.timers) == 2
    expiry.run_at(time.time() + 500)
    assert len(loop.timers) == 3


def test_after_cancel_nothing_is_due() -> None:
    loop = Loop()
    expiry = timer(Due(), loop)
    expiry.run_at(0.0)
    expiry.cancel()
    assert loop.due == []
