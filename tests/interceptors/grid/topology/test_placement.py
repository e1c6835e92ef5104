"""Where segments are placed: evenly, completely, and moved as little as possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deelog_interceptors.grid.topology.placement import place
from tests.interceptors.grid.topology.test_controller import A, B, C


@given(
    st.lists(st.lists(st.sampled_from([A, B, C, "d@1"]), max_size=3, unique=True), min_size=1, max_size=40),
    st.sets(st.sampled_from([A, B, C, "d@1", "e@1"]), min_size=1),
    st.integers(1, 3),
)
def test_placement_is_even_complete_and_repeatable(current: list[list[str]], members: set[str], copies: int) -> None:
    owners = [tuple(row) for row in current]
    placed = place(owners, sorted(members), copies)
    wanted = min(copies, len(members))
    assert all(len(row) == len(set(row)) == wanted and set(row) <= members for row in placed)
    load = [sum(name in row for row in placed) for name in members]
    assert max(load) - min(load) <= 1
    assert place(placed, sorted(members), copies) == placed


def test_neighbours_share_a_primary_and_a_newcomer_takes_no_more_than_its_share() -> None:
    assert place([()] * 6, [A, B, C], 2) == [(A, B), (A, C), (B, C), (B, A), (C, A), (C, B)]
    assert place([()] * 2, [], 2) == [(), ()]
    moved = place([(A, B)] * 6, [A, B, C], 2)
    assert sum(C in owners for owners in moved) == 4
    assert sum(owners[0] == C for owners in moved) == 2
    assert [owners for owners in place([(A,)] * 6, [A, B], 1) if owners == (A,)] == [(A,)] * 3


def test_what_is_gone_is_replaced_by_who_has_least_and_nothing_else_moves() -> None:
    assert place([(A, B), (B, A), (A, C)], [A, C], 2) == [(C, A), (A, C), (A, C)]
    assert place([(A, B), (B, A)], [A, B], 1) == [(A,), (B,)]
    assert place([(A,), (B,)], [A, B], 3) == [(A, B), (B, A)]
    assert place([(A, B), ()], [A, B], 1) == [(A,), (B,)]


def test_backups_move_before_primaries() -> None:
    assert place([(A, B), (B, A), (A, C)], [A, B, C, "d@1"], 2) == [(A, B), (B, "d@1"), (C, A)]
    moved = place([(A, B), (A, B), (B, A), (B, A)], [A, B, C], 2)
    assert sum(C in owners for owners in moved) == 2
    assert [owners[0] for owners in moved].count(C) <= 2


def test_the_lead_goes_round_so_that_each_is_primary_about_as_often() -> None:
    assert [owners[0] for owners in place([(A, B)] * 6, [A, B], 2)] == [B, B, B, A, A, A]
    assert place([(A, B), (A, B), (B, A)], [A, B], 2) == [(A, B), (A, B), (B, A)]
    three = [owners[0] for owners in place([(A, B, C)] * 9, [A, B, C], 3)]
    assert {name: three.count(name) for name in (A, B, C)} == {A: 3, B: 3, C: 3}


def test_nobody_left_is_no_owner() -> None:
    assert place([(A, B), (B,)], [], 2) == [(), ()]
