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
from typing import Any, Final

import cachetools

from deelog_interceptors.cachetools.change_queue import ChangeQueue, charge
from deelog_interceptors.cachetools.errors import NotCapturable
from deelog_interceptors.cachetools.serialize import Keys, KnownKeys, PlainKeys, Raw
from deelog_interceptors.cachetools.subclasses import METHODS
from deelog_interceptors.cachetools.telling import (
    ALL,
    MANY,
    MISSING,
    UNSEEN,
    AnyCache,
    CaptureContext,
    Teller,
    count,
    keys_held,
    stored,
)
from deelog_schemas.operation import OVERHEAD, Reason

_PUT, _CLEAR, _EVICT, _EXPIRE, _REMOVE = Reason.PUT, Reason.CLEAR, Reason.EVICT, Reason.EXPIRE, Reason.REMOVE
_FIRST_FREE_KEY: Final = "\x01"
"""Smaller texts are empty or begin with NUL, as reserved keys do: they take the slow path."""


def keys_for(base: type[AnyCache], keys: Keys) -> Keys:
    """The keys to capture a cache of the class `base` with: a subclass of the user's may do more than it says."""
    return keys if all(own(base, name) for name in METHODS if hasattr(base, name)) else KnownKeys(keys)


def captured_class(
    base: type[AnyCache], context: CaptureContext, expiry: Callable[[AnyCache, Any], Any] | None
) -> type[AnyCache]:
    """The class to assign to a cache whose class is `base`.

    `expiry` gives the moment, in the cache's own time, at which an entry expires; None where entries do not.
    """
    teller = Teller(context, expiry)
    # Keys of a class that overrides a method are `KnownKeys`.
    as_is = isinstance(context.keys, PlainKeys) and context.keys.plain and context.values.plain
    if expiry is None and as_is and context.trace is None and context.skipped is None:
        setitem = _short_setitem(base, context, teller)
    else:
        setitem = _setitem(base, context, teller)
    body: dict[str, Any] = {
        "__setitem__": setitem,
        "__delitem__": _delitem(base, context, teller),
        "popitem": _popitem(base, context),
        "clear": _clear(base, context, teller),
        "__init__": _init(base, context, teller),
    }
    if timed(base):
        body["expire"] = _expire(base, context, teller)
    if isinstance(context.keys, KnownKeys):
        changes = context.changes
        reasons: dict[str, Callable[[], Reason]] = {
            "__setitem__": lambda: _EVICT,
            "__delitem__": lambda: changes.removing,
            "popitem": lambda: _removal(changes),
            "clear": lambda: _REMOVE,
            "expire": lambda: _EXPIRE,
            "__init__": lambda: _REMOVE,
        }
        body = {name: _watched(method, context, teller, reasons[name]) for name, method in body.items()}
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
    method: Callable[..., Any], context: CaptureContext, teller: Teller, reason: Callable[[], Reason]
) -> Callable[..., Any]:
    """`method`, which also records the removal of what it removed and did not record.

    The count tells of such a removal: an entry that an outer call has stored and will record is in it before, too.
    """
    changes = context.changes

    @functools.wraps(method)
    def watched(self: AnyCache, *given: Any, **named: Any) -> Any:
        note = ALL, teller.unknown(self), UNSEEN, None, "", reason()
        try:
            result = method(self, *given, **named)
            changes.doubt = note, changes.doubt
            teller.settle(self)
        except BaseException:
            changes.doubt = note, changes.doubt
            teller.settle(self)
            raise
        return result

    return watched


def timed(base: type[AnyCache]) -> bool:
    """Whether entries expire: `TTLCache`, `TLRUCache`, or a user's class on their common base."""
    return issubclass(base, cachetools._TimedCache)


def own(base: type[AnyCache], name: str) -> bool:
    """Whether `base` has the method from cachetools itself, or what that inherits, and not from a user's subclass."""
    # Not the method's `__module__`: `functools.wraps` copies that.
    owner = next(one for one in base.__mro__ if name in vars(one))
    return owner in cachetools.Cache.__mro__ or owner.__module__ == cachetools.__name__


def _short_setitem(base: type[AnyCache], context: CaptureContext, teller: Teller) -> Callable[..., None]:
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
        if changes.doubt is not None:
            teller.settle(self)
        changes.serial = serial = changes.serial + 1
        writing, changes.writing = changes.writing, True
        try:
            base_setitem(self, key, value)
            at = now()
            changes.writing = writing
            if changes.serial == serial:
                changes.taken += size
                append((_PUT, raw_key, raw_value, None, at, None))
            else:  # a handler of a signal, or a finalizer, has written
                changes.doubt = (key, value, UNSEEN, raw_key, raw_value, serial), changes.doubt
                teller.settle(self)
        except BaseException:
            changes.writing = writing
            changes.doubt = (key, value, UNSEEN, raw_key, raw_value, serial), changes.doubt
            teller.settle(self)
            raise

    return __setitem__


def _text_keys(context: CaptureContext) -> Any:
    """`str` where an ASCII key is its own raw key and tracing is off; otherwise a value that no key's type equals."""
    keys = context.keys
    return str if isinstance(keys, PlainKeys) and keys.text and keys.plain and context.trace is None else None


def _setitem(base: type[AnyCache], context: CaptureContext, teller: Teller) -> Callable[..., None]:
    """For every other cache: records what the cache holds after the write."""
    changes, base_setitem, trusted = context.changes, base.__setitem__, own(base, "__setitem__")
    # Such a class also reads by other keys. One that only declines writes is not searched at each.
    renames = not (own(base, "__getitem__") and own(base, "__contains__"))

    def __setitem__(self: AnyCache, key: Any, value: Any) -> None:
        raw_key, raw_value = context.prepare(key, value)
        if raw_key is not None and raw_value is not None:
            size = charge(raw_key, raw_value)
            if changes.taken + size > changes.limit:
                context.make_room(raw_key, size)
        if changes.doubt is not None:
            teller.settle(self)
        before, unknown = (UNSEEN, 0) if trusted else (stored(self, key), teller.unknown(self))
        changes.serial = serial = changes.serial + 1
        writing, changes.writing = changes.writing, True
        try:
            try:
                base_setitem(self, key, value)
            finally:
                changes.writing = writing
                changes.doubt = (key, value, before, raw_key, raw_value, serial), changes.doubt
            teller.settle(self)
        except BaseException:
            teller.settle(self)
            raise
        if trusted or raw_value is None:
            return
        # A new entry shows in the count, one that was overwritten only in its value; else the write was declined.
        more = teller.unknown(self) > max(unknown, 0)
        if (more and changes.serial == serial) or (
            renames and stored(self, key) is MISSING and _has_value(self, value)
        ):
            raise NotCapturable(
                f"{base.__name__}.__setitem__ stored {ascii(key)[:80]} under another key, or under one more: deelog "
                "would not know it when it is evicted; change the key before the write, or write self[other] = value"
            )

    return __setitem__


def _has_value(cache: AnyCache, value: Any) -> bool:
    return any(cachetools.Cache.__getitem__(cache, key) is value for key in cachetools.Cache.__iter__(cache))


def _removal(changes: ChangeQueue) -> Reason:
    """The reason of a `popitem` now."""
    return _EVICT if changes.writing else _REMOVE


def _delitem(base: type[AnyCache], context: CaptureContext, teller: Teller) -> Callable[..., None]:
    changes, base_delitem, trusted = context.changes, base.__delitem__, own(base, "__delitem__")
    append, now, key_type = changes.queue.append, time.time, _text_keys(context)

    def __delitem__(self: AnyCache, key: Any) -> None:
        reason = changes.removing
        if reason is not _EVICT:
            if changes.doubt is not None:
                teller.settle(self)
            changes.serial = changes.serial + 1
        serial, note = changes.serial, (key, MISSING, UNSEEN, None, "", reason)
        try:
            base_delitem(self, key)
            short = trusted and type(key) is key_type and key.isascii()
            size, at = OVERHEAD + len(key) if short else 0, now()
            if short and changes.serial == serial:  # `settle` inlined for the common key: every eviction runs it
                changes.taken += size
                append((reason, key, None, None, at, None))
            else:
                changes.doubt = note, changes.doubt
                teller.settle(self)
        except KeyError:
            # A timed cache raises it after the removal of an expired entry.
            changes.doubt = (key, MISSING, UNSEEN, None, "", _EXPIRE), changes.doubt
            teller.settle(self)
            raise
        except BaseException:
            changes.doubt = note, changes.doubt
            teller.settle(self)
            raise

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


def _expire(base: Any, context: CaptureContext, teller: Teller) -> Callable[..., list[tuple[Any, Any]]]:
    changes, base_expire, some_expired = context.changes, base.expire, (ALL, MANY, UNSEEN, None, "", _EXPIRE)

    def expire(self: AnyCache, time: Any = None) -> list[tuple[Any, Any]]:
        """Remove expired items and return their `(key, value)` pairs."""
        if changes.doubt is not None:
            teller.settle(self)
        removing, changes.removing = changes.removing, _EXPIRE
        try:
            expired: Iterable[tuple[Any, Any]] | None = base_expire(self, time)
            pairs = list(expired) if expired else []
            rest = changes.doubt
            for key, _ in reversed(pairs):
                rest = (key, MISSING, UNSEEN, None, "", _EXPIRE), rest
            changes.removing = removing
            if pairs:
                changes.doubt = rest
                teller.settle(self)
        except BaseException:
            changes.removing = removing
            changes.doubt = some_expired, changes.doubt
            teller.settle(self)
            raise
        return pairs

    return expire


def _clear(base: type[AnyCache], context: CaptureContext, teller: Teller) -> Callable[..., None]:
    changes, base_clear, append, now = context.changes, base.clear, context.changes.queue.append, time.time
    note = ALL, MANY, UNSEEN, None, "", _REMOVE

    def clear(self: AnyCache) -> None:
        """Remove all entries."""
        if changes.doubt is not None:
            teller.settle(self)
        changes.serial = serial = changes.serial + 1
        try:
            base_clear(self)
            size, at, empty = charge("", None), now(), not count(self)
            if empty and changes.serial == serial:
                changes.taken += size
                append((_CLEAR, "", None, None, at, None))
                context.keys.cleared()
                if changes.serial != serial:  # another call wrote when all was being forgotten
                    for key in keys_held(self):
                        context.keys.stored(key, context.keys.prepare(key))
            else:
                changes.doubt = note, changes.doubt
                teller.settle(self)
        except BaseException:
            changes.doubt = note, changes.doubt
            teller.settle(self)
            raise

    return clear


def _init(base: Any, context: CaptureContext, teller: Teller) -> Callable[..., None]:
    changes, base_init, emptied = context.changes, base.__init__, (ALL, MANY, UNSEEN, None, "", _REMOVE)

    @functools.wraps(base_init)
    def __init__(self: AnyCache, *given: Any, **named: Any) -> None:
        try:
            base_init(self, *given, **named)
        finally:
            changes.serial = serial = changes.serial + 1
            changes.doubt = emptied, changes.doubt
            for key in keys_held(self):
                value = cachetools.Cache.__getitem__(self, key)
                changes.doubt = (key, value, UNSEEN, *context.prepare(key, value), serial), changes.doubt
            teller.settle(self)

    return __init__


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
