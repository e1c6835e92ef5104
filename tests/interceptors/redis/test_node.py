"""A connector beside real servers, on a Kafka in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from deelog_interceptors.redis import reading
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.node import RedisNode
from deelog_schemas.config import Config, parse
from tests.interceptors.cachetools.reading import Topic, read
from tests.interceptors.redis.servers import NAMES, Server
from tests.support.memory import LiveMemory
from tests.support.topics import derived
from tests.support.waiting import awaiting

CACHE = "shop.sessions"


def config_of(server: Server, **more: str) -> Config:
    given = {
        "connector.class": "deelog.RedisConnector",
        "topic.prefix": "shop",
        "cache.name": "sessions",
        "bootstrap.servers": "memory:9092",
        "node.id": "redis-1",
        "redis.url": f"redis://127.0.0.1:{server.port}/0",
        "cache.value.format": "json",
        "segment.count": "8",
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "1",
        "commit.interval.ms": "10",
    }
    return parse({**given, **{name.replace("_", "."): value for name, value in more.items()}})


async def content(server: Server) -> dict[str, str]:
    """What a server has in database 0, as the product reads it."""
    client = Client(Address("127.0.0.1", server.port))
    await client.connect()
    try:
        listed = await reading.keys_of(client, frozenset({0}), 1)
        found: dict[str, str] = {}
        for key in listed[0]:
            (image,) = (await reading.read(client, [key])).images
            if image.value is not None:
                found[key.decode()] = image.value.decode()
        return found
    finally:
        await client.close()


async def caught_up(live: LiveMemory, server: Server) -> Topic:
    expected = await content(server)

    def same() -> bool:
        entries, readers = derived(live.records(CACHE))
        found = {key.decode(): value.decode() for key, value in entries.items()}
        return found == expected and not any(reader.open for reader in readers.values())

    try:
        await awaiting(same, 20, "Kafka has what the server has")
    except AssertionError:
        assert read(live, CACHE).entries == expected
        raise
    return read(live, CACHE)


def load(server: Server, seed: int, number: int = 300) -> None:
    """Commands of many kinds on a few keys."""
    chance = random.Random(seed)
    for turn in range(number):
        key, other = (f"{chance.choice('abcdefgh')}" for _ in range(2))
        value = f"v{turn}"
        commands: list[tuple[Any, ...]] = [
            ("SET", f"s:{key}", value),
            ("SET", f"s:{key}", value, "PX", "900000"),
            ("INCR", f"n:{key}"),
            ("DEL", f"s:{key}", f"h:{other}"),
            ("HSET", f"h:{key}", other, value),
            ("RPUSH", f"l:{key}", value),
            ("LPOP", f"l:{key}"),
            ("SADD", f"t:{key}", other),
            ("ZADD", f"z:{key}", str(turn), other),
            ("XADD", f"x:{key}", "*", "f", value),
            ("APPEND", f"s:{key}", "+"),
            ("MSET", f"s:{key}", value, f"s:{other}", value),
            ("EXPIRE", f"s:{key}", "1000"),
            ("COPY", f"s:{key}", f"c:{other}", "REPLACE"),
            ("RENAME", f"s:{key}", f"s:{other}") if server.ask("EXISTS", f"s:{key}") else ("PING",),
        ]
        server.ask(*chance.choice(commands))


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = Server(request.param, tmp_path / "server")
    yield made
    made.stop()


def run(live: LiveMemory, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    live.run(work())


async def started(live: LiveMemory, server: Server, **more: str) -> RedisNode:
    node = RedisNode(config_of(server, **more), live.port)
    await node.start()
    return node


def test_what_is_there_what_comes_and_what_came_meanwhile(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        load(server, 1)
        node = await started(live, server)
        load(server, 2)
        topic = await caught_up(live, server)
        assert set(topic.resets) == {"initial"}
        load(server, 3)
        await caught_up(live, server)
        await node.stop()
        load(server, 4)
        node = await started(live, server)
        load(server, 5)
        topic = await caught_up(live, server)
        assert set(topic.resets) == {"initial"}
        assert topic.resets.total() == 8
        assert not topic.repeats
        server.ask("FLUSHALL")
        load(server, 6)
        topic = await caught_up(live, server)
        assert topic.reasons["clear"] == 0
        await node.stop()

    run(live, work)
