"""Runs in which transforms drop operations: nothing is lost, nothing is reset for it, and no phantom stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from deelog_proof.simulation.filtering import BY_KEY, BY_VALUE, FAILING
from deelog_proof.simulation.generate import generate
from deelog_proof.simulation.world import World

SCRIPTS: Final = [generate(seed, steps=1500) for seed in range(1, 21)]


@pytest.fixture(scope="module")
def plain() -> Counter[str]:
    """What happens where nothing is dropped."""
    whole = (replace(script, settings=script.settings | {"skips": 0}) for script in SCRIPTS)
    return sum((World(script).run().counts for script in whole), Counter())


@pytest.mark.parametrize("skips", [BY_KEY, BY_VALUE, FAILING])
def test_seeds_hold_where_operations_are_dropped(skips: int, plain: Counter[str]) -> None:
    counts: Counter[str] = Counter()
    for script in SCRIPTS:
        verdict = World(replace(script, settings=script.settings | {"skips": skips})).run()
        assert verdict.violation is None, f"{script.about}: {verdict.violation}"
        counts += verdict.counts
    assert counts["record SKIPPED"] > 150
    assert counts["takeovers"] > 100
    assert plain["record SKIPPED"] == 0
    # What is dropped is not taken for lost: about as many resets as without a transform.
    for reason in ("reset truncated", "reset hole", "reset phantom_ahead"):
        assert counts[reason] <= plain[reason] + 4, reason
