"""Several databases of one server: each a cache with topics of its own, in one process, on a Kafka in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deelog_interceptors.redis.databases import Databases
from deelog_interceptors.redis.link import LinkError
from deelog_schemas.config import Config, parse
from tests.interceptors.cachetools.reading import read
from tests.interceptors.redis.servers import Server, running
from tests.interceptors.redis.test_node import caught_up, config_of
from tests.support.memory import LiveMemory
from tests.support.topics import derived
from tests.support.waiting import awaiting

CACHES = {0: "shop.sessions", 3: "shop.carts"}


def config(server: Server, **more: str) -> Config:
    given = {**config_of(server).raw, "redis.url": f"redis://127.0.0.1:{server.port}"}
    del given["cache.name"]
    given["redis.databases"] = "0:sessions,3:carts"
    return parse({**given, **{name.replace("_", "."): value for name, value in more.items()}})


@asynccontextmanager
async def serving(live: LiveMemory, config: Config) -> AsyncIterator[Databases]:
    databases = Databases(config, live.port)
    try:
        await databases.start()
        yield databases
    except BaseException:
        await databases.abort()
        raise
    await databases.stop()


async def caught_up_by(live: LiveMemory, server: Server, *resets: dict[str, int]) -> None:
    """Kafka has all of each database, and its segments were reset so often; those without a key may come last."""
    for (number, cache), expected in zip(CACHES.items(), resets, strict=True):
        await caught_up(live, server, cache, number)

        def are_done(cache: str = cache, expected: dict[str, int] = expected) -> bool:
            readers = derived(live.records(cache))[1].values()
            counts = sum((Counter(reader.resets) for reader in readers), Counter[str]())
            return counts == expected and not any(reader.open for reader in readers)

        try:
            await awaiting(are_done, 20, "its resets")
        except TimeoutError:
            assert read(live, cache).resets == expected
            raise


COMMANDS: list[tuple[int, tuple[str, ...]]] = [
    (0, ("SET", "a", "1")),
    (3, ("SET", "a", "2")),
    (5, ("SET", "a", "3")),
    (0, ("RPUSH", "l", "x", "y")),
    (0, ("MOVE", "l", "3")),
    (3, ("COPY", "l", "copied", "DB", "0")),
    (5, ("MOVE", "a", "7")),
    (7, ("COPY", "a", "from7", "DB", "3")),
    (3, ("MOVE", "from7", "5")),
    (3, ("DEL", "a")),
    (0, ("INCR", "a")),
]


@pytest.mark.parametrize("name", ["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def test_each_has_what_its_database_has(live: LiveMemory, tmp_path: Path, name: str) -> None:
    async def work() -> None:
        with running(name, tmp_path) as server:

            def load(turn: int) -> None:
                for number, words in COMMANDS:
                    server.ask("SELECT", str(number))
                    server.ask(*words)
                server.ask("SELECT", "3")
                server.ask("SET", "turn", str(turn))

            load(1)
            async with serving(live, config(server)) as databases:
                assert databases.serves
                load(2)
                await caught_up_by(live, server, {"initial": 8}, {"initial": 8})
                server.ask("SELECT", "0")
                server.ask("FLUSHDB")
                server.ask("SET", "b", "1")
                await caught_up_by(live, server, {"initial": 8, "clear": 8}, {"initial": 8})
                server.ask("SWAPDB", "5", "7")
                server.ask("SWAPDB", "3", "5")
                await awaiting(lambda: len(databases.nodes[1].capture.view.writes) == 8, 20, "the view")
                swapped = [{"initial": 8, "clear": 8}, {"initial": 8, "unknown_command": 8}]
                await caught_up_by(live, server, *swapped)
            load(3)
            async with serving(live, config(server)):
                await caught_up_by(live, server, *swapped)
                server.ask("FLUSHALL")
                load(4)
                cleared = [{"initial": 8, "clear": 16}, {"initial": 8, "unknown_command": 8, "clear": 8}]
                await caught_up_by(live, server, *cleared)

    live.run(work())


def test_the_name_of_one_captures_it_alone(live: LiveMemory, tmp_path: Path) -> None:
    async def work() -> None:
        with running("valkey", tmp_path) as server:
            async with serving(live, config(server, cache_name="carts")) as databases:
                assert list(databases.lifecycle.connectors) == ["carts"]
                server.ask("SELECT", "3")
                server.ask("SET", "a", "1")
                await caught_up(live, server, "shop.carts", 3)

    live.run(work())


def test_one_of_them_ends_all(live: LiveMemory, tmp_path: Path) -> None:
    """The server has no database 99: the connector of the other one is told so, and nothing is left behind."""

    async def work() -> None:
        with running("valkey", tmp_path) as server:
            before = asyncio.all_tasks()
            databases = Databases(config(server, redis_databases="0:sessions,99:carts"), live.port)
            with pytest.raises(LinkError, match="DB index is out of range"):
                await databases.start()
            assert not databases.serves
            await databases.abort()
            assert asyncio.all_tasks() == before

            databases = Databases(config(server), live.port)
            await databases.start()
            failures: list[Any] = []
            databases.failure.add_done_callback(failures.append)
            databases.nodes[1].failed(LinkError("gone"))
            databases.nodes[0].failed(LinkError("gone too"))
            await awaiting(lambda: bool(failures), 20, "the failure of all")
            with pytest.raises(LinkError, match=r"^gone$"):
                databases.failure.result()
            await databases.stop()
            assert asyncio.all_tasks() == before

    live.run(work())


def test_a_start_that_is_broken_off(live: LiveMemory, tmp_path: Path) -> None:
    async def work() -> None:
        with running("valkey", tmp_path) as server:
            server.process.kill()
            before = asyncio.all_tasks()
            databases = Databases(config(server), live.port)
            start = asyncio.ensure_future(databases.start())
            await awaiting(lambda: all(node.connector.started for node in databases.nodes), 20, "their connectors")
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
            await databases.abort()
            assert asyncio.all_tasks() == before

    live.run(work())
