"""Positions that are read back, and a log that was truncated, has another leader, or belongs to another topic."""

from __future__ import annotations

import pytest

from deelog_connector.core.ledger import CommittedRun, LogEnd
from deelog_connector.core.log_watch import LogWatch
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.positions import PositionState
from tests.connector.core.builders import MEMBER, captured, node, operation, primary
from tests.connector.world import (
    Node,
    World,
    key_of,
    lose_unseen,
    partition_log,
    started,
)


def test_prune_in_history() -> None:
    """A position of a superseded owner, which is not in this backup's history, prunes nothing."""
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
    n0.core._segments[0].acked = 2  # below acks=all: written before every owner has it
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
    assert n0.core.counts.truncations == 0  # everything that was seen before is still there
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
    rows = [slot for slot in log.slots if slot.record and b'"op":"r"' in (slot.record.value or b"")]
    rows[-3].record = None
    n0.follow()
    n0.step()
    while n0.step():
        pass
    kinds = world.kinds(0)
    assert kinds.count("RESET_BEGIN") == 3
    assert kinds[-1] == "RESET_END"


def test_rows_that_were_cut_away_are_missed_by_who_took_over_before_it_had_looked() -> None:
    """It has written by then, and as many other keys have changed as rows are gone."""
    world, (n0, n1) = started()
    reset_unseen(world, n0)
    world.watching = False
    rows = [
        slot for slot in world.broker.logs["p.c", 0].slots if slot.record and b'"op":"r"' in (slot.record.value or b"")
    ]
    rows[-3].record = None
    world.put(key_of(0, 5), b"w")
    world.settle()
    world.fail_over(n0, n1)
    world.put(key_of(0, 6), b"w")
    world.settle()
    assert world.kinds(0).count("RESET_BEGIN") == 2
    world.watching = True
    world.settle()
    assert world.kinds(0).count("RESET_BEGIN") == 3


def cut_away(world: World, beginning: int, mark: bytes = b"") -> None:
    """Records of segment 0's partition from a slot on are gone: all, or those that hold `mark`."""
    for slot in partition_log(world, 0).slots[beginning:]:
        if slot.record is not None and mark in (slot.record.value or b""):
            slot.record = None


def written_over(world: World, owner: Node, beginning: int) -> None:
    """Segment 0's partition is cut from a slot on; its owner writes in that place, and then looks at the new leader."""
    cut_away(world, beginning)
    world.put(key_of(0, 9), b"last")
    world.settle(owner)
    world.watching, world.leader_epoch = True, 1
    world.settle(owner)


@pytest.mark.parametrize("clear", [False, True])
def test_a_reset_that_a_new_owner_has_found_is_missed_when_it_is_cut_away(clear: bool) -> None:
    """It has looked at Kafka once, in READ, and writes on before its next look."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"early")
    for _ in range(3):
        world.settle()
        world.now += 1
    world.watching, beginning = False, len(partition_log(world, 0).slots)
    if clear:
        world.clear(0)
    else:
        world.put(key_of(0, 1), b"in the reset alone")
        n0.core.overflow(0)
    world.settle()
    n0.core.release(0)
    world.settle()
    world.own(0, n1, n0)
    world.settle(n1)
    written_over(world, n1, beginning)
    world.check()


def test_what_an_old_owner_writes_behind_the_claim_is_missed_when_it_is_cut_away() -> None:
    """The last position before the claim does not tell of it: READ has found it, and looks for it again."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"early")
    world.settle()
    world.watching = False
    world.put(key_of(0, 1), b"recent")
    world.settle()
    world.put(key_of(0, 2), b"lost")
    world.own(0, n1)
    while n1.core.phase(0) != "look":
        world.now += 0.1
        n1.step()
    n1.follow()
    beginning = len(partition_log(world, 0).slots)
    n0.follow = lambda: False  # type: ignore[method-assign]  # it has not read the claim yet
    n0.step()
    world.settle(n1)
    assert n1.core.written(0) == 3
    written_over(world, n1, beginning)
    world.check()


def test_what_is_cut_away_between_the_claim_and_the_fence_is_missed_though_its_owner_wrote_on() -> None:
    """No position that was known at the claim tells of it."""
    world, (n0, n1) = started()
    for number in range(3):
        world.put(key_of(0, number), b"early")
        world.settle()
    world.watching = False
    for number, value in enumerate((b"lost", b"later"), 3):
        world.put(key_of(0, number), value)
    world.own(0, n1)
    while n1.core.phase(0) != "look":
        world.now += 0.1
        n1.step()
    n0.follow = lambda: False  # type: ignore[method-assign]  # it has not read the claim yet
    n0.step()
    lost = next(s for s in partition_log(world, 0).slots if s.record and b"lost" in (s.record.value or b""))
    lost.record = None
    world.settle(n1)
    assert n1.core.written(0) == 5
    world.watching, world.leader_epoch = True, 1
    world.settle(n1)
    assert world.reader(0).resets[-1] == "truncated"
    world.check()


@pytest.mark.parametrize("reset", [True, False])
def test_no_more_is_excused_than_was_coalesced(reset: bool) -> None:
    """Runs that are behind the begin of reading, or before a reset, excuse nothing any more."""
    world, (n0, n1) = started()
    for number in range(8):
        for i in range(5):
            world.put(key_of(0), b"%d.%d" % (number, i))
        n0.core.coalesce(0)
        for _ in range(2):
            world.now += 0.1
            n0.step()
            n1.step()
    if reset:
        n0.core.request_reset(0, "signal")
    world.watching = False
    world.settle()
    for i in range(2):
        world.put(key_of(0), b"v%d" % i)
    n0.core.coalesce(0)
    for i in range(4):
        world.put(key_of(0, i), b"lost")
    world.settle()
    cut_away(world, 0, b"lost")
    world.put(key_of(0, 9), b"last")
    world.settle()
    world.watching, world.leader_epoch = True, 1
    n1.follow()
    world.fail_over(n0, n1)
    world.settle()
    world.check()


def test_operations_that_were_coalesced_behind_a_reset_are_not_missed_under_another_leader() -> None:
    """They were pending when the reset began."""
    world, (n0, n1) = started()
    world.watching = False
    world.put(key_of(0), b"early")
    world.settle()
    world.clear(0)
    for i in range(12):
        world.put(key_of(0, i % 3), b"v%d" % i)
    assert n0.core.coalesce(0) == 9
    world.settle()
    world.fail_over(n0, n1)
    world.settle()
    world.watching, world.leader_epoch = True, 1
    world.settle()
    assert world.reader(0).resets == ["initial", "clear"]
    world.check()


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
    assert n0.core.topic_is("t2")
    world.settle()
    assert world.reader(0).resets == ["topic_recreated"]
    world.check()


@pytest.mark.parametrize(
    ("seen", "end", "in_doubt"),
    [
        (None, (5, 1), False),
        ((0, 1), (0, 2), False),
        ((5, 1), (5, 1), False),
        ((5, 1), (9, 1), False),
        ((5, 1), (4, 1), True),
        ((5, 1), (5, 2), True),
        ((5, 1), (9, 2), True),
    ],
)
def test_when_the_log_is_asked_if_it_is_intact(
    seen: tuple[int, int] | None, end: tuple[int, int], in_doubt: bool
) -> None:
    watch = LogWatch(node())
    assert watch.end_of(0) == (-1, -1)
    if seen is not None:
        watch.end_read(0, *seen)
        assert watch.end_of(0) == seen
    assert watch.doubts(0, *end) is in_doubt


def two_partitions() -> tuple[NodeState, LogWatch, Segment, Segment]:
    """A segment of each partition, written up to 4. The end of both logs was seen at 10."""
    state = node()
    here, there = (primary(state, number, sent=4, written=4) for number in (0, 7))
    watch = LogWatch(state)
    for partition in (0, 1):
        watch.end_read(partition, 10, 1)
    for segment in (here, there):
        segment.ledger.base_offset = segment.ledger.read_from = 3
        segment.ledger.committed(CommittedRun(4, 4, 1, 9))
    return state, watch, here, there


def test_a_look_at_the_end_is_one_for_the_segments_of_the_partition() -> None:
    _, watch, here, there = two_partitions()
    assert watch.end_read(0, 11, 1) == []
    here.in_flight = 6
    assert watch.end_read(0, 12, 1) == []
    assert here.ledger.next_read_from == LogEnd(11, 4)
    assert here.ledger.observed_end == LogEnd(12, 6, is_below=False)
    assert there.ledger.next_read_from is None


def test_a_look_is_as_far_as_all_records_and_markers_come_behind_the_stable_ones() -> None:
    state, watch, here, _ = two_partitions()
    assert watch.end_read(0, 12, 1, None, 11) == []
    assert (watch.end_of(0), state.changes.stable_end(0), state.changes.stable_end(1)) == ((12, 1), 11, 10)
    assert here.ledger.observed_end == LogEnd(12, 4)
    assert watch.end_read(0, 9, 1, None, 11) == [0]
    assert state.changes.stable_end(0) == 9, "it was asked for before the log was cut"


def test_nothing_is_verified_of_a_segment_that_is_not_being_written() -> None:
    _, watch, here, _ = two_partitions()
    here.phase = Phase.ROWS
    watch.end_read(0, 12, 1)
    assert here.ledger.next_read_from is None
    assert here.phase is Phase.ROWS


@pytest.mark.parametrize(("offset", "intact"), [(9, None), (12, False), (9, False)])
def test_a_log_that_was_cut_costs_a_reset(offset: int, intact: bool | None) -> None:
    state, watch, here, there = two_partitions()
    assert watch.end_read(0, offset, 2, intact) == [0]
    assert (here.owed, here.phase, here.written) == ("truncated", Phase.ACTIVE, None)
    assert (here.ledger.read_from, here.ledger.base_offset) == (0, 0)
    assert (there.owed, there.phase, there.ledger.base_offset) == (None, Phase.WRITING, 3)
    assert (watch.end_of(0), state.changes.cut_in, state.counts.truncations) == ((offset, 2), {0: 2}, 1)


def test_an_intact_log_that_ends_below_is_not_looked_at() -> None:
    state, watch, here, _ = two_partitions()
    assert watch.end_read(0, 9, 2, True) == []
    assert (watch.end_of(0), state.counts.truncations, here.owed) == ((10, 1), 0, None)
    assert here.ledger.next_read_from is None


def test_under_another_leader_segments_read_again() -> None:
    _, watch, here, there = two_partitions()
    assert watch.end_read(0, 12, 2, True) == []
    assert (here.phase, here.owed, here.recheck) == (Phase.ACTIVE, None, True)
    assert there.phase is Phase.WRITING
    assert watch.end_of(0) == (12, 2)


@pytest.mark.parametrize("written", [False, True])
def test_under_an_unknown_leader_what_was_written_before_the_first_look_is_read_again(written: bool) -> None:
    """It may have been cut away before that, e.g. after the topic was made again."""
    _, watch, here, _ = two_partitions()
    watch.topic_is("t1")
    assert watch.topic_is("t2")
    here.owed, here.phase, here.recheck = None, Phase.WRITING, False
    here.ledger.resume([])
    if written:
        here.ledger.committed(CommittedRun(5, 5, 1, 1))
    assert watch.end_read(0, 12, 2) == []
    assert (here.phase, here.recheck) == ((Phase.ACTIVE, True) if written else (Phase.WRITING, False))
    assert watch.end_of(0) == (12, 2)


def test_another_topic_costs_every_segment_a_reset() -> None:
    state, watch, here, there = two_partitions()
    state.changes.cut_in[0] = 1
    assert not watch.topic_is("t1")
    assert not watch.topic_is("t1")
    assert here.owed is None
    assert watch.topic_is("t2")
    for segment in (here, there):
        assert (segment.owed, segment.phase, segment.written) == ("topic_recreated", Phase.ACTIVE, None)
        assert segment.ledger.read_from == 0
    assert (state.changes.ends, state.changes.cut_in, state.changes.topic_id) == ({0: 0, 1: 0}, {}, "t2")
    here.owed = None
    assert not any(map(watch.topic_is, ("t1", "t2")))  # a broker whose metadata are behind
    assert (here.owed, state.changes.topic_id) == (None, "t2")
    assert watch.topic_is("t3")


def test_a_position_that_is_read_back_prunes_and_moves_read_from() -> None:
    state = node()
    segment = primary(state, 0, replicated=9)
    captured(segment, *map(operation, range(1, 6)))
    segment.ledger.next_read_from = LogEnd(10, 3)
    watch = LogWatch(state)
    watch.position_read(segment, PositionState(7, 2, 0, 2, 0, 0, 0, 0, "t", MEMBER))
    assert (segment.written, segment.log.complete_from, state.counts.pruned) == (2, 3, 2)
    assert segment.ledger.read_from == -1
    watch.position_read(segment, PositionState(7, 3, 0, 2, 0, 0, 0, 0, "t", MEMBER))
    assert (segment.written, segment.ledger.read_from, state.counts.pruned) == (3, 10, 3)
    watch.position_read(segment, PositionState(7, 1, 0, 2, 0, 0, 0, 0, "t", MEMBER))
    watch.position_read(segment, PositionState(7, 6, 0, 2, 0, 0, 0, 0, "t", MEMBER))  # beyond its history
    assert (segment.written, segment.log.complete_from, state.counts.pruned) == (3, 4, 3)
