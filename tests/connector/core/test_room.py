"""The op logs' budget: coalescing, overflow, and which op log is dropped first."""

from __future__ import annotations

import pytest

from deelog_connector.core.resets import Resets
from deelog_connector.core.room import Room
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.snapshots import Snapshots
from deelog_connector.core.state import NodeState
from deelog_schemas.header import Kind
from tests.connector.core.builders import captured, node, operation, primary
from tests.connector.world import (
    Node,
    World,
    key_of,
    skipping,
    started,
)


def test_nothing_over_a_hole() -> None:
    world, (n0, _) = started()
    for i in range(5):
        world.put(key_of(0, i), b"v")
    n0.core.overflow(0)
    world.put(key_of(0, 1), b"w")
    world.settle()
    kinds = world.kinds(0)[4:]
    assert kinds[0] == "RESET_BEGIN"
    assert kinds[-1] == "RESET_END"
    assert "CHANGE" not in kinds
    assert world.reader(0).resets == ["initial", "overflow"]
    world.check()


def test_a_segment_without_operations_makes_no_room() -> None:
    world, (n0, _) = started()
    for i in range(3):
        world.put(key_of(1, i), b"v")
    n0.core.budget.max_operations = 3
    n0.core.make_room(0, 1)
    assert (n0.core.counts.overflow, n0.core._segments[1].owed) == ({"reset": 1}, "overflow")


def test_no_room_is_made_for_a_segment_that_was_given_away_meanwhile() -> None:
    """A write that waited for room is refused then, and costs nobody a reset."""
    world, (n0, _) = started()
    for i in range(3):
        world.put(key_of(1, i), b"v")
    n0.core.budget.max_operations = 3
    n0.core.forget(0)
    n0.core.make_room(0, 1)
    assert n0.core.counts.overflow == {}


def test_room_is_made_of_backups_op_logs_first() -> None:
    """Dropping a primary's op log costs a reset, dropping a backup's only if a takeover follows."""
    world, (n0, n1) = started()
    world.own(1, n1, n0)
    world.settle()
    for i in range(5):
        world.put(key_of(0, i), b"v")
    for i in range(3):
        world.put(key_of(1, i), b"v")
    n0.core.budget.max_operations = 8
    assert not n0.core.has_room(1)
    n0.core.make_room(0, 1)
    assert n0.core.counts.overflow == {"backup": 1}
    assert (n0.core.complete_from(0), n0.core.complete_from(1)) == (1, 4)
    n0.core.budget.max_operations = 5
    n0.core.make_room(0, 1)
    assert n0.core.counts.overflow == {"backup": 1, "reset": 1}
    world.settle()
    assert world.reader(0).resets == ["initial", "overflow"]
    assert world.reader(1).resets == ["initial"]
    world.check()


def test_a_stopped_segment_gives_up_its_op_log_first() -> None:
    world, (n0, _) = started()
    world.broker.refused.add(n0.encoder._codec.key(key_of(0)))
    world.put(key_of(0), b"bad")
    world.settle()
    core = n0.core
    core.budget.max_operations = 100
    for number in range(98):
        world.put(key_of(0, 1), b"%d" % number)
    world.put(key_of(1), b"a", acked=False)
    core.make_room(1, 100)
    assert core.has_room(100)
    assert (core.phase(0), core._segments[0].owed) == ("stopped", "overflow")
    assert core._segments[1].owed is None
    world.broker.refused.clear()
    world.ack(1)
    core.request_reset(0, "restart")
    world.settle()
    world.check()


def test_coalesce_acked() -> None:
    world, (n0, _n1) = started()
    k, j = key_of(0), key_of(0, 1)
    world.put(k, b"1")
    world.put(j, b"2")
    world.put(k, b"3")
    world.put(k, b"4", acked=False)
    assert n0.core.coalesce(0) == 1  # k@3 replaces k@1; k@4 is not acknowledged
    world.settle()
    changes = [r for r in world.records(0) if r.header.kind is Kind.CHANGE]
    assert [r.header.sequence for r in changes] == [2, 3]
    assert b'"op":"c"' in (changes[1].value or b"")  # it keeps the first one's `existed`
    world.ack(0)
    world.settle()
    world.check()


def coalesced_alone() -> tuple[World, Node, Node]:
    """Only n0 holds the newest operation of a key: acknowledged, a delete, and filtered. Then n0 coalesced."""
    world, (n0, n1) = started(pipeline=skipping("d"))
    world.put(key_of(0), b"1")
    world.put(key_of(0, 1), b"2")
    world.put(key_of(0), None, acked=False)
    n0.core.acked_here(0, 3)
    n0.core.coalesce(0)
    return world, n0, n1


def test_a_filtered_operation_that_is_lost_has_replaced_nothing() -> None:
    """No record has the key of what a filter drops: nobody could correct it."""
    world, n0, n1 = coalesced_alone()
    world.settle(n0)
    assert world.kinds(0)[-1] == "SKIPPED"
    world.fail_over(n0, n1)
    world.settle()
    world.check()
    assert world.reader(0).resets == ["initial"]


def test_an_op_log_that_is_cut_has_all_that_is_left() -> None:
    """n0 is backup in between, drops the operation that the next primary lacks, and is primary again."""
    world, n0, n1 = coalesced_alone()
    world.own_all(n1, n0)
    world.fail_over(n1, n0)
    world.settle()
    world.check()
    assert world.reader(0).resets == ["initial"]


def room(state: NodeState) -> Room:
    return Room(state, Resets(state, Snapshots(state)))


def filled(segment: Segment, count: int) -> Segment:
    """With this many operations of two keys."""
    captured(segment, *(operation(sequence, b"k%d" % (sequence % 2)) for sequence in range(1, count + 1)))
    return segment


@pytest.mark.parametrize(
    ("phase", "after", "owed", "counted"),
    [
        (Phase.WRITING, Phase.OWED, "overflow", "reset"),
        (Phase.READ, Phase.READ, "overflow", "reset"),
        (Phase.STOPPED, Phase.STOPPED, "overflow", "reset"),
        (Phase.IDLE, Phase.IDLE, None, "backup"),
    ],
)
def test_what_an_overflow_costs(phase: Phase, after: Phase, owed: str | None, counted: str) -> None:
    state = node()
    segment = filled(primary(state, 0, phase), 3)
    room(state).overflow(0)
    assert (len(segment.log), segment.log.complete_from) == (0, 4)
    assert (segment.phase, segment.owed, state.counts.overflow) == (after, owed, {counted: 1})


def test_coalescing_spares_what_is_sent_or_in_flight_or_not_replicated() -> None:
    state = node()
    segment = filled(primary(state, 0, sent=1, in_flight=2), 9)
    segment.replicated = 7
    assert room(state).coalesce(0) == 3
    assert [o.sequence for o in segment.log] == [1, 2, 6, 7, 8, 9]
    assert (segment.atomic_to, segment.ledger.coalesced(7), segment.ledger.coalesced(6)) == (7, (7, 3), (0, 0))
    assert state.counts.overflow == {"coalesce": 1}
    assert room(state).coalesce(0) == 0
    assert state.counts.overflow == {"coalesce": 1}
    segment.sent, segment.replicated = 8, 9
    assert room(state).coalesce(0) == 0


def test_a_coalesced_run_is_no_larger_than_a_transaction() -> None:
    state = node()
    segment = primary(state, 0)
    captured(segment, *(operation(number, b"%d" % (number % 3), b"v" * 100) for number in range(1, 10)))
    state.max_batch_bytes = 3 * operation(1, b"0", b"v" * 100).size - 1
    assert room(state).coalesce(0) == 0
    captured(segment, operation(10, b"0", b"v"))
    assert (room(state).coalesce(0), segment.atomic_to) == (0, 0)
    state.max_batch_bytes = 3 * operation(1, b"0", b"v" * 100).size
    assert room(state).coalesce(0) == 7
    assert segment.atomic_to == 10


def test_only_what_is_being_written_is_coalesced() -> None:
    state = node()
    filled(primary(state, 0, Phase.READ), 9)
    filled(primary(state, 1), 9)
    filled(primary(state, 2), 5)
    assert room(state).coalesce_all() == 7 + 3


def test_whose_op_log_gives_way() -> None:
    """Stopped segments first, then the longest backup, this segment, and the longest other primary."""
    state = node(max_operations=21)
    for number, (phase, count) in enumerate(
        (
            (Phase.WRITING, 2),
            (Phase.IDLE, 3),
            (Phase.IDLE, 4),
            (Phase.WRITING, 5),
            (Phase.WRITING, 6),
            (Phase.STOPPED, 1),
        )
    ):
        filled(primary(state, number, phase), count)
    order = []
    for limit in (21, 20, 16, 13, 11, 5):
        state.budget.max_operations = limit
        before = {n for n, s in state.segments.items() if len(s.log)}
        room(state).make(0, 1)
        assert state.budget.has_room(1)
        order.append(before - {n for n, s in state.segments.items() if len(s.log)})
    assert order == [{5}, {2}, {1}, {0}, {4}, {3}]
    assert state.counts.overflow["backup"] == 2


def test_nothing_gives_way_while_there_is_room() -> None:
    state = node(max_operations=3)
    segment = filled(primary(state, 0, Phase.STOPPED), 2)
    room(state).make(0, 1)
    assert len(segment.log) == 2
