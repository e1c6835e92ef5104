"""The contract of a Redis server: each case runs on the real ones, and on the one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import hiredis
import pytest

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.lineage import Lineage, told
from deelog_interceptors.redis.link import Link, LinkLost, Place, attach, fields
from deelog_proof.memory.engine import Engine
from tests.interceptors.redis.in_memory import FIRST_PORT, Servers
from tests.interceptors.redis.servers import NAMES, Server


class World:
    """Servers of one kind, and a loop for the case. `lead` and `follow` come from outside, as an operator's do."""

    def __init__(self) -> None:
        self._opened: list[Client | Link] = []

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    async def whole(self, case: Coroutine[Any, Any, None]) -> None:
        """The case, and the end of its connections."""
        try:
            await case
        finally:
            for each in self._opened:
                await each.close()

    async def client(self, port: int) -> Client:
        client = Client(Address("127.0.0.1", port))
        self._opened.append(client)

        async def there() -> bool:
            try:
                await client.connect()
            except LinkLost:
                return False
            return True

        await eventually(there, "a server")
        return client

    async def link(self, port: int, wanted: Place | None = None) -> Link:
        link = await attach(Address("127.0.0.1", port).connect, wanted, 1 << 20)
        self._opened.append(link)
        return link

    async def server(self) -> int:
        """A new one's port."""
        raise NotImplementedError

    async def follow(self, port: int, primary: int) -> None:
        raise NotImplementedError

    async def lead(self, port: int) -> None:
        raise NotImplementedError

    async def trim(self, port: int) -> None:
        """The server forgets its backlog, nearly."""
        raise NotImplementedError


class Real(World):
    def __init__(self, name: str, folder: Path) -> None:
        super().__init__()
        self._name, self._folder = name, folder
        self._servers: dict[int, Server] = {}

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run(asyncio.wait_for(self.whole(case), 60))
        finally:
            for server in self._servers.values():
                server.stop()

    async def server(self) -> int:
        made = Server(self._name, self._folder / f"{len(self._servers)}", "--repl-backlog-size", "64kb")
        self._servers[made.port] = made
        return made.port

    async def follow(self, port: int, primary: int) -> None:
        self._servers[port].ask("REPLICAOF", "127.0.0.1", str(primary))

    async def lead(self, port: int) -> None:
        self._servers[port].ask("REPLICAOF", "NO", "ONE")

    async def trim(self, port: int) -> None:
        for number in range(3):
            self._servers[port].ask("SET", f"long{number}", "x" * 60_000)
            self._servers[port].ask("DEL", f"long{number}")


class Memory(World):
    def __init__(self) -> None:
        super().__init__()
        self._servers = Servers(Engine(1))
        self._loop = self._servers.loop("case")
        self._count = 0

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(self.whole(case))
        self._servers.end()
        assert not any(loop.errors for loop in self._servers.loops.values())

    async def server(self) -> int:
        self._count += 1
        return self._servers.serve(self._count)

    async def follow(self, port: int, primary: int) -> None:
        self._servers.follow(port - FIRST_PORT, primary)

    async def lead(self, port: int) -> None:
        self._servers.lead(port - FIRST_PORT)

    async def trim(self, port: int) -> None:
        self._servers[port - FIRST_PORT].stream.trim(20)


@pytest.fixture(params=[*NAMES, "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return Memory() if request.param == "memory" else Real(request.param, tmp_path)


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    until = asyncio.get_running_loop().time() + 30
    while not await condition():
        assert asyncio.get_running_loop().time() < until, what
        await asyncio.sleep(0.02)


async def asked(client: Client, *lines: str) -> list[Any]:
    return await client.ask([line.encode().split() for line in lines])


async def replication(client: Client) -> dict[str, str]:
    return dict(fields(await client.ask_one(b"INFO", b"replication")))


async def read(link: Link) -> list[tuple[Any, int]]:
    """Its next commands. Behind a snapshot they come once it has acknowledged something, and the server is ready."""
    while True:
        link.acknowledge(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                return await link.read()


async def streamed(link: Link, *ends: str) -> list[str]:
    """The commands up to one of those, without it and signs of life."""
    found: list[str] = []
    while True:
        for given, _ in await read(link):
            line = b" ".join(each for each in given if isinstance(each, bytes)).decode()
            if line in ends:
                return found
            if line != "PING":
                found.append(line)


REPLIES: list[tuple[str, Any]] = [
    ("SET s hello", b"OK"),
    ("GET s", b"hello"),
    ("GET none", None),
    ("SET s x NX", None),
    ("SET none x XX", None),
    ("SET new x NX", b"OK"),
    ("MSET a 1 b 2", b"OK"),
    ("DEL a none", 1),
    ("UNLINK none", 0),
    ("EXISTS b none b", 2),
    ("INCR b", 3),
    ("APPEND s x", 6),
    ("TYPE s", b"string"),
    ("TYPE none", b"none"),
    ("PEXPIRETIME none", -2),
    ("PEXPIRETIME s", -1),
    ("EXPIRE none 5", 0),
    ("PEXPIREAT s 99999999999999", 1),
    ("PEXPIRETIME s", 99999999999999),
    ("PERSIST s", 1),
    ("PERSIST s", 0),
    ("SET s y PXAT 99999999999999", b"OK"),
    ("SET s z KEEPTTL", b"OK"),
    ("PEXPIRETIME s", 99999999999999),
    ("EXPIRE s -1", 1),
    ("EXISTS s", 0),
    ("HSET h a 1 b 2", 2),
    ("HSET h a 3 c 4", 1),
    ("HGETALL h", [b"a", b"3", b"b", b"2", b"c", b"4"]),
    ("HDEL h a none", 1),
    ("HDEL h b c", 2),
    ("EXISTS h", 0),
    ("HDEL h b", 0),
    ("HGETALL h", []),
    ("RPUSH l 1 2 3", 3),
    ("LPOP l", b"1"),
    ("LRANGE l 0 -1", [b"2", b"3"]),
    ("LPOP none", None),
    ("RENAME l m", b"OK"),
    ("TYPE m", b"list"),
    ("SELECT 1", b"OK"),
    ("EXISTS m", 0),
    ("SET there 1", b"OK"),
    ("SWAPDB 0 1", b"OK"),
    ("EXISTS m", 1),
    ("FLUSHDB", b"OK"),
    ("EXISTS m", 0),
    ("SELECT 0", b"OK"),
    ("EXISTS there", 1),
    ("FLUSHALL", b"OK"),
    ("SCAN 0", [b"0", []]),
    ("MULTI", b"OK"),
    ("SET q 1", b"QUEUED"),
    ("GET q", b"QUEUED"),
    ("EXEC", [b"OK", b"1"]),
]


def test_commands_are_answered(world: World) -> None:
    async def case() -> None:
        client = await world.client(await world.server())
        replies = await asked(client, *(line for line, _ in REPLIES))
        assert dict(enumerate(zip((line for line, _ in REPLIES), replies, strict=True))) == dict(enumerate(REPLIES))
        errors = await asked(client, "GET", "HSET q a 1", "NONSENSE q", "RENAME none q")
        assert all(isinstance(error, hiredis.ReplyError) for error in errors), errors
        assert [str(error).partition(" ")[0] for error in errors[1:]] == ["WRONGTYPE", "ERR", "ERR"]

    world.run(case())


STREAMED: list[tuple[str, list[str]]] = [
    ("SET s 1", ["SET s 1"]),
    ("SET s 2 NX", []),
    ("SET t 2 NX", ["SET t 2 NX"]),
    ("SET s 1 PXAT 99999999999999", ["SET s 1 PXAT 99999999999999"]),
    ("SET s 1 EXAT 99999999999", ["SET s 1 PXAT 99999999999000"]),
    ("SET s 1 KEEPTTL", ["SET s 1 KEEPTTL"]),
    ("PEXPIREAT s 88888888888888", ["PEXPIREAT s 88888888888888"]),
    ("PERSIST s", ["PERSIST s"]),
    ("PERSIST s", []),
    ("MSET a 1 b 2", ["MSET a 1 b 2"]),
    ("INCR a", ["INCR a"]),
    ("DEL a none", ["DEL a none"]),
    ("DEL none", []),
    ("HSET h a 1", ["HSET h a 1"]),
    ("HDEL h none", []),
    ("HDEL h a", ["HDEL h a"]),
    ("RPUSH l 1 2", ["RPUSH l 1 2"]),
    ("LPOP l", ["LPOP l"]),
    ("RENAME l m", ["RENAME l m"]),
    ("GET s", []),
    ("SELECT 1", ["SELECT 1"]),
    ("SET o 1", ["SET o 1"]),
    ("SET o 2", ["SET o 2"]),
    ("SWAPDB 0 1", ["SWAPDB 0 1"]),
    ("SELECT 0", ["SELECT 0"]),
    ("FLUSHDB", ["FLUSHDB"]),
    ("FLUSHALL", ["FLUSHALL"]),
]


def test_what_changes_is_streamed(world: World) -> None:
    async def case() -> None:
        port = await world.server()
        client, link = await world.client(port), await world.link(port)
        assert not link.continues
        await asked(client, "SET begin 1")
        await streamed(link, "SET begin 1")
        for number, (line, expected) in enumerate(STREAMED):
            _, end = await asked(client, line, f"SET end {number}")
            assert end == b"OK"
            assert await streamed(link, f"SET end {number}") == expected, line
        await asked(client, "MULTI", "SET x 1", "SET y 2", "EXEC", "SET end x")
        assert await streamed(link, "SET end x") == ["MULTI", "SET x 1", "SET y 2", "EXEC"]
        await asked(client, "SET z 1 PX 1")
        (line,) = await streamed(link, "DEL z", "UNLINK z")
        assert line.startswith("SET z 1 PXAT ")
        await link.close()

    world.run(case())


def test_offsets_count_what_is_streamed(world: World) -> None:
    """What a link has read is what ROLE says, in the same transaction as what was written."""

    async def case() -> None:
        port = await world.server()
        client, link = await world.client(port), await world.link(port)
        *_, (_, role) = await asked(client, "MULTI", "SET s 1", "ROLE", "EXEC")
        offset = link.place.offset
        assert role[1] == offset, "what is written in a transaction is streamed behind it"
        await asked(client, "SET end 1")
        (role,) = await asked(client, "ROLE")
        ends = {offset: [b""]}
        while offset < role[1]:
            for given, offset in await read(link):
                ends[offset] = given
        assert ends[role[1]][:2] == [b"SET", b"end"]

    world.run(case())


def test_a_link_goes_on_where_it_was_while_the_backlog_has_it(world: World) -> None:
    async def case() -> None:
        port = await world.server()
        client, link = await world.client(port), await world.link(port)
        await asked(client, "SET a 1", "SET b 1", "SET end 1")
        offset = 0
        while offset < int((await replication(client))["master_repl_offset"]):
            offset = (await read(link))[-1][1]
        lineage = link.place.lineage
        await link.close()
        await asked(client, "SET c 1", "SET end 2")
        link = await world.link(port, Place(lineage, offset, 0))
        assert (link.continues, link.place) == (True, Place(lineage, offset, 0))
        assert await streamed(link, "SET end 2") == ["SET c 1"]
        await link.close()
        await world.trim(port)
        link = await world.link(port, Place(lineage, offset, 0))
        assert not link.continues
        assert link.place.offset == int((await replication(client))["master_repl_offset"])
        await asked(client, "SET d 1", "SET end 3")
        assert await streamed(link, "SET end 3") == ["SELECT 0", "SET d 1"]
        await link.close()

    world.run(case())


async def is_followed(client: Client, replica: Client) -> bool:
    there, here = await replication(replica), await replication(client)
    same = there["master_repl_offset"] == here["master_repl_offset"]
    return there["role"] == "slave" and there["master_link_status"] == "up" and same


def test_a_replica_has_what_its_primary_has_and_says_so(world: World) -> None:
    async def case() -> None:
        ports = [await world.server(), await world.server()]
        client, replica = [await world.client(port) for port in ports]
        await asked(client, "SET a 1", "HSET h a 1", "SET t 1 PXAT 99999999999999", "SELECT 3", "SET d 1")
        await world.follow(ports[1], ports[0])
        await eventually(lambda: is_followed(client, replica), "a replica")
        link = await world.link(ports[1])
        await asked(client, "SET e 1", "SELECT 0", "SET a 2", "SET end 1")
        assert [each for each in await streamed(link, "SET end 1") if each != "SELECT 3"] == [
            "SET e 1",
            "SELECT 0",
            "SET a 2",
        ]
        await eventually(lambda: is_followed(client, replica), "the replica to follow")
        found = await asked(replica, "GET a", "HGETALL h", "PEXPIRETIME t", "SELECT 3", "GET d", "GET e", "ROLE")
        role = found.pop()
        assert found == [b"2", [b"a", b"1"], 99999999999999, b"OK", b"1", b"1"]
        assert role[0] == b"slave"
        assert (role[2], role[3]) == (ports[0], b"connected")
        named = await replication(replica)
        assert (named["master_host"], int(named["master_port"])) == ("127.0.0.1", ports[0])
        named = await replication(client)
        fields = [dict(part.split("=") for part in line.split(",")) for name, line in named.items() if name == "slave0"]
        assert [(each["ip"], int(each["port"])) for each in fields] == [("127.0.0.1", ports[1])]
        await world.link(ports[1])
        await asked(client, "SET f 1")
        await eventually(lambda: is_followed(client, replica), "the replica to follow")
        assert await asked(replica, "SELECT 0", "GET f") == [b"OK", b"1"]
        (refused,) = await asked(replica, "SET a 3")
        assert str(refused).startswith("READONLY")

        async def is_acknowledged() -> bool:
            (role,) = await asked(client, "ROLE")
            return [(int(port), int(offset)) for _, port, offset in role[2]] == [(ports[1], role[1])]

        link.hurry()
        await eventually(is_acknowledged, "the primary to know")
        await link.close()

    world.run(case())


def test_a_promoted_replica_goes_on_with_another_id(world: World) -> None:
    async def case() -> None:
        ports = [await world.server(), await world.server()]
        client, replica = [await world.client(port) for port in ports]
        await asked(client, "SET a 1")
        await world.follow(ports[1], ports[0])
        await eventually(lambda: is_followed(client, replica), "a replica")
        link = await world.link(ports[1])
        await asked(client, "SET b 1")
        await eventually(lambda: is_followed(client, replica), "the replica to follow")
        before = told(await replication(replica))
        fork = int((await replication(replica))["master_repl_offset"])
        await world.lead(ports[1])
        with pytest.raises(LinkLost):
            await streamed(link, "(no end)")
        after = told(await replication(replica))
        assert after == Lineage(((before.id, 0), (after.id, fork)))
        assert after.id != before.id
        await asked(replica, "SET c 1", "SET end 1")
        link = await world.link(ports[1], Place(before, fork, 0))
        assert link.continues
        assert [each for each in await streamed(link, "SET end 1") if each != "SELECT 0"] == ["SET c 1"]
        await link.close()
        # Beyond the fork the old id is another stream.
        await asked(client, "SET x 1", "SET y 1")
        beyond = int((await replication(client))["master_repl_offset"])
        link = await world.link(ports[1], Place(before, beyond, 0))
        assert not link.continues
        await link.close()
        # Who has got too far is given a snapshot.
        await world.follow(ports[0], ports[1])
        await eventually(lambda: is_followed(replica, client), "the old primary to follow")
        assert await asked(client, "GET x", "GET a", "GET c") == [None, b"1", b"1"]
        assert told(await replication(client)).id == after.id

    world.run(case())


def test_a_replica_that_is_in_step_follows_the_promoted_one_without_a_snapshot(world: World) -> None:
    async def case() -> None:
        ports = [await world.server(), await world.server(), await world.server()]
        client, one, other = [await world.client(port) for port in ports]
        await asked(client, "SET a 1")
        for port in ports[1:]:
            await world.follow(port, ports[0])
        for replica in (one, other):
            await eventually(lambda replica=replica: is_followed(client, replica), "replicas")  # type: ignore[misc]
        link = await world.link(ports[2])
        place = link.place
        await world.lead(ports[1])
        await world.follow(ports[2], ports[1])
        await eventually(lambda: is_followed(one, other), "the other replica")
        await asked(one, "SET b 1", "SET end 1")
        lineage = told(await replication(other))
        assert lineage.shared(place.lineage) >= place.offset
        with pytest.raises(LinkLost):
            await streamed(link, "(no end)")
        link = await world.link(ports[2], place)
        assert link.continues
        assert "SET b 1" in await streamed(link, "SET end 1")
        await link.close()

    world.run(case())


def test_without_its_primary_a_replica_gives_no_stream(world: World) -> None:
    async def case() -> None:
        port = await world.server()
        client = await world.client(port)
        await world.follow(port, 1)
        with pytest.raises(LinkLost, match="NOMASTERLINK"):
            await world.link(port)
        (role,) = await asked(client, "ROLE")
        assert (role[0], role[4]) == (b"slave", -1)

    world.run(case())
