"""Leases: until when a node may acknowledge."""

from __future__ import annotations

from deelog_interceptors.grid.replication.frames import Heard
from deelog_interceptors.grid.topology.lease import Lease, lease_expiry_of, lease_of


def test_none_before_the_first_answer() -> None:
    lease = Lease(2.0)
    assert not lease.holds(0.0, 0.0)
    lease.sent(1, 0.0, 0.0)
    assert not lease.holds(0.0, 0.0)


def test_it_counts_from_the_sending_of_the_heartbeat_that_was_answered() -> None:
    lease = Lease(2.0)
    lease.sent(1, 10.0, 10.0)
    lease.sent(2, 11.0, 11.0)
    lease.heard(Heard(1, 5), 5)
    assert lease.holds(11.9, 11.9)
    assert not lease.holds(12.0, 12.0)
    lease.heard(Heard(2, 5), 5)
    assert lease.holds(12.9, 12.9)
    assert not lease.holds(13.0, 13.0)


def test_an_answer_that_comes_late_or_twice_prolongs_nothing() -> None:
    lease = Lease(2.0)
    for number in range(1, 4):
        lease.sent(number, 10.0 + number, 10.0 + number)
    lease.heard(Heard(3, 5), 5)
    lease.heard(Heard(1, 5), 5)
    lease.heard(Heard(3, 5), 5)
    lease.heard(Heard(9, 5), 5)
    assert lease.holds(14.9, 14.9)
    assert not lease.holds(15.0, 15.0)


def test_an_answer_under_a_view_that_is_not_known_here_counts_for_nothing() -> None:
    lease = Lease(2.0)
    lease.sent(1, 10.0, 10.0)
    lease.heard(Heard(1, 6), 5)
    assert not lease.holds(10.0, 10.0)
    lease.heard(Heard(1, 6), 6)
    assert lease.holds(10.0, 10.0)


def test_it_runs_out_by_either_clock() -> None:
    """A virtual machine that was paused: nobody has counted the time, until somebody sets its clock."""
    lease = Lease(2.0)
    lease.sent(1, 10.0, 1010.0)
    lease.heard(Heard(1, 5), 5)
    assert lease.holds(11.9, 1011.9)
    assert not lease.holds(11.0, 1012.0)
    assert not lease.holds(12.0, 1011.0)
    assert lease.holds(11.9, 500.0)  # a clock that is put back takes nothing
    assert not lease.holds(12.0, 500.0)  # and gives nothing
    lease.sent(2, 11.0, 1600.0)
    lease.heard(Heard(2, 5), 5)
    assert lease.holds(12.0, 1601.0)


def test_what_was_never_answered_is_not_kept_without_bound() -> None:
    lease = Lease(2.0)
    for number in range(10_000):
        lease.sent(number, float(number), float(number))
    assert len(lease._sent) < 1000
    lease.heard(Heard(9_999, 1), 1)
    assert lease.holds(10_000.0, 10_000.0)


def test_no_lease_outlives_the_silence_after_which_a_segment_is_given_away() -> None:
    for session, failure in ((0.6, 1.0), (6.0, 2.0), (0.1, 0.1), (300.0, 300.0)):
        assert lease_of(session, failure) > session + failure  # a change of controller ends no lease
        assert lease_expiry_of(session, failure) > 1.04 * lease_of(session, failure) + 0.9 * failure
