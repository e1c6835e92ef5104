"""The takeover, rule by rule: a test with the name of a CHECK fails if the check is removed."""

from __future__ import annotations

import pytest

from deelog_connector.core.batch import Batch
from deelog_connector.core.effects import Cause, Corrected, Effect, Place, Released, Scan, StateItem
from deelog_connector.core.positions_table import PositionsTable
from deelog_connector.core.replica import Replica
from deelog_connector.core.scan import SegmentScan
from deelog_connector.core.segment import Phase
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_connector.core.takeover import Takeover
from deelog_schemas.header import Kind
from deelog_schemas.keys import claim_key
from deelog_schemas.positions import ClaimState, ReleaseState, StateRecord, decode_state
from deelog_schemas.records import ON_POSITIONS, decode
from tests.connector.core.builders import node, primary
from tests.connector.world import (
    PARTITIONS,
    POSITIONS,
    SEGMENTS,
    SteppedDown,
    Superseded,
    World,
    key_of,
    lose_unseen,
    partition_log,
    skipping,
    started,
)


def test_a_segment_begins_its_life_with_a_reset() -> None:
    world, _ = started()
    assert world.kinds(0) == ["CLAIM", "ACTIVE", "RESET_BEGIN", "RESET_END"]
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_takeover_by_a_paused_node_waits_with_its_claim() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    n1.core.paused = True
    world.fail_over(n0, n1)
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


def test_recheck_after_fence_and_claim_then_look() -> None:
    """The fenced member looks again and steps down because of the higher claim."""
    world, (n0, n1) = started()
    world.own(0, n1)
    world.settle(n1)
    world.put(key_of(0), b"ghost", at=n0, acked=False)
    n0.core.acked(0, 1)
    world.settle()
    assert [e.segment for e in n0.announced(SteppedDown)] == [0]
    assert n0.core.phase(0) == "idle"
    assert n0.core.phase(1) == "writing"  # what is still its own goes on
    world.check()


def test_an_owner_that_was_superseded_steps_down_though_the_claim_is_lost() -> None:
    """It knows its own position alone; what is behind that tells it."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.own(0, n1)
    world.settle(n1)
    world.put(key_of(0), b"b", at=n1, acked=False)
    n1.core.acked(0, 2)
    world.settle(n1)
    n1.core.release(0)
    world.settle(n1)
    world.crash(n1)
    world.broker.recreate(POSITIONS)
    n0.tails = dict.fromkeys(range(PARTITIONS), 0)
    n0.core.positions_lost()
    world.settle(n0)
    assert [e.segment for e in n0.announced(SteppedDown)] == [0]
    assert n0.core.highest_claim() == world.epoch
    assert n0.core.phase(1) == "writing"
    assert world.reader(1).resets[-1] == "positions_lost"


@pytest.mark.parametrize("told", [False, True])
def test_who_takes_an_epoch_that_another_has_written_in_steps_down(told: bool) -> None:
    """`told`: where the positions topic was lost, another segment's claim is all that is known of epochs."""
    world, (n0, n1) = started()
    world.own(0, n1)
    world.settle()
    taken = world.epoch
    world.put(key_of(0), b"b", at=n1, acked=False)
    n1.core.acked(0, 1)
    world.settle(n1)
    n1.core.release(0)
    world.settle(n1)
    world.crash(n1)
    world.broker.recreate(POSITIONS)
    if told:
        n0.core.demote(0)
        n0.tails = dict.fromkeys(range(PARTITIONS), 0)
        n0.core.positions_lost()
        world.settle(n0)
    n2 = world.nodes["n2"] = world.start("n2")
    n2.core.promote(0, taken)
    world.settle(n2)
    assert [e.segment for e in n2.announced(SteppedDown)] == [0]
    n2.core.promote(0, taken + 1)
    n2.core.acked(0, n2.core.last_sequence(0))
    world.settle(n2)
    assert n2.core.phase(0) == "writing"
    assert world.reader(0).repeats == 0


def test_claim_before_fence_and_a_lower_claim_that_comes_late() -> None:
    world, (_n0, n1) = started(3)
    n2 = world.nodes["n2"]
    world.own(0, n1)
    late = world.epoch
    world.own(0, n2)
    world.settle(n2)
    world.settle(n1)  # its claim of the lower epoch comes after the higher one
    assert n1.core.phase(0) == "idle"
    assert ("n1", "n2") not in world.fences
    assert late < world.epoch
    world.settle()
    world.check()


def test_claim_key_per_member_and_claims_outlive_compaction() -> None:
    """n1 claims and dies before its fence. The next primary fences n0, too, since its claim is kept."""
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
    world.compact_control()
    world.own(0, n2, must_reset="owners_lost")
    world.settle(n2)
    assert ("n2", "n0") in world.fences
    assert {member for _, member in n2.core.table.claimants(0)} == {n2.member}
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
    assert n0.core.written(0) == 1  # nothing after a release
    world.own(0, n1, n0)
    world.settle()
    assert world.fences == []
    world.check()
    assert world.reader(0).resets == ["initial"]


@pytest.mark.parametrize("committed", [True, False])
def test_a_release_that_is_taken_back_on_its_way_is_claimed_again(committed: bool) -> None:
    """Kafka was stopped during a drain: segments whose release was under way took no writes until it was back."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    n0.core.release(0)
    while n0.core.phase(0) != "releasing":
        n0.step(hang=True)
    assert n0.core.keep(0)
    world.put(key_of(0), b"b")
    if not committed:
        world.broker.init(n0.node_id)
    n0.finish()
    world.settle()
    assert (n0.core.phase(0), n0.core.written(0)) == ("writing", 2)
    assert n0.announced(Released) == []
    assert world.kinds(0)[-3:] == (["CLAIM", "ACTIVE", "CHANGE"])
    assert ("RELEASE" in world.kinds(0)) is committed
    world.put(key_of(0), b"c")
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_release_that_was_wanted_again_after_a_write_behind_it_is_not_the_last() -> None:
    """It was taken back on its way, a write was acknowledged, and then it was wanted again: that write is unwritten."""
    world, (n0, _) = started()
    n0.core.release(0)
    while n0.core.phase(0) != "releasing":
        n0.step(hang=True)
    assert n0.core.keep(0)
    world.put(key_of(0), b"behind it")
    n0.core.release(0)
    n0.finish()
    world.settle()
    assert world.kinds(0)[-5:] == ["RELEASE", "CLAIM", "ACTIVE", "CHANGE", "RELEASE"]
    assert (n0.core.phase(0), n0.core.written(0)) == ("released", 1)
    assert len(n0.announced(Released)) == 1
    world.check()


def test_nobody_is_fenced_for_a_claim_that_was_released() -> None:
    """From n0 to n1 to n2, and to n0's next process: each has released and continues with other segments."""
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
    """n0 was cut off. Its successor has released the segment since, and no record of the successor's claim is left."""
    world, (n0, n1) = started()
    world.own(0, n1)
    world.settle(n1)
    assert ("n1", "n0") in world.fences
    n1.core.release(0)
    world.settle(n1)
    assert n1.core.phase(0) == "released"
    world.compact_control()
    world.put(key_of(0), b"ghost", at=n0, acked=False)
    n0.core.acked(0, 1)
    world.settle()
    assert [e.segment for e in n0.announced(SteppedDown)] == [0]
    assert n0.core.phase(0) == "idle"


def test_at_no_offset_of_a_release_is_its_rank_unknown() -> None:
    """A node that reads up to its own record may find that one between the release's records."""
    world, (n0, _) = started()
    world.settle()
    before = len(world.broker.logs[POSITIONS, 0].slots)
    n0.core.release(0)
    world.settle()
    table, last = PositionsTable(), []
    for raw in world.broker.logs[POSITIONS, 0].read(0, 1000)[0]:
        record = decode(*raw, ON_POSITIONS)
        table.apply(decode_state(record.key, record.value, record.header.kind))
        if raw.offset >= before and record.header.segment == 0:
            last.append(record.header.kind)
            assert {member for _, member in table.known(0).ranked} == {n0.member}
    assert last[-2:] == [Kind.RELEASE_STATE, Kind.CLAIM_STATE]
    assert not table.claimants(0)


def test_an_epoch_that_was_released_is_not_given_out_again() -> None:
    """All segments are released and all nodes stopped. A node that starts then must not claim an earlier epoch."""
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


def test_incarnation_a_restarted_process_is_empty_and_resets() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.crash(n0)
    world.crash(n1)
    fresh = world.restart(n0)
    world.settle()
    world.own_all(fresh, must_reset="owners_lost")
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
    assert [e.by for e in n0.announced(Superseded)][:1] == [newer.member]


def test_correct_phantoms() -> None:
    """The old primary wrote an operation that no survivor has (below acks=all): the new one corrects it."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), b"phantom", acked=False)
    world.put(key_of(0, 1), b"phantom too", acked=False)
    n0.core.acked(0, 3)
    world.settle(n0)
    world.fail_over(n0, n1)
    world.settle()
    world.check()
    assert world.reader(0).resets == ["initial"]
    assert n1.core.counts.corrections == 2
    corrected = [r for r in world.records(0) if b'"correct"' in (r.value or b"")]
    assert [r.header.sequence for r in corrected] == [2, 3]


def test_read_from_stays_below_a_phantom_until_what_makes_up_for_it_is_written() -> None:
    """n1 has written operations of another key, and dies before that of the phantom's: n2 must still find it."""
    world, (n0, n1) = started(3, batch=1)
    n2 = world.nodes["n2"]
    world.put(key_of(0), b"phantom", acked=False)
    n0.core.acked_here(0, 1)
    world.settle(n0)
    world.crash(n0)
    world.own_all(n1, n2)
    for number in range(4):
        world.put(key_of(0, 1), b"kept %d" % number)
    world.put(key_of(0), b"lost", acked=False)
    n1.core.acked_here(0, 5)
    while world.kinds(0).count("CHANGE") < 5:
        world.now += 0.1
        n1.step()
    world.fail_over(n1, n2)
    world.settle()
    world.check()
    assert world.reader(0).resets == ["initial"]


def test_nothing_is_written_below_a_phantom() -> None:
    """n0 gets the segment back before it has heard that n1, which lacks an operation of n0, had it in between."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"pending", acked=False)
    n0.core.acked_here(0, 1)
    world.own(0, n1)
    world.put(key_of(0), b"phantom")
    world.settle(n1)
    world.own(0, n0)
    world.settle()
    assert world.reader(0).resets == ["initial", "phantom_ahead"]
    world.check()


def test_nothing_is_written_below_a_row_of_an_incremental_snapshot() -> None:
    """The same, and n1 has sent only rows: whoever orders by position would drop what n0 writes below them."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), b"pending", acked=False)
    n0.core.acked_here(0, 2)
    world.own(0, n1)
    world.settle(n1)
    n1.core.snapshot(0)
    world.settle(n1)
    world.own(0, n0)
    world.settle()
    assert world.reader(0).resets == ["initial", "phantom_ahead"]
    world.check()


@pytest.mark.parametrize("skipped", [False, True])
def test_a_pending_operation_makes_up_for_a_phantom_unless_it_is_skipped(skipped: bool) -> None:
    """The phantom is a delete and the later update is filtered out: the key would be missing for ever."""
    world, (n0, n1) = started(pipeline=skipping("u") if skipped else None)
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), None, acked=False)
    n0.core.acked(0, 2)
    world.settle(n0)
    assert world.reader(0).entries == {}
    world.fail_over(n0, n1)
    world.put(key_of(0), b"pending")
    world.settle()
    assert ("SKIPPED" in world.kinds(0)) is skipped
    assert n1.core.counts.corrections == skipped
    world.check()
    assert world.reader(0).resets == ["initial"]


def test_a_row_of_a_value_that_no_survivor_has_is_corrected() -> None:
    """A filter has dropped the phantom's change; the row of an incremental snapshot is all that tells of it."""
    world, (n0, n1) = started(pipeline=skipping("u"))
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), b"phantom", acked=False)
    n0.core.acked(0, 2)
    world.settle(n0)
    n0.core.snapshot(0)
    world.settle(n0)
    assert b"phantom" in b"".join(world.stock(0).values())
    world.fail_over(n0, n1)
    world.settle()
    assert b"phantom" not in b"".join(world.stock(0).values())
    assert world.kinds(0).count("RESET_BEGIN") == 1


@pytest.mark.parametrize("mode", [SnapshotMode.INITIAL, SnapshotMode.NO_DATA])
def test_a_cache_that_comes_back_after_its_positions_were_lost_is_reset(mode: SnapshotMode) -> None:
    """`no_data` leaves out the first snapshot, and holds back no reset that repairs a loss."""
    world = World(1, mode=mode)
    (n0,) = world.nodes.values()
    world.own_all(n0)
    world.put(key_of(0), b"old")
    world.settle()
    world.crash(n0)
    for partition in range(PARTITIONS):
        del world.broker.logs[POSITIONS, partition]
    world.broker.create(POSITIONS, PARTITIONS)
    again = world.nodes["n0"] = world.start("n0")
    world.own_all(again, must_reset="start")
    world.settle()
    assert world.reader(0).resets[-1] == "start"
    world.check()


def test_what_was_skipped_last_is_no_loss_to_the_next_owner() -> None:
    """Kafka has only a skipped record of the segment's last operations."""
    world, (n0, n1) = started(pipeline=skipping("u,d"))
    for value in (b"written", b"skipped", b"skipped too", None):
        world.put(key_of(0), value)
    world.settle()
    assert n0.core.written(0) == 4
    world.fail_over(n0, n1)
    world.settle()
    assert (world.reader(0).resets, n1.core.written(0)) == (["initial"], 4)
    assert {e.key: e.value for e in world.reader(0).entries.values()} == {key_of(0): b"written"}


@pytest.mark.parametrize("demoted", [False, True])
def test_a_write_between_decide_and_poll_does_not_overtake_a_correction(demoted: bool) -> None:
    """Backups get operations in sequence order: a correction is captured when it is replicated."""
    world, (n0, n1) = started(3)
    world.put(key_of(0), b"kept")
    world.settle()
    world.put(key_of(0), b"phantom", acked=False)
    n0.core.acked(0, 2)
    world.settle(n0)
    world.fail_over(n0, n1, world.nodes["n2"])
    while n1.core.phase(0) != "writing":
        n1.step()
    ledger = n1.core._segments[0].ledger
    assert ledger.read_from == ledger.base_offset > 0  # n2 need not read from the beginning
    written = world.put(key_of(0, 1), b"client's")
    assert not n1.announced(Corrected)
    assert written.sequence == 2
    if demoted:
        n1.core.demote(0)
    world.settle()
    if demoted:
        assert not n1.announced(Corrected)
        return
    (corrected,) = n1.announced(Corrected)
    assert [operation.sequence for operation in corrected.operations] == [3]
    world.check()


@pytest.mark.parametrize("first", [False, True])
def test_open_reset_again(first: bool) -> None:
    world, (n0, n1) = started()
    if first:
        world = World()
        n0, n1 = world.nodes.values()
        world.own_all(n0, n1)
    else:
        n0.core.overflow(0)
    world.put(key_of(0), b"a")
    while world.kinds(0)[-1:] != ["RESET_BEGIN"]:
        n0.step()
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial"] * (not first) + ["open_reset"]
    world.check()


def test_end_beyond_again() -> None:
    """A reset with an end beyond the new owner's history describes a state that is lost."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"ghost", acked=False)
    n0.core.acked(0, 1)
    n0.core.overflow(0)
    world.settle(n0)
    assert world.kinds(0)[-1] == "RESET_END"
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets[-1] == "end_beyond"
    world.check()


def test_a_new_owner_misses_what_the_positions_topic_names() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    lose_unseen(world, 1)
    world.leader_epoch = 0  # nor has anybody heard of another leader
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


def test_a_new_owner_misses_what_nobody_looked_for_under_the_last_leader() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    lose_unseen(world, 3)
    n1.follow()
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


def test_a_release_tells_the_highest_epoch() -> None:
    """Positions that are made again may have no other record of it."""
    state = node()
    segment = primary(state, 3)
    state.positions.highest_claim = 10_018
    batch = Batch(state)
    Takeover(state, Replica(state)).release(batch, segment)
    (told,) = [item.state for item in batch.items if isinstance(item, StateItem) and item.state is not None]
    assert isinstance(told, ReleaseState)
    assert (told.epoch, told.highest) == (7, 10_018)


@pytest.mark.parametrize("recheck", [False, True])
def test_an_active_removes_the_claims_of_those_it_has_fenced_unless_the_session_was_lost_since(recheck: bool) -> None:
    state = node()
    victims = frozenset({(4, "n1@1")})
    segment = primary(state, 3, Phase.FENCE, victims=victims, recheck=recheck)
    batch = Batch(state)
    Takeover(state, Replica(state)).active(batch, segment)
    removed = [item.key for item in batch.items if isinstance(item, StateItem) and item.state is None]
    assert removed == ([] if recheck else [claim_key(3, "n1@1")])


def test_a_log_that_was_cut_costs_those_who_begin_to_read_behind_it_under_that_leader() -> None:
    state = node()
    takeover = Takeover(state, Replica(state))
    (first, second, third), other = [n for n in range(8) if state.segment(n).partition == 0][:3], 7
    places = {first: Place(1, 9), second: Place(1, 7), third: Place(3, 8), other: Place(1, 9)}
    for number, place in places.items():
        primary(state, number, Phase.READ).scan = SegmentScan(((7, 0),), place=place)
    takeover.log_was_cut(0, Place(1, 9))
    assert {number for number, segment in state.segments.items() if segment.owed == "truncated"} == {first, second}


@pytest.mark.parametrize(
    ("behind", "seconds", "asked"),
    [(0, 0, False), (0, 3, True), (1, 3, False)],
)
def test_the_log_is_asked_for_what_a_takeover_reads_nothing_of(behind: int, seconds: int, asked: bool) -> None:
    """Under another leader, and not where the segment's life begins, which may be a later leader's than was known."""
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    for _ in range(seconds):
        world.now += 1
        world.put(key_of(0), b"b")
        world.settle()
    places: list[Place] = []
    carry_out = n1.carry_out

    def note(effect: Effect, hang: bool) -> bool:
        if isinstance(effect, Scan):
            places.extend(effect.places)
        return carry_out(effect, hang)

    n1.carry_out = note  # type: ignore[method-assign]
    world.leader_epoch = 1 - behind
    n1.follow()
    position = n1.core.table.positions[0]
    world.fail_over(n0, n1)
    world.settle()
    assert (Place(0, position.read_from) in places) is asked
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_position_names_the_leader_under_whom_its_place_was_seen() -> None:
    """Though the owner that writes it has not heard of that one."""
    world, (n0, n1) = started()
    looks, n1.core.end_read = n1.core.end_read, lambda *_: []
    world.leader_epoch = 1
    for _ in range(3):
        world.now += 1
        world.put(key_of(0), b"b")
        world.settle()
    assert (n0.core.table.positions[0].leader_epoch, n1.core.end_of(0)[1]) == (1, 0)
    world.fail_over(n0, n1)
    world.settle()
    world.put(key_of(0), b"c")
    world.settle()
    position = n1.core.table.positions[0]
    assert (position.member, position.leader_epoch, n1.core.end_of(0)[1]) == (n1.member, 1, 0)
    n1.core.end_read = looks
    world.settle()
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_what_an_owner_has_reset_under_a_leader_is_not_reset_again_by_who_hears_of_that_one_later() -> None:
    world, (n0, n1) = started()
    looks, n1.core.end_read = n1.core.end_read, lambda *_: []
    world.put(key_of(0), b"a")
    world.settle()
    del partition_log(world, 0).slots[-2:]
    world.leader_epoch = 1
    for _ in range(3):
        world.now += 1
        world.put(key_of(0), b"b")
        world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.fail_over(n0, n1)
    world.put(key_of(0), b"c")
    world.settle()
    n1.core.end_read = looks
    n1.core.end_read(0, partition_log(world, 0).end, 1, intact=False)
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
    world.fail_over(n0, n1)
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
    world.fail_over(n0, n1)
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


def test_a_loss_below_what_was_coalesced_is_missed() -> None:
    world, (n0, n1) = started()
    lose_unseen(world, 2)
    world.watching = False
    for value in (b"a", b"b", b"c"):
        world.put(key_of(0), value)
    assert n0.core.coalesce(0) == 2
    world.settle(n0)
    assert n0.core.written(0) == 5
    world.watching = True
    n1.follow()
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


def test_what_was_coalesced_is_no_loss_to_the_next_owner() -> None:
    world, (n0, n1) = started()
    world.watching = False
    for value in (b"a", b"b", b"c"):
        world.put(key_of(0), value)
    assert n0.core.coalesce(0) == 2
    world.put(key_of(0, 1), b"d")
    world.settle()
    world.watching, world.leader_epoch = True, 1
    n1.follow()
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_what_gave_way_is_counted_anew_by_an_owner_that_reads_from_the_base() -> None:
    """The position that it finds begins behind that, and is beyond its history."""
    world, (n0, n1) = started()
    for value in (b"a", b"b", b"c"):
        world.put(key_of(0), value)
    assert n0.core.coalesce(0) == 2
    world.settle()
    for number in range(5):
        world.put(key_of(0, 1), b"%d" % number)
        world.settle()
    world.put(key_of(0, 2), b"ahead", acked=False)
    n0.core.acked_here(0, n0.core.last_sequence(0))
    world.settle(n0)
    n1.follow()
    position = n1.core.table.positions[0]
    assert (position.sequence, position.coalesced) == (n0.core.last_sequence(0), 0)
    assert position.read_from_sequence >= 3
    world.watching = False
    world.fail_over(n0, n1)
    world.put(key_of(0, 1), b"more")
    world.settle()
    position = n1.core.table.positions[0]
    assert (position.read_from_sequence, position.coalesced_to, position.coalesced) == (-1, 3, 2)
    n1.core.session_lost()
    world.settle(n1)
    n1.core.session_lost()
    world.settle(n1)
    assert world.reader(0).resets == ["initial"]
    world.check()


def test_a_coalesced_run_is_one_transaction_after_another_takeover_too() -> None:
    world = World(2, batch=2)
    n0, n1 = world.nodes.values()
    world.own_all(n0, n1)
    world.settle()
    n0.core.paused = True
    world.put(key_of(0), b"first")
    for number in range(5):
        world.put(key_of(0, 1), b"%d" % number)
        world.put(key_of(0, 2 + number), b"x")
    assert n0.core.coalesce(0) == 4
    world.own(0, n0, n1)
    n0.core.paused = False
    while (position := n1.core.table.positions[0]).sequence == 0:
        world.now += 0.1
        n0.step()
        n1.follow()
    # Up to the operation to which the others gave way, though the last gap is before another one: 1, 3, 5, 7, 9, 10.
    assert (position.sequence, position.coalesced_to, position.coalesced) == (10, 9, 4)
    world.fail_over(n0, n1)
    while n1.core.phase(0) != "writing":
        world.now += 0.1
        n1.step()
    n1.core.session_lost()  # it looks again before it has looked twice
    world.settle(n1)
    assert world.reader(0).resets == ["initial"]
    world.check()


@pytest.mark.parametrize("acks_all", [True, False])
def test_a_loss_within_ones_own_history_is_missed_whoever_wrote_after_it(acks_all: bool) -> None:
    world, (n0, n1) = started()
    lose_unseen(world, 2)
    world.watching = False
    # Below cache.acks=all the primary writes what its backup has not got, and so the position is beyond its history.
    world.put(key_of(0, 2), b"ahead", acked=acks_all)
    n0.core.acked_here(0, 3)
    world.settle(n0)
    world.watching = True
    n1.follow()
    world.fail_over(n0, n1)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("steps", range(6))
def test_what_a_member_wrote_before_its_promotion_is_missed_until_it_has_decided(steps: int, fenced: bool) -> None:
    world, (n0, _) = started()
    lose_unseen(world, 2)
    world.watching = False
    world.own(0, n0)
    for _ in range(steps):
        world.now += 0.1
        n0.step()
    if fenced:
        world.broker.init("n0")
    world.settle()
    world.watching = True
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("noticed", [True, False])
def test_a_transaction_that_is_cut_into_while_it_is_open_is_missed(noticed: bool, answered: bool) -> None:
    """Its commit succeeds without what was cut away; the owner may have looked at the new leader before."""
    world, (n0, _) = started()
    world.put(key_of(0), b"before")
    world.settle()
    world.put(key_of(0, 1), b"cut away")
    world.put(key_of(0, 2), b"stays")
    while n0.hanging is None:
        world.now += 0.1
        n0.step(hang=True)
    log = partition_log(world, 0)
    next(slot for slot in log.slots if slot.record and b"cut away" in (slot.record.value or b"")).record = None
    world.leader_epoch = 1
    if noticed:
        n0.follow()
    if answered:
        n0.finish()
    else:  # it took effect, and nobody knows
        effect, n0.hanging = n0.hanging, None
        world.broker.commit(n0.node_id, n0.session)
        n0.core.commit_failed(effect.token, Cause.LOST)
    world.settle()
    assert world.reader(0).resets == ["initial", "truncated"]
    world.check()


def test_the_base_offset_is_that_of_a_reset_which_the_old_owner_ended_behind_the_claim() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    world.own(0, n1)
    while n1.core.phase(0) != "look":
        world.now += 0.1
        n1.step()
    n0.tails.clear()  # it has not read the claim yet
    n0.core.ask_reset(0, "signal")
    while len(world.reader(0).resets) < 2:
        world.now += 0.1
        n0.step()
    world.settle()
    begin = [r.offset for r in world.records(0) if r.header.kind is Kind.RESET_BEGIN][-1]
    world.put(key_of(0), b"b")
    world.settle(n1)
    assert world.reader(0).resets == ["initial", "signal"]
    assert n1.core.table.base_offset(0) == begin
    world.check()


def test_a_higher_claim_seen_while_writing_ends_it_though_nobody_was_fenced() -> None:
    world, (n0, n1) = started()
    world.put(key_of(0), b"a")
    world.settle()
    state = ClaimState(9, "stranger@7", "", "", SEGMENTS, PARTITIONS, 1)
    n0.core.state_read(StateRecord("claim", 0, "stranger@7", state))
    world.settle()
    assert [(e.segment, e.reason) for e in n0.announced(SteppedDown)] == [
        (0, "stranger@7 claimed epoch 9, not below 1"),
    ]
    assert (n0.core.phase(0), n0.core.phase(1)) == ("idle", "writing")
    assert world.fences == []
    assert world.refused == []
    assert n1.core.phase(0) == "idle"


def test_ones_own_older_or_lower_claims_are_no_news() -> None:
    world, (n0, _) = started()
    before = world.kinds(0)
    for member, epoch in (("n1@2", 1), (n0.member, 9)):
        state = ClaimState(epoch, member, "", "", SEGMENTS, PARTITIONS, 77)
        n0.core.state_read(StateRecord("claim", 0, member, state))
        world.settle()
    assert world.kinds(0) == before
    assert n0.core.phase(0) == "writing"
