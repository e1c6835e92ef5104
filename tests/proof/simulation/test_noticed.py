"""Scenarios are about their rules: without the rule, one of them tells something else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.table import MUTANTS
from tests.mutants.tool import Mutant, copy, environment
from tests.proof.simulation.rows import RULES
from tests.support.paths import ROOT

UNNOTICED: Final = {
    "answers-carry-epochs": "what its mutant lets pass is refused for its epoch: a test of the backup finds it",
    "claim-key-per-member": "a position of the next owner tells as well who was superseded: tests of the positions and "
    "of the takeover find it",
    "claims-outlive-compaction": "its mutant forgets a claim that the scenario's node reads in the change topic as "
    "well: a test of the core finds it",
    "position-is-not-claim": "its mutant loses a claim that the scenario's old owner has read before, and so has "
    "looked again: seeds find it",
    "recheck-after-fence": "whoever is superseded hears of it from a claim, a record and a position: a test of the "
    "takeover takes the last two away",
    "release-keeps-rank": "records of the next owner tell as well who was superseded: a test of the positions finds it",
    "read-from-trails": "what its mutant lets slip is caught where READ begins: a position beyond one's own history is "
    "read from the base offset, and an open reset has a record of its own",
}
"""Rules whose scenario shows the situation, and no difference without the rule."""
_SECONDS: Final = 60.0


def _noticed(mutant: Mutant, copied: Path) -> bool:
    copy(copied, mutant)
    names = re.findall(r"`([a-z_]+)`", RULES[mutant.rule])
    command = [sys.executable, "-m", "tests.proof.simulation.golden", "--check", *names]
    child = subprocess.Popen(command, cwd=ROOT, env=environment(copied), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with child:
        try:
            told, errors = child.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            return True  # it never comes to rest
    assert all(f"{name}: " in told.decode() for name in names), errors.decode()
    return child.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", sorted({mutant.rule for mutant in MUTANTS} - {""}))
def test_a_scenario_notices_that_its_rule_is_gone(rule: str, tmp_path: Path) -> None:
    mutants = [mutant for mutant in MUTANTS if mutant.rule == rule]
    noticed = any(_noticed(mutant, tmp_path / mutant.name) for mutant in mutants)
    assert noticed is (rule not in UNNOTICED), UNNOTICED.get(rule, "the scenario is about something else")
