"""`python -m tests.model`: explores the models, or shows why each rule is needed.

Exit code 0: all is well; 1: something broke with all rules on, or a rule can be removed without harm; 2: usage.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click
from rich.console import Console

from tests.model.diff import rules as diff
from tests.model.diff import suite as diff_suite
from tests.model.explore import Result
from tests.model.promises import RuleLike
from tests.model.takeover import rules as takeover
from tests.model.takeover import suite as takeover_suite

Run = Callable[..., Result]


HEAD = "| rule removed | what that means | what breaks | steps | states | states/s |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Model:
    """One of the models: its search, its rules, and the configurations to explore with all rules on."""

    run: Run
    rules: Mapping[str, RuleLike]
    configurations: Sequence[str]


MODELS = {
    "takeover": Model(takeover.run, takeover.RULES, takeover_suite.QUICK + takeover_suite.LONG),
    "diff": Model(diff.run, diff.RULES, diff_suite.QUICK + diff_suite.LONG),
}


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


_model = click.option("--model", type=click.Choice([*MODELS, "all"]), default="all", show_default=True)
_states = click.option("--states", default=1_000_000, show_default=True, help="Bound per configuration.")
_seconds = click.option("--seconds", default=600.0, show_default=True, help="Bound per configuration.")


@main.command()
@_model
@click.option("--script", is_flag=True, help="Print each shortest script.")
@click.argument("names", nargs=-1)
def table(model: str, script: bool, names: tuple[str, ...]) -> None:
    """Removes each rule (or those NAMES) in turn: what breaks, after how many steps, states until it is found."""
    harmless, found = [], 0
    for name, chosen in _chosen(model):
        click.echo(f"## {name}\n\n{HEAD}")
        for rule_name, rule in chosen.rules.items():
            if names and rule_name not in names:
                continue
            found += 1
            result = _run(chosen.run, f"{rule.config} {rule_name}=0", 1_000_000, 600)
            rate = int(result.states / max(result.seconds, 1e-3))
            what = result.violation or "nothing"
            row = (rule_name, rule.meaning, what, len(result.script), result.states, rate)
            click.echo(f"| {' | '.join(map(str, row))} |")
            if script:
                _print_script(result)
            if not (result.violation or "").startswith(rule.kind):
                harmless.append(rule_name)
        click.echo()
    if names and not found:
        raise click.UsageError(f"no such rule: {' '.join(names)}")
    if harmless:
        sys.exit(f"without the violation it is there to prevent: {', '.join(harmless)}")


@main.command()
@_model
@_states
@_seconds
@click.argument("config", nargs=-1)
def explore(model: str, states: int, seconds: float, config: tuple[str, ...]) -> None:
    """Explores CONFIG (as N=3 OPS=2 fencing=0) of one model, or, without it, the long list of configurations."""
    if config and model == "all":
        model = "takeover"
    broken, total, taken, counts = 0, 0, 0.0, Counter[str]()
    for _, chosen in _chosen(model):
        for text in [" ".join(config)] if config else chosen.configurations:
            try:
                result = _run(chosen.run, text, states, seconds)
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            click.echo(f"{text}\n    {result}")
            _print_script(result)
            broken += result.violation is not None
            total, taken = total + result.states, taken + result.seconds
            counts += result.counts
    click.echo(f"{total} states, {taken:.0f} s, {total / max(taken, 1e-3):.0f} states/s, {broken} violations")
    click.echo("steps tried: " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    sys.exit(bool(broken))


def _chosen(model: str) -> list[tuple[str, Model]]:
    return [(n, m) for n, m in MODELS.items() if model in (n, "all")]


def _run(run: Run, text: str, states: int, seconds: float) -> Result:
    console = Console(stderr=True)
    with console.status(text, spinner="line") as status:

        def progress(known: int, waiting: int, depth: int) -> None:
            status.update(f"{text}: {known} states, {waiting} waiting, depth {depth}")

        return run(text, states, seconds, progress=progress)


def _print_script(result: Result) -> None:
    for number, words in enumerate(result.script, 1):
        click.echo(f"    {number:3}. {words}")


if __name__ == "__main__":
    main()
