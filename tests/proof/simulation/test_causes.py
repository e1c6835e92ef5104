"""Which resets the checker calls needless."""

from __future__ import annotations

import pytest

from deelog_interceptors.grid.topology.view import SegmentState, View
from deelog_proof.simulation.causes import Causes
from deelog_proof.simulation.event import Event

ALL = ("n0@1", "n1@1")


def view(epoch: int, *in_sync: str, must_reset: str | None = None) -> View:
    row = SegmentState(epoch=epoch, in_sync=in_sync, must_reset=must_reset)
    return View(epoch, "", {}, (row,))


def happened(*lines: str, names: dict[str, str] | None = None) -> Causes:
    causes = Causes(nodes=3, interval=0)
    for line in lines:
        verb, *arguments = line.split()
        causes.happened(Event(0.0, verb, tuple(arguments)), names or {})
    return causes


@pytest.mark.parametrize(
    ("reason", "line", "called"),
    [
        ("clear", "clear 0", True),
        ("clear", "put s0k0 a", False),
        ("signal", "signal 0", True),
        ("signal", "send reset-segment 0", True),
        ("signal", "connector n0 stop", False),
        ("offsets", "connector n0 reset", True),
        ("restart", "crash n0", False),
        ("topic_recreated", "recreate", True),
        ("topic_recreated", "recreate_positions", False),
        ("positions_lost", "recreate_positions", True),
        ("truncated", "recreate", True),
        ("truncated", "crash n0", False),
        ("interval", "crash n0", False),
        ("initial", "put s0k0 a", True),
        ("overflow", "put s0k0 a", True),
        ("owners_lost", "put s0k0 a", True),
        ("another", "crash n0", False),
    ],
)
def test_what_is_asked_for_or_lost_calls_for_a_reset(reason: str, line: str, called: bool) -> None:
    assert happened(line).call_for(reason, 0, 0, 1) is called


def test_a_reset_from_time_to_time_needs_an_interval() -> None:
    assert Causes(nodes=3, interval=3000).call_for("interval", 0, 0, 1)


def test_a_truncation_is_of_its_partition() -> None:
    causes = happened()
    causes.truncated.add(1)
    assert [causes.call_for("truncated", 0, partition, 1) for partition in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("lines", "needless"),
    [
        ((), [0]),
        (("crash n0",), [0]),
        (("crash n0", "pause n1"), []),
        (("crash n0", "resume n1"), [0]),
        (("crash n0", "pause x"), []),
        (("recreate_topology",), []),
    ],
)
def test_owners_are_lost_once_each_of_them_was_unwell(lines: tuple[str, ...], needless: list[int]) -> None:
    causes = happened(*lines, names={"x": "n1"})
    assert causes.view_made(view(1, *ALL)) == []
    assert causes.view_made(view(2, "n2@1", must_reset="owners_lost")) == needless
    assert causes.view_made(view(3, "n2@1", must_reset="owners_lost")) == [], "it was called for before"


def test_a_later_loss_is_a_new_one() -> None:
    causes = happened("crash n0", "crash n1")
    for made in (view(1, *ALL), view(2, "n2@1", must_reset="owners_lost"), view(3, "n2@1")):
        assert causes.view_made(made) == []
    assert causes.view_made(view(4, "n0@2", must_reset="owners_lost")) == [0]


@pytest.mark.parametrize("reason", ["hole", "unknown_history"])
def test_a_hole_is_left_by_one_who_was_unwell_among_those_of_the_last_epoch(reason: str) -> None:
    for line, called in (("pause n0", True), ("pause n2", False)):
        causes = happened(line)
        for made in (view(1, "n2@1"), view(2, *ALL), view(2, "n1@1"), view(3, "n1@1")):
            assert causes.view_made(made) == []
        assert causes.call_for(reason, 0, 0, 3) is called
