"""The rows of a checkpoint, without Kafka and Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deelog_spark.batches import ranges
from deelog_spark.batches.columns import batches_of, rows_of
from deelog_spark.errors import CheckpointError
from deelog_spark.folding.diff_record import RESET, ROW_SCHEMA, Row

ROWS = [Row(0, offset, 0, RESET, "c", b"h", b"k", b"v" * 100) for offset in range(9)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with rows."""
    with pq.ParquetWriter(tmp_path / "0.parquet", ROW_SCHEMA) as writer:
        for batch in batches_of(ROWS):
            writer.write_batch(batch)
    return tmp_path


def test_rows_are_read_as_they_were_written(place: Path) -> None:
    assert list(rows_of(iter(ranges.rows_of(place).to_batches()))) == ROWS
    assert ranges.size(place) > 0


@pytest.mark.parametrize("read", [ranges.rows_of, ranges.size])
@pytest.mark.parametrize("left", [0, 3, 300, -5])
def test_damaged_rows_are_an_error_of_the_checkpoint(place: Path, read: Callable[[Path], Any], left: int) -> None:
    file = place / "0.parquet"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(CheckpointError, match=r"is damaged \([^\n]+\): delete the checkpoint; the job then starts"):
        read(place)
