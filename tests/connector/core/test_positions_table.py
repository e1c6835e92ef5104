"""The positions topic as a table."""

from __future__ import annotations

from deelog_connector.core.positions_table import PositionsTable
from deelog_connector.core.segment import PositionsView
from deelog_schemas.positions import ClaimState, PositionState, ReleaseState, ResetState, StateRecord

POSITION = PositionState(2, 7, 40, 6, 0, 0, 12, 0, "t", "n0@1")
RESET = ResetState("n0@1/3", 2, 7, "signal", 12, "n0@1")


def claim(epoch: int, member: str, segment: int = 0) -> StateRecord:
    return StateRecord("claim", segment, member, ClaimState(epoch, member, "", "", 4, 2, 1))


def test_the_latest_state_of_a_key_counts_and_each_claimant_has_a_key() -> None:
    table = PositionsTable()
    for record in (claim(1, "n0@1"), claim(2, "n1@1"), claim(3, "n0@1"), claim(4, "n2@1", segment=1)):
        table.apply(record)
    assert table.claimants(0) == {(3, "n0@1"), (2, "n1@1")}
    table.apply(StateRecord("claim", 0, "n1@1", None))
    table.apply(StateRecord("claim", 0, "n9@1", None))  # nobody's
    assert table.claimants(0) == {(3, "n0@1")}
    assert table.claimants(2) == frozenset()


def test_who_has_claimed_with_its_spare_producer() -> None:
    table = PositionsTable()
    spare = ClaimState(3, "n1@1", "", "", 4, 2, 1, spare=True)
    for record in (claim(1, "n0@1"), claim(2, "n1@1"), StateRecord("claim", 0, "n1@1", spare)):
        table.apply(record)
    assert table.known(0).spares == {"n1@1"}
    assert table.known(1).spares == frozenset()
    table.apply(claim(4, "n1@1"))
    assert table.known(0).spares == frozenset()


def test_the_view_of_a_segment() -> None:
    table = PositionsTable()
    assert table.known(0) == PositionsView()
    table.apply(claim(1, "n0@1"))
    table.apply(StateRecord("position", 0, "", POSITION))
    table.apply(StateRecord("reset", 0, "", RESET))
    table.apply(StateRecord("release", 0, "", ReleaseState(5, 9, "n3@2", known=True)))
    known = table.known(0)
    assert known == PositionsView(frozenset({(1, "n0@1")}), POSITION, RESET, (5, "n3@2"), is_certain=True)
    assert known.ranked == {(1, "n0@1"), (5, "n3@2")}
    for what in ("position", "reset", "release"):
        table.apply(StateRecord(what, 0, "", None))
        table.apply(StateRecord(what, 0, "", None))  # again, as compaction may keep it
    assert table.known(0) == PositionsView(frozenset({(1, "n0@1")}))
    assert table.known(0).ranked == {(1, "n0@1")}
    assert (table.positions, table.resets, table.releases) == ({}, {}, {})


def test_the_highest_claim_outlives_claims_and_releases() -> None:
    table = PositionsTable()
    assert table.highest_claim == 0
    table.apply(StateRecord("claim", 0, "n0@1", ClaimState(2, "n0@1", "", "", 4, 2, 1, highest=3)))
    assert table.highest_claim == 3
    table.apply(claim(4, "n0@1"))
    table.apply(claim(2, "n1@1"))
    table.apply(StateRecord("claim", 0, "n0@1", None))
    assert table.highest_claim == 4
    table.apply(StateRecord("release", 0, "", ReleaseState(6, 0, "n0@1", known=True)))
    table.apply(StateRecord("release", 0, "", ReleaseState(5, 0, "n0@1", known=True)))
    assert table.highest_claim == 6
    assert [table.above(epoch) for epoch in (5, 6, 7)] == [6, 0, 0]
    table.apply(StateRecord("release", 0, "", ReleaseState(5, 0, "n0@1", known=True, highest=8)))
    assert table.highest_claim == 8


def test_the_base_offset_is_that_of_the_position() -> None:
    table = PositionsTable()
    assert table.base_offset(0) == -1
    table.apply(StateRecord("position", 0, "", POSITION))
    assert (table.base_offset(0), table.base_offset(1)) == (12, -1)
