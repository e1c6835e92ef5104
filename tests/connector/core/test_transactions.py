"""Transactions: what is written when, and how a refused record is found."""

from __future__ import annotations

import pytest

from deelog_schemas.header import Kind
from tests.connector.world import (
    SEGMENTS,
    key_of,
    started,
)


def test_acknowledged_operations_are_written_in_order_and_pruned_by_the_backup() -> None:
    world, (_, n1) = started()
    for i in range(10):
        world.put(key_of(0, i % 3), b"v%d" % i)
    assert len(n1.core.operations_after(0, 0) or []) == 10
    world.settle()
    changes = [r.header.sequence for r in world.records(0) if r.header.kind is Kind.CHANGE]
    assert changes == list(range(1, 11))
    assert n1.core.complete_from(0) == 11
    world.check()


def test_what_is_not_acknowledged_is_not_written() -> None:
    world, (n0, _) = started()
    world.put(key_of(0), b"a", acked=False)
    world.settle()
    assert n0.core.written(0) == 0
    world.ack(0)
    world.settle()
    assert n0.core.written(0) == 1


def test_a_paused_primary_writes_nothing_and_loses_nothing() -> None:
    world, (n0, n1) = started()
    n0.core.paused = True
    for i in range(10):
        world.put(key_of(0, i), b"v%d" % i)
    world.settle()
    assert n0.core.written(0) == 0
    world.own(1, n1)  # a takeover goes on elsewhere, and waits on a node that is paused
    n0.core.paused = False
    world.settle()
    assert n0.core.written(0) == 10
    world.check()


@pytest.mark.parametrize("beside", ["another reset", "writes"])
def test_a_refused_row_of_a_reset_stops_its_segment_alone(beside: str) -> None:
    """Its rows come a chunk at a time, after begin and scan; what others write meanwhile proves nothing."""
    world, (n0, _) = started(batch=2)
    for number in range(6):
        world.put(key_of(1, number), b"v")
    world.put(key_of(0), b"bad")
    world.settle()
    world.broker.refuse.add(n0.encoder._codec.key(key_of(0)))
    n0.core.request_reset(0, "signal")
    if beside == "another reset":
        n0.core.request_reset(1, "signal")
        world.settle()
    else:
        for number in range(200):
            world.put(key_of(2), b"%d" % number)
            world.now += 0.1
            for node in world.nodes.values():
                node.step()
        world.settle()
    assert [n0.core.phase(s) for s in range(SEGMENTS)] == ["stopped", "writing", "writing", "writing"]
    assert len(world.refused) < 12
    world.broker.refuse.clear()
    n0.core.request_reset(0, "restart")
    world.settle()
    assert n0.core.phase(0) == "writing"
    world.check()


def test_a_stopped_segment_looks_again_after_a_fence() -> None:
    """CHECK recheck-after-fence, of a segment in which nothing was under way: another node took it over meanwhile."""
    world, (n0, n1) = started()
    world.broker.refuse.add(n0.encoder._codec.key(key_of(2)))
    world.put(key_of(2), b"bad")
    world.settle()
    assert n0.core.phase(2) == "stopped"
    world.broker.refuse.clear()
    world.own(2, n1)
    world.settle(n1)
    world.put(key_of(2, 1), b"newer")
    world.settle(n1)
    world.put(key_of(0), b"x")
    world.settle()
    n0.core.ask_reset(2, "signal")
    world.settle()
    world.check()


def test_a_refused_record_stops_its_segment_alone() -> None:
    world, (n0, _) = started()
    bad = n0.encoder._codec.key(key_of(2))
    world.broker.refuse.add(bad)
    for segment in range(SEGMENTS):
        world.put(key_of(segment), b"a")
    world.settle()
    assert [n0.core.phase(s) for s in range(SEGMENTS)] == ["writing", "writing", "stopped", "writing"]
    assert [n0.core.written(s) for s in range(SEGMENTS)] == [1, 1, 0, 1]
    world.broker.refuse.clear()
    n0.core.request_reset(2, "signal")
    world.settle()
    world.check()
