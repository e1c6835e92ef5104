"""Histories: which positions one contains, what two have in common, and how one grows and is truncated."""

from __future__ import annotations

import pytest

from deelog_connector.core import history as past
from deelog_connector.core.history import MAX_EPOCHS, History

HISTORY: History = ((1, 5), (3, 9))


def test_the_last_sequence() -> None:
    assert past.last_of(()) == 0
    assert past.last_of(HISTORY) == 9


def test_the_end_of_an_epoch() -> None:
    assert [past.end_of(HISTORY, epoch) for epoch in (1, 2, 3, 4)] == [5, -1, 9, -1]


@pytest.mark.parametrize(
    ("position", "held"),
    [
        ((1, 1), True),
        ((1, 5), True),
        ((1, 6), False),
        ((2, 6), False),
        ((3, 9), True),
        ((3, 10), False),
        ((4, 0), False),
    ],
)
def test_what_a_history_holds(position: tuple[int, int], held: bool) -> None:
    assert past.holds(HISTORY, position) is held


def test_it_grows_by_the_next_position_or_the_first_of_a_later_epoch() -> None:
    assert past.extended((), (1, 1)) == ((1, 1),)
    assert past.extended(HISTORY, (3, 10)) == ((1, 5), (3, 10))
    assert past.extended(HISTORY, (4, 10)) == ((1, 5), (3, 9), (4, 10))
    with pytest.raises(AssertionError, match="epoch 2 after 3"):
        past.extended(HISTORY, (2, 10))


def test_an_epoch_begins_without_anything_in_it_and_only_once() -> None:
    assert past.opened((), 1) == ((1, 0),)
    assert past.opened(HISTORY, 4) == ((1, 5), (3, 9), (4, 9))
    assert past.opened(HISTORY, 3) == HISTORY
    assert past.opened(HISTORY, 2) == HISTORY


def test_the_oldest_epochs_are_forgotten() -> None:
    history: History = ()
    for epoch in range(1, MAX_EPOCHS + 3):
        history = past.extended(history, (epoch, epoch))
    assert (len(history), history[0]) == (MAX_EPOCHS, (3, 3))
    assert past.opened(history, 1000)[0] == (4, 4)
    assert not past.holds(history, (2, 1))


@pytest.mark.parametrize(
    ("backup", "common"),
    [
        ((), 0),
        (HISTORY, 9),
        (((1, 5), (3, 7)), 7),
        (((1, 5), (3, 12)), 9),
        (((1, 8),), 5),
        (((1, 5), (2, 8)), 5),
        (((2, 8),), -1),  # no epoch in common: the backup gets a state transfer
    ],
)
def test_what_two_histories_share(backup: History, common: int) -> None:
    assert past.common_point(HISTORY, backup) == common


@pytest.mark.parametrize(
    ("sequence", "kept"),
    [(0, ((1, 0),)), (4, ((1, 4),)), (5, ((1, 5),)), (6, ((1, 5), (3, 6))), (9, HISTORY), (20, HISTORY)],
)
def test_a_history_is_cut_at_a_sequence(sequence: int, kept: History) -> None:
    assert past.cut(HISTORY, sequence) == kept
