"""What each command of a replication stream changes.

A server sends what it has carried out, in the form that its replicas can repeat: relative times as absolute ones, what
chance or a script chose as plain commands. SET, MSET and DEL carry all that a change needs. The others say which keys
they touched; those are read. `docs/redis-commands.md` is made from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from deelog_interceptors.redis.stream import Arguments, Omitted

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
    """The key has another value, or none, which is to be read. `database`: another one than the command's.

    `arrived`: it comes from another node of a cluster.
    """

    key: Key
    created: bool = False
    database: int | None = None
    arrived: bool = False


class Cleared(NamedTuple):
    """All keys are gone, of the command's database or of each; `slot`: those of a slot."""

    everywhere: bool
    slot: int | None = None


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


def _touched(given: Given) -> Sequence[Change]:
    """What `touching` gave."""
    return [Touched(key, database=_number(given[1])) for key in given[2:]]


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
    arrived = _word(given[0]) == b"RESTORE-ASKING"
    return (Touched(given[1], b"REPLACE" not in set(map(_word, given[4:])), arrived=arrived),)


def _store(begin: int, **skipped: int) -> Rule:
    """The key behind STORE or STOREDIST, if there is one: the last one counts. It may have an option's name.

    Options begin at that place; behind some of them come so many arguments.
    """

    def rule(given: Given) -> Sequence[Change]:
        found, at = list[Change](), begin
        while at < len(given):
            option = _word(given[at])
            if option in (b"STORE", b"STOREDIST") and at + 1 < len(given):
                found = [Touched(given[at + 1])]
                at += 1
            at += 1 + skipped.get(option.decode("latin-1"), 0)
        return found

    return rule


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


def _cluster(given: Given) -> Sequence[Change]:
    """CLUSTER FLUSHSLOT n, and what Valkey tells its replicas of slots that move: `view.py` sees whose they are."""
    match _word(given[1]):
        case b"FLUSHSLOT":
            return (Cleared(False, _number(given[2])),)
        case b"SETSLOT" | b"SYNCSLOTS":
            return ()
    raise CommandError("what it does is not known")


def _swapped(given: Given) -> Sequence[Change]:
    return (Swapped(_number(given[1]), _number(given[2])),)


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

_VALUE, _IMAGE, _GONE = "its value", "an image", "a delete"
_NEW = "; the key is new"

_TABLE: Final[Sequence[tuple[str, Rule, str]]] = (
    ("SET", _set, f"{_VALUE}, with NX as new; with KEEPTTL {_IMAGE}"),
    ("MSET", _pairs(False), f"{_VALUE}, of each key"),
    ("MSETNX SETNX", _pairs(True), f"{_VALUE}, of each key{_NEW}"),
    ("DEL UNLINK GETDEL", _removed, f"{_GONE} of each key; so are expiry and eviction"),
    (_OF_ONE_KEY, _at(1), f"{_IMAGE} of its key"),
    (_OF_THE_TARGET, _at(1), f"{_IMAGE} of its first key"),
    ("BITOP PFDEBUG", _at(2), f"{_IMAGE} of its key"),
    ("LMOVE BLMOVE RPOPLPUSH BRPOPLPUSH SMOVE", _at(1, 2), f"{_IMAGE} of each of its two keys"),
    ("BLPOP BRPOP BZPOPMAX BZPOPMIN", _pushed_over, f"{_IMAGE} of each of its keys"),
    ("LMPOP ZMPOP", _counted(1), f"{_IMAGE} of each of its keys"),
    ("BLMPOP BZMPOP", _counted(2), f"{_IMAGE} of each of its keys"),
    ("MSETEX", _multiple_set, f"{_IMAGE} of each of its keys"),
    ("XGROUP", _group, f"{_IMAGE} of its key where MKSTREAM may have made it; else nothing: groups are no entries"),
    ("RENAME", _to(True, 2), f"{_GONE} of the first key, {_IMAGE} of the second"),
    ("RENAMENX", _to(True, 2, always=True), f"{_GONE} of the first key, {_IMAGE} of the second{_NEW}"),
    ("COPY", _to(False, 2, unless=b"REPLACE"), f"{_IMAGE} of the second key; it is new without REPLACE"),
    ("MOVE", _move, f"{_GONE} in one database, {_IMAGE} in the other{_NEW}"),
    ("RESTORE RESTORE-ASKING", _restore, f"{_IMAGE}; the key is new without REPLACE"),
    ("SORT", _store(2, BY=1, GET=1, LIMIT=2), f"{_IMAGE} of the key behind STORE"),
    ("GEORADIUS", _store(6, COUNT=1), f"{_IMAGE} of the key behind STORE or STOREDIST"),
    ("GEORADIUSBYMEMBER", _store(5, COUNT=1), f"{_IMAGE} of the key behind STORE or STOREDIST"),
    ("FLUSHDB", _cleared(False), "a clear of its database"),
    ("FLUSHALL", _cleared(True), "a clear"),
    ("SWAPDB", _swapped, "a reset, where one of the two databases is captured"),
    ("PFCOUNT", _all, f"{_IMAGE} of each of its keys: what it has counted is kept in the value"),
    ("XACK XAUTOCLAIM XCLAIM XREADGROUP", _nothing, "nothing: what a group has read is no part of the entry"),
    ("MIGRATE", _nothing, "nothing: what it takes away comes as DEL"),
    ("FUNCTION PUBLISH SPUBLISH", _nothing, "nothing: they change no entry"),
    ("TRIMSLOTS", _nothing, "nothing: whose a slot is, the server is asked"),
    (
        "CLUSTER",
        _cluster,
        "a clear of the slot by FLUSHSLOT; else nothing: whose a slot is, the server is asked",
    ),
)

COMMANDS: Final[Mapping[bytes | Omitted, Rule]] = {
    word.encode(): rule for words, rule, _ in _TABLE for word in words.split()
}
"""By name. Of one that is not here the server is asked which keys it writes."""
_TOUCHES: Final = b"(touches)"
"""The name of what stands for a command of which the server has said that."""


def page() -> str:
    """What comes of each command, for readers: `docs/redis-commands.md`."""
    told = sorted((word, text) for words, _, text in _TABLE for word in words.split())
    return _PAGE + "".join(f"| {word} | {text} |\n" for word, text in told)


_PAGE: Final = """\
<!-- Made by `deelog run --commands`. -->
# What comes of each command

The commands of Redis and Valkey that change something, as they stand in the replication stream. What a script, a
transaction or a module's call carried out stands there as the commands that it led to, and relative times are absolute:
`EX 10` of a SET is `PXAT 1767225600000`.

*Its value*: one record for each such command. *An image*: the entry as it is then, read from the server at a known
place of the stream; of several such commands of one key in quick succession the last one is told. Of a command that is
not here, a module's for one, the server is asked which keys it writes (`COMMAND GETKEYSANDFLAGS`): *an image* of each.
Where it does not say, each segment is reset, reason `unknown_command`, and the log names the command.

| command | what comes |
|---|---|
"""


def rule_of(name: bytes | Omitted) -> Rule | None:
    """What is known of a command of that name."""
    return COMMANDS.get(name) or COMMANDS.get(_word(name))  # a few come in small letters


def touching(keys: Iterable[bytes], database: int) -> Arguments:
    """In the place of a command that is not known: `changes` says that it has touched these keys of that database.

    It may have written to another one than its own, as MOVE does.
    """
    return [_TOUCHES, b"%d" % database, *keys]


def changes(given: Given) -> Sequence[Change] | None:
    """What a command changes; None for one that is not known. Raises `CommandError`."""
    name = given[0]
    rule = _touched if name == _TOUCHES else rule_of(name)
    if rule is None:
        return None
    try:
        return rule(given)
    except (IndexError, ValueError) as error:
        raise CommandError(f"{name!r} with {len(given) - 1} arguments") from error
