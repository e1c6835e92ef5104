"""Records of many segments, put away in any order and taken out segment by segment.

On disk, in one file without a name that ends with the process: memory holds `HELD_BYTES` of them and then one segment.
Weighed: Spark's shuffle (20 µs of CPU per record for reading, sorting and passing them to Python, against 6), a file
per segment (thousands of them), and this: runs of Arrow, each a batch per segment, behind one another.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa

HELD_BYTES: Final = 32 << 20
_SPARK_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""Where Spark keeps what it spills, as YARN and standalone workers tell their executors."""


class Shelf:
    """Rows of `schema` under names: bytes, or None. Put everything, then take. Call `close()`, or use `with`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        folder = os.environ.get(_SPARK_FOLDERS, "").split(",")[0] or None
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._writer = pa.ipc.new_file(
            pa.PythonFile(self._file, "w"), schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
        )
        self._held: dict[bytes | None, list[tuple[Any, ...]]] = {}
        self._size = 0
        self._batches: dict[bytes | None, list[int]] = {}
        self._written = 0

    def put(self, name: bytes | None, row: tuple[Any, ...], size: int) -> None:
        """Puts a row behind the others of its name; `size` is about what it takes in memory."""
        rows = self._held.get(name)
        if rows is None:
            rows = self._held[name] = []
        rows.append(row)
        self._size += size
        if self._size >= HELD_BYTES:
            self._spill()

    def take(self) -> Iterator[tuple[bytes | None, pa.Table]]:
        """Every name and its rows, in the order in which they were put; nothing can be put any more."""
        self._spill()
        self._writer.close()
        if not self._batches:
            return
        reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
        for name in sorted(self._batches, key=lambda name: name or b""):
            yield name, pa.Table.from_batches([reader.get_batch(i) for i in self._batches[name]], self._schema)

    def close(self) -> None:
        """Drops everything."""
        self._file.close()

    def _spill(self) -> None:
        for name, rows in self._held.items():
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            self._batches.setdefault(name, []).append(self._written)
            self._written += 1
        self._held.clear()
        self._size = 0
