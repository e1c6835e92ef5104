"""Connectors beside the nodes of real clusters, on a Kafka in memory: failover, resharding, and both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from deelog_interceptors.redis.node import RedisNode
from deelog_schemas.keys import slot_of
from tests.interceptors.cachetools.reading import Topic, read
from tests.interceptors.redis.clusters import SOME, TAGS, Cluster, cluster_of, is_up, load
from tests.interceptors.redis.servers import Server
from tests.interceptors.redis.test_node import CACHE, content, run, started
from tests.support.memory import LiveMemory
from tests.support.topics import derived
from tests.support.waiting import awaiting


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with cluster_of(request.param, tmp_path / "servers", 3, SOME) as made:
        yield made


async def beside(live: LiveMemory, cluster: Cluster, number: int, **more: str) -> RedisNode:
    given = {"segment_count": "16384", "heartbeat_interval_ms": "500", **more}
    return await started(live, cluster.servers[number], node_id=f"redis-{number}", **given)


async def caught_up(live: LiveMemory, cluster: Cluster) -> Topic:
    expected: dict[str, str] = {}
    for server in cluster.primaries():
        expected.update(await content(server))

    def same() -> bool:
        entries, readers = derived(live.records(CACHE))
        found = {key.decode(): value.decode() for key, value in entries.items()}
        return found == expected and not any(reader.open for reader in readers.values())

    try:
        await awaiting(same, 30, "Kafka has what the cluster has")
    except TimeoutError:
        assert read(live, CACHE).entries == expected
        raise
    topic = read(live, CACHE)
    assert not topic.repeats
    return topic


def test_the_slots_of_all_shards(live: LiveMemory, cluster: Cluster) -> None:
    async def work() -> None:
        load(cluster, 1)
        nodes = [await beside(live, cluster, number) for number in range(6)]
        await caught_up(live, cluster)
        load(cluster, 2)
        topic = await caught_up(live, cluster)
        assert topic.resets == {"initial": len(SOME)}
        await nodes[0].abort()
        load(cluster, 3)
        nodes[0] = await beside(live, cluster, 0)
        load(cluster, 4)
        topic = await caught_up(live, cluster)
        assert topic.resets == {"initial": len(SOME)}
        for node in nodes:
            await node.stop()

    run(live, work)


async def resets(live: LiveMemory, number: int) -> None:
    """Waits until so many resets are complete, and no more."""

    def complete() -> int:
        return sum(len(reader.resets) for reader in derived(live.records(CACHE))[1].values())

    await awaiting(lambda: complete() >= number, 30, "a reset")
    assert complete() == number


def test_a_slot_that_moves_is_reset_alone(live: LiveMemory, cluster: Cluster) -> None:
    async def work() -> None:
        load(cluster, 1)
        nodes = [await beside(live, cluster, number) for number in range(3)]
        topic = await caught_up(live, cluster)
        done, deleted = topic.resets.total(), topic.reasons["remove"]
        for slot in (slot_of(tag.encode()) for tag in TAGS):
            for _ in range(2):  # there, and back
                target = next(each for each in cluster.servers[:3] if each is not cluster.owner(slot))
                cluster.move(slot, target)
                done += 1
                await resets(live, done)
        topic = await caught_up(live, cluster)
        assert topic.resets == {"initial": len(SOME), "stream_lost": 2 * len(TAGS)}
        assert topic.reasons["remove"] == deleted, "no key was deleted"
        load(cluster, 2)
        topic = await caught_up(live, cluster)
        assert topic.resets.total() == done
        for node in nodes:
            await node.stop()

    run(live, work)


@pytest.mark.parametrize("most", [0, 5])
def test_a_move_that_is_taken_back(live: LiveMemory, cluster: Cluster, most: int) -> None:
    async def work() -> None:
        load(cluster, 1)
        nodes = [await beside(live, cluster, number) for number in range(3)]
        topic = await caught_up(live, cluster)
        done, deleted = topic.resets.total(), topic.reasons["remove"]
        slot = slot_of(TAGS[0].encode())
        source = cluster.owner(slot)
        target = next(each for each in cluster.servers[:3] if each is not source)
        cluster.move(slot, target, most=most)
        cluster.client.set(f"{TAGS[0]}meanwhile", "v")
        await awaiting(lambda: any(node.connector.core.phase(slot) == "released" for node in nodes), 10, "its release")
        cluster.abort(slot, source, target)
        await resets(live, done + 1)
        topic = await caught_up(live, cluster)
        assert topic.reasons["remove"] == deleted
        load(cluster, 2)
        await caught_up(live, cluster)
        for node in nodes:
            await node.stop()

    run(live, work)


def test_slots_move_under_load(live: LiveMemory, cluster: Cluster) -> None:
    """And the connector of one of the two is killed in the midst of it."""

    async def work() -> None:
        nodes = [await beside(live, cluster, number) for number in range(3)]
        for turn in range(4):
            loads = asyncio.ensure_future(asyncio.to_thread(load, cluster, turn, 600))
            for tag in TAGS:
                slot = slot_of(tag.encode())
                target = next(each for each in cluster.servers[:3] if each is not cluster.owner(slot))
                await asyncio.to_thread(cluster.move, slot, target)
                if tag == TAGS[2] and turn % 2:
                    await nodes[0].abort()
                    nodes[0] = await beside(live, cluster, 0)
            await loads
            await caught_up(live, cluster)
        for node in nodes:
            await node.stop()

    run(live, work)


def test_a_primary_is_killed(live: LiveMemory, cluster: Cluster) -> None:
    async def work() -> None:
        nodes = [await beside(live, cluster, number) for number in range(6)]
        load(cluster, 1)
        await caught_up(live, cluster)
        cluster.servers[0].process.kill()
        await nodes[0].abort()
        await awaiting(cluster.is_settled, 20, "the failover")
        load(cluster, 2)
        topic = await caught_up(live, cluster)
        assert topic.resets == {"initial": len(SOME)}
        assert topic.reasons["correct"] == 0
        for node in nodes[1:]:
            await node.stop()

    run(live, work)


async def fail_over(cluster: Cluster, replica: Server) -> None:
    """Redis takes one back that follows another within two `cluster-node-timeout`."""
    for _ in range(5):
        await asyncio.to_thread(replica.ask, "CLUSTER", "FAILOVER")
        with contextlib.suppress(TimeoutError):
            await awaiting(lambda: replica in cluster.primaries() and cluster.is_settled(), 4, "the failover")
            return
    raise TimeoutError("no failover")


def test_failovers_by_hand(live: LiveMemory, cluster: Cluster) -> None:
    async def work() -> None:
        nodes = [await beside(live, cluster, number) for number in range(6)]
        load(cluster, 1)
        await caught_up(live, cluster)
        for turn in range(4):
            loads = asyncio.ensure_future(asyncio.to_thread(load, cluster, 10 + turn, 300))
            await awaiting(lambda: len(cluster.primaries()) == 3 and all(map(is_up, cluster.servers)), 20, "all links")
            await fail_over(cluster, next(each for each in cluster.servers[0::3] if each not in cluster.primaries()))
            await loads
            topic = await caught_up(live, cluster)
        assert topic.resets == {"initial": len(SOME)}
        for node in nodes:
            await node.stop()

    run(live, work)
