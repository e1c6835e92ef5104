"""Incremental snapshots in the core: chunks while writes continue.

`World.reader` checks that each row has its key's state at that offset. The simulation's checker checks, under faults,
that a complete snapshot has all entries of a segment.
"""

from __future__ import annotations

import pytest

from deelog_connector.core.batch import Batch
from deelog_connector.core.effects import RowsItem, SnapshotRead, SnapshotRefused
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_connector.core.snapshots import Snapshots
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.header import Kind
from tests.connector.core.builders import node, primary
from tests.connector.world import (
    CHANGES,
    World,
    key_of,
    skipping,
    started,
)

CODEC = JsonCodec(CHANGES, "test", "p", "c")


def rows(world: World, segment: int = 0) -> list[bytes]:
    """The keys of the rows outside of resets, in order."""
    found, inside = [], False
    for record in world.records(segment):
        kind = record.header.kind
        inside = kind is Kind.RESET_BEGIN or (inside and kind is not Kind.RESET_END)
        if kind is Kind.READ and not inside:
            found.append(CODEC.decode_key(record.key))
    return found


def filled(world: World, count: int = 5) -> list[bytes]:
    """Entries of segment 0, written; their keys in order."""
    keys = [key_of(0, number) for number in range(count)]
    for key in keys:
        world.put(key, b"v")
    world.settle()
    return sorted(keys)


def test_a_segment_is_sent_once_more_chunk_by_chunk_as_debezium_sends_it() -> None:
    world, (n0, _) = started()
    keys = filled(world)
    transactions = n0.core.counts.transactions
    snapshot = n0.core.snapshot(0)
    assert n0.core.snapshot_of(0) is snapshot
    world.settle()
    assert rows(world) == keys
    assert (snapshot.over, n0.core.counts.snapshot_rows, n0.core.snapshot_of(0)) == (True, 5, None)
    assert n0.core.counts.transactions - transactions >= 3  # chunks of two
    assert n0.announced(SnapshotRead) == [SnapshotRead(0, 5, 1)]
    (last,) = [r for r in world.records(0) if r.header.kind is Kind.READ][-1:]
    assert last.value is not None
    envelope = CODEC.decode_value(last.value)
    assert (envelope.op, envelope.before) == ("r", None)
    source = envelope.source
    assert (source["snapshot"], source["reason"], source["sequence"]) == ("incremental", "snapshot", '["1","5"]')
    world.check()


def test_what_is_written_meanwhile_is_sent_as_a_change_and_not_as_a_row() -> None:
    world, (n0, _) = started()
    keys = filled(world)
    n0.core.snapshot(0)
    world.put(keys[0], b"new", acked=False)
    world.settle()
    assert rows(world) == []  # before all is written a reader may be beyond any position for the rows
    world.ack(0)
    world.put(keys[1], None)
    world.settle()
    assert rows(world) == [keys[0], *keys[2:]]  # a row for the key written with it, and none for the deleted key
    assert [e.rows for e in n0.announced(SnapshotRead)] == [4]
    world.check()


def test_a_key_whose_change_is_left_out_has_another_turn() -> None:
    """A key that is written meanwhile comes as a change. If that is filtered, it still gets a row."""
    world, (n0, _) = started(batch=2, pipeline=skipping("u"))
    keys = filled(world, 6)
    n0.core.snapshot(0)
    for turn in range(6):
        for key in keys[turn:]:
            world.put(key, b"%d" % turn)
        world.now += 0.1
        for each in world.nodes.values():
            each.step()
    world.settle()
    assert set(rows(world)) == set(keys)
    assert [e.segment for e in n0.announced(SnapshotRead)] == [0]


def test_one_of_keys_that_are_gone_needs_no_transaction() -> None:
    world, (n0, _) = started()
    n0.core.snapshot(3)
    world.settle()
    assert n0.announced(SnapshotRead) == [SnapshotRead(3, 0, 4)]


def test_a_reset_meanwhile_completes_it() -> None:
    world, (n0, _) = started()
    filled(world)
    n0.core.snapshot(0)
    n0.step()
    n0.core.request_reset(0, "signal")
    assert not n0.core.may_snapshot(0)
    world.settle()
    kinds = world.kinds(0)
    assert kinds[kinds.index("RESET_BEGIN", 4) :] == ["RESET_BEGIN", *["READ"] * 5, "RESET_END"]
    assert [e.rows for e in n0.announced(SnapshotRead)] == [5]
    assert n0.core.may_snapshot(0)
    world.check()


def test_a_takeover_forgets_it_and_the_next_owner_may_begin() -> None:
    world, (n0, n1) = started()
    keys = filled(world)
    n0.core.snapshot(0)
    n0.step()
    world.own(0, n1, n0)
    assert not n1.core.may_snapshot(0)
    world.settle()
    before = len(rows(world))
    assert before < 5
    assert n1.core.may_snapshot(0)
    n1.core.snapshot(0)
    world.settle()
    assert rows(world)[before:] == keys
    world.check()


def test_it_can_be_stopped() -> None:
    world, (n0, n1) = started()
    filled(world)
    n0.core.snapshot(0)
    n0.step()
    n0.core.stop_snapshot(0)
    world.settle()
    assert len(rows(world)) < 5
    assert not n0.announced(SnapshotRead)
    for other in (n0.core, n1.core):
        other.stop_snapshot(1)  # there is none
        assert other.snapshot_of(1) is None
    assert n0.core.may_snapshot(0)


def test_a_refused_row_ends_it_in_its_segment_alone_and_no_capture() -> None:
    world, (n0, _) = started()
    keys = filled(world)
    world.put(key_of(1), b"v")
    world.settle()
    world.broker.refused.add(CODEC.key(keys[1]))
    n0.core.snapshot(0)
    n0.core.snapshot(1)
    world.put(keys[0], b"after")
    world.settle()
    assert n0.announced(SnapshotRefused) == [SnapshotRefused(0)]
    assert rows(world, 1) == [key_of(1)]
    assert n0.core.phase(0) == "writing"
    world.put(keys[2], b"later")
    world.settle()
    world.check()


def test_a_row_that_took_a_resets_row_away_in_compaction_costs_no_reset() -> None:
    """Much later, a compacted log is read from the begin on, under another leader."""
    world, (n0, _) = started()
    keys = filled(world)
    n0.core.request_reset(0, "signal")
    world.settle()
    n0.core.snapshot(0)
    world.settle()
    world.broker.compact(CHANGES)
    assert len([r for r in world.records(0) if r.header.kind is Kind.READ]) == len(keys)
    world.leader_epoch += 1
    world.settle()
    assert n0.core.counts.resets["truncated"] == 0
    world.own(0, n0)
    world.settle()
    assert n0.core.counts.resets["truncated"] == 0


def test_a_segment_that_was_never_reset_gets_its_base_by_it() -> None:
    """Our readers ignore rows outside of resets: they would get no other record of most keys."""
    world = World(1, mode=SnapshotMode.NO_DATA)
    node = world.nodes["n0"]
    node.cache = {key_of(0, number): b"there" for number in range(3)}
    world.own(0, node)
    world.settle()
    world.put(key_of(0, 1), b"changed")
    world.settle()
    node.core.snapshot(0)
    world.settle()
    assert node.announced(SnapshotRead) == [SnapshotRead(0, 3, 1)]
    assert world.reader(0).resets == ["snapshot"]
    world.check()
    node.core.snapshot(0)
    world.settle()
    assert world.reader(0).resets == ["snapshot"]
    assert rows(world) == sorted(node.cache)


def test_who_has_lost_a_segment_does_not_announce_its_snapshot() -> None:
    """Not even if it has nothing to send: the segment is empty here, but not at its present primary."""
    world, (n0, n1) = started()
    world.own(0, n1)
    world.settle(n1)
    world.put(key_of(0), b"a", at=n1)
    n0.core.snapshot(0)
    n0.core.snapshot(1)
    world.settle()
    assert [e.segment for e in n0.announced(SnapshotRead)] == [1]
    n1.core.snapshot(0)
    world.settle()
    assert n1.announced(SnapshotRead) == [SnapshotRead(0, 1, 5)]
    world.check()


@pytest.mark.parametrize("chunks", [0, 1])
def test_it_is_complete_once_the_changes_that_stand_for_rows_are_written(chunks: int) -> None:
    """A key with an unacknowledged delete gets no row, but lives on if the owner dies: its successor starts again."""
    world, (n0, _) = started()
    keys = filled(world, 3)
    n0.core.snapshot(0)
    for _ in range(chunks):
        n0.step()
    world.put(keys[1], b"new")
    deleted = keys[-chunks]  # of the chunk that comes next
    world.put(deleted, None, acked=False)
    world.settle()
    assert rows(world) == [key for key in keys if key != deleted]
    assert not n0.announced(SnapshotRead)
    world.ack(0)
    world.settle()
    assert n0.announced(SnapshotRead) == [SnapshotRead(0, 2, 1)]
    world.check()


def test_a_segment_is_released_once_its_rows_are_verified() -> None:
    """The next owner cannot know the number of rows. New chunks wait for the release; else it might never come."""
    world, (n0, _) = started()
    keys = filled(world)
    world.watching = False
    n0.core.snapshot(0)
    world.settle()
    assert rows(world) == keys
    n0.core.release(0)
    n0.core.snapshot(0)
    world.settle()
    assert n0.core.phase(0) == "writing"
    world.watching = True
    for _ in range(3):  # it takes two looks
        world.settle()
    assert n0.core.phase(0) == "released"
    assert rows(world) == keys
    world.check()


def test_a_chunk_ends_with_the_row_that_is_as_large_as_a_transaction() -> None:
    state = node({b"a": b"1" * 10, b"b": b"2" * 10, b"c": b"3", b"d": b"4"})
    state.max_batch_bytes = 21
    snapshots, segment = Snapshots(state), primary(state, 0)
    snapshot = snapshots.start(0)
    for keys, upto in (([b"a", b"b"], 2), ([b"c", b"d"], 4)):
        batch = Batch(state)
        snapshots.chunk(batch, segment, snapshot)
        assert [e.key for i in batch.items if isinstance(i, RowsItem) for e in i.entries] == keys
        assert (batch.entries, batch.size, batch.chunks[0].upto) == (len(keys), 22 if upto == 2 else 4, upto)
        snapshots.committed(batch)
    assert (snapshot.cursor, snapshot.rows) == (4, 4)


@pytest.mark.parametrize("ended_by", ["a stop", "another snapshot", "a demotion"])
def test_the_commit_of_a_chunk_counts_for_its_own_snapshot_only(ended_by: str) -> None:
    state = node({b"a": b"1"})
    snapshots, segment, batch = Snapshots(state), primary(state, 0), Batch(state)
    snapshot = snapshots.start(0)
    snapshots.chunk(batch, segment, snapshot)
    assert len(batch.chunks) == 1
    if ended_by == "another snapshot":
        snapshots.start(0)
    elif ended_by == "a stop":
        snapshots.stop(0)
        assert not snapshots.refused(segment, batch)
    else:
        state.demote(0)
    snapshots.committed(batch)
    assert (snapshot.cursor, snapshot.over, state.counts.snapshot_rows) == (0, False, 0)
    assert (state.outbox, segment.ledger.unverified) == ([], [])


def test_a_snapshot_is_not_complete_while_a_clear_is_not_written() -> None:
    """Its owner is lost with it, and the next one has all entries, of which some had no row."""
    world, (n0, _) = started()
    filled(world, 4)
    snapshot = n0.core.snapshot(0)
    while snapshot.cursor == 0:
        world.now += 0.1
        n0.step()
    world.put(key_of(0, 9), b"acked")
    world.clear(0, acked=False)
    world.settle()
    assert not snapshot.over
    assert n0.core.snapshot_of(0) is snapshot
