"""Each write command on real servers: what its form in the stream is told to change is what the server has changed.

Bad input: commands that lack arguments, counts that are none or too large, options that are numbers, other cases."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
import redis

from deelog_interceptors.redis.commands import (
    COMMANDS,
    Cleared,
    CommandError,
    Put,
    Removed,
    Swapped,
    Touched,
    changes,
    rule_of,
    touching,
)
from deelog_interceptors.redis.stream import Omitted, Stream
from tests.interceptors.redis.servers import NAMES, Replica, Server, running

SETUP = """
SET s hello; SET n 5; SET t x PX 10000000; SET f 1.5; HSET h a 1 b 2; RPUSH l 1 2 3 4; SADD u 1 2 3; SADD v 2 3 4;
ZADD z 1 a 2 b 3 c; ZADD y 5 b; GEOADD g 13 38 p 15 37 q; PFADD p 1; XADD x 1-1 a 1; XGROUP CREATE x grp 0; PFADD q 2
"""
SAMPLES = """
APPEND s x
BITFIELD n SET u8 0 7
BITFIELD n GET u8 0
BITOP AND new s n
BLMOVE l new LEFT RIGHT 0
BLMPOP 0 2 none l LEFT
BLPOP none l 0
BRPOP l 0
BRPOPLPUSH l new 0
BZMPOP 0 1 z MIN
BZPOPMAX z 0
BZPOPMIN z 0
COPY s new
COPY s n REPLACE
COPY s s DB 1
DECR n
DECRBY n 2
DEL s n none
EXPIRE s 100
EXPIRE s -1
EXPIRE s 100 XX
EXPIREAT s 99999999999
FLUSHALL
FLUSHDB ASYNC
GEOADD g 1 1 r
GEORADIUS g 14 37 500 km STORE new
GEORADIUSBYMEMBER g p 500 km STOREDIST new
GEOSEARCHSTORE new g FROMMEMBER p BYRADIUS 500 km
GETDEL s
GETEX s EX 100
GETEX t PERSIST
GETSET s y
HDEL h a
HDEL h none
HDEL h a b
HINCRBY h a 4
HINCRBYFLOAT h a 1.5
HMSET h c 3
HSET h a 9
HSETNX h d 1
INCR n
INCRBY n 3
INCRBYFLOAT f 0.25
LINSERT l BEFORE 2 9
LMOVE l new LEFT LEFT
LMPOP 1 l RIGHT COUNT 2
LPOP l
LPOP l 9
LPUSH l 0
LPUSHX l 0
LREM l 1 2
LSET l 0 7
LTRIM l 1 2
MOVE s 1
MSET s 1 new 2 s 3
MSETNX new 1 newer 2
MSETNX new 1 s 2
PERSIST t
PEXPIRE s 100000
PEXPIREAT s 99999999999999
PFADD p 7
PFCOUNT p
PFMERGE new p q
PSETEX s 100000 v
PUBLISH c m
RENAME s n
RENAMENX s new
RENAMENX s n
RPOP l
RPOPLPUSH l l
RPUSH new 1
RPUSHX l 8
SADD u 9
SDIFFSTORE new u v
SET s v
SET s v EX 100
SET s v PX 100000
SET s v EXAT 99999999999
SET s v PXAT 99999999999999
SET t v KEEPTTL
SET new v NX
SET s v NX
SET s v XX GET
SETBIT n 1 1
SETEX s 100 v
SETNX new v
SETRANGE s 2 zz
SINTERSTORE new u v
SMOVE u v 1
SORT l STORE new
SORT l DESC
SPOP u
SPOP u 2
SPOP u 9
SREM u 1
SUNIONSTORE new u v
SWAPDB 0 1
UNLINK s n
XACK x grp 1-1
XADD x * b 2
XADD x MAXLEN ~ 1 * b 2
XAUTOCLAIM x grp me 0 0
XDEL x 1-1
XREADGROUP GROUP grp me STREAMS x >
XSETID x 9-9
XTRIM x MAXLEN 0
ZADD z 9 d
ZDIFFSTORE new 2 z y
ZINCRBY z 2 a
ZINTERSTORE new 2 z y
ZMPOP 1 z MAX
ZPOPMAX z
ZPOPMIN z 2
ZRANGESTORE new z 0 1
ZREM z a
ZREMRANGEBYLEX z - +
ZREMRANGEBYRANK z 0 0
ZREMRANGEBYSCORE z 2 3
ZUNIONSTORE new 2 z y
EVAL "redis.call('SET',KEYS[1],'1'); redis.call('INCR',KEYS[2])" 2 new n
""".strip().splitlines()
GROUPS = {b"x"}  # a group's place shows in a stream's digest


@pytest.fixture(scope="module", params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


Content = dict[tuple[int, bytes], tuple[bytes, int]]


def content(server: Server) -> Content:
    """All keys of two databases, with a digest of each and its expiry."""
    found: Content = {}
    for database in range(2):
        with redis.Redis(port=server.port, db=database) as client:
            for key in cast("list[bytes]", client.keys("*")):
                digest = client.execute_command("DEBUG", "DIGEST-VALUE", key)[0]
                found[database, key] = digest, client.execute_command("PEXPIRETIME", key)
    return found


def streamed(replica: Replica, stream: Stream, end: bytes) -> list[list[Any]]:
    """What comes until a command with the key `end`."""
    found: list[list[Any]] = []
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for arguments, _ in stream.feed(replica.read()):
            if end in arguments:
                return found
            found.append(arguments)
    raise TimeoutError(found)


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_it_changes_is_told(server: Server, sample: str) -> None:
    server.client.flushall()
    for command in SETUP.split(";"):
        server.ask(*command.split())
    replica = Replica(server.port)
    try:
        stream = Stream(replica.offset, 1 << 20)
        server.client.set("begin", 1)
        streamed(replica, stream, b"begin")  # FLUSHALL would end a link that is not there yet
        before = content(server)
        server.ask(*shlex.split(sample))
        after = content(server)
        server.client.set("the end", 1)
        told = streamed(replica, stream, b"the end")
    finally:
        replica.close()
    changed = {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
    found: dict[tuple[int, Any], Any] = {}
    database, swapped = 0, False
    for arguments in told:
        if arguments[0].upper() == b"SELECT":
            database = int(arguments[1])
        elif arguments[0].upper() not in (b"PING", b"REPLCONF", b"MULTI", b"EXEC"):
            known = changes(arguments)
            assert known is not None, arguments
            for change in known:
                match change:
                    case Cleared():
                        found |= dict.fromkeys(before, change)
                    case Swapped():
                        swapped = True
                    case Touched(database=other) if other is not None:
                        found[other, change.key] = change
                    case _:
                        found[database, change.key] = change
    if swapped:
        assert {(1 - db, key): value for (db, key), value in before.items()} == after
        return
    assert changed <= found.keys()
    assert {key for _, key in found.keys() - changed} <= GROUPS | {b"none", b"new"}, told
    for (db, key), change in found.items():
        if isinstance(change, Put):
            with redis.Redis(port=server.port, db=db) as client:
                assert client.get(key) == change.value
            assert after[db, key][1] == (change.expires_at or -1)
        if isinstance(change, Removed | Cleared):
            assert (db, key) not in after
        if getattr(change, "created", False):
            assert (db, key) not in before
            assert (db, key) in after


def test_every_write_command_of_a_server_is_known(server: Server) -> None:
    found: dict[str, Any] = server.client.command()
    unknown = {n for n, told in found.items() if "write" in told["flags"] and n.encode().upper() not in COMMANDS}
    assert unknown == set()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([b"set", b"k", b"v", b"pxat", b"7"], [Put(b"k", b"v", 7)]),
        ([b"SET", b"k", b"v", b"EXAT", b"7"], [Put(b"k", b"v", 7000)]),
        ([b"SET", b"k", b"v", b"EX", b"7"], [Touched(b"k")]),
        ([b"SET", b"NX", b"NX"], [Put(b"NX", b"NX")]),
        ([b"MSETEX", b"2", b"a", b"1", b"b", b"2", b"NX"], [Touched(b"a"), Touched(b"b")]),
        ([b"GEORADIUS", b"g", b"1", b"2", b"3", b"km", b"STORE", b"a", b"STOREDIST", b"b"], [Touched(b"b")]),
        ([b"SORT", b"store", b"BY", b"STORE"], []),
        # A key, a pattern or a member may have an option's name.
        ([b"SORT", b"l", b"STORE", b"store", b"DESC"], [Touched(b"store")]),
        ([b"SORT", b"l", b"ALPHA", b"STORE", b"to", b"BY", b"store", b"DESC"], [Touched(b"to")]),
        ([b"SORT", b"l", b"STORE", b"to", b"GET", b"STORE", b"ALPHA"], [Touched(b"to")]),
        ([b"SORT", b"l", b"LIMIT", b"0", b"5", b"store", b"limit"], [Touched(b"limit")]),
        ([b"GEORADIUS", b"g", b"1", b"2", b"3", b"km", b"STOREDIST", b"store", b"DESC"], [Touched(b"store")]),
        ([b"GEORADIUSBYMEMBER", b"g", b"STORE", b"3", b"km", b"COUNT", b"2", b"ANY"], []),
        ([b"GEORADIUSBYMEMBER", b"g", b"m", b"3", b"km", b"COUNT", b"2", b"STORE", b"count"], [Touched(b"count")]),
        ([b"TRIMSLOTS", b"RANGES", b"1", b"0", b"5"], []),
    ],
)
def test_forms(given: list[bytes], wanted: list[Any]) -> None:
    assert list(changes(given) or ()) == wanted


@pytest.mark.parametrize(
    "given",
    [
        [b"SET", b"k"],
        [b"SET", b"k", b"v", b"PXAT"],
        [b"SET", b"k", b"v", b"PXAT", b"x"],
        [b"MSET", b"k"],
        [b"MSET", b"k", b"v", b"l"],
        [b"APPEND"],
        [b"RENAME", b"k"],
        [b"LMPOP", b"x", b"k"],
        [b"LMPOP", b"2", b"k"],
        [b"LMPOP", b"-1", b"k"],
        [b"LMPOP", b"0", b"k"],
        [b"MOVE", b"k", b"x"],
        [b"SWAPDB", b"0"],
        [b"MSETEX", b"3", b"k", b"v"],
    ],
)
def test_a_command_that_is_not_as_its_kind_is_written(given: list[bytes]) -> None:
    with pytest.raises(CommandError):
        changes(given)


def test_an_unknown_command_is_no_error() -> None:
    assert changes([b"JSON.SET", b"k", b"$", b"1"]) is None


def test_in_the_place_of_an_unknown_command() -> None:
    assert list(changes(touching([b"a", b"b"], 3)) or ()) == [Touched(b"a", database=3), Touched(b"b", database=3)]
    assert changes(touching([], 3)) == []


def test_a_few_names_come_in_small_letters() -> None:
    assert rule_of(b"incr") is rule_of(b"INCR") is COMMANDS[b"INCR"]
    assert rule_of(b"JSON.SET") is rule_of(Omitted(40)) is None
