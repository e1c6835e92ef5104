"""What the parts of the core share."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.core.effects import OpenProducer
from deelog_connector.core.oplog import OpLog
from deelog_connector.core.segment import Phase, Reset, Segment, Snapshot
from deelog_connector.core.state import MAX_SAMPLES, ChangeTopic, Counts
from tests.connector.core.builders import node, primary


def test_a_segment_is_made_once_and_shares_the_budget() -> None:
    state = node()
    assert state.segment(5) is state.segment(5)
    assert {state.segment(number).partition for number in range(8)} == {0, 1}
    assert list(state.segments) == [5, 0, 1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize("number", [-1, 8])
def test_a_segment_that_does_not_exist(number: int) -> None:
    with pytest.raises(ValueError, match=rf"segment {number} does not exist \(segment.count=8\)"):
        node().segment(number)


def test_the_primaries_of_a_partition() -> None:
    state = node()
    for number in range(8):
        state.primaries[number] = state.segment(number)
    parts = [state.primaries_of(partition) for partition in (0, 1)]
    assert [{s.partition for s in part} for part in parts] == [{0}, {1}]
    assert sum(map(len, parts)) == 8


@pytest.mark.parametrize(
    "work",
    [
        {"phase": Phase.LOOK},
        {"phase": Phase.RELEASED},
        {"acked": 4},
        {"noted": Phase.ROWS},
        {"release_wanted": True},
        {"snapshot": Snapshot()},
    ],
)
def test_who_may_have_something_to_do(work: dict[str, Any]) -> None:
    """What is written rests, until something comes."""
    state = node()
    rests: dict[str, Any] = {"sent": 3, "acked": 3, "noted": Phase.WRITING}
    primary(state, 0, **rests)
    works = primary(state, 5, **{**rests, **work})
    assert state.working() == [works]
    assert state.writable(state.working()) == [works]
    state.withheld = frozenset({works.partition})
    assert (state.working(), state.writable(state.working())) == ([works], [])


def test_a_demotion_keeps_history_and_op_log_and_ends_the_rest() -> None:
    state = node()
    segment = Segment(
        0,
        0,
        OpLog(state.budget),
        ((1, 4),),
        Phase.ROWS,
        owed="signal",
        marker=b"marker",
        reset=Reset("id", "signal", (1, 4)),
        snapshot=Snapshot(),
        release_wanted=True,
    )
    state.segments[0] = state.primaries[0] = segment
    state.demote(0)
    assert state.primaries == {}
    assert state.segment(0) is segment
    assert (segment.phase, segment.history) == (Phase.IDLE, ((1, 4),))
    assert (segment.owed, segment.marker, segment.reset, segment.snapshot) == (None, None, None, None)
    assert not segment.release_wanted


def test_no_number_comes_twice() -> None:
    state = node()
    assert [state.next_number() for _ in range(3)] == [1, 2, 3]


def test_the_outbox_is_emptied() -> None:
    state = node()
    state.outbox.append(OpenProducer())
    assert state.take_outbox() == [OpenProducer()]
    assert state.take_outbox() == []


def test_before_the_first_look_nothing_is_known_of_a_partition() -> None:
    topic = ChangeTopic()
    assert (topic.end(0), topic.leader_epoch(0)) == (-1, -1)
    topic.ends[0], topic.leader_epochs[0] = 0, 3
    assert (topic.end(0), topic.leader_epoch(0)) == (0, 3)


def test_of_takeovers_the_last_samples_are_kept() -> None:
    counts = Counts()
    for number in range(MAX_SAMPLES + 2):
        counts.takeover_ended(float(number))
    assert counts.takeovers == MAX_SAMPLES + 2
    assert (len(counts.takeover_ms), counts.takeover_ms[0]) == (MAX_SAMPLES, 2000.0)
