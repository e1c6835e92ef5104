"""`deelog diff` that records its driver's current step in a mapped file, which is readable also after `kill -9`.

DEELOG_WATCHED names the file. DEELOG_SMALL is the number of records up to which the driver handles a batch itself.
SIGUSR1 makes it print the stacks of its threads.
"""

from __future__ import annotations

import faulthandler
import functools
import mmap
import os
import pkgutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from deelog_spark.batches import ranges
from deelog_spark.cli import diff
from deelog_spark.diff_job import DiffJob

STEPS: Final = {
    "batches.plan.Planner.start": "start",
    "batches.plan.Planner.batch": "plan",
    "batches.plan.Planner._resets": "reset",
    "sinks.kafka.Writer.write": "kafka",
    "batches.tasks.write_kafka": "kafka",
    "batches.tasks.pass_on": "kafka",
    "sinks.parquet.ParquetSink.write": "parquet",
    "sinks.jdbc.JdbcSink._stage": "jdbc: staging",
    "sinks.jdbc.JdbcSink._land": "jdbc: transaction",
    "batches.checkpoint.Checkpoint.write_state": "state",
}
"""The name of each step, by its function. A step within another one is recorded by its own name."""
ELSEWHERE: Final = "elsewhere"
_SIZE: Final = 32


def created(path: Path) -> None:
    """Creates the file, in its state before the job has begun."""
    path.write_bytes(ELSEWHERE.ljust(_SIZE).encode())


def step(path: Path) -> str:
    """The job's current step, or the one at which it was killed."""
    return path.read_bytes().decode().strip()


def _watch(noted: mmap.mmap) -> None:
    for path, name in STEPS.items():
        owner, _, function = path.rpartition(".")
        place: Any = pkgutil.resolve_name(f"deelog_spark.{owner}")
        setattr(place, function, _noting(getattr(place, function), name, noted))


def _noting(real: Callable[..., Any], name: str, noted: mmap.mmap) -> Callable[..., Any]:
    @functools.wraps(real)
    def noting(*args: Any, **kwargs: Any) -> Any:
        before = noted[:]
        noted[:] = name.ljust(_SIZE).encode()
        try:
            return real(*args, **kwargs)
        finally:
            noted[:] = before

    return noting


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    with Path(os.environ["DEELOG_WATCHED"]).open("r+b") as file:
        _watch(mmap.mmap(file.fileno(), _SIZE))
    DiffJob.SMALL_RECORDS = int(os.environ["DEELOG_SMALL"])
    ranges.SMALL_RECORDS = 10 * DiffJob.SMALL_RECORDS  # type: ignore[misc]
    diff()
