"""Folds by columns against those by records, on random segments: the same rows and states, or nothing said."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from deelog_schemas import canonical
from deelog_schemas.digest import digest_of
from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind, pack
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.positions import ResetState
from deelog_spark import calm, fold, regions
from deelog_spark.kafka import Known
from deelog_spark.marks import Marks, Segment, position_bytes
from deelog_spark.rows import Renderer, Row

CODEC = JsonCodec("p.c", "grid", "p", "c", cause=True)
RENDERER = Renderer(CODEC)
LAYOUT = regions.Layout("p.c", "p.c.diff", 1, 4)
SEGMENT, STAMP = 2, Stamp(2, "n", 5)
RUNS = 400


class History:
    """What an owner writes of one segment, with turns that are odd now and then."""

    def __init__(self, chance: random.Random, odd: float) -> None:
        self.chance, self.odd = chance, odd
        self.entries: dict[bytes, Entry] = {}
        self.epoch, self.sequence, self.resets = 1, 0, 0
        self.rows: list[tuple[int, bytes, bytes | None, bytes, bytes | None]] = []
        self.first = chance.choice((0, 7))

    @property
    def end(self) -> int:
        return self.first + 2 * len(self.rows)

    def put(self) -> None:
        key = b'k"%d' % self.chance.randrange(6)
        value = None if self.chance.random() < 0.25 else b'v"after":{%d},"source":{' % self.chance.randrange(5)
        existed, epoch, sequence = key in self.entries, self.epoch, self.sequence + 1
        if self.chance.random() < self.odd:
            sequence -= self.chance.randint(1, 3)  # comes again, or too late
        self.sequence = max(self.sequence, sequence)
        expires = self.chance.choice((None, 1_800_000_000_000))
        operation = Operation(epoch, max(1, sequence), Reason.PUT, key, value, expires, 3, existed)
        self._add(Kind.CHANGE, (epoch, max(1, sequence)), key, CODEC.change(operation, STAMP))
        if value is None:
            self.entries.pop(key, None)
            self._add(Kind.TOMBSTONE, (epoch, max(1, sequence)), key, None)
        else:
            self.entries[key] = Entry(key, value, expires)

    def claim(self) -> None:
        self.epoch += 1
        self._add(Kind.CLAIM, (self.epoch, self.sequence), b"", None, segments=4, partitions=1)

    def reset(self, reset_id: str | None = None) -> None:
        """Begin, rows, operations between them, end."""
        self.resets += 1
        name = reset_id or f"r{self.resets}"
        self._add(Kind.RESET_BEGIN, (self.epoch, self.sequence), b"", None, id=name, reason="overflow")
        for key in sorted(self.entries):
            if key in self.entries:
                row = CODEC.row(self.entries[key], (self.epoch, self.sequence), "true", "overflow", STAMP)
                self._add(Kind.READ, (self.epoch, self.sequence), key, row)
            if self.chance.random() < 0.2:
                self.put()
        if self.chance.random() < self.odd:
            self.entries.pop(b'k"1', None)  # the digest will not match
        if self.chance.random() >= self.odd:
            pairs = [(e.key, e.value) for e in self.entries.values()]
            told = {"count": len(pairs), "digest": digest_of(pairs)}
            self._add(Kind.RESET_END, (self.epoch, self.sequence), b"", None, id=name, reason="overflow", **told)

    def turns(self, most: int) -> None:
        for _ in range(self.chance.randint(0, most)):
            self.chance.choice((self.put, self.put, self.put, self.claim))()

    def _add(self, kind: Kind, position: tuple[int, int], key: bytes, value: bytes | None, **told: Any) -> None:
        control = canonical.dumps({"epoch": position[0], "member": "n@1", **told}) if told else None
        raw = pack(kind, 0, SEGMENT, *position, 0)
        record_key = CODEC.key(key) if control is None else b"control"
        self.rows.append((self.end, raw, control, record_key, value))

    def diff(self) -> list[tuple[int, bytes, bytes | None, bytes, bytes | None]]:
        """A diff topic that is level with it, or not quite."""
        found: list[tuple[int, bytes, bytes | None, bytes, bytes | None]] = []
        entries = dict(self.entries)
        for key in list(entries):
            if self.chance.random() < 0.2:
                entries[key] = Entry(key, b"other", None)
        for key in (b'k"9', b'k"0'):
            if self.chance.random() < 0.3:
                entries.setdefault(key, Entry(key, b"x", None))
        raw = pack(Kind.CHANGE, 0, SEGMENT, 1, 1, 0)
        for key, entry in entries.items():
            value = CODEC.difference(None, entry, key, (1, 1), 1, None, "change", STAMP)
            found.append((len(found), raw, None, CODEC.key(key), value))
        return found


def tables(told: list[Any], new: list[Any]) -> regions.Tables:
    names = ("offset", "header", "control", "key", "value")
    schema = pa.schema([(n, pa.int64() if n == "offset" else pa.binary()) for n in names])
    old, brought = (
        pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in part], schema) for part in (told, new)
    )
    return regions.Tables(old, brought, 0, LAYOUT, CODEC)


def timeless(rows: list[Row]) -> list[Row]:
    """Rows of which it is forgotten when they were found."""
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
        history = History(chance, odd)
        history.turns(6)
        told = history.diff()
        before = Segment(position_bytes((history.epoch, history.sequence)))
        history.rows.clear()
        begin = history.first
        history.turns(5)
        history.reset()
        history.turns(3)
        if chance.random() < odd:
            history.reset()
        walked = 0
        if open_before:  # its begin stands in the batch before
            at = next(i for i, row in enumerate(history.rows) if row[1][1] == Kind.RESET_BEGIN)
            walked = at + 1
            begin = history.rows[at][0] + 1
        marks = Marks({SEGMENT: before}, count=4)
        for offset, raw, control, _, _ in history.rows[:walked]:
            marks.step(0, offset, raw, control)
        state = {SEGMENT: marks.now.get(SEGMENT, before)}
        marks = Marks(state, count=4)
        for offset, raw, control, _, _ in history.rows[walked:]:
            marks.step(0, offset, raw, control)
        if not marks.ended:
            continue
        found = tables(told, history.rows)
        controls, ended = found.control, marks.ended
        by_columns = calm.resets(*found.sides(), CODEC, RENDERER, 0, state[SEGMENT], controls, ended, begin)
        try:
            by_records = fold.resets(found, RENDERER, 0, state, ended, frozenset(), begin)
        except fold.Void:
            assert by_columns is None
            continue
        both += 1
        if by_columns is not None:
            plain += 1
            assert timeless(by_columns) == timeless(by_records)
    assert plain > both / 2 if odd else plain == both > RUNS / 2


@pytest.mark.parametrize("odd", [0.0, 0.05])
def test_starts(odd: float) -> None:
    chance = random.Random(f"start {odd}")
    plain = both = 0
    for _ in range(RUNS):
        history = History(chance, odd)
        base: dict[int, int] = {}
        if chance.random() < 0.7:
            history.turns(2)
            base[SEGMENT] = history.end
            history.reset()
        history.turns(8)
        told = history.diff() if chance.random() < 0.8 else []
        if chance.random() < odd:
            history.reset()
        named: dict[int, ResetState] = {}
        if chance.random() < odd:
            named[SEGMENT] = ResetState("z", history.epoch, history.sequence, "overflow", history.end, "n@1")
        keep = [row for row in history.rows if chance.random() > odd]  # compaction
        known = Known(base, named)
        found = tables(told, keep)
        by_columns = calm.start(*found.sides(), CODEC, RENDERER, 0, known, SEGMENT, history.end)
        try:
            by_records = fold.start(found, RENDERER, 0, known, [SEGMENT], 0, history.end)
        except RecordError:
            assert by_columns is None
            continue
        both += 1
        if by_columns is not None:
            plain += 1
            rows, state = by_columns
            assert timeless(rows) == timeless(by_records.rows)
            assert state == by_records.segments.get(SEGMENT)
    assert plain > both / 2 if odd else plain == both > RUNS / 2
