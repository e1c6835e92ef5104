"""The entries of a Redis server in memory, the commands that simulations send, and what each streams to replicas.

A command is streamed as a server streams it: with absolute times, an expiry as DEL, nothing where nothing changed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from zlib import crc32

Words: TypeAlias = Sequence[bytes]
Reply: TypeAlias = Any
"""Bytes, a `Status`, an integer, None, a list of replies, or a `Refused`."""

DATABASES: Final = 16


class Status(str):
    """A reply that is a word, as `OK`."""

    __slots__ = ()


class Refused(Exception):
    """An error that is a reply."""


OK: Final = Status("OK")


@dataclass(slots=True)
class Entry:
    """`value` is bytes, or a dictionary, or a list of bytes; `expires_at` in Unix milliseconds."""

    kind: bytes
    value: Any
    expires_at: int | None = None


@dataclass
class Keyspace:
    """All databases of a server. `streamed` is called with a database and a command for the replicas."""

    streamed: Callable[[int, Words], None]
    databases: list[dict[bytes, Entry]] = field(default_factory=lambda: [{} for _ in range(DATABASES)])
    is_replica: bool = False
    """Then what has expired is hidden, and stays until the primary deletes it, and nothing is streamed."""

    def run(self, database: int, words: Words, now_ms: int) -> Reply:
        """Carries a command out. Raises `Refused`."""
        name = words[0].upper()
        command = _COMMANDS.get(name)
        if command is None:
            raise Refused(f"ERR unknown command '{name.decode()}'")
        try:
            return command(_Call(self, database, words, now_ms))
        except (IndexError, StopIteration, ValueError) as error:
            raise Refused(f"ERR syntax error: {error}") from error

    def apply(self, database: int, words: Words) -> None:
        """As a replica: what the stream of the primary says, whatever the time is."""
        self.run(database, words, 0)

    def expire(self, now_ms: int) -> None:
        """Deletes all that has expired."""
        for number, entries in enumerate(self.databases):
            for key in [key for key, entry in entries.items() if _is_over(entry, now_ms)]:
                _Call(self, number, (), now_ms).find(key)


def _is_over(entry: Entry, now_ms: int) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now_ms


@dataclass(slots=True)
class _Call:
    """One command under way."""

    keyspace: Keyspace
    database: int
    words: Words
    now_ms: int

    @property
    def entries(self) -> dict[bytes, Entry]:
        return self.keyspace.databases[self.database]

    def find(self, key: bytes, kind: bytes = b"") -> Entry | None:
        """The entry of a key, if it has not expired. Raises `Refused` where it is of another kind."""
        entry = self.entries.get(key)
        if entry is not None and _is_over(entry, self.now_ms):
            if not self.keyspace.is_replica:
                del self.entries[key]
                self.stream(b"DEL", key)
            return None
        if entry is not None and kind and entry.kind != kind:
            raise Refused("WRONGTYPE Operation against a key holding the wrong kind of value")
        return entry

    def stream(self, *words: bytes) -> None:
        """These words, or the command as it is."""
        if not self.keyspace.is_replica:
            self.keyspace.streamed(self.database, words or self.words)

    def taken(self, entry: Entry) -> None:
        """Streams the command, which has taken something from the entry of its first key: with the last it is gone."""
        if not entry.value:
            del self.entries[self.words[1]]
        self.stream()

    def made(self, kind: bytes, value: Any) -> Entry:
        """The entry of the first key, made if it is not there."""
        entry = self.find(self.words[1], kind)
        if entry is None:
            entry = self.entries[self.words[1]] = Entry(kind, value)
        return entry


def _get(call: _Call) -> Reply:
    entry = call.find(call.words[1], b"string")
    return None if entry is None else entry.value


def _set(call: _Call) -> Reply:
    _, key, value, *options = call.words
    there, expires_at, words = call.find(key), None, [b"SET", key, value]
    given = iter(options)
    keeps = False
    for option in given:
        match option.upper():
            case b"NX" if there is not None:
                return None
            case b"XX" if there is None:
                return None
            case b"NX" | b"XX":
                words.append(option)
            case b"KEEPTTL":
                keeps, expires_at = True, there.expires_at if there is not None else None
                words.append(option)
            case b"EX" | b"PX" | b"EXAT" | b"PXAT" as unit:
                expires_at = _moment(unit, next(given), call.now_ms)
            case _:
                raise ValueError(option)
    if expires_at is not None and not keeps:
        words = [b"SET", key, value, b"PXAT", b"%d" % expires_at]
    call.entries[key] = Entry(b"string", value, expires_at)
    call.stream(*words)
    return OK


def _moment(unit: bytes, number: bytes, now_ms: int) -> int:
    """When that is, in Unix milliseconds; `unit` is an option or a command that is named like one."""
    milliseconds = int(number) * (1 if unit.startswith(b"P") else 1000)
    return milliseconds if unit.endswith(b"AT") else now_ms + milliseconds


def _mset(call: _Call) -> Reply:
    for key, value in zip(call.words[1::2], call.words[2::2], strict=True):
        call.entries[key] = Entry(b"string", value)
    call.stream()
    return OK


def _del(call: _Call) -> Reply:
    there = [key for key in dict.fromkeys(call.words[1:]) if call.find(key) is not None]
    for key in there:
        del call.entries[key]
    if there:
        call.stream()
    return len(there)


def _incr(call: _Call) -> Reply:
    entry = call.made(b"string", b"0")
    entry.value = b"%d" % (int(entry.value) + 1)
    call.stream()
    return int(entry.value)


def _append(call: _Call) -> Reply:
    entry = call.made(b"string", b"")
    entry.value += call.words[2]
    call.stream()
    return len(entry.value)


def _expire(call: _Call) -> Reply:
    key = call.words[1]
    entry = call.find(key)
    if entry is None:
        return 0
    moment = _moment(call.words[0].upper(), call.words[2], call.now_ms)
    if moment <= call.now_ms and not call.keyspace.is_replica:
        del call.entries[key]
        call.stream(b"DEL", key)
    else:
        entry.expires_at = moment
        call.stream(b"PEXPIREAT", key, b"%d" % moment)
    return 1


def _persist(call: _Call) -> Reply:
    entry = call.find(call.words[1])
    if entry is None or entry.expires_at is None:
        return 0
    entry.expires_at = None
    call.stream()
    return 1


def _hset(call: _Call) -> Reply:
    entry = call.made(b"hash", {})
    pairs = dict(zip(call.words[2::2], call.words[3::2], strict=True))
    added = len(pairs.keys() - entry.value.keys())
    entry.value |= pairs
    call.stream()
    return added


def _hdel(call: _Call) -> Reply:
    entry = call.find(call.words[1], b"hash")
    if entry is None:
        return 0
    gone = sum(entry.value.pop(name, None) is not None for name in call.words[2:])
    if gone:
        call.taken(entry)
    return gone


def _hgetall(call: _Call) -> Reply:
    entry = call.find(call.words[1], b"hash")
    return [] if entry is None else [each for pair in entry.value.items() for each in pair]


def _rpush(call: _Call) -> Reply:
    entry = call.made(b"list", [])
    entry.value += call.words[2:]
    call.stream()
    return len(entry.value)


def _lpop(call: _Call) -> Reply:
    entry = call.find(call.words[1], b"list")
    if entry is None:
        return None
    value = entry.value.pop(0)
    call.taken(entry)
    return value


def _lrange(call: _Call) -> Reply:
    entry = call.find(call.words[1], b"list")
    return [] if entry is None else list(entry.value)


def _rename(call: _Call) -> Reply:
    _, source, target = call.words
    entry = call.find(source)
    if entry is None:
        raise Refused("ERR no such key")
    del call.entries[source]
    call.entries[target] = entry
    call.stream()
    return OK


def _flush(call: _Call) -> Reply:
    everywhere = call.words[0].upper() == b"FLUSHALL"
    for entries in call.keyspace.databases if everywhere else [call.entries]:
        entries.clear()
    call.stream()
    return OK


def _swapdb(call: _Call) -> Reply:
    databases, (one, other) = call.keyspace.databases, map(int, call.words[1:])
    databases[one], databases[other] = databases[other], databases[one]
    call.stream()
    return OK


def _restore(call: _Call) -> Reply:
    _, key, expires_at, data, *options = call.words
    if call.find(key) is not None and b"REPLACE" not in options:
        raise Refused("BUSYKEY Target key name already exists.")
    kind, value = pickle.loads(data)
    call.entries[key] = Entry(kind, value, int(expires_at) or None)
    call.stream()
    return OK


def dumped(key: bytes, entry: Entry) -> Words:
    """The command that makes this entry elsewhere. What it says of the value only this class reads."""
    data = pickle.dumps((entry.kind, entry.value))
    return (b"RESTORE-ASKING", key, b"%d" % (entry.expires_at or 0), data, b"ABSTTL")


def _exists(call: _Call) -> Reply:
    return sum(call.find(key) is not None for key in call.words[1:])


def _type(call: _Call) -> Reply:
    entry = call.find(call.words[1])
    return Status("none" if entry is None else entry.kind.decode())


def _pexpiretime(call: _Call) -> Reply:
    entry = call.find(call.words[1])
    if entry is None:
        return -2
    return -1 if entry.expires_at is None else entry.expires_at


def _memory(call: _Call) -> Reply:
    entry = call.find(call.words[2])
    return None if entry is None else 64 + sum(map(len, _parts(entry.value)))


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    else:
        yield from value
        yield from value.values() if isinstance(value, dict) else ()


def _scan(call: _Call) -> Reply:
    """By a number of the key itself: keys that are there throughout are listed, whatever comes and goes."""
    begin, count = int(call.words[1]), int(call.words[3]) if len(call.words) > 3 else 10
    there = sorted((crc32(key), key) for key in list(call.entries) if call.find(key) is not None)
    left = [each for each in there if each[0] >= begin]
    # All keys of one number come together.
    end = left[count][0] if len(left) > count else -1
    if end == begin:
        end += 1
    return [b"%d" % max(end, 0), [key for number, key in left if end < 0 or number < end]]


_READS: Final[dict[bytes, Callable[[_Call], Reply]]] = {
    b"GET": _get,
    b"HGETALL": _hgetall,
    b"LRANGE": _lrange,
    b"EXISTS": _exists,
    b"TYPE": _type,
    b"PEXPIRETIME": _pexpiretime,
    b"MEMORY": _memory,
    b"SCAN": _scan,
}
WRITES: Final[dict[bytes, Callable[[_Call], Reply]]] = {
    b"SET": _set,
    b"MSET": _mset,
    b"DEL": _del,
    b"UNLINK": _del,
    b"INCR": _incr,
    b"APPEND": _append,
    b"EXPIRE": _expire,
    b"PEXPIRE": _expire,
    b"PEXPIREAT": _expire,
    b"PERSIST": _persist,
    b"HSET": _hset,
    b"HDEL": _hdel,
    b"RPUSH": _rpush,
    b"LPOP": _lpop,
    b"RENAME": _rename,
    b"FLUSHDB": _flush,
    b"FLUSHALL": _flush,
    b"SWAPDB": _swapdb,
}
_COMMANDS: Final = _READS | WRITES | {b"RESTORE-ASKING": _restore}
