"""The mutants fit the current sources, each CHECK has one, and the tool finds the bugs that it puts in."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.mutants import tool
from tests.mutants.table import MUTANTS
from tests.mutants.tool import Edit, Mutant, MutantError
from tests.support.paths import ROOT
from tests.support.waiting import waiting

CHECK: Final = re.compile(r"CHECK ([a-z-]+(?:, [a-z-]+)*)")
DESIGN: Final = frozenset(
    re.findall(
        r"\S+",
        """
    transfer-is-not-ops primary-decides-eviction answers-carry-epochs in-sync-order coalesce-acked nothing-over-a-hole
    position-is-not-claim claims-outlive-compaction claim-key-per-member read-from-trails read-to-own-record
    recheck-keeps-place recheck-after-fence fence-once incarnation claim-then-look claim-before-fence fencing continuity
    correct-phantoms release-is-final catch-up-by-ops prune-in-history reset-acked-only open-reset-again
    end-beyond-again
        """,
    )
)
"""The rules of the protocol that are known to break it when they are removed."""
QUICK: Final = ("log-drained-backwards", "eviction-not-captured", "written-off-by-one")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_the_sources_of_today(mutant: Mutant) -> None:
    assert tool.mutated(mutant)


def test_names_are_told_apart_and_each_mutant_says_why() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 30
    assert not [mutant.name for mutant in MUTANTS if not mutant.why]
    assert not [mutant.name for mutant in MUTANTS if bool(mutant.detector) != bool(mutant.because)]
    assert sum(not mutant.detector for mutant in MUTANTS) >= 25


def test_each_rule_marked_check_has_a_mutant() -> None:
    sources = [path for package in tool.PACKAGES for path in (ROOT / package).rglob("*.py")]
    marked = {
        name
        for source in sources
        for names in CHECK.findall(source.read_text(encoding="utf-8"))
        for name in names.split(", ")
    }
    rules = {mutant.rule for mutant in MUTANTS} - {""}
    assert marked | DESIGN == rules


def test_a_text_that_is_gone_or_stands_there_twice_is_refused_by_name() -> None:
    for old in ("no such text", "def "):
        with pytest.raises(MutantError, match=r"mutant rotten: its text occurs \d+ times in connector/.*adapt"):
            tool.mutated(
                Mutant("rotten", "", "", (Edit("connector/deelog_connector/core/connector_core.py", old, ""),))
            )
    with pytest.raises(MutantError, match=r"mutant broken: .* does not compile"):
        tool.mutated(
            Mutant(
                "broken", "", "", (Edit("connector/deelog_connector/core/connector_core.py", "def promote(", "def ("),)
            )
        )


def test_some_mutants_are_really_caught(tmp_path: Path) -> None:
    report = tmp_path / "report"
    arguments = [part for name in QUICK for part in ("--only", name)]
    tried = subprocess.run(
        [sys.executable, "-m", "tests.mutants", *arguments, "--seeds", "10", "--jobs", "1", "--report", str(report)],
        cwd=ROOT,
        env=tool.environment(tmp_path) | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,  # a busy machine; by itself it takes 15 s
    )
    assert tried.returncode == 0, tried.stderr
    assert report.read_text() == tried.stdout
    assert "3 mutants, 3 caught; by seeds 3, median" in tried.stdout
    for name in QUICK:
        assert re.search(rf"^\| {name} \| .* \| seeds \| \d+ \| [\d.]+ \| (gap|state|written) \|$", tried.stdout, re.M)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_told_to_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    environment = tool.environment(tmp_path) | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.mutants", "--only", "always-by-state"]
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def begun() -> bool:
        assert running.poll() is None
        return any(tmp_path.glob("deelog-mutant-*/output"))

    try:
        waiting(begun, 60, "its first mutant")
        running.send_signal(number)
        _, error = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 128 + number, error.decode()
    assert list(tmp_path.iterdir()) == []
