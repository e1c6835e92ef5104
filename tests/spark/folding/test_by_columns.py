"""Folds by columns compared with those by records, on random segments: the same rows and states, or no result."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.fold import Change
from deelog_schemas.header import Kind, pack
from deelog_schemas.operation import Entry
from deelog_schemas.positions import ResetState
from deelog_spark.batches import ranges
from deelog_spark.folding import by_columns, by_records
from deelog_spark.folding.diff_record import Renderer, Row
from deelog_spark.folding.walk import PartitionWalk, Segment, position_bytes
from tests.spark.history import History, Turn

CODEC = JsonCodec("p.c", "grid", "p", "c", cause=True)
RENDERER = Renderer(CODEC)
LAYOUT = ranges.Layout("p.c", "p.c.diff", 1, 4)
SEGMENT, STAMP = 2, Stamp(2, "n", 5)
RUNS = 400
PLAIN = ("put", "put", "put", "claim")


def history_of(chance: random.Random, odd: float) -> History:
    """The history of the segment to fold."""
    return History(chance, CODEC, [b'k"%d' % number for number in range(6)], SEGMENT, odd)


def diff_of(history: History) -> list[Turn]:
    """A diff topic that is up to date with it, or nearly so."""
    found: list[Turn] = []
    entries = dict(history.entries)
    for key in list(entries):
        if history.chance.random() < 0.2:
            entries[key] = Entry(key, b"other", None)
    for key in (b'k"9', b'k"0'):
        if history.chance.random() < 0.3:
            entries.setdefault(key, Entry(key, b"x", None))
    raw = pack(Kind.CHANGE, SEGMENT, 1, 1, 0)
    for key, entry in entries.items():
        value = CODEC.difference(Change(key, None, entry, (1, 1), "change"), 1, None, STAMP)
        found.append(Turn(len(found), raw, None, CODEC.key(key), value))
    return found


def tables(told: list[Turn], new: list[Turn]) -> ranges.Tables:
    schema = pa.schema([(n, pa.int64() if n == "offset" else pa.binary()) for n in Turn._fields])
    old, brought = (pa.Table.from_pylist([turn._asdict() for turn in part], schema) for part in (told, new))
    return ranges.Tables(old, brought, 0, LAYOUT, CODEC)


def timeless(rows: list[Row]) -> list[Row]:
    """The rows without the time at which they were made."""
    return [row._replace(value=None if row.value is None else _envelope(row.value)) for row in rows]


def _envelope(value: bytes) -> bytes:
    found = CODEC.decode_value(value)
    return repr((found.op, found.before, found.after)).encode()


@pytest.mark.parametrize("odd", [0.0, 0.05])
@pytest.mark.parametrize("open_before", [False, True])
def test_resets(odd: float, open_before: bool) -> None:
    chance = random.Random(f"{odd} {open_before}")
    plain = both = 0
    for _ in range(RUNS):
        history = history_of(chance, odd)
        history.turns(6, *PLAIN)
        told = diff_of(history)
        before = Segment(position_bytes(history.mark))
        history.rows.clear()
        begin = history.first
        history.turns(5, *PLAIN)
        history.reset()
        history.turns(3, *PLAIN)
        if chance.random() < odd:
            history.reset()
        walked = 0
        if open_before:  # its begin is in the batch before
            at = next(i for i, row in enumerate(history.rows) if row.kind is Kind.RESET_BEGIN)
            walked = at + 1
            begin = history.rows[at].offset + 1
        marks = PartitionWalk({SEGMENT: before}, count=4)
        for offset, raw, control, _, _ in history.rows[:walked]:
            marks.step(0, offset, raw, control)
        state = {SEGMENT: marks.now.get(SEGMENT, before)}
        marks = PartitionWalk(state, count=4)
        for offset, raw, control, _, _ in history.rows[walked:]:
            marks.step(0, offset, raw, control)
        if not marks.ended:
            continue
        found = tables(told, history.rows)
        controls, ended = found.control, marks.ended
        in_columns = by_columns.resets(*found.columns(), CODEC, RENDERER, 0, state[SEGMENT], controls, ended, begin)
        try:
            in_records = by_records.resets(found, RENDERER, 0, state, ended, frozenset(), begin)
        except by_records.ResetMismatch:
            assert in_columns is None
            continue
        both += 1
        if in_columns is not None:
            plain += 1
            assert timeless(in_columns) == timeless(in_records)
    assert plain > both / 2 if odd else plain == both > RUNS / 2


@pytest.mark.parametrize("odd", [0.0, 0.05])
def test_starts(odd: float) -> None:
    chance = random.Random(f"start {odd}")
    plain = both = 0
    for _ in range(RUNS):
        history = history_of(chance, odd)
        base: dict[int, int] = {}
        if chance.random() < 0.7:
            history.turns(2, *PLAIN)
            base[SEGMENT] = history.end
            history.reset()
        history.turns(8, *PLAIN)
        told = diff_of(history) if chance.random() < 0.8 else []
        if chance.random() < odd:
            history.reset()
        named: dict[int, ResetState] = {}
        if chance.random() < odd:
            named[SEGMENT] = ResetState("z", history.epoch, history.sequence, "overflow", history.end, "n@1")
        keep = [row for row in history.rows if chance.random() > odd]  # compaction
        known = by_records.PositionsView(base, named)
        found = tables(told, keep)
        in_columns = by_columns.start(*found.columns(), CODEC, RENDERER, 0, known, SEGMENT, history.end)
        try:
            in_records = by_records.start(found, RENDERER, 0, known, [SEGMENT], 0, history.end)
        except by_records.ResetMismatch:
            assert in_columns is None
            continue
        both += 1
        if in_columns is not None:
            plain += 1
            rows, state = in_columns
            assert timeless(rows) == timeless(in_records.rows)
            assert state == in_records.segments.get(SEGMENT)
    assert plain > both / 2 if odd else plain == both > RUNS / 2


def test_a_start_takes_rows_of_an_incremental_snapshot_for_the_changes_that_compaction_took() -> None:
    chance = random.Random("snapshot")
    for _ in range(50):
        history = history_of(chance, 0.0)
        history.turns(3, "put")
        base = history.end
        history.reset()
        history.turns(5, "put")
        history.claim()
        history._operating = history.epoch  # rows come once all operations of the old owner are written
        for key in sorted(history.entries):
            history._row(key)
        history.turns(2, "put")
        last = {row.key: row.offset for row in history.rows}
        gone = chance.choice(((), (Kind.RESET_BEGIN, Kind.RESET_END, Kind.CLAIM, Kind.ACTIVE)))
        keep = [row for row in history.rows if last[row.key] == row.offset and row.kind not in gone]
        known, found = by_records.PositionsView({SEGMENT: base}, {}), tables([], keep)
        started = by_records.start(found, RENDERER, 0, known, [SEGMENT], 0, history.end)
        told = {r.key: CODEC.decode_value(r.value).after for r in started.rows if r.value is not None}
        assert told == {CODEC.key(key): entry for key, entry in history.entries.items()}
        in_columns = by_columns.start(*found.columns(), CODEC, RENDERER, 0, known, SEGMENT, history.end)
        assert in_columns is not None
        assert timeless(in_columns[0]) == timeless(started.rows)
