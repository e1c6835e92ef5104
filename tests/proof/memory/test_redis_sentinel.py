"""What a Sentinel says of the primary: each case runs on real ones, and on the one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deelog_connector.devkafka.ports import free_ports
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import fields
from deelog_interceptors.redis.sentinels import Named, named_in
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.redis_sentinel import RedisSentinel
from tests.interceptors.redis.in_memory import FIRST_PORT, Servers
from tests.interceptors.redis.servers import NAMES, Sentinel, running

HOST = "127.0.0.1"
Case = Callable[["Watched"], Awaitable[None]]


class Watched:
    """A server's port, a Sentinel's that names it, and one's that names nobody who answers."""

    def __init__(self, server: int, sentinel: int, alone: int) -> None:
        self.server, self.sentinel, self.alone = server, sentinel, alone

    async def said(self, port: int, master: str = "mymaster") -> Named | str:
        client = Client(Address(HOST, port))
        await client.connect()
        try:
            (reply,) = await client.ask([(b"SENTINEL", b"MASTER", master.encode())])
            return named_in(reply)
        finally:
            await client.close()

    async def run_id(self) -> str:
        client = Client(Address(HOST, self.server))
        await client.connect()
        try:
            return fields(await client.ask_one(b"INFO", b"server"))["run_id"]
        finally:
            await client.close()


@pytest.fixture(params=["memory", *NAMES])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Case], None]]:
    with ExitStack() as stack:
        if request.param == "memory":
            servers = Servers(Engine(1))
            stack.callback(servers.end)
            places = [Address(HOST, servers.serve(1)), Address(HOST, FIRST_PORT + 9)]
            for number, at in enumerate(places):
                loop = servers.loop(f"s{number}")
                loop.within(loop.create_task, RedisSentinel(7100 + number, "mymaster", at).serve())
            case = servers.loop("case")
            yield lambda given: case.run_until_complete(given(Watched(places[0].port, 7100, 7101)))
            assert not any(loop.errors for loop in servers.loops.values())
        else:
            server = stack.enter_context(running(request.param, tmp_path / "server"))
            (nobody,) = free_ports(1)
            sentinels = [Sentinel(request.param, tmp_path / f"s{port}", port, 1) for port in (server.port, nobody)]
            for sentinel in sentinels:
                stack.callback(sentinel.stop)
            watched = Watched(server.port, *(sentinel.port for sentinel in sentinels))
            yield lambda given: asyncio.run(asyncio.wait_for(given(watched), 60))


def test_whom_it_names(run: Callable[[Case], None]) -> None:
    async def case(watched: Watched) -> None:
        until, expected = (
            asyncio.get_running_loop().time() + 30,
            Named(await watched.run_id(), f"{HOST}:{watched.server}"),
        )
        while (said := await watched.said(watched.sentinel)) != expected:
            assert asyncio.get_running_loop().time() < until, said
            await asyncio.sleep(0.1)
        assert await watched.said(watched.sentinel, "other") == "ERR No such master with that name"
        assert str(await watched.said(watched.alone)).startswith("it has not reached 127.0.0.1:")

    run(case)


def test_another_one_is_named_once_it_was_reached() -> None:
    servers = Servers(Engine(1))
    first, second = servers.serve(1), servers.serve(2)
    loop = servers.loop("s1")
    sentinel = RedisSentinel(7100, "mymaster", Address(HOST, first))
    loop.within(loop.create_task, sentinel.serve())
    servers.engine.run(seconds=1.0)
    assert sentinel.run_id == servers[1].run_id
    sentinel.name(Address(HOST, first))
    assert sentinel.run_id == servers[1].run_id
    servers.loops["r2"].pause()
    sentinel.name(Address(HOST, second))
    servers.engine.run(seconds=2.0)
    assert sentinel.run_id == "", "it does not answer"
    servers.loops["r2"].resume()
    servers.engine.run(seconds=2.0)
    assert sentinel.run_id == servers[2].run_id
    servers.end()
