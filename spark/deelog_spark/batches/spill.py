"""Records of many segments, put away in any order and taken out segment by segment.

On disk, in one file without a name that ends with the process: memory holds `HELD_BYTES` of them and then those of one
drawer, one of `DRAWERS`. Weighed: Spark's shuffle (20 µs of CPU per record for reading, sorting and passing them to
Python), a file per segment (thousands of them), lists of Python's objects by segment (twice the CPU of what follows),
runs of Arrow, sorted by segment when memory is full, with a batch per segment (a millisecond of CPU for each, which is
the half of all there is to do where segments hold some hundred records), and this: with a batch per drawer, where some
segments lie, one behind the other.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import zlib
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

HELD_BYTES: Final = 32 << 20
DRAWERS: Final = 64
_SPARK_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""Where Spark keeps what it spills, as YARN and standalone workers tell their executors."""


class Spill:
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
        self._batches: list[list[int]] = [[] for _ in range(DRAWERS)]
        self._slices: dict[bytes | None, list[tuple[int, int, int]]] = {}
        """By name: in which batch, from which row on, how many."""
        self._written = 0
        self._open: tuple[int, dict[int, pa.RecordBatch]] = (-1, {})

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
        return set(self._slices)

    def take(self, name: bytes | None) -> pa.Table:
        """The rows of a name in the order in which they were put; call `names` before, and drawer by drawer."""
        assert self._reader is not None
        number, batches = self._open
        if number != bucket(name):
            number = bucket(name)
            batches = {batch: self._reader.get_batch(batch) for batch in self._batches[number]}
            self._open = number, batches
        slices = self._slices.get(name, ())
        return pa.Table.from_batches([batches[at].slice(first, count) for at, first, count in slices], self._schema)

    def close(self) -> None:
        """Drops everything."""
        self._file.close()

    def _spill(self) -> None:
        if not self._held:
            return
        names = pa.concat_arrays(self._names).dictionary_encode(null_encoding="encode")
        found, numbers = names.dictionary.to_pylist(), names.indices.to_numpy()
        drawers = [bucket(name) for name in found]
        counts = np.bincount(numbers, minlength=len(found)).tolist()
        in_order = sorted(range(len(found)), key=drawers.__getitem__)
        ranks = np.argsort(in_order)
        rows = pa.concat_batches(self._held).take(pa.array(np.argsort(ranks[numbers], kind="stable")))
        begin = 0
        for where, some in itertools.groupby(in_order, key=drawers.__getitem__):
            size = 0
            for number in some:
                self._slices.setdefault(found[number], []).append((self._written, size, counts[number]))
                size += counts[number]
            self._writer.write_batch(rows.slice(begin, size))
            self._batches[where].append(self._written)
            self._written += 1
            begin += size
        self._names.clear()
        self._held.clear()
        self._size = 0


def bucket(name: bytes | None) -> int:
    """Where a name lies: those of one drawer are taken one after the other, or it is opened again for each."""
    return zlib.crc32(name or b"") % DRAWERS
