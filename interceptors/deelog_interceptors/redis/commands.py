"""What each command of a replication stream changes.

A server sends what it has carried out, in the form that its replicas can repeat: relative times as absolute ones, what
chance or a script chose as plain commands. SET, MSET and DEL carry all that a change needs. The others say which keys
they touched; those are read. `docs/redis-commands.md` is made from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from deelog_interceptors.redis.stream import Omitted

Key: TypeAlias = "bytes | Omitted"
Given: TypeAlias = "Sequence[bytes | Omitted]"


class Put(NamedTuple):
    """The key has this string. `expires_at` in Unix milliseconds; `created`: it was not there before."""

    key: Key
    value: bytes | Omitted
    expires_at: int | None = None
    created: bool = False


class Removed(NamedTuple):
    """The key is gone. A server tells what expired, what was evicted and what a slot took with it just so."""

    key: Key


class Touched(NamedTuple):
    """The key has another value, or none, which is to be read. `database`: another one than the command's."""

    key: Key
    created: bool = False
    database: int | None = None


class Cleared(NamedTuple):
    """All keys are gone, of the command's database or of each."""

    everywhere: bool


class Swapped(NamedTuple):
    """Two databases have changed their places."""

    one: int
    other: int


Change: TypeAlias = Put | Removed | Touched | Cleared | Swapped
Rule: TypeAlias = Callable[[Given], Sequence[Change]]


class CommandError(Exception):
    """A command that is not as its kind is written."""


def _word(argument: bytes | Omitted) -> bytes:
    """An option's name; what is no option has another one."""
    return argument.upper() if isinstance(argument, bytes) and len(argument) < 32 else b""


def _number(argument: bytes | Omitted) -> int:
    try:
        return int(argument)  # type: ignore[arg-type]  # an `Omitted` raises
    except (TypeError, ValueError):
        raise CommandError(f"{argument!r} is no number") from None


def _at(*places: int) -> Rule:
    """The keys at these places."""
    return lambda given: [Touched(given[place]) for place in places]


def _all(given: Given) -> Sequence[Change]:
    """Every argument is a key."""
    return [Touched(key) for key in given[1:]]


def _removed(given: Given) -> Sequence[Change]:
    return [Removed(key) for key in given[1:]]


def _set(given: Given) -> Sequence[Change]:
    """SET key value [NX | XX] [GET] [PXAT ms]. With another option the key is read."""
    key, value, created, expires_at = given[1], given[2], False, None
    at = 3
    while at < len(given):
        match _word(given[at]):
            case b"NX":
                created = True
            case b"XX" | b"GET":
                pass
            case b"PXAT":
                at += 1
                expires_at = _number(given[at])
            case b"EXAT":
                at += 1
                expires_at = 1000 * _number(given[at])
            case _:  # KEEPTTL; EX and PX, which no server sends
                return (Touched(key),)
        at += 1
    return (Put(key, value, expires_at, created),)


def _pairs(created: bool) -> Rule:
    """MSET, MSETNX, SETNX: keys and values by turns. The last value of a key counts."""
    return lambda given: [Put(key, value, None, created) for key, value in zip(given[1::2], given[2::2], strict=True)]


def _to(source: bool, place: int, unless: bytes = b"", always: bool = False) -> Rule:
    """A key's content goes from the first argument to that at `place`; `source`: and is gone from the first.

    The target is new, unless that word says that there may have been one; `always`: it is new in any case.
    """

    def rule(given: Given) -> Sequence[Change]:
        words = set(map(_word, given[3:]))
        created = always or (bool(unless) and unless not in words)
        found: list[Change] = [Touched(given[place], created, _database(given))]
        return [Removed(given[1]), *found] if source else found

    return rule


def _database(given: Given) -> int | None:
    """COPY … DB n."""
    for at in range(3, len(given) - 1):
        if _word(given[at]) == b"DB":
            return _number(given[at + 1])
    return None


def _move(given: Given) -> Sequence[Change]:
    return Removed(given[1]), Touched(given[1], True, _number(given[2]))


def _restore(given: Given) -> Sequence[Change]:
    """RESTORE key ttl value [REPLACE] …: new, unless one may be replaced."""
    return (Touched(given[1], b"REPLACE" not in set(map(_word, given[4:]))),)


def _store(given: Given) -> Sequence[Change]:
    """The key behind STORE or STOREDIST, if there is one: the last one counts."""
    for at in range(len(given) - 2, 1, -1):
        if _word(given[at]) in (b"STORE", b"STOREDIST"):
            return (Touched(given[at + 1]),)
    return ()


def _counted(place: int) -> Rule:
    """As many keys as the argument at `place` says, behind it."""

    def rule(given: Given) -> Sequence[Change]:
        count = _number(given[place])
        keys = given[place + 1 : place + 1 + count]
        if len(keys) != count or count < 1:
            raise CommandError(f"{len(keys)} of {count} keys")
        return [Touched(key) for key in keys]

    return rule


def _pushed_over(given: Given) -> Sequence[Change]:
    """BLPOP and its like: all but the last argument are keys, of which one has changed."""
    return [Touched(key) for key in given[1:-1]]


def _multiple_set(given: Given) -> Sequence[Change]:
    """MSETEX n key value …: the keys are read, whatever its options say."""
    count = _number(given[1])
    return [Touched(given[2 + 2 * number]) for number in range(count)]


def _group(given: Given) -> Sequence[Change]:
    """XGROUP CREATE key group id [MKSTREAM]: the key is there now, and empty."""
    made = _word(given[1]) == b"CREATE" and b"MKSTREAM" in map(_word, given[5:])
    return (Touched(given[2]),) if made else ()


def _nothing(_: Given) -> Sequence[Change]:
    return ()


def _cleared(everywhere: bool) -> Rule:
    return lambda _: (Cleared(everywhere),)


def _swapped(given: Given) -> Sequence[Change]:
    return (Swapped(_number(given[1]), _number(given[2])),)


def _words(text: str, rule: Rule) -> dict[bytes | Omitted, Rule]:
    return dict.fromkeys(text.encode().split(), rule)


_OF_ONE_KEY: Final = (
    "APPEND BITFIELD DECR DECRBY DELEX DELIFEQ EXPIRE EXPIREAT GEOADD GETEX GETSET HDEL HEXPIRE HEXPIREAT HGETDEL "
    "HGETEX HINCRBY HINCRBYFLOAT HMSET HPERSIST HPEXPIRE HPEXPIREAT HSET HSETEX HSETNX INCR INCRBY INCRBYFLOAT "
    "LINSERT LPOP LPUSH LPUSHX LREM LSET LTRIM PERSIST PEXPIRE PEXPIREAT PFADD PSETEX RPOP RPUSH RPUSHX SADD "
    "SETBIT SETEX SETRANGE SPOP SREM VADD VREM VSETATTR XACKDEL XADD XDEL XDELEX XSETID XTRIM ZADD ZINCRBY "
    "ZPOPMAX ZPOPMIN ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE"
)
_OF_THE_TARGET: Final = (
    "PFMERGE SDIFFSTORE SINTERSTORE SUNIONSTORE GEOSEARCHSTORE ZDIFFSTORE ZINTERSTORE ZRANGESTORE ZUNIONSTORE"
)

COMMANDS: Final[Mapping[bytes | Omitted, Rule]] = {
    b"SET": _set,
    **_words("MSET", _pairs(False)),
    **_words("MSETNX SETNX", _pairs(True)),
    **_words("DEL UNLINK GETDEL", _removed),
    **_words(_OF_ONE_KEY, _at(1)),
    **_words(_OF_THE_TARGET, _at(1)),
    **_words("BITOP PFDEBUG", _at(2)),
    **_words("LMOVE BLMOVE RPOPLPUSH BRPOPLPUSH SMOVE", _at(1, 2)),
    **_words("BLPOP BRPOP BZPOPMAX BZPOPMIN", _pushed_over),
    **_words("LMPOP ZMPOP", _counted(1)),
    **_words("BLMPOP BZMPOP", _counted(2)),
    b"MSETEX": _multiple_set,
    b"XGROUP": _group,
    b"RENAME": _to(True, 2),
    b"RENAMENX": _to(True, 2, always=True),
    b"COPY": _to(False, 2, unless=b"REPLACE"),
    b"MOVE": _move,
    **_words("RESTORE RESTORE-ASKING", _restore),
    **_words("SORT GEORADIUS GEORADIUSBYMEMBER", _store),
    b"FLUSHDB": _cleared(False),
    b"FLUSHALL": _cleared(True),
    b"SWAPDB": _swapped,
    b"PFCOUNT": _all,  # what it has counted is kept in the value
    # What a group has read is no part of a stream's value; what MIGRATE takes away comes as DEL.
    # Valkey tells its replicas of slots that move; whose they are is seen elsewhere (`view.py`).
    **_words("XACK XAUTOCLAIM XCLAIM XREADGROUP MIGRATE FUNCTION PUBLISH SPUBLISH CLUSTER", _nothing),
}
"""By name. A command that is not here is asked about."""


def changes(given: Given) -> Sequence[Change] | None:
    """What a command changes; None for one that is not known. Raises `CommandError`."""
    name = given[0]
    rule = COMMANDS.get(name) or COMMANDS.get(_word(name))  # a few come in small letters
    if rule is None:
        return None
    try:
        return rule(given)
    except (IndexError, ValueError) as error:
        raise CommandError(f"{name!r} with {len(given) - 1} arguments") from error
