"""Commands on keys and their values."""

from __future__ import annotations

from functools import partial
from typing import Final

from deelog_interceptors.grid.resp import replies
from deelog_interceptors.grid.resp.commands import (
    BY_KEY,
    BY_KEY_SUM,
    READONLY,
    WRITE,
    Call,
    CommandError,
    Reply,
    command,
    integer_of,
)
from deelog_schemas.json_text import json_problem
from deelog_schemas.keys import RESERVED_PREFIX

_SYNTAX: Final = "ERR syntax error"
_MAX_REPLY_BYTES: Final = 16 << 20
_MAX_TIME_MS: Final = 2**62
_UNITS: Final = {b"EX": (1000, False), b"PX": (1, False), b"EXAT": (1000, True), b"PXAT": (1, True)}
"""Milliseconds of one unit, and whether it counts from 1970 or from now."""
_EXPIRY: Final = (
    ("EXPIRE", "TTL", 1000, False),
    ("PEXPIRE", "PTTL", 1, False),
    ("EXPIREAT", "EXPIRETIME", 1000, True),
    ("PEXPIREAT", "PEXPIRETIME", 1, True),
)
"""The command that sets an entry's time and the one that reads it, with their unit as in `_UNITS`."""


def _time(call: Call, text: bytes, unit: int, absolute: bool, name: str) -> int:
    """Unix milliseconds."""
    at = integer_of(text) * unit
    if at <= 0 or at > _MAX_TIME_MS:
        raise CommandError(f"ERR invalid expire time in '{name}' command")
    return at if absolute else at + call.node.store.now_ms()


def _check_key(call: Call, key: bytes) -> None:
    if key.startswith(RESERVED_PREFIX):
        raise CommandError(
            f"ERR cache.key.format: keys that begin with {RESERVED_PREFIX!r} are reserved; choose another"
        )
    _check_text(key, call.node.settings.key_format, "cache.key.format", "key")


def _check_text(data: bytes, format_name: str, field: str, what: str) -> None:
    if format_name == "bytes":
        return
    if format_name == "json":
        if problem := json_problem(data):
            raise CommandError(f"ERR {field}: the {what} is not JSON ({problem}); set {field}=string for such {what}s")
        return
    try:
        data.decode()
    except UnicodeDecodeError:
        raise CommandError(f"ERR {field}: the {what} is not UTF-8; set {field}=bytes for such {what}s") from None


def _check(call: Call, key: bytes, value: bytes) -> None:
    """Checks a write before anything changes."""
    _check_key(call, key)
    _check_text(value, call.node.settings.value_format, "cache.value.format", "value")
    if problem := call.node.settings.entry_limit.problem(key, value):
        raise CommandError(f"ERR max.entry.bytes: {problem}")


@command("GET", 2, READONLY, "fast", first=1)
def get(call: Call) -> Reply:
    stored = call.node.store.find(call.segment, call.arguments[1])
    return call.null if stored is None else replies.bulk(stored[0])


@command("MGET", -2, READONLY, "fast", first=1, last=-1, tips=BY_KEY)
def mget(call: Call) -> Reply:
    values: list[bytes | None] = []
    size = 0
    for key in call.arguments[1:]:
        stored = call.node.store.find(call.segment, key)
        values.append(None if stored is None else stored[0])
        size += 0 if stored is None else len(stored[0])
        if size > _MAX_REPLY_BYTES:
            raise CommandError(f"ERR the values have more than {_MAX_REPLY_BYTES} bytes: ask for fewer keys")
    return replies.array(call.null if value is None else replies.bulk(value) for value in values)


@command("SET", -3, WRITE, "denyoom", first=1)
def set_(call: Call) -> Reply:
    key, value = call.arguments[1], call.arguments[2]
    _check(call, key, value)
    if len(call.arguments) == 3:
        return _put(call, key, value, None, replies.OK)
    flags, expires_at = _set_options(call)
    old = call.node.store.find(call.segment, key)
    answer = call.null if old is None else replies.bulk(old[0])
    if (b"NX" in flags and old is not None) or (b"XX" in flags and old is None):
        return answer if b"GET" in flags else call.null
    if b"KEEPTTL" in flags and old is not None:
        expires_at = old[1]
    return _put(call, key, value, expires_at, answer if b"GET" in flags else replies.OK)


def _set_options(call: Call) -> tuple[set[bytes], int | None]:
    flags: set[bytes] = set()
    expires_at: int | None = None
    rest = iter(call.arguments[3:])
    for option in rest:
        name = option.upper()
        if name in _UNITS and expires_at is None and b"KEEPTTL" not in flags:
            text = next(rest, None)
            if text is None:
                raise CommandError(_SYNTAX)
            expires_at = _time(call, text, *_UNITS[name], "set")
        elif name in (b"NX", b"XX", b"GET", b"KEEPTTL"):
            flags.add(name)
        else:
            raise CommandError(_SYNTAX)
    if {b"NX", b"XX"} <= flags or (b"KEEPTTL" in flags and expires_at is not None):
        raise CommandError(_SYNTAX)
    return flags, expires_at


def _put(call: Call, key: bytes, value: bytes, expires_at: int | None, reply: bytes) -> Reply:
    """Writes and replies; an entry that has already expired is a removal."""
    call.room(len(key) + len(value))
    store = call.node.store
    if expires_at is None or expires_at > store.now_ms():
        return call.acked(reply, store.put(call.segment, key, value, expires_at))
    if store.find(call.segment, key) is None:
        return reply
    return call.acked(reply, store.remove(call.segment, key))


def _setex(call: Call, unit: int, name: str) -> Reply:
    _, key, text, value = call.arguments
    _check(call, key, value)
    return _put(call, key, value, _time(call, text, unit, False, name), replies.OK)


for _name, _unit in (("setex", 1000), ("psetex", 1)):
    command(_name.upper(), 4, WRITE, "denyoom", first=1)(partial(_setex, unit=_unit, name=_name))


@command("DEL", -2, WRITE, first=1, last=-1, tips=BY_KEY_SUM)
def delete(call: Call) -> Reply:
    keys = call.arguments[1:]
    call.room(*map(len, keys))
    store, removed, last = call.node.store, 0, 0
    for key in keys:
        if store.find(call.segment, key) is not None:
            last = store.remove(call.segment, key)
            removed += 1
    # With nothing removed there is nothing to wait for, except an expiry that `find` captured.
    return call.acked(replies.integer(removed), last)


command("UNLINK", -2, WRITE, "fast", first=1, last=-1, tips=BY_KEY_SUM)(delete)


@command("EXISTS", -2, READONLY, "fast", first=1, last=-1, tips=BY_KEY_SUM)
def exists(call: Call) -> Reply:
    store = call.node.store
    return replies.integer(sum(store.find(call.segment, key) is not None for key in call.arguments[1:]))


@command("TYPE", 2, READONLY, "fast", first=1)
def type_(call: Call) -> Reply:
    return replies.simple("none" if call.node.store.find(call.segment, call.arguments[1]) is None else "string")


def _expire(call: Call, unit: int, absolute: bool) -> Reply:
    """(P)EXPIRE(AT) with NX, XX, GT, LT; a time in the past removes."""
    name, key, text, *options = call.arguments
    store, wanted = call.node.store, integer_of(text) * unit
    at = wanted if absolute else wanted + store.now_ms()
    if not -_MAX_TIME_MS < at < _MAX_TIME_MS:
        raise CommandError(f"ERR invalid expire time in '{name.decode(errors='replace').lower()}' command")
    flags = {option.upper() for option in options}
    if not flags <= {b"NX", b"XX", b"GT", b"LT"}:
        raise CommandError(f"ERR Unsupported option {options[0].decode(errors='replace')}")
    if (b"NX" in flags and len(flags) > 1) or {b"GT", b"LT"} <= flags:
        raise CommandError("ERR NX and XX, GT or LT options at the same time are not compatible")
    stored = store.find(call.segment, key)
    if stored is None:
        return replies.integer(0)
    value, before = stored
    refused = (
        (b"NX" in flags and before is not None)
        or (b"XX" in flags and before is None)
        or (b"GT" in flags and (before is None or at <= before))
        or (b"LT" in flags and before is not None and at >= before)
    )
    if refused:
        return replies.integer(0)
    call.room(len(key) + len(value))
    if at > store.now_ms():
        return call.acked(replies.integer(1), store.put(call.segment, key, value, at))
    return call.acked(replies.integer(1), store.remove(call.segment, key))


for _name, _, _unit, _absolute in _EXPIRY:
    command(_name, -3, WRITE, "fast", first=1)(partial(_expire, unit=_unit, absolute=_absolute))


@command("PERSIST", 2, WRITE, "fast", first=1)
def persist(call: Call) -> Reply:
    key = call.arguments[1]
    stored = call.node.store.find(call.segment, key)
    if stored is None or stored[1] is None:
        return replies.integer(0)
    call.room(len(key) + len(stored[0]))
    return call.acked(replies.integer(1), call.node.store.put(call.segment, key, stored[0], None))


def _ttl(call: Call, unit: int, absolute: bool) -> Reply:
    store = call.node.store
    stored = store.find(call.segment, call.arguments[1])
    if stored is None:
        return replies.integer(-2)
    if stored[1] is None:
        return replies.integer(-1)
    left = stored[1] if absolute else max(0, stored[1] - store.now_ms())
    return replies.integer((left + unit // 2) // unit)


for _, _name, _unit, _absolute in _EXPIRY:
    command(_name, 2, READONLY, "fast", first=1)(partial(_ttl, unit=_unit, absolute=_absolute))
