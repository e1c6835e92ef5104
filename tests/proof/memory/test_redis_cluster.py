"""What nodes of a cluster say of slots and keys: each case runs on real clusters, and on the one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hiredis
import pytest

from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import Link, attach
from deelog_interceptors.redis.view import View, of_cluster
from deelog_proof.memory.engine import Engine
from deelog_schemas.keys import slot_of
from tests.interceptors.redis.clusters import cluster_of
from tests.interceptors.redis.in_memory import Servers

TAGS = sorted(("a", "b", "c", "d"), key=lambda tag: slot_of(tag.encode()))
SLOTS = [slot_of(tag.encode()) for tag in TAGS]
"""Of which the first primary has those below the middle."""
FIRST = [slot for slot in SLOTS if slot < 8192]
SECOND = [slot for slot in SLOTS if slot >= 8192]
MOVED, STAYS = (next(tag for tag in TAGS if slot_of(tag.encode()) == slot) for slot in (FIRST[0], SECOND[0]))

Case = Callable[["Nodes"], Awaitable[None]]


class Nodes:
    """Two primaries, then a replica of each, by number from 0."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = ports
        self._clients: dict[int, Client] = {}
        self._links: list[Link] = []

    async def ask(self, number: int, *lines: str) -> list[Any]:
        """All on one connection; of errors the first word."""
        if number not in self._clients:
            self._clients[number] = Client(Address("127.0.0.1", self.ports[number]))
            await self._clients[number].connect()
        replies = await self._clients[number].ask([line.encode().split() for line in lines])
        return [str(r).partition(" ")[0] if isinstance(r, hiredis.ReplyError) else r for r in replies]

    async def id(self, number: int) -> str:
        (reply,) = await self.ask(number, "CLUSTER MYID")
        return str(reply.decode())

    async def view(self, number: int) -> View:
        (reply,) = await self.ask(number, "CLUSTER NODES")
        return of_cluster(reply)

    async def until(self, number: int, condition: Callable[[View], bool]) -> View:
        """The view of a node once that is so."""
        until = asyncio.get_running_loop().time() + 30
        while not condition(view := await self.view(number)):
            assert asyncio.get_running_loop().time() < until, view
            await asyncio.sleep(0.02)
        return view

    async def stream(self, number: int) -> Callable[[], Awaitable[list[str]]]:
        """What a node streams from now on: the commands up to `SET … end`, without that one and values."""
        link = await attach(Address("127.0.0.1", self.ports[number]).connect, None, 1 << 20)
        self._links.append(link)

        async def streamed() -> list[str]:
            found: list[str] = []
            while True:
                link.acknowledge(0)
                for given, _ in await link.read():
                    words = [each for each in given if isinstance(each, bytes)]
                    if words[-1:] == [b"end"]:
                        return found
                    if words[0] not in (b"PING", b"SELECT", b"CLUSTER", b"REPLCONF"):
                        found.append(b" ".join(words[:2]).decode())

        return streamed

    async def begin(self, slot: int, source: int, target: int) -> None:
        one, other = await self.id(source), await self.id(target)
        assert await self.ask(target, f"CLUSTER SETSLOT {slot} IMPORTING {one}") == [b"OK"]
        assert await self.ask(source, f"CLUSTER SETSLOT {slot} MIGRATING {other}") == [b"OK"]

    async def whole(self, case: Case) -> None:
        """The case, and the end of its connections."""
        try:
            await case(self)
        finally:
            for client in self._clients.values():
                await client.close()
            for link in self._links:
                await link.close()


@pytest.fixture(params=["memory", "valkey", pytest.param("redis", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Case], None]]:
    with ExitStack() as stack:
        if request.param == "memory":
            servers = Servers(Engine(1))
            stack.callback(servers.end)
            loop = servers.loop("case")
            ports = servers.cluster(set(FIRST), set(SECOND))
            yield lambda case: loop.run_until_complete(Nodes(ports).whole(case))
            assert not any(loop.errors for loop in servers.loops.values())
        else:
            cluster = stack.enter_context(cluster_of(request.param, tmp_path / "servers", 2, SLOTS))
            ports = [server.port for server in cluster.servers]
            yield lambda case: asyncio.run(asyncio.wait_for(Nodes(ports).whole(case), 60))


def test_a_node_has_the_keys_of_its_slots(run: Callable[[Case], None]) -> None:
    async def case(nodes: Nodes) -> None:
        assert await nodes.ask(0, f"SET {{{MOVED}}}1 x", f"GET {{{MOVED}}}1") == [b"OK", b"x"]
        assert await nodes.ask(1, f"SET {{{MOVED}}}1 x", f"GET {{{MOVED}}}1") == ["MOVED", "MOVED"]
        assert await nodes.ask(2, f"GET {{{MOVED}}}1") == ["MOVED"]
        assert await nodes.ask(0, f"MSET {{{MOVED}}}1 x {{{STAYS}}}1 x") == ["CROSSSLOT"]
        assert await nodes.ask(0, "SET nobodys x") == ["CLUSTERDOWN"]
        assert await nodes.ask(1, "MULTI", f"GET {{{MOVED}}}1", "EXEC") == [b"OK", "MOVED", "EXECABORT"]
        assert await nodes.ask(0, "MULTI", f"GET {{{MOVED}}}1", "EXEC") == [b"OK", b"QUEUED", [b"x"]]
        slot = slot_of(MOVED.encode())
        assert await nodes.ask(0, f"CLUSTER GETKEYSINSLOT {slot} 9") == [[f"{{{MOVED}}}1".encode()]]
        assert [await nodes.view(number) for number in range(4)] == [
            View(True, frozenset(FIRST), rank=1),
            View(True, frozenset(SECOND), rank=2),
            View(False, frozenset(), frozenset(FIRST), rank=1),
            View(False, frozenset(), frozenset(SECOND), rank=2),
        ]

    run(case)


def test_a_slot_moves_key_by_key(run: Callable[[Case], None]) -> None:
    async def case(nodes: Nodes) -> None:
        slot, key, other = slot_of(MOVED.encode()), f"{{{MOVED}}}1", f"{{{MOVED}}}2"
        await nodes.ask(0, f"SET {key} x PXAT 99999999999999")
        of_source, of_target = await nodes.stream(0), await nodes.stream(1)
        await nodes.begin(slot, 0, 1)
        assert (await nodes.view(0)).moving == {slot}
        assert slot not in (await nodes.view(0)).writes | (await nodes.view(1)).writes
        assert await nodes.ask(0, f"GET {key}", f"GET {other}", f"MSET {key} y {other} y") == [b"x", "ASK", "TRYAGAIN"]
        assert await nodes.ask(1, f"GET {key}", "ASKING", f"SET {other} z") == ["MOVED", b"OK", b"OK"]
        migrate = f"MIGRATE 127.0.0.1 {nodes.ports[1]} {key} 0 5000"
        assert await nodes.ask(0, "MULTI", f"GET {key}") == [b"OK", b"QUEUED"]
        busy = f"MIGRATE 127.0.0.1 {nodes.ports[1]} {other} 0 5000"
        assert await nodes.ask(0, "EXEC", migrate, migrate, busy) == [[b"x"], b"OK", b"NOKEY", b"NOKEY"]
        assert await nodes.ask(0, f"GET {key}") == ["ASK"]
        _, expires_at = await nodes.ask(1, "ASKING", f"PEXPIRETIME {key}")
        assert abs(expires_at - 99999999999999) < 1000  # what is sent is the time that is left
        before, name = (await nodes.view(0)).rank, await nodes.id(1)
        for number in (1, 0):
            assert await nodes.ask(number, f"CLUSTER SETSLOT {slot} NODE {name}") == [b"OK"]
        view = await nodes.until(1, lambda view: slot in view.writes)
        assert view.rank >= max(before, 2)
        assert slot not in (await nodes.view(0)).writes | (await nodes.view(0)).moving
        await nodes.until(3, lambda view: slot in view.follows)
        assert await nodes.ask(1, f"SET {key} end") == [b"OK"]
        assert await nodes.ask(0, f"SET {{{next(t for t in TAGS if slot_of(t.encode()) == FIRST[1])}}} end") == [b"OK"]
        assert await of_source() == [f"DEL {key}"]
        assert await of_target() == [f"SET {other}", f"RESTORE-ASKING {key}"]

    run(case)


def test_who_gets_a_slot_has_a_later_rank_than_all(run: Callable[[Case], None]) -> None:
    async def case(nodes: Nodes) -> None:
        slot, name = slot_of(STAYS.encode()), await nodes.id(0)
        assert await nodes.ask(2, f"CLUSTER SETSLOT {slot} IMPORTING {await nodes.id(1)}") == ["ERR"], "it is a replica"
        await nodes.begin(slot, 1, 0)
        assert await nodes.ask(0, f"CLUSTER SETSLOT {slot} NODE {name}") == [b"OK"]
        rank = (await nodes.view(0)).rank
        assert rank > (await nodes.view(1)).rank
        await nodes.until(1, lambda view: slot not in view.writes | view.moving)
        await nodes.begin(SECOND[1], 1, 0)
        assert await nodes.ask(0, f"CLUSTER SETSLOT {SECOND[1]} NODE {name}") == [b"OK"]
        assert (await nodes.view(0)).rank == rank, "it had the latest"

    run(case)


def test_a_promoted_replica_has_a_later_rank_and_the_former_primary_follows_it(run: Callable[[Case], None]) -> None:
    async def case(nodes: Nodes) -> None:
        assert await nodes.ask(2, "CLUSTER FAILOVER TAKEOVER") == [b"OK"]
        view = await nodes.until(2, lambda view: view.is_primary)
        assert view == View(True, frozenset(FIRST), rank=view.rank)
        assert view.rank > 2
        follows = View(False, frozenset(), frozenset(FIRST), rank=view.rank)
        await nodes.until(0, lambda view: view == follows)

    run(case)


def test_a_primary_whose_last_slot_goes_follows_who_has_it(run: Callable[[Case], None]) -> None:
    async def case(nodes: Nodes) -> None:
        name = await nodes.id(1)
        for slot in FIRST:
            await nodes.begin(slot, 0, 1)
            assert await nodes.ask(1, f"CLUSTER SETSLOT {slot} NODE {name}") == [b"OK"]
        every = frozenset(SLOTS)
        await nodes.until(0, lambda view: not view.is_primary and view.follows == every)
        await nodes.until(2, lambda view: not view.is_primary and view.follows == every)
        assert (await nodes.view(1)).writes == every

    run(case)
