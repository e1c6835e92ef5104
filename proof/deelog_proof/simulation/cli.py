"""`deelog simulate`. Imports happen when it runs, so that `--help` is fast."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from deelog_proof.harness.report_file import ReportFile

if TYPE_CHECKING:
    from deelog_proof.demo.display import Display
    from deelog_proof.simulation.campaign import Outcome, Plan, Tally
    from deelog_proof.simulation.script import Script

VIOLATED: Final = 1
VACUOUS: Final = 3
_INTERRUPTED: Final = 130
SHRINK_SECONDS: Final = 120.0
"""For one failing seed, in seconds."""
_SHRUNK: Final = 10
"""Failing seeds that `--shrink` shortens."""
_LISTED: Final = 10


@click.command(
    epilog="Example:  deelog simulate --seeds 1..3000      then, of a seed that fails:  deelog simulate --replay 155"
)
@click.option(
    "--cache",
    default="grid",
    show_default=True,
    type=click.Choice(["grid", "redis"]),
    help="What seeds are of: nodes of the grid, or servers of Redis with connectors beside them.",
)
@click.option("--seeds", metavar="A..B", help="Run each of these seeds; A alone runs one.")
@click.option("--replay", type=click.IntRange(0), metavar="SEED", help="Run one seed and print its trace.")
@click.option(
    "--script",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run a script and print its trace; see --shrink.",
)
@click.option(
    "--steps",
    type=click.IntRange(100, 1_000_000),
    default=3000,
    show_default=True,
    help="About how many steps of a run come before its faults end.",
)
@click.option(
    "--faults",
    default="all",
    show_default=True,
    metavar="KIND[,…]",
    help="Kinds of faults: crash, pause, network, kafka, leave, partition; of the grid log, truncation, oplog, clock, "
    "connector and quota as well, of Redis failover, backlog and slots; or all.",
)
@click.option(
    "--shrink/--no-shrink",
    "shorten",
    default=None,
    help="Make the scripts of failing seeds short.  [default: of the first one, not with --replay and --script]",
)
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes.  [default: one per core]")
@click.option("--trace", is_flag=True, help="With --seeds: print the trace of the shortened script, too.")
@click.option("--report", type=ReportFile(), help="Write it as JSON.")
def simulate(
    cache: str,
    seeds: str | None,
    replay: int | None,
    file: Path | None,
    steps: int,
    faults: str,
    shorten: bool | None,
    jobs: int | None,
    trace: bool,
    report: Path | None,
) -> None:
    """Run the product's own code on a simulated Kafka, network and clock, with faults drawn from seeds.

    Every step is judged; when the faults have ended, cache and topic must become equal. The same seed, steps, faults
    and version give the same trace. A failing seed prints the shortest script that still fails, as a file for --script.

    A campaign of 100 seeds or more, of 1,000 steps or more each, is guarded against proving nothing: it fails if
    something that it is there to see (takeovers, fenced commits, prunes, each kind of reset that its faults bring
    about, …) has not happened once.

    Exit codes: 0 all held, 1 a violation, 2 wrong usage, 3 something never happened, 4 a process was
    killed, 130 or 143 stopped before the end.
    """
    if sum(given is not None for given in (seeds, replay, file)) != 1:
        raise click.UsageError("give one of --seeds A..B, --replay SEED and --script FILE")
    from deelog_proof.demo import report as reports
    from deelog_proof.demo.display import Display
    from deelog_proof.harness.child import ends_in_order
    from deelog_proof.simulation.campaign import Plan

    first, last = _range(seeds) if seeds is not None else (replay or 0, replay or 0)
    plan = Plan(first, last, steps, _kinds(cache, faults), cache)
    with Display() as show, ends_in_order():
        if seeds is not None:
            result, code = _campaign(plan, jobs or len(os.sched_getaffinity(0)), shorten, trace, show)
        else:
            script = plan.script(first) if file is None else _read(file)
            result, code = _one(script, bool(shorten), show)
    if report is not None:
        reports.write(result, report)
    sys.exit(code)


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,12})(?:\.\.(\d{1,12}))?", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no range of seeds: write --seeds 1..200", param_hint="--seeds")
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise click.BadParameter(f"{text} ends before it begins: write --seeds {last}..{first}", param_hint="--seeds")
    return first, last


def _kinds(cache: str, text: str) -> tuple[str, ...]:
    from deelog_proof.simulation.caches import CACHES

    known = CACHES[cache].guard.faults
    if text == "all":
        return tuple(known)
    asked = {kind.strip() for kind in text.split(",")}
    if unknown := sorted(asked - known.keys()):
        raise click.BadParameter(
            f"{', '.join(map(repr, unknown))} is no kind of fault: choose from {', '.join(known)}, or all",
            param_hint="--faults",
        )
    return tuple(kind for kind in known if kind in asked)


def _read(file: Path) -> Script:
    from deelog_proof.simulation.script import ScriptError, parse

    try:
        return parse(file.read_text(encoding="utf-8"))
    except (ScriptError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--script") from error


# -- one run ----------------------------------------------------------------------------------------------------------


def _one(script: Script, shorten: bool, show: Display) -> tuple[dict[str, Any], int]:
    from deelog_proof.simulation.campaign import run

    outcome = run(script, trace=True)
    _print_trace(outcome)
    if outcome.part and shorten:
        script, outcome = _shortened(script, outcome, show)
        _print_script(script, outcome)
    click.echo(f"digest {outcome.digest}")
    click.echo(f"{outcome.steps:,} steps, {outcome.simulated:.1f} simulated seconds")
    click.echo(_violation(outcome) if outcome.part else "✓ all held")
    result = {
        "script": str(script),
        "digest": outcome.digest,
        "steps": outcome.steps,
        "counts": dict(sorted(outcome.counts.items())),
        "violation": {"part": outcome.part, "text": outcome.text} if outcome.part else None,
    }
    return result, VIOLATED if outcome.part else 0


def _print_trace(outcome: Outcome) -> None:
    for line in outcome.trace:
        click.echo(line)


def _violation(outcome: Outcome) -> str:
    return f"✗ {outcome.part}: {outcome.text}"


# -- a campaign -------------------------------------------------------------------------------------------------------


def _campaign(plan: Plan, jobs: int, shorten: bool | None, trace: bool, show: Display) -> tuple[dict[str, Any], int]:
    from deelog_proof.simulation import report as reports
    from deelog_proof.simulation.campaign import Tally

    tally, begin = Tally(plan), time.monotonic()
    code = _run(tally, min(jobs, plan.seeds), show)
    wall = time.monotonic() - begin
    reports.show(tally, wall, show.console)
    scripts: dict[int, str] = {}
    if code == 0 and shorten is not False:
        for failure in tally.failures[: _SHRUNK if shorten else 1]:
            script, outcome = _shortened(plan.script(failure.seed), failure, show)
            scripts[failure.seed] = str(script)
            _print_script(script, outcome)
            if trace:
                from deelog_proof.simulation.campaign import run

                _print_trace(run(script, trace=True))
    result = reports.figures(tally, wall, scripts) | {"stopped": code != 0}
    return result, _verdict(tally, code)


def _run(tally: Tally, jobs: int, show: Display) -> int:
    """Runs the campaign. Returns 0 at its end, or the exit code of a signal that stopped it."""
    from deelog_proof.simulation.campaign import MAX_FAILURES, outcomes

    show.begin("seeds", tally.plan.seeds, "seeds")
    try:
        with closing(outcomes(tally.plan, jobs)) as results:
            for outcome in results:
                tally.add(outcome)
                if outcome.part:
                    show.say(f"seed {outcome.seed} fails: {_violation(outcome).splitlines()[0]}")
                show.advance(tally.seeds, f"{len(tally.failures)} failing" if tally.failures else "")
                if len(tally.failures) >= MAX_FAILURES:
                    show.say(f"{MAX_FAILURES} seeds failed: that is enough")
                    break
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        show.end()
    return 0


def _shortened(script: Script, outcome: Outcome, show: Display) -> tuple[Script, Outcome]:
    from deelog_proof.simulation.campaign import Shortening

    shortening = Shortening(script, outcome, SHRINK_SECONDS)
    lines = len(script.events)
    show.say(f"seed {outcome.seed}: its script of {lines} lines is made short, for {SHRINK_SECONDS:g} s at most")
    show.begin("lines", None, f"of {lines} lines left")
    try:
        shortening.run(lambda left, runs: show.advance(left, f"{runs} runs"))
    except (KeyboardInterrupt, SystemExit):
        pass  # the shortest script so far is printed; the exit code is that of a failing seed
    finally:
        show.end()
    ended = "none of them can be left out" if shortening.complete else "stopped early, it may not be the shortest"
    show.say(f"{len(shortening.best.events)} lines left after {shortening.runs} runs: {ended}")
    return shortening.best, shortening.outcome


def _print_script(script: Script, outcome: Outcome) -> None:
    from dataclasses import replace

    about = f"seed {outcome.seed}, shortened. {_violation(outcome).splitlines()[0]}"
    click.echo("\n" + str(replace(script, about=about)))


def _verdict(tally: Tally, code: int) -> int:
    """Prints the verdict and returns the exit code."""
    plan = tally.plan
    for failure in tally.failures[:_LISTED]:
        click.echo(f"seed {failure.seed}: {_violation(failure).splitlines()[0]}")
    if tally.failures:
        more = len(tally.failures) - _LISTED
        if more > 0:
            click.echo(f"and {more} more, see --report")
        kinds = "" if plan.kinds == _kinds(plan.cache, "all") else f" --faults {','.join(plan.kinds)}"
        kinds += "" if plan.cache == "grid" else f" --cache {plan.cache}"
        click.echo(
            f"✗ {len(tally.failures)} of {tally.seeds:,} seeds fail; to look at one: "
            f"deelog simulate --replay {tally.failures[0].seed} --steps {plan.steps}{kinds}"
        )
        return VIOLATED
    if code:
        click.echo(f"stopped after {tally.seeds:,} of {plan.seeds:,} seeds; nothing was violated up to here")
        return code
    if missing := tally.missing():
        click.echo(
            f"✗ this campaign proves nothing about what it has never seen: {', '.join(missing)}. Run more seeds or "
            "steps; if that does not help, the simulation does not bring it about any more",
            err=True,
        )
        return VACUOUS
    click.echo(f"✓ all held in {tally.seeds:,} seeds")
    return 0
