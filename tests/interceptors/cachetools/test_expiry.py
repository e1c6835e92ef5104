"""Expiries of timed caches in Unix milliseconds, and the timer that expires what nobody touches.

Bad input: a timer of no known kind, an endless time to live, a cachetools that keeps its expiries elsewhere, an
`expire()` that raises.
"""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cachetools
import pytest

from deelog_interceptors.cachetools import expiry
from deelog_interceptors.cachetools.errors import CaptureFailed
from deelog_interceptors.cachetools.expiry import GivenTime, Timer, expiry_of, unix_ms_of
from tests.interceptors.cachetools.support import Clock


def date() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize("timer", [time.time, time.monotonic, time.perf_counter, date])
def test_an_expiry_is_given_in_unix_milliseconds(timer: Any) -> None:
    seconds: Any = datetime.timedelta(seconds=10) if timer is date else 10
    before = time.time()
    cache: Any = cachetools.TTLCache(2, seconds, timer=timer)
    cache["a"] = 1
    expiry = expiry_of(cache)
    assert expiry is not None
    given = unix_ms_of(cache, None)(expiry(cache, "a"))
    assert given is not None
    assert before - 0.1 <= given / 1000 - 10 <= time.time() + 0.1


def test_what_cannot_be_known_is_null() -> None:
    assert unix_ms_of(cachetools.TTLCache(2, 10, timer=Clock()), None)(5.0) is None
    assert unix_ms_of(cachetools.TTLCache(2, 10, timer=Clock()), lambda moment: moment + 1)(5.0) == 6000
    for cache, given in ((cachetools.TTLCache(2, math.inf, timer=time.time), None), (None, float)):
        for never in (math.inf, math.nan):
            assert unix_ms_of(cache, given)(never) is None  # type: ignore[arg-type]
    users_own: Any = cachetools._TimedCache(2, time.time)
    expiry = expiry_of(users_own)
    assert expiry is not None
    assert expiry(users_own, "a") is None
    assert expiry_of(cachetools.LRUCache(2)) is None


def test_a_cachetools_that_keeps_expiries_elsewhere_is_refused() -> None:
    cache: Any = cachetools.TTLCache(2, 10)
    del cache._TTLCache__links
    with pytest.raises(CaptureFailed, match=r"install cachetools 5\.5 to 8\.0"):
        expiry_of(cache)


class Expiring:
    """Counts its calls, each of which must come under the lock; or fails."""

    def __init__(self, error: Exception | None = None, fails: Callable[[int], bool] = lambda call: True) -> None:
        self.lock, self.calls, self.error = threading.Lock(), threading.Semaphore(0), error
        self.number, self.fails = 0, fails
        self.failures: list[BaseException] = []
        self.checks = threading.Semaphore(0)
        self.check_error: Exception | None = None

    def timer(self, interval: float | None = 0.001) -> Timer:
        return Timer(self, self.lock, interval, self.failures.append, self.check)

    def check(self) -> Iterator[bool]:
        for _ in range(3):
            assert not self.lock.locked()
            self.checks.release()
            yield True
        if self.check_error is not None:
            raise self.check_error

    def expire(self) -> None:
        assert self.lock.locked()
        self.number += 1
        if self.error is not None and self.fails(self.number):
            raise self.error
        self.calls.release()


def test_the_timer_expires_under_the_lock_until_it_is_stopped() -> None:
    cache = Expiring()
    timer = cache.timer()
    for _ in range(3):
        assert cache.calls.acquire(timeout=20)
    timer.stop()
    assert (timer._thread.is_alive(), cache.failures) == (False, [])


@pytest.mark.parametrize("interval", [None, 0.001])
def test_the_timer_checks_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, interval: float | None
) -> None:
    monkeypatch.setattr(expiry, "CHECK_SECONDS", 0.01)
    cache = Expiring()
    cache.check_error = RuntimeError("of the user's serializer")
    timer = cache.timer(interval)
    for _ in range(7):
        assert cache.checks.acquire(timeout=20)
    timer.stop()
    assert (cache.number > 0) is (interval is not None)
    assert cache.failures == []
    assert 'a Expiring could not be checked: RuntimeError("of the user\'s serializer")' in caplog.messages[0]


def test_a_lock_that_somebody_keeps_does_not_hold_up_the_end() -> None:
    cache = Expiring()
    with cache.lock:
        timer = cache.timer()
        before = time.monotonic()
        timer.stop()
        assert time.monotonic() - before < 5
    timer._thread.join(20)
    assert cache.number == 0


def test_an_error_of_the_users_that_lasts_ends_the_timer_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    cache = Expiring(RuntimeError("of the user's timer"))
    timer = cache.timer()
    timer._thread.join(20)
    assert (cache.failures, cache.number) == ([cache.error], 3)
    assert caplog.messages == ['Expiring.expire() failed and is tried again: RuntimeError("of the user\'s timer")'] * 2
    timer.stop()


def test_one_that_does_not_last_does_not() -> None:
    cache = Expiring(RuntimeError("of the user's timer"), lambda call: call % 3 > 0)
    timer = cache.timer()
    for _ in range(3):
        assert cache.calls.acquire(timeout=20)
    timer.stop()
    assert cache.failures == []


def test_a_function_that_gives_no_moment_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    moments: dict[int, float] = {1: 5.0, 2: math.nan, 3: math.inf, 4: -math.inf}
    found = unix_ms_of(cachetools.TTLCache(3, 10), moments.__getitem__)
    assert [found(moment) for moment in (1, 2, 3, 4, 5)] == [5000, None, None, None, None]
    assert isinstance(found, GivenTime)
    assert found.failed == 2
    assert caplog.messages == ["unix_time gives no moment for 2, expires_at is null: it gave NaN"]
