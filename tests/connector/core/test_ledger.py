"""The ledger: runs are kept until the log's end was read twice, and `read_from` follows at the same pace."""

from __future__ import annotations

from functools import partial

import pytest

from deelog_connector.core.ledger import CommittedRun, Inherited, Ledger, LogEnd, advanced_read_from


def test_adjacent_runs_are_one() -> None:
    ledger = Ledger()
    ledger.committed(CommittedRun(1, 3, 3, 10))
    ledger.committed(CommittedRun(4, 9, 2, 12))  # some were coalesced
    assert ledger.unverified == [CommittedRun(1, 9, 5, 10)]
    ledger.committed(CommittedRun(10, 10, 1, 8))
    assert ledger.unverified == [CommittedRun(1, 10, 6, 8)]


@pytest.mark.parametrize(
    ("before", "run"),
    [
        (CommittedRun(1, 3, 3, 10), CommittedRun(5, 5, 1, 12)),  # not adjacent
        (CommittedRun(1, 3, 3, 10), CommittedRun(4, 4, 0, 12)),  # the end of a reset
        (CommittedRun(3, 3, 0, 10), CommittedRun(4, 4, 1, 12)),
        (CommittedRun(1, 3, 3, 10, known=False), CommittedRun(4, 4, 1, 12)),
        (CommittedRun(1, 3, 3, 10, known=None), CommittedRun(4, 4, 1, 12)),
        (CommittedRun(-1, -1, 3, 10), CommittedRun(0, 0, 1, 12)),
    ],
)
def test_runs_that_stay_apart(before: CommittedRun, run: CommittedRun) -> None:
    ledger = Ledger()
    ledger.committed(before)
    ledger.committed(run)
    assert ledger.unverified == [before, run]


def test_rows_of_a_snapshot_are_counted_together_wherever_they_are() -> None:
    ledger = Ledger()
    assert not ledger.has_unverified_rows
    ledger.rows_committed(2, 7)
    ledger.committed(CommittedRun(1, 1, 1, 9))
    ledger.rows_committed(3, 11)
    ledger.committed(CommittedRun(2, 2, 1, 12))
    assert ledger.unverified == [CommittedRun(-1, -1, 5, 7), CommittedRun(1, 2, 2, 9)]
    assert ledger.has_unverified_rows


def test_a_run_is_verified_by_the_second_look() -> None:
    ledger = Ledger()
    ledger.rows_committed(1, 5)
    ledger.looked(10, 0, 0)
    assert ledger.has_unverified_rows
    ledger.committed(CommittedRun(1, 1, 1, 10))
    assert ledger.unverified == [CommittedRun(-1, -1, 1, 5), CommittedRun(1, 1, 1, 10)]
    ledger.looked(11, 1, 1)
    assert ledger.unverified == [CommittedRun(1, 1, 1, 10)]
    assert not ledger.has_unverified_rows
    ledger.looked(11, 1, 1)
    assert ledger.unverified == []


def test_the_end_of_a_look_counts_once_another_one_found_the_log_whole_that_held_more() -> None:
    ledger = Ledger()
    ledger.looked(10, 4, 3)
    first, second = LogEnd(10, 4, is_below=False), LogEnd(15, 9, is_below=False)
    assert (ledger.observed_end, ledger.next_read_from) == (first, None)
    ledger.looked(12, 5, 3)  # sequence 4 is still in flight: the end stays
    assert (ledger.observed_end, ledger.next_read_from) == (first, None)
    ledger.looked(13, 6, 4)  # it may be the last one that is left if the log is cut now
    assert (ledger.observed_end, ledger.next_read_from) == (first, None)
    ledger.looked(14, 7, 5)  # what is behind it was read back, and may have been cut before this look
    assert (ledger.observed_end, ledger.next_read_from) == (first, None)
    ledger.looked(15, 9, 9)
    assert (ledger.observed_end, ledger.next_read_from) == (second, first)
    ledger.looked(20, 9, 9)  # one after the other
    assert (ledger.observed_end, ledger.next_read_from) == (LogEnd(20, 9), first)
    ledger.advance(9, 9, 0, 0)
    assert (ledger.read_from, ledger.read_from_sequence) == (10, 4)


def test_what_was_in_flight_at_a_look_is_below_the_end_of_the_second_look_after_it_was_read_back() -> None:
    ledger = Ledger()
    ledger.looked(10, 4, 3)
    ledger.looked(10, 4, 4)  # the log may have been looked at before it was read back
    assert ledger.observed_end == LogEnd(10, 4, is_below=False)
    ledger.looked(11, 4, 4)
    assert (ledger.observed_end, ledger.next_read_from) == (LogEnd(11, 4), None)
    ledger.looked(12, 4, 4)
    assert (ledger.observed_end, ledger.next_read_from) == (LogEnd(12, 4), LogEnd(11, 4))
    ledger.looked(13, 4, 4)
    assert ledger.next_read_from == LogEnd(11, 4)
    ledger.advance(4, 4, 0, 0)
    assert (ledger.read_from, ledger.read_from_sequence) == (11, 4)


@pytest.mark.parametrize(
    ("candidate", "written", "replicated", "atomic_to", "offset"),
    [
        (None, 9, 9, 0, None),
        ((10, 4), 4, 4, 0, 10),
        ((10, 4), 3, 4, 0, None),
        ((10, 4), 4, 3, 0, None),
        ((10, 4), 4, 4, 4, 10),
        ((10, 4), 4, 9, 5, None),
    ],
)
def test_read_from_moves_where_everybody_holds_what_is_below(
    candidate: tuple[int, int] | None, written: int, replicated: int, atomic_to: int, offset: int | None
) -> None:
    assert advanced_read_from(candidate, written, replicated, atomic_to) == offset
    ledger = Ledger(read_from=2, read_from_sequence=1, next_read_from=candidate and LogEnd(*candidate))
    ledger.advance(written, replicated, atomic_to, 5)
    if offset is None:
        assert (ledger.read_from, ledger.read_from_sequence, ledger.next_read_from is None) == (2, 1, candidate is None)
        assert ledger.leader_epoch == -1
    else:
        assert (ledger.read_from, ledger.read_from_sequence, ledger.next_read_from) == (10, 4, None)
        assert ledger.leader_epoch == 5


def looked_at() -> Ledger:
    """A ledger with an observed end, the next `read_from`, and two unverified runs."""
    ledger = Ledger(read_from=3, read_from_sequence=2, base_offset=1)
    ledger.looked(9, 4, 4)
    ledger.looked(10, 4, 4)
    ledger.committed(CommittedRun(5, 5, 1, 10))
    ledger.looked(11, 5, 5)
    ledger.committed(CommittedRun(6, 6, 1, 11))
    assert None not in (ledger.observed_end, ledger.next_read_from)
    return ledger


def offsets(ledger: Ledger) -> tuple[int, int, int]:
    return ledger.read_from, ledger.read_from_sequence, ledger.base_offset


def test_a_reset_is_a_new_base() -> None:
    ledger = looked_at()
    ledger.rebase(40, 3)
    assert (*offsets(ledger), ledger.leader_epoch) == (40, -1, 40, 3)
    assert (ledger.observed_end, ledger.next_read_from) == (None, None)


def test_without_data_a_segment_begins_at_its_active() -> None:
    ledger = Ledger()
    ledger.begin(7, 2)
    assert (*offsets(ledger), ledger.leader_epoch) == (7, 0, -1, 2)


def test_after_a_loss_no_offset_holds() -> None:
    ledger = looked_at()
    ledger.lose()
    assert (ledger.read_from, ledger.base_offset) == (0, 0)
    assert (ledger.observed_end, ledger.next_read_from) == (None, None)


def test_what_was_found_is_to_be_verified_again() -> None:
    ledger = looked_at()
    ledger.resume([CommittedRun(1, 6, 6, 3)])
    assert ledger.unverified == [CommittedRun(1, 6, 6, 3)]
    assert (ledger.observed_end, ledger.next_read_from) == (None, None)
    ledger.looked(12, 6, 6)
    assert ledger.unverified == [CommittedRun(1, 6, 6, 3)]  # until the second look
    ledger.looked(12, 6, 6)
    assert ledger.unverified == []


def test_a_promotion_forgets_runs() -> None:
    ledger = looked_at()
    ledger.forget_runs()
    assert ledger.unverified == []
    ledger.advance(9, 9, 0, 0)  # nor does an offset hold: the log may be another one meanwhile
    assert (ledger.observed_end, ledger.read_from) == (None, 3)
    ledger.looked(20, 6, 6)
    assert ledger.observed_end == LogEnd(20, 6, is_below=False)


@pytest.mark.parametrize(
    ("inherited", "reset_at", "runs"),
    [
        (Inherited(2, 9, 7, 9), -1, [CommittedRun(3, 9, 7, 7)]),  # all of it is in the history
        (Inherited(2, 9, 7, 12), -1, [CommittedRun(3, 9, 7, 7)]),
        (Inherited(2, 9, 7, 5), -1, [CommittedRun(3, 5, 3, 7), CommittedRun(6, 9, 4, 7, known=False)]),
        (Inherited(2, 9, 7, 2), -1, [CommittedRun(3, 9, 7, 7, known=False)]),
        (Inherited(2, 9, 7, 0), -1, [CommittedRun(3, 9, 7, 7, known=False)]),
        (Inherited(2, 9, 7, -1), -1, [CommittedRun(3, 9, 7, 7, known=None)]),
        (Inherited(2, 9, 7, 5), 4, [CommittedRun(5, 5, 1, 7), CommittedRun(6, 9, 4, 7, known=False)]),
        (Inherited(2, 9, 7, 5), 6, [CommittedRun(7, 9, 3, 7, known=False)]),
        (Inherited(2, 9, 7, 5), 9, []),
        (Inherited(2, 2, 7, 2), -1, []),
    ],
)
def test_what_another_owner_committed(inherited: Inherited, reset_at: int, runs: list[CommittedRun]) -> None:
    assert inherited.runs(reset_at) == runs


@pytest.mark.parametrize(
    ("shared", "reset_at", "runs"),
    [
        (9, -1, [CommittedRun(3, 9, 5, 7)]),
        (4, -1, [CommittedRun(5, 9, 3, 7, known=False)]),  # both that are in the history may be among the coalesced
        (9, 5, [CommittedRun(6, 9, 2, 7)]),  # so may any two of four
        (9, 6, [CommittedRun(7, 9, 3, 7)]),
    ],
)
def test_what_was_coalesced_is_not_missed(shared: int, reset_at: int, runs: list[CommittedRun]) -> None:
    assert Inherited(2, 9, 7, shared, coalesced_to=6, coalesced=2).runs(reset_at) == runs


def test_how_many_sequences_were_coalesced_is_counted_until_readers_begin_after_them() -> None:
    ledger = Ledger(read_from_sequence=3)
    ledger.coalesce(3, 9, 2)
    ledger.coalesce(9, 12, 1)
    assert ledger.coalesced(12) == (12, 3)
    ledger.next_read_from = LogEnd(7, 9)
    ledger.advance(12, 12, 0, 5)
    assert ledger.coalesced(99) == (12, 1)
    ledger.coalesce(12, 15, 4)
    assert ledger.coalesced(99) == (15, 5)
    ledger.coalesce(12, 18, 2)  # one run with the one before, which waits to be written
    assert ledger.coalesced_runs == [(12, 1), (18, 6)]
    ledger.coalesce(3, 16, 1)
    assert ledger.coalesced_runs == [(18, 8)]
    ledger.rebase(20, 3)
    assert ledger.coalesced(99) == (0, 0)


def test_the_runs_are_complete_from_a_decision_to_the_next_promotion() -> None:
    begin, rebase = (partial(call, offset=4, leader_epoch=1) for call in (Ledger.begin, Ledger.rebase))
    for decided in (partial(Ledger.resume, runs=[]), begin, rebase):
        ledger = Ledger()
        assert not ledger.is_complete
        decided(ledger)
        assert ledger.is_complete
        ledger.forget_runs()
        assert not ledger.is_complete
