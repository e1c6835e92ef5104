"""Which records of a change topic count: the reading rule by header alone, with one mark per segment.

Records of a segment are in order and fenced, so the highest position so far, the mark, tells a repeat from a new
record. A walk is of one whole Kafka partition, in offset order. The same object walks a batch that is planned and one
whose rows go to a sink, so that the two agree. `deelog_schemas.fold.SegmentReader` is its reference: for the same
records both give the same marks, repeats and resets.

`steps` takes an Arrow batch. Segments with new changes only, nearly all of them nearly always, are walked in numpy at
once (0.3 µs per record). Of the others, so is each run of records between two control records that has no repeat, such
as the rows of a reset. The rest goes through `step`, record by record (4 µs).
Alternatives: docs/decisions.md, "A mark per segment".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, POSITION_BYTES, SIZE, VERSION, Kind
from deelog_schemas.keys import partition_of
from deelog_schemas.records import Record, decode

ZERO: Final = bytes(12)
"""The lowest position, as in a header: epoch and sequence, big-endian."""

_CHANGE, _TOMBSTONE, _READ = int(Kind.CHANGE), int(Kind.TOMBSTONE), int(Kind.READ)
_BEGIN, _END, _SKIPPED = int(Kind.RESET_BEGIN), int(Kind.RESET_END), int(Kind.SKIPPED)


def position_bytes(position: tuple[int, int]) -> bytes:
    """`(epoch, sequence)` as twelve bytes of the same order."""
    return position[0].to_bytes(4, "big") + position[1].to_bytes(8, "big")


def position_tuple(raw: bytes) -> tuple[int, int]:
    """The reverse of `position_bytes`."""
    return int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big")


@dataclass(slots=True)
class Open:
    """A reset whose end was not read yet."""

    reset_id: str
    """Empty where records of the segment were lost: no end closes it, and the segment waits for the next begin."""
    reason: str
    begin: int
    """The offset of its begin."""
    position: bytes
    """The position of its begin."""
    mark: bytes
    """The highest position inside."""


@dataclass(slots=True)
class Segment:
    """The state of a segment between two batches."""

    mark: bytes = ZERO
    open: Open | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A reset that ended in this batch: `begin` and `end` are offsets."""

    segment: int
    reset_id: str
    reason: str
    begin: int
    end: int
    moment_ms: int = 0
    """Kafka's timestamp of the end, 0 where only the reset's name matters."""


Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def matrix(headers: pa.BinaryArray) -> npt.NDArray[np.uint8] | None:
    """Headers as rows of bytes, without a copy; None where one does not have our header's length."""
    if headers.null_count or not len(headers):
        return None
    _, ends, data = headers.buffers()
    bounds = np.frombuffer(ends, np.int32)[headers.offset : headers.offset + len(headers) + 1]
    if not (np.diff(bounds) == SIZE).all():
        return None
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].reshape(-1, SIZE)


def number_of(raw: npt.NDArray[np.uint8], first: int, kind: str) -> npt.NDArray[Any]:
    """A big-endian column of the matrix."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(raw[:, first : first + width]).view(kind)[:, 0].astype(kind[1:])


def ours(raw: npt.NDArray[np.uint8]) -> Flags:
    """Which headers are of this version, whatever their kind."""
    flags: Flags = (raw[:, 0] == VERSION) & (raw[:, 2] == 0) & (raw[:, 3] == 0)
    return flags


def rises(kinds: npt.NDArray[np.uint8], raw: npt.NDArray[np.uint8], mark: bytes) -> bool:
    """Whether all records are changes, tombstones and rows of an open reset, without a repeat.

    `kinds` and `raw` are the kinds and headers of one segment's records, `mark` is the position before the first. A
    row and a tombstone may have the position of the record before them.
    """
    epochs, sequences = number_of(raw, 8, ">u4"), number_of(raw, 12, ">u8")
    epoch, sequence = position_tuple(mark)
    before_epoch, before_sequence = np.append(epoch, epochs[:-1]), np.append(np.uint64(sequence), sequences[:-1])
    above, level = _compared(epochs, sequences, before_epoch, before_sequence)
    return bool(((above | (level & (kinds != _CHANGE))) & (kinds >= _CHANGE) & (kinds <= _READ)).all())


def _compared(
    epochs: npt.NDArray[Any], sequences: npt.NDArray[Any], before_epochs: Any, before_sequences: Any
) -> tuple[Flags, Flags]:
    """Which positions are above the ones before them, and which are equal."""
    level = epochs == before_epochs
    above = (epochs > before_epochs) | (level & (sequences > before_sequences))
    return above, level & (sequences == before_sequences)


def _by_segment(raw: npt.NDArray[np.uint8], chosen: Flags) -> Iterator[Numbers]:
    """The indices of the chosen rows, an array per segment, in order."""
    rows = np.flatnonzero(chosen)
    segments = number_of(raw[rows], 4, ">u4")
    order = np.argsort(segments, kind="stable")
    if len(rows):
        yield from np.split(rows[order], np.flatnonzero(np.diff(segments[order])) + 1)


def _around(chosen: Flags) -> Numbers:
    """Where to split so that each chosen row is alone."""
    at = np.flatnonzero(chosen)
    return np.union1d(at, at + 1)


def waiting() -> Open:
    """The open reset of a segment that waits for a new one."""
    return Open("", "lost", -1, ZERO, ZERO)


class PartitionWalk:
    """Walks one partition.

    `segments` is the state before the batch; it is not changed. `void` has ends, as (segment, offset), that close
    nothing: their reset did not match its count and digest, or was incomplete, and the segment waits for another one.
    `partitions` and `count` (`segment.count`, 0: not checked) say which segments belong on the partition.
    """

    def __init__(
        self, segments: Mapping[int, Segment], void: Iterable[tuple[int, int]] = (), partitions: int = 1, count: int = 0
    ) -> None:
        self._before = segments
        self._void = frozenset(void)
        self._partitions, self._count = partitions, count
        self.now: dict[int, Segment] = {}
        """The state of each segment that had a record."""
        self.ended: list[Ended] = []
        self.records = self.kept = self.repeats = 0
        self.row = 0
        """The row for which `steps` raised."""

    def steps(self, partition: int, offsets: Numbers, headers: pa.BinaryArray, controls: pa.Array) -> Flags:
        """`step` for each row of a batch, in order; RecordError for the row `row`."""
        raw = matrix(headers)
        skipped = None if raw is None else self._skipped(partition, raw, controls)
        if skipped is None:
            return self._steps(partition, offsets, headers, controls)
        counts = np.zeros(len(offsets), np.bool_)
        left = np.flatnonzero(~skipped)
        self.records += int(skipped.sum())
        rows = pa.array(left)
        try:
            counts[left] = self._steps(partition, offsets[left], headers.take(rows), controls.take(rows))
        except RecordError:
            self.row = int(left[self.row])
            raise
        return counts

    def _skipped(self, partition: int, raw: npt.NDArray[np.uint8], controls: pa.Array) -> Flags | None:
        """Which rows are SKIPPED records, of which a filtered topic has many; None where there are none.

        They move no mark. Their content matters to owners only and is not decoded.
        """
        flags: Flags = ours(raw) & (raw[:, 1] == _SKIPPED)
        if not flags.any():
            return None
        flags &= controls.is_valid().to_numpy(zero_copy_only=False)
        for number in np.unique(number_of(raw[flags], 4, ">u4")).tolist():
            if self._state(number, partition) is None:
                return None  # `step` raises what is wrong
        return flags

    def _steps(self, partition: int, offsets: Numbers, headers: pa.BinaryArray, controls: pa.Array) -> Flags:
        counts = np.zeros(len(offsets), np.bool_)
        raw = matrix(headers)
        odd = np.ones(len(offsets), np.bool_) if raw is None else self._plain(partition, raw, counts)
        if raw is None or not ours(raw).all():
            for row in np.flatnonzero(odd).tolist():
                self._step(partition, row, offsets, headers, controls, counts)
            return counts
        for rows in _by_segment(raw, odd):
            for run in np.split(rows, _around(raw[rows, 1] > _READ)):
                if len(run) and not self._run(raw[run], partition):
                    for row in run.tolist():
                        self._step(partition, row, offsets, headers, controls, counts)
        self.ended.sort(key=lambda one: one.end)
        return counts

    def _step(
        self, partition: int, row: int, offsets: Numbers, headers: pa.BinaryArray, controls: pa.Array, counts: Flags
    ) -> None:
        self.row = row
        counts[row] = self.step(partition, int(offsets[row]), headers[row].as_py(), controls[row].as_py())

    def _run(self, raw: npt.NDArray[np.uint8], partition: int) -> bool:
        """Walks records of a segment inside an open reset, if there is no repeat among them; whether it did."""
        segment = self._state(int(number_of(raw[:1], 4, ">u4")[0]), partition)
        opened = None if segment is None else segment.open
        if opened is None or not rises(raw[:, 1], raw, opened.mark):
            return False
        opened.mark = raw[-1, POSITION_BYTES].tobytes()
        self.records += len(raw)
        return True

    def _plain(self, partition: int, raw: npt.NDArray[np.uint8], counts: Flags) -> Flags:
        """Walks the segments that have only new changes in this batch; which rows are left."""
        kinds = raw[:, 1]
        plain = ours(raw) & ((kinds == _CHANGE) | (kinds == _TOMBSTONE))
        segments = number_of(raw, 4, ">u4")
        order = np.argsort(segments, kind="stable")
        sorted_ = segments[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = sorted_[1:] != sorted_[:-1]
        starts = np.flatnonzero(first)
        run = np.cumsum(first) - 1
        epochs, sequences = number_of(raw, 8, ">u4")[order], number_of(raw, 12, ">u8")[order]
        before_epoch, before_sequence = np.empty_like(epochs), np.empty_like(sequences)
        before_epoch[1:], before_sequence[1:] = epochs[:-1], sequences[:-1]
        states = [self._state(number, partition) for number in sorted_[starts].tolist()]
        marks = [position_tuple(segment.mark) if segment is not None else (0, 0) for segment in states]
        before_epoch[starts] = [epoch for epoch, _ in marks]
        before_sequence[starts] = [sequence for _, sequence in marks]
        above, level = _compared(epochs, sequences, before_epoch, before_sequence)
        # The tombstone after a delete has the delete's position.
        same = level & (kinds[order] == _TOMBSTONE)
        odd = np.array([segment is None or segment.open is not None for segment in states])
        odd[run[~(plain[order] & (above | same))]] = True
        settled = ~odd[run]
        counts[order[settled]] = above[settled]
        ends = np.append(starts[1:], len(order)) - 1
        for index in np.flatnonzero(~odd).tolist():
            segment = states[index]
            assert segment is not None
            segment.mark = raw[order[ends[index]], POSITION_BYTES].tobytes()
        self.records += int(settled.sum())
        self.kept += int(above[settled].sum())
        left = np.zeros(len(order), np.bool_)
        left[order[~settled]] = True
        return left

    def _state(self, number: int, partition: int) -> Segment | None:
        """A segment's state; None where it does not belong on the partition, for which `step` raises."""
        state = self.now.get(number)
        if state is None and self._fits(number, partition):
            state = self._first(number, partition)
        return state

    def step(self, partition: int, offset: int, raw: bytes | None, control: bytes | None) -> bool:
        """Whether the record at `offset` is a change that counts; RecordError for a foreign one (see `located`)."""
        if raw is None or len(raw) != SIZE or raw[0] != VERSION or raw[2] or raw[3]:
            _decoded("", partition, offset, raw, control)
            raise AssertionError("decode takes what the walk does not")
        kind = raw[1]
        number = int.from_bytes(raw[4:8], "big")
        segment = self.now.get(number)
        if segment is None:
            segment = self._first(number, partition)
        self.records += 1
        position = raw[POSITION_BYTES]
        if kind <= _READ and kind:
            return self._entry(segment, kind, position)
        content = _decoded("", partition, offset, raw, control).control
        if kind == _BEGIN:
            segment.mark = max(segment.mark, position)
            segment.open = Open(content["id"], content["reason"], offset, position, position)
        elif kind == _END:
            self._end(segment, number, offset, position, content["id"])
        # Claim, active and release do not move the mark: a new owner still writes operations of the old epoch.
        return False

    def _entry(self, segment: Segment, kind: int, position: bytes) -> bool:
        opened = segment.open
        mark = segment.mark if opened is None else opened.mark
        if kind == _READ:
            # Rows count only inside an open reset; when it ends, they are read from Kafka again.
            if opened is not None and position > mark:
                opened.mark = position
            return False
        if position <= mark:
            # The tombstone at exactly the mark belongs to the delete before it; anything else is a repeat.
            self.repeats += kind == _CHANGE or position < mark
            return False
        if opened is not None:
            opened.mark = position  # it is read from Kafka again when the reset ends
            return False
        segment.mark = position
        self.kept += 1
        return True

    def _end(self, segment: Segment, number: int, offset: int, position: bytes, reset_id: str) -> None:
        segment.mark = max(segment.mark, position)
        opened = segment.open
        if opened is None or opened.reset_id != reset_id:
            return  # an end closes only its own begin
        if (number, offset) in self._void:
            segment.open = waiting()
            return
        segment.mark = max(segment.mark, opened.mark)
        segment.open = None
        self.ended.append(Ended(number, reset_id, opened.reason, opened.begin, offset))

    def _fits(self, number: int, partition: int) -> bool:
        count = self._count
        return not count or (number < count and partition_of(number, self._partitions, count) == partition)

    def _first(self, number: int, partition: int) -> Segment:
        if not self._fits(number, partition):
            raise RecordError(
                f"segment {number} does not belong on this partition with segment.count={self._count}: the record was "
                "written with another segment.count or by something else"
            )
        before = self._before.get(number, Segment())
        opened = None if before.open is None else replace(before.open)
        segment = self.now[number] = Segment(before.mark, opened)
        return segment


def located(
    error: RecordError, topic: str, partition: int, offset: int, raw: bytes | None, control: bytes | None
) -> RecordError:
    """`error` with topic, partition and offset. Of a bad header it is the error that every reader raises."""
    try:
        _decoded(topic, partition, offset, raw, control)
    except RecordError as same:
        return same
    return error.at(topic, partition, offset)


def _decoded(topic: str, partition: int, offset: int, raw: bytes | None, control: bytes | None) -> Record:
    """The record as every reader decodes it, with empty key and value."""
    headers = [(HEADER_NAME, raw), (CONTROL_HEADER_NAME, control)]
    return decode(topic, partition, offset, b"", b"", [h for h in headers if h[1] is not None])
