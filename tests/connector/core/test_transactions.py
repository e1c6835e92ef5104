"""Transactions: what is written when, and how the record that Kafka refuses is found."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import Cause, Commit, OpenProducer, SnapshotRead, StateItem
from deelog_connector.core.hanging import HangingTransactions
from deelog_connector.core.ledger import CommittedRun
from deelog_connector.core.replica import Replica
from deelog_connector.core.resets import Resets
from deelog_connector.core.room import Room
from deelog_connector.core.segment import Phase, Snapshot
from deelog_connector.core.snapshots import Snapshots
from deelog_connector.core.state import NodeState
from deelog_connector.core.takeover import Takeover
from deelog_connector.core.transactions import ProducerState, Transactions
from deelog_schemas.header import Kind
from deelog_schemas.positions import ClaimState
from tests.connector.core.builders import captured, node, operation, primary
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
    world.own(1, n1)  # a takeover of another segment is running, and waits on a paused node
    n0.core.paused = False
    world.settle()
    assert n0.core.written(0) == 10
    world.check()


@pytest.mark.parametrize("beside", ["another reset", "writes"])
def test_a_refused_row_of_a_reset_stops_its_segment_alone(beside: str) -> None:
    """Its rows come in chunks, after begin and scan. Successful writes of other segments meanwhile prove nothing."""
    world, (n0, _) = started(batch=2)
    for number in range(6):
        world.put(key_of(1, number), b"v")
    world.put(key_of(0), b"bad")
    world.settle()
    world.broker.refused.add(n0.encoder._codec.key(key_of(0)))
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
    world.broker.refused.clear()
    n0.core.request_reset(0, "restart")
    world.settle()
    assert n0.core.phase(0) == "writing"
    world.check()


def test_a_stopped_segment_looks_again_after_a_fence() -> None:
    """CHECK recheck-after-fence, for a segment without an open step: another node took it over meanwhile."""
    world, (n0, n1) = started()
    world.broker.refused.add(n0.encoder._codec.key(key_of(2)))
    world.put(key_of(2), b"bad")
    world.settle()
    assert n0.core.phase(2) == "stopped"
    world.broker.refused.clear()
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
    world.broker.refused.add(bad)
    for segment in range(SEGMENTS):
        world.put(key_of(segment), b"a")
    world.settle()
    assert [n0.core.phase(s) for s in range(SEGMENTS)] == ["writing", "writing", "stopped", "writing"]
    assert [n0.core.written(s) for s in range(SEGMENTS)] == [1, 1, 0, 1]
    world.broker.refused.clear()
    n0.core.request_reset(2, "signal")
    world.settle()
    world.check()


def transactions(state: NodeState) -> Transactions:
    snapshots = Snapshots(state)
    resets = Resets(state, snapshots)
    parts = (Takeover(state, Replica(state)), resets, snapshots, Room(state, resets), HangingTransactions(state))
    return Transactions(state, *parts)


def opened(state: NodeState) -> Transactions:
    one = transactions(state)
    assert one.open() == [OpenProducer()]
    one.producer_opened()
    return one


def test_a_session_is_asked_for_once_and_not_while_closed() -> None:
    one = transactions(node(commit_interval=0.0))
    one.closed = True
    assert one.open() == []
    one.closed = False
    assert one.idle
    assert one.open() == [OpenProducer()]
    assert not one.idle
    assert one.open() == []
    one.opening_given_up()
    assert one.open() == [OpenProducer()]
    one.producer_opened()
    assert (one.idle, one.open()) == (True, [])


def test_it_waits_for_kafka_while_an_opening_or_a_transaction_is_not_answered() -> None:
    state = node(commit_interval=0.0)
    one = transactions(state)
    state.now = 50.0
    assert one.waits_since == 50.0
    one.open()
    state.now = 52.0
    assert one.waits_since == 50.0
    one.producer_opened()
    assert one.waits_since == 52.0
    captured(primary(state, 0), operation(1))
    (commit,) = one.begin(state.working())
    assert isinstance(commit, Commit)
    state.now = 55.0
    assert one.waits_since == 52.0
    one.committed(commit.token)
    assert one.waits_since == 55.0


def test_nothing_is_written_without_a_session_or_while_paused() -> None:
    state = node(commit_interval=0.0)
    captured(primary(state, 0), operation(1))
    one = transactions(state)
    assert one.begin(state.working()) == []
    one.open()
    assert one.begin(state.working()) == []
    one.producer_opened()
    one.paused = True
    assert one.begin(state.working()) == []
    one.paused = False
    (commit,) = one.begin(state.working())
    assert isinstance(commit, Commit)
    assert (commit.token, one.segments, one.idle) == (1, {0}, False)
    assert one.begin(state.working()) == []  # one at a time


def test_operations_wait_for_the_commit_interval() -> None:
    state = node(commit_interval=5.0)
    segment = primary(state, 0)
    one = opened(state)
    state.now = 100.0
    captured(segment, operation(1))
    assert len(one.begin(state.working())) == 1
    one.committed(1)
    captured(segment, operation(2))
    for now, wait in ((101.0, 4.0), (104.0, 1.0)):
        state.now = now
        assert one.begin(state.working()) == []
        assert one.next_poll(now) == wait
    state.now = 105.0
    assert one.next_poll(105.0) == one.next_poll(110.0) == 0.0
    assert len(one.begin(state.working())) == 1


def test_a_commit_moves_its_segment_unless_that_has_moved_on() -> None:
    for moved_on in (False, True):
        state = node(commit_interval=0.0)
        segment = primary(state, 0, sent=0)
        captured(segment, operation(1), operation(2))
        state.changes.ends[segment.partition] = 40
        one = opened(state)
        one.begin(state.working())
        state.changes.ends[segment.partition] = 50
        segment.generation += moved_on
        state.now = 9.0
        one.committed(1)
        assert segment.asked_at == (0.0 if moved_on else 9.0)
        assert (segment.sent, state.counts.written, state.counts.transactions) == ((0, 0, 1) if moved_on else (2, 2, 1))
        assert segment.ledger.unverified == ([] if moved_on else [CommittedRun(1, 2, 2, 40)])
        assert one.idle


def test_only_the_transaction_under_way_is_answered() -> None:
    state = node(commit_interval=0.0)
    captured(primary(state, 0), operation(1))
    one = opened(state)
    one.begin(state.working())
    with pytest.raises(AssertionError, match="transaction 2 is not under way"):
        one.committed(2)


@pytest.mark.parametrize("cause", [Cause.FENCED, Cause.LOST])
def test_after_a_failure_a_new_session_is_opened_and_every_segment_looks_again(cause: Cause) -> None:
    state = node(commit_interval=0.0)
    segments = [primary(state, number) for number in (0, 1)]
    captured(segments[0], operation(1))
    one = opened(state)
    one.begin(state.working())
    one.commit_failed(1, cause)
    assert [segment.phase for segment in segments] == [Phase.ACTIVE, Phase.ACTIVE]
    assert state.counts.refused == 1
    assert (one.begin(state.working()), one.open()) == ([], [OpenProducer()])
    one.reopen()
    assert one.open() == []  # it is being opened already


def test_what_a_session_had_under_way_when_it_was_forgotten_is_looked_for() -> None:
    state = node(commit_interval=0.0)
    segments = [primary(state, number) for number in (0, 1)]
    captured(segments[0], operation(1))
    one = opened(state)
    one.begin(state.working())
    one.forget()
    assert [segment.phase for segment in segments] == [Phase.ACTIVE, Phase.ACTIVE]
    assert one.idle
    assert one.open() == [OpenProducer()]


def test_a_transaction_has_fewer_bytes_where_kafka_is_slow() -> None:
    """One that is not in time fails, and the resets in it begin anew: so it shall take a part of the time at most."""
    full, least = 16 << 20, 64 << 10
    state = node(commit_interval=0.0, transaction_timeout=8.0)
    large = operation(1, value=bytes(5 << 20))
    one = opened(state)
    outcomes: tuple[tuple[Cause | float, int], ...] = (
        (Cause.FENCED, large.size // 2),
        (Cause.LOST, large.size // 4),
        (Cause.REFUSED, large.size // 4),
        (2.0, large.size // 4),
        (1.0, large.size // 4),
        (2.1, large.size // 8),
        (0.9, 2 * large.size),
        (0.9, 2 * large.size),
        *[(Cause.LOST, -1)] * 12,
        (2.1, least),
        (0.9, 2 * large.size),
    )
    for outcome, size in outcomes:
        captured(primary(state, 0), large)
        (commit,) = one.begin(state.working())
        assert isinstance(commit, Commit)
        if isinstance(outcome, Cause):
            state.now += 2.1
            one.commit_failed(commit.token, outcome)
            one.open()
            one.producer_opened()
        else:
            one.committed(commit.token)
            state.now += outcome
        state.primaries.clear()
        one.begin(state.working())
        assert state.max_batch_bytes == size or size < 0, outcome
    for failed, seconds in ((operation(1, value=bytes(60_000)), 2.1), (large, 1.9)):  # it was not its size
        captured(primary(state, 0), failed)
        (commit,) = one.begin(state.working())
        assert isinstance(commit, Commit)
        state.now += seconds
        one.commit_failed(commit.token, Cause.FENCED)
        one.open()
        one.producer_opened()
        state.primaries.clear()
        assert state.max_batch_bytes == 2 * large.size
    for _ in range(3):
        captured(primary(state, 0), *[large] * 4)
        (commit,) = one.begin(state.working())
        assert isinstance(commit, Commit)
        one.committed(commit.token)
        state.primaries.clear()
    one.begin(state.working())
    assert state.max_batch_bytes == full


@pytest.mark.parametrize(
    ("cause", "size", "seconds", "tries"),
    [
        (Cause.FENCED, 8 << 20, 2.1, 3),
        (Cause.FENCED, 200_000, 2.1, 2),
        (Cause.FENCED, 8 << 20, 0.1, None),
        (Cause.LOST, 8 << 20, 2.1, None),
    ],
)
def test_a_run_that_is_too_slow_for_one_transaction_is_given_up(
    cause: Cause, size: int, seconds: float, tries: int | None
) -> None:
    """Nothing makes it smaller, and it would come again for ever: the rows of a reset come in several."""
    state = node(commit_interval=0.0, transaction_timeout=8.0)
    segment = primary(state, 0)
    captured(segment, operation(1, value=bytes(size // 2)), operation(2, value=bytes(size // 2)))
    segment.atomic_to = 2
    one = opened(state)
    for number in range(1, 12):
        (commit,) = one.begin(state.working())
        assert isinstance(commit, Commit)
        state.now += seconds
        one.commit_failed(commit.token, cause)
        if number == tries:
            break
        assert segment.phase is Phase.ACTIVE
        segment.phase = Phase.WRITING
        one.open()
        one.producer_opened()
    overflow = {"reset": 1} if tries else {}
    assert (segment.owed, state.counts.overflow) == ("overflow" if tries else None, overflow)


def test_a_session_that_is_reopened_while_it_opens_stays_the_one_asked_for() -> None:
    one = transactions(node(commit_interval=0.0))
    one.open()
    one.reopen()
    assert one.producer is ProducerState.OPENING


def test_a_chunk_without_rows_needs_no_transaction() -> None:
    state = node(commit_interval=0.0, heartbeat_interval=0.0, chunk_size=1)
    snapshot = Snapshot(keys=[b"gone", b"gone too"])
    primary(state, 0, snapshot=snapshot)
    one = opened(state)
    assert one.begin(state.working()) == []
    assert (snapshot.cursor, snapshot.over) == (1, False)
    assert len(one.begin(state.working())) == 1  # the end needs one
    assert not snapshot.over
    one.committed(1)
    assert snapshot.over
    assert state.take_outbox() == [SnapshotRead(0, 0, 7)]


def test_segments_of_a_partition_that_is_withheld_are_left_out_and_wait() -> None:
    """Claims, resets, operations, renewals and releases alike."""
    state = node(commit_interval=0.0, heartbeat_interval=1.0)
    partitions = {number: primary(state, number).partition for number in range(8)}
    withheld = [number for number, partition in partitions.items() if partition == 1]
    for number in range(8):
        captured(primary(state, number), operation(1))
    for number, phase in ((withheld[0], Phase.CLAIM), (withheld[1], Phase.ACTIVE), (withheld[2], Phase.OWED)):
        primary(state, number, phase, owed="signal")
    state.segments[withheld[3]].release_wanted = True
    one = opened(state)
    state.withheld, state.now = frozenset({1}), 100.0
    (commit,) = one.begin(state.working())
    assert isinstance(commit, Commit)
    assert {item.segment for item in commit.items} == partitions.keys() - withheld
    one.committed(commit.token)
    state.withheld = frozenset()
    (commit,) = one.begin(state.working())
    assert isinstance(commit, Commit)
    assert {item.segment for item in commit.items} >= set(withheld[:3])


def test_a_suspect_that_is_withheld_holds_up_nobody() -> None:
    state = node(commit_interval=0.0)
    numbers = [n for n in range(8) if primary(state, n).partition == 0][:1]
    numbers += [n for n in range(8) if state.segments[n].partition == 1][:1]
    state.primaries = {n: state.segments[n] for n in numbers}
    for number in numbers:
        captured(primary(state, number), operation(1))
    one = opened(state)
    one.begin(state.working())
    one.commit_failed(1, Cause.REFUSED)
    one.open()
    one.producer_opened()
    for number in numbers:
        primary(state, number, Phase.ACTIVE)
    state.withheld = frozenset({state.segments[numbers[0]].partition})
    written: set[int] = set()
    for _ in range(4):
        for effect in one.begin(state.working()):
            assert isinstance(effect, Commit)
            written |= {item.segment for item in effect.items}
            for number in {item.segment for item in effect.items}:
                captured(primary(state, number), operation(1))
            one.committed(effect.token)
    assert written == {numbers[1]}
    assert one._suspects == []


def test_a_suspect_that_waits_for_kafka_holds_up_nobody() -> None:
    """A transaction of somebody else may hide what it waits for, for as long as that stays open."""
    state = node(commit_interval=0.0)
    for number in range(4):
        captured(primary(state, number), operation(1))
    one = opened(state)
    state.working()
    one.begin([state.segments[number] for number in range(3)])
    one.commit_failed(1, Cause.REFUSED)
    one.open()
    one.producer_opened()
    for number in range(4):
        primary(state, number, Phase.READ if number == 0 else Phase.WRITING)
        captured(state.segments[number], operation(1))
    transactions_of = []
    for _ in range(4):
        for effect in one.begin(state.working()):
            assert isinstance(effect, Commit)
            transactions_of.append({item.segment for item in effect.items})
            one.committed(effect.token)
    assert transactions_of == [{1, 2}, {3}]
    assert one._suspects == [[0]]
    # What is refused meanwhile is looked for among those that were written, and the suspect stays one.
    for number in (1, 2, 3):
        captured(state.segments[number], operation(2))
    (effect,) = one.begin(state.working())
    one.commit_failed(one._token, Cause.REFUSED)
    assert [sorted(group) for group in one._suspects] == [[0], [2, 3], [1]]


def test_the_claims_of_a_spare_producer_say_so() -> None:
    state = node(commit_interval=0.0)
    one = opened(state)
    for spare in (True, False):
        one.reopen()
        one.open()
        one.producer_opened(spare)
        primary(state, 0, Phase.CLAIM)
        (commit,) = one.begin(state.working())
        assert isinstance(commit, Commit)
        (claim,) = [i.state for i in commit.items if isinstance(i, StateItem) and isinstance(i.state, ClaimState)]
        assert claim.spare is spare
        one.committed(commit.token)
