"""`snapshot.mode` and the schedule of `reset.interval.ms`: the policy alone, and in the world of `world.py`."""

from __future__ import annotations

from itertools import pairwise

import pytest

from deelog_connector.core.snapshot_mode import ResetSchedule, SnapshotMode
from deelog_schemas.header import Kind
from tests.connector.world import (
    Node,
    World,
    key_of,
)

MODES = list(SnapshotMode)


@pytest.mark.parametrize(
    ("mode", "fresh", "again"),
    [
        ("initial", "initial", (None, None)),
        ("always", "initial", ("snapshot", None)),
        ("no_data", None, (None, None)),
        ("initial_only", "initial", (None, None)),
    ],
)
def test_the_policy(mode: str, fresh: str | None, again: tuple[str | None, str | None]) -> None:
    policy = SnapshotMode(mode)
    assert policy.snapshot(False, True) == policy.snapshot(False, False) == fresh
    assert (policy.snapshot(True, True), policy.snapshot(True, False)) == again
    assert policy.goes_on is (mode != "initial_only")


def owned(mode: SnapshotMode, nodes: int = 1, must_reset: str | None = None) -> tuple[World, Node]:
    """A world in which the first node has taken over segment 0, which had two entries already."""
    world = World(nodes, mode=mode)
    node = world.nodes["n0"]
    for each in world.nodes.values():
        each.cache = {key_of(0, n): b"there" for n in range(2)}
    world.own(0, node, must_reset=must_reset)
    world.settle()
    return world, node


def test_without_data_a_segment_begins_with_its_first_change_and_claims_nothing() -> None:
    for must_reset in (None, "start"):
        world, node = owned(SnapshotMode.NO_DATA, must_reset=must_reset)
        assert world.kinds(0) == ["CLAIM", "ACTIVE"]
        assert node.core.unwritten() == 0
        state = node.core.table.positions[0]
        assert (state.position, state.read_from, state.read_from_sequence, state.base_offset) == ((1, 0), 2, 0, -1)
        world.put(key_of(0, 1), b"changed")
        world.put(key_of(0, 0), None)
        world.put(key_of(0, 5), b"new")
        world.settle()
        assert world.kinds(0) == ["CLAIM", "ACTIVE", "CHANGE", "CHANGE", "TOMBSTONE", "CHANGE"]
        reader = world.reader(0)
        assert {k: e.value for k, e in reader.entries.items()} == {key_of(0, 1): b"changed", key_of(0, 5): b"new"}
        assert (reader.resets, reader.mark) == ([], (1, 3))
        assert node.core.written(0) == 3


def test_without_data_a_backup_takes_over_without_a_reset() -> None:
    """Its op log has everything from the first operation on."""
    world = World(2, mode=SnapshotMode.NO_DATA)
    n0, n1 = world.nodes.values()
    world.own(0, n0, n1)
    world.settle()
    world.put(key_of(0), b"a")
    world.settle()
    world.put(key_of(0, 1), b"b")
    world.crash(n0)
    world.own(0, n1)
    world.settle(n1)
    assert world.reader(0).resets == []
    assert [r.header.position for r in world.records(0) if r.header.kind is Kind.CHANGE] == [(1, 1), (1, 2)]
    world.check()


def test_the_op_log_of_a_segment_without_data_is_written_from_its_beginning() -> None:
    """Its operations are captured before the end of the takeover."""
    world = World(1, mode=SnapshotMode.NO_DATA)
    world.own(0, world.nodes["n0"])
    for n in range(3):
        world.put(key_of(0, n), b"v")
    world.settle()
    assert world.reader(0).resets == []
    world.check()


@pytest.mark.parametrize("mode", MODES)
def test_no_mode_holds_back_a_reset_that_repairs_a_loss(mode: SnapshotMode) -> None:
    world, node = owned(mode)
    world.put(key_of(0, 2), b"v")
    world.settle()
    world.crash(node)
    node = world.restart(node)
    world.own(0, node, must_reset="owners_lost")
    world.settle()
    assert world.reader(0).resets[-1] == "owners_lost"
    for loss in ("overflow", "signal"):
        node.core.overflow(0) if loss == "overflow" else node.core.request_reset(0, loss)
        world.settle()
        assert world.reader(0).resets[-1] == loss
    world.check()


def test_without_data_what_was_lost_before_the_first_record_is_repaired() -> None:
    """An op log that overflows, or a state transfer, before Kafka has any record."""
    world = World(2, mode=SnapshotMode.NO_DATA)
    n0, n1 = world.nodes.values()
    world.own(0, n0)
    world.put(key_of(0), b"a")
    n0.core.overflow(0)
    world.settle()
    assert world.reader(0).resets == ["overflow"]
    world.own(1, n0)
    world.put(key_of(1), b"a")
    n0.core._segments[1].log.restart(2)
    assert world.catch_up(1, n1) == "state"
    world.crash(n0)
    world.own(1, n1)
    world.settle(n1)
    assert world.reader(1).resets == ["initial"]
    assert world.reader(1).entries.keys() == {key_of(1)}


def test_always_resets_a_segment_the_first_time_a_process_takes_it_over() -> None:
    world = World(2, mode=SnapshotMode.ALWAYS)
    n0, n1 = world.nodes.values()
    world.own(0, n0, n1)
    world.put(key_of(0), b"a")
    world.settle()
    world.own(0, n1, n0)
    world.settle()
    world.own(0, n0, n1)  # once per process
    world.settle()
    assert world.reader(0).resets == ["initial", "snapshot"]
    world.crash(n0)
    world.restart(n0)
    fresh = world.nodes["n0"]
    world.own(0, n1, fresh)
    world.own(0, fresh, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "snapshot", "snapshot"]
    world.check()


def test_turns_come_one_after_the_other() -> None:
    turns = ResetSchedule(4, 8.0)
    came = []
    for second in range(1000, 1016):
        for number in turns.due(second * 1_000_000):
            came.append((second, number))
            turns.done(number)
    assert [number for _, number in came] == [1, 2, 3, 0, 1, 2, 3]
    assert {b - a for (a, _), (b, _) in pairwise(came)} == {2}


def test_turns_that_were_missed_come_once_each_and_a_clock_put_back_ends_nothing() -> None:
    turns = ResetSchedule(4, 8.0)
    assert list(turns.due(0)) == []
    assert sorted(turns.due(1_000_000_000)) == [0, 1, 2, 3]
    for number in range(4):
        turns.done(number)
    assert list(turns.due(500_000_000)) == [2]
    turns.done(2)
    assert list(turns.due(502_000_000)) == [3]


def test_no_turns_without_an_interval() -> None:
    assert list(ResetSchedule(4, 0.0).due(10**15)) == list(ResetSchedule(4, 0.0).due(10**16)) == []
