"""Each scenario runs as it was written down, and each rule and each fault has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from deelog_proof.simulation.failpoints import FAILPOINTS
from deelog_proof.simulation.redis import verbs as redis
from deelog_proof.simulation.verbs import SETTINGS, VERBS
from tests.proof.simulation.golden import SCENARIOS, difference, load
from tests.proof.simulation.rows import FAULTS, RULES
from tests.support.paths import ROOT

CHECK: Final = re.compile(r"CHECK ([a-z-]+(?:, [a-z-]+)*)")
KNOWN: Final[dict[str, str]] = {}
"""Scenarios that fail, and why they still do. Once one holds: write down what it tells, and take it out."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xfail(strict=True, reason=KNOWN[path.stem])] if path.stem in KNOWN else [],
        )
        for path in SCENARIOS.values()
    ],
)
def test_the_scenario_runs_as_it_was_written_down(path: Path) -> None:
    differs = difference(path)
    assert not differs, f"if this is right: python -m tests.proof.simulation.golden --update {path.stem}\n{differs}"


@pytest.mark.parametrize("path", SCENARIOS.values(), ids=SCENARIOS)
def test_the_scenario_says_why_it_exists_and_proves_that_it_happens(path: Path) -> None:
    script, _ = load(path)
    assert len(script.about) > 80
    assert script.expects


def test_each_rule_marked_check_has_its_scenario() -> None:
    sources = [p for folder in ("connector", "interceptors") for p in (ROOT / folder).rglob("*.py")]
    marked = {
        name
        for source in sources
        for names in CHECK.findall(source.read_text(encoding="utf-8"))
        for name in names.split(", ")
    }
    assert len(marked) > 20
    assert marked == RULES.keys(), "rows.py names the scenario of each rule"


@pytest.mark.parametrize(("row", "told"), [*RULES.items(), *FAULTS.items()])
def test_each_row_names_scenarios_or_tests_that_are_there(row: str | int, told: str) -> None:
    scenarios = re.findall(r"`([a-z_0-9]+)`", told)
    tests = re.findall(r"tests/[a-z_/]+\.py", told)
    assert scenarios or tests
    assert not [name for name in scenarios if name not in SCENARIOS]
    assert not [name for name in tests if not (ROOT / name).exists()]


def test_each_fault_of_the_list_has_a_row() -> None:
    assert list(FAULTS) == list(range(1, 35))


def test_the_page_tells_every_verb_setting_and_moment() -> None:
    page = re.sub(r"```.*?```", "", (ROOT / "docs/simulation.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    words = {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"[a-z_]+", code)}
    assert not {*VERBS, *SETTINGS, *FAILPOINTS} - words
    assert not {*redis.VERBS, *redis.SETTINGS} - words
