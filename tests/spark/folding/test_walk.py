"""The walk, which reads only headers, compared with the reference reader: same repeats, marks, resets and rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deelog_schemas import canonical
from deelog_schemas.digest import digest_of
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind, pack
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record, decode
from deelog_spark.folding.walk import (
    PartitionWalk,
    Segment,
    located,
    matrix,
    ours,
    position_bytes,
    position_tuple,
    waiting,
)

RUNS = 300


def entry_of(record: Record) -> tuple[bytes, Entry | None]:
    return record.key, None if record.value is None else Entry(record.key, record.value, None)


def history(chance: random.Random) -> list[tuple[bytes, bytes | None, Record]]:
    """Header, control header and record of all that may be in one partition, in segments 0 to 2."""
    readers = {g: SegmentReader(g) for g in range(3)}
    epochs, sequences, found = [1, 1, 1], [0, 0, 0], []
    for offset in range(chance.randint(1, 60)):
        g = chance.randrange(3)
        kind = chance.choice([Kind.CHANGE] * 5 + [Kind.TOMBSTONE, Kind.READ, Kind.READ, Kind.CLAIM, Kind.SKIPPED])
        kind = chance.choice([kind] * 8 + [Kind.RESET_BEGIN, Kind.RESET_END])
        told: dict[str, Any] | None = None
        if kind is Kind.CLAIM:
            epochs[g] += 1
            told = {}
        elif kind is Kind.SKIPPED:
            sequences[g] += 1
            told = {"first": sequences[g]}
        elif kind is Kind.RESET_BEGIN:
            told = {"id": f"r{offset}", "reason": "x"}
        elif kind is Kind.RESET_END:
            opened = readers[g].open
            reset = opened.reset_id if opened is not None and chance.random() < 0.8 else "none"
            entries = opened.entries.values() if opened is not None else []
            told = {"id": reset, "count": len(entries), "digest": digest_of((e.key, e.value) for e in entries)}
        elif kind is Kind.CHANGE and chance.random() < 0.8:
            sequences[g] += 1
        sequence = sequences[g]
        if kind is not Kind.SKIPPED and chance.random() < 0.2:
            sequence = max(0, sequence - chance.randint(0, 3))
        if told is not None:
            told = {"epoch": epochs[g], "member": "n@1", "segments": 3, "partitions": 1, **told}
        raw = pack(kind, g, max(1, epochs[g] - (chance.random() < 0.2)), sequence, 0)
        control = None if told is None else canonical.dumps(told)
        headers = [("deelog", raw)] + ([] if control is None else [("deelog.control", control)])
        value = b"%d" % offset if kind in (Kind.CHANGE, Kind.READ) else None
        record = decode("t", 0, offset, b"k%d" % chance.randrange(3), value, headers)
        readers[g].apply(record, entry_of)
        found.append((raw, control, record))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_as_the_reference(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(RUNS):
        readers = {g: SegmentReader(g) for g in range(3)}
        state: dict[int, Segment] = {}
        marks = PartitionWalk(state)
        ended = repeats = 0
        for raw, control, record in history(chance):
            if chance.random() < 0.1:  # a batch ends here
                state = {**state, **marks.now}
                ended, repeats = ended + len(marks.ended), repeats + marks.repeats
                marks = PartitionWalk(state)
            changes = readers[record.header.segment].apply(record, entry_of)
            kept = marks.step(0, record.offset, raw, control)
            assert kept == any(c.cause == "change" for c in changes)
        state = {**state, **marks.now}
        assert ended + len(marks.ended) == sum(len(r.resets) for r in readers.values())
        assert repeats + marks.repeats == sum(r.repeats for r in readers.values())
        for number, segment in state.items():
            reader = readers[number]
            assert position_tuple(segment.mark) == reader.mark
            assert (segment.open is None) == (reader.open is None)
            if segment.open is not None and reader.open is not None:
                assert segment.open.reset_id == reader.open.reset_id
                assert position_tuple(segment.open.mark) == reader.open.mark


@pytest.mark.parametrize("seed", range(4))
def test_batches_as_records(seed: int) -> None:
    """`steps` gives for a batch what `step` gives for its records."""
    chance = random.Random(seed)
    vectorised = 0
    for _ in range(RUNS):
        rows = calm(chance) if chance.random() < 0.5 else [(raw, control) for raw, control, _ in history(chance)]
        one, many = PartitionWalk({}), PartitionWalk({})
        kept = [one.step(0, offset, *row) for offset, row in enumerate(rows)]
        found: list[bool] = []
        while len(found) < len(rows):
            part = rows[len(found) : len(found) + chance.randint(1, 20)]
            offsets = np.arange(len(found), len(found) + len(part))
            headers, controls = (pa.array(column, pa.binary()) for column in zip(*part, strict=True))
            many.row = -1
            found += many.steps(0, offsets, headers, controls).tolist()
            vectorised += many.row < 0
        assert found == kept
        assert (many.now, many.ended) == (one.now, one.ended)
        assert (many.records, many.kept, many.repeats) == (one.records, one.kept, one.repeats)
    assert vectorised > RUNS  # batches without a call of `step`


def calm(chance: random.Random) -> list[tuple[bytes, bytes | None]]:
    """The usual records of a topic: new changes, deletes with their tombstones, sometimes a later epoch."""
    found: list[tuple[bytes, bytes | None]] = []
    epochs, sequences = [1] * 3, [0] * 3
    for _ in range(chance.randint(1, 60)):
        g = chance.randrange(3)
        epochs[g] += chance.random() < 0.05
        sequences[g] += chance.choice((1, 1, 1, 2**33))
        if chance.random() < 0.1:
            told = {"epoch": epochs[g], "member": "n@1", "reason": "x", "count": 0, "digest": "0", "id": "a"}
            found.append((pack(Kind.RESET_BEGIN, g, epochs[g], sequences[g], 0), canonical.dumps(told)))
            rows = [(pack(Kind.READ, g, epochs[g], sequences[g], 0), None)]
            found += rows * chance.randint(0, 9)
            sequences[g] += 1
            found.append((pack(Kind.CHANGE, g, epochs[g], sequences[g], 0), None))
            found += [(pack(Kind.READ, g, epochs[g], sequences[g], 0), None)] * chance.randint(0, 3)
            if chance.random() < 0.8:
                found.append((pack(Kind.RESET_END, g, epochs[g], sequences[g], 0), canonical.dumps(told)))
            sequences[g] += 1
        found.append((pack(Kind.CHANGE, g, epochs[g], sequences[g], 0), None))
        if chance.random() < 0.2:
            found.append((pack(Kind.TOMBSTONE, g, epochs[g], sequences[g] + (chance.random() < 0.1), 0), None))
    return found


def test_rows_of_a_reset_are_settled_at_once() -> None:
    """Only control records and repeats are handled one by one."""
    stepped: list[int] = []

    class Counted(PartitionWalk):
        def step(self, partition: int, offset: int, raw: bytes | None, control: bytes | None) -> bool:
            stepped.append(offset)
            return super().step(partition, offset, raw, control)

    told = {"epoch": 1, "member": "n@1", "reason": "x", "count": 0, "digest": "0", "id": "a"}
    rows: list[tuple[bytes, bytes | None]] = []
    for g in (0, 1):
        rows.append((pack(Kind.RESET_BEGIN, g, 1, 5, 0), canonical.dumps(told)))
        rows += [(pack(Kind.READ, g, 1, 5, 0), None)] * 50
        rows += [(pack(kind, g, 1, 6, 0), None) for kind in (Kind.CHANGE, Kind.TOMBSTONE)]
        rows += [(pack(Kind.READ, g, 1, 6, 0), None)] * 50
        rows.append((pack(Kind.RESET_END, g, 1, 6, 0), canonical.dumps(told)))
    marks = Counted({})
    headers, controls = (pa.array(column, pa.binary()) for column in zip(*rows, strict=True))
    assert not marks.steps(0, np.arange(len(rows)), headers, controls).any()
    assert stepped == [0, 103, 104, 207]
    assert [(e.segment, e.begin, e.end) for e in marks.ended] == [(0, 0, 103), (1, 104, 207)]
    assert (marks.records, marks.repeats) == (len(rows), 0)
    again = [rows[0], *rows[1:51], (pack(Kind.CHANGE, 0, 1, 5, 0), None), *rows[51:53]]
    marks, stepped[:] = Counted({}), []
    headers, controls = (pa.array(column, pa.binary()) for column in zip(*again, strict=True))
    marks.steps(0, np.arange(len(again)), headers, controls)
    assert marks.repeats == 1
    assert len(stepped) == len(again)


def test_a_refused_row_is_told() -> None:
    good = pack(Kind.CHANGE, 0, 1, 1, 0)
    for bad in (None, b"", good[:-1], b"\x02" + good[1:], pack(Kind.CHANGE, 9, 1, 1, 0)):
        marks = PartitionWalk({}, partitions=1, count=4)
        headers = pa.array([good, bad, good], pa.binary())
        with pytest.raises(RecordError):
            marks.steps(0, np.arange(3), headers, pa.nulls(3, pa.binary()))
        assert marks.row == 1


def test_void_end_waits_for_another_reset() -> None:
    told = {"epoch": 1, "member": "n@1", "reason": "x", "count": 0, "digest": "0"}
    begin = end = canonical.dumps({**told, "id": "a"})
    marks = PartitionWalk({}, void=[(3, 11)])
    marks.step(0, 10, pack(Kind.RESET_BEGIN, 3, 1, 5, 0), begin)
    marks.step(0, 11, pack(Kind.RESET_END, 3, 1, 6, 0), end)
    assert not marks.step(0, 12, pack(Kind.CHANGE, 3, 1, 7, 0), None)
    assert marks.ended == []
    assert not marks.step(0, 13, pack(Kind.RESET_END, 3, 1, 7, 0), end)
    again = canonical.dumps({**told, "id": "b"})
    marks.step(0, 14, pack(Kind.RESET_BEGIN, 3, 1, 7, 0), again)
    marks.step(0, 15, pack(Kind.RESET_END, 3, 1, 7, 0), again)
    assert [(e.begin, e.end) for e in marks.ended] == [(14, 15)]
    assert marks.step(0, 16, pack(Kind.CHANGE, 3, 1, 8, 0), None)


def test_positions_compare_as_bytes() -> None:
    chance = random.Random(1)
    drawn = [(chance.randrange(2**32), chance.randrange(2**64)) for _ in range(200)] + [(1, 2**63), (2, 0), (0, 0)]
    assert sorted(drawn) == [position_tuple(raw) for raw in sorted(map(position_bytes, drawn))]


CHANGE = pack(Kind.CHANGE, 0, 1, 1, 0)


@pytest.mark.parametrize(
    ("raw", "control", "said"),
    [
        (None, None, "no header `deelog`"),
        (CHANGE[:23], None, "23 bytes"),
        (b"\2" + CHANGE[1:], None, "version 2"),
        (CHANGE[:3] + b"\x01" + CHANGE[4:], None, "reserved bytes 0x1"),
        (CHANGE[:2] + b"\x01" + CHANGE[3:], None, "reserved bytes 0x100"),
        (CHANGE[:1] + b"\0" + CHANGE[2:], None, "kind 0 "),
        (CHANGE[:1] + b"\x20" + CHANGE[2:], None, "POSITION does not belong"),
        (pack(Kind.RESET_BEGIN, 0, 1, 1, 0), None, "without header `deelog.control`"),
        (pack(Kind.RESET_END, 0, 1, 1, 0), b"{", "not JSON"),
        (pack(Kind.RESET_END, 0, 1, 1, 0), b"{}", "no int `epoch`"),
        (pack(Kind.CHANGE, 8, 1, 1, 0), None, "segment 8 does not belong"),
        (pack(Kind.CHANGE, 4, 1, 1, 0), None, "segment 4 does not belong"),
    ],
)
def test_what_is_not_ours_is_refused_with_its_place(raw: bytes | None, control: bytes | None, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        PartitionWalk({}, partitions=2, count=8).step(0, 5, raw, control)
    error = str(located(caught.value, "t", 0, 5, raw, control))
    assert error.startswith("t[0]@5: ")
    assert said in error


def test_a_skipped_record_that_does_not_say_what_it_stands_for_stops_the_walk() -> None:
    raw = [pack(Kind.CHANGE, 0, 1, 1, 0), pack(Kind.SKIPPED, 0, 1, 2, 0), pack(Kind.SKIPPED, 0, 1, 3, 0)]
    told = canonical.dumps({"epoch": 1, "member": "n@1", "first": 2})
    marks = PartitionWalk({})
    with pytest.raises(RecordError, match=r"a SKIPPED record without header `deelog\.control`"):
        marks.steps(0, np.arange(3), pa.array(raw, pa.binary()), pa.array([None, told, None], pa.binary()))
    assert marks.row == 2
    strange = pa.array([pack(Kind.SKIPPED, 5, 1, 2, 0)], pa.binary())
    with pytest.raises(RecordError, match="segment 5 does not belong on this partition"):
        PartitionWalk({}, (), 2, 6).steps(0, np.arange(1), strange, pa.array([told], pa.binary()))


@pytest.mark.parametrize("at", [0, 2, 3], ids=["version", "reserved", "reserved too"])
def test_a_header_is_ours_only_if_version_and_reserved_bytes_fit(at: int) -> None:
    other = bytearray(CHANGE)
    other[at] ^= 0x1
    raw = matrix(pa.array([CHANGE, bytes(other)], pa.binary()))
    assert raw is not None
    assert ours(raw).tolist() == [True, False]


def test_no_end_closes_a_segment_that_waits() -> None:
    control = canonical.dumps({"epoch": 1, "member": "n@1", "reason": "x", "count": 0, "digest": "0", "id": "a"})
    walk = PartitionWalk({3: Segment(open=waiting())})
    walk.step(0, 11, pack(Kind.RESET_END, 3, 1, 6, 0), control)
    assert walk.ended == []
    assert walk.now[3] == Segment(position_bytes((1, 6)), waiting())


def test_a_reset_without_an_id_is_refused() -> None:
    """Otherwise it would end the reset of a waiting segment, which has an empty id."""
    for kind in (Kind.RESET_BEGIN, Kind.RESET_END):
        control = canonical.dumps({"epoch": 1, "member": "n@1", "reason": "x", "count": 0, "digest": "0", "id": ""})
        with pytest.raises(RecordError, match="no str `id`"):
            PartitionWalk({3: Segment(open=waiting())}).step(0, 11, pack(kind, 3, 1, 6, 0), control)
