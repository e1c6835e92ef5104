"""The takeover, rule by rule: each test bears the name of the CHECK whose removal makes it fail."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import Cause, Corrected, Fence
from deelog_connector.core.positions_table import PositionsTable
from deelog_connector.transforms.pipeline import Pipeline
from deelog_schemas.config import parse
from deelog_schemas.header import Kind
from deelog_schemas.positions import decode_state
from deelog_schemas.records import ON_POSITIONS, decode
from tests.connector.world import POSITIONS, SEGMENTS, Node, SteppedDown, Superseded, World, key_of


def started(nodes: int = 2, batch: int = 50, pipeline: Pipeline | None = None) -> tuple[World, tuple[Node, Node]]:
    """A world whose first node is primary of everything, the second backup; all segments are written."""
    world = World(nodes, batch, pipeline=pipeline)
    found = list(world.nodes.values())
    for segment in range(SEGMENTS):
        world.own(segment, found[0], *found[1:2])
    world.settle()
    return world, (found[0], found[1])


def test_a_segment_begins_its_life_with_a_reset() -> None:
    world, _ = started()
    assert world.kinds(0) == ["CLAIM", "ACTIVE", "RESET_BEGIN", "RESET_END"]
    assert world.reader(0).resets == ["initial"]
    world.check()


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
    world.own(1, n1)  # a takeover goes on elsewhere, and waits on a node that is paused
    n0.core.paused = False
    world.settle()
    assert n0.core.written(0) == 10
    world.check()


def test_a_takeover_by_a_paused_node_waits_with_its_claim() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n1.core.paused = True
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert n1.core.phase(0) == "claim"
    n1.core.paused = False
    world.settle()
    assert n1.core.written(0) == 1
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_backup_takes_over_and_writes_what_is_missing() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.put(key_of(0), b"b")
    world.crash(n0)
    world.own(0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    assert [r.header.position for r in world.records(0) if r.header.kind is Kind.CHANGE] == [(1, 1), (1, 2)]
    del world.primary[1], world.primary[2], world.primary[3]
    world.check()


def test_fencing() -> None:
    """The old primary, cut off, has a transaction open; it must not come behind the new one's ACTIVE."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n0.step(hang=True)
    world.own(0, n1)
    world.settle(n1)
    assert ("n1", "n0") in world.fences
    n0.finish()
    assert world.refused == [("n0", Cause.FENCED)]
    world.settle()
    world.check()


def test_recheck_after_fence_and_claim_then_look() -> None:
    """The fenced one looks again and steps down before the higher claim."""
    world, (n0, n1) = started()
    world.own(0, n1)
    world.settle(n1)
    world.put(key_of(0), b"ghost", at=n0, acked=False)
    n0.core.acked(0, 1)
    world.settle()
    told = [e for e in n0.told if isinstance(e, SteppedDown)]
    assert [e.segment for e in told] == [0]
    assert n0.core.phase(0) == "idle"
    assert n0.core.phase(1) == "writing"  # what is still its own goes on
    world.check()


def test_read_to_own_record() -> None:
    """An open transaction of anybody hides the claim: nothing is decided until it is gone."""
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


def test_claim_before_fence_and_a_lower_claim_that_comes_late() -> None:
    world, (_n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.own(0, n1)
    late = world.epoch
    world.own(0, n2)
    world.settle(n2)
    world.settle(n1)  # its claim of the lower epoch lands behind the higher one
    assert n1.core.phase(0) == "idle"
    assert ("n1", "n2") not in world.fences
    assert late < world.epoch
    world.settle()
    world.check()


def test_fence_once() -> None:
    """Two nodes that swap segments must come to rest."""
    world, (n0, n1) = started()
    world.own(1, n1, n0)
    world.settle()
    before = len(world.fences)
    world.own(0, n1, n0)
    world.own(1, n0, n1)
    world.settle()
    assert len(world.fences) - before <= 3
    assert n1.core.phase(0) == n0.core.phase(1) == "writing"
    world.check()


def test_recheck_keeps_place() -> None:
    """Fenced for another segment before its own FENCE, a node still fences the old primary."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n0.step(hang=True)
    world.own(0, n1)
    for _ in range(60):
        if n1.core.phase(0) == "fence":
            break
        world.now += 0.1
        n1.follow()
        for effect in n1.core.poll(world.now, 0):
            if not isinstance(effect, Fence) or not effect.segments:
                n1.carry_out(effect, False)
    world.broker.init("n1")
    n1.core._transactions.reopen()
    assert n1.core.phase(0) == "fence"


def test_claim_key_per_member_and_claims_outlive_compaction() -> None:
    """n1 claims and dies before its fence: whoever comes next fences n0 as well, by the claims that are kept."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.put(key_of(0), b"a")
    n0.step(hang=True)
    world.own(0, n1)
    while not any(m == n1.member for _, m in n1.core.table.claimants(0)) and world.now < 1100:
        world.now += 0.01
        n1.follow()
        for effect in n1.core.poll(world.now, 0):
            n1.carry_out(effect, False)
        if n1.core.phase(0) == "look":
            break
    world.crash(n1)
    for log in (world.broker.logs["p.c", p] for p in range(2)):  # the claims of the change topic are compacted away
        for slot in log.slots:
            if slot.record.value is None and slot.status == "committed":
                slot.status = "gone"
    world.own(0, n2, must_reset="owners_lost")
    world.settle(n2)
    assert ("n2", "n0") in world.fences
    n0.finish()
    assert world.refused[0] == ("n0", Cause.FENCED)


def test_release_is_final_and_spares_the_fence() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n0.core.release(0)
    world.settle()
    assert n0.core.phase(0) == "released"
    world.put(key_of(0), b"b")
    world.settle()
    assert n0.core.written(0) == 1  # nothing behind a release
    world.own(0, n1, n0)
    world.settle()
    assert world.fences == []
    world.check()
    assert world.reader(0).resets == ["initial"]


def test_nobody_is_fenced_for_a_claim_that_was_released() -> None:
    """From n0 to n1 to n2, and from there to n0's next process: each has released, and goes on with other segments."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    owner = n0
    for heir in (n1, n2):
        world.put(key_of(0), heir.member.encode())
        world.settle()
        owner.core.release(0)
        world.settle()
        world.own(0, heir, *({n0, n1, n2} - {heir}))
        world.settle()
        owner = heir
    assert world.fences == []
    assert world.refused == []
    assert world.reader(0).resets == ["initial"]
    assert n2.core.table.claimants(0) == {(world.epoch, n2.member)}
    world.check()


def test_release_keeps_rank() -> None:
    """n0 was cut off; who superseded it has released the segment since, and of that one's claim nothing is left."""
    world, (n0, n1) = started()
    world.own(0, n1)
    world.settle(n1)
    assert ("n1", "n0") in world.fences
    n1.core.release(0)
    world.settle(n1)
    assert n1.core.phase(0) == "released"
    for log in (world.broker.logs["p.c", p] for p in range(2)):
        for slot in log.slots:
            if slot.record.value is None and slot.status == "committed":
                slot.status = "gone"  # control records are compacted away
    world.put(key_of(0), b"ghost", at=n0, acked=False)
    n0.core.acked(0, 1)
    world.settle()
    assert [e.segment for e in n0.told if isinstance(e, SteppedDown)] == [0]
    assert n0.core.phase(0) == "idle"


def test_at_no_offset_of_a_release_is_its_rank_unknown() -> None:
    """Whoever reads up to a record of its own may find that amid the release's."""
    world, (n0, _) = started()
    world.settle()
    before = len(world.broker.logs[POSITIONS, 0].slots)
    n0.core.release(0)
    world.settle()
    table, last = PositionsTable(), []
    for raw in world.broker.logs[POSITIONS, 0].read(POSITIONS, 0, 0):
        record = decode(*raw, ON_POSITIONS)
        table.apply(decode_state(record.key, record.value, record.header.kind))
        if raw.offset >= before and record.header.segment == 0:
            last.append(record.header.kind)
            assert {member for _, member in table.known(0).ranked} == {n0.member}
    assert last[-2:] == [Kind.RELEASE_STATE, Kind.CLAIM_STATE]
    assert not table.claimants(0)


def test_an_epoch_that_was_released_is_not_given_out_again() -> None:
    """All are released and stopped: whoever starts then must not claim an epoch that was there before."""
    world, (n0, _) = started()
    world.own(0, n0)
    world.settle()
    epoch = world.epoch
    n0.core.release(0)
    world.settle()
    late = world.start("n9")
    late.follow()
    assert not late.core.table.claimants(0)
    assert late.core.highest_claim() >= epoch


def test_a_reset_that_nobody_was_there_to_do_is_done_by_the_successor() -> None:
    """Asked for after the primary's death and before the view that names another: both have read it, neither did it."""
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


@pytest.mark.parametrize("why", ["the primary did it", "it was long ago"])
def test_a_reset_that_was_asked_for_is_not_done_again_by_the_successor(why: str) -> None:
    world, (n0, n1) = started()
    n1.core.ask_reset(0, "signal")
    if why == "the primary did it":
        n0.core.ask_reset(0, "signal")
    else:
        world.now += 60.1
    world.settle()
    before = ["initial"] + ["signal"] * (why == "the primary did it")
    assert world.reader(0).resets == before
    world.own(0, n1, n0)
    world.settle()
    assert world.reader(0).resets == before
    world.check()


def test_incarnation_a_restarted_process_is_empty_and_resets() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.crash(n0)
    world.crash(n1)
    fresh = world.restart(n0)
    world.settle()
    for segment in range(SEGMENTS):
        world.own(segment, fresh, must_reset="owners_lost")
    world.settle()
    assert world.reader(0).resets == ["initial", "owners_lost"]
    world.check()


def test_a_newer_process_with_the_same_node_id_ends_the_older() -> None:
    world, (n0, _) = started()
    newer = world.restart(n0)
    world.nodes["older"] = n0
    world.own(0, newer, must_reset="owners_lost")
    world.settle(newer)
    world.put(key_of(1), b"a")
    for _ in range(30):
        n0.step()
    assert [e.by for e in n0.told if isinstance(e, Superseded)][:1] == [newer.member]


def test_correct_phantoms() -> None:
    """The old primary wrote what no survivor holds (acks below all): the new one corrects it."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), b"phantom", acked=False)
    world.put(key_of(0, 1), b"phantom too", acked=False)
    n0.core.acked(0, 3)
    world.settle(n0)
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    world.check()
    assert world.reader(0).resets == ["initial"]
    assert n1.core.counts.corrections == 2
    corrected = [r for r in world.records(0) if b'"correct"' in (r.value or b"")]
    assert [r.header.sequence for r in corrected] == [2, 3]


def skipping(operations: str) -> Pipeline:
    """What leaves operations out."""
    fields = {"topic.prefix": "p", "cache.name": "c", "node.id": "n", "bootstrap.servers": "h:1"}
    pipeline = Pipeline.of(parse(fields | {"skipped.operations": operations}))
    assert pipeline is not None
    return pipeline


def test_a_pending_operation_that_is_skipped_makes_up_for_no_phantom() -> None:
    """The phantom is a delete; the update behind it is told to nobody, so the key would be gone for good."""
    world, (n0, n1) = started(pipeline=skipping("u"))
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), None, acked=False)
    n0.core.acked(0, 2)
    world.settle(n0)
    assert world.reader(0).entries == {}
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.put(key_of(0), b"pending")
    world.settle()
    assert "SKIPPED" in world.kinds(0)
    assert n1.core.counts.corrections == 1
    world.check()
    assert world.reader(0).resets == ["initial"]


def test_what_was_skipped_last_is_no_loss_to_the_next_owner() -> None:
    """Kafka holds the last operations of the segment by a skipped record alone."""
    world, (n0, n1) = started(pipeline=skipping("u,d"))
    for value in (b"told", b"skipped", b"skipped too", None):
        world.put(key_of(0), value)
    world.settle()
    assert n0.core.written(0) == 4
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert (world.reader(0).resets, n1.core.written(0)) == (["initial"], 4)
    assert {e.key: e.value for e in world.reader(0).entries.values()} == {key_of(0): b"told"}


def test_a_write_between_decide_and_poll_does_not_overtake_a_correction() -> None:
    """What a backup is told of comes in sequence order: a correction is captured where it is told of."""
    world, (n0, n1) = started(3)
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), b"phantom", acked=False)
    n0.core.acked(0, 2)
    world.settle(n0)
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1, world.nodes["n2"])
    while n1.core.phase(0) != "writing":
        n1.step()
    written = world.put(key_of(0, 1), b"client's")
    assert not any(isinstance(effect, Corrected) for effect in n1.told)
    assert written.sequence == 2
    world.settle()
    (corrected,) = [effect for effect in n1.told if isinstance(effect, Corrected)]
    assert [operation.sequence for operation in corrected.operations] == [3]
    world.check()


def test_continuity_and_transfer_is_not_ops() -> None:
    """A backup that got an operation as state cannot vouch for it."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.put(key_of(0), b"a")
    world.settle()
    world.put(key_of(0), b"b")  # acknowledged, not written: only n0 and n1 have it as an operation
    n0.core.operations_after(0, 0)
    assert world.primary[0] is n0
    world.backups[0].append(n2)
    assert world.catch_up(0, n2) == "state"
    world.crash(n0)
    world.crash(n1)
    world.own(0, n2)
    world.settle()
    assert world.reader(0).resets[1:] == ["hole"]
    for segment in (1, 2, 3):
        del world.primary[segment]
    world.check()


def test_catch_up_by_ops() -> None:
    """A backup that missed the last operation gets it as an operation, and can resume two failovers later."""
    world, (n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.backups[0].append(n2)
    world.catch_up(0, n2)
    world.put(key_of(0), b"a")
    world.settle()
    world.backups[0].remove(n2)
    world.put(key_of(0), b"b")
    world.crash(n0)
    world.own(0, n1, n2)
    world.crash(n1)
    world.own(0, n2)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    assert world.reader(0).entries[key_of(0)].value == b"b"


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


def test_room_is_made_of_backups_op_logs_first() -> None:
    """A primary's that is dropped is a reset, a backup's only where a takeover follows."""
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
    assert n0.core.counts.overflows == {"backup": 1}
    assert (n0.core.complete_from(0), n0.core.complete_from(1)) == (1, 4)
    n0.core.budget.max_operations = 5
    n0.core.make_room(0, 1)
    assert n0.core.counts.overflows == {"backup": 1, "reset": 1}
    world.settle()
    assert world.reader(0).resets == ["initial", "overflow"]
    assert world.reader(1).resets == ["initial"]
    world.check()


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


def test_open_reset_again() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    n0.core.overflow(0)
    while world.kinds(0)[-1] != "RESET_BEGIN":
        n0.step()
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "open_reset"]
    world.check()


def test_end_beyond_again() -> None:
    """A reset whose end lies beyond the new owner's history tells of a state that is gone."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"ghost", acked=False)
    n0.core.acked(0, 1)
    n0.core.overflow(0)
    world.settle(n0)
    assert world.kinds(0)[-1] == "RESET_END"
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets[-1] == "end_beyond"
    world.check()


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


def test_coalesce_acked() -> None:
    world, (n0, _n1) = started()
    k, j = key_of(0), key_of(0, 1)
    world.put(k, b"1")
    world.put(j, b"2")
    world.put(k, b"3")
    world.put(k, b"4", acked=False)
    assert n0.core.coalesce(0) == 1  # k@1 gives way to k@3; k@4 may never have happened
    world.settle()
    changes = [r for r in world.records(0) if r.header.kind is Kind.CHANGE]
    assert [r.header.sequence for r in changes] == [2, 3]
    assert b'"op":"c"' in (changes[1].value or b"")  # it keeps the first one's `existed`
    world.ack(0)
    world.settle()
    world.check()


def test_coalesced_run_stands_in_one_transaction() -> None:
    world, (n0, _) = started(batch=2)
    for i in range(9):
        world.put(key_of(0, i % 4), b"%d" % i)
    n0.core.coalesce(0)
    n0.step()
    n0.step()
    assert [r.header.sequence for r in world.records(0) if r.header.kind is Kind.CHANGE] == [6, 7, 8, 9]


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


@pytest.mark.parametrize("beside", ["another reset", "writes"])
def test_a_refused_row_of_a_reset_stops_its_segment_alone(beside: str) -> None:
    """Its rows come a chunk at a time, behind begin and scan; what others write meanwhile acquits nobody."""
    world, (n0, _) = started(batch=2)
    for number in range(6):
        world.put(key_of(1, number), b"v")
    world.put(key_of(0), b"bad")
    world.settle()
    world.broker.refuse.add(n0.encoder._codec.key(key_of(0)))
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
    world.broker.refuse.clear()
    n0.core.request_reset(0, "restart")
    world.settle()
    assert n0.core.phase(0) == "writing"
    world.check()


def test_what_was_stopped_looks_again_behind_a_fence() -> None:
    """CHECK recheck-after-fence, of a segment in which nothing was under way: another node took it over meanwhile."""
    world, (n0, n1) = started()
    world.broker.refuse.add(n0.encoder._codec.key(key_of(2)))
    world.put(key_of(2), b"bad")
    world.settle()
    assert n0.core.phase(2) == "stopped"
    world.broker.refuse.clear()
    world.own(2, n1)
    world.settle(n1)
    world.put(key_of(2, 1), b"newer")
    world.settle(n1)
    world.put(key_of(0), b"x")
    world.settle()
    n0.core.ask_reset(2, "signal")
    world.settle()
    world.check()


def test_a_stopped_segment_gives_up_its_op_log_first() -> None:
    world, (n0, _) = started()
    world.broker.refuse.add(n0.encoder._codec.key(key_of(0)))
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
    world.broker.refuse.clear()
    world.ack(1)
    core.request_reset(0, "restart")
    world.settle()
    world.check()


def test_a_refused_record_stops_its_segment_alone() -> None:
    world, (n0, _) = started()
    bad = n0.encoder._codec.key(key_of(2))
    world.broker.refuse.add(bad)
    for segment in range(SEGMENTS):
        world.put(key_of(segment), b"a")
    world.settle()
    assert [n0.core.phase(s) for s in range(SEGMENTS)] == ["writing", "writing", "stopped", "writing"]
    assert [n0.core.written(s) for s in range(SEGMENTS)] == [1, 1, 0, 1]
    world.broker.refuse.clear()
    n0.core.request_reset(2, "signal")
    world.settle()
    world.check()


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


def lose_unwatched(world: World, keys: int) -> None:
    """One more change of segment 0, which nobody looked for before the log was cut; it may have grown again since."""
    world.watching = False
    for i in range(keys):
        world.put(key_of(0, i), b"late %d" % i)
        world.settle()
    log = world.broker.logs["p.c", 0]
    at = next(n for n, slot in enumerate(log.slots) if slot.record.value and b"late 0" in slot.record.value)
    del log.slots[at]
    world.watching, world.leader_epoch = True, 1


@pytest.mark.parametrize("keys", [1, 3])
def test_what_was_lost_since_kafka_was_last_looked_at_is_missed_under_another_leader(keys: int) -> None:
    world, (n0, _) = started()
    world.put(key_of(0), b"a")
    world.settle()
    lose_unwatched(world, keys)
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


def reset_unwatched(world: World, node: Node) -> None:
    for i in range(5):
        world.put(key_of(0, i), b"v%d" % i)
    world.settle()
    world.watching = False
    node.core.overflow(0)
    world.settle()
    world.watching, world.leader_epoch = True, 1


def test_a_reset_that_ended_just_before_another_leader_came_is_not_done_again() -> None:
    world, (n0, _) = started()
    reset_unwatched(world, n0)
    world.settle()
    assert world.reader(0).resets == ["initial", "overflow"]
    world.check()


def test_rows_that_were_lost_before_their_end_was_written_are_missed() -> None:
    world, (n0, _) = started()
    reset_unwatched(world, n0)
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
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_new_owner_misses_what_the_positions_topic_tells_of() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    lose_unwatched(world, 1)
    world.leader_epoch = 0  # nor has anybody heard of another leader
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


def test_a_new_owner_misses_what_nobody_looked_for_under_the_last_leader() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    lose_unwatched(world, 3)
    n1.follow()
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


def test_a_takeover_right_after_a_change_of_leader_needs_no_reset() -> None:
    world, (n0, n1) = started()
    for i in range(3):
        world.put(key_of(0, i), b"a")
        world.settle()
    world.leader_epoch = 1
    n1.follow()
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_new_owner_resets_what_the_old_one_did_not_live_to_reset() -> None:
    world, (n0, n1) = started()
    for segment in (0, 1):
        world.put(key_of(segment), b"a")
    world.settle()
    del world.broker.logs["p.c", 0].slots[-2:]
    world.leader_epoch = 1
    n1.follow()
    world.crash(n0)
    for segment in range(SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets[-1] == "truncated"
    world.check()


def test_a_claim_that_was_lost_is_made_again() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.crash(n0)
    world.own(0, n1)
    while world.kinds(0)[-1] != "CLAIM":
        n1.step()
    log = world.broker.logs["p.c", 0]
    del log.slots[-4:]
    for segment in range(1, SEGMENTS):
        world.own(segment, n1)
    world.settle()
    assert world.reader(0).resets[-1] == "truncated"
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


def test_promote_needs_a_higher_epoch() -> None:
    _world, (n0, _) = started()
    with pytest.raises(ValueError, match="epoch 1 is not above"):
        n0.core.promote(0, 1)
