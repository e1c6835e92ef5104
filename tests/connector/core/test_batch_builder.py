"""What one transaction holds, and in which order."""

from __future__ import annotations

from deelog_connector.core.reset_strategy import Strategy
from deelog_schemas.header import Kind
from tests.connector.world import (
    SEGMENTS,
    World,
    key_of,
    started,
)


def test_a_coalesced_run_is_in_one_transaction() -> None:
    world, (n0, _) = started(batch=2)
    for i in range(9):
        world.put(key_of(0, i % 4), b"%d" % i)
    n0.core.coalesce(0)
    n0.step()
    n0.step()
    assert [r.header.sequence for r in world.records(0) if r.header.kind is Kind.CHANGE] == [6, 7, 8, 9]


def test_clear_is_a_begin_and_an_end_with_its_position() -> None:
    world, _ = started()
    world.put(key_of(0), b"a")
    operation = world.clear(0)
    world.put(key_of(0), b"b")
    world.settle()
    assert world.reader(0).resets == ["initial", "clear"]
    ends = [r.header.position for r in world.records(0) if r.header.kind is Kind.RESET_END]
    assert ends[-1] == operation.position
    world.check()


def test_keys_are_read_of_one_partition_at_a_time() -> None:
    world = World(1, strategy=Strategy.TOMBSTONES)
    node = world.nodes["n0"]
    world.own_all(node)
    gathering = []
    for _ in range(60):
        world.now += 0.1
        node.step()
        gathering.append({s.partition for s in node.core.primaries() if s.collects_keys})
    assert max(map(len, gathering)) == 1
    assert {p for found in gathering for p in found} == {0, 1}
    assert {node.core.phase(s) for s in range(SEGMENTS)} == {"writing"}
