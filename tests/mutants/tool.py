"""Puts one bug into a copy of the product's packages, and makes the command by which a child process looks for it.

The text must occur exactly once: if its line has changed, the mutant fails, by name. Weighed in docs/decisions.md,
"Mutants are texts".
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

PACKAGES: Final = (
    "schemas/deelog_schemas",
    "connector/deelog_connector",
    "interceptors/deelog_interceptors",
    "proof/deelog_proof",
    "spark/deelog_spark",
)


class MutantError(Exception):
    """A mutant does not fit the current sources; the message names it."""


@dataclass(frozen=True)
class Edit:
    """`old` occurs exactly once in `file` (relative to the project's root) and is replaced by `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A bug. `rule` is the name of the CHECK that it removes, or empty; `why` says what is wrong with it.

    `faults` are the kinds of faults in the seeds that look for it (empty: those of every seed), which are of `cache`.
    `detector` is empty if
    the simulation's seeds find the bug. Else it is what finds it: `scenario NAME` (of
    tests/proof/simulation/scenarios), `model CONFIG...` or `pytest ID...`; `because` then says why no seed does.
    """

    name: str
    rule: str
    why: str
    edits: tuple[Edit, ...]
    faults: tuple[str, ...] = ()
    cache: str = "grid"
    detector: str = ""
    because: str = ""


def changed(text: str, edit: Edit, name: str) -> str:
    """The text after the edit; raises `MutantError` unless `old` occurs exactly once."""
    count = text.count(edit.old)
    if count != 1:
        raise MutantError(
            f"mutant {name}: its text occurs {count} times in {edit.file}, not once; adapt the mutant to what "
            f"is there now: {edit.old!r}"
        )
    return text.replace(edit.old, edit.new)


def mutated(mutant: Mutant) -> dict[str, str]:
    """The changed texts of the files that a mutant edits, by name; raises `MutantError` if it does not fit."""
    files: dict[str, str] = {}
    for edit in mutant.edits:
        text = files.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
        files[edit.file] = changed(text, edit, mutant.name)
    for file, text in files.items():
        try:
            compile(text, file, "exec")
        except SyntaxError as error:
            raise MutantError(f"mutant {mutant.name}: {file} does not compile: {error}") from error
    return files


def copy(to: Path, mutant: Mutant) -> None:
    """Copies the product's packages to `to`, with the mutant in them."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, to / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in mutated(mutant).items():
        (to / Path(file).relative_to(Path(file).parts[0])).write_text(text, encoding="utf-8")


def command(mutant: Mutant, seeds: Iterable[int], report: Path) -> list[str]:
    """The command of a child process that looks for the mutant: exit code 0 if it finds nothing; `report`: `seeds`."""
    detector = mutant.detector.split()
    if not detector or detector[0] == "scenario":
        chosen = ",".join(mutant.faults)
        numbers = " ".join(detector[1:] or map(str, seeds))
        return [sys.executable, "-m", "tests.mutants.seeds", str(report), mutant.cache, chosen, numbers]
    if detector[0] == "model":
        return [sys.executable, "-m", "tests.model", "explore", *detector[1:]]
    assert detector[0] == "pytest", f"mutant {mutant.name}: no detector is called {detector[0]}"
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *detector[1:]]


def environment(copied: Path) -> dict[str, str]:
    """A child's environment: the copy precedes the installed packages."""
    return os.environ | {"PYTHONPATH": str(copied), "PYTHONDONTWRITEBYTECODE": "1"}
