"""What operators ask of connectors loses nothing, and resets nothing else: seeds without any other fault."""

from __future__ import annotations

from collections import Counter

import pytest

from deelog_proof.simulation.campaign import Plan, outcomes
from deelog_proof.simulation.node import REFUSED
from deelog_proof.simulation.verbs import OPERATIONS, SIGNALS

ASKED_FOR = {"initial", "clear", "interval", "overflow", "signal", "offsets"}
"""Why segments are reset where no fault happens; an op log overflows during a long pause."""


@pytest.mark.slow
def test_operations_alone_are_done_and_reset_nothing() -> None:
    counts: Counter[str] = Counter()
    for outcome in outcomes(Plan(1, 30, steps=1500, kinds=("connector",)), 1):
        assert not outcome.part, f"seed {outcome.seed}: {outcome.text}"
        counts.update(outcome.counts)
    assert all(counts[f"done {operation}"] for operation in (*OPERATIONS, "repair", "reset")), counts
    assert all(counts[f"sent {signal}"] for signal in SIGNALS), counts
    assert {name for name in counts if name.startswith("refused ")} == {f"refused {name}" for name in REFUSED}
    assert {name.removeprefix("reset ") for name in counts if name.startswith("reset ")} <= ASKED_FOR
