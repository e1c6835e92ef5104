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


def test_it_runs_at_the_earliest_moment_that_was_asked_for() -> None:
    loop = Loop()
    expiry = timer(Due(), loop)
    for seconds in (300.0, 100.0, 200.0):
        expiry.run_at(time.time() + seconds)
    (due,) = loop.due
    assert due.delay == pytest.approx(100.0, abs=50)


def test_it_runs_again_when_the_store_says_so_and_rests_when_nothing_is_due() -> None:
    loop = Loop()
    expiry = timer(Due(400.0), loop)
    expiry.run_at(0.0)
    loop.timers[0].call()
    assert [t.delay for t in loop.timers] == [0.0, pytest.approx(400.0, abs=50)]
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
