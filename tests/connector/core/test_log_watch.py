"""Positions that are read back, and a log that was cut, has another leader, or is another topic's."""

from __future__ import annotations

import pytest

from tests.connector.world import (
    Node,
    World,
    key_of,
    lose_unseen,
    started,
)


def test_prune_in_history() -> None:
    """What a superseded owner wrote and this backup never had prunes nothing."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a", acked=False)
    n0.core.acked(0, 1)
    world.settle(n0)
    operation = world.put(key_of(0), b"b", acked=False)
    n1.core.apply(0, operation._replace(epoch=operation.epoch + 1, sequence=1))
    n1.follow()
    assert n1.core.complete_from(0) == 1


def test_read_from_trails_behind_what_every_owner_holds() -> None:
    world, (n0, _) = started()
    world.put(key_of(0), b"a")
    world.settle()
    first = n0.core.table.positions[0].read_from
    world.put(key_of(0), b"b", acked=False)
    n0.core._segments[0].acked = 2  # acks below all: written before everybody holds it
    world.settle()
    n0.core._segments[0].acked = 2
    position = n0.core.table.positions[0]
    phantom = next(r.offset for r in world.records(0) if r.header.position == (1, 2))
    assert position.sequence == 2
    assert first <= position.read_from <= phantom


def test_truncation_is_noticed_and_repaired() -> None:
    world, (n0, _) = started()
    for segment in (0, 1):
        world.put(key_of(segment), b"a")
    world.settle()
    log = world.broker.logs["p.c", 0]
    del log.slots[-2:]
    world.settle()
    assert n0.core.counts.truncations == 1
    assert world.reader(0).resets[-1] == "truncated"
    world.check()


@pytest.mark.parametrize("keys", [1, 3])
def test_what_was_lost_since_kafka_was_last_looked_at_is_missed_under_another_leader(keys: int) -> None:
    world, (n0, _) = started()
    world.put(key_of(0), b"a")
    world.settle()
    lose_unseen(world, keys)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    assert n0.core.counts.truncations == 0  # all that had been seen was there
    world.check()


def test_another_leader_alone_is_no_reason_to_reset() -> None:
    world, _ = started()
    for i in range(4):
        world.put(key_of(0, i), b"v")
    world.settle()
    for epoch in range(1, 4):
        world.put(key_of(0, epoch), b"w%d" % epoch)
        world.settle()
        world.leader_epoch = epoch
        world.settle()
    assert world.reader(0).resets == ["initial"]
    world.check()


def reset_unseen(world: World, node: Node) -> None:
    for i in range(5):
        world.put(key_of(0, i), b"v%d" % i)
    world.settle()
    world.watching = False
    node.core.overflow(0)
    world.settle()
    world.watching, world.leader_epoch = True, 1


def test_a_reset_that_ended_just_before_another_leader_came_is_not_done_again() -> None:
    world, (n0, _) = started()
    reset_unseen(world, n0)
    world.settle()
    assert world.reader(0).resets == ["initial", "overflow"]
    world.check()


def test_rows_that_were_lost_before_their_end_was_written_are_missed() -> None:
    world, (n0, _) = started()
    reset_unseen(world, n0)
    log = world.broker.logs["p.c", 0]
    at = [n for n, slot in enumerate(log.slots) if slot.record.value and b'"op":"r"' in slot.record.value]
    del log.slots[at[-3]]
    for node in (n0,):
        node.follow()
    n0.step()
    while n0.step():
        pass
    kinds = world.kinds(0)
    assert kinds.count("RESET_BEGIN") == 3
    assert kinds[-1] == "RESET_END"


def test_coalesced_operations_are_not_missed_under_another_leader() -> None:
    world, (n0, n1) = started()
    world.watching = False
    for i in range(12):
        world.put(key_of(0, i % 3), b"v%d" % i)
    assert n0.core.coalesce(0) == 9
    world.settle(n0)
    world.watching, world.leader_epoch = True, 1
    n1.follow()
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_recreated_topic_is_noticed_and_repaired() -> None:
    world, (n0, _) = started()
    world.put(key_of(0), b"a")
    world.settle()
    for partition in range(2):
        world.broker.logs["p.c", partition].slots.clear()
    n0.core.topic_is("t2")
    world.settle()
    assert world.reader(0).resets == ["topic_recreated"]
    world.check()
