"""`python -m tests.mutants.seeds REPORT CACHE FAULTS SEEDS`: runs seeds until one fails. A child process of the tool.

REPORT is a file that gets one JSON line per seed: `seed`, and, if the seed broke something, `part` and `text`.
CACHE: whose seeds. FAULTS: kinds separated by commas; empty for all kinds but those in ALONE. SEEDS: numbers, or
names of scenarios, separated by blanks.
Exit code 0: no bug was found; 1: one was found, and the last line describes it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

import deelog_connector
import deelog_interceptors
import deelog_schemas
from deelog_proof.simulation.caches import CACHES
from deelog_proof.simulation.campaign import DEFAULT_STEPS
from deelog_proof.simulation.script import Script, parse
from tests.support.paths import ROOT

SCENARIOS: Final = ROOT / "tests" / "proof" / "simulation" / "scenarios"
ALONE: Final = frozenset({"truncation"})
"""Kinds of faults that a seed has only if they are asked for."""


def script(seed: str, cache: str, faults: Sequence[str]) -> Script:
    """The script of a seed, or of a scenario."""
    if seed.isdecimal():
        return CACHES[cache].generate(int(seed), DEFAULT_STEPS, faults)
    (path,) = SCENARIOS.glob(f"*/{seed}.txt")
    return parse(path.read_text(encoding="utf-8"))


def run(seed: str, cache: str, faults: Sequence[str]) -> dict[str, Any]:
    """One line of the report."""
    found: dict[str, Any] = {"seed": seed}
    wanted = script(seed, cache, faults)
    try:
        verdict = CACHES[wanted.cache].world(wanted).run()
    except Exception as error:  # noqa: BLE001 - a mutant may raise anything outside of the checker
        return found | {"part": "broken", "text": "".join(traceback.format_exception(error)[-3:])}
    if verdict.violation is not None:
        found |= {"part": verdict.violation.part, "text": str(verdict.violation)}
    return found


def main(report: str, cache: str, faults: str, seeds: str) -> int:
    """See the module."""
    copied = Path(os.environ["PYTHONPATH"])
    for package in (deelog_connector, deelog_interceptors, deelog_schemas):
        assert Path(package.__path__[0]).is_relative_to(copied), f"{package.__path__[0]}: not the copy"
    chosen = faults.split(",") if faults else [kind for kind in CACHES[cache].guard.faults if kind not in ALONE]
    with open(report, "wb", buffering=0) as lines:
        for seed in seeds.split():
            found = run(seed, cache, chosen)
            lines.write(orjson.dumps(found) + b"\n")
            if "part" in found:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
