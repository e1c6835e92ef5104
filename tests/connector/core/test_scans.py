"""Scans: they wait for a record of our own, serve several segments, and resume."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import FindHanging, Place, Scan
from deelog_connector.core.hanging import HangingTransactions
from deelog_connector.core.reset_strategy import KeysInKafka, Strategy
from deelog_connector.core.scan import SegmentScan
from deelog_connector.core.scans import Scans
from deelog_connector.core.segment import Phase, Reset, Segment
from deelog_connector.core.state import NodeState
from deelog_schemas.header import Kind
from deelog_schemas.keys import partition_of
from tests.connector.core.builders import PARTITIONS, SEGMENTS, node, primary, scanned
from tests.connector.world import (
    World,
    key_of,
    started,
)


def test_read_to_own_record() -> None:
    """An open transaction of any producer hides the claim: nothing is decided until it has ended."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.own(1, n2, n0)
    world.settle()
    world.put(key_of(1), b"a")
    n2.step(hang=True)  # segment 1 is on segment 0's partition
    world.own(0, n1)
    for _ in range(20):
        n1.step()
    assert n1.core.phase(0) == "look"
    n2.finish()
    world.settle()
    assert n1.core.phase(0) == "writing"
    world.check()


def test_a_takeover_does_not_wait_for_what_consumers_hold() -> None:
    """Both are on one partition: the takeover's scan comes before the scan for keys."""
    world = World(1, strategy=Strategy.TOMBSTONES)
    node = world.nodes["n0"]
    for segment in (0, 1):
        world.own(segment, node)
    world.settle()
    node.core.request_reset(0, "signal")
    world.own(1, node)
    scans = []
    carry_out = node.carry_out

    def note(effect: object, hang: bool) -> bool:
        if type(effect).__name__ == "Scan":
            scans.append((bool(effect.keys), {s.number for s in node.core.primaries() if s.listens}))  # type: ignore[attr-defined]
        return carry_out(effect, hang)  # type: ignore[arg-type]

    node.carry_out = note  # type: ignore[method-assign]
    world.settle()
    assert (False, {0, 1}) in scans  # both waited, and the takeover was served
    assert all(not keys or waiting == {0} for keys, waiting in scans)
    world.check()


def test_a_scan_that_ends_early_goes_on_where_it_was() -> None:
    """A segment's rows are adjacent: the last record of the first segment is far below the scan's offset."""
    world = World(1, strategy=Strategy.TOMBSTONES)
    node = world.nodes["n0"]
    for segment in (0, 1):
        world.own(segment, node)
    world.settle()
    for segment in (0, 1):
        for number in range(20):
            world.put(key_of(segment, number), b"v")
        world.settle()
    for segment in (0, 1):
        node.core.request_reset(segment, "signal")
    starts: list[int] = []
    carry_out = node.carry_out

    def a_little(effect: object, hang: bool) -> bool:
        if not isinstance(effect, Scan) or not effect.keys:
            return carry_out(effect, hang)  # type: ignore[arg-type]
        starts.append(effect.from_offset)
        log = world.broker.logs["p.c", effect.partition]
        found = log.read(effect.from_offset, len(log.slots))[0][:5]
        node.core.scanned(effect.partition, node.decoder.scanned(found, effect.keys))
        node.core.scan_ended(effect.partition, True)
        return True

    node.carry_out = a_little  # type: ignore[method-assign]
    world.settle()
    assert starts == sorted(set(starts))
    assert len(starts) > 8
    world.check()


def waiting(state: NodeState, number: int, marker: bytes, scan_next: int, phase: Phase = Phase.READ) -> Segment:
    """A segment that reads up to a marker."""
    segment = primary(state, number, phase)
    segment.await_marker(marker, scan_next)
    segment.scan = SegmentScan(segment.history)
    return segment


def collecting(state: NodeState, number: int, marker: bytes, scan_next: int, start: int) -> Segment:
    """A segment that scans for the keys in Kafka."""
    segment = primary(state, number, Phase.BEGUN, reset=Reset("id", "signal", (7, 0)))
    segment.await_marker(marker, scan_next)
    segment.collect_keys(KeysInKafka(start))
    return segment


def in_one_partition(state: NodeState) -> list[int]:
    """The numbers of the segments of partition 0."""
    return [n for n in range(8) if state.segment(n).partition == 0]


def test_a_scan_of_a_partition_is_for_all_that_wait_there() -> None:
    state = node()
    first, second, third, other = *in_one_partition(state)[:3], 7
    waiting(state, first, b"m1", 30)
    waiting(state, second, b"m2", 20)
    waiting(state, third, b"m3", 10)
    waiting(state, other, b"m4", 5)
    scans = Scans(state, HangingTransactions(state))
    assert scans.idle
    assert scans.effects(state.working(), {third}) == [
        Scan(0, 20, frozenset({b"m1", b"m2"})),
        Scan(1, 5, frozenset({b"m4"})),
    ]
    assert not scans.idle
    assert scans.effects(state.working(), ()) == []  # both are under way
    scans.ended(1, True)
    assert scans.effects(state.working(), ()) == [Scan(1, 5, frozenset({b"m4"}))]


def test_a_takeover_is_read_before_keys_are_collected() -> None:
    state = node()
    first, second = in_one_partition(state)[:2]
    collecting(state, first, b"m1", 30, 2)
    taken = waiting(state, second, b"m2", 20)
    scans = Scans(state, HangingTransactions(state))
    assert scans.effects(state.working(), ()) == [Scan(0, 20, frozenset({b"m2"}))]
    scans.ended(0, True)
    taken.marker = None
    assert scans.effects(state.working(), ()) == [Scan(0, 2, frozenset({b"m1"}), frozenset({first}))]


def test_a_segment_reads_up_to_its_marker_and_not_again_what_it_has_read() -> None:
    state = node()
    first, second, late = in_one_partition(state)[:3]
    one, two = waiting(state, first, b"m1", 3), waiting(state, second, b"m2", 0)
    scans = Scans(state, HangingTransactions(state))
    scans.effects(state.working(), ())
    unserved = waiting(state, late, b"m3", 0)
    for segment in (one, two, unserved):
        segment.history = ((7, 99),)
        segment.scan = SegmentScan(segment.history)
    records = [
        scanned(1, first, sequence=1),  # below where it reads on
        scanned(3, first, sequence=2),
        scanned(4, second, sequence=3),
        scanned(5, first, Kind.ACTIVE, b"m1"),
        scanned(6, first, sequence=4),  # after its marker
        scanned(7, late, sequence=5),
        scanned(8, 7, sequence=6),  # of no segment here
        scanned(9, second, sequence=7),
    ]
    scans.scanned(0, records[:5])
    scans.scanned(0, records[5:])
    assert [segment.scan and segment.scan.sequences for segment in (one, two, unserved)] == [{2}, {3, 7}, set()]
    assert (one.marker_offset, two.marker_offset) == (5, -1)
    assert scans.ended(0, True) == [one]
    assert (one.marker, two.marker, unserved.marker) == (None, b"m2", b"m3")
    # The second got all records; the third continues at its own offset.
    assert (one.scan_next, two.scan_next, unserved.scan_next) == (6, 10, 0)
    assert scans.idle


def test_after_a_scan_in_vain_it_is_looked_for_what_hides_its_marker() -> None:
    state = node()
    waiting(state, in_one_partition(state)[0], b"m1", 3)
    scans = Scans(state, HangingTransactions(state))
    scans.effects(state.working(), ())
    assert scans.ended(0, False) == []
    assert state.outbox == [FindHanging(0)]
    assert state.counts.scans_in_vain == 1


@pytest.mark.parametrize(
    ("at_end", "hidden", "gone"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_marker_that_nothing_hides_is_written_again(at_end: bool, hidden: bool, gone: bool) -> None:
    state = node()
    first, second, third = in_one_partition(state)[:3]
    waits, other = waiting(state, first, b"m1", 3), waiting(state, second, b"m2", 3)
    scans = Scans(state, HangingTransactions(state))
    scans.effects(state.working(), ())
    late = waiting(state, third, b"m3", 3)
    scans.scanned(0, [scanned(5, second, Kind.ACTIVE, b"m2")])
    assert scans.ended(0, False, at_end) == [other]
    scans.hanging_found(0, [], hidden)
    assert (waits.phase, waits.marker) == ((Phase.ACTIVE, None) if gone else (Phase.READ, b"m1"))
    assert (other.phase, late.marker) == (Phase.READ, b"m3")
    again = primary(state, first, Phase.READ)
    again.await_marker(b"m1", 9)
    scans.hanging_found(0, [], False)
    assert again.phase is Phase.READ, "it is asked once for each scan"


def test_a_partition_is_hidden_until_a_scan_of_it_comes_to_its_end() -> None:
    state = node()
    number = in_one_partition(state)[0]
    scans = Scans(state, HangingTransactions(state))
    for end in ("read", "nothing is open", "forgotten"):
        waiting(state, number, b"m1", 3)
        scans.effects(state.working(), ())
        scans.ended(0, False)
        assert state.hidden == set()
        scans.hanging_found(0, [], True)
        assert state.hidden == {0}
        scans.effects(state.working(), ())
        match end:
            case "read":
                scans.ended(0, True)
            case "nothing is open":
                scans.hanging_found(0, [], False)
            case _:
                scans.forget()
        assert state.hidden == set(), end


def test_the_log_is_asked_once_for_each_leader() -> None:
    state = node()
    first, second, third = in_one_partition(state)[:3]
    for number, place in ((first, Place(1, 7)), (second, Place(1, 9)), (third, Place(3, 8))):
        segment = waiting(state, number, b"m", 3)
        assert segment.scan is not None
        segment.scan.place = place
    (effect,) = Scans(state, HangingTransactions(state)).effects(state.working(), ())
    assert effect.places == (Place(1, 9), Place(3, 8))


def test_keys_are_collected_from_the_partitions_beginning_where_the_base_does_not_do() -> None:
    state = node()
    segment = collecting(state, in_one_partition(state)[0], b"m1", 30, 10)
    scans = Scans(state, HangingTransactions(state))
    scans.effects(state.working(), ())
    scans.scanned(0, [scanned(10, segment.number), scanned(30, segment.number, Kind.RESET_BEGIN, b"m1")])
    assert scans.ended(0, True) == []  # no reset begins at 10
    assert segment.reset is not None
    assert segment.reset.keys_in_kafka == KeysInKafka(-1)
    assert (segment.scan_next, segment.marker_offset) == (-1, -1)
    assert scans.effects(state.working(), ()) == [Scan(0, -1, frozenset({b"m1"}), frozenset({segment.number}))]
    scans.scanned(0, [scanned(4, segment.number, key=b"a"), scanned(30, segment.number, Kind.RESET_BEGIN, b"m1")])
    assert segment.reset.keys_in_kafka.keys == {b"a"}
    assert scans.ended(0, True) == [segment]


def test_a_partition_that_is_withheld_is_not_scanned() -> None:
    state = node()
    first = in_one_partition(state)[0]
    elsewhere = next(n for n in range(SEGMENTS) if partition_of(n, PARTITIONS, SEGMENTS) == 1)
    waiting(state, first, b"m1", 3)
    waiting(state, elsewhere, b"m2", 4)
    scans = Scans(state, HangingTransactions(state))
    state.withheld = frozenset({0})
    assert [scan.partition for scan in scans.effects(state.working(), ())] == [1]
    state.withheld = frozenset()
    assert [scan.partition for scan in scans.effects(state.working(), ())] == [0]
