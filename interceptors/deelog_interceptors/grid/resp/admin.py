"""Commands on the connection, on all keys of a node, and deelog's own."""

from __future__ import annotations

import re
import warnings
from typing import Final

import orjson

from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.resp import replies
from deelog_interceptors.grid.resp.cluster import short_id
from deelog_interceptors.grid.resp.commands import (
    EACH_SHARD_OK,
    EACH_SHARD_SUM,
    READONLY,
    TABLE,
    WRITE,
    Call,
    CommandError,
    Reply,
    command,
    commands,
    integer_of,
    unknown_subcommand,
)
from deelog_interceptors.grid.resp.connection import MOVES, Blocked
from deelog_interceptors.grid.topology.view import first_slot
from deelog_schemas.keys import SLOTS, slot_of

REDIS_VERSION: Final = "7.2.0"
MAX_PATTERN_BYTES: Final = 1024
"""Matching takes a time in proportion to that and to the length of a key."""
_MOST_HELLO_OPTIONS: Final = 5
_MOST_SCAN_OPTIONS: Final = 6
"""Words: each option once."""
_MOST_NAMES: Final = 1000
"""The version of Redis whose commands and error texts these are."""


@command("PING", -1, "fast", tips=EACH_SHARD_OK)
def ping(call: Call) -> Reply:
    return replies.bulk(call.arguments[1]) if len(call.arguments) > 1 else replies.simple("PONG")


@command("ECHO", 2, "fast")
def echo(call: Call) -> Reply:
    return replies.bulk(call.arguments[1])


@command("QUIT", -1, "fast")
def quit_(call: Call) -> Reply:
    call.connection.closing = True
    return replies.OK


@command("SELECT", 2, "fast")
def select(call: Call) -> Reply:
    if integer_of(call.arguments[1]) != 0:
        raise CommandError("ERR SELECT is not allowed in cluster mode")
    return replies.OK


@command("HELLO", -1, "fast")
def hello(call: Call) -> Reply:
    connection, options = call.connection, call.arguments[2:]
    if len(options) > _MOST_HELLO_OPTIONS:
        raise CommandError("ERR Syntax error in HELLO: it has AUTH and SETNAME, once each")
    protocol, own_name = connection.protocol, connection.name
    if len(call.arguments) > 1:
        if call.arguments[1] not in (b"2", b"3"):
            raise CommandError("NOPROTO unsupported protocol version")
        protocol = int(call.arguments[1])
    while options:
        name = options.pop(0).upper()
        if name == b"SETNAME" and options:
            own_name = options.pop(0)
        elif name == b"AUTH" and len(options) >= 2:
            raise CommandError("ERR HELLO AUTH: no password is configured here; connect without one")
        else:
            raise CommandError(f"ERR Syntax error in HELLO option '{name.decode(errors='replace').lower()}'")
    connection.protocol, connection.name = protocol, own_name
    facts = {
        "server": replies.bulk("redis"),
        "version": replies.bulk(REDIS_VERSION),
        "proto": replies.integer(connection.protocol),
        "id": replies.integer(connection.number),
        "mode": replies.bulk("cluster"),
        "role": replies.bulk("master"),
        "modules": replies.array(()),
    }
    return replies.mapping(((replies.bulk(name), value) for name, value in facts.items()), connection.protocol)


@command("CLIENT", -2)
def client(call: Call) -> Reply:
    match call.arguments[1].upper():
        case b"ID":
            return replies.integer(call.connection.number)
        case b"SETNAME" if len(call.arguments) == 3:
            call.connection.name = call.arguments[2]
            return replies.OK
        case b"GETNAME":
            return replies.bulk(call.connection.name) if call.connection.name else call.null
        case b"SETINFO" if len(call.arguments) == 4:
            return replies.OK
        case b"NO-EVICT" | b"NO-TOUCH":
            return replies.OK
    return unknown_subcommand(call)


@command("COMMAND", -1)
def command_(call: Call) -> Reply:
    if len(call.arguments) == 1:
        return commands()
    match call.arguments[1].upper():
        case b"COUNT":
            return replies.integer(len(TABLE))
        case b"INFO":
            names = call.arguments[2:]
            if len(names) > _MOST_NAMES:
                raise CommandError(f"ERR more than {_MOST_NAMES} names: ask without any")
            return commands(names or None)
        case b"DOCS":
            return replies.mapping((), call.connection.protocol)
        case b"LIST":
            return replies.array(replies.bulk(spec.name.lower()) for spec in TABLE.values())
    return unknown_subcommand(call)


@command("READONLY", 1, "fast")
def readonly(call: Call) -> Reply:
    call.connection.readonly = True
    return replies.OK


@command("READWRITE", 1, "fast")
def readwrite(call: Call) -> Reply:
    call.connection.readonly = False
    return replies.OK


# -- all keys of a node --------------------------------------------------------------------------------------------


def _primaries(call: Call) -> list[Segment]:
    return [segment for segment in call.node.store.segments if segment.role is Role.PRIMARY]


@command("DBSIZE", 1, READONLY, "fast", tips=EACH_SHARD_SUM)
def dbsize(call: Call) -> Reply:
    return replies.integer(sum(len(segment.data) for segment in _primaries(call)))


def _flush(call: Call) -> Reply:
    if len(call.arguments) > 2 or (len(call.arguments) == 2 and call.arguments[1].upper() not in (b"SYNC", b"ASYNC")):
        raise CommandError("ERR syntax error")
    node = call.node
    wanted = [segment for segment in _primaries(call) if len(segment.data)]
    size = call.size_of(*[0] * len(wanted))
    for segment in wanted:
        if segment.closed:
            raise Blocked(MOVES, node.role_changed)
        node.prepare(segment, size)
    cleared = [(segment, node.store.clear(segment)) for segment in wanted]
    return node.replicator.reply(call.connection, replies.OK, cleared)


command("FLUSHALL", -1, WRITE, tips=EACH_SHARD_OK)(_flush)
command("FLUSHDB", -1, WRITE, tips=EACH_SHARD_OK)(_flush)


@command("SCAN", -2, READONLY)
def scan(call: Call) -> Reply:
    """The cursor is the next hash slot, so that every key that exists throughout is returned."""
    slot = integer_of(call.arguments[1])
    if not 0 <= slot < SLOTS:
        raise CommandError("ERR invalid cursor")
    count, pattern, wanted = _scan_options(call.arguments[2:])
    store, segments = call.node.store, len(call.node.store.segments)
    keys: list[bytes] = []
    for segment in store.segments[slot * segments // SLOTS :]:
        if segment.role is not Role.PRIMARY or not len(segment.data):
            continue
        by_slot: dict[int, list[bytes]] = {}
        for key in list(segment.data):
            by_slot.setdefault(slot_of(key), []).append(key)
        for number in sorted(by_slot):
            if number < slot:
                continue
            if len(keys) >= count:
                return _scanned(call, number, keys, pattern, wanted)
            keys += by_slot[number]
        slot = first_slot(segment.number + 1, segments)
        if len(keys) >= count and slot < SLOTS:
            return _scanned(call, slot, keys, pattern, wanted)
    return _scanned(call, 0, keys, pattern, wanted)


def _scan_options(options: list[bytes]) -> tuple[int, re.Pattern[bytes] | None, bool]:
    count, pattern, wanted = 10, None, True
    if len(options) % 2 or len(options) > _MOST_SCAN_OPTIONS:
        raise CommandError("ERR syntax error")
    for name, value in zip(options[::2], options[1::2], strict=True):
        match name.upper():
            case b"COUNT":
                count = integer_of(value)
            case b"MATCH":
                pattern = glob(value)
            case b"TYPE":
                wanted = value.lower() == b"string"
            case _:
                raise CommandError("ERR syntax error")
    if count < 1:
        raise CommandError("ERR syntax error")
    return count, pattern, wanted


def _scanned(call: Call, cursor: int, keys: list[bytes], pattern: re.Pattern[bytes] | None, wanted: bool) -> bytes:
    matching = (key for key in keys if wanted and (pattern is None or pattern.fullmatch(key)))
    return replies.array((replies.bulk(str(cursor)), replies.array(map(replies.bulk, matching))))


def glob(pattern: bytes) -> re.Pattern[bytes]:
    r"""Redis' patterns: `*`, `?`, `[a-z]`, `[^a]`, `\x`.

    The text behind a star matches at its first place, and is never tried at another: that is enough for a glob, and
    keeps the time in proportion to the pattern's length times the key's.
    """
    if len(pattern) > MAX_PATTERN_BYTES:
        raise CommandError(f"ERR the pattern is longer than {MAX_PATTERN_BYTES} bytes")
    pieces: list[list[bytes]] = [[]]
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        if char == b"\\" and at + 1 < len(pattern):
            at += 1
            pieces[-1].append(re.escape(pattern[at : at + 1]))
        elif char == b"*":
            pieces.append([])
        elif char == b"?":
            pieces[-1].append(b".")
        elif char == b"[" and (end := pattern.find(b"]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace(b"\\", b"\\\\").replace(b"[", b"\\[")
            pieces[-1].append(b"[" + inside + b"]")
            at = end
        else:
            pieces[-1].append(re.escape(char))
        at += 1
    first, *rest = map(b"".join, pieces)
    if rest:
        first += b"".join(b"(?>.*?" + piece + b")" for piece in rest[:-1] if piece) + b".*" + rest[-1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of `[a&&b]`, which has no second meaning in Redis
            return re.compile(first, re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


# -- information about a node -------------------------------------------------------------------------------------


@command("INFO", -1)
def info(call: Call) -> Reply:
    node = call.node
    primaries = _primaries(call)
    entries = sum(len(segment.data) for segment in primaries)
    sections: dict[str, dict[str, object]] = {
        "Server": {
            "redis_version": REDIS_VERSION,
            "redis_mode": "cluster",
            "run_id": short_id(node.member),
            "tcp_port": node.client_port,
            "uptime_in_seconds": int(node.clock.monotonic() - node.started),
            "deelog_member": node.member,
        },
        "Clients": {"connected_clients": len(node.clients.open), "maxclients": node.clients.max_connections},
        "Stats": {
            "total_connections_received": node.clients.accepted,
            "total_commands_processed": node.clients.executed,
            "expired_keys": node.store.expired,
            "evicted_keys": node.store.evicted,
        },
        "Replication": {"role": "master", "connected_slaves": 0},
        "Cluster": {"cluster_enabled": 1},
        "Keyspace": {"db0": f"keys={entries},expires=0,avg_ttl=0"} if entries else {},
    }
    wanted = {name.decode(errors="replace").lower() for name in call.arguments[1:]} - {"all", "default", "everything"}
    lines = []
    for name, values in sections.items():
        if not wanted or name.lower() in wanted:
            lines += [f"# {name}", *(f"{key}:{value}" for key, value in values.items()), ""]
    return replies.bulk("\r\n".join(lines))


@command("DEELOG.STATS", 1)
def stats(call: Call) -> Reply:
    """JSON: the connector's counters and the grid's."""
    return replies.bulk(orjson.dumps(call.node.stats(), option=orjson.OPT_NON_STR_KEYS))


@command("DEELOG.DUMP", 2)
def dump(call: Call) -> Reply:
    """`[role, epoch, sequence, [key, value, expiry in Unix ms or -1]…]` of one segment, as this node holds it."""
    store, number = call.node.store, integer_of(call.arguments[1])
    if not 0 <= number < len(store.segments):
        raise CommandError(f"ERR segment.count: segments are 0 to {len(store.segments) - 1}")
    segment = store.segments[number]
    history = store.core.history(number)
    epoch, sequence = history[-1] if history else (0, 0)
    entries = [
        replies.array(
            (replies.bulk(key), replies.bulk(value), replies.integer(-1 if expires_at is None else expires_at))
        )
        for key, value, expires_at in store.entries(segment)
    ]
    return replies.array([replies.bulk(segment.role), replies.integer(epoch), replies.integer(sequence), *entries])
