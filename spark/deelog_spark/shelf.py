"""Records of many segments, put away in any order and taken out segment by segment.

On disk, in one file without a name that ends with the process: memory holds `HELD_BYTES` of them and then one segment.
Weighed: Spark's shuffle (20 µs of CPU per record for reading, sorting and passing them to Python), a file per segment
(thousands of them), lists of Python's objects by segment (twice the CPU of what follows), and this: runs of Arrow,
sorted by segment when memory is full, a batch per segment, behind one another.
"""

from __future__ import annotations

import os
import tempfile
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

HELD_BYTES: Final = 32 << 20
_SPARK_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""Where Spark keeps what it spills, as YARN and standalone workers tell their executors."""


class Shelf:
    """Rows of `schema` under names: bytes, or None. Put everything, then take. Call `close()`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        folder = os.environ.get(_SPARK_FOLDERS, "").split(",")[0] or None
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._writer = pa.ipc.new_file(
            pa.PythonFile(self._file, "w"), schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
        )
        self._reader: pa.RecordBatchFileReader | None = None
        self._names: list[pa.Array] = []
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        self._batches: dict[bytes | None, list[int]] = {}
        self._written = 0

    def put(self, names: pa.Array, rows: pa.RecordBatch) -> None:
        """Puts each row behind the others of its name, which stands at its place in `names`."""
        self._names.append(names)
        self._held.append(rows)
        self._size += rows.nbytes
        if self._size >= HELD_BYTES:
            self._spill()

    def names(self) -> set[bytes | None]:
        """Of everything that was put; nothing can be put any more."""
        if self._reader is None:
            self._spill()
            self._writer.close()
            self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
        return set(self._batches)

    def take(self, name: bytes | None) -> pa.Table:
        """The rows of a name in the order in which they were put; call `names` before."""
        assert self._reader is not None
        batches = [self._reader.get_batch(number) for number in self._batches.get(name, ())]
        return pa.Table.from_batches(batches, self._schema)

    def close(self) -> None:
        """Drops everything."""
        self._file.close()

    def _spill(self) -> None:
        if not self._held:
            return
        names = pa.concat_arrays(self._names).dictionary_encode(null_encoding="encode")
        numbers = names.indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        rows = pa.concat_batches(self._held).take(pa.array(order))
        counts = np.bincount(numbers, minlength=len(names.dictionary)).tolist()
        first = 0
        for name, count in zip(names.dictionary.to_pylist(), counts, strict=True):
            self._writer.write_batch(rows.slice(first, count))
            self._batches.setdefault(name, []).append(self._written)
            self._written += 1
            first += count
        self._names.clear()
        self._held.clear()
        self._size = 0
