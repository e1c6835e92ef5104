"""What a batch's differences are written to beside the diff topic. A new sink is one module and one row of `SINKS`.

The diff topic (`sinks/kafka.py`) is not among them: every batch goes there first, and the sinks get what it has.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from deelog_schemas.config import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Sink(Protocol):
    """Takes batches of differences (the columns of `decoded`), each once.

    A batch is named by the checkpoint's id and its number. The job may bring one again after a crash: a sink has to
    know which it has. Methods raise `SinkError` for what only people can mend, `BusyError` where another job writes to
    the same place, `DiffError` where the sink's system does not answer.
    """

    def open(self) -> None:
        """Creates what is missing. Called once, before anything else."""

    def start(
        self, rows: Callable[[], DataFrame] | None, latest: Callable[[], DataFrame], checkpoint: str, batch: int
    ) -> None:
        """Called once, when the job starts; `batch` is the last one that is done.

        `rows` are the differences of a start without state, None for a job that goes on or where there are none.
        `latest` is the table that the diff topic adds up to (`tables.latest`).
        """

    def write(self, rows: DataFrame | None, checkpoint: str, batch: int) -> None:
        """Writes the next batch, None for one without rows, unless the sink has it."""


SINKS: Final = {
    "diff.parquet.path": "deelog_spark.sinks.parquet:ParquetSink",
    "diff.jdbc.url": "deelog_spark.sinks.jdbc:JdbcSink",
}
"""The field that turns a sink on, and its class, which is imported when a job uses it."""


def sinks_of(config: Config, spark: Callable[[], SparkSession], stopping: Callable[[], bool]) -> list[Sink]:
    """The sinks that the configuration turns on, in the table's order. `stopping` ends their waits."""
    return [
        pkgutil.resolve_name(place)(config, spark, stopping)
        for name, place in SINKS.items()
        if config[name] is not None
    ]
