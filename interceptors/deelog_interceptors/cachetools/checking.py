"""Compares a captured cache with the connector's copy of it, a millisecond at a time.

What the cache holds goes through the queue, as it is at that moment, and the mirror compares it in the order of the
changes: so neither has to stand still for the other. What differs is told as a change, for the reason `correct`.

Some writes pass the capture by: of `cachetools.Cache.__setitem__(cache, key, value)`, or into a value that the cache
holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from deelog_interceptors.cachetools.change_queue import CHECKED, charge
from deelog_interceptors.cachetools.errors import EntryTooLarge, NotCapturable
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.serialize import Raw
from deelog_interceptors.cachetools.telling import (
    MISSING,
    AnyCache,
    CaptureContext,
    Teller,
    count,
    holds,
    keys_held,
    stored,
)
from deelog_schemas.operation import Reason

_SLICE_SECONDS: Final = 0.001
_POLL_SECONDS: Final = 0.005
_LOG: Final = logging.getLogger("deelog.cachetools")


class Checker:
    """Checks one cache. `lock` is the user's; `expiry` gives the moment of an entry, None where entries do not expire.

    `alive` tells whether somebody takes what is in the queue.
    """

    def __init__(
        self,
        cache: AnyCache,
        context: CaptureContext,
        mirror: Mirror,
        lock: AbstractContextManager[Any],
        expiry: Callable[[AnyCache, Any], Any] | None,
        alive: Callable[[], bool],
    ) -> None:
        self._cache, self._context, self._mirror, self._lock = cache, context, mirror, lock
        self._expiry, self._alive = expiry, alive
        self._teller, self._refused = Teller(context, expiry), 0

    def check(self, seconds: float) -> int:
        """Takes all steps; raises `TimeoutError` where the connector does not take what is told."""
        steps, until = self.steps(), time.monotonic() + seconds
        while True:
            try:
                goes_on = next(steps)
            except StopIteration as end:
                return int(end.value)
            if time.monotonic() > until:
                raise TimeoutError(f"not checked within {seconds:g} s: does the connector write, or is it paused?")
            time.sleep(0 if goes_on else _POLL_SECONDS)

    def steps(self) -> Generator[bool, None, int]:
        """Compares all entries, some at each step; returns how many differed. A step holds the lock for a millisecond.

        A step gives False where the next one has to wait for the connector. Ends early where the capture ends.
        """
        before, self._refused = self._mirror.diverged, 0
        with self._lock:
            keys = keys_held(self._cache)
        while keys and self._alive():
            with self._lock:
                has_room = self._some(keys)
            yield has_room
        if self._context.skipped is None:  # else nobody knows how many are to be there
            with self._lock:
                self._count()
            yield from self._settled()
            if self._alive() and self._mirror.surplus:
                with self._lock:
                    self._keep()
        yield from self._settled()
        found = self._mirror.diverged - before
        if found:
            _LOG.warning("%d entries differed from what was captured; they are told now", found)
        return found

    def _some(self, keys: list[Any]) -> bool:
        """Tells what the cache has of some of the keys, which it takes away; False where the queue is full."""
        changes, until = self._context.changes, time.perf_counter() + _SLICE_SECONDS
        while keys and time.perf_counter() < until:
            if changes.doubt is not None:  # a call was interrupted
                self._teller.settle(self._cache)
            serial, key = changes.serial, keys[-1]
            value = stored(self._cache, key)
            prepared = None if value is MISSING else self._prepared(key, value)
            if prepared is not None:
                raw_key, raw_value = prepared
                size, append, at = charge(raw_key, raw_value), changes.queue.append, time.time()
                if changes.taken + size > changes.limit:
                    return False
                expires = None if self._expiry is None else self._expiry(self._cache, key)
                self._context.keys.stored(key, raw_key)
                if changes.serial != serial:  # a handler of a signal has written
                    continue
                changes.taken += size
                append((CHECKED, raw_key, raw_value, expires, at, None))
            keys.pop()
        return True

    def _prepared(self, key: Any, value: Any) -> tuple[Raw, Raw] | None:
        context = self._context
        try:
            raw_key, raw_value = context.raw(key, value)
            context.check(raw_key, raw_value)
        except (NotCapturable, EntryTooLarge) as error:
            self._refused += 1
            if self._refused == 1 and context.skipped is None:
                _LOG.warning("an entry, and perhaps others, cannot be captured any more as it is: %s", error)
            return None
        return raw_key, raw_value

    def _count(self) -> None:
        changes, serial = self._context.changes, -1
        while serial != changes.serial:  # else a handler of a signal has written
            self._teller.settle(self._cache)
            serial = changes.serial
            append, size, at, number = changes.queue.append, charge("", None), time.time(), count(self._cache)
        changes.taken += size
        append((CHECKED, "", None, number, at, None))

    def _keep(self) -> None:
        """Tells that nothing else is there."""
        changes, keys, serial = self._context.changes, self._context.keys, -1
        while serial != changes.serial:  # as there
            self._teller.settle(self._cache)
            serial = changes.serial
            for key in [one for one in list(keys.known or ()) if not holds(self._cache, one)]:
                keys.forget(key)
            kept = frozenset(raw for key in keys_held(self._cache) if (raw := keys.raw(key)) is not None)
            append, size, at = changes.queue.append, charge("", kept), time.time()
        changes.taken += size
        append((Reason.CLEAR, "", kept, Reason.CORRECT, at, None))

    def _settled(self) -> Iterator[bool]:
        """Steps until the mirror has all that was told until now."""
        upto = self._context.changes.taken
        while self._mirror.drained < upto and self._alive():
            yield False
