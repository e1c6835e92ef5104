"""Why keys went: what real servers tell beside the stream, and what becomes of it in Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest
from redis.exceptions import OutOfMemoryError

from deelog_interceptors.redis import hints as module
from deelog_interceptors.redis import preflight
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.hints import Hints, lack
from deelog_interceptors.redis.link import LinkError, LinkLost
from deelog_interceptors.redis.node import RedisNode
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.header import Kind
from tests.interceptors.redis.servers import AS_DEELOG, Server, least_rights
from tests.interceptors.redis.servers import RIGHTS as PAGE
from tests.interceptors.redis.test_node import CACHE, caught_up, config_of, run, started
from tests.support.memory import LiveMemory
from tests.support.waiting import awaiting

EVENTS = ("CONFIG", "SET", "notify-keyspace-events", "Exe")
CODEC = JsonCodec(CACHE, "redis", "", "")
HEARS = {"redis_reasons": "notifications"}
RIGHTS = ("ACL", "SETUSER", "deelog", "&__keyevent@0__:expired", "&__keyevent@0__:evicted", "+hello", "+subscribe")


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made = Server(request.param, tmp_path / "server")
    yield made
    made.stop()


def expire(server: Server, *keys: str) -> None:
    """Each is put, and gone when this returns."""
    for key in keys:
        server.ask("SET", key, "v", "PX", "1")
    while server.ask("EXISTS", *keys):
        pass


async def begun(live: LiveMemory, server: Server, **more: str) -> RedisNode:
    """A connector whose first resets are done: what goes meanwhile is in none."""
    node = await started(live, server, **HEARS, **more)
    await awaiting(lambda: all(tape.is_open for tape in node.capture.tape.segments), 20, "the first resets")
    return node


async def hears(node: RedisNode) -> None:
    """Returns once it hears why keys go."""
    await awaiting(lambda: node.capture.heard_at is not None, 20, "why keys go")


async def told(live: LiveMemory, **expected: int) -> None:
    """As often Kafka says that a key went, and why."""

    def counts() -> dict[str, int]:
        records = [r for r in live.records(CACHE) if r.header.kind is Kind.CHANGE and r.value is not None]
        reasons = Counter(CODEC.decode_value(record.value).source["reason"] for record in records)  # type: ignore[arg-type]
        return {reason: number for reason, number in reasons.items() if reason}

    try:
        await awaiting(lambda: counts() == expected, 20, "every key that went")
    except TimeoutError:
        assert counts() == expected
        raise


def evict(server: Server) -> int:
    """Fills a server without room until keys had to go; how many."""
    used = int(server.client.info("memory")["used_memory"])
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    server.ask("CONFIG", "SET", "maxmemory", str(used + (8 << 20)))
    for number in range(3000):
        # It is full for a moment where those who read its stream are behind.
        with contextlib.suppress(OutOfMemoryError):
            server.ask("SET", f"e:{number}", "v" * 10_000)
    server.ask("CONFIG", "SET", "maxmemory", "0")
    return int(server.client.info("stats")["evicted_keys"])


def test_expiries_and_evictions_are_named(live: LiveMemory, server: Server) -> None:
    server.ask(*EVENTS)

    async def work() -> None:
        node = await begun(live, server)
        await hears(node)
        deleted = 300
        for number in range(deleted):
            server.ask("SET", f"d:{number}", "v")
            expire(server, f"x:{number % 7}")
            server.ask("DEL", f"d:{number}")
        await told(live, expire=deleted, remove=deleted)
        evicted = await asyncio.to_thread(evict, server)  # while the connector reads: what it has not read takes room
        assert evicted > 0
        await told(live, expire=deleted, remove=deleted, evict=evicted)
        topic = await caught_up(live, server)
        assert node.capture.tape.named == deleted + evicted
        assert set(topic.resets) == {"initial"}
        await node.stop()

    run(live, work)


def test_a_connection_that_breaks_loses_names_alone(live: LiveMemory, server: Server) -> None:
    server.ask(*EVENTS)

    async def work() -> None:
        node = await begun(live, server)
        await hears(node)
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        expire(server, "a", "b")
        await awaiting(lambda: node.capture.heard_at is None, 20, "nothing that is heard")
        await told(live, remove=2)
        await hears(node)
        expire(server, "a", "b")
        await told(live, remove=2, expire=2)
        await node.stop()

    run(live, work)


def test_a_link_that_breaks_alone(live: LiveMemory, server: Server) -> None:
    server.ask(*EVENTS)

    async def work() -> None:
        node = await begun(live, server)
        await hears(node)
        for turn in range(1, 6):
            server.ask("CLIENT", "KILL", "TYPE", "replica")
            server.ask("SET", "a", str(turn))
            await caught_up(live, server)
        await hears(node)
        expire(server, "a")
        await told(live, expire=1)
        await node.stop()

    run(live, work)


def test_what_went_before_is_not_told(server: Server) -> None:
    """A server that is full evicts a key for each command that it is asked."""
    server.ask(*EVENTS)

    async def work() -> None:
        pipeline = server.client.pipeline(transaction=False)
        for number in range(40_000):
            pipeline.set(f"e:{number}", "v" * 200)
        pipeline.execute()
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        server.ask("CONFIG", "SET", "maxmemory-eviction-tenacity", "0")
        used = int(server.client.info("memory")["used_memory"])
        server.ask("CONFIG", "SET", "maxmemory", str(used - (6 << 20)))
        hints = Hints(Address("127.0.0.1", server.port))
        await hints.open()
        assert hints._client.take_pushed() == []
        await hints.close()

    asyncio.run(work())


def test_a_server_that_tells_nothing(live: LiveMemory, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """`notify-keyspace-events` is empty, as a server has it at first."""

    async def work() -> None:
        node = await begun(live, server)
        await awaiting(lambda: node.capture.heard_at is not None, 20, "an answer")
        expire(server, "a")
        await told(live, remove=1)
        await node.stop()

    run(live, work)
    assert "notify-keyspace-events is '': set it to Exe" in caplog.text


def test_who_may_not_hear_it_captures_all_the_same(
    live: LiveMemory, server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ask(*EVENTS)
    server.ask(*least_rights())
    monkeypatch.setattr("deelog_interceptors.redis.node._HEAR_AGAIN_SECONDS", 0.1)

    async def work() -> None:
        node = await begun(live, server, **AS_DEELOG)
        expire(server, "a")
        await told(live, remove=1)
        server.ask(*RIGHTS)
        await hears(node)
        expire(server, "a")
        await told(live, remove=1, expire=1)
        await node.stop()

    run(live, work)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "ACL SETUSER" in r.message]
    assert "ACL SETUSER deelog &__keyevent@0__:expired &__keyevent@0__:evicted +hello +subscribe +config|get" in warning


def test_what_lies_between_two_looks(server: Server) -> None:
    server.ask(*EVENTS)

    async def work() -> None:
        hints = Hints(Address("127.0.0.1", server.port))
        begin = await hints.open()
        assert await hints.look() == (begin, {})
        expire(server, "a")
        expire(server, "a", "b")
        offset, found = await hints.look()
        assert offset >= begin  # a server without a replica does not count
        assert found == {b"a": ["expire", "expire"], b"b": ["expire"]}
        assert await hints.look() == (offset, {})
        server.ask("SELECT", "3")
        expire(server, "c")
        assert (await hints.look())[1] == {}, "of another database"
        await hints.close()
        with pytest.raises(LinkLost):
            await hints.look()

    asyncio.run(work())


def test_a_server_that_does_not_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.2)

    async def work() -> None:
        hints = Hints(Address("127.0.0.1", server.port))
        await hints.open()
        server.ask("CLIENT", "PAUSE", "2000", "ALL")
        with pytest.raises(LinkLost, match="has not answered"):
            await hints.look()
        await hints.close()

    asyncio.run(work())


def test_a_right_that_is_taken_away(server: Server) -> None:
    server.ask(*least_rights())
    server.ask(*RIGHTS)

    async def work() -> None:
        hints = Hints(Address("127.0.0.1", server.port, 0, "deelog", "secret"))
        await hints.open()
        assert hints.lacks == ""  # it may not ask
        server.ask("ACL", "SETUSER", "deelog", "-role")
        with pytest.raises(LinkError, match=r"ROLE was refused: NOPERM"):
            await hints.look()
        await hints.close()

    asyncio.run(work())


def test_more_than_is_kept_is_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ask(*EVENTS)
    monkeypatch.setattr("deelog_interceptors.redis.client.MOST_PUSHED", 3 * 101)

    async def work() -> None:
        hints = Hints(Address("127.0.0.1", server.port))
        await hints.open()
        expire(server, *"abcde")
        _, found = await hints.look()
        assert len(found) == 3
        expire(server, "f")
        assert (await hints.look())[1] == {b"f": ["expire"]}
        await hints.close()

    asyncio.run(work())


def test_what_validate_says_of_it(server: Server) -> None:
    given = config_of(server, **HEARS)
    assert any("notify-keyspace-events is '': set it to Exe" in line for line in preflight.lines(given))
    server.ask(*EVENTS)
    assert not any("notify-keyspace-events" in line for line in preflight.lines(given))
    server.ask(*least_rights())
    given = config_of(server, **HEARS, **AS_DEELOG)
    with pytest.raises(LinkError, match="does not tell why keys went: ACL SETUSER deelog &"):
        preflight.lines(given)
    server.ask(*RIGHTS)
    assert preflight.lines(given)


def test_the_page_has_these_rights() -> None:
    assert f"`{' '.join(RIGHTS[3:])} +config|get`" in PAGE.read_text()


@pytest.mark.parametrize("enough", ["AE", "Exe", "KExeg"])
def test_settings_with_which_all_is_told(enough: str) -> None:
    assert lack([b"notify-keyspace-events", enough.encode()]) == ""


@pytest.mark.parametrize("little", ["", "E", "Ex", "Ee", "Kxe", "AK"])
def test_settings_with_which_it_is_not(little: str) -> None:
    assert lack([b"notify-keyspace-events", little.encode()]).startswith(
        f"notify-keyspace-events is {little!r}: set it"
    )


def test_who_may_not_ask_for_the_setting_does_not_know() -> None:
    assert lack(hiredis.ReplyError("NOPERM")) == lack([]) == ""
