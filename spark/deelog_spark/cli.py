"""`deelog diff`: the Spark job from the command line."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from deelog_schemas.errors import DeelogError

if TYPE_CHECKING:
    from deelog_spark.job import DiffJob


@click.command(epilog="Example: deelog diff --config examples/diff.properties --progress")
@click.option(
    "--config", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Configuration file."
)
@click.option("--available-now", is_flag=True, help="Read to the end of the topic as it is now, then exit.")
@click.option("--progress", is_flag=True, help="Show the totals: one line, renewed, on a terminal.")
@click.option("--status", "ask", is_flag=True, help="Tell lag, open resets and last batch of a job, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --status: one JSON object.")
def diff(path: Path, available_now: bool, progress: bool, ask: bool, as_json: bool) -> None:
    """Turn a cache's change topic into <topic>.diff: creates, updates and deletes, each once.

    Prints one line once it runs and stops cleanly on SIGTERM and Ctrl-C. On a record that is not deelog's it prints
    topic, partition and offset with the remedy and exits non-zero.
    """
    from deelog_schemas.config import load
    from deelog_spark.job import DiffJob
    from deelog_spark.kafka import KafkaException, unreachable
    from deelog_spark.status import status

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    show = Progress() if progress and sys.stderr.isatty() else None
    if show is None:
        logging.getLogger("deelog.diff").setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    job = None
    try:
        config = load(path, "diff")
        if ask:
            _tell(status(config), as_json)
            return
        job = DiffJob(config, on_batch=None if show is None else show)
        _stop_on_signals(job)
        job.start(available_now)
        click.echo(f"deelog diff: {config.topics.changes} -> {config.topics.diff}, running")
        job.await_termination()
    except DeelogError as error:
        if job is None or not job.stopping:
            click.echo(f"deelog diff: {error}", err=True)
            sys.exit(error.exit_code)
    except KafkaException as error:
        click.echo(f"deelog diff: {unreachable(error)}", err=True)
        sys.exit(1)
    finally:
        if job is not None:
            job.stop()
        if show is not None:
            show.close()


def _tell(told: dict[str, Any], as_json: bool) -> None:
    from deelog_spark.status import lines

    click.echo(json.dumps(told) if as_json else "\n".join(lines(told)))


def _stop_on_signals(job: DiffJob) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        job.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


class Progress:
    """One line on a terminal, renewed behind each batch."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)
        self._live.start()

    def __call__(self, told: dict[str, Any]) -> None:
        changes, rows = told["changes"], told["resets_rows"]
        self._live.update(
            f"batch {told['batch']}  records {told['records']:,}  lag {'?' if told['lag'] is None else told['lag']}  "
            f"changes c{changes['c']:,} u{changes['u']:,} d{changes['d']:,}  resets {sum(told['resets'].values()):,}: "
            f"c{rows['c']:,} u{rows['u']:,} d{rows['d']:,}  {told['seconds']:.1f} s",
            refresh=True,
        )

    def close(self) -> None:
        self._live.stop()
