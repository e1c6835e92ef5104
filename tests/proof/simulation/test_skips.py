"""Runs in which transforms drop operations: nothing is lost, nothing is reset for it, and no phantom stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from deelog_proof.simulation.filtering import BY_KEY, BY_VALUE
from deelog_proof.simulation.generate import generate
from deelog_proof.simulation.world import World


@pytest.mark.parametrize("skips", [BY_KEY, BY_VALUE])
def test_seeds_hold_where_operations_are_dropped(skips: int) -> None:
    counts: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    for seed in range(1, 21):
        script = generate(seed, steps=1500)
        verdict = World(replace(script, settings=script.settings | {"skips": skips})).run()
        assert verdict.violation is None, f"seed {seed}: {verdict.violation}"
        counts += verdict.counts
        plain += World(script).run().counts
    assert counts["record SKIPPED"] > 150
    assert counts["takeovers"] > 100
    assert plain["record SKIPPED"] == 0
    # What is dropped is not taken for lost: about as many resets as without a transform.
    for reason in ("reset truncated", "reset hole", "reset phantom_ahead"):
        assert counts[reason] <= plain[reason] + 4, reason
