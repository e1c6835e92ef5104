"""Killed owners under each `reset.strategy`; a consumer that does not know resets reads their topic."""

from __future__ import annotations

import signal

import pytest

from deelog_connector.core.reset_strategy import Strategy
from deelog_proof.simulation.stock_consumer import StockConsumer
from tests.interceptors.grid.in_memory import SEGMENTS, Grid
from tests.support.topics import derived


@pytest.mark.parametrize("strategy", [Strategy.MARKER, Strategy.TOMBSTONES])
def test_what_a_stock_consumer_holds_after_all_owners_were_killed(memory_grid: Grid, strategy: Strategy) -> None:
    grid = memory_grid
    grid.config |= {"reset.strategy": strategy, "incremental.snapshot.chunk.size": "3"}
    grid.start(2)
    grid.put(300, "old")
    for node in grid.live():
        node.signal(signal.SIGKILL)
    grid.again("n1")
    # Killed while a reset is open and others are waiting. If it is faster than that, the result is the same.
    grid.eventually(lambda: sum(grid.nodes["n1"].stats()["resets"].values()), 60, "a reset")
    grid.nodes["n1"].signal(signal.SIGKILL)
    grid.again("n1", "n2")
    grid.complete(2)
    grid.put(100, "new")
    cached = {f"k{n}".encode(): b"new" for n in range(100)}
    check(grid, strategy, cached, {f"k{n}".encode() for n in range(100, 300)})
    client = grid.client()
    for node in grid.live():
        assert grid.reply(client.send(node, "FLUSHALL")) == b"OK"
    client.set("k7", "last")
    grid.written()
    check(grid, strategy, {b"k7": b"last"}, {f"k{n}".encode() for n in range(300)} - {b"k7"})


def test_a_node_of_initial_only_ends_by_itself(memory_grid: Grid) -> None:
    grid = memory_grid
    node = grid.node("n1", snapshot_mode="initial_only")
    node.start()
    assert node.ended() is None
    _, readers = derived(grid.changes())
    assert [reader.resets for reader in readers.values()] == [["initial"]] * SEGMENTS


def test_always_sends_a_segment_to_whoever_takes_it_over_for_the_first_time(memory_grid: Grid) -> None:
    """A clean handover, where nothing is lost: no other mode would send anything."""
    grid = memory_grid
    grid.config |= {"snapshot.mode": "always"}
    grid.start(2)
    grid.put(200, "old")
    handed = [s for s in range(SEGMENTS) if grid.nodes["n1"].dump(s)[0] == "primary"]
    grid.nodes["n1"].signal(signal.SIGTERM)
    assert grid.nodes["n1"].ended() is None
    grid.complete(1)
    grid.put(100, "new")
    content, readers = derived(grid.changes())
    assert content == {f"k{n}".encode(): b"new" if n < 100 else b"old" for n in range(200)}
    assert 0 < len(handed) < SEGMENTS
    assert {s: reader.resets for s, reader in readers.items()} == {
        s: ["initial", "snapshot"] if s in handed else ["initial"] for s in range(SEGMENTS)
    }


def test_every_segment_is_sent_again_once_in_the_interval(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.config |= {"reset.interval.ms": "4000"}
    node = grid.join("n1")
    grid.complete(1)
    client = grid.client()
    for number in range(200):
        client.set(f"k{number}", "v")

    def rounds() -> int:
        readers = derived(grid.changes())[1]
        return min(reader.resets.count("interval") for reader in readers.values())

    def writing(least: int) -> bool:
        for number in range(0, 200, 7):
            client.set(f"k{number}", "w")
        return rounds() >= least

    grid.eventually(lambda: writing(2), 120, "two rounds")
    node.signal(signal.SIGTERM)
    assert node.ended() is None
    content, readers = derived(grid.changes())
    assert content == {f"k{n}".encode(): b"v" if n % 7 else b"w" for n in range(200)}
    counts = [reader.resets.count("interval") for reader in readers.values()]
    assert max(counts) - min(counts) <= 1, "each has its turn before another has two"
    assert all(set(reader.resets) == {"initial", "interval"} for reader in readers.values())


def check(grid: Grid, strategy: Strategy, cached: dict[bytes, bytes], lost: set[bytes]) -> None:
    """The stock consumer has the cache's entries; under `marker` it also keeps the lost ones, and nothing else."""
    records = grid.changes()
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
