"""How long segments stay in phases, and how long takeovers and resets take, as polls see it."""

from __future__ import annotations

from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.core.timing import Timing


def segment() -> Segment:
    return Segment(0, 0, OpLog(Budget(10, 1000)))


def test_a_takeover_by_phase_and_as_a_whole() -> None:
    timing, taken = Timing(), segment()
    ended = []
    for now, phase in (
        (10.0, Phase.CLAIM),
        (11.0, Phase.CLAIM),
        (13.0, Phase.LOOK),
        (13.5, Phase.READ),
        (17.0, Phase.WRITING),
        (20.0, Phase.WRITING),
    ):
        taken.phase = phase
        ended.append(timing.observe([taken], now))
    assert ended == [[], [], [], [], [7.0], []]
    assert {phase: d.total for phase, d in timing.phases.items() if d.count} == {
        Phase.CLAIM: 3.0,
        Phase.LOOK: 0.5,
        Phase.READ: 3.5,
    }
    assert (timing.takeovers.count, timing.takeovers.total) == (1, 7.0)


def test_a_takeover_between_two_polls_is_none() -> None:
    timing, taken = Timing(), segment()
    taken.phase = Phase.WRITING
    assert timing.observe([taken], 10.0) == timing.observe([taken], 11.0) == []
    assert timing.takeovers.count == 0


def test_a_segment_that_looks_again_is_no_other_takeover() -> None:
    timing, taken = Timing(), segment()
    ended = []
    for now, phase in ((10.0, Phase.CLAIM), (12.0, Phase.WRITING), (20.0, Phase.ACTIVE), (23.0, Phase.WRITING)):
        taken.phase = phase
        ended.append(timing.observe([taken], now))
    assert ended == [[], [2.0], [], []]
    assert timing.phases[Phase.ACTIVE].total == 3.0


def test_resets_of_several_segments_are_timed_as_one() -> None:
    timing, one, other = Timing(), segment(), segment()
    both = [one, other]
    timing.observe(both, 5.0)
    assert (timing.resetting, timing.reset_seconds(9.0)) == (False, 0.0)
    one.phase = Phase.OWED
    timing.observe(both, 10.0)
    assert timing.resetting
    assert timing.reset_seconds(11.0) == 1.0
    one.phase, other.phase = Phase.WRITING, Phase.BEGUN
    timing.observe(both, 12.0)
    assert timing.resetting
    assert timing.reset_seconds(13.0) == 3.0
    other.phase = Phase.WRITING
    timing.observe(both, 14.0)
    assert not timing.resetting
    assert timing.reset_seconds(99.0) == 4.0
    one.phase = Phase.ROWS
    timing.observe(both, 20.0)
    assert timing.reset_seconds(21.0) == 1.0


def test_a_reset_ends_with_the_ownership() -> None:
    timing, one = Timing(), segment()
    one.phase = Phase.ROWS
    timing.observe([one], 10.0)
    timing.observe([], 12.0)
    assert (timing.resetting, timing.reset_seconds(50.0)) == (False, 2.0)
