"""Runs in which transforms drop operations: nothing is lost, nothing is reset for it, and no phantom stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from deelog_proof.simulation.filtering import BY_KEY, BY_VALUE, FAILING
from deelog_proof.simulation.generate import generate
from deelog_proof.simulation.script import Script
from deelog_proof.simulation.world import World


@pytest.fixture(scope="module")
def scripts(request: pytest.FixtureRequest) -> list[Script]:
    seeds = 5 if "not slow" in request.config.option.markexpr else 20
    return [generate(seed, steps=1500) for seed in range(1, seeds + 1)]


@pytest.fixture(scope="module")
def plain(scripts: list[Script]) -> Counter[str]:
    """What happens where nothing is dropped."""
    whole = (replace(script, settings=script.settings | {"skips": 0}) for script in scripts)
    return sum((World(script).run().counts for script in whole), Counter())


@pytest.mark.parametrize("skips", [BY_VALUE, *(pytest.param(n, marks=pytest.mark.slow) for n in (BY_KEY, FAILING))])
def test_seeds_hold_where_operations_are_dropped(skips: int, scripts: list[Script], plain: Counter[str]) -> None:
    counts: Counter[str] = Counter()
    for script in scripts:
        verdict = World(replace(script, settings=script.settings | {"skips": skips})).run()
        assert verdict.violation is None, f"{script.about}: {verdict.violation}"
        counts += verdict.counts
    assert counts["record SKIPPED"] > 5 * len(scripts)
    assert counts["takeovers"] > 5 * len(scripts)
    assert plain["record SKIPPED"] == 0
    # What is dropped is not taken for lost: about as many resets as without a transform.
    for reason in ("reset truncated", "reset hole", "reset phantom_ahead"):
        assert counts[reason] <= plain[reason] + 4, reason
