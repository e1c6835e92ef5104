"""`python -m tests.system.chaos`: breaks real parts while clients write, and proves what was promised."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from deelog_proof.demo.display import Display
from deelog_proof.harness.child import ends_in_order
from deelog_schemas.errors import DeelogError
from tests.system.chaos.faults import KINDS


@click.command(epilog="Example:  python -m tests.system.chaos --duration 300 --seed 7 --report chaos.json")
@click.option("--duration", default=300.0, show_default=True, type=click.FloatRange(10), help="Seconds of load.")
@click.option("--seed", default=1, show_default=True, type=int, help="Same seed, same writes and same plan of faults.")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(3, 5), help="Cache nodes.")
@click.option("--rate", default=240.0, show_default=True, type=click.FloatRange(1), help="Writes per second, of all.")
@click.option(
    "--faults", default=",".join(KINDS), metavar="KIND[,…]", help=f"Only these kinds of {', '.join(KINDS)}."
)  # fmt: skip
@click.option("--files", type=click.Path(file_okay=False, path_type=Path), help="Keep all files there.")
@click.option(
    "--report", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write the outcome there."
)
def main(
    duration: float, seed: int, nodes: int, rate: float, faults: str, files: Path | None, report: Path | None
) -> None:
    """Real nodes, Kafka and Spark job on this machine, clients that write, and faults drawn from a seed.

    Exits 0 only if no acknowledged write is lost that no called-for reset covers, no record is there that no client
    wrote, no position is there twice, no reset was needless, and the caches, their copies, the change topic and the
    diff are equal, key by key. Leaves no process and no file behind.
    """
    kinds = tuple(kind for kind in faults.split(",") if kind)
    unknown = sorted(set(kinds) - KINDS.keys())
    if unknown or not kinds:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'nothing'} is no kind of {', '.join(KINDS)}", None, None, "--faults"
        )
    if files is not None and files.exists() and any(files.iterdir()):
        raise click.UsageError(f"--files {files} is not empty: name a new folder")
    from deelog_proof.demo import report as reports
    from tests.system.chaos import report as shown
    from tests.system.chaos.run import Plan, run

    try:
        with Display() as show, ends_in_order():
            told = run(Plan(duration, seed, nodes, rate, kinds, files), show)
    except DeelogError as error:
        raise click.ClickException(str(error)) from error
    shown.show(told, show.console)
    if report is not None:
        reports.write(told, report)
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()
