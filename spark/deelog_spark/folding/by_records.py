"""The folds of a start and of a batch's resets over bounded ranges of both topics, by `deelog_schemas.fold`.

Pure but for what `Tables` reads. `batches/ranges.py` calls it, a segment at a time. Memory holds the old and new
entries of the segments that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from deelog_schemas.errors import RecordError
from deelog_schemas.fold import START, OpenReset, SegmentReader, check_end, difference, fold_step
from deelog_schemas.header import Kind, Position, pack
from deelog_schemas.operation import Entry
from deelog_schemas.positions import ResetState
from deelog_schemas.records import Record
from deelog_spark.folding.diff_record import CHANGE, Renderer, Row, Undecodable
from deelog_spark.folding.walk import Ended, Open, Segment, position_bytes, position_tuple, waiting

START_REASON = "start"
LOST: Final = -1
"""In place of a base offset that is gone, or of a change topic that was deleted and made again."""


class Tables(Protocol):
    """Both topics of one cache, a bounded range of each: `ranges.Tables`, or a model's."""

    def entries(self, partition: int, only: frozenset[int] | None = None) -> dict[int, dict[bytes, Entry]]:
        """The entries in the diff topic, by segment and key; `only` of these segments."""
        ...

    def records(self, partition: int, begin: int, end: int) -> Iterator[Record]:
        """The change topic's records of `[begin, end)`, in order; RecordError for a foreign one."""
        ...

    def entry(self, record: Record) -> tuple[bytes, Entry | None]:
        """Key and entry of a change, row or tombstone; RecordError, or `Undecodable` where a fold may pass it over."""
        ...


class PositionsView(NamedTuple):
    """The content of the positions topic, by segment."""

    base: dict[int, int]
    """The base offset, at which the last completed reset begins, or `LOST`."""
    open: dict[int, ResetState]
    """The open reset."""
    segments: int = 0
    """`segment.count` of whoever claims segments; 0 where nobody does."""


class StartFold:
    """Folds one segment from its base offset to the end of a topic that may be compacted.

    The begin at the base offset opens nothing: its reset is known to be complete, and cannot be checked, since its end
    and rows that later records replaced may be compacted away. A later begin opens a reset; so does one that the
    positions topic names, whose own record may be gone.

    Outside of a reset an `Undecodable` change is passed over. Its key keeps its last good value, which only the diff
    topic may still have, since compaction removes earlier records of the key.
    """

    def __init__(self, segment: int, base: int | None, named: ResetState | None) -> None:
        self.segment, self._base = segment, base
        self._named = named if named is not None and named.begin_offset >= 0 else None
        self.entries: dict[bytes, Entry] = {}
        self.mark: Position = START
        self.open: OpenReset | None = None
        self.begin, self.begin_position = -1, START
        self.undecodable: list[Record] = []
        """The records that were passed over, in order."""
        self._kept: set[bytes] = set()
        """Their keys, of those that had no entry."""
        self._deleted: set[bytes] = set()
        self._at_base = ""
        """The id of the reset at the base offset, until its end is read."""
        self._inside: RecordError | None = None
        """The first error that was passed over; the end of that reset raises it."""

    def apply(self, record: Record, tables: Tables) -> None:
        """Folds the segment's next record; RecordError where it is foreign, or a reset's end does not match."""
        if self._base is not None and record.offset < self._base:
            return
        kind, position = record.header.kind, record.header.position
        if self._named is not None and record.offset >= self._named.begin_offset:
            self.finish()
        if kind is Kind.RESET_BEGIN:
            self.mark = max(self.mark, position)
            if record.offset != self._base:
                self.open = OpenReset(record.control["id"], record.control["reason"], position)
                self.begin, self.begin_position = record.offset, position
            else:
                self._at_base = record.control["id"]
        elif kind is Kind.RESET_END:
            self._end(record)
        elif kind in (Kind.CHANGE, Kind.TOMBSTONE, Kind.READ):
            self._fold(record, tables)

    def closing(self, record: Record) -> Ended | None:
        """The open reset, where this record is its end."""
        opened = self.open
        if opened is None or record.header.kind is not Kind.RESET_END or record.control["id"] != opened.reset_id:
            return None
        return Ended(self.segment, opened.reset_id, opened.reason, self.begin, record.offset)

    def finish(self) -> None:
        """Opens the reset that the positions topic names. Call it at the end of the log."""
        named, self._named = self._named, None
        if named is not None and self.begin < named.begin_offset:
            position = (named.epoch, named.sequence)
            self.mark = max(self.mark, position)
            self.open = OpenReset(named.reset_id, named.reason, position)
            self.begin, self.begin_position = named.begin_offset, position

    def _fold(self, record: Record, tables: Tables) -> None:
        kind, position = record.header.kind, record.header.position
        if kind is Kind.READ and self.open is None and self._base is None:
            return
        try:
            key, entry = tables.entry(record)
        except Undecodable as error:
            if self.open is not None:
                raise
            self._pass(record, error)
            return
        if entry is None and self.open is None:
            self._deleted.add(key)
        if self.open is not None:
            self.open.mark = fold_step(self.open.entries, self.open.mark, kind, position, key, entry)
        else:
            self.mark = fold_step(self.entries, self.mark, kind, position, key, entry)

    def _pass(self, record: Record, error: Undecodable) -> None:
        if record.header.position <= self.mark:
            return
        self.mark = record.header.position
        self.undecodable.append(record)
        self._inside = self._inside or error.at(record.topic, record.partition, record.offset)
        if error.key is not None and error.key not in self.entries:
            self._kept.add(error.key)

    def keep(self, old: Mapping[bytes, Entry]) -> None:
        """Takes last good values from the diff topic's entries `old`, for keys without an entry of their own."""
        for key in self._kept - self.entries.keys() - self._deleted:
            if key in old:
                self.entries[key] = old[key]

    def _end(self, record: Record) -> None:
        if record.control["id"] == self._at_base:
            if self._inside is not None:
                raise RecordError(f"reset {self._at_base} has a record that cannot be decoded: {self._inside}")
            self._at_base = ""
        self.mark = max(self.mark, record.header.position)
        opened = self.open
        if opened is not None and self.closing(record) is not None:
            check_end(opened.entries, record.control)
            self.entries, self.open = opened.entries, None
            self._kept.clear()
            self.mark = max(self.mark, opened.mark)


class Started(NamedTuple):
    """A partition after the fold of a start."""

    segments: dict[int, Segment]
    """The state to go on with."""
    rows: list[Row]
    """The differences from the diff topic, and changes that cannot be decoded, as captured."""
    lost: list[int]
    """Segments whose base offset is gone: they wait for a reset."""


def start(
    tables: Tables,
    renderer: Renderer,
    partition: int,
    positions: PositionsView,
    numbers: Iterable[int],
    begin: int,
    end: int,
) -> Started:
    """Folds the segments `numbers` of a partition up to offset `end`, and compares them with the diff topic.

    `begin` is the partition's first offset. A segment without a base offset starts there: empty, or with the diff
    topic's entries where earlier records are gone. One with a reset open at `end` gets no rows until the reset ends.

    Raises `ResetMismatch` where a reset does not match, RecordError for a foreign record.
    """
    folds: dict[int, StartFold] = {}
    segments: dict[int, Segment] = {}
    lost = []
    for number in numbers:
        base = positions.base.get(number)
        if base is not None and base < begin:
            lost.append(number)
            segments[number] = Segment(open=waiting())
        else:
            folds[number] = StartFold(number, base, positions.open.get(number))
    lowest = min((positions.base.get(n, begin) for n in folds), default=end)
    old = tables.entries(partition)
    if begin > 0:
        for number in folds.keys() - positions.base.keys():
            folds[number].entries.update(old.get(number, {}))
    for record in tables.records(partition, lowest, end):
        fold = folds.get(record.header.segment)
        if fold is not None:
            try:
                fold.apply(record, tables)
            except RecordError as error:
                place = error.at(record.topic, record.partition, record.offset)
                closing = fold.closing(record)
                raise (place if closing is None else ResetMismatch(closing, place)) from error
    rows: list[Row] = []
    now_us = time.time_ns() // 1000
    for number, fold in sorted(folds.items()):
        fold.finish()
        rows += [_captured(record) for record in fold.undecodable]
        opened = fold.open
        kept = None
        if opened is not None:
            position = position_bytes(fold.begin_position)
            kept = Open(opened.reset_id, opened.reason, fold.begin, position, position_bytes(opened.mark))
        else:
            fold.keep(old.get(number, {}))
            for change in difference(old.get(number, {}), fold.entries, fold.mark):
                row = renderer.difference(change, partition, max(end - 1, 0), len(rows), number, START_REASON, now_us)
                rows.append(row)
        if fold.mark != START or kept is not None:
            segments[number] = Segment(position_bytes(fold.mark), kept)
    return Started(segments, rows, lost)


def _captured(record: Record) -> Row:
    """A captured change as a row of a batch, whose writer raises what is wrong with it."""
    return Row(record.partition, record.offset, 0, CHANGE, "", pack(*record.header), record.key, record.value)


class ResetMismatch(Exception):
    """A reset does not match its count or digest; `error` names the place of its end."""

    def __init__(self, ended: Ended, error: RecordError) -> None:
        super().__init__(str(error))
        self.ended, self.error = ended, error


def reads_from(before: Segment | None, begin: int) -> int:
    """The offset from which to read a segment whose reset ends in a batch that begins at offset `begin`."""
    opened = None if before is None else before.open
    return begin if opened is None or opened.begin < 0 else min(begin, opened.begin + 1)


def resets(
    tables: Tables,
    renderer: Renderer,
    partition: int,
    before: Mapping[int, Segment],
    ended: list[Ended],
    void: frozenset[tuple[int, int]],
    begin: int,
) -> list[Row]:
    """The rows of the resets that end in a batch, which begins at offset `begin` of the partition.

    Each segment is read by the reference reader, from the diff topic's entries and the mark before the batch; a reset
    that was open before the batch is read from its begin.

    Raises `ResetMismatch` where a reset does not match, RecordError for a foreign record.
    """
    wanted = frozenset(e.segment for e in ended)
    last = max(e.end for e in ended)
    ends = {(e.segment, e.end): e for e in ended}
    old = tables.entries(partition, wanted)
    readers: dict[int, SegmentReader] = {}
    froms = {number: reads_from(before.get(number), begin) for number in wanted}
    for number in wanted:
        state = before.get(number, Segment())
        reader = readers[number] = SegmentReader(number, position_tuple(state.mark), old.get(number, {}))
        if state.open is not None:
            reader.open = OpenReset(state.open.reset_id, state.open.reason, position_tuple(state.open.position))
    rows: list[Row] = []
    for record in tables.records(partition, min(froms.values()), last + 1):
        number = record.header.segment
        if number not in wanted or record.offset < froms[number]:
            continue
        reader = readers[number]
        if (number, record.offset) in void:
            reader.mark = max(reader.mark, record.header.position)
            reader.open = OpenReset("", "lost", START)
            continue
        try:
            changes = reader.apply(record, tables.entry)
        except RecordError as error:
            if isinstance(error, Undecodable) and (reader.open is None or not reader.open.reset_id):
                # The key keeps its last good value; a segment that waits keeps nothing.
                (reader.open or reader).mark = record.header.position
                continue
            closing = ends.get((number, record.offset))
            place = error.at(record.topic, record.partition, record.offset)
            raise (place if closing is None else ResetMismatch(closing, place)) from error
        closing = ends.get((number, record.offset))
        for change in changes:
            if change.cause != CHANGE and closing is not None:
                moment_us, ordinal = closing.moment_ms * 1000, len(rows)
                row = renderer.difference(change, partition, closing.end, ordinal, number, closing.reason, moment_us)
                rows.append(row)
    return rows
