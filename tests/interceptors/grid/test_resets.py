"""Killed owners under each `reset.strategy`; a consumer that does not know resets reads their topic."""

from __future__ import annotations

import signal

import pytest
from redis.cluster import RedisCluster

from deelog_connector.core.reset_strategy import Strategy
from deelog_proof.simulation.stock_consumer import StockConsumer
from tests.interceptors.grid.clients import SEGMENTS
from tests.interceptors.grid.cluster import Grid, eventually
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic


def written(grid: Grid) -> None:
    """Waits until all acknowledged writes are in Kafka and every reset has ended."""
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), 60, "everything written")


def put(grid: Grid, count: int, value: str) -> None:
    """Writes the first keys with a new client, and waits until all are in Kafka."""
    client = grid.client()
    for number in range(count):
        client.set(f"k{number}", value)
    written(grid)
    client.close()


def again(grid: Grid, *names: str) -> None:
    """Restarts nodes that were killed."""
    for name in names:
        grid.nodes[name].start()
    for name in names:
        grid.nodes[name].wait()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Strategy.MARKER, Strategy.TOMBSTONES])
def test_what_a_stock_consumer_holds_after_all_owners_were_killed(
    grid: Grid, kafka: Broker, prefix: str, strategy: Strategy
) -> None:
    grid.config |= {"reset.strategy": strategy, "incremental.snapshot.chunk.size": "3"}
    grid.start(2)
    put(grid, 300, "old")
    for node in grid.live():
        node.kill()
    again(grid, "n1")
    # Killed while a reset is open and others are waiting. If it is faster than that, the result is the same.
    eventually(lambda: sum(grid.nodes["n1"].stats()["resets"].values()), 60, "a reset")
    grid.nodes["n1"].kill()
    again(grid, "n1", "n2")
    grid.complete(2)
    client = grid.client()
    for number in range(100):
        client.set(f"k{number}", "new")
    written(grid)
    cached = {f"k{n}".encode(): b"new" for n in range(100)}
    check(kafka, prefix, strategy, cached, {f"k{n}".encode() for n in range(100, 300)})
    assert client.flushall(target_nodes=RedisCluster.PRIMARIES)
    client.set("k7", "last")
    written(grid)
    check(kafka, prefix, strategy, {b"k7": b"last"}, {f"k{n}".encode() for n in range(300)} - {b"k7"})
    client.close()


def test_a_node_of_initial_only_ends_by_itself(grid: Grid, kafka: Broker, prefix: str) -> None:
    node = grid.node("n1", snapshot_mode="initial_only")
    node.start()
    assert node.ended(60) == 0, node.log
    _, readers = derived(read_topic(kafka.bootstrap, f"{prefix}.c"))
    assert [reader.resets for reader in readers.values()] == [["initial"]] * int(grid.config["segment.count"])


def test_always_sends_a_segment_to_whoever_takes_it_over_for_the_first_time(
    grid: Grid, kafka: Broker, prefix: str
) -> None:
    """A clean handover, where nothing is lost: no other mode would send anything."""
    grid.config |= {"snapshot.mode": "always"}
    grid.start(2)
    put(grid, 200, "old")
    handed = [s for s in range(SEGMENTS) if grid.nodes["n1"].dump(s)[0] == "primary"]
    grid.nodes["n1"].signal(signal.SIGTERM)
    assert grid.nodes["n1"].ended() == 0
    grid.complete(1)
    put(grid, 100, "new")
    content, readers = derived(read_topic(kafka.bootstrap, f"{prefix}.c"))
    assert content == {f"k{n}".encode(): b"new" if n < 100 else b"old" for n in range(200)}
    assert 0 < len(handed) < SEGMENTS
    assert {s: reader.resets for s, reader in readers.items()} == {
        s: ["initial", "snapshot"] if s in handed else ["initial"] for s in range(SEGMENTS)
    }


def test_every_segment_is_sent_again_once_in_the_interval(grid: Grid, kafka: Broker, prefix: str) -> None:
    grid.config |= {"reset.interval.ms": "4000"}
    # `start` would wait until everything is written, but on a slow machine there is always an open reset.
    node = grid.nodes["n1"] = grid.node("n1")
    node.start()
    node.wait()
    grid.complete(1)
    client = grid.client()
    for number in range(200):
        client.set(f"k{number}", "v")

    def rounds() -> int:
        readers = derived(read_topic(kafka.bootstrap, f"{prefix}.c"))[1]
        return min(reader.resets.count("interval") for reader in readers.values())

    def writing(least: int) -> bool:
        for number in range(0, 200, 7):
            client.set(f"k{number}", "w")
        return rounds() >= least

    eventually(lambda: writing(2), 120, "two rounds")
    client.close()
    # At rest: while a topic is written to, its partitions are read at slightly different times.
    node.signal(signal.SIGTERM)
    assert node.ended() == 0
    content, readers = derived(read_topic(kafka.bootstrap, f"{prefix}.c"))
    assert content == {f"k{n}".encode(): b"v" if n % 7 else b"w" for n in range(200)}
    counts = [reader.resets.count("interval") for reader in readers.values()]
    assert max(counts) - min(counts) <= 1, "each has its turn before another has two"
    assert all(set(reader.resets) == {"initial", "interval"} for reader in readers.values())


def check(kafka: Broker, prefix: str, strategy: Strategy, cached: dict[bytes, bytes], lost: set[bytes]) -> None:
    """The stock consumer has the cache's entries; under `marker` it also keeps the lost ones, and nothing else."""
    records = read_topic(kafka.bootstrap, f"{prefix}.c")
    content, readers = derived(records)
    assert content == cached
    assert sum(reader.repeats for reader in readers.values()) == 0
    stock = StockConsumer()
    for record in records:
        stock.apply(record.key, record.value)
    held = {key: value for key, (value, _) in stock.content.items()}
    if strategy.takes_back:
        assert held == cached
    else:
        assert cached.items() <= held.items()
        assert held.keys() - cached.keys() == lost
