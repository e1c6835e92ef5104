"""`deelog play` and `deelog demo`. Imports happen when they run, so that `--help` is fast."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from deelog_proof.harness.child import ends_in_order
from deelog_proof.harness.report_file import ReportFile

_TRACE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REPORT = click.option("--report", type=ReportFile(), help="Write the outcome as JSON.")
_MAX_VALUE = click.option(
    "--max-value", default=1024, show_default=True, type=click.IntRange(16), help="Cut values at this many BYTES."
)

_NEXT = """
Next: `deelog demo --keep` leaves all of it running, with things to try.
docs/tutorial.md goes through it by hand, README.md captures your own cache."""


@click.command(
    epilog="Example:  deelog play githist_valkey.tsv.zst --cluster 127.0.0.1:7001 --rate 2000 --report r.json"
)
@click.argument("trace", type=_TRACE)
@click.option("--cluster", required=True, metavar="HOST:PORT[,…]", help="One or more nodes of the cluster.")
@click.option("--rate", default=0.0, type=click.FloatRange(0), help="Most writes per second.  [default: no limit]")
@click.option("--deadline", default=60.0, show_default=True, type=click.FloatRange(1), help="Seconds to try one write.")
@_MAX_VALUE
@_REPORT
def play(trace: Path, cluster: str, rate: float, deadline: float, max_value: int, report: Path | None) -> None:
    """Play TRACE, a recorded history (githist format; plain, .xz or .zst), on a cluster.

    Writes go in order per key, each until it is acknowledged. Exits 0 only if all were.
    """
    from deelog_proof.demo import report as reports
    from deelog_proof.demo.display import Display
    from deelog_proof.harness.environment import ticking
    from deelog_proof.load.player import Player
    from deelog_proof.load.traces import read_trace

    player = Player(_addresses(cluster), rate=rate, deadline=deadline, keep_history=False)
    begin = time.monotonic()
    with Display() as show, ends_in_order():
        with ticking(show, None, lambda: show.advance(player.acked, player.last_error)):
            try:
                player.run(read_trace(trace, max_value))
            finally:
                player.stop()
        seconds = time.monotonic() - begin
        show.say(
            f"{player.acked:,} of {player.operations:,} writes acknowledged, {player.acked / seconds:,.0f} per second"
        )
    result = {
        "operations": player.operations,
        "acked": player.acked,
        "refused": player.refused,
        "resent": player.attempts - player.operations,
        "longest_write_ms": round(player.longest_ms),
        "last_error": player.last_error,
        "seconds": round(seconds, 2),
    }
    if report is not None:
        reports.write(result, report)
    if player.acked != player.operations:
        click.echo(f"Error: {player.operations - player.acked} writes were refused: {player.last_error}", err=True)
        sys.exit(1)


@click.command(epilog="Example:  deelog demo --faults survivable --seed 7 --report report.json")
@click.option("--trace", type=_TRACE, help="Play a recorded history instead of the generated load.")
@click.option(
    "--ops", "operations", default=50_000, show_default=True, type=click.IntRange(1), help="Writes to generate."
)
@_MAX_VALUE
@click.option(
    "--cache",
    default="grid",
    show_default=True,
    type=click.Choice(["grid", "redis"]),
    help="What is captured. redis: a cluster of Redis or Valkey, a connector beside each server.",
)
@click.option(
    "--nodes", default=3, show_default=True, type=click.IntRange(1, 9), help="Cache nodes; of Redis, shards of two."
)
@click.option("--seed", default=1, show_default=True, type=int, help="Same seed, same load and same victims.")
@click.option(
    "--faults",
    default="all",
    show_default=True,
    type=click.Choice(["none", "survivable", "all"]),
    help="survivable: everything that one owner survives. all: loss of all owners and overflow too.",
)
@click.option("--keep", is_flag=True, help="Leave all running at the end, to look at, until Ctrl-C.")
@click.option("--files", type=click.Path(file_okay=False, path_type=Path), help="Keep all files there.")
@_REPORT
def demo(
    trace: Path | None,
    operations: int,
    max_value: int,
    cache: str,
    nodes: int,
    seed: int,
    faults: str,
    keep: bool,
    files: Path | None,
    report: Path | None,
) -> None:
    """Show the product: caches, Kafka and a Spark job on this machine, a load, faults, and the proof.

    Exits 0 only if the Spark job's diff equals the caches key by key, and if every acknowledged operation is in the
    topic, once, or covered by a later write or a reset. With --keep it prints addresses and things to try and stays.
    Leaves no process and no file behind but those of --files.
    """
    least = 3 if cache == "redis" else 1 if faults == "none" else 2
    if nodes < least and cache == "redis":
        raise click.UsageError(f"--cache redis needs --nodes {least} at least: fewer cannot elect a primary")
    if nodes < least:
        raise click.UsageError(f"--faults {faults} needs --nodes {least} at least, or use --faults none")
    if files is not None and files.exists() and any(files.iterdir()):
        raise click.UsageError(f"--files {files} is not empty: name a new folder")
    from deelog_proof.demo import report as reports
    from deelog_proof.demo.display import Display
    from deelog_proof.demo.run import run, stay
    from deelog_proof.demo.settings import Settings
    from deelog_proof.harness.environment import Environment

    def present(outcome: dict[str, Any], environment: Environment[Any]) -> None:
        reports.show(outcome, show.console)
        if report is not None:
            reports.write(outcome, report)
        if keep:
            stay(environment)
        show.say("ending all processes")

    settings = Settings(trace, operations, max_value, nodes, seed, faults, files, cache)
    with Display() as show, ends_in_order():
        outcome = run(settings, show, present)
    if not keep:
        click.echo(_NEXT)
    if reports.problems(outcome):
        sys.exit(1)


def _addresses(text: str) -> list[tuple[str, int]]:
    addresses = []
    for part in text.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdigit():
            raise click.BadParameter(f"{part!r} is not HOST:PORT", param_hint="--cluster")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses
