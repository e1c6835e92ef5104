"""Each scenario runs as it was written down, and each rule and each fault has one."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.golden import SCENARIOS, load, run

KNOWN: Final[dict[str, str]] = {}
"""Scenarios that fail, and why they still do."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xfail(strict=True, reason=KNOWN[path.stem])] if path.stem in KNOWN else [],
        )
        for path in sorted(SCENARIOS.glob("*.txt"))
    ],
)
def test_the_scenario_runs_as_it_was_written_down(path: Path) -> None:
    script, told_then = load(path)
    verdict, told_now = run(script)
    assert verdict.violation is None
    # One that is known to fail is written down once it no longer does.
    if path.stem not in KNOWN and told_now != told_then:
        changes = difflib.unified_diff(told_then.splitlines(), told_now.splitlines(), "then", "now", lineterm="")
        pytest.fail(
            "\n".join(changes) + f"\nIf this is right: python -m tests.simulation.golden --update {path.stem}",
            pytrace=False,
        )


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_scenario_says_why_it_exists_and_proves_that_it_happens(path: Path) -> None:
    script, _ = load(path)
    assert len(script.about) > 80
    assert script.expects
