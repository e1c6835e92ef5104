"""`deelog diff`: the Spark job from the command line."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from deelog_schemas.errors import ConfigError, DeelogError, FieldError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deelog_schemas.config import Config
    from deelog_spark.diff_job import DiffJob
    from deelog_spark.report import BatchReport

_TURN_SECONDS: Final = 0.5
_OWN: Final = ("diff.checkpoint.location", "diff.topic", "diff.parquet.path", "diff.metrics.port")
"""Fields whose values must differ between caches."""


@click.command(
    epilog="Example: deelog diff --config docs/examples/diff.properties --progress; several caches by one application: "
    "deelog diff --config sessions.properties --config carts.properties"
)
@click.option(
    "--config",
    "paths",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file; once more for each further cache.",
)
@click.option("--available-now", is_flag=True, help="Read to the end of the topic as it is now, then exit.")
@click.option("--progress", is_flag=True, help="Show the totals: a line per cache, renewed, on a terminal.")
@click.option("--status", "ask", is_flag=True, help="Print lag, open resets and last batch of a job, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --status: one JSON object a line.")
def diff(paths: tuple[Path, ...], available_now: bool, progress: bool, ask: bool, as_json: bool) -> None:
    """Turn a cache's change topic into <topic>.diff: creates, updates and deletes, each once.

    Prints a line once it runs, and stops cleanly on SIGTERM and Ctrl-C. On a foreign record it prints topic, partition
    and offset with the remedy and exits non-zero. With several caches the first one that fails stops all, and its exit
    code is that of the command.
    """
    from deelog_schemas.config import load
    from deelog_spark.kafka import KafkaException, unreachable
    from deelog_spark.status import status

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    show = Progress() if progress and not ask and sys.stderr.isatty() else None
    if show is None:
        logging.getLogger("deelog.diff").setLevel(logging.INFO)
    jobs = Jobs()
    try:
        configs = [load(path, "diff") for path in paths]
        if ask:
            for config in configs:
                _print(status(config), as_json)
            return
        _stop_on_signals(jobs)
        jobs.run(configs, available_now, show)
    except DeelogError as error:
        if not jobs.stopping:
            click.echo(f"deelog diff: {error}", err=True)
            sys.exit(error.exit_code)
    except KafkaException as error:
        click.echo(f"deelog diff: {unreachable(error)}", err=True)
        sys.exit(1)
    finally:
        jobs.stop()
        if show is not None:
            show.close()


class Jobs:
    """The jobs of one application, one per cache. Call `stop()` at the end."""

    def __init__(self) -> None:
        self.stopping = False
        """Whether `request_stop` was called."""
        self._jobs: list[DiffJob] = []
        self._shared: SparkSession | None = None

    def run(self, configs: list[Config], available_now: bool, show: Progress | None) -> None:
        """Starts them side by side, and waits until all have ended or one has failed, which raises its error."""
        from deelog_spark.diff_job import DiffJob
        from deelog_spark.session import session

        _refuse_twins(configs)
        if len(configs) > 1:
            self._shared = session()
        for config in configs:
            self._jobs.append(DiffJob(config, self._shared, show))
        with ThreadPoolExecutor(len(configs)) as pool:
            try:
                for starting in as_completed([pool.submit(job.start, available_now) for job in self._jobs]):
                    job = starting.result()
                    click.echo(f"deelog diff: {job.topics.changes} -> {job.topics.diff}, running")
            except BaseException:
                self._ask_to_stop()  # else the pool waits for starts that nobody needs any more
                raise
        running = list(self._jobs)
        while running:
            running = [job for job in running if not job.await_termination(_TURN_SECONDS)]

    def request_stop(self) -> None:
        """Lets every job stop after its batch. Safe in a signal handler."""
        self.stopping = True
        self._ask_to_stop()

    def stop(self) -> None:
        """Stops every job after its batch."""
        self._ask_to_stop()
        for job in self._jobs:
            job.stop()
        if self._shared is not None:
            self._shared.stop()

    def _ask_to_stop(self) -> None:
        for job in self._jobs:
            job.request_stop()


def _refuse_twins(configs: list[Config]) -> None:
    wrong = []
    for field in _OWN:
        counts = Counter(config.topics.diff if field == "diff.topic" else config[field] for config in configs)
        wrong += [
            FieldError(field, "is in more than one of the files: each cache needs its own", str(value))
            for value, count in counts.items()
            if value and count > 1
        ]
    if wrong:
        raise ConfigError(wrong)


def _print(status: dict[str, Any], as_json: bool) -> None:
    from deelog_spark.status import lines

    click.echo(json.dumps(status) if as_json else "\n".join(lines(status)))


def _stop_on_signals(jobs: Jobs) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        jobs.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


class Progress:
    """A line per cache on a terminal, renewed after each batch."""

    def __init__(self) -> None:
        from rich.live import Live

        self._lines: dict[str, str] = {}
        self._live = Live(auto_refresh=False)
        self._live.start()

    def __call__(self, batch: BatchReport) -> None:
        changes, rows = batch.changes, batch.resets_rows
        self._lines[batch.topic] = (
            f"{batch.topic}  batch {batch.batch}  records {batch.records:,}  "
            f"lag {'?' if batch.lag is None else batch.lag}  "
            f"changes c{changes['c']:,} u{changes['u']:,} d{changes['d']:,}  resets {sum(batch.resets.values()):,}: "
            f"c{rows['c']:,} u{rows['u']:,} d{rows['d']:,}  {batch.seconds:.1f} s"
        )
        self._live.update("\n".join(self._lines.values()), refresh=True)

    def close(self) -> None:
        self._live.stop()
