"""Servers that Sentinels watch, real ones; connectors beside the servers, on a Kafka in memory.

Bad input: Sentinels that are away, disagree, do not know the primary's name, want a password, are none; a primary that
lives on when another one was promoted.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis

from deelog_connector.devkafka.ports import HOST, free_ports
from deelog_interceptors.redis import preflight
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.link import LinkError
from deelog_interceptors.redis.node import RedisNode
from deelog_interceptors.redis.sentinels import NOBODY, Named, Sentinels, majority, named_in
from tests.interceptors.cachetools.reading import read
from tests.interceptors.redis.servers import Sentinel, Server
from tests.interceptors.redis.test_metrics import reasons, shown
from tests.interceptors.redis.test_node import CACHE, caught_up, config_of, load, run, started
from tests.support.memory import LiveMemory
from tests.support.waiting import awaiting

A, B = Named("a" * 40, "10.0.0.1:7001"), Named("b" * 40, "10.0.0.2:7001")
A_BY_NAME = A._replace(at="cache-1.example:7001")


@pytest.mark.parametrize(
    ("said", "count", "found"),
    [
        ([], 1, None),
        ([A], 1, A),
        ([A], 2, None),
        ([A, A], 3, A),
        ([A, B, A], 3, A),
        ([A, B], 3, None),
        ([A, A, B, B], 4, None),
        ([B, A, A_BY_NAME], 3, A_BY_NAME),
    ],
)
def test_more_than_half_of_all_say_one_thing(said: list[Named], count: int, found: Named | None) -> None:
    assert majority(said, count) == (found, 0 if found is None else sum(each.run_id == found.run_id for each in said))


def test_without_a_majority_only_what_is_written_goes_on() -> None:
    said = Sentinels("mymaster", [])
    said.named, said.agreeing = A, 2
    assert [said.names(who.run_id, writes) for who in (A, B) for writes in (False, True)] == [True, True, False, False]
    said.agreeing = 0
    assert [said.names(who.run_id, writes) for who in (A, B) for writes in (False, True)] == [False, True, False, False]


WORDS = [b"name", b"mymaster", b"ip", b"10.0.0.1", b"port", b"7001", b"runid", b"a" * 40]


def test_what_a_sentinel_says() -> None:
    assert named_in(WORDS) == A
    assert named_in([*WORDS[:7], b""]) == "it has not reached 10.0.0.1:7001 yet"
    assert named_in(hiredis.ReplyError("ERR No such master with that name")) == "ERR No such master with that name"
    for broken in (b"OK", [], WORDS[:-1], WORDS[:-2], [*WORDS[:-1], b"\xff"], [*WORDS[:-1], 1], [1, 2], None):
        assert str(named_in(broken)).startswith("this is no Sentinel: ")


class Watched:
    """A primary, a replica and three Sentinels."""

    def __init__(self, name: str, folder: Path, stack: ExitStack) -> None:
        self.servers = [Server(name, folder / f"server{number}") for number in range(2)]
        for server in self.servers:
            stack.callback(server.stop)
        self.servers[1].ask("REPLICAOF", HOST, str(self.servers[0].port))
        self.sentinels = [Sentinel(name, folder / f"sentinel{n}", self.servers[0].port) for n in range(3)]
        for sentinel in self.sentinels:
            stack.callback(sentinel.stop)

    @property
    def fields(self) -> dict[str, str]:
        """Of a connector."""
        places = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return {"redis_sentinels": places, "redis_sentinel_master": "mymaster", "heartbeat_interval_ms": "500"}

    def agree(self, primary: Server, replica: Server) -> bool:
        """Whether every Sentinel names that primary, and could promote that replica."""
        for sentinel in self.sentinels:
            if sentinel.process.poll() is not None:
                continue
            known: Any = sentinel.client.sentinel_master("mymaster")
            named = known["port"], known["runid"], known["num-other-sentinels"]
            if named != (primary.port, primary.client.info("server")["run_id"], len(self.sentinels) - 1):
                return False
            replicas = {each["port"]: each["flags"] for each in sentinel.client.sentinel_slaves("mymaster")}
            if replicas.get(replica.port) != "slave":
                return False
        return str(replica.client.info("replication").get("master_link_status")) == "up"

    async def settled(self, primary: Server, replica: Server) -> None:
        """Until they agree."""
        await awaiting(lambda: self.agree(primary, replica), 30, "what all Sentinels say")

    async def failover(self, primary: Server, replica: Server) -> None:
        """By hand. A Sentinel gives it up where a server does not answer for a moment, also after it was promoted."""

        def done() -> bool:
            if self.agree(primary, replica):
                return True
            if primary.client.role()[0] != b"master":
                with suppress(redis.ResponseError):  # one is in progress, or there is no good replica now
                    self.sentinels[0].ask("SENTINEL", "FAILOVER", "mymaster")
            return False

        await awaiting(done, 60, "a failover by hand")

    def signal(self, number: signal.Signals) -> None:
        """Sends it to all Sentinels."""
        for sentinel in self.sentinels:
            sentinel.process.send_signal(number)

    async def promoted(self, server: Server) -> None:
        await awaiting(lambda: server.client.role()[0] == b"master", 30, "a replica to be promoted")


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(request.param, tmp_path, stack)


@pytest.mark.slow
def test_the_replica_that_the_sentinels_promote_is_written_by_its_connector(live: LiveMemory, watched: Watched) -> None:
    """After a kill -9, and by hand. A connector is no replica that could be promoted."""

    async def work() -> None:
        first, second = watched.servers
        await watched.settled(first, second)
        nodes = [await started(live, s, node_id=f"redis-{n}", **watched.fields) for n, s in enumerate((first, second))]
        load(first, 1)
        await caught_up(live, first)
        first.stop()
        await watched.promoted(second)
        load(second, 2)
        topic = await caught_up(live, second)
        assert topic.resets.total() == 8, topic.resets
        first.restart()
        await watched.settled(second, first)
        load(second, 3)
        await caught_up(live, second)
        await watched.failover(first, second)
        load(first, 4)
        topic = await caught_up(live, first)
        # The second one lives on until it is told: positions renewed meanwhile may say more than the first one has.
        assert set(topic.resets) <= {"initial", "stream_lost"}
        assert not topic.repeats
        for node in nodes:
            await node.stop()

    run(live, work)


@pytest.mark.slow
def test_a_primary_that_lives_on_when_another_was_promoted_is_not_written(live: LiveMemory, watched: Watched) -> None:
    """Neither by the connector that was there nor by one that is started anew, and it says so."""

    async def work() -> None:
        first, second = watched.servers
        await watched.settled(first, second)
        one = await started(live, first, node_id="redis-0", **watched.fields)
        two = await started(live, second, node_id="redis-1", **watched.fields)
        load(first, 1)
        await caught_up(live, first)
        first.process.send_signal(signal.SIGSTOP)
        await watched.promoted(second)
        load(second, 2)
        await caught_up(live, second)
        said = one.sentinels
        assert said is not None
        await awaiting(lambda: said.named.at == f"{HOST}:{second.port}", 20, "what the Sentinels say now")
        watched.signal(signal.SIGSTOP)  # else they tell the first one within seconds
        first.process.send_signal(signal.SIGCONT)
        await awaiting(lambda: one.capture.view.is_primary and not one.capture.view.writes, 20, "its view")
        load(first, 3)
        with shown(one) as port:
            (reason,) = await reasons(port)
        assert reason.startswith(f"{one.address} says that it is primary: ")
        await awaiting(lambda: said.problem, 20, "that no Sentinel answers")
        assert one.metrics.problems() == [f"{one.address} says that it is primary: {said.problem}"]
        assert "no majority of 3 Sentinels" in said.problem
        await one.stop()
        again = await started(live, first, node_id="redis-0", **watched.fields)
        load(first, 4)
        await asyncio.sleep(2)  # what shall not be claimed has the time to be
        assert not again.capture.view.writes
        load(second, 5)
        topic = await caught_up(live, second)
        assert topic.resets.total() == 8, topic.resets
        assert not topic.repeats
        watched.signal(signal.SIGCONT)
        await again.stop()
        await two.stop()

    run(live, work)


@pytest.mark.slow
def test_a_connector_cannot_be_promoted(live: LiveMemory, watched: Watched) -> None:
    async def work() -> None:
        first, second = watched.servers
        await watched.settled(first, second)
        node = await started(live, first, **watched.fields)
        await caught_up(live, first)
        sentinel: Any = watched.sentinels[0].client
        await awaiting(lambda: first.client.info("replication")["connected_slaves"] == 2, 20, "the link to be known")
        begin = time.monotonic()

        def flags() -> list[str]:
            return sorted(each["flags"] for each in sentinel.sentinel_slaves("mymaster"))

        def has_looked() -> bool:
            return bool(sentinel.sentinel_master("mymaster")["info-refresh"] / 1000 < time.monotonic() - begin - 0.5)

        await awaiting(has_looked, 30, "the Sentinel to look for replicas")
        assert flags() == ["slave"]
        second.stop()
        await awaiting(lambda: "s_down" in flags()[0], 20, "no replica that is good")
        with pytest.raises(redis.exceptions.ResponseError, match="NOGOODSLAVE"):
            watched.sentinels[0].ask("SENTINEL", "FAILOVER", "mymaster")
        await node.stop()

    run(live, work)


def test_without_a_majority_nothing_is_claimed_and_what_is_written_goes_on(
    live: LiveMemory, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        first, second = watched.servers
        await watched.settled(first, second)
        for sentinel in watched.sentinels[1:]:
            sentinel.process.send_signal(signal.SIGSTOP)
        load(first, 1)
        node = await started(live, first, **watched.fields)
        await asyncio.sleep(1)  # what shall not be claimed has the time to be
        assert node.capture.view.is_primary
        assert not node.capture.view.writes
        assert read(live, CACHE).resets == {}
        warned = "no majority of 3 Sentinels names a primary of mymaster"
        await awaiting(lambda: warned in caplog.text, 20, "a warning")
        watched.sentinels[2].process.send_signal(signal.SIGCONT)
        await caught_up(live, first)
        assert "a majority of Sentinels names" in caplog.text
        said = node.sentinels
        assert said is not None
        await awaiting(lambda: said.agreeing == 2, 20, "two that agree")
        watched.signal(signal.SIGSTOP)
        await awaiting(lambda: said.agreeing == 0, 20, "none that agree")
        load(first, 2)
        topic = await caught_up(live, first)
        assert topic.resets.total() == 8
        assert node.metrics.problems() == []
        found = {family.name: family.samples for family in node.metrics.figures()}
        assert [value for _, value in found["deelog_stream_agreeing_sentinels"]] == [0]
        first.ask("REPLICAOF", HOST, str(second.port))
        await awaiting(lambda: not node.capture.view.is_primary, 20, "a replica")
        first.ask("REPLICAOF", "NO", "ONE")
        await awaiting(lambda: node.capture.view.is_primary, 20, "a primary again")
        assert not node.capture.view.writes, "it would begin"
        watched.signal(signal.SIGCONT)
        await node.stop()

    caplog.set_level(logging.INFO)
    run(live, work)


async def looked(*addresses: Address, master: str = "mymaster") -> Sentinels:
    found = Sentinels(master, addresses)
    await found.look()
    await found.close()
    return found


def test_why_a_sentinel_says_nothing(tmp_path: Path) -> None:
    (closed,) = free_ports(1)
    with ExitStack() as stack:
        server = Server("valkey", tmp_path / "server")
        stack.callback(server.stop)
        sentinel = Sentinel("valkey", tmp_path / "sentinel", server.port, 1, password="word")
        stack.callback(sentinel.stop)

        def problem(port: int, password: str | None = "word", master: str = "mymaster") -> str:
            found = asyncio.run(looked(Address(HOST, port, password=password), master=master))
            assert (found.named, found.agreeing) == (NOBODY, 0)
            prefix = f"no majority of 1 Sentinels names a primary of {master} ({HOST}:{port}: "
            assert found.problem.startswith(prefix)
            return found.problem.removeprefix(prefix)

        assert "No such master with that name" in problem(sentinel.port, master="other")
        assert "NOAUTH" in problem(sentinel.port, None)
        assert "AUTH was refused: WRONGPASS" in problem(sentinel.port, "other")
        assert "unknown command" in problem(server.port, None)
        sentinel.ask("ACL", "SETUSER", "asks", "on", ">other", "+sentinel|master")
        found = asyncio.run(looked(Address(HOST, sentinel.port, 0, "asks", "other")))
        assert (found.named.at, found.agreeing, found.problem) == (f"{HOST}:{server.port}", 1, "")
        assert "does not answer" in problem(closed)
        sentinel.process.send_signal(signal.SIGSTOP)
        assert problem(sentinel.port) == "no answer in time)"


def test_a_sentinel_is_no_server(live: LiveMemory, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = Server("valkey", tmp_path / "server")
        stack.callback(server.stop)
        sentinel = Sentinel("valkey", tmp_path / "sentinel", server.port, 1)
        stack.callback(sentinel.stop)
        with pytest.raises(LinkError, match=r"if it is a Sentinel, name it in redis\.sentinels"):
            preflight.lines(config_of(sentinel))

        async def work() -> None:
            node = RedisNode(config_of(sentinel), live.port)
            with pytest.raises(LinkError, match=r"if it is a Sentinel, name it in redis\.sentinels"):
                await node.start()
            await node.abort()

        run(live, work)


def test_validate_connect_asks_the_sentinels(watched: Watched) -> None:
    first, second = watched.servers
    asyncio.run(watched.settled(first, second))
    line = f"  3 Sentinels name {HOST}:{first.port} as primary of mymaster"
    assert preflight.lines(config_of(first, **watched.fields))[1] == line
    assert preflight.lines(config_of(second, **watched.fields))[1] == line
    other = {**watched.fields, "redis_sentinel_master": "other"}
    with pytest.raises(LinkError, match="no majority of 3 Sentinels names a primary of other"):
        preflight.lines(config_of(first, **other))
