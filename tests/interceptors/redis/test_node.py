"""A connector beside real servers, on a Kafka in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from deelog_interceptors.redis import commands, reading, tape
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import Link, LinkError, LinkLost, Place
from deelog_interceptors.redis.node import RedisNode
from deelog_interceptors.redis.source import decode_source
from deelog_interceptors.redis.values import Values
from deelog_schemas.config import Config, parse
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.positions import PositionState, decode_state
from deelog_schemas.records import ON_POSITIONS
from tests.interceptors.cachetools.reading import Topic, read
from tests.interceptors.redis.servers import AS_DEELOG, Server, least_rights, running
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


VALUES = Values(parse({"topic.prefix": "p", "bootstrap.servers": "b:1", "node.id": "n", "cache.name": "c"}))


async def content(server: Server, database: int = 0) -> dict[str, str]:
    """What a server has in a database, as the product reads it."""
    client = Client(Address("127.0.0.1", server.port, database))
    await client.connect()
    try:
        listed = await reading.keys_of(client, frozenset({0}), 1, VALUES)
        found: dict[str, str] = {}
        for key in listed[0]:
            (image,) = (await reading.read(client, [key], VALUES)).images
            if image.value is not None:
                found[key.decode()] = image.value.decode()
        return found
    finally:
        await client.close()


async def caught_up(live: LiveMemory, server: Server, cache: str = CACHE, database: int = 0) -> Topic:
    expected = await content(server, database)

    def same() -> bool:
        entries, readers = derived(live.records(cache))
        found = {key.decode(): value.decode() for key, value in entries.items()}
        return found == expected and not any(reader.open for reader in readers.values())

    try:
        await awaiting(same, 20, "Kafka has what the server has")
    except TimeoutError:
        assert read(live, cache).entries == expected
        raise
    return read(live, cache)


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


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = Server(request.param, tmp_path / "server")
    yield made
    made.stop()


NODES: list[RedisNode] = []
"""Those of the test that runs."""


def run(live: LiveMemory, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def guarded() -> None:
        try:
            await work()
        except BaseException:
            for node in NODES:
                await node.abort()
            raise
        finally:
            NODES.clear()

    live.run(guarded())


async def started(live: LiveMemory, server: Server, **more: str) -> RedisNode:
    node = RedisNode(config_of(server, **more), live.port)
    NODES.append(node)
    await node.start()
    return node


async def linked(replica: Server) -> None:
    """It has its primary's stream."""
    await awaiting(lambda: replica.client.info("replication")["master_link_status"] == "up", 20, "a replica")


async def known(live: LiveMemory, server: Server) -> None:
    """Kafka is known to have all of the server's stream, by what positions say."""
    offset = server.client.info("replication")["master_repl_offset"]

    def low() -> int:
        records = live.records(f"{CACHE}.positions", ON_POSITIONS)
        states = [decode_state(r.key, r.value, r.header.kind).state for r in records]
        sources = [decode_source(state.source) for state in states if isinstance(state, PositionState)]
        return max(source.low for source in sources)

    await awaiting(lambda: low() >= offset, 20, "a position that says so")


@pytest.mark.parametrize(("acks", "expected"), [("all", [120, 130, 140]), ("1", [140, 140, 140])])
def test_in_a_cluster_nothing_is_written_that_was_not_read_before_the_view(
    live: LiveMemory, tmp_path: Path, acks: str, expected: list[int]
) -> None:
    """A slot that moves is seen in the view; the deletes of its keys come behind that."""
    connected = [[b"::1", b"7001", b"120"], [b"::1", b"7002", b"130"], [b"::1", b"0", b"0"]]

    async def work() -> None:
        with running("valkey", tmp_path) as server:
            node = RedisNode(config_of(server, cache_acks=acks), live.port)
            for number, acked in enumerate(expected):
                role = [b"master", 140, connected[number:]]
                node._cluster = False
                assert node._acked(role, 110) == acked
                node._cluster = True
                assert (node._acked(role, 110), node._acked(role, 200)) == (110, acked)

    run(live, work)


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


def test_rows_are_read_no_faster_than_allowed_and_changes_do_not_wait_for_them(
    live: LiveMemory, server: Server
) -> None:
    """A key of a segment that has been sent changes by a command whose value has to be read."""

    def done() -> set[int]:
        ends = (record for record in live.records(CACHE) if record.header.kind is Kind.RESET_END)
        return {record.header.segment for record in ends}

    def told() -> bool:
        return any(record.header.kind is Kind.CHANGE for record in live.records(CACHE))

    async def work() -> None:
        keys = [f"k{number}" for number in range(1600)]
        for key in keys:
            server.ask("SET", key, "1")
        begin = time.monotonic()
        node = await started(live, server, redis_read_keys_per_second="200")
        await awaiting(done, 20, "the end of a reset")
        first = min(done())
        server.ask("INCR", next(key for key in keys if segment_of(key.encode(), 8) == first))
        await awaiting(told, 20, "the change")
        assert len([n for n in done() if n // 4 == first // 4]) < 4, "those of a partition are read together"
        await caught_up(live, server)
        assert time.monotonic() - begin > (len(keys) - reading.MOST_KEYS) / 200
        await node.stop()

    run(live, work)


def test_keys_that_are_too_many_to_be_listed_at_once_are_sent_in_parts(
    live: LiveMemory, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MOST_LISTED", 500)

    async def work() -> None:
        for number in range(4000):
            server.ask("SET", f"k{number}", "1")
        node = await started(live, server)
        topic = await caught_up(live, server)
        assert topic.resets == {"initial": 8}
        await node.stop()

    run(live, work)


def test_a_connector_that_is_killed_goes_on_where_kafka_ends(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        node = await started(live, server)
        for turn in range(6):
            load(server, turn, 100)
            if turn % 2:
                await caught_up(live, server)
            load(server, 100 + turn, 50)
            await node.abort()
            load(server, 200 + turn, 50)
            node = await started(live, server)
        topic = await caught_up(live, server)
        assert topic.resets.total() == 8, topic.resets
        assert topic.reasons["correct"] == 0
        assert not topic.repeats
        await node.stop()

    run(live, work)


@pytest.mark.parametrize("beside_replica", [False, True])
def test_what_the_server_has_forgotten_another_one_of_its_shard_may_have(
    live: LiveMemory, tmp_path: Path, beside_replica: bool
) -> None:
    """A backlog that was too small, and a replica that was started anew and remembers nothing."""

    async def work() -> None:
        little = [] if beside_replica else ["--repl-backlog-size", "16kb"]
        with running("valkey", tmp_path / "a", *little) as first, running("valkey", tmp_path / "b") as second:
            second.ask("REPLICAOF", "127.0.0.1", str(first.port))
            await linked(second)
            own = second if beside_replica else first
            more = {"redis_writer": "any", "cache_acks": "1"} if beside_replica else {}
            node = await started(live, own, **more)
            load(first, 1)
            await caught_up(live, own)
            await node.abort()
            load(first, 2, 1500)
            if beside_replica:
                second.restart()
                second.ask("REPLICAOF", "127.0.0.1", str(first.port))
                await linked(second)
                load(first, 3)
            node = await started(live, own, **more)
            load(first, 4)
            topic = await caught_up(live, own)
            assert topic.resets.total() == 8, topic.resets
            assert not topic.repeats
            await node.stop()

    run(live, work)


@pytest.mark.parametrize("breaks", [2, 3])
def test_a_link_to_another_server_that_breaks_is_tried_again(
    live: LiveMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: int
) -> None:
    """Before what the own one has forgotten is given up."""
    link_to, asked = RedisNode._link_to, list[int]()

    async def breaking(node: RedisNode, address: Address, wanted: Place | None) -> Link:
        if address != node.address:
            asked.append(address.port)
            if len(asked) <= breaks:
                raise LinkLost("the server closed the link")
        return await link_to(node, address, wanted)

    async def work() -> None:
        little = ("--repl-backlog-size", "16kb")
        with running("valkey", tmp_path / "a", *little) as first, running("valkey", tmp_path / "b") as second:
            second.ask("REPLICAOF", "127.0.0.1", str(first.port))
            await linked(second)
            node = await started(live, first)
            load(first, 1)
            await caught_up(live, first)
            await node.abort()
            load(first, 2, 1500)
            monkeypatch.setattr(RedisNode, "_link_to", breaking)
            node = await started(live, first)
            load(first, 4)
            topic = await caught_up(live, first)
            assert topic.resets.total() == (8 if breaks < 3 else 16), topic.resets
            assert asked == 3 * [second.port]
            await node.stop()

    run(live, work)


def test_the_replica_takes_over(live: LiveMemory, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async def work() -> None:
        with running("valkey", tmp_path / "a") as first, running("valkey", tmp_path / "b") as second:
            second.ask("REPLICAOF", "127.0.0.1", str(first.port))
            await linked(second)
            load(first, 1)
            more = {"heartbeat_interval_ms": "100"}
            nodes = [await started(live, one, node_id=f"redis-{n}", **more) for n, one in enumerate((first, second))]
            load(first, 2)
            await caught_up(live, first)
            for turn in range(4):
                load(first, 10 + turn, 200)
                second.ask("REPLICAOF", "NO", "ONE")
                first.ask("REPLICAOF", "127.0.0.1", str(second.port))
                load(second, 20 + turn, 200)
                await caught_up(live, second)
                await known(live, second)  # a server that follows may lose its backlog: then only that tells
                # One that is promoted before it follows has lost what came meanwhile.
                await linked(first)
                first, second = second, first
            topic = await caught_up(live, first)
            assert topic.resets.total() == 8, topic.resets
            assert not topic.repeats
            for node in nodes:
                await node.stop()

    run(live, work)


class Way:
    """The way from a replica to its primary. Once it is shut, what the primary sends does not arrive."""

    def __init__(self) -> None:
        self.shut = False
        self.port = 0

    @contextlib.asynccontextmanager
    async def to(self, server: Server) -> AsyncIterator[Way]:
        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool) -> None:
            while data := await reader.read(1 << 16):
                if not (back and self.shut):
                    writer.write(data)
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner, outer = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(pump(reader, outer, False), pump(inner, writer, True))

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            self.port = listening.sockets[0].getsockname()[1]
            yield self


def has_read(node: RedisNode, offset: int) -> bool:
    """Whether a connector has the stream up to there, with the values that it had to ask for."""
    tape = node.capture.tape
    return tape.offset >= offset and not any(segment.touched for segment in tape.segments)


@pytest.mark.parametrize("acks", ["all", "1"])
def test_a_failover_that_loses_writes(live: LiveMemory, tmp_path: Path, acks: str) -> None:
    async def work() -> None:
        with running("valkey", tmp_path / "a") as first, running("valkey", tmp_path / "b") as second:
            async with Way().to(first) as way:
                second.ask("REPLICAOF", "127.0.0.1", str(way.port))
                await linked(second)
                one = await started(live, first, node_id="redis-1", cache_acks=acks)
                two = await started(live, second, node_id="redis-2", cache_acks=acks)
                load(first, 1)
                await caught_up(live, first)
                behind = read(live, CACHE).entries
                way.shut = True
                one.connector.pause()  # of a segment with one lost transaction it is known what to take back
                load(first, 2, 100)
                end = first.client.info("replication")["master_repl_offset"]
                await awaiting(lambda: has_read(one, end), 20, "the connector has all that is lost")
                one.connector.resume()
                if acks == "1":
                    await caught_up(live, first)
                else:
                    await asyncio.sleep(1)  # what shall not be written has the time to be
                    assert read(live, CACHE).entries == behind
                first.process.kill()
                await one.abort()
                second.ask("REPLICAOF", "NO", "ONE")
                load(second, 3, 100)
                topic = await caught_up(live, second)
                assert not topic.repeats
                assert (topic.reasons["correct"] > 0) == (acks == "1")
                assert topic.resets.total() == 8, topic.resets
                await two.stop()

    run(live, work)


ANY = {"redis_writer": "any", "cache_acks": "1", "heartbeat_interval_ms": "500"}


def test_beside_replicas_alone(live: LiveMemory, tmp_path: Path) -> None:
    """Of two such connectors the one that was started last writes. A failover goes back behind what it has written."""

    async def work() -> None:
        with (
            running("valkey", tmp_path / "a") as first,
            running("valkey", tmp_path / "b") as second,
            running("valkey", tmp_path / "c") as third,
        ):
            async with Way().to(first) as way:
                second.ask("REPLICAOF", "127.0.0.1", str(first.port))
                third.ask("REPLICAOF", "127.0.0.1", str(way.port))
                await linked(second)
                await linked(third)
                load(first, 1)
                node = await started(live, second, **ANY)
                load(first, 2)
                await caught_up(live, first)
                await node.abort()
                load(first, 3, 50)
                node = await started(live, second, **ANY)
                topic = await caught_up(live, first)
                assert topic.resets.total() == 8, topic.resets
                other = await started(live, third, node_id="redis-2", **ANY)
                await awaiting(lambda: len(node.capture.outranked) == 8, 20, "the other to write")
                load(first, 4, 50)
                await asyncio.sleep(2)  # for more than the heartbeat and a second
                assert not other.capture.outranked
                assert len(node.metrics.problems()) == 1
                await caught_up(live, first)
                await other.stop()
                await node.stop()

                node = await started(live, second, **ANY)
                await caught_up(live, first)
                way.shut = True
                load(first, 5, 50)
                await caught_up(live, first)
                first.process.kill()
                third.ask("REPLICAOF", "NO", "ONE")
                second.ask("REPLICAOF", "127.0.0.1", str(third.port))
                load(third, 6, 50)
                topic = await caught_up(live, third)
                assert not topic.repeats
                second.ask("REPLICAOF", "NO", "ONE")
                load(second, 7, 50)
                topic = await caught_up(live, second)
                assert not topic.repeats
                await node.stop()

    run(live, work)


def test_a_server_that_comes_back_empty(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        load(server, 1)
        node = await started(live, server)
        await caught_up(live, server)
        server.restart()
        load(server, 2, 50)
        await caught_up(live, server)
        server.restart()
        topic = await caught_up(live, server)
        assert topic.entries == {}
        await node.stop()

    run(live, work)


def test_an_old_primary_that_lives_on_writes_nothing(live: LiveMemory, tmp_path: Path) -> None:
    async def work() -> None:
        with running("valkey", tmp_path / "a") as first, running("valkey", tmp_path / "b") as second:
            second.ask("REPLICAOF", "127.0.0.1", str(first.port))
            await linked(second)
            one = await started(live, first, node_id="redis-1", heartbeat_interval_ms="500")
            two = await started(live, second, node_id="redis-2", heartbeat_interval_ms="500")
            load(first, 1)
            await caught_up(live, first)
            second.ask("REPLICAOF", "NO", "ONE")
            load(second, 2, 100)
            await caught_up(live, second)
            for turn in range(10):
                load(first, 10 + turn, 50)
                load(second, 20 + turn, 50)
                await asyncio.sleep(0.2)  # for more than the heartbeat and a second, in all
            topic = await caught_up(live, second)
            assert topic.resets.total() == 8, topic.resets
            await one.stop()
            load(second, 3, 50)
            await caught_up(live, second)
            await two.stop()

    run(live, work)


@pytest.mark.parametrize("when", ["open", "closed", "reset"])
def test_databases_that_are_swapped(live: LiveMemory, server: Server, when: str) -> None:
    """Also while the connector is away, and while the rows of a reset are read."""

    async def work() -> None:
        load(server, 1)
        server.ask("SELECT", "1")
        server.ask("MSET", *(word for number in range(3000) for word in (f"o{number}", "v")))
        server.ask("SELECT", "0")
        node = await started(live, server)
        if when != "reset":
            await caught_up(live, server)
        if when == "closed":
            await node.abort()
        server.ask("SWAPDB", "0", "1")
        server.ask("SET", "one", "more")
        if when == "closed":
            node = await started(live, server)
        await caught_up(live, server)
        await node.stop()

    run(live, work)


def test_keys_that_are_not_captured_are_in_no_reset(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        keys = [b"\0deelog/x", b"\xff", b"k" * 990_000]
        for key in keys:
            server.ask("SET", key, "v")  # type: ignore[arg-type]
        server.ask("SET", "k", "v")
        node = await started(live, server)
        await awaiting(lambda: set(derived(live.records(CACHE))[0]) == {b"k"}, 20, "the reset")
        server.ask("XGROUP", "CREATE", "made", "g", "$", "MKSTREAM")
        server.ask("XGROUP", "CREATE", "made", "h", "$")
        await awaiting(lambda: set(derived(live.records(CACHE))[0]) == {b"k", b"made"}, 20, "the empty stream")
        await node.stop()

    run(live, work)


def test_more_changes_than_the_tape_holds(live: LiveMemory, server: Server) -> None:
    """What would free the tape lies behind what it holds: at the start, and where keys are read."""

    async def work() -> None:
        server.ask("CONFIG", "SET", "repl-backlog-size", "64mb")
        node = await started(live, server, max_queue_size="500", max_batch_size="100")
        await caught_up(live, server)
        await node.abort()
        pipeline = server.client.pipeline(transaction=False)
        for turn in range(3000):
            pipeline.incr(f"n{turn % 7}")
            pipeline.set(f"s{turn}", "v")
        pipeline.execute()
        node = await started(live, server, max_queue_size="500", max_batch_size="100")
        pipeline.execute()
        for turn in range(3000):
            pipeline.incr(f"n{turn % 7}")
        pipeline.execute()
        topic = await caught_up(live, server)
        assert topic.resets.total() == 8
        await node.stop()

    run(live, work)


def test_a_server_without_memory(live: LiveMemory, server: Server) -> None:
    """It queues no command then, not even one that reads."""

    async def work() -> None:
        load(server, 1)
        node = await started(live, server)
        await caught_up(live, server)
        server.ask("HSET", "h", *(word for number in range(100) for word in (f"f{number}", "v")))
        await caught_up(live, server)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        server.ask("HDEL", "h", "f1")
        server.ask("EXPIRE", "h", "1000")
        await caught_up(live, server)
        server.ask("CONFIG", "SET", "maxmemory", "0")
        await node.stop()

    run(live, work)


def test_a_server_that_is_busy(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        node = await started(live, server)
        load(server, 1)
        await caught_up(live, server)
        server.ask("CONFIG", "SET", "busy-reply-threshold", "1")
        script = "local t = redis.call('TIME')[1] + 2; while redis.call('TIME')[1] + 0 < t do end; return 1"
        await asyncio.to_thread(server.ask, "EVAL", script, "0")
        load(server, 2, 50)
        await caught_up(live, server)
        assert not node.failure.done()
        await node.stop()

    run(live, work)


def test_links_that_break_while_much_is_read(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        node = await started(live, server)
        fields = [word for number in range(3000) for word in (f"f{number}", "v" * 20)]
        for key in "abcd":
            server.ask("HSET", key, *fields)
        for turn in range(40):
            for key in "abcd":
                server.ask("HSET", key, "f1", str(turn))
            await asyncio.sleep(0.02)
            if turn % 4 == 0:
                server.ask("CLIENT", "KILL", "TYPE", "replica")
        await caught_up(live, server)
        assert not node.failure.done()
        await node.stop()

    run(live, work)


def test_a_server_that_is_shut_down_does_not_wait_for_it(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        node = await started(live, server)
        load(server, 1)
        await caught_up(live, server)
        began = time.monotonic()
        server.process.terminate()
        await asyncio.to_thread(server.process.wait, 30)
        assert time.monotonic() - began < 5, "its shutdown-timeout is ten seconds"
        await node.abort()

    run(live, work)


def test_a_stop_under_load_ends(live: LiveMemory, server: Server) -> None:
    async def work() -> None:
        node = await started(live, server)
        load(server, 1, 100)
        await caught_up(live, server)
        writes = True

        async def write() -> None:
            turn = 0
            while writes:
                turn += 1
                await asyncio.to_thread(load, server, turn, 5)

        writing = asyncio.ensure_future(write())
        began = time.monotonic()
        await node.stop()
        assert time.monotonic() - began < 15
        writes = False
        await writing
        node = await started(live, server)
        topic = await caught_up(live, server)
        assert topic.resets.total() == 8
        await node.stop()

    run(live, work)


def test_what_is_acknowledged_is_written_at_once(live: LiveMemory, tmp_path: Path) -> None:
    """A replica acknowledges each second by itself; the connector beside it has it do so when there is something."""

    async def work() -> None:
        with running("valkey", tmp_path / "a") as first, running("valkey", tmp_path / "b") as second:
            second.ask("REPLICAOF", "127.0.0.1", str(first.port))
            await linked(second)
            nodes = [await started(live, one, node_id=f"redis-{n}") for n, one in enumerate((first, second))]
            await caught_up(live, first)
            times = []
            for turn in range(20):
                began = time.monotonic()
                first.ask("SET", "k", f"v{turn}")
                await awaiting(lambda v=b"v%d" % turn: any(v in (r.value or b"") for r in live.records(CACHE)), 5, "it")  # type: ignore[misc]
                times.append(time.monotonic() - began)
            assert sorted(times)[10] < 0.4, sorted(times)
            for node in nodes:
                await node.stop()

    run(live, work)


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """INCR and ZADD are as if a module had them."""
    for name in (b"INCR", b"ZADD"):
        monkeypatch.delitem(commands.COMMANDS, name)
        monkeypatch.setattr(tape, "_KNOWN", tape._KNOWN - {name})


@pytest.mark.usefixtures("strange")
def test_of_a_command_that_is_not_known_the_server_says_which_keys_it_writes(
    live: LiveMemory, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        node = await started(live, server)
        server.ask("SET", "n", "41")
        server.ask("INCR", "n")
        server.ask("ZADD", "z", "1", "m")
        topic = await caught_up(live, server)
        assert topic.entries["n"] == '{"type":"string","value":"42"}'
        load(server, 1)
        assert not (await caught_up(live, server)).resets["unknown_command"]
        # The link is lost in the midst of it.
        server.ask("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")
        server.ask("INCR", "n")
        server.ask("CLIENT", "KILL", "TYPE", "REPLICA")
        load(server, 2)
        topic = await caught_up(live, server)
        assert set(topic.resets) == {"initial"}
        assert not topic.repeats
        await node.stop()

    with caplog.at_level("INFO", "deelog_interceptors.redis.node"):
        run(live, work)
    said = [message for message in caplog.messages if "is not known: the server is asked" in message]
    assert len(said) == len(set(said)) == 2


def test_the_least_rights_that_the_docs_give(live: LiveMemory, server: Server) -> None:
    server.ask(*least_rights())

    async def work() -> None:
        load(server, 1)
        node = await started(live, server, **AS_DEELOG)
        load(server, 2)
        await caught_up(live, server)
        await node.stop()
        load(server, 3)
        node = await started(live, server, **AS_DEELOG)
        topic = await caught_up(live, server)
        assert set(topic.resets) == {"initial"}
        await node.stop()

    run(live, work)
    assert server.ask("ACL", "LOG") == []


def test_a_right_that_is_taken_away_while_it_runs(live: LiveMemory, server: Server) -> None:
    server.ask(*least_rights())

    async def work() -> None:
        load(server, 1)
        node = await started(live, server, **AS_DEELOG)
        await caught_up(live, server)
        server.ask("ACL", "SETUSER", "deelog", "-role")
        load(server, 2)
        with pytest.raises(LinkError, match=r"NOPERM.*'role'"):
            await asyncio.wait_for(asyncio.shield(node.failure), 20)
        await node.stop()
        server.ask("ACL", "SETUSER", "deelog", "+role")
        node = await started(live, server, **AS_DEELOG)
        topic = await caught_up(live, server)
        assert set(topic.resets) == {"initial"}
        assert not topic.repeats
        await node.stop()

    run(live, work)


@pytest.mark.usefixtures("strange")
def test_where_the_server_does_not_say_which_keys_all_is_reset(live: LiveMemory, server: Server) -> None:
    server.ask("ACL", "SETUSER", "some", "on", ">word", "~*", "+@all", "-command|getkeysandflags")

    async def work() -> None:
        node = await started(live, server, redis_username="some", redis_password="word")
        await awaiting(lambda: node.connector.stats.resets["initial"] == 8, 20, "the first rows")
        server.ask("INCR", "n")
        await awaiting(lambda: node.connector.stats.resets["unknown_command"] == 8, 20, "a reset of each segment")
        assert read(live, CACHE).entries == {"n": '{"type":"string","value":"1"}'}
        await node.stop()

    run(live, work)


def test_a_command_that_is_not_known_may_write_to_another_database(live: LiveMemory, tmp_path: Path) -> None:
    """A server calls a renamed command by its new name in the stream."""
    renamed = ("--rename-command", "MOVE", "xmove", "--rename-command", "COPY", "xcopy")

    async def work() -> None:
        with running("valkey", tmp_path / "server", *renamed) as server:
            node = await started(live, server)
            server.ask("SET", "goes", "1")
            await caught_up(live, server)
            server.ask("xmove", "goes", "1")
            server.ask("SELECT", "1")
            server.ask("SET", "comes", "1")
            server.ask("xmove", "comes", "0")
            server.ask("xcopy", "goes", "copied", "DB", "0")
            topic = await caught_up(live, server)
            assert set(topic.entries) == {"comes", "copied"}
            assert not topic.resets["unknown_command"]
            await node.stop()

    run(live, work)


@pytest.mark.usefixtures("strange")
def test_a_command_of_very_many_keys_is_not_asked_for(
    live: LiveMemory, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deelog_interceptors.redis.node._MOST_LOOKED_UP", 3)

    async def work() -> None:
        node = await started(live, server)
        await awaiting(lambda: node.connector.stats.resets["initial"] == 8, 20, "the first rows")
        server.ask("INCR", "n")
        await caught_up(live, server)
        assert not node.connector.stats.resets["unknown_command"]
        server.ask("ZADD", "z", "1", "m")
        await awaiting(lambda: node.connector.stats.resets["unknown_command"] == 8, 20, "a reset of each segment")
        assert set(read(live, CACHE).entries) == {"n", "z"}
        await node.stop()

    run(live, work)
