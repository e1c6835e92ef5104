"""Connectors beside the nodes of real clusters, on a Kafka in memory: failover, resharding, and both."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from deelog_interceptors.redis import reading
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_interceptors.redis.link import LinkError
from deelog_interceptors.redis.node import RedisNode
from deelog_schemas.keys import slot_of
from tests.interceptors.cachetools.reading import Topic, read
from tests.interceptors.redis.clusters import SOME, TAGS, Cluster, cluster_of, is_up, load
from tests.interceptors.redis.servers import Server
from tests.interceptors.redis.test_node import CACHE, NODES, VALUES, content, run, started
from tests.support.memory import LiveMemory
from tests.support.topics import derived
from tests.support.waiting import awaiting

SLOTS = [slot_of(tag.encode()) for tag in TAGS]


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


def test_a_key_that_is_elsewhere_is_to_be_read_again(cluster: Cluster) -> None:
    """So is one that is on its way. What is here is read all the same, slot by slot."""
    load(cluster, 1)
    slot = SLOTS[0]
    source, target = cluster.owner(slot), cluster.other(slot)
    keys = source.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "100")
    cluster.move(slot, target, most=1)
    (gone,) = target.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "100")
    here = [tag for tag in TAGS[1:] if cluster.owner(slot_of(tag.encode())) is source]
    others = [key for tag in here for key in source.ask("CLUSTER", "GETKEYSINSLOT", str(slot_of(tag.encode())), "9")]
    far = f"{next(tag for tag in TAGS[1:] if tag not in here)}a:s".encode()

    async def work() -> None:
        client = Client(Address("127.0.0.1", source.port))
        await client.connect()
        found = await reading.read(client, [gone, far, *keys, *others], VALUES, True)
        assert set(found.changed) == {gone, far}
        assert {image.key for image in found.images} == {*keys, *others} - {gone}
        assert [image.offset for image in found.images] == sorted(image.offset for image in found.images)
        nothing = await reading.read(client, [gone], VALUES, True)
        assert (nothing.id, nothing.changed) == ("", [gone])
        listed = await reading.keys_of(client, [slot, *(slot_of(tag.encode()) for tag in here)], 16384, VALUES, True)
        assert {key for some in listed.values() for key in some} >= {*keys, *others} - {gone}
        await client.close()

    asyncio.run(work())


def test_where_segments_are_no_slots_it_says_so(live: LiveMemory, cluster: Cluster) -> None:
    async def work() -> None:
        with pytest.raises(LinkError, match=r"segments are slots: set segment\.count=16384"):
            await beside(live, cluster, 0, segment_count="256")
        for node in NODES:
            await node.abort()

    run(live, work)


def test_a_slot_that_goes_while_rows_are_read_holds_up_no_other(
    live: LiveMemory, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys were listed together with those of others, and are elsewhere from then on."""
    slot, listing = SLOTS[0], reading.keys_of
    source, target, moved = cluster.owner(slot), cluster.other(slot), list[int]()

    async def keys_of(client: Client, segments: Collection[int], *more: Any, **named: Any) -> dict[int, list[bytes]]:
        found = await listing(client, segments, *more, **named)
        if slot in segments and not moved:
            moved.append(len(segments))
            await asyncio.to_thread(cluster.move, slot, target)
        return found

    monkeypatch.setattr(reading, "keys_of", keys_of)

    async def work() -> None:
        load(cluster, 1)
        number = cluster.servers.index(source)
        nodes = [await beside(live, cluster, number)]
        await awaiting(lambda: nodes[0].connector.stats.resets["initial"] >= len(SOME) // 3 - 1, 20, "the others' rows")
        assert moved[0] > 1
        nodes += [await beside(live, cluster, other) for other in range(3) if other != number]
        await caught_up(live, cluster)
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
        for slot in SLOTS:
            for _ in range(2):  # there, and back
                cluster.move(slot, cluster.other(slot))
                done += 1
                await resets(live, done)
        topic = await caught_up(live, cluster)
        assert topic.resets == {"initial": len(SOME), "stream_lost": 2 * len(SLOTS)}
        assert topic.reasons["remove"] == deleted, "no key was deleted"
        load(cluster, 2)
        topic = await caught_up(live, cluster)
        assert topic.resets.total() == done
        for node in nodes:
            await node.stop()

    run(live, work)


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 5])
def test_a_move_that_is_taken_back(live: LiveMemory, cluster: Cluster, most: int) -> None:
    """It is reset, unless nothing of the slot came by meanwhile."""

    async def work() -> None:
        load(cluster, 1)
        nodes = [await beside(live, cluster, number) for number in range(3)]
        topic = await caught_up(live, cluster)
        done, deleted = topic.resets.total(), topic.reasons["remove"]
        slot = SLOTS[0]
        source, target = cluster.owner(slot), cluster.other(slot)
        giving = nodes[cluster.servers.index(source)]

        async def phase(wanted: str) -> None:
            await awaiting(lambda: giving.connector.core.phase(slot) == wanted, 10, f"its phase is {wanted}")

        cluster.move(slot, target, most=most)
        cluster.client.set(f"{TAGS[0]}meanwhile", "v")
        await phase("released")
        (stays,) = source.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "1")
        source.ask("DEL", stays)
        end = source.client.info("replication")["master_repl_offset"]
        await awaiting(lambda: giving.capture.tape.offset >= end, 10, "that it is read")
        cluster.abort(slot, source, target)
        await resets(live, done + 1)
        topic = await caught_up(live, cluster)
        assert topic.reasons["remove"] == deleted
        cluster.move(slot, target, most=0)
        await phase("released")
        source.ask("CLUSTER", "SETSLOT", str(slot), "STABLE")
        await phase("writing")
        cluster.abort(slot, source, target)
        load(cluster, 2)
        topic = await caught_up(live, cluster)
        assert topic.resets.total() in (done + 1, done + 2)  # Valkey's stream has SETSLOT
        for node in nodes:
            await node.stop()

    run(live, work)


@pytest.mark.slow
def test_slots_move_under_load(live: LiveMemory, cluster: Cluster) -> None:
    """And the connector of one of the two is killed in the midst of it."""

    async def work() -> None:
        nodes = [await beside(live, cluster, number) for number in range(3)]
        for turn in range(4):
            loads = asyncio.ensure_future(asyncio.to_thread(load, cluster, turn, 600))
            for slot in SLOTS:
                await asyncio.to_thread(cluster.move, slot, cluster.other(slot))
                if slot == SLOTS[2] and turn % 2:
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
        cluster.servers[0].process.wait(10)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_slots_that_move_at_once(live: LiveMemory, tmp_path: Path) -> None:
    """Valkey 9 copies a whole slot to its new node before that owns it, and deletes it afterwards where it was."""

    async def work() -> None:
        with cluster_of("valkey", tmp_path / "servers", 3, SOME) as cluster:
            nodes = [await beside(live, cluster, number) for number in range(6)]
            load(cluster, 1)
            topic = await caught_up(live, cluster)
            removed = topic.reasons["remove"]
            for slot in SLOTS:
                await asyncio.to_thread(cluster.move_at_once, slot, cluster.other(slot))
                await caught_up(live, cluster)
            await resets(live, topic.resets.total() + len(SLOTS))
            topic = await caught_up(live, cluster)
            assert topic.reasons["remove"] == removed
            loads = asyncio.ensure_future(asyncio.to_thread(load, cluster, 2, 600))
            for slot in SLOTS:
                await asyncio.to_thread(cluster.move_at_once, slot, cluster.other(slot))
            await loads
            await caught_up(live, cluster)
            for node in nodes:
                await node.stop()

    run(live, work)


@pytest.mark.slow
def test_a_slot_that_is_flushed_and_one_that_is_left_half_moved(live: LiveMemory, tmp_path: Path) -> None:
    """The other slots of the node go on, beside its replica too, though little is held; it stops at once."""

    async def work() -> None:
        with cluster_of("valkey", tmp_path / "servers", 3, SOME) as cluster:
            few = {"max_queue_size": "500", "max_batch_size": "100"}
            nodes = [await beside(live, cluster, number, **few) for number in range(6)]
            load(cluster, 1)
            await caught_up(live, cluster)
            cluster.owner(SLOTS[1]).ask("CLUSTER", "FLUSHSLOT", str(SLOTS[1]))
            await caught_up(live, cluster)
            slot, source = SLOTS[0], cluster.owner(SLOTS[0])
            number, target = cluster.servers.index(source), cluster.other(slot)
            target.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", cluster.name_of(source))
            writes = source.client.pipeline(transaction=False)
            for turn in range(20):
                writes.set(f"{TAGS[0]}x", str(turn))
            writes.execute_command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", cluster.name_of(target))  # type: ignore[no-untyped-call]
            writes.execute()
            other = next(tag for tag in TAGS[1:] if cluster.owner(slot_of(tag.encode())) is source)
            for turn in range(6):
                for key in range(300):
                    writes.set(f"{other}k{key % 20}", f"{turn}.{key}")
                writes.execute()
                await asyncio.sleep(0.1)
            wanted = (f"{other}k19".encode(), b'"5.299"')
            await awaiting(lambda: wanted[1] in _value(live, wanted[0]), 15, "the other slots")
            assert not any(node.capture.is_full() for node in nodes)
            began = asyncio.get_running_loop().time()
            await nodes[number].stop()
            assert asyncio.get_running_loop().time() - began < 15, "it does not wait for what is not its own"
            for node in nodes:
                if node is not nodes[number]:
                    await node.stop()

    run(live, work)


def _value(live: LiveMemory, key: bytes) -> bytes:
    entries, _ = derived(live.records(CACHE))
    return entries.get(key, b"")


@pytest.mark.slow
def test_a_primary_that_stands_and_goes_on(live: LiveMemory, cluster: Cluster) -> None:
    """Another one was elected meanwhile. Its connector stands with it, or does not."""

    async def work() -> None:
        nodes = [await beside(live, cluster, number) for number in range(6)]
        load(cluster, 1)
        await caught_up(live, cluster)
        process = cluster.servers[0].process
        process.send_signal(signal.SIGSTOP)
        others = [each for each in cluster.servers if each is not cluster.servers[0]]
        await awaiting(lambda: sum(each.ask("ROLE")[0] == b"master" for each in others) == 3, 20, "the failover")
        process.send_signal(signal.SIGCONT)
        await awaiting(cluster.is_settled, 20, "one view")
        load(cluster, 2)
        topic = await caught_up(live, cluster)
        assert topic.resets == {"initial": len(SOME)}
        for node in nodes:
            await node.stop()

    run(live, work)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2])  # any other one will do
def test_whatever_happens(live: LiveMemory, tmp_path: Path, seed: int) -> None:
    """Under load: slots move, connectors and servers are killed, shards are flushed, replicas are promoted."""
    chance = random.Random(seed)

    async def work() -> None:
        with cluster_of("valkey", tmp_path / "servers", 3, SOME) as cluster:
            nodes = [await beside(live, cluster, number) for number in range(6)]
            for turn in range(12):
                loads = asyncio.ensure_future(asyncio.to_thread(load, cluster, 100 * seed + turn, 400))
                for _ in range(chance.randint(1, 3)):
                    await happens(chance.randrange(6), cluster, nodes)
                await loads
                await awaiting(cluster.is_settled, 30, "one view")
            await caught_up(live, cluster)
            for node in nodes:
                await node.stop()

    async def happens(what: int, cluster: Cluster, nodes: list[RedisNode]) -> None:
        number = chance.randrange(6)
        match what:
            case 0 | 1:
                slot = chance.choice(SLOTS)
                await asyncio.to_thread(cluster.move if what else cluster.move_at_once, slot, cluster.other(slot))
            case 2:
                await nodes[number].abort()
                nodes[number] = await beside(live, cluster, number)
            case 3:
                await asyncio.to_thread(cluster.servers[number].restart)
                await awaiting(cluster.is_settled, 30, "one view")
            case 4:
                await asyncio.to_thread(chance.choice(cluster.primaries()).ask, "FLUSHALL")
            case _:
                replicas = [each for each in cluster.servers if each not in cluster.primaries()]
                if replicas and all(map(is_up, cluster.servers)):
                    await fail_over(cluster, chance.choice(replicas))

    run(live, work)
