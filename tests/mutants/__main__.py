"""`python -m tests.mutants`: is every bug that is put into the product found, and after how many seeds?

Exit code 0: every mutant is caught, and the median of the seeds it takes is at most `MEDIAN`; 1: not so, or the
sources of today fail a seed themselves; 2: usage, or a mutant that does not fit the sources; 130, 143: stopped.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.mutants import tool
from tests.mutants.table import MUTANTS
from tests.mutants.tool import Mutant, MutantError
from tests.support.paths import ROOT

MEDIAN: Final = 50
BASELINE: Final = 100
"""So many seeds the sources as they are must pass before anything else."""
SOUND: Final = Mutant("unchanged", "", "the sources as they are", ())
POLL_SECONDS: Final = 0.05
LINES: Final = 12
"""How much of a child's output an error quotes."""


@dataclass(slots=True)
class Result:
    """What became of one mutant. `seeds`: how many it took (None: it was not by seeds); `part`: what broke."""

    mutant: Mutant
    caught: bool = False
    seeds: int | None = None
    seconds: float = 0.0
    part: str = ""
    text: str = ""

    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        by = self.mutant.detector.split()[0] if self.mutant.detector else "seeds"
        count = "-" if self.seeds is None else str(self.seeds)
        what = self.part if self.caught else f"NOT CAUGHT {self.text}".strip()
        return self.mutant.name, self.mutant.rule or "-", by, count, f"{self.seconds:.1f}", what


class Child:
    """One child process that looks for one mutant."""

    def __init__(self, mutant: Mutant, seeds: Sequence[int], seconds: float) -> None:
        self.mutant = mutant
        self._seconds = seconds
        self._started = time.monotonic()
        self._place = tempfile.TemporaryDirectory(prefix="deelog-mutant-")
        place = Path(self._place.name)
        try:
            tool.copy(place / "copy", mutant)
            self._report, self._output = place / "report", place / "output"
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    tool.command(mutant, seeds, self._report),
                    env=tool.environment(place / "copy"),
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C reaches the tool alone, which then ends its children
                )
        except BaseException:
            self._place.cleanup()
            raise

    @property
    def ended(self) -> bool:
        """Whether it is over, or has had its time."""
        return self._process.poll() is not None or time.monotonic() - self._started > self._seconds

    def result(self) -> Result:
        """What it found, once it has `ended`. Raises `MutantError` where it could not even look."""
        taken, code = time.monotonic() - self._started, self._process.poll()
        lines = self._lines()
        last = lines[-1] if lines else {}
        found = Result(self.mutant, seconds=taken, part=last.get("part", ""), text=last.get("text", ""))
        if code is None:
            found.text = f"within {self._seconds:.0f} s"
            return found
        if self.mutant.detector and not self.mutant.detector.startswith("scenario "):
            return self._detected(found, code)
        if code not in (0, 1) or (code == 1) != bool(found.part):
            raise MutantError(f"{found.mutant.name}: its seeds could not be run (exit code {code}):\n{self._tail()}")
        found.caught = code == 1
        found.seeds = None if self.mutant.detector else len(lines)
        if not found.caught:
            found.text = f"by {self.mutant.detector}" if self.mutant.detector else f"in {len(lines)} seeds"
        return found

    def _detected(self, found: Result, code: int) -> Result:
        """A model or test exits with 1 where something broke, and with something else where it could not run."""
        if code not in (0, 1):
            raise MutantError(f"{found.mutant.name}: its detector ended with code {code}:\n{self._tail()}")
        found.caught, found.text = code == 1, "" if code == 1 else f"by {found.mutant.detector}"
        found.part = found.mutant.detector.partition(" ")[0] if found.caught else ""
        return found

    def _lines(self) -> list[dict[str, Any]]:
        if not self._report.exists():
            return []
        return [
            orjson.loads(line) for line in self._report.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"
        ]

    def _tail(self) -> str:
        return "\n".join(self._output.read_text(errors="replace").splitlines()[-LINES:])

    def close(self) -> None:
        """Ends it, with whatever it started, and removes its files."""
        _kill_group(self._process)
        self._place.cleanup()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    for kind, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, None)):
        if process.poll() is None:
            process.send_signal(kind)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                continue


def hunt(
    mutants: Sequence[Mutant], seeds: Sequence[int], at_once: int, seconds: float, console: Console
) -> list[Result]:
    """Runs one child per mutant, `at_once` of them at a time, and returns what they found, in the mutants' order."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results: dict[int, Result] = {}
    waiting = list(enumerate(mutants))[::-1]
    running: dict[int, Child] = {}
    with ExitStack() as stack, Progress(*columns, console=console) as progress:
        stack.callback(_close, running)
        task = progress.add_task(mutants[0].name if len(mutants) == 1 else "mutants", total=len(mutants))
        while waiting or running:
            while waiting and len(running) < at_once:
                number, mutant = waiting.pop()
                running[number] = Child(mutant, seeds, seconds)
            for number in [number for number, child in running.items() if child.ended]:
                result = results[number] = running[number].result()
                running.pop(number).close()
                progress.advance(task)
                if mutants[number].edits and not (console.is_terminal and result.caught):
                    progress.print(" ".join(result.row()), highlight=False, soft_wrap=True)
            time.sleep(POLL_SECONDS)
    return [results[number] for number in range(len(mutants))]


def _close(running: Mapping[int, Child]) -> None:
    for child in running.values():
        child.close()


def table(results: Sequence[Result]) -> str:
    """The results as Markdown, with the median below."""
    head = ("mutant", "rule", "found by", "seeds", "seconds", "what broke")
    lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *(r.row() for r in results))]
    caught = sum(r.caught for r in results)
    seeds = [r.seeds for r in results if r.caught and r.seeds is not None]
    counted = f"by seeds {len(seeds)}, median {statistics.median(seeds):g} seeds, most {max(seeds)}" if seeds else ""
    return "\n".join([*lines, "", f"{len(results)} mutants, {caught} caught; {counted}".rstrip("; ")])


def enough(results: Sequence[Result]) -> bool:
    """Whether all were caught, soon enough."""
    seeds = [r.seeds for r in results if r.caught and r.seeds is not None]
    return all(r.caught for r in results) and (not seeds or statistics.median(seeds) <= MEDIAN)


def baseline(chosen: Sequence[Mutant], seeds: int, seconds: float, console: Console) -> str:
    """What is wrong with the sources as they are: with the first seeds, or with a scenario that is to find a mutant."""
    scenarios = dict.fromkeys(m.detector.partition(" ")[2] for m in chosen if m.detector.startswith("scenario "))
    sound = [replace(SOUND, detector="scenario " + " ".join(scenarios))] if scenarios else []
    sound += [replace(SOUND, cache=cache) for cache in sorted({m.cache for m in chosen if not m.detector})]
    found = hunt(sound, range(1, min(seeds, BASELINE) + 1), 1, seconds, console) if sound else []
    return "; ".join(r.text for r in found if r.caught)


def confirm(results: Sequence[Result], seconds: float, console: Console) -> None:
    """A seed that the sources as they are fail as well counts for nobody."""
    known: dict[tuple[str, tuple[str, ...], int], bool] = {}
    for result in results:
        if not result.caught or result.seeds is None:
            continue
        mutant = result.mutant
        key = mutant.cache, mutant.faults, result.seeds
        if key not in known:
            checked = not mutant.faults and result.seeds <= BASELINE
            same = replace(SOUND, cache=mutant.cache, faults=mutant.faults)
            known[key] = not checked and hunt([same], (result.seeds,), 1, seconds, console)[0].caught
        if known[key]:
            result.caught, result.text = False, f"the sources as they are fail seed {result.seeds} as well"


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _stops_cleanly() -> AbstractContextManager[Any]:
    """SIGTERM and Ctrl-C leave through every `finally`."""
    stack = ExitStack()
    for number in (signal.SIGTERM, signal.SIGINT):
        stack.callback(signal.signal, number, signal.signal(number, _stop))
    return stack


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="This mutant, or those of this CHECK; may be repeated.")
@click.option("--seeds", default=300, show_default=True, help="Seeds 1..N per mutant, until one fails.")
@click.option("--jobs", default=2, show_default=True, help="Child processes at once.")
@click.option("--seconds", default=600.0, show_default=True, help="Bound per mutant.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Writes the table there as well.")
def main(only: tuple[str, ...], seeds: int, jobs: int, seconds: float, report: Path | None) -> None:
    """Puts each bug of tests/mutants/table.py into a copy of the product and counts the seeds until it is found."""
    unknown = set(only) - {name for mutant in MUTANTS for name in (mutant.name, mutant.rule)}
    if unknown:
        raise click.UsageError(f"no such mutant or rule: {', '.join(sorted(unknown))}")
    chosen = [m for m in MUTANTS if not only or m.name in only or m.rule in only]
    console = Console(stderr=True)
    with _stops_cleanly():
        try:
            for mutant in chosen:
                tool.mutated(mutant)
            if wrong := baseline(chosen, seeds, seconds, console):
                raise click.ClickException(f"the sources as they are fail already: {wrong}")
            results = hunt(chosen, range(1, seeds + 1), jobs, seconds, console)
            confirm(results, seconds, console)
        except MutantError as error:
            raise click.UsageError(str(error)) from error
    text = table(results)
    click.echo(text)
    if report is not None:
        report.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if enough(results) else 1)


if __name__ == "__main__":
    main()
