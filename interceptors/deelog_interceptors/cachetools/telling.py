"""What a call has changed is told by what the cache holds afterwards, also where the call was interrupted.

An exception may come between a write and its record: of a user's method, or of a signal handler (a timeout, Ctrl-C).
CPython raises the latter at calls, jumps back and the beginning of a function, never between two attribute accesses.
So what a call may have changed is noted by one store into `ChangeQueue.doubt`, without a call. `settle` looks at the
cache, tells what it finds, and only then takes the note away. Who is interrupted in that looks once more, or the next
call does: what is told twice is what the cache holds.

A handler, or a finalizer, may write the same key between a write and its record. The record is appended only if
`ChangeQueue.serial` is what it was at the look; else the cache is looked at again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import cachetools

from deelog_interceptors.cachetools.change_queue import ChangeQueue, charge
from deelog_interceptors.cachetools.errors import EntryTooLarge, NotCapturable
from deelog_interceptors.cachetools.serialize import Keys, Raw, Values, encoded
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.operation import Reason, Trace

AnyCache = cachetools.Cache[Any, Any]
_PUT, _CLEAR, _EXPIRE, _REMOVE = Reason.PUT, Reason.CLEAR, Reason.EXPIRE, Reason.REMOVE
_LOG: Final = logging.getLogger("deelog.cachetools")
MISSING: Final = object()
UNSEEN: Final = object()
"""In the place of the value from before: nobody has looked."""
ALL: Final = object()
"""In the place of a key: any may be gone. What `Teller.unknown` was before stands for the value, or `MANY`."""
MANY: Final = 1 << 62

# Unbound methods of the base class: they read the entry without counting as a use.
holds = cachetools.Cache.__contains__
count = cachetools.Cache.__len__
_look = cachetools.Cache.__getitem__


def stored(cache: AnyCache, key: Any) -> Any:
    """What the cache has of that key, or `MISSING`."""
    # In this order: __getitem__ of a missing key would call the user's __missing__.
    try:
        return _look(cache, key) if holds(cache, key) else MISSING
    except KeyError:  # a handler of a signal has removed it between the two calls
        return MISSING


def keys_held(cache: AnyCache) -> list[Any]:
    """The keys of all entries."""
    while True:
        try:
            return list(cachetools.Cache.__iter__(cache))
        except RuntimeError:  # a handler of a signal has written between the two calls
            continue


@dataclass(slots=True)
class Skipped:
    """Entries that are not captured, since they cannot be. The first write of one is logged."""

    number: int = 0

    def note(self, error: Exception) -> None:
        """One more, and why."""
        self.number += 1
        if self.number == 1:
            _LOG.warning("not captured, as others that cannot be (on_uncapturable=skip): %s", error)


@dataclass(slots=True)
class CaptureContext:
    """What the methods of a captured class use."""

    changes: ChangeQueue
    keys: Keys
    values: Values
    limit: EntryLimit
    """Gets smaller where the topic takes less than the configuration allows."""
    make_room: Callable[[Raw, int], None]
    """`(raw key, bytes)`: returns when the op log has room for the operation; raises where the write must fail."""
    trace: Callable[[], Trace | None] | None = None
    """Returns the trace context of the current write; None with tracing off."""
    skipped: Skipped | None = None
    """Counts what cannot be captured; None: it is refused."""

    def raw(self, key: Any, value: Any) -> tuple[Raw, Raw]:
        """Raw key and value of a write; raises before anything changes."""
        return self.keys.prepare(key), self.values.prepare(value)

    def prepare(self, key: Any, value: Any) -> tuple[Raw, Raw] | tuple[None, None]:
        """The same, checked; None for an entry that is skipped."""
        try:
            raw_key, raw_value = self.raw(key, value)
            if len(raw_key) + len(raw_value) > self.limit.sure:
                self.check(raw_key, raw_value)
        except (NotCapturable, EntryTooLarge) as error:
            if self.skipped is None:
                raise
            self.skipped.note(error)
            return None, None
        return raw_key, raw_value

    def check(self, raw_key: Raw, raw_value: Raw) -> None:
        """Raises `EntryTooLarge`. Not needed for what is no larger than `limit.sure`."""
        if problem := self.limit.problem(encoded(raw_key), encoded(raw_value)):
            raise EntryTooLarge(f"{problem}: {ascii(raw_key)[:80]}")


class Teller:
    """Tells the changes of one cache. `expiry` gives the moment, in the cache's own time, at which an entry expires;
    None where entries do not.

    A note in `changes.doubt` is `((key, value, before, raw key, raw value, serial), the notes before it)`: `value` was
    perhaps stored in the place of `before` by the call of that serial. Where `value` is `MISSING`, the key was perhaps
    removed, for the reason in the place of `serial`. Without a raw value what is stored is not captured.
    """

    def __init__(self, context: CaptureContext, expiry: Callable[[AnyCache, Any], Any] | None) -> None:
        self._context, self._changes, self._keys, self._expiry = context, context.changes, context.keys, expiry
        self._last: tuple[Any, int] = MISSING, 0
        """The entry that was told last, and its value's identity."""

    def settle(self, cache: AnyCache) -> None:
        """Tells what was noted. Where it is interrupted, call it again."""
        changes = self._changes
        while (doubt := changes.doubt) is not None:
            (key, value, before, raw_key, raw_value, noted), rest = doubt
            serial = changes.serial
            if key is ALL:
                told = self._all(cache, doubt, serial)
            elif (after := stored(cache, key)) is MISSING:
                told = self._gone(cache, doubt, serial)
            elif after is value or (before is not UNSEEN and after is not before):
                # What is not `value` a user's class has stored in its place, or another call, which has told it.
                others = after is not value and serial != noted and self._last == (key, id(after))
                if raw_value is None:
                    told = self._gone(cache, doubt, serial)
                else:
                    told = others or self._put(cache, key, after, raw_key, raw_value, serial)
            else:
                told = True
                if value is MISSING and raw_key is not None:  # another call wrote it when it was being forgotten
                    self._keys.stored(key, raw_key)
            if told and changes.doubt is doubt:
                changes.doubt = rest

    def _put(self, cache: AnyCache, key: Any, value: Any, raw_key: Raw, raw_value: Raw, serial: int) -> bool:
        """Records that the cache now holds the entry; False where another call came between."""
        changes = self._changes
        self._keys.stored(key, raw_key)
        expires = None if self._expiry is None else self._expiry(cache, key)
        trace = None if self._context.trace is None else self._context.trace()
        size, at, append = charge(raw_key, raw_value, trace), time.time(), changes.queue.append
        last = key, id(value)
        if changes.serial != serial:
            return False
        changes.taken += size
        self._last = last
        append((_PUT, raw_key, raw_value, expires, at, trace))
        return True

    def _gone(self, cache: AnyCache, doubt: Any, serial: int) -> bool:
        """The same of a key that the cache does not hold (any more), or whose value is not captured."""
        changes = self._changes
        (key, value, before, raw_key, raw_value, reason), rest = doubt
        if value is not MISSING:  # it has expired already (TLRUCache), was evicted to make room, or never stored
            reason = _REMOVE if raw_value is None else _EXPIRE
        if raw_key is None:
            raw_key = self._keys.raw(key)
            if raw_key is None:
                return True
            # It is forgotten before it is told: who is interrupted between them knows it by the note.
            changes.doubt = (key, value, before, raw_key, raw_value, reason), rest
            return False
        self._keys.forget(key)
        trace = None if self._context.trace is None else self._context.trace()
        size, at, append = charge(raw_key, None, trace), time.time(), changes.queue.append
        if changes.serial != serial:
            self._known_again(cache, key, raw_key)
            return False
        changes.taken += size
        append((reason, raw_key, None, None, at, trace))
        return True

    def _known_again(self, cache: AnyCache, key: Any, raw_key: Raw) -> None:
        """Another call came when the key was being forgotten: it may have stored it, and taken the note away."""
        serial = -1
        while serial != self._changes.serial:
            serial = self._changes.serial
            if holds(cache, key):
                self._keys.stored(key, raw_key)
            else:
                self._keys.forget(key)

    def unknown(self, cache: AnyCache) -> int:
        """How many entries the cache has beyond those whose keys are known here."""
        known = self._keys.known
        return count(cache) if known is None else count(cache) - len(known)

    def _all(self, cache: AnyCache, doubt: Any, serial: int) -> bool:
        """The same of any keys, where there are fewer entries than before, as `unknown` counts them."""
        (_, before, _, _, _, reason), rest = doubt
        if self.unknown(cache) >= before:
            return True
        changes, known = self._changes, self._keys.known
        if known is not None:
            for key in [one for one in list(known) if not holds(cache, one)]:
                rest = (key, MISSING, UNSEEN, None, "", reason), rest
            changes.doubt = rest
            return False
        kept = frozenset(raw for key in keys_held(cache) if (raw := self._keys.raw(key)) is not None)
        size, at, append = charge("", kept), time.time(), changes.queue.append
        if changes.serial != serial:
            return False
        changes.taken += size
        append((_CLEAR, "", kept, reason, at, None))
        return True
