"""When entries expire: in the cache's time, in Unix milliseconds, and a timer that calls `expire()`.

A timed cache of cachetools removes what has expired when it is next written to or counted. The timer calls the
cache's own `expire()`, under the user's lock, so that a delete reaches Kafka also from a cache that nobody touches, and
has the capture checked.
Looking costs 1 µs where nothing has expired. Weighed in docs/decisions.md, "Expiry is looked for at an interval".
"""

from __future__ import annotations

import datetime
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import cachetools

from deelog_interceptors.cachetools.errors import CaptureFailed
from deelog_interceptors.cachetools.intercept import timed
from deelog_interceptors.cachetools.telling import AnyCache

TRIES: Final = 3
CHECK_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.05
"""Between two steps of a check."""
_LOG: Final = logging.getLogger("deelog.cachetools")


def expiry_of(cache: AnyCache) -> Callable[[AnyCache, Any], Any] | None:
    """A function that gives an entry's expiry in the cache's own time; None where entries do not expire.

    No public method gives the expiry; the two names are private ones of cachetools.
    """
    for kind, name in ((cachetools.TTLCache, "_TTLCache__links"), (cachetools.TLRUCache, "_TLRUCache__items")):
        if isinstance(cache, kind):
            if not isinstance(getattr(cache, name, None), dict):
                raise CaptureFailed(
                    f"{kind.__name__} of cachetools {cachetools.__version__} keeps its expiries in a way that this "
                    "version of deelog does not know: install cachetools 5.5 to 8.0"
                )
            # An exception may have come before it was kept.
            return lambda held, key: getattr(getattr(held, name).get(key), "expires", None)
    if timed(type(cache)):
        return lambda held, key: None  # the user's own kind of expiry: removals are captured, the moment is unknown
    return None


class GivenTime:
    """The user's function from the cache's time to Unix seconds, in milliseconds; None where it gives no moment."""

    def __init__(self, given: Callable[[Any], float]) -> None:
        self._given = given
        self.failed = 0
        """How often it raised, or gave NaN. The first time is logged. (An endless time to live is no moment, too.)"""

    def __call__(self, moment: Any) -> int | None:
        try:
            seconds = self._given(moment)
            found = _milliseconds(seconds)
            if found is not None or not math.isnan(seconds):
                return found
            error: object = "it gave NaN"
        except Exception as raised:  # noqa: BLE001 - may be any of the user's function; it is logged and counted
            error = repr(raised)
        self.failed += 1
        if self.failed == 1:
            _LOG.warning("unix_time gives no moment for %r, expires_at is null: %s", moment, error)
        return None


def unix_ms_of(cache: AnyCache, given: Callable[[Any], float] | None) -> Callable[[Any], int | None]:
    """From the cache's own time to Unix milliseconds: by the user's function (to Unix seconds), or by its timer.

    `time.time`, `time.monotonic`, `time.perf_counter` and timers that give an aware `datetime` are known. For
    any other timer `expires_at` is null.
    """
    if given is not None:
        return GivenTime(given)
    timer = getattr(getattr(cache, "timer", None), "_Timer__timer", None)
    if timer is time.time:
        return lambda moment: _milliseconds(moment)
    if timer in (time.monotonic, time.perf_counter):
        return lambda moment: _milliseconds(time.time() + moment - timer())
    return lambda moment: _milliseconds(moment.timestamp()) if isinstance(moment, datetime.datetime) else None


def _milliseconds(seconds: float) -> int | None:
    # An entry with an endless time to live does not expire.
    return round(seconds * 1000) if abs(seconds) < 1e14 else None


class Timer:
    """Calls `cache.expire()` under `lock` every `interval` seconds until stopped, and `check()` once a minute.

    Without an interval it only checks. `failed` gets the exception of a call of `expire()` that has failed `TRIES`
    times in a row; then it ends.
    """

    def __init__(
        self,
        cache: Any,
        lock: AbstractContextManager[Any],
        interval: float | None,
        failed: Callable[[BaseException], None],
        check: Callable[[], Iterator[object]],
    ) -> None:
        self._cache, self._lock, self._interval, self._failed, self._check = cache, lock, interval, failed, check
        self._stopped = threading.Event()
        self._steps: Iterator[object] | None = None
        """Of a check that is under way."""
        # A daemon: an exit can interrupt nothing of it that must be whole.
        self._thread = threading.Thread(target=self._run, name="deelog-timer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        failures, due = 0, time.monotonic() + CHECK_SECONDS
        while not self._stopped.wait(self._pause()):
            if time.monotonic() >= due and self._steps is None:
                due = time.monotonic() + CHECK_SECONDS
                self._steps = self._check()
            self._step()
            if self._interval is None:
                continue
            try:
                with self._lock:
                    if not self._stopped.is_set():
                        self._cache.expire()
                failures = 0
            except Exception as error:  # noqa: BLE001 - may be any of the user's timer or subclass; it is reported
                failures += 1
                if failures == TRIES:
                    self._failed(error)
                    return
                _LOG.warning("%s.expire() failed and is tried again: %r", type(self._cache).__name__, error)

    def _pause(self) -> float:
        if self._interval is not None:
            return self._interval
        return CHECK_SECONDS if self._steps is None else _STEP_SECONDS

    def _step(self) -> None:
        if self._steps is None:
            return
        try:
            if next(self._steps, None) is None:
                self._steps = None
        except Exception as error:  # noqa: BLE001 - may be any of the user's serializer or subclass; it is logged
            self._steps = None
            _LOG.warning("the capture of a %s could not be checked: %r", type(self._cache).__name__, error)

    def ask_to_stop(self) -> None:
        """No `expire()` begins after this returned."""
        self._stopped.set()

    def stop(self, seconds: float = 1.0) -> None:
        """Ends it. One that runs is waited for, for so long at most: somebody may keep the lock."""
        self.ask_to_stop()
        self._thread.join(seconds)
