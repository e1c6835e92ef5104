"""The table of phases, and the phase of a segment when nothing can be assumed any more."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.reset_strategy import KeysInKafka
from deelog_connector.core.scan import SegmentScan
from deelog_connector.core.segment import (
    RECHECK,
    RESETTING,
    TRANSITIONS,
    UNDECIDED,
    Phase,
    PositionsView,
    Reset,
    Segment,
)
from deelog_schemas.operation import Entry, Reason

TAKEOVER = ["claim", "look", "fence", "active", "read", "writing", "releasing", "released"]


def segment(phase: Phase = Phase.IDLE, **fields: Any) -> Segment:
    return Segment(0, 0, OpLog(Budget(10, 1000)), phase=phase, **fields)


def test_a_takeover_and_a_reset_go_through_their_phases() -> None:
    one = segment()
    for phase in TAKEOVER:
        one.go(Phase(phase))
    one = segment(Phase.READ)
    for phase in (*RESETTING, Phase.WRITING):
        one.go(phase)


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_has_no_other_way_out_than_the_table_says(phase: Phase) -> None:
    for target in Phase:
        one = segment(phase)
        if target in TRANSITIONS[phase]:
            one.go(target)
            assert one.phase is target
        else:
            with pytest.raises(AssertionError, match=f"{phase} -> {target}"):
                one.go(target)
            assert one.phase is phase


@pytest.mark.parametrize("phase", Phase)
def test_every_owner_can_be_demoted_and_promoted(phase: Phase) -> None:
    assert {Phase.IDLE, Phase.CLAIM} <= TRANSITIONS[phase]
    assert segment(phase).is_primary is (phase is not Phase.IDLE)


@pytest.mark.parametrize("phase", Phase)
def test_nothing_is_written_before_claims_are_looked_at_again(phase: Phase) -> None:
    """CHECK recheck-after-fence: afterwards the segment is in no phase in which a node writes changes or rows."""
    one = segment(phase, marker=b"marker", scan=SegmentScan(()), generation=3)
    one.look_again()
    assert one.phase is RECHECK.get(phase, phase)
    assert one.phase not in (Phase.WRITING, Phase.READ, *RESETTING)
    if phase in RECHECK:
        assert (one.marker, one.scan, one.generation) == (None, None, 4)
        assert one.recheck is (one.phase is not Phase.CLAIM)
    else:
        assert phase in (Phase.IDLE, Phase.RELEASED)
        assert one.generation == 3


def test_an_aborted_reset_is_owed_again_but_for_a_clear_which_is_still_in_the_op_log() -> None:
    one = segment(Phase.ROWS, reset=Reset("id", "signal", (1, 1)))
    one.look_again()
    assert (one.reset, one.owed) == (None, "signal")
    one = segment(Phase.ROWS, reset=Reset("id", "signal", (1, 1)), owed="overflow")
    one.look_again()
    assert one.owed == "overflow"
    one = segment(Phase.BEGUN, reset=Reset("id", Reason.CLEAR, (1, 1)))
    one.look_again()
    assert (one.reset, one.owed) == (None, None)


def test_that_positions_were_lost_stays_owed_whatever_else_is() -> None:
    one = segment(Phase.WRITING)
    for reason, owed in (("truncated", "truncated"), ("positions_lost", "positions_lost"), ("hole", "positions_lost")):
        one.owe(reason)
        assert one.owed == owed


def test_why_it_was_stopped_is_forgotten_when_it_goes_on() -> None:
    one = segment(Phase.WRITING)
    one.stopped_by = "too large"
    one.go(Phase.STOPPED)
    assert one.stopped_by == "too large"
    one.go(Phase.OWED)
    assert one.stopped_by == ""


def test_it_listens_for_a_marker_once_its_claim_is_read() -> None:
    for phase in Phase:
        one = segment(phase)
        assert not one.listens
        one.await_marker(b"marker", 9)
        assert (one.marker_offset, one.scan_next) == (-1, 9)
        assert one.listens is (phase in (Phase.LOOK, Phase.READ, Phase.BEGUN, Phase.RELEASING))
        one.awaited = 1
        assert not one.listens
    assert Phase.LOOK in UNDECIDED


def test_keys_are_collected_from_below_the_begin() -> None:
    for start, scan_next in ((-1, -1), (4, 4), (12, 9)):  # above it only in a log that was truncated
        one = segment(Phase.BEGUN)
        one.reset = Reset("id", "signal", (1, 1))
        one.await_marker(b"marker", 9)
        one.marker_offset = 10
        assert not one.collects_keys
        one.collect_keys(KeysInKafka(start))
        assert (one.scan_next, one.marker_offset) == (scan_next, -1)
        assert one.collects_keys
        one.phase = Phase.OWED
        assert not one.collects_keys


def test_it_is_drained_when_kafka_holds_everything() -> None:
    one = segment(Phase.WRITING)
    one.history = ((1, 5),)
    assert not one.is_drained
    one.sent = 5
    assert not one.is_drained
    one.written = 5
    assert one.is_drained
    one.phase = Phase.ROWS
    assert not one.is_drained


def test_the_size_of_a_reset_counts_deletes_and_rows() -> None:
    reset = Reset("id", "signal", (1, 1), entries=[Entry(b"a", b"1", None)], gone=[b"b", b"c"])
    assert reset.size == 3


def test_a_release_keeps_the_rank_of_its_claim() -> None:
    claims = frozenset({(1, "n0@1")})
    assert PositionsView(claims).ranked == claims
    assert PositionsView(claims, released=(3, "n1@1")).ranked == claims | {(3, "n1@1")}
