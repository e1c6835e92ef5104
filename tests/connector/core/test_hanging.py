"""Transactions that hide a node's records: when they are looked for, and whom it takes for their writers."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import (
    Effect,
    EndHanging,
    FindHanging,
    Hanging,
    HangingAbort,
    OperationsItem,
    Producer,
    StateItem,
)
from deelog_connector.core.hanging import HangingTransactions
from deelog_connector.core.scan import SegmentScan
from deelog_connector.core.scans import Scans
from deelog_connector.core.segment import Phase, PositionsView
from deelog_connector.core.state import NodeState
from deelog_schemas.header import Kind, node_number
from deelog_schemas.keys import partition_of
from deelog_schemas.positions import (
    ClaimState,
    PositionState,
    ReleaseState,
    ResetState,
    State,
    StateRecord,
    decode_state,
)
from deelog_schemas.records import ON_POSITIONS, decode
from tests.connector.core.builders import MEMBER, claimed, node, operation, primary
from tests.connector.world import PARTITIONS, POSITIONS, SEGMENTS, World, key_of, started

OLD, NEWER, OTHER = "n1@1", "n2@1", "n3@1"


def state_of() -> NodeState:
    """A node that has segment 0 in epoch 7, which others have claimed."""
    state = node()
    primary(state, 0, Phase.LOOK)
    claimed(state, 0, 6, OLD)
    claimed(state, 0, 8, NEWER)
    return state


def found(state: NodeState, *transactions: Hanging | HangingAbort) -> list[Effect]:
    HangingTransactions(state).found(0, transactions)
    return state.take_outbox()


def first(member: str = "", segment: int = 0, epoch: int = 6, node: str = OTHER) -> Hanging:
    """The first record of a transaction; without `member` it only says the number of `node`."""
    return Hanging(segment, epoch, node_number(member or node), member)


def ends(partition: int, *node_ids: str) -> list[EndHanging]:
    """That of both producers of each node."""
    return [EndHanging(Producer(node_id, spare), partition) for node_id in node_ids for spare in (False, True)]


def looks_at_110(state: NodeState, hanging: HangingTransactions) -> None:
    """Ten seconds after 100.0 it is looked for what hides partition 0, and not before."""
    for now in (100.0, 109.9):
        state.now = now
        hanging.lose_patience(state.working())
    assert (state.outbox, state.counts.scans_in_vain) == ([], 0)
    state.now = 110.0
    hanging.lose_patience(state.working())
    assert state.take_outbox() == [FindHanging(0)]


def test_it_is_looked_for_when_records_of_ours_on_positions_are_hidden_for_too_long() -> None:
    state = node(patience=10.0)
    asked = [primary(state, n, phase, awaited=1, asked_at=100.0) for n, phase in enumerate((Phase.LOOK, Phase.READ))]
    primary(state, 2, Phase.LOOK, awaited=0, asked_at=0.0)
    primary(state, 3, Phase.BEGUN, awaited=1, asked_at=0.0)
    primary(state, 7, Phase.LOOK, awaited=1, asked_at=0.0)
    state.withheld = frozenset({1})
    assert [s.partition for s in state.primaries.values()] == [0, 0, 0, 0, 1]
    hanging = HangingTransactions(state)
    looks_at_110(state, hanging)
    assert [segment.asked_at for segment in asked] == [110.0, 110.0]
    hanging.lose_patience(state.working())
    assert (state.outbox, state.counts.scans_in_vain) == ([], 1)
    state.now, state.withheld = 120.0, frozenset()
    hanging.lose_patience(state.working())
    assert (state.outbox, state.counts.scans_in_vain) == ([FindHanging(1)], 3)  # that of 0 is not answered


def item(segment: int, partition: int, written: State | None) -> StateItem:
    return StateItem(Kind.POSITION, segment, partition, (7, 1), b"", written)


def position(sequence: int) -> PositionState:
    return PositionState(7, sequence, 0, 0, 0, 0, -1, 0, "t", MEMBER)


def test_what_is_committed_to_positions_is_read_back_or_it_is_looked_for_what_hides_it() -> None:
    """Of a segment that nobody writes to any more: its next transaction would end what hides this one."""
    state = node(patience=10.0)
    hanging = HangingTransactions(state)

    reset, release = ResetState("r", 7, 1, "signal", -1, MEMBER), ReleaseState(7, 1, MEMBER, known=True)
    claim = ClaimState(7, MEMBER, "p", "c", 8, 2, 3)
    of_ours: dict[int, tuple[str, State]] = {
        0: ("position", position(1)),
        1: ("claim", claim),
        2: ("reset", reset),
        3: ("release", release),
    }
    state.now = 90.0
    hanging.committed([item(number, 0, written) for number, (_, written) in of_ours.items()])
    state.now = 100.0
    changes = OperationsItem(0, 0, [operation(1)])
    hanging.committed([item(0, 0, position(2)), item(0, 0, None), item(7, 1, position(5)), changes])
    for number, (what, written) in of_ours.items():
        state.positions.apply(StateRecord(what, number, MEMBER if what == "claim" else "", written))
    state.withheld = frozenset({1})
    looks_at_110(state, hanging)
    hanging.found(0, [])
    state.withheld = frozenset()
    hanging.lose_patience(state.working())
    assert state.take_outbox() == [FindHanging(1)]
    state.now = 200.0
    hanging.found(1, [])
    hanging.lose_patience(state.working())
    assert state.outbox == []  # once


def test_one_record_of_each_segment_is_waited_for_however_long_that_takes() -> None:
    state = node(patience=10.0)
    segment = primary(state, 0, Phase.LOOK, awaited=5)
    hanging = HangingTransactions(state)
    for turn in range(1, 50):  # somebody's transaction hides it
        state.now = 10.0 * turn
        hanging.lose_patience(state.working())
        hanging.found(0, [])
        hanging.committed([item(1, 0, position(turn))])
    assert {number for waits in hanging._overdue.values() for number in waits} == {0, 1}
    assert sum(map(len, hanging._overdue.values())) == 2
    hanging.nothing_hides(0)
    assert (segment.phase, segment.recheck) == (Phase.CLAIM, False)  # it is written again
    assert hanging._overdue == {}


def test_a_segment_that_writes_on_hides_no_other_that_waits() -> None:
    state = node(patience=10.0)
    hanging = HangingTransactions(state)
    for now, numbers in ((90.0, (0, 7)), (95.0, (0,))):
        state.now = now
        hanging.committed([item(number, partition_of(number, 2, 8), position(int(now))) for number in numbers])
    state.now = 101.0
    hanging.lose_patience(state.working())
    assert state.outbox == [FindHanging(1)]


def test_it_is_looked_for_once_until_that_is_answered() -> None:
    state = node()
    hanging = HangingTransactions(state)

    def looks() -> int:
        hanging.waited_in_vain(0)
        return len(state.take_outbox())

    assert [looks(), looks()] == [1, 0]
    hanging.found(1, [])
    assert looks() == 0
    hanging.found(0, [])
    assert [looks(), looks()] == [1, 0]
    hanging.forget()
    assert looks() == 1
    assert state.counts.scans_in_vain == 6


@pytest.mark.parametrize(
    ("transaction", "ended"),
    [
        (first(OLD), ["n1"]),
        (first(OTHER), ["n3"]),  # its claim is in what it hides
        (first(NEWER), []),  # has superseded this node
        (first(OTHER, epoch=7), ["n3"]),  # chosen before this node's claim could be read, and the other way round
        (first(OTHER, epoch=8), []),
        (first(OTHER, segment=1), []),  # whose owner waits, too
        (first(OLD, segment=1), ["n1"]),  # it may wait in vain itself, or be paused
        (first(node=OLD), ["n1"]),  # a change says only to people who wrote it
        (first(node=NEWER), []),
        (first(node=OTHER), []),  # of nobody who is known
        (first(MEMBER, epoch=7), ["n0"]),
        (first("n0@4", segment=1), ["n0"]),
        (first(node=MEMBER, segment=1), ["n0"]),
        (HangingAbort("n7"), ["n7"]),
    ],
)
def test_it_is_ended_for_whom_this_node_supersedes_and_for_itself(
    transaction: Hanging | HangingAbort, ended: list[str]
) -> None:
    state = state_of()
    assert found(state, transaction) == ends(0, *ended)
    assert state.counts.fenced == 2 * len(ended)


def test_who_is_superseded_only_elsewhere_is_for_others() -> None:
    state = state_of()
    segment = primary(state, 7, Phase.LOOK, epoch=9)
    assert segment.partition == 1
    claimed(state, 7, 6, OTHER)
    assert found(state, first(OTHER, segment=1)) == []


def test_those_of_both_topics_are_ended_each_once_until_that_was_tried() -> None:
    state = state_of()
    claimed(state, 0, 5, OTHER)
    hanging = HangingTransactions(state)
    both = [first(OTHER), first(OLD), first(node=OLD)]
    hanging.found(0, both)
    assert state.take_outbox() == ends(0, "n1", "n3")
    hanging.found(0, both)
    assert state.outbox == []
    hanging.ended(ends(0, "n3")[1])
    hanging.found(0, both)
    assert state.take_outbox() == ends(0, "n3")[1:]
    claimed(state, 7, 5, OTHER)
    primary(state, 7)
    hanging.found(1, both)
    assert state.take_outbox() == ends(1, "n3")
    hanging.forget()
    hanging.found(0, both)
    assert state.take_outbox() == ends(0, "n1", "n3")


def test_a_writer_is_known_from_what_either_topic_has_or_had() -> None:
    state = node()
    segment = primary(state, 0, Phase.READ)
    assert found(state, first(node=OTHER)) == []
    segment.scan = SegmentScan(segment.history)
    segment.scan.claims.add((5, OTHER))
    assert found(state, first(node=OTHER)) == ends(0, "n3")
    segment.scan = None
    segment.known = PositionsView(frozenset({(5, OTHER)}))  # its claim is removed since
    assert found(state, first(node=OTHER)) == ends(0, "n3")
    segment.known = PositionsView()
    position = PositionState(6, 1, 0, 0, 0, 0, -1, 0, "id", OTHER)
    state.positions.apply(StateRecord("position", 0, "", position))
    assert found(state, first(node=OTHER)) == ends(0, "n3")


def test_a_writer_whose_claim_is_lost_is_known_by_those_that_the_cache_has_met() -> None:
    _, (node, _) = started()
    node.core.promote(0, 7)
    left_open = first(node=OTHER)
    node.core.hanging_found(0, [left_open], True)
    before = node.core.poll(0.0, 0)
    node.core.met([NEWER, OTHER])
    node.core.hanging_found(0, [left_open], True)
    assert [effect for effect in node.core.poll(0.0, 0) if effect not in before] == ends(0, "n3")


def test_a_position_that_is_hidden_is_looked_for_until_nothing_hides_it() -> None:
    state = node(patience=10.0)
    segment = primary(state, 0)
    hanging = HangingTransactions(state)
    scans = Scans(state, hanging)
    position = PositionState(1, 5, 0, 0, 0, 0, -1, 0, "t", MEMBER)
    hanging.committed([StateItem(Kind.POSITION, 0, 0, (1, 5), b"", position)])
    for moment in (10.0, 20.0, 30.0):
        state.now = moment
        hanging.lose_patience(state.working())
        assert state.take_outbox() == [FindHanging(0)]
        scans.hanging_found(0, [], moment < 30.0)
        assert segment.is_unread is (moment == 30.0)
    state.now = 60.0
    hanging.lose_patience(state.working())
    assert state.outbox == []


@pytest.mark.parametrize("must_reset", [None, "owners_lost"])
def test_who_reads_late_waits_longer_each_time(must_reset: str | None) -> None:
    """Its tail is two seconds behind, and it gives a record up after one."""
    world, (old, new) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.crash(old)
    late: list[tuple[float, StateRecord]] = []

    def follow() -> bool:
        for partition, start in new.tails.items():
            log = world.broker.logs[POSITIONS, partition]
            for raw in log.read(start, len(log.slots))[0]:
                record = decode(*raw, ON_POSITIONS)
                late.append((world.now + 2.0, decode_state(record.key, record.value, record.header.kind)))
                new.tails[partition] = raw.offset + 1
        while late and late[0][0] <= world.now:
            new.core.state_read(late.pop(0)[1])
        return False

    new.follow = follow  # type: ignore[method-assign]
    world.own_all(new, must_reset=must_reset)
    for _ in range(300):
        world.now += 0.1
        new.step()
    assert new.core.phase(0) == "writing"
    assert [segment.in_vain for segment in new.core.primaries()] == SEGMENTS * [0], (
        "it is patient no longer than it must"
    )


def test_who_gives_up_many_segments_looks_at_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """16,384 of them took 4.5 s."""
    state = node()
    for number in range(3):
        state.own(primary(state, number))
    monkeypatch.setattr(NodeState, "primaries_of", None)
    for number in range(3):
        state.demote(number)
    assert not state.primaries


@pytest.mark.parametrize("how", ["demote", "forget"])
def test_a_partition_where_nobody_waits_any_more_counts_as_hidden_no_more(how: str) -> None:
    """Its other segments' turns to be reset come."""
    world = World(2, interval=60.0)
    n0, n1 = world.nodes.values()
    world.own_all(n0, n1)
    world.settle()
    n0.core.promote(0, 99)
    world.now += 0.1
    n0.step(hang=True)
    n0.finish()
    n0.core.hanging_found(0, [], True)
    (n0.core.demote if how == "demote" else n0.core.forget)(0)
    world.primary.pop(0)
    for _ in range(200):
        world.now += 1.0
        n0.step()
    others = [segment for segment in range(1, SEGMENTS) if partition_of(segment, PARTITIONS, SEGMENTS) == 0]
    assert others
    assert all("interval" in world.reader(segment).resets for segment in others)
