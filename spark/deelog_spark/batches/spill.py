"""Records of many segments, put in any order and taken out segment by segment.

They are on disk, in an unnamed file that ends with the process: memory holds `MEMORY_BYTES` of them while they are put,
and one of `BUCKETS` buckets while they are taken. A batch of Arrow per segment would cost a millisecond of CPU each,
half of all there is to do where segments hold some hundred records; so a batch holds a bucket, in which segments lie
one after the other. Alternatives: docs/decisions.md, "How ranges are folded".
"""

from __future__ import annotations

import itertools
import os
import tempfile
import zlib
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

MEMORY_BYTES: Final = 32 << 20
BUCKETS: Final = 64
_SPARK_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""Where Spark keeps what it spills: YARN and standalone workers set it for their executors."""


class Spill:
    """Rows of `schema` by name: bytes, or None. First `put` everything, then `take`. Call `close()` at the end."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        folder = os.environ.get(_SPARK_FOLDERS, "").split(",")[0] or None
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._writer = pa.ipc.new_file(
            pa.PythonFile(self._file, "w"), schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
        )
        self._reader: pa.RecordBatchFileReader | None = None
        self._names: list[pa.Array] = []
        self._rows: list[pa.RecordBatch] = []
        self._size = 0
        self._batches: list[list[int]] = [[] for _ in range(BUCKETS)]
        self._slices: dict[bytes | None, list[tuple[int, int, int]]] = {}
        """By name: in which batch, from which row on, how many."""
        self._written = 0
        self._open: tuple[int, dict[int, pa.RecordBatch]] = (-1, {})

    def put(self, names: pa.Array, rows: pa.RecordBatch) -> None:
        """Adds rows; `names` has the name of each, at the same index."""
        self._names.append(names)
        self._rows.append(rows)
        self._size += rows.nbytes
        if self._size >= MEMORY_BYTES:
            self._write()

    def names(self) -> set[bytes | None]:
        """The names of all rows. Nothing can be put after this call."""
        if self._reader is None:
            self._write()
            self._writer.close()
            self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
        return set(self._slices)

    def take(self, name: bytes | None) -> pa.Table:
        """The rows of a name, in the order in which they were put.

        Call `names` first. Take the names of one `bucket` one after the other: a change of buckets reads the next one.
        """
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

    def _write(self) -> None:
        """Writes what is in memory, sorted by bucket and name."""
        if not self._rows:
            return
        encoded = pa.concat_arrays(self._names).dictionary_encode(null_encoding="encode")
        names, indices = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        buckets = [bucket(name) for name in names]
        counts = np.bincount(indices, minlength=len(names)).tolist()
        in_order = sorted(range(len(names)), key=buckets.__getitem__)
        ranks = np.argsort(in_order)
        rows = pa.concat_batches(self._rows).take(pa.array(np.argsort(ranks[indices], kind="stable")))
        begin = 0
        for number, some in itertools.groupby(in_order, key=buckets.__getitem__):
            size = 0
            for index in some:
                self._slices.setdefault(names[index], []).append((self._written, size, counts[index]))
                size += counts[index]
            self._writer.write_batch(rows.slice(begin, size))
            self._batches[number].append(self._written)
            self._written += 1
            begin += size
        self._names.clear()
        self._rows.clear()
        self._size = 0


def bucket(name: bytes | None) -> int:
    """The bucket of a name."""
    return zlib.crc32(name or b"") % BUCKETS
