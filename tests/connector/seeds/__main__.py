"""`python -m tests.connector.seeds 1..1000`: the connector that ships under these seeds. Exit code 1: one is wrong."""

from __future__ import annotations

import logging
import re
import sys

import click

from tests.connector.seeds import cuts, run


@click.command(epilog="Example:  python -m tests.connector.seeds 1..1000")
@click.argument("seeds")
@click.option("--cuts", "is_of_cuts", is_flag=True, help="Of the core alone, whose log is cut where nobody has looked.")
def main(seeds: str, is_of_cuts: bool) -> None:
    """Run SEEDS, a number or a range such as 1..1000, and print what is wrong after each."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", seeds)
    if match is None:
        raise click.BadParameter(f"{seeds!r} is neither a number nor a range such as 1..1000", param_hint="SEEDS")
    logging.disable(logging.CRITICAL)
    problems_of = cuts.problems_of if is_of_cuts else run.problems_of
    first, last, wrong = int(match[1]), int(match[2] or match[1]), 0
    with click.progressbar(range(first, last + 1), label="seeds", file=sys.stderr) as numbers:
        for seed in numbers:
            problems, happened = problems_of(seed)
            wrong += bool(problems)
            for problem in problems:
                click.echo(f"seed {seed}, {dict(happened)}: {problem}")
    click.echo(f"{last + 1 - first} seeds, {wrong} with problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
