"""Connectors beside a primary and its replica, all of it in memory and in virtual time: drawn commands and faults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from deelog_interceptors.redis.node import RedisNode
from deelog_interceptors.redis.values import READS, encode
from deelog_proof.memory.redis_keyspace import Refused, Words
from deelog_schemas.config import parse
from tests.interceptors.redis.in_memory import FIRST_PORT, Servers
from tests.support.memory import Memory
from tests.support.topics import derived

PEACE_SECONDS = 60.0
FIELDS = {
    "connector.class": "deelog.RedisConnector",
    "topic.prefix": "p",
    "cache.name": "c",
    "bootstrap.servers": "memory:9092",
    "cache.value.format": "json",
    "segment.count": "4",
    "topic.creation.default.partitions": "2",
    "topic.creation.default.replication.factor": "1",
    "transaction.timeout.ms": "1000",
    "heartbeat.interval.ms": "1000",
    "commit.interval.ms": "10",
}


class World:
    """Servers 1 and 2, the first one primary, and a connector beside each."""

    def __init__(self, seed: int, acks: str) -> None:
        self.chance, self._acks = random.Random(seed), acks
        self._memory = Memory(seed)
        self.engine = self._memory.loop.engine
        self.servers = Servers(self.engine)
        self.nodes: dict[int, RedisNode] = {}
        self.primary, self.written = 1, 0
        for number in (1, 2):
            self.servers.serve(number)
        self.pass_(0.5)
        self.follow(2)
        for number in (1, 2):
            self.capture(number)
        self.pass_(2.0)

    def capture(self, number: int) -> None:
        """A connector beside a server."""
        loop, url = self.servers.loop(f"c{number}"), f"redis://127.0.0.1:{FIRST_PORT + number}/0"
        config = parse({**FIELDS, "node.id": f"c{number}", "redis.url": url, "cache.acks": self._acks})
        node = self.nodes[number] = loop.within(RedisNode, config, lambda: self._memory.port_on(loop))

        async def live() -> None:
            await node.start()
            await node.failure

        loop.within(loop.create_task, live())

    def follow(self, number: int) -> None:
        self.servers.follow(number, FIRST_PORT + self.primary)

    def promote(self) -> int:
        """The other server is primary from now on; which one was."""
        before, self.primary = self.primary, 3 - self.primary
        self.servers.lead(self.primary)
        return before

    def pass_(self, seconds: float) -> None:
        self.engine.run(None, seconds)

    def write(self, number: int, pause: float = 0.0) -> None:
        """So many drawn commands of a few keys."""
        chance = self.chance
        for _ in range(number):
            self.written += 1
            one, other = (b"k%d" % chance.randrange(8) for _ in range(2))
            value, soon = b"v%d" % self.written, b"%d" % chance.randrange(1, 3000)
            commands: list[Words] = [
                *[(b"SET", one, value)] * 4,
                (b"SET", one, value, b"PX", soon),
                (b"MSET", one, value, other, value),
                (b"DEL", one),
                (b"APPEND", one, b"+"),
                (b"PEXPIRE", one, soon),
                (b"PERSIST", one),
                (b"RENAME", one, other),
                (b"HSET", b"h" + one, other, value),
                (b"HDEL", b"h" + one, other),
                (b"RPUSH", b"l" + one, value),
                (b"LPOP", b"l" + one),
            ]
            commands += [(b"FLUSHDB",)] if chance.random() < 0.1 else []
            commands += [(b"SWAPDB", b"0", b"1")] if chance.random() < 0.05 else []
            with suppress(Refused):  # RENAME of a key that is not there
                loop, server = self.servers.loops[f"r{self.primary}"], self.servers[self.primary]
                loop.within(server.execute, *chance.choice(commands))
            self.pass_(pause or chance.choice((0.0, 0.001, 0.02, 0.1)))

    def fault(self) -> None:
        """Something drawn happens."""
        chance, number = self.chance, self.chance.choice((1, 2))
        match chance.choice(("failover", "kill primary", "kill connector", "pause connector", "trim", "cut")):
            case "failover":
                self.follow(self.promote())
            case "kill primary":
                self.servers.loops[f"r{self.primary}"].kill()
                dead = self.promote()
                self.servers.serve(dead)
                self.follow(dead)
            case "kill connector":
                self.servers.loops[f"c{number}"].kill()
                self.write(chance.randrange(20), 0.01)
                self.capture(number)
            case "pause connector":
                self.servers.loops[f"c{number}"].pause()
                self.write(chance.randrange(20), 0.05)
                self.servers.loops[f"c{number}"].resume()
            case "trim":
                self.servers[number].stream.trim(30)
            case "cut":
                pair = chance.choice((("c1", "r1"), ("c2", "r2"), ("r1", "r2")))
                self.servers.network.part(*pair)
                self.write(chance.randrange(20), 0.1)
                self.servers.network.heal(*pair)
                if chance.random() < 0.5:
                    self.servers.network.break_between(*pair)

    # -- what came of it ----------------------------------------------------------------------------------------------

    def content(self) -> dict[str, str]:
        """What the primary has."""
        keyspace, found = self.servers[self.primary].keyspace, dict[str, str]()
        for key, entry in keyspace.databases[0].items():
            value = encode(entry.kind, keyspace.run(0, READS[entry.kind](key), 0))
            assert value is not None
            found[key.decode()] = value.decode()
        return found

    def topic(self) -> dict[str, str] | None:
        """What the topic has; None while a reset is under way."""
        entries, readers = derived(self._memory.records("p.c"))
        if any(reader.open for reader in readers.values()):
            return None
        return {key.decode(): value.decode() for key, value in entries.items()}


@pytest.fixture
def world(seed: int) -> Iterator[World]:
    made = World(seed, "all" if seed % 2 else "1")
    yield made
    made.servers.end()


@pytest.mark.parametrize("seed", range(1, 11))
def test_after_faults_the_topic_has_what_the_primary_has(world: World) -> None:
    for _ in range(12):
        world.write(world.chance.randrange(5, 60))
        world.fault()
        assert not any(node.failure.done() for node in world.nodes.values())
    until = world.engine.now + PEACE_SECONDS
    while world.topic() != world.content() and world.engine.now < until:
        world.pass_(0.5)
    assert world.topic() == world.content()
    world.pass_(3.0)  # what is wrong may be written late
    assert world.topic() == world.content()
    assert not any(loop.errors for loop in world.servers.loops.values())
