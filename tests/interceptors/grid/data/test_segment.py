"""A segment: when it takes no more writes, and that segments share nothing."""

from __future__ import annotations

import pytest

from deelog_interceptors.grid.data.segment import Role, Segment


@pytest.mark.parametrize(
    ("releasing", "stepped_down", "closed"),
    [(False, False, False), (True, False, True), (False, True, True), (True, True, True)],
)
def test_a_segment_that_is_given_away_or_lost_takes_no_writes(
    releasing: bool, stepped_down: bool, closed: bool
) -> None:
    segment = Segment(3, releasing=releasing, stepped_down=stepped_down)
    assert segment.closed is closed


def test_segments_share_nothing() -> None:
    one, other = Segment(1), Segment(2)
    assert (one.role, one.data, one.sessions) == (Role.NONE, {}, {})
    for name in ("data", "waiting", "admitting", "lagging", "sessions", "outgoing", "pendings"):
        assert getattr(one, name) is not getattr(other, name)
