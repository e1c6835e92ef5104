"""Durations by bound."""

from __future__ import annotations

from math import inf

from deelog_connector.core.durations import BOUNDS, Durations


def test_each_bound_has_the_number_of_values_up_to_it() -> None:
    durations = Durations()
    for seconds in (0.0, 0.001, 0.0011, 5.0, 60.0, 61.0):
        durations.add(seconds)
    within = dict(durations.within())
    assert list(within) == [*BOUNDS, inf]
    assert (within[0.001], within[0.0025], within[2.5], within[5.0], within[60.0], within[inf]) == (2, 3, 3, 4, 5, 6)
    assert durations.count == 6
    assert durations.total == sum((0.0, 0.001, 0.0011, 5.0, 60.0, 61.0))


def test_nothing_was_added() -> None:
    durations = Durations()
    assert (durations.count, durations.total) == (0, 0.0)
    assert {count for _, count in durations.within()} == {0}
