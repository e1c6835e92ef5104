"""The parquet sink: a directory per batch and a manifest, exactly once under replay.

A batch is written below `_staging`, which readers skip, renamed into place, and listed in `_manifest/`. The rename is
the commit: a batch in place is complete and is not written again. `spark.read.parquet(path)` reads all of them; they
sort by name. Alternatives: docs/decisions.md, "The parquet sink".
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from deelog_spark.session import uri_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from deelog_schemas.config import Config


class ParquetSink:
    """Writes the differences of each batch below `diff.parquet.path`, a directory that every executor mounts."""

    def __init__(self, config: Config, spark: Callable[[], SparkSession], stopping: Callable[[], bool]) -> None:
        self.root = Path(config["diff.parquet.path"].removeprefix("file://")).absolute()

    def open(self) -> None:
        """Nothing: the directory is created with the first batch."""

    def start(
        self, rows: Callable[[], DataFrame] | None, latest: Callable[[], DataFrame], checkpoint: str, batch: int
    ) -> None:
        """Writes the differences of a start without state, as a batch like any other."""
        if rows is not None:
            self.write(rows(), checkpoint, batch)

    def write(self, rows: DataFrame | None, checkpoint: str, batch: int) -> None:
        """Writes a batch unless it is there. Batches of a job that started over have another `checkpoint`."""
        if rows is None:
            return
        name = f"{checkpoint}-{batch + 1:09d}"  # the start is batch -1
        manifest = self.root / "_manifest" / f"{name}.json"
        if manifest.exists():
            return
        staging, place = self.root / "_staging" / name, self.root / f"batch={name}"
        if not place.exists():
            shutil.rmtree(staging, ignore_errors=True)
            rows.write.parquet(uri_of(staging))
            staging.rename(place)
        files = sorted(p.name for p in place.glob("*.parquet"))
        manifest.parent.mkdir(exist_ok=True)
        temporary = manifest.with_suffix(".tmp")
        temporary.write_text(json.dumps({"checkpoint": checkpoint, "batch": batch, "files": files}), "utf-8")
        temporary.rename(manifest)
