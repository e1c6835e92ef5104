"""Records that are spilled in any order are read by name, in the order in which they were written."""

from __future__ import annotations

import random
from contextlib import closing

import pyarrow as pa
import pytest

from deelog_spark.batches import spill
from deelog_spark.batches.spill import BUCKETS, Spill, bucket

SCHEMA = pa.schema([("number", pa.int64()), ("value", pa.binary())])


@pytest.mark.parametrize("names", [0, 1, 3, 5 * BUCKETS])
@pytest.mark.parametrize("held", [1, 2_000, 1 << 20], ids=["spilled each time", "now and then", "once"])
def test_all_of_it_comes_out_in_order(names: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "MEMORY_BYTES", held)
    chance = random.Random(7)
    known = [None, *(number.to_bytes(4, "big") for number in range(1, names))][:names]
    put: dict[bytes | None, list[tuple[int, bytes | None]]] = {}
    number = 0
    with closing(Spill(SCHEMA)) as tried:
        for _ in range(40 if names else 0):
            some = [chance.choice(known) for _ in range(chance.randint(1, 30))]
            rows = []
            for name in some:
                rows.append((number, chance.choice((None, b"", b"v%d" % number))))
                put.setdefault(name, []).append(rows[-1])
                number += 1
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            tried.put(pa.array(some, pa.binary()), pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        assert tried.names() == put.keys()
        found = {}
        for name in sorted(put, key=bucket):
            table = tried.take(name)
            found[name] = list(zip(table["number"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert found == put
        absent = tried.take(b"nobody")
        assert (absent.num_rows, absent.schema) == (0, SCHEMA)
