"""The rules of takeover and catch-up, each alone."""

from __future__ import annotations

import pytest

from deelog_connector.core.history import History
from deelog_connector.core.rules import (
    ReadStart,
    epoch_in_use,
    foreign,
    holds_all_after,
    is_overtaken,
    knows_what_it_drops,
    outranking,
    to_correct,
    to_fence,
    where_to_read,
)
from deelog_connector.core.scan import Claimant
from deelog_schemas.positions import PositionState, ResetState

ME = "n0@5"


@pytest.mark.parametrize(
    ("claims", "higher"),
    [
        ([], None),
        ([(7, ME)], None),
        ([(6, "n1@9")], None),
        ([(8, "n1@1")], (8, "n1@1")),
        ([(7, "n1@1")], (7, "n1@1")),  # another member in the same epoch
        ([(8, ME)], (8, ME)),
        ([(1, "n0@6")], (1, "n0@6")),  # a newer process of this node, in whatever epoch
        ([(1, "n0@4")], None),
        ([(9, "n1@1"), (1, "n0@6")], (1, "n0@6")),
    ],
)
def test_the_claim_before_which_a_member_steps_down(claims: list[Claimant], higher: Claimant | None) -> None:
    assert outranking(claims, 7, ME) == higher


def test_every_other_claimant_is_fenced_but_the_producer_of_ones_own_node_is_fenced_already() -> None:
    claims = {(1, "n0@4"), (7, ME), (6, "n1@9"), (5, "n2@1")}
    victims = to_fence(claims, ME)
    assert victims == {(1, "n0@4"), (6, "n1@9"), (5, "n2@1")}
    assert foreign(victims, ME) == {"n1@9", "n2@1"}
    # With the spare producer one's own node's other one is still to be fenced, and the other way round.
    assert foreign(victims, ME, spare=True) == {"n0@4", "n1@9", "n2@1"}
    assert foreign(victims, ME, {"n0@4", "n1@9"}) == {"n0@4", "n1@9", "n2@1"}
    assert foreign(victims, ME, {"n0@4", "n1@9"}, spare=True) == {"n1@9", "n2@1"}


def position(epoch: int, sequence: int, topic_id: str = "t") -> PositionState:
    return PositionState(epoch, sequence, 40, sequence, 0, 0, 12, 0, topic_id, "n1@1")


@pytest.mark.parametrize(
    ("writers", "state", "certain", "epoch"),
    [
        ({}, None, False, 0),
        ({6: "n1@9", 2: ""}, None, False, 0),
        ({7: ME}, None, False, 0),
        ({7: "n1@9"}, None, False, 7),  # another's of the same epoch, whose claim is lost
        ({7: "n1@9"}, None, True, 7),
        ({7: "n0@4"}, None, False, 7),
        ({7: ""}, None, False, 7),  # before one's own ACTIVE: it is the writer's that is gone
        ({7: ""}, None, True, 0),
        ({8: ME}, None, True, 8),
        ({9: "", 8: "n1@9", 7: ME}, None, False, 9),
        ({}, position(7, 3), False, 7),
        ({}, position(8, 3), True, 8),
        ({}, position(6, 3), True, 0),
        ({}, position(7, 3)._replace(member=ME), False, 0),
        ({7: ""}, position(7, 3)._replace(member=ME), False, 0),
        ({7: ""}, position(7, 3), True, 7),
        ({7: ME}, position(7, 3), False, 0),  # it was read before the own ACTIVE was
    ],
)
def test_the_records_before_which_a_member_steps_down(
    writers: dict[int, str], state: PositionState | None, certain: bool, epoch: int
) -> None:
    before = dict(writers)
    assert epoch_in_use(writers, state, certain, 7, ME) == epoch
    assert writers == before


@pytest.mark.parametrize(
    ("history", "state", "reset", "start"),
    [
        (((7, 0),), None, False, ReadStart()),  # nothing of it can be before the claim
        (((7, 0),), position(6, 3), False, ReadStart()),
        (((7, 4),), position(7, 3), False, ReadStart(40, 3)),
        (((6, 3), (7, 3)), None, False, ReadStart(-1, None)),
        (((6, 3), (7, 3)), position(6, 3), False, ReadStart(40, 3)),
        (((6, 3), (7, 3)), position(6, 3), True, ReadStart(owed="open_reset")),
        (((7, 0),), position(6, 3), True, ReadStart(owed="open_reset")),
        (((7, 0),), None, True, ReadStart(owed="open_reset")),
        (((6, 3), (7, 3)), position(6, 4), False, ReadStart(12, None)),  # beyond this history
        (((6, 3), (7, 3)), position(6, 3, "other"), False, ReadStart(owed="topic_recreated")),
        (((7, 0),), position(7, 0, "other"), False, ReadStart(owed="topic_recreated")),
    ],
)
def test_where_reading_begins(history: History, state: PositionState | None, reset: bool, start: ReadStart) -> None:
    opened = ResetState("id", 6, 3, "signal", 12, "n1@1") if reset else None
    assert where_to_read(history, 7, state, opened, "t") == start


@pytest.mark.parametrize(
    ("unwritten", "ahead", "overtaken"),
    [(None, (9, 9), False), ((1, 5), (1, 6), True), ((1, 5), (1, 4), False), ((2, 1), (1, 6), False)],
)
def test_readers_drop_what_is_written_below_a_phantom(
    unwritten: tuple[int, int] | None, ahead: tuple[int, int], overtaken: bool
) -> None:
    assert is_overtaken(unwritten, ahead) is overtaken


def test_phantoms_without_a_pending_operation_are_corrected() -> None:
    assert to_correct({b"c", b"a", b"b"}, {b"b", b"z"}) == [b"a", b"c"]


@pytest.mark.parametrize(("complete_from", "all_after"), [(1, True), (6, True), (7, False)])
def test_what_a_backup_lacks_that_has_everything_up_to_five(complete_from: int, all_after: bool) -> None:
    assert holds_all_after(complete_from, 5) is all_after


@pytest.mark.parametrize(
    ("complete_from", "last", "known"), [(6, 9, True), (7, 9, False), (7, 5, True), (7, 6, False), (1, 9, True)]
)
def test_the_keys_that_changed_after_five(complete_from: int, last: int, known: bool) -> None:
    assert knows_what_it_drops(complete_from, last, 5) is known
