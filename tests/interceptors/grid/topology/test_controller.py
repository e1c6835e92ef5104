"""The controller's decisions: each rule alone, and all of them in random histories of a cluster."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_interceptors.grid.topology.controller import OWNERS_LOST, UNCLEAN_ELECTION, VALID, Situation, decide
from deelog_interceptors.grid.topology.requests import GROW, RELEASED, RESET_DONE, SHRINK, STEPPED_DOWN, Request
from deelog_interceptors.grid.topology.view import (
    Registration,
    SegmentState,
    State,
    View,
)

A, B, C = "a@1", "b@1", "c@1"


def member(name: str, leaving: bool = False) -> Registration:
    return Registration(name, f"127.0.0.1:{ord(name[0])}", "127.0.0.1:1", leaving)


def situation(*names: str, leaving: tuple[str, ...] = (), **changes: object) -> Situation:
    members = {name: member(name, name in leaving) for name in names}
    return Situation(names[0] if names else A, members, **changes)  # type: ignore[arg-type]


def online(primary: str = A, *backups: str, owners: tuple[str, ...] | None = None, **changes: object) -> SegmentState:
    row = SegmentState(State.ONLINE, 5, primary, (primary, *backups), owners or (primary, *backups))
    return row._replace(**changes)  # type: ignore[arg-type]


def view(*rows: SegmentState, members: tuple[str, ...] = (A, B, C)) -> View:
    return View(7, A, {name: member(name) for name in members}, rows)


def decided(before: View, now: Situation) -> View:
    after = decide(before, now)
    assert after is not None
    assert after.topology_id > max(before.topology_id, now.floor)
    return after


def test_an_empty_cluster_waits_until_it_is_settled_and_then_spreads_evenly() -> None:
    empty = View(0, "", {}, (SegmentState(),) * 6)
    waiting = decided(empty, situation(A, settled=False))
    assert {row.state for row in waiting.rows} == {State.NEW}
    after = decided(waiting, situation(A, B, C, floor=41))
    assert after.topology_id == 42
    assert {row.epoch for row in after.rows} == {42}
    assert sorted(row.primary or "" for row in after.rows) == [A, A, B, B, C, C]
    assert all(row.in_sync == (row.primary,) and len(row.owners) == 2 for row in after.rows)


def test_nothing_changes_nothing_is_decided() -> None:
    steady = view(online(A, B), online(B, C), online(C, A))
    assert decide(steady, situation(A, B, C)) is None


def test_a_dead_primary_gives_way_to_an_in_sync_owner() -> None:
    after = decided(view(online(A, B), members=(A, B)), situation(B, dead=frozenset({A})))
    assert after.rows[0] == SegmentState(State.ONLINE, 8, B, (B,), (B,))
    assert A not in after.members


def test_a_new_controller_waits_for_the_one_in_sync_for_longest() -> None:
    """A new member with a state transfer has no operations to resume with: it would reset."""
    rows = view(online(A, B, C), members=(A, B, C))
    early = decided(rows, situation(C, dead=frozenset({A}), settled=False)).rows[0]
    assert (early.state, early.primary) == (State.OFFLINE, None)
    waiting = decided(rows, situation(C, dead=frozenset({A}), settled=False))
    after = decided(waiting, situation(B, C, settled=False)).rows[0]
    assert (after.primary, after.must_reset) == (B, None)
    late = decided(waiting, situation(C, settled=True)).rows[0]
    assert (late.primary, late.must_reset) == (C, None)


def test_owners_that_are_not_in_sync_are_not_elected_while_an_in_sync_one_may_live() -> None:
    rows = view(online(A, owners=(A, B)))
    gone = View(7, B, {name: member(name) for name in (A, B)}, rows.rows)
    # A is neither known alive nor known dead, for example right after a change of controller.
    assert decided(gone, situation(B, copies=1)).rows[0].primary == A


def test_offline_while_an_in_sync_member_may_live_and_unclean_only_if_allowed() -> None:
    row = SegmentState(State.OFFLINE, 5, None, (A,), (A, B))
    before = View(7, B, {A: member(A), B: member(B)}, (row,))
    kept = decide(before, situation(B))
    assert kept is None or kept.rows[0].state is State.OFFLINE
    after = decided(before, situation(B, unclean=True)).rows[0]
    assert (after.primary, after.must_reset, after.in_sync) == (B, UNCLEAN_ELECTION, (B,))


def test_when_all_in_sync_are_dead_anybody_takes_it_and_resets() -> None:
    gone = frozenset({A, B})
    after = decided(view(online(A, B)), situation(C, dead=gone, lapsed=gone)).rows[0]
    assert (after.primary, after.must_reset, after.in_sync, after.epoch) == (C, OWNERS_LOST, (C,), 8)


@pytest.mark.parametrize("lapsed", [frozenset[str](), frozenset({A}), frozenset({B})])
def test_known_dead_is_not_enough_while_a_lease_of_theirs_may_hold(lapsed: frozenset[str]) -> None:
    gone = frozenset({A, B})
    waiting = decided(view(online(A, B)), situation(C, dead=gone, lapsed=lapsed))
    assert waiting.rows[0].state is State.OFFLINE
    assert waiting.members.keys() == {C}
    assert decide(waiting, situation(C, lapsed=lapsed)) is None
    back = decided(waiting, situation(C, A, lapsed=lapsed)).rows[0]  # it was cut off, and has everything
    assert (back.primary, back.must_reset) == (A, None)
    after = decided(waiting, situation(C, lapsed=gone)).rows[0]
    assert (after.primary, after.must_reset) == (C, OWNERS_LOST)


def test_a_reset_that_is_owed_is_inherited_until_it_is_done() -> None:
    before = view(online(A, B, must_reset=OWNERS_LOST), members=(A, B))
    assert decided(before, situation(B, dead=frozenset({A}))).rows[0].must_reset == OWNERS_LOST
    done = {A: [Request(RESET_DONE, 0, 5)]}
    assert decided(before, situation(A, B, requests=done)).rows[0].must_reset is None


def test_the_in_sync_set_grows_and_shrinks_as_its_primary_asks() -> None:
    before = view(online(A, owners=(A, B)), members=(A, B))
    grown = decided(before, situation(A, B, requests={A: [Request(GROW, 0, 5, B)]}))
    assert grown.rows[0].in_sync == (A, B)
    shrunk = decided(grown, situation(A, B, requests={A: [Request(SHRINK, 0, 5, B)]}))
    assert shrunk.rows[0].in_sync == (A,)
    # To stop waiting for a member that is not in sync needs a new view, too.
    assert decide(shrunk, situation(A, B, requests={A: [Request(SHRINK, 0, 5, B)]})) is not None


@pytest.mark.parametrize("request_", [Request(GROW, 0, 4, B), Request(GROW, 0, 5, C), Request(SHRINK, 0, 5, A)])
def test_requests_of_another_epoch_for_others_than_owners_or_against_the_primary_are_left_out(
    request_: Request,
) -> None:
    before = view(online(A, owners=(A, B)), members=(A, B))
    assert decide(before, situation(A, B, requests={A: [request_]})) is None
    assert decide(before, situation(A, B, requests={B: [Request(GROW, 0, 5, B)]})) is None


def test_a_member_that_is_not_known_to_live_is_not_let_in() -> None:
    before = view(online(A, owners=(A, B)), members=(A, B))
    asked = {A: [Request(GROW, 0, 5, B)]}
    assert decide(before, situation(A, settled=False, requests=asked)) is None


def test_a_preferred_owner_that_is_not_in_sync_is_not_elected() -> None:
    before = view(online(B, owners=(A, B)), members=(A, B))
    after = decided(before, situation(A, B, requests={B: [Request(STEPPED_DOWN, 0, 5)]}))
    assert after.rows[0].primary == B


def test_a_target_that_can_take_it_stays_the_target() -> None:
    """Its primary may have stopped writes for it already."""
    before = view(online(A, B, C, owners=(C, B), target=B))
    assert decided(before, situation(A, B, C, leaving=(A,))).rows == before.rows


def test_a_primary_that_stays_keeps_its_segment_until_the_preferred_owner_is_in_sync() -> None:
    assert decide(view(online(A, B, owners=(C, B, A))), situation(A, B, C, copies=3)) is None


def test_controlled_shutdown_asks_for_a_release_and_elects_behind_it() -> None:
    before = view(online(A, B), members=(A, B))
    asked = decided(before, situation(A, B, leaving=(A,)))
    assert (asked.rows[0].primary, asked.rows[0].target, asked.rows[0].epoch) == (A, B, 5)
    after = decided(asked, situation(A, B, leaving=(A,), requests={A: [Request(RELEASED, 0, 5)]}))
    assert after.rows[0] == SegmentState(State.ONLINE, 9, B, (B,), (B,))


def test_nobody_left_to_take_it_it_stays() -> None:
    before = view(online(A, B), members=(A, B))
    after = decided(before, situation(A, B, leaving=(A, B)))
    assert after.rows == before.rows


def test_the_preferred_owner_gets_it_back_once_in_sync() -> None:
    before = view(online(B, A, owners=(A, B)), members=(A, B))
    asked = decided(before, situation(A, B, copies=2))
    assert asked.rows[0].target == A
    after = decided(asked, situation(A, B, requests={B: [Request(RELEASED, 0, 5)]}))
    assert (after.rows[0].primary, after.rows[0].in_sync) == (A, (B, A))


def test_a_primary_that_is_not_heard_is_not_asked_to_release() -> None:
    """It would, since it reads the views, and could tell nobody: the segment would be closed for as long."""
    before = view(online(A, B, owners=(A, B)))
    after = decide(before, situation(B, C)) or before
    assert (after.rows[0].primary, after.rows[0].target) == (A, None)


def test_a_released_segment_without_its_target_is_elected_again() -> None:
    before = view(online(A, B, target=B), members=(A, B))
    after = decided(before, situation(A, dead=frozenset({B}), requests={A: [Request(RELEASED, 0, 5)]}))
    assert (after.rows[0].primary, after.rows[0].epoch) == (A, 8)


def test_one_that_stepped_down_is_elected_in_an_epoch_above_the_claim() -> None:
    before = view(online(A, B), members=(A, B))
    after = decided(before, situation(A, B, floor=90, requests={A: [Request(STEPPED_DOWN, 0, 5)]}))
    assert (after.rows[0].primary, after.rows[0].epoch) == (A, 91)


def test_a_joiner_gets_its_share_step_by_step() -> None:
    before = view(*[online(A, B), online(B, A)] * 3, members=(A, B))
    after = decided(before, situation(A, B, C))
    assert sum(C in row.owners for row in after.rows) == 4
    # The owners of a segment stay owners until the new member is in sync.
    assert all(set(row.in_sync) == {A, B} for row in after.rows)


def test_a_refused_transition_is_logged_with_both_states_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    valid = VALID[State.NEW]
    VALID[State.NEW] = frozenset()
    try:
        rows = (SegmentState(State.NEW, 0, None, (), (A,)), online(A))
        with caplog.at_level(logging.ERROR):
            after = decided(View(7, A, {}, rows), situation(A, copies=1))
    finally:
        VALID[State.NEW] = valid
    assert after.rows[0].state is State.NEW
    assert after.rows[1].primary == A
    assert "segment 0: refused the transition from New to Online" in caplog.text


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["up", "down", "leave", "answer"])), max_size=30))
def test_whatever_happens_a_clean_primary_was_in_sync_before(events: list[tuple[str, str]]) -> None:
    """In random histories, an election without a reset only chooses a member that was in the in-sync set."""
    now, live, leaving = View(0, "", {}, (SegmentState(),) * 5), dict[str, str](), set[str]()
    for generation, (name, event) in enumerate(events):
        dead: set[str] = set()
        if event == "up" and name not in live:
            live[name] = f"{name}@{generation}"
        elif event == "down":
            dead = {live.pop(name)} if name in live else set()
        elif event == "leave" and name in live:
            leaving.add(live[name])
        for _ in range(12):
            requests: dict[str, list[Request]] = {}
            for number, row in enumerate(now.rows):
                if event == "answer" and row.primary is not None:
                    asks = [Request(GROW, number, row.epoch, m) for m in row.owners if m not in row.in_sync]
                    asks += [Request(RELEASED, number, row.epoch)] if row.target else []
                    requests.setdefault(row.primary, []).extend(asks)
            members = {m: Registration(m, "h:1", "h:2", m in leaving) for m in live.values()}
            known_dead = frozenset(dead | (set(now.members) - set(live.values())))
            after = decide(now, Situation("x@1", members, known_dead, known_dead, requests))
            if after is None:
                break
            for before, row in zip(now.rows, after.rows, strict=True):
                if row.state is State.ONLINE and row.epoch != before.epoch:
                    assert row.primary in live.values()
                    first = before.state in (State.NEW, State.NON_EXISTENT)
                    assert first or row.must_reset or row.primary in before.in_sync
                    assert row.epoch == after.topology_id
                if row.state is State.ONLINE:
                    assert row.primary in row.in_sync
            now = after
        else:
            raise AssertionError("the controller does not come to rest")
