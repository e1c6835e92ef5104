"""The contents of a transaction, and their order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import orjson
import pytest

from deelog_connector.core.batch import Advance, Batch
from deelog_connector.core.batch_builder import BatchBuilder
from deelog_connector.core.effects import ControlItem, OperationsItem, RowsItem, StateItem, TakenBackItem
from deelog_connector.core.ledger import CommittedRun, Ledger
from deelog_connector.core.replica import Replica
from deelog_connector.core.reset_strategy import KeysInKafka, Strategy
from deelog_connector.core.resets import Resets
from deelog_connector.core.segment import Phase, Reset, Segment, Snapshot
from deelog_connector.core.snapshots import Snapshots
from deelog_connector.core.state import NodeState
from deelog_connector.core.takeover import Takeover
from deelog_schemas.digest import digest_of
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry, Operation
from tests.connector.core.builders import Entries, captured, node, operation, primary
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


def test_a_coalesced_run_behind_a_clear_is_in_one_transaction_as_well() -> None:
    world, (n0, _) = started(batch=2)
    world.put(key_of(0), b"a")
    world.settle()
    world.put(key_of(0), b"b")
    world.clear(0)
    for i in range(9):
        world.put(key_of(0, i % 4), b"%d" % i)
    n0.core.coalesce(0)
    while world.reader(0).resets[-1] != "clear":
        world.now += 0.1
        n0.step()
    n0.step()
    changes = [r for r in world.records(0) if r.header.kind is Kind.CHANGE]
    assert [r.header.sequence for r in changes] == [1, 9, 10, 11, 12]
    assert [orjson.loads(r.value or b"")["op"] for r in changes] == ["c"] * 5
    world.settle()
    world.check()


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


def builder(state: NodeState) -> BatchBuilder:
    snapshots = Snapshots(state)
    return BatchBuilder(state, Takeover(state, Replica(state)), Resets(state, snapshots), snapshots)


def filled(state: NodeState, number: int, count: int, **fields: Any) -> Segment:
    """A segment in phase WRITING, with acknowledged operations."""
    segment = primary(state, number, **fields)
    captured(segment, *(operation(sequence, b"k%d" % sequence) for sequence in range(1, count + 1)))
    return segment


def written(batch: Batch) -> dict[int, list[int]]:
    """The sequences in it by segment, in the order of the segments."""
    return {i.segment: [o.sequence for o in i.operations] for i in batch.items if isinstance(i, OperationsItem)}


def kinds(batch: Batch) -> list[tuple[int, Kind]]:
    return [(i.segment, i.kind) for i in batch.items if isinstance(i, ControlItem | StateItem)]


def test_a_few_operations_wait_until_a_commit_is_due() -> None:
    state = node(max_batch_size=4)
    filled(state, 0, 3)
    assert written(builder(state).next(state.working(), due=False)) == {}
    assert written(builder(state).next(state.working(), due=True)) == {0: [1, 2, 3]}
    filled(state, 1, 1)
    assert written(builder(state).next(state.working(), due=False)) == {0: [1, 2, 3], 1: [1]}


def test_a_control_record_takes_operations_along() -> None:
    state = node()
    filled(state, 0, 1)
    primary(state, 1, Phase.CLAIM)
    batch = builder(state).next(state.working(), due=False)
    assert kinds(batch) == [(1, Kind.CLAIM), (1, Kind.CLAIM_STATE), (0, Kind.POSITION)]
    assert written(batch) == {0: [1]}


def test_a_batch_is_filled_from_another_segment_each_time() -> None:
    state = node(max_batch_size=3)
    for number in range(3):
        filled(state, number, 2)
    one = builder(state)
    assert [written(one.next(state.working(), due=True)) for _ in range(4)] == [
        {1: [1, 2], 2: [1]},
        {2: [1, 2], 0: [1]},
        {0: [1, 2], 1: [1]},
        {1: [1, 2], 2: [1]},
    ]


def test_what_is_written_and_where_the_segment_is_then() -> None:
    state = node()
    segment = filled(state, 0, 5, sent=2)
    segment.acked = 4
    batch = builder(state).next(state.working(), due=True)
    assert written(batch) == {0: [3, 4]}
    assert (segment.in_flight, batch.entries) == (4, 2)
    assert batch.advances == [Advance(0, 0, Phase.WRITING, 4, 3, 2)]
    (position,) = [i for i in batch.items if isinstance(i, StateItem)]
    assert position.position == (7, 4)


def test_an_atomic_run_is_whole_or_waits() -> None:
    state = node(max_batch_size=2)
    segment = filled(state, 0, 6, sent=1, atomic_to=5)
    segment.acked = 4
    assert written(builder(state).next(state.working(), due=True)) == {}
    segment.acked = 6
    assert written(builder(state).next(state.working(), due=True)) == {0: [2, 3, 4, 5]}
    segment.sent = 5
    assert written(builder(state).next(state.working(), due=True)) == {0: [6]}


def large(sequence: int) -> Operation:
    return operation(sequence, value=b"v" * 1000)


def test_a_batch_ends_with_the_operation_that_fills_it() -> None:
    state = node()
    state.max_batch_bytes = 2500
    for number in (0, 1):
        captured(primary(state, number), *map(large, range(1, 5)))
    one = builder(state)
    batch = one.next(state.working(), due=True)
    assert (written(batch), batch.entries) == ({1: [1, 2, 3]}, 3)
    assert batch.advances == [Advance(1, 0, Phase.WRITING, 3, 1, 3)]
    assert batch.is_full
    state.max_batch_bytes = 1
    assert written(one.next(state.working(), due=True)) == {0: [1]}  # one at least
    state.segments[0].atomic_to = 3
    state.segments[1].sent = 4
    assert written(one.next(state.working(), due=True)) == {0: [1, 2, 3]}  # what must be in one transaction is


@pytest.mark.parametrize(("limit", "steps"), [(1, [1, 2, 3, 4, 5]), (5, [2, 4, 5]), (1000, [5])])
def test_deletes_and_rows_of_a_reset_end_where_the_batch_is_full(limit: int, steps: list[int]) -> None:
    """Two deletes of a key of three bytes, and three rows of four bytes."""
    entries = [Entry(b"a", b"123", None), Entry(b"b", b"123", None), Entry(b"c", b"123", None)]
    reset = Reset("id", "signal", (7, 0), 1, position=(7, 0), entries=entries, gone=[b"old", b"one"], again={b"c"})
    state = node()
    state.max_batch_bytes = limit
    segment = primary(state, 0, Phase.ROWS, reset=reset)
    one, keys, ends = builder(state), list[bytes](), list[Any]()
    for upto in steps:
        batch = one.next(state.working(), due=True)
        assert [(advance.value, advance.ended) for advance in batch.advances] == [(upto, upto == 5)]
        for item in batch.items:
            keys += item.keys if isinstance(item, TakenBackItem) else []
            keys += [entry.key for entry in item.entries] if isinstance(item, RowsItem) else []
            ends += [item.fields] if isinstance(item, ControlItem) else []
        assert batch.entries == upto - reset.cursor + (upto == 5)
        reset.cursor = upto
    assert sorted(keys) == [b"a", b"b", b"c", b"c", b"old", b"one"]
    assert [(end["count"], end["taken_back"], end["digest"]) for end in ends] == [
        (3, 2, digest_of((entry.key, entry.value) for entry in entries))
    ]
    assert segment.phase is Phase.ROWS


def test_entries_are_read_of_few_segments_in_one_poll() -> None:
    """Of no more than a transaction holds: their rows may wait for acknowledgements, and a node has many segments."""
    state = node(max_batch_size=4)
    state.cache = cache = Large()
    for number in range(7):
        owing = Reset("id", "signal", (7, 0), begin_offset=1)
        primary(state, number, Phase.ROWS, history=((7, 1),), acked=0, reset=owing)
    one, reads = builder(state), []
    for _ in range(5):
        assert one.next(state.working(), due=True).items == []
        reads.append(len(cache.read))
    assert reads == [2, 4, 6, 7, 7]
    assert sorted(cache.read) == list(range(7))


class Large(Entries):
    """Three entries in each segment; remembers which segments were read."""

    def __init__(self) -> None:
        super().__init__({})
        self.read: list[int] = []

    def entries(self, segment: int) -> list[Entry]:
        self.read.append(segment)
        return [Entry(b"%d" % number, b"v", None) for number in range(3)]


def test_only_suspects_write_after_a_refusal() -> None:
    state = node()
    for number in range(3):
        filled(state, number, 2)
    primary(state, 3, Phase.CLAIM)
    batch = builder(state).only([2, 0])
    assert written(batch) == {0: [1, 2], 2: [1, 2]}
    assert kinds(batch)[0] == (3, Kind.CLAIM)


def test_a_reset_that_may_not_write_its_rows_after_a_refusal_holds_up_no_suspect() -> None:
    state = node(reset_strategy=Strategy.TOMBSTONES)
    waiting = Reset("r", "signal", (7, 0), keys_in_kafka=KeysInKafka(0))
    primary(state, 7, Phase.ROWS, reset=waiting)  # of the other partition
    for number in (0, 1):
        primary(state, number, Phase.OWED, owed="signal")
    one = builder(state)
    assert [k for k in kinds(one.only([1])) if k[1] is Kind.RESET_BEGIN] == [(1, Kind.RESET_BEGIN)]
    batch = one.next(state.working(), due=False)
    assert (0, Kind.RESET_BEGIN) not in kinds(batch)  # the keys of one partition at a time


def test_keys_that_are_hidden_hold_up_no_other_partition() -> None:
    state = node(reset_strategy=Strategy.TOMBSTONES)
    partition = primary(
        state, 7, Phase.BEGUN, reset=Reset("r", "signal", (7, 0), keys_in_kafka=KeysInKafka(0))
    ).partition
    primary(state, 0, Phase.OWED, owed="signal")
    one = builder(state)
    assert kinds(one.next(state.working(), due=False)) == []
    state.hidden.add(partition)
    assert kinds(one.next(state.working(), due=False))[:1] == [(0, Kind.RESET_BEGIN)]


def test_whose_turn_it_is_does_not_depend_on_who_rests() -> None:
    state = node(max_batch_size=3)
    for number in range(5):
        primary(state, number, noted=Phase.WRITING)
    for number in (1, 3):
        filled(state, number, 2, noted=Phase.WRITING)
    one = builder(state)
    assert [written(one.next(state.working(), due=True)) for _ in range(4)] == [
        {1: [1, 2], 3: [1]},
        {3: [1, 2], 1: [1]},
        {3: [1, 2], 1: [1]},
        {1: [1, 2], 3: [1]},
    ]


def test_the_renewal_of_those_that_rest_is_not_missed() -> None:
    state = node(heartbeat_interval=5.0)
    one = builder(state)
    rests: dict[str, Any] = {"sent": 0, "written": 0, "noted": Phase.WRITING}
    for now, renewed in ((100.0, [0]), (101.0, [2]), (104.0, []), (105.0, [0]), (106.0, [2]), (110.0, [0])):
        state.now = now
        if renewed == [2] and now == 101.0:
            state.own(primary(state, 2, **rests))  # in its next promotion
        elif now == 100.0:
            state.own(primary(state, 0, **rests))
        assert state.working() == []
        assert kinds(one.next([], due=True)) == [(number, Kind.POSITION_RENEWAL) for number in renewed], now
    assert state.renewed_from == 106.0


@pytest.mark.parametrize("interval", [0.0, 100.0])
@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({}, True),
        ({"is_unread": False}, False),
        ({"sent": 1}, False),  # what comes next says so
        ({"undecided": True}, False),  # the stream has not heard what Kafka has
        ({"phase": Phase.ROWS}, False),
    ],
)
def test_a_position_that_was_lost_before_it_was_read_is_written_again(
    fields: dict[str, Any], written: bool, interval: float
) -> None:
    state = node(heartbeat_interval=interval)
    state.now, state.renewed_from = 10.0, -math.inf
    values: dict[str, Any] = {"sent": 2, "written": 0, "is_unread": True, "history": ((7, 2),)} | fields
    segment = primary(state, 0, **values)
    batch = builder(state).next([], due=True)
    assert [kind for _, kind in kinds(batch)] == [Kind.POSITION_RENEWAL] * written
    assert segment.is_unread is (fields.get("is_unread", True) and not written)


def test_the_position_of_an_idle_segment_is_renewed() -> None:
    state = node(heartbeat_interval=5.0)
    idle = primary(state, 0, sent=3, written=3, history=((7, 3),), renewed_at=100.0)
    primary(state, 1, sent=3, written=2, history=((7, 3),))
    one = builder(state)
    for now, renewed in ((104.9, False), (105.0, True), (106.0, False), (110.0, True)):
        state.now = now
        assert kinds(one.next(state.working(), due=False)) == []
        assert kinds(one.next(state.working(), due=True)) == [(0, Kind.POSITION_RENEWAL)] * renewed
    assert idle.renewed_at == 110.0
    state.settings = replace(state.settings, heartbeat_interval=0.0)
    state.now = 999.0
    assert kinds(one.next(state.working(), due=True)) == []


@pytest.mark.parametrize(
    ("fields", "released"),
    [
        ({}, True),
        ({"release_wanted": False}, False),
        ({"owed": "signal"}, False),
        ({"written": 2}, False),
        ({"ledger": Ledger(since_last_look=[CommittedRun(-1, -1, 1, 5)])}, False),
        ({"ledger": Ledger(since_last_look=[CommittedRun(3, 3, 1, 5)])}, True),
    ],
)
def test_what_is_drained_is_released(fields: dict[str, Any], released: bool) -> None:
    state = node(heartbeat_interval=0.0)
    drained: dict[str, Any] = {"sent": 3, "written": 3, "history": ((7, 3),), "release_wanted": True}
    segment = primary(state, 0, **drained | fields)
    batch = builder(state).next(state.working(), due=True)
    assert ((0, Kind.RELEASE) in kinds(batch)) is released
    assert segment.phase is (Phase.RELEASING if released else Phase.WRITING)


def test_chunks_of_a_snapshot_come_last_and_one_at_least() -> None:
    state = node({b"a": b"1", b"b": b"2"}, max_batch_size=2, heartbeat_interval=0.0)
    segment = primary(state, 0, snapshot=Snapshot())
    filled(state, 1, 2)
    batch = builder(state).next(state.working(), due=True)
    assert [type(i) for i in batch.items] == [OperationsItem, StateItem, RowsItem]
    assert batch.entries == 4
    segment.release_wanted = True
    assert not builder(state).next(state.working(), due=True).chunks
