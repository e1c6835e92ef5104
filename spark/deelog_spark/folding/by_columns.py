"""The folds of `by_records.py` by columns, for segments in which nothing unusual happened: nearly all of them.

Usual means: every record counts, and at most one reset ended. Then the last record of a key is its entry, whatever came
before it, and two entries are equal where the bytes of their `after` are, without decoding. For anything else a fold
here returns None, and `by_records.py` has to fold the segment, or raise what is wrong with it.
Alternatives: docs/decisions.md, "The fold by columns".
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deelog_schemas.digest import digest_of
from deelog_schemas.envelope import Codec
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import START, Change, difference
from deelog_schemas.header import CONTROL_KINDS, POSITION_BYTES, SIZE, Kind, Position
from deelog_schemas.operation import Entry
from deelog_spark.folding import by_records
from deelog_spark.folding.diff_record import Renderer, Row
from deelog_spark.folding.walk import (
    Ended,
    Flags,
    Numbers,
    Segment,
    matrix,
    ours,
    position_bytes,
    position_tuple,
    rises,
)

_CHANGE, _TOMBSTONE, _READ = int(Kind.CHANGE), int(Kind.TOMBSTONE), int(Kind.READ)
_BEGIN, _END = int(Kind.RESET_BEGIN), int(Kind.RESET_END)
_ENTRIES: Final = (_CHANGE, _TOMBSTONE, _READ)
_NOT_IN_DIFF: Final = (_READ, *map(int, CONTROL_KINDS))
"""Kinds that the diff topic never has."""
_KINDS: Final = (_CHANGE, _TOMBSTONE, *_NOT_IN_DIFF)

Afters = dict[bytes, bytes]
"""The encoded `after` by record key."""


class Columns(NamedTuple):
    """One segment's records in one topic: parallel columns, in offset order."""

    offsets: Numbers
    raw: npt.NDArray[np.uint8]
    """Headers as a matrix of bytes, a row per record."""
    keys: pa.ChunkedArray
    values: pa.ChunkedArray

    def part(self, first: int, end: int) -> Columns:
        """Rows `[first, end)`."""
        return Columns(self.offsets[first:end], self.raw[first:end], self.keys[first:end], self.values[first:end])

    def of(self, *kinds: int) -> Columns:
        """The rows of these kinds."""
        chosen = _are(self.raw[:, 1], *kinds)
        if chosen.all():
            return self
        mask = pa.array(chosen)
        return Columns(self.offsets[chosen], self.raw[chosen], self.keys.filter(mask), self.values.filter(mask))

    def at(self, offset: int) -> int:
        """The index of the first record at an offset or above it."""
        return int(np.searchsorted(self.offsets, offset))

    def holds(self, offset: int) -> bool:
        """Whether there is a record at an offset."""
        at = self.at(offset)
        return at < len(self.offsets) and bool(self.offsets[at] == offset)

    def has(self, *kinds: int) -> bool:
        """Whether there is a row of one of these kinds."""
        return bool(_are(self.raw[:, 1], *kinds).any())


@functools.cache
def _table(*kinds: int) -> Flags:
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


def _are(column: npt.NDArray[np.uint8], *kinds: int) -> Flags:
    """Which are one of these kinds. By a table: `np.isin` takes 0.1 ms for the smallest column."""
    flags: Flags = _table(*kinds)[column]
    return flags


def columns_of(table: pa.Table) -> Columns | None:
    """From columns offset, header, key, value; None where a record is foreign."""
    headers = table["header"].combine_chunks()
    raw = matrix(headers) if len(headers) else np.zeros((0, SIZE), np.uint8)
    if raw is None or not ours(raw).all() or not _are(raw[:, 1], *_KINDS).all() or table["key"].null_count:
        return None
    empty = table["value"].is_null().to_numpy()
    if _are(raw[empty, 1], _CHANGE, _READ).any():
        return None
    return Columns(table["offset"].to_numpy(), raw, table["key"], table["value"])


def start(
    diff: Columns | None,
    new: Columns | None,
    codec: Codec,
    renderer: Renderer,
    partition: int,
    positions: by_records.PositionsView,
    number: int,
    end: int,
) -> tuple[list[Row], Segment | None] | None:
    """`by_records.start` for one segment: its rows and state; None where that has to fold it.

    The record at the segment's base offset, if it has one, must still be there.
    """
    base = positions.base.get(number)
    named = positions.open.get(number)
    if diff is None or new is None or (named is not None and named.begin_offset >= 0):
        return None
    if base is not None:
        new = new.part(new.at(base), len(new.offsets))
    mark = position_bytes(START)
    if len(new.offsets) and new.offsets[0] == base and new.raw[0, 1] == _BEGIN:
        mark = new.raw[0, POSITION_BYTES].tobytes()
        new = new.part(1, len(new.offsets))
    # Of the reset at the base only the end's position counts; without a base, rows belong to no reset.
    if diff.has(*_NOT_IN_DIFF) or new.has(_BEGIN) or (base is None and new.has(_READ)):
        return None
    counting = new.of(*_ENTRIES, _END)
    if not _counts(counting.raw, mark):
        return None
    old, entries = _afters(codec, diff), _afters(codec, new.of(*_ENTRIES))
    if old is None or entries is None:
        return None
    mark = counting.raw[-1, POSITION_BYTES].tobytes() if len(counting.raw) else mark
    position = position_tuple(mark)
    changes = _difference(old, entries, codec, position)
    if changes is None:
        return None
    now_us = time.time_ns() // 1000
    rows = _rendered(changes, renderer, partition, max(end - 1, 0), number, by_records.START_REASON, now_us)
    return rows, None if position == START else Segment(mark)


def resets(
    diff: Columns | None,
    new: Columns | None,
    codec: Codec,
    renderer: Renderer,
    partition: int,
    before: Segment,
    control: Callable[[int], dict[str, Any]],
    ended: list[Ended],
    begin: int,
) -> list[Row] | None:
    """`by_records.resets` for one segment; None where that has to fold it.

    `control(offset)` gives the content of the control record at an offset.
    """
    if diff is None or new is None or len(ended) != 1:
        return None
    (one,) = ended
    opened = before.open
    if not new.holds(one.end) or (opened is None and not new.holds(one.begin)):
        return None
    first, end = new.at(by_records.reads_from(before, begin)), new.at(one.end)
    if opened is None:
        at = new.at(one.begin)
        kept, inside, inner = new.part(first, at), new.part(at + 1, end), new.raw[at, POSITION_BYTES].tobytes()
    elif (opened.reset_id, opened.begin) == (one.reset_id, one.begin):
        kept, inside, inner = new.part(0, 0), new.part(first, end), opened.position
    else:
        return None
    if diff.has(*_NOT_IN_DIFF) or kept.has(_READ, _BEGIN, _END) or inside.has(_BEGIN, _END):
        return None
    kept, inside = kept.of(*_ENTRIES), inside.of(*_ENTRIES)
    if not _counts(kept.raw, before.mark) or not _counts(inside.raw, inner):
        return None
    old, entries = _afters(codec, diff, kept), _afters(codec, inside)
    if old is None or entries is None:
        return None
    content = control(one.end)
    try:
        native = [codec.decode_after(after) for after in entries.values()]
    except RecordError:
        return None
    if (len(native), digest_of((e.key, e.value) for e in native)) != (content["count"], content["digest"]):
        return None
    changes = _difference(old, entries, codec, position_tuple(new.raw[end, POSITION_BYTES].tobytes()))
    if changes is None:
        return None
    return _rendered(changes, renderer, partition, one.end, one.segment, one.reason, one.moment_ms * 1000)


def _rendered(
    changes: list[Change], renderer: Renderer, partition: int, offset: int, number: int, reason: str, moment_us: int
) -> list[Row]:
    return [
        renderer.difference(change, partition, offset, ordinal, number, reason, moment_us)
        for ordinal, change in enumerate(changes)
    ]


def _counts(raw: npt.NDArray[np.uint8], mark: bytes) -> bool:
    """Whether each record counts, and each tombstone at the position before it follows its delete."""
    kinds = raw[:, 1]
    if not rises(np.where(kinds == _END, _READ, kinds), raw, mark):
        return False
    alone = kinds == _TOMBSTONE
    alone[1:] &= (raw[1:, POSITION_BYTES] == raw[:-1, POSITION_BYTES]).all(axis=1) & (kinds[:-1] != _CHANGE)
    alone[:1] &= raw[:1, POSITION_BYTES].tobytes() == mark
    return not alone.any()


def _afters(codec: Codec, *columns: Columns) -> Afters | None:
    """The last record's `after` by key, without deleted keys; None where one is not an envelope of ours."""
    last: dict[bytes, bytes | None] = {}
    for one in columns:
        last.update(zip(one.keys.to_pylist(), one.values.to_pylist(), strict=True))
    afters: Afters = {}
    for key, value in last.items():
        if value is not None:
            after = codec.after_of(value)
            if after is None:
                return None
            if after != codec.gone:
                afters[key] = after
    return afters


def _difference(old: Afters, new: Afters, codec: Codec, position: Position) -> list[Change] | None:
    """`deelog_schemas.fold.difference` by bytes: only entries whose bytes differ are decoded. None: one cannot be."""
    before: dict[bytes, Entry] = {}
    after: dict[bytes, Entry] = {}
    for key in old.keys() | new.keys():
        was, now = old.get(key), new.get(key)
        if was != now:
            for raw, entries in ((was, before), (now, after)):
                if raw is not None:
                    try:
                        entry = codec.decode_after(raw)
                    except RecordError:
                        return None  # whoever reads the records tells which one it is
                    entries[entry.key] = entry
    return difference(before, after, position)
