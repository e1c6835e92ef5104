"""A subclass of the cache's own class that captures writes.

The subclass is made for the one instance and assigned to its `__class__`. The calls that cachetools makes on itself
(`self.popitem()` for an eviction, `self.expire()`, `del self[key]`) come to it too; `pop`, `setdefault`, `update` and
`@cached` go through these methods. At the end the old class is put back. Weighed in docs/decisions.md, "Capture by a
subclass of one instance".

cachetools removes expired entries without `__delitem__`, but `expire()` returns them, and every such removal happens
in `expire()`, in a `__delitem__` that then raises `KeyError`, or in a `TLRUCache.__setitem__` that stores nothing. The
mirror drops a removal of an entry that it does not hold. Where a user's subclass overrides a method, the capture reads
what the cache holds afterwards and does not rely on what cachetools' method would have done: it keeps which keys it
has recorded, and after each call, also one that raised, records the removal of those that are no longer there.
"""

from __future__ import annotations

import copyreg
import functools
import time
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import cachetools

from deelog_interceptors.cachetools.change_queue import ChangeQueue, charge
from deelog_interceptors.cachetools.errors import EntryTooLarge, NotCapturable
from deelog_interceptors.cachetools.serialize import Keys, KnownKeys, PlainKeys, Raw, Values, encoded
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.operation import OVERHEAD, Reason, Trace

AnyCache = cachetools.Cache[Any, Any]
_PUT, _EVICT, _EXPIRE, _REMOVE = Reason.PUT, Reason.EVICT, Reason.EXPIRE, Reason.REMOVE
_MISSING: Final = object()
_METHODS: Final = ("__setitem__", "__delitem__", "popitem", "clear", "expire")
"""Those that change a cache."""
_FIRST_FREE_KEY: Final = "\x01"
"""Smaller texts are empty or begin with NUL, as reserved keys do: they take the slow path."""

# Unbound methods of the base class: they read the entry without counting as a use.
_holds = cachetools.Cache.__contains__
_count = cachetools.Cache.__len__
_look = cachetools.Cache.__getitem__


@dataclass(frozen=True, slots=True)
class CaptureContext:
    """What the methods of a captured class use."""

    changes: ChangeQueue
    keys: Keys
    values: Values
    limit: EntryLimit
    make_room: Callable[[Raw, int], None]
    """`(raw key, bytes)`: returns when the op log has room for the operation; raises where the write must fail."""
    trace: Callable[[], Trace | None] | None = None
    """Returns the trace context of the current write; None with tracing off."""

    def raw(self, key: Any, value: Any) -> tuple[Raw, Raw]:
        """Raw key and value of a write; raises before anything changes."""
        return self.keys.prepare(key), self.values.prepare(value)

    def prepare(self, key: Any, value: Any) -> tuple[Raw, Raw]:
        """The same, checked."""
        raw_key, raw_value = self.raw(key, value)
        if len(raw_key) + len(raw_value) > self.limit.sure:
            self.check(raw_key, raw_value)
        return raw_key, raw_value

    def check(self, raw_key: Raw, raw_value: Raw) -> None:
        """Raises `EntryTooLarge`. Not needed for what is no larger than `limit.sure`."""
        if problem := self.limit.problem(encoded(raw_key), encoded(raw_value)):
            raise EntryTooLarge(f"{problem}: {ascii(raw_key)[:80]}")

    def put(self, key: Any, raw_key: Raw, raw_value: Raw, expires: Any) -> None:
        """Records that the cache now holds the entry."""
        self.keys.stored(key, raw_key)
        trace = None if self.trace is None else self.trace()
        self.changes.queue.append((_PUT, raw_key, raw_value, expires, time.time(), trace))
        self.changes.taken += charge(raw_key, raw_value, trace)

    def gone(self, key: Any, reason: Reason) -> None:
        """Records that the cache does not hold `key` (any more). Never fails, never waits."""
        raw_key = self.keys.gone(key)
        if raw_key is not None:
            trace = None if self.trace is None else self.trace()
            self.changes.queue.append((reason, raw_key, None, None, time.time(), trace))
            self.changes.taken += charge(raw_key, None, trace)


def keys_for(base: type[AnyCache], keys: Keys) -> Keys:
    """The keys to capture a cache of the class `base` with: a subclass of the user's may do more than it says."""
    return keys if all(own(base, name) for name in _METHODS if hasattr(base, name)) else KnownKeys(keys)


def captured_class(
    base: type[AnyCache], context: CaptureContext, expiry: Callable[[AnyCache, Any], Any] | None
) -> type[AnyCache]:
    """The class to assign to a cache whose class is `base`.

    `expiry` gives the moment, in the cache's own time, at which an entry expires; None where entries do not.
    """
    # Keys of a class that overrides a method are `KnownKeys`.
    as_is = isinstance(context.keys, PlainKeys) and context.values.plain
    if expiry is None and as_is and context.trace is None:
        setitem = _short_setitem(base, context)
    else:
        setitem = _setitem(base, context, expiry)
    body: dict[str, Any] = {
        "__setitem__": setitem,
        "__delitem__": _delitem(base, context),
        "popitem": _popitem(base, context),
        "clear": _clear(base, context),
    }
    if timed(base):
        body["expire"] = _expire(base, context)
    if isinstance(context.keys, KnownKeys):
        changes, known = context.changes, context.keys.known
        reasons: dict[str, Callable[[], Reason]] = {
            "__setitem__": lambda: _EVICT,
            "__delitem__": lambda: changes.removing,
            "popitem": lambda: _removal(changes),
            "clear": lambda: _REMOVE,
            "expire": lambda: _EXPIRE,
        }
        body = {name: _watched(method, context, known, reasons[name]) for name, method in body.items()}
    return subclass(base, body)


def subclass(base: type[AnyCache], body: dict[str, Any]) -> type[AnyCache]:
    """A subclass that an instance of `base` can become, with the name, module and doc of `base`.

    Whoever calls it, or its `__new__`, as a cache does that copies itself by `type(self)`, gets an instance of `base`.
    """
    kind: Any = type(base)

    def __call__(cls: type[AnyCache], *given: Any, **named: Any) -> AnyCache:
        return base(*given, **named)

    def __new__(cls: type[AnyCache], *given: Any, **named: Any) -> AnyCache:
        return base.__new__(base, *given, **named)

    look = {"__slots__": (), "__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    made: type[AnyCache] = types.new_class(
        base.__name__,
        (base,),
        {"metaclass": type(kind)(kind.__name__, (kind,), {"__call__": __call__})},
        lambda namespace: namespace.update(look | {"__new__": __new__} | body),
    )
    made.__reduce_ex__ = _reduce_ex(base, made)  # type: ignore[method-assign]
    return made


def _watched(
    method: Callable[..., Any], context: CaptureContext, known: dict[Any, None], reason: Callable[[], Reason]
) -> Callable[..., Any]:
    """`method`, which also records the removal of what it removed and did not record.

    The count tells of such a removal: an entry that an outer call has stored and will record is in it before, too.
    """

    @functools.wraps(method)
    def watched(self: AnyCache, *given: Any, **named: Any) -> Any:
        unrecorded = _count(self) - len(known)
        try:
            return method(self, *given, **named)
        finally:
            if _count(self) - len(known) < unrecorded:
                for key in [one for one in known if not _holds(self, one)]:
                    context.gone(key, reason())

    return watched


def timed(base: type[AnyCache]) -> bool:
    """Whether entries expire: `TTLCache`, `TLRUCache`, or a user's class on their common base."""
    return issubclass(base, cachetools._TimedCache)


def own(base: type[AnyCache], name: str) -> bool:
    """Whether `base` has the method from cachetools itself and not from a user's subclass."""
    return getattr(getattr(base, name), "__module__", None) == cachetools.__name__


def _short_setitem(base: type[AnyCache], context: CaptureContext) -> Callable[..., None]:
    """For text and bytes in cachetools' untimed caches, which store the value or raise before they change anything.

    Inlined, because each call that it saves is a tenth of what capture may cost.
    """
    changes, raw, make_room, check = context.changes, context.raw, context.make_room, context.check
    sure = context.limit.sure + OVERHEAD
    base_setitem, append, now = base.__setitem__, changes.queue.append, time.time
    text = context.values.text
    key_type = _text_keys(context)
    value_type = str if text else bytes

    def __setitem__(self: AnyCache, key: Any, value: Any) -> None:
        raw_key: Raw
        raw_value: Raw
        if (
            type(key) is key_type
            and type(value) is value_type
            and key >= _FIRST_FREE_KEY
            and key.isascii()
            and (not text or value.isascii())
        ):
            raw_key, raw_value = key, value
        else:
            raw_key, raw_value = raw(key, value)
        size = OVERHEAD + len(raw_key) + len(raw_value)
        if size > sure:
            check(raw_key, raw_value)
        if changes.taken + size > changes.limit:
            make_room(raw_key, size)
        writing, changes.writing = changes.writing, True
        try:
            base_setitem(self, key, value)
        finally:
            changes.writing = writing
        append((_PUT, raw_key, raw_value, None, now(), None))
        changes.taken += size

    return __setitem__


def _text_keys(context: CaptureContext) -> Any:
    """`str` where an ASCII key is its own raw key and tracing is off; otherwise a value that no key's type equals."""
    return str if isinstance(context.keys, PlainKeys) and context.keys.text and context.trace is None else None


def _setitem(
    base: type[AnyCache], context: CaptureContext, expiry: Callable[[AnyCache, Any], Any] | None
) -> Callable[..., None]:
    """For every other cache: records what the cache holds after the write."""
    changes, base_setitem, trusted = context.changes, base.__setitem__, own(base, "__setitem__")
    known = context.keys.known if isinstance(context.keys, KnownKeys) else {}
    # Such a class also reads by other keys. One that only declines writes is not searched at each.
    renames = not (own(base, "__getitem__") and own(base, "__contains__"))

    def __setitem__(self: AnyCache, key: Any, value: Any) -> None:
        raw_key, raw_value = context.prepare(key, value)
        size = charge(raw_key, raw_value)
        if changes.taken + size > changes.limit:
            context.make_room(raw_key, size)
        before, unrecorded = _stored(self, key), _count(self) - len(known)
        writing, changes.writing = changes.writing, True
        try:
            base_setitem(self, key, value)
        finally:
            changes.writing = writing
            after = _stored(self, key)
            if after is _MISSING:
                # The entry has expired already (TLRUCache), was evicted to make room, or was never stored.
                context.gone(key, _EXPIRE)
            elif after is not before or after is value:  # else declined
                context.put(key, raw_key, raw_value, None if expiry is None else expiry(self, key))
        # A new entry shows in the count, one that was overwritten only in its value; else the write was declined.
        if (after is _MISSING and not trusted) and (
            _count(self) - len(known) > unrecorded or (renames and _has_value(self, value))
        ):
            raise NotCapturable(
                f"{base.__name__}.__setitem__ stored {ascii(key)[:80]} under another key: deelog would not know it "
                "when it is evicted; change the key before the write"
            )

    return __setitem__


def _stored(cache: AnyCache, key: Any) -> Any:
    # In this order: __getitem__ of a missing key would call the user's __missing__.
    return _look(cache, key) if _holds(cache, key) else _MISSING


def _has_value(cache: AnyCache, value: Any) -> bool:
    return any(_look(cache, key) is value for key in cachetools.Cache.__iter__(cache))


def _removal(changes: ChangeQueue) -> Reason:
    """The reason of a `popitem` now."""
    return _EVICT if changes.writing else _REMOVE


def _delitem(base: type[AnyCache], context: CaptureContext) -> Callable[..., None]:
    changes, base_delitem, trusted = context.changes, base.__delitem__, own(base, "__delitem__")
    gone, append, now, key_type = context.gone, changes.queue.append, time.time, _text_keys(context)

    def __delitem__(self: AnyCache, key: Any) -> None:
        try:
            base_delitem(self, key)
        except KeyError:
            # A timed cache raises it after the removal of an expired entry.
            if not _holds(self, key):
                gone(key, _EXPIRE)
            raise
        if not trusted and _holds(self, key):
            return
        if type(key) is key_type and key.isascii():  # `gone()` inlined for the common key: every eviction runs it
            append((changes.removing, key, None, None, now(), None))
            changes.taken += OVERHEAD + len(key)
        else:
            gone(key, changes.removing)

    return __delitem__


def _popitem(base: type[AnyCache], context: CaptureContext) -> Callable[..., tuple[Any, Any]]:
    changes, base_popitem = context.changes, base.popitem

    def popitem(self: AnyCache) -> tuple[Any, Any]:
        """Remove and return a `(key, value)` pair, by the rule of the cache."""
        removing, changes.removing = changes.removing, _removal(changes)
        try:
            return base_popitem(self)
        finally:
            changes.removing = removing

    return popitem


def _expire(base: Any, context: CaptureContext) -> Callable[..., list[tuple[Any, Any]]]:
    changes, base_expire = context.changes, base.expire

    def expire(self: AnyCache, time: Any = None) -> list[tuple[Any, Any]]:
        """Remove expired items and return their `(key, value)` pairs."""
        removing, changes.removing = changes.removing, _EXPIRE
        try:
            expired: Iterable[tuple[Any, Any]] | None = base_expire(self, time)
        finally:
            changes.removing = removing
        if not expired:
            return []
        pairs = list(expired)
        for key, _ in pairs:
            if not _holds(self, key):
                context.gone(key, _EXPIRE)
        return pairs

    return expire


def _clear(base: type[AnyCache], context: CaptureContext) -> Callable[..., None]:
    base_clear = base.clear

    def clear(self: AnyCache) -> None:
        """Remove all entries."""
        base_clear(self)
        if not _count(self):
            context.keys.cleared()
            context.changes.queue.append((Reason.CLEAR, "", None, None, time.time(), None))
            context.changes.taken += charge("", None)

    return clear


def _reduce_ex(base: type[AnyCache], made: type[AnyCache]) -> Callable[..., Any]:
    def __reduce_ex__(self: AnyCache, protocol: Any) -> Any:
        # A pickle or copy is another cache, of the user's own class, and is not captured.
        reduced = base.__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        function, arguments, *rest = reduced
        arguments = tuple(base if argument is made else argument for argument in arguments)
        if isinstance(function, types.MethodType) and function.__self__ is made:  # a classmethod
            function = types.MethodType(function.__func__, base)
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]
            function = base.__new__  # pickle checks that `copyreg.__newobj__` gets the object's own class
        return (base if function is made else function, arguments, *rest)

    return __reduce_ex__
