"""Stock consumers, unchanged, by the recipes of docs/consumers.md: each ends with what the cache holds.

By `reset.strategy=marker` a reader that knows nothing of deelog cannot know what a reset removed: then it ends with
that beside the content, exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.consumers.history import COMMITTED, STRATEGIES, UNCOMMITTED, History
from tests.system.consumers.readers import Place, consumers

NAMES = tuple(consumers(frozenset()))
Histories = Callable[[str], History]
Places = Callable[[str], Place]


def marked(name: str, strategy: str) -> list[pytest.MarkDecorator]:
    """All but the consumer that is there anyway, on the one topic that it takes 20 s to make."""
    return [pytest.mark.slow if (name, strategy) == ("plain", "marker") else pytest.mark.consumers]


EACH = [pytest.param(strategy, name, marks=marked(name, strategy)) for strategy in STRATEGIES for name in NAMES]


@pytest.mark.parametrize(("strategy", "name"), EACH)
def test_a_stock_consumer_ends_with_the_content(strategy: str, name: str, histories: Histories, place: Places) -> None:
    made = histories(strategy)
    held = consumers(made.ends)[name](place(made.topic), {})
    assert {key: value for key, value in held.items() if key not in made.stale} == made.content
    assert {key: value for key, value in held.items() if key in made.stale} == made.stale


@pytest.mark.parametrize("strategy", [pytest.param(s, marks=marked("plain", s)) for s in STRATEGIES])
def test_by_which_strategy_a_stock_consumer_learns_what_a_reset_removed(strategy: str, histories: Histories) -> None:
    """What a clear removed and what was lost with both owners stays with `marker`, and with it alone."""
    stale = histories(strategy).stale
    if strategy == "marker":
        assert {"cleared:1", "cleared:39"} <= stale.keys()
        assert any(key.startswith("lost:") for key in stale)
        # What a client deleted, or what expired, every reader knows.
        deleted = [number for number in range(120) if number % 10 == 1 or (number % 3 == 0 and number % 6)]
        assert not {"expires", *(f"k{number}" for number in deleted)} & stale.keys()
    else:
        assert stale == {}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marked(name, "marker")) for name in NAMES])
def test_without_read_committed_aborted_writes_are_taken_for_the_caches(
    name: str, histories: Histories, place: Places
) -> None:
    made = histories("marker")
    held = consumers(made.ends)[name](place(made.topic), {COMMITTED: UNCOMMITTED})
    assert held == made.content | made.stale | made.phantoms
    assert made.phantoms.items() - held.items() == set()
