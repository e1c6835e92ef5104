"""Resets: what requests one, when it is done, and what it deletes for consumers that do not know resets.

Bad input: a base offset of a reset that deleted nothing, of one without an end, of another segment, or beyond the log's
end; a value in another format; a reset of an owner that died.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from deelog_connector.core.batch import Batch
from deelog_connector.core.effects import ControlItem, RowsItem, Scan, SnapshotRead, StateItem
from deelog_connector.core.ledger import CommittedRun
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.core.resets import Resets
from deelog_connector.core.segment import Phase, Reset, Snapshot
from deelog_connector.core.snapshots import Snapshots
from deelog_connector.core.state import NodeState
from deelog_connector.kafka_port import InRecord
from deelog_connector.transforms.pipeline import Pipeline
from deelog_proof.simulation.filtering import BY_VALUE, fields_of
from deelog_schemas.errors import RecordError
from deelog_schemas.header import HEADER_NAME, Kind, pack
from deelog_schemas.operation import Reason
from deelog_schemas.positions import PositionState, StateRecord
from deelog_schemas.records import Record
from tests.connector.cache import config_of
from tests.connector.core.builders import node, primary
from tests.connector.world import (
    SEGMENTS,
    Node,
    World,
    key_of,
    started,
)

TAKING_BACK = [Strategy.TOMBSTONES, Strategy.RESEND]
KEYS = sorted(key_of(0, number) for number in range(4))


def lost_world(strategy: Strategy) -> tuple[World, Node]:
    """Three keys are written. Their only owner dies; its successor has one of them, and a new one."""
    world = World(1, strategy=strategy)
    node = world.nodes["n0"]
    world.own(0, node)
    world.settle()
    for key in KEYS[:3]:
        world.put(key, b"old")
    world.settle()
    world.crash(node)
    node = world.restart(node)
    node.cache = {KEYS[1]: b"old", KEYS[3]: b"new"}
    world.own(0, node, must_reset="owners_lost")
    world.settle()
    return world, node


def of_the_last_reset(world: World) -> list[str]:
    """The records that a consumer reads as entries or deletes, from the last begin on."""
    codec, found = world.nodes["n0"].encoder._codec, list[str]()
    for record in world.records(0):
        if record.header.kind is Kind.RESET_BEGIN:
            found = []
        elif record.header.kind in (Kind.CHANGE, Kind.TOMBSTONE, Kind.READ):
            name = KEYS.index(codec.decode_key(record.key))
            found.append(f"{'tombstone' if record.value is None else codec.decode_value(record.value).op} {name}")
    return found


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.MARKER, "r 1, r 3"),
        (Strategy.TOMBSTONES, "d 0, tombstone 0, d 2, tombstone 2, r 1, r 3"),
        (Strategy.RESEND, "d 0, tombstone 0, d 2, tombstone 2, d 1, tombstone 1, r 1, r 3"),
    ],
)
def test_what_each_strategy_writes(strategy: Strategy, expected: str) -> None:
    world, node = lost_world(strategy)
    assert ", ".join(of_the_last_reset(world)) == expected
    kept_wrongly = set() if strategy.takes_back else {KEYS[0], KEYS[2]}
    assert world.stock(0).keys() == node.cache.keys() | kept_wrongly
    world.check()


@pytest.mark.parametrize("strategy", TAKING_BACK)
def test_a_consumer_that_knows_nothing_of_resets_holds_what_the_cache_holds(strategy: Strategy) -> None:
    world, node = lost_world(strategy)
    assert world.stock(0) == node.cache
    reader = world.reader(0)  # raises where a position comes twice
    assert reader.resets == ["initial", "owners_lost"]


@pytest.mark.parametrize("strategy", TAKING_BACK)
def test_a_clear_takes_every_key_back(strategy: Strategy) -> None:
    world = World(1, strategy=strategy)
    world.own(0, world.nodes["n0"])
    for number in range(5):
        world.put(key_of(0, number), b"v")
    world.settle()
    world.clear(0)
    world.put(key_of(0, 2), b"later")
    world.settle()
    assert world.stock(0) == {key_of(0, 2): b"later"}
    assert world.nodes["n0"].core.counts.reset_deletes == 5
    world.check()


def test_a_reset_reads_from_the_last_one_that_took_back_however_short_ago_that_was() -> None:
    world = World(1, strategy=Strategy.TOMBSTONES)
    node = world.nodes["n0"]
    world.own(0, node)
    world.put(key_of(0), b"v")
    world.settle()
    world.watching = False  # nobody asks for the partition's end in between
    scans: list[int] = []
    carry_out = node.carry_out

    def note(effect: object, hang: bool) -> bool:
        if isinstance(effect, Scan):
            scans.append(effect.from_offset)
        return carry_out(effect, hang)  # type: ignore[arg-type]

    node.carry_out = note  # type: ignore[method-assign]
    for _ in range(3):
        base = node.core._segments[0].ledger.base_offset
        end = node.core.end_of(0)[0]
        node.core.request_reset(0, "signal")
        world.settle()
        assert scans == [min(base, end)]
        scans.clear()
    world.check()


def test_with_a_marker_alone_a_clear_is_not_seen() -> None:
    world = World(1)
    world.own(0, world.nodes["n0"])
    world.put(key_of(0), b"v")
    world.settle()
    world.clear(0)
    world.settle()
    assert world.stock(0) == {key_of(0): b"v"}
    world.check()


def test_what_a_marker_left_behind_is_taken_back_by_the_next_reset_of_another_strategy() -> None:
    """The base offset is then that of a reset that deleted nothing: the records below it count, too."""
    world = World(1)
    world.own(0, world.nodes["n0"])
    world.put(key_of(0), b"v")
    world.settle()
    world.clear(0)
    world.settle()
    world.strategy = Strategy.TOMBSTONES
    world.crash(world.nodes["n0"])
    node = world.restart(world.nodes["n0"])
    world.own(0, node, must_reset="owners_lost")
    world.settle()
    assert world.stock(0) == {}
    assert node.core.counts.reset_deletes == 1


@pytest.mark.parametrize("strategy", TAKING_BACK)
def test_what_was_taken_back_once_is_not_taken_back_again(strategy: Strategy) -> None:
    world, node = lost_world(strategy)
    gone = node.core.counts.reset_deletes
    assert gone == 2
    for _ in range(2):
        node.core.request_reset(0, "signal")
        world.settle()
    assert node.core.counts.reset_deletes == gone
    world.check()


@pytest.mark.parametrize("strategy", TAKING_BACK)
def test_a_living_key_is_not_missing_when_its_reset_is_abandoned(strategy: Strategy) -> None:
    """The owner dies within its reset. After every commit consumers have all living keys that were written before."""
    world = World(2, batch=1, strategy=strategy)
    n0, n1 = world.nodes.values()
    world.own(0, n0, n1)
    world.settle()
    living = {key_of(0, number): b"v" for number in range(6)}
    for key, value in living.items():
        world.put(key, value)
    gone = [key_of(0, number) for number in range(6, 9)]
    for key in gone:
        world.put(key, b"v")
    world.settle()
    n0.cache, n1.cache = dict(living), dict(living)  # lost without a delete
    n0.core.request_reset(0, "signal")
    for _ in range(100):
        world.now += 0.1
        n0.step()
        if n0.core.phase(0) == "rows" and n0.core.segments and n0.core._segments[0].reset.cursor >= 5:  # type: ignore[union-attr]
            break
        assert living.items() <= world.stock(0).items()
    assert n0.core.phase(0) == "rows"
    assert living.items() <= world.stock(0).items()
    world.crash(n0)
    world.own(0, n1)
    world.settle(n1)
    assert world.reader(0).resets[-1] == "open_reset"
    assert world.stock(0) == living


@pytest.mark.parametrize("strategy", TAKING_BACK)
def test_deletes_wait_until_the_position_of_the_reset_is_acknowledged(strategy: Strategy) -> None:
    """CHECK reset-acked-only: a remove that no other owner has may not survive."""
    world = World(2, strategy=strategy)
    n0, n1 = world.nodes.values()
    world.own(0, n0, n1)
    world.put(key_of(0), b"v")
    world.settle()
    world.put(key_of(0), None, acked=False)
    n0.core.request_reset(0, "signal")
    world.settle()
    assert world.stock(0) == {key_of(0): b"v"}
    world.crash(n0)
    world.own(0, n1)
    world.settle(n1)
    assert world.stock(0) == n1.cache == {key_of(0): b"v"}


@pytest.mark.parametrize("strategy", [Strategy.TOMBSTONES, Strategy.RESEND])
def test_a_key_whose_row_is_left_out_is_taken_back(strategy: Strategy) -> None:
    """The key is in the cache, but a transform drops its last value and its row."""
    config = config_of("memory:9092", "p", **fields_of(BY_VALUE))
    world = World(1, strategy=strategy, pipeline=Pipeline.of(config, time, Counter()))
    node = world.nodes["n0"]
    world.own(0, node)
    world.settle()
    values = [b"%d" % number for number in range(40)]
    kept, dropped = (next(v for v in values if zlib.crc32(v) % 2 == odd) for odd in (0, 1))
    world.put(key_of(0), kept)
    world.settle()
    world.put(key_of(0), dropped)
    world.settle()
    assert world.stock(0) == {key_of(0): kept}
    for _ in range(2):
        node.core.request_reset(0, "signal")
        world.settle()
        assert world.stock(0) == {}


def raw(kind: Kind, key: bytes, value: bytes | None) -> InRecord:
    return InRecord("p.c", 0, 3, key, value, [(HEADER_NAME, pack(kind, 0, 1, 1, 0))])


def test_the_decoder_says_what_is_gone_and_keeps_what_it_cannot_read() -> None:
    world, node = lost_world(Strategy.TOMBSTONES)
    rows = [r for r in world.records(0) if r.header.kind in (Kind.READ, Kind.TOMBSTONE)]
    key = rows[0].key
    wanted = frozenset({0})
    found = node.decoder.scanned([as_read(r) for r in rows], wanted)
    assert [r.gone for r in found] == [r.header.kind is Kind.TOMBSTONE for r in rows]
    assert all(r.key for r in found)
    assert not any(r.gone for r in node.decoder.scanned([as_read(r) for r in rows]))
    assert [r.gone for r in node.decoder.scanned([raw(Kind.CHANGE, key, b"\0Avro")], wanted)] == [False]
    with pytest.raises(RecordError, match=r"the record key"):
        node.decoder.scanned([raw(Kind.READ, b"\0Avro", b"{}")], wanted)


def as_read(record: Record) -> InRecord:
    headers: list[tuple[str, bytes | None]] = [(HEADER_NAME, pack(*record.header))]
    return InRecord(record.topic, record.partition, record.offset, record.key, record.value, headers)


def test_our_readers_pass_over_deletes_of_a_reset() -> None:
    """They are of kind tombstone at the position of the rows: never below the mark, so never a repeat."""
    world, _ = lost_world(Strategy.RESEND)
    inside = [r for r in world.records(0) if r.header.kind in (Kind.READ, Kind.TOMBSTONE)]
    assert len({r.header.position for r in inside}) == 1
    assert all(a.offset < b.offset for a, b in pairwise(inside))
    assert {r.header.kind for r in inside if r.value is not None and b'"op":"d"' in r.value} == {Kind.TOMBSTONE}


def test_reset_acked_only() -> None:
    world, (n0, _) = started()
    world.put(key_of(0), b"a", acked=False)
    n0.core.overflow(0)
    world.settle()
    assert world.kinds(0)[-1] == "RESET_BEGIN"
    world.ack(0)
    world.settle()
    assert world.kinds(0)[-1] == "RESET_END"
    world.check()


def test_a_reset_that_nobody_was_there_to_do_is_done_by_the_successor() -> None:
    """It is requested after the primary's death and before the next view: both nodes have read it, neither did it."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"v")
    world.settle()
    world.crash(n0)
    n1.core.ask_reset(0, "signal")
    world.own(0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "signal"]
    world.own(0, n1)  # once
    world.settle()
    assert world.reader(0).resets == ["initial", "signal"]
    world.check()


def test_a_reset_that_was_asked_for_is_not_done_again_by_the_successor() -> None:
    world, (n0, n1) = started()
    for one in (n0, n1):
        one.core.ask_reset(0, "signal")
    world.settle()
    assert world.reader(0).resets == ["initial", "signal"]
    world.own(0, n1, n0)
    world.settle()
    assert world.reader(0).resets == ["initial", "signal"]
    world.check()


@pytest.mark.parametrize("back", [False, True])
def test_a_reset_that_the_primary_could_not_do_is_done_by_the_next_one(back: bool) -> None:
    """Nothing may be written for minutes; the segment moves meanwhile, and perhaps back."""
    world, (n0, n1) = started()
    world.settle()
    for one in (n0, n1):
        one.core.paused = True
        one.core.ask_reset(0, "signal")
    world.now += 3600.0
    world.settle()
    world.own(0, n1, n0)
    if back:
        world.own(0, n0, n1)
    for one in (n0, n1):
        one.core.paused = False
    world.settle()
    assert world.reader(0).resets == ["initial", "signal"]
    world.check()


@pytest.mark.parametrize(("first", "then"), [(0.0, 40.0), (40.0, 0.0)])
def test_another_interval_holds_at_once(first: float, then: float) -> None:
    world = World(1, interval=first)
    node = world.nodes["n0"]
    world.own_all(node)
    world.settle()
    node.core.configured(replace(node.core.settings, reset_interval=then))
    before = node.core.counts.resets["interval"]
    for _ in range(200):
        world.now += 0.5
        node.step()
    assert (node.core.counts.resets["interval"] > before) is (then > 0)


def test_each_segment_is_reset_once_in_the_interval_and_one_at_a_time() -> None:
    world = World(1, interval=40.0)
    node = world.nodes["n0"]
    world.own_all(node)
    for segment in range(SEGMENTS):
        world.put(key_of(segment), b"quiet")
    world.settle()
    start, resetting = world.now, 0
    while world.now < start + 120.0:
        world.now += 0.5
        node.step()
        resetting = max(resetting, sum(node.core.phase(s) != "writing" for s in range(SEGMENTS)))
    assert resetting == 1
    assert {tuple(world.reader(s).resets) for s in range(SEGMENTS)} == {("initial", *["interval"] * 3)}
    world.check()


def test_a_turn_whose_records_are_hidden_holds_up_no_other_partition() -> None:
    state = node(reset_interval=40.0)
    state.wall_us = 10**15
    resets = Resets(state, Snapshots(state))
    resets.start_scheduled()  # from now on
    stuck = primary(state, 0, Phase.BEGUN)
    others = [primary(state, number) for number in range(1, state.settings.segments)]
    state.wall_us += 41_000_000
    resets.start_scheduled()
    assert {other.phase for other in others} == {Phase.WRITING}
    state.hidden.add(stuck.partition)
    resets.start_scheduled()
    owed = [other.number for other in others if other.phase is Phase.OWED]
    assert [state.segments[number].partition for number in owed] == [1 - stuck.partition]


def test_turns_that_fell_into_an_outage_come_one_at_a_time() -> None:
    world = World(1, interval=40.0)
    node = world.nodes["n0"]
    world.own_all(node)
    world.settle()
    node.core.paused = True
    for _ in range(2):
        world.now += 50.0
        node.step()
    node.core.paused = False
    begun = []
    for _ in range(60):
        world.now += 0.05
        node.step()
        begun.append({s for s in range(SEGMENTS) if node.core.phase(s) != "writing"})
    assert max(map(len, begun)) == 1
    assert {s for found in begun for s in found} == set(range(SEGMENTS))
    world.check()


def test_turns_go_on_at_the_next_owner_and_wait_for_its_takeover() -> None:
    world = World(2, interval=40.0)
    n0, n1 = world.nodes.values()
    world.own(0, n0, n1)
    world.put(key_of(0), b"quiet")
    world.settle()
    start = world.now
    while world.now < start + 100.0:
        world.now += 0.5
        n0.step()
        n1.step()
        if world.now == start + 50.0:
            world.own(0, n1, n0)
    assert world.reader(0).resets.count("interval") in (2, 3)  # 100 / 40
    world.check()


def test_what_is_to_be_released_is_not_reset_again() -> None:
    world = World(1, interval=40.0)
    node = world.nodes["n0"]
    world.own(0, node)
    world.settle()
    world.put(key_of(0), b"v", acked=False)
    node.core.release(0)
    for _ in range(100):
        world.now += 0.5
        node.step()
    assert world.kinds(0).count("RESET_BEGIN") == 1
    world.ack(0)
    world.settle()
    assert node.core.phase(0) == "released"


def resets(state: NodeState) -> Resets:
    return Resets(state, Snapshots(state))


@pytest.mark.parametrize(
    ("phase", "recheck", "after"),
    [
        (Phase.WRITING, False, Phase.OWED),
        (Phase.STOPPED, False, Phase.OWED),
        (Phase.STOPPED, True, Phase.ACTIVE),
        (Phase.READ, False, Phase.READ),
    ],
)
def test_a_reset_is_owed_at_once_or_after_the_takeover(phase: Phase, recheck: bool, after: Phase) -> None:
    state = node()
    segment = primary(state, 0, phase, recheck=recheck, generation=3)
    resets(state).request(0, "signal")
    assert (segment.phase, segment.owed) == (after, "signal")
    assert segment.generation == (3 if phase is after else 4)


@pytest.mark.parametrize(
    ("phase", "reset", "owed", "kept"),
    [
        (Phase.BEGUN, Reset("id", "initial", (7, 0)), None, True),  # its rows will be as new
        (Phase.ROWS, Reset("id", "initial", (7, 0), position=(7, 0)), "signal", True),
        (Phase.OWED, Reset("id", Reason.CLEAR, (7, 0), position=(7, 0)), "signal", False),
        (Phase.OWED, Reset("id", "initial", (7, 0), position=(7, 0)), "signal", True),
    ],
)
def test_a_reset_during_another_one(phase: Phase, reset: Reset, owed: str | None, kept: bool) -> None:
    state = node()
    segment = primary(state, 0, phase, reset=reset)
    resets(state).request(0, "signal")
    assert (segment.owed, segment.phase) == (owed, phase)
    assert (segment.reset is reset) is kept


def test_a_backup_remembers_a_request_until_a_reset_has_ended() -> None:
    state = node()
    one, backup = resets(state), state.segment(0)
    one.ask(5, "signal")  # not an owner
    assert one.requested(backup) is None
    one.ask(0, "signal")
    assert one.requested(backup) == "signal"
    state.positions.apply(StateRecord("position", 0, "", PositionState(7, 0, 0, 0, 0, 0, 12, 0, "t", "n1@1")))
    assert one.requested(backup) is None  # another reset has ended since


def test_rows_are_written_by_chunks_and_the_end_with_the_last() -> None:
    state = node({b"a": b"1", b"b": b"2", b"c": b"3"}, chunk_size=2)
    one, segment = resets(state), primary(state, 0, Phase.OWED, owed="signal", snapshot=Snapshot())
    batch = Batch(state)
    one.begin(batch, segment)
    (begin, opened) = batch.items
    assert isinstance(begin, ControlItem)
    assert (begin.kind, begin.fields["reason"], begin.fields["strategy"]) == (Kind.RESET_BEGIN, "signal", "marker")
    assert isinstance(opened, StateItem)
    assert (segment.owed, segment.listens) == (None, False)
    segment.phase, segment.marker_offset = Phase.BEGUN, 40
    one.begun(segment)
    for keys, first, last in (([b"a", b"b"], True, False), ([b"c"], False, True)):
        batch = Batch(state)
        one.rows(batch, segment)
        (rows,) = [i for i in batch.items if isinstance(i, RowsItem)]
        assert ([e.key for e in rows.entries], rows.first, rows.last, batch.entries) == (keys, first, last, len(keys))
        (advance,) = batch.advances
        assert (advance.value, advance.ended) == (2 if first else 3, last)
        if first:
            one.rows_committed(segment, advance.value, advance.ended)
            assert (segment.phase, state.counts.reset_rows) == (Phase.ROWS, 2)
    ends = [i for i in batch.items if isinstance(i, ControlItem)]
    assert [(i.kind, i.fields["count"]) for i in ends] == [(Kind.RESET_END, 3)]
    assert (segment.ledger.base_offset, segment.ledger.read_from) == (40, 40)
    one.rows_committed(segment, 3, True)
    assert (segment.phase, segment.reset, segment.sent) == (Phase.WRITING, None, 0)
    assert (state.counts.resets, state.counts.reset_rows, state.reset_here) == ({"signal": 1}, 3, {0})
    assert segment.ledger.unverified == [CommittedRun(0, 0, 0, 40)]
    assert state.outbox == [SnapshotRead(0, 3, 7)]


def test_rows_wait_until_their_position_is_acknowledged() -> None:
    state = node({b"a": b"1"})
    segment = primary(state, 0, Phase.ROWS, history=((7, 4),), acked=3, reset=Reset("id", "signal", (7, 4)))
    batch = Batch(state)
    resets(state).rows(batch, segment)
    assert batch.items == []
    segment.acked = 4
    resets(state).rows(batch, segment)
    assert len(batch.items) == 5  # open reset, rows, end, position, no open reset
    assert segment.in_flight == 4


def test_another_reset_that_was_asked_for_meanwhile_follows() -> None:
    state = node()
    reset = Reset("id", Reason.CLEAR, (7, 4), position=(7, 4))
    segment = primary(state, 0, Phase.ROWS, owed="signal", reset=reset)
    resets(state).rows_committed(segment, 0, True)
    assert (segment.phase, state.counts.written, state.reset_here) == (Phase.OWED, 1, set())
