"""The core's interface: roles, and the figures of the core as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deelog_connector.cache_side import CaptureSink, ReplicaSink
from deelog_connector.core import ConnectorCore, Settings
from deelog_connector.core.effects import Cause, OpenProducer, Released
from deelog_connector.core.segment import Phase
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_schemas.operation import Operation, Reason
from deelog_schemas.positions import ClaimState, StateRecord
from tests.connector.core.builders import Entries
from tests.connector.world import (
    SEGMENTS,
    World,
    key_of,
    started,
)


def test_promote_needs_a_higher_epoch() -> None:
    _world, (n0, _) = started()
    with pytest.raises(ValueError, match="epoch 1 is not above"):
        n0.core.promote(0, 1)


def test_initial_only_is_finished_once_every_segment_is_sent() -> None:
    world = World(1, mode=SnapshotMode.INITIAL_ONLY)
    node = world.nodes["n0"]
    assert not node.core.finished
    for segment in range(SEGMENTS):
        node.cache[key_of(segment)] = b"there"
        world.own(segment, node)
    seen = []
    for _ in range(30):
        world.now += 0.1
        node.step()
        seen.append((node.core.finished, {node.core.phase(s) for s in range(SEGMENTS)} == {"writing"}))
    assert all(finished is sent for finished, sent in seen)
    assert seen[0] == (False, False)
    assert seen[-1] == (True, True)
    node.core._segments[0].owed = "signal"
    assert not node.core.finished
    world.check()
    node.core._segments[0].owed = None
    node.core.configured(replace(node.core.settings, snapshot_mode=SnapshotMode.INITIAL))
    assert not node.core.finished


def test_a_segments_life_from_owner_to_owner() -> None:
    """Every call of the cache and of the shell is answered by the part that it is meant for."""
    calls = {name for name in vars(CaptureSink) | vars(ReplicaSink) if not name.startswith("_")}
    assert {name for name in calls if not hasattr(core(), name)} == set()
    world, (n0, n1) = started()
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), b"phantom", acked=False)
    n0.core.acked_here(0, 2)
    world.settle(n0)
    world.put(key_of(0), b"late", acked=False)
    n0.core.acked_here(0, 3)
    n0.step(hang=True)
    world.own_all(n1)
    world.settle(n1)
    assert ("n1", "n0") in world.fences
    assert n1.core.counts.corrections == 1
    n0.finish()
    world.settle()
    assert world.refused == [("n0", Cause.FENCED)]
    assert [n0.core.phase(segment) for segment in range(SEGMENTS)] == ["idle"] * SEGMENTS
    world.put(key_of(0), b"1")
    world.put(key_of(0), b"2")
    assert n1.core.coalesce(0) == 1
    n1.core.snapshot(1)
    assert not n1.core.may_snapshot(1)
    n1.core.overflow(2)
    n1.core.ask_reset(3, "signal")
    world.settle()
    assert n1.core.counts.resets == {"overflow": 1, "signal": 1}
    n1.core.release(0)
    world.settle()
    assert [effect.segment for effect in n1.announced(Released)] == [0]
    world.check()


def test_the_state_of_a_segment_that_is_not_ours_is_known_all_the_same() -> None:
    one = core()
    one.state_read(StateRecord("claim", 3, "n0@5", ClaimState(9, "n0@5", "", "", 8, 2, 1)))
    assert (one.highest_claim(), one.owned()) == (9, [])


def core(**settings: Any) -> ConnectorCore:
    return ConnectorCore("n0@5", Settings(8, 2, **settings), Entries({}))


def put(one: ConnectorCore, segment: int, ts_us: int = 0) -> Operation:
    return one.append(segment, Reason.PUT, b"k", b"v", None, ts_us, False)


def test_a_segment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"segment 8 does not exist \(segment.count=8\)"):
        core().promote(8, 1)


def test_a_promotion_begins_anew() -> None:
    one = core()
    one.promote(0, 1)
    put(one, 0)
    one.acked(0, 1)
    one.release(0)
    (segment,) = one.primaries()
    segment.victims, segment.atomic_to = frozenset({(1, "n2@1")}), 1
    segment.ledger.rows_committed(1, 0)
    one.demote(0)
    one.promote(0, 3, must_reset="owners_lost")
    assert one.primaries() == [segment]
    assert (segment.victims, segment.atomic_to, segment.ledger.unverified) == (frozenset(), 0, [])
    assert (segment.acked, segment.replicated, segment.release_wanted) == (0, 0, False)
    assert (segment.owed, segment.phase, segment.epoch) == ("owners_lost", Phase.CLAIM, 3)
    assert one.history(0) == ((1, 1), (3, 1))


def test_roles_and_what_is_left_of_them() -> None:
    one = core()
    one.promote(0, 1)
    one.promote(1, 1)
    put(one, 0)
    one.demote(0)
    assert ([s.number for s in one.primaries()], [s.number for s in one.owned()]) == ([1], [0, 1])
    assert (one.phase(0), one.phase(1), one.phase(2), one.last_sequence(0)) == ("idle", "claim", "idle", 1)
    one.forget(0)
    one.forget(2)
    assert ([s.number for s in one.owned()], one.last_sequence(0), one.budget.operations) == ([1], 0, 0)


def test_what_every_owner_holds_is_acknowledged_and_the_reverse_is_not_so() -> None:
    one = core()
    one.promote(0, 1)
    (segment,) = one.primaries()
    one.acked_here(0, 4)
    assert (segment.acked, segment.replicated) == (4, 0)
    one.acked(0, 2)
    one.acked(0, 1)
    assert (segment.acked, segment.replicated) == (4, 2)
    one.acked(0, 5)
    one.acked_here(0, 3)
    assert (segment.acked, segment.replicated) == (5, 5)


@pytest.mark.parametrize(
    ("phase", "kept"),
    [(Phase.WRITING, True), (Phase.CLAIM, True), (Phase.RELEASING, True), (Phase.RELEASED, False)],
)
def test_a_release_is_taken_back_until_kafka_has_it(phase: Phase, kept: bool) -> None:
    one = core()
    one.promote(0, 1)
    (segment,) = one.primaries()
    one.release(0)
    segment.phase = phase
    assert one.keep(0) is kept
    assert segment.release_wanted is not kept


def test_kafka_is_waited_for_while_it_answers_no_opening_and_gives_no_release_back() -> None:
    one = core()
    one.poll(10.0, 0)
    assert not one.waits(0.0)
    one.poll(12.0, 0)
    assert (one.waits(1.9), one.waits(2.0)) == (True, False)
    one.producer_opened()
    assert not one.waits(0.0)
    one.paused = True
    one.promote(0, 1)
    (segment,) = one.primaries()
    segment.phase = Phase.RELEASING
    one.poll(13.0, 0)
    one.poll(15.0, 0)
    assert (one.waits(1.9), one.waits(2.0)) == (True, False)
    segment.phase = Phase.CLAIM
    assert not one.waits(0.0)


def test_what_is_unwritten_and_since_when() -> None:
    one = core()
    for number in range(4):
        one.promote(number, 1)
    for ts_us in (50, 60, 70):
        put(one, 0, ts_us)
    writing, owing, released, taken = one.primaries()
    writing.phase, writing.written = Phase.WRITING, 1
    owing.phase, owing.owed = Phase.WRITING, "signal"
    released.phase = Phase.RELEASED
    assert taken.phase is Phase.CLAIM
    assert one.unwritten() == 2 + 1 + 0 + 1
    assert [one.captured_after(0, sequence) for sequence in (0, 1, 2, 3)] == [50, 60, 70, None]
    assert one.captured_after(7, 0) is None
    assert (one.written(0), one.written(7)) == (1, None)


def test_the_producer_is_closed_only_when_nothing_is_under_way() -> None:
    one = core()
    with pytest.raises(AssertionError, match="not paused"):
        one.close_producer()
    one.paused = True
    assert one.poll(1.0, 0) == [OpenProducer()]
    with pytest.raises(AssertionError, match="under way"):
        one.close_producer()
    one.producer_opened()
    assert one.idle
    one.close_producer()
    assert one.closed
    assert one.poll(2.0, 0) == []
    one.closed = one.paused = False
    assert one.poll(3.0, 0) == [OpenProducer()]
    one.producer_opened()
    assert (one.topic_is("t1"), one.poll(4.0, 0)) == (False, [])
    assert (one.topic_is("t2"), one.poll(5.0, 0)) == (True, [OpenProducer()])


def test_other_limits_hold_at_once_and_the_map_of_segments_stays() -> None:
    one = core()
    one.configured(Settings(8, 2, max_operations=1, max_bytes=100))
    assert one.settings.max_operations == 1
    assert not one.has_room(101)
    one.promote(0, 1)
    put(one, 0)
    assert not one.has_room(1)
    for other in (Settings(9, 2), Settings(8, 3)):
        with pytest.raises(AssertionError):
            one.configured(other)
