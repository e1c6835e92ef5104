"""What READ tells of a reset that it finds, whole, torn, or begun before where reading starts; of what is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.ledger import CommittedRun
from deelog_connector.core.scan import SegmentScan, reason_to_reset
from deelog_schemas.header import Kind

BEGIN, ROW, END = Kind.RESET_BEGIN, Kind.READ, Kind.RESET_END


def lacks(kinds: list[tuple[Kind, bytes]], *, from_begin: bool) -> bool:
    """Whether records are missed, of these kinds and keys; the reset has two rows, at position (1, 1)."""
    scan = SegmentScan(((1, 9),), from_base=from_begin)
    for offset, (kind, key) in enumerate(kinds):
        control: dict[str, Any] = {"count": 2} if kind is END else {}
        sequence = 1 if kind is not Kind.CHANGE else 1 + offset
        scan.apply(ScannedRecord(offset, kind, 0, 1, sequence, key, control))
    return scan.is_truncated


@pytest.mark.parametrize(
    ("kinds", "from_begin", "torn"),
    [
        ([(BEGIN, b""), (ROW, b"a"), (ROW, b"b"), (END, b"")], True, False),
        ([(BEGIN, b""), (ROW, b"a"), (END, b"")], True, True),
        ([(BEGIN, b""), (ROW, b"a"), (END, b""), (Kind.CHANGE, b"b")], True, False),  # compaction may have taken it
        ([(ROW, b"a"), (ROW, b"b"), (END, b"")], True, True),  # no reader takes rows without a begin
        ([(ROW, b"b"), (END, b"")], False, False),  # reading starts in its middle: nothing can be said
        ([(ROW, b"b"), (END, b""), (BEGIN, b""), (ROW, b"a"), (END, b"")], False, True),
        ([(BEGIN, b""), (ROW, b"a"), (END, b""), (BEGIN, b""), (ROW, b"a"), (ROW, b"b"), (END, b"")], True, False),
    ],
)
def test_what_is_missed_of_a_reset(kinds: list[tuple[Kind, bytes]], from_begin: bool, torn: bool) -> None:
    assert lacks(kinds, from_begin=from_begin) is torn


TAKEN = Kind.TOMBSTONE


@pytest.mark.parametrize(
    ("kinds", "torn"),
    [
        ([(TAKEN, b"a"), (TAKEN, b"b"), (END, b"")], False),
        ([(TAKEN, b"a"), (TAKEN, b"a"), (END, b"")], True),  # one key, by an envelope and a null value
        ([(TAKEN, b"b"), (END, b"")], True),
        ([(TAKEN, b"b"), (END, b""), (Kind.CHANGE, b"a")], False),  # compaction may have taken it
        ([(TAKEN, b"a"), (TAKEN, b"c"), (ROW, b"c"), (END, b"")], True),  # that of a row is among the rows
        ([(TAKEN, b"a"), (TAKEN, b"b"), (TAKEN, b"c"), (ROW, b"c"), (END, b"")], False),
        ([(END, b""), (TAKEN, b"a"), (TAKEN, b"b")], True),  # tombstones of changes are nobody's
    ],
)
def test_what_is_missed_of_what_a_reset_takes_back(kinds: list[tuple[Kind, bytes]], torn: bool) -> None:
    scan = SegmentScan(((1, 9),), from_base=True)
    scan.apply(ScannedRecord(0, BEGIN, 0, 1, 1, b"", {}))
    control = {"count": sum(kind is ROW for kind, _ in kinds), "taken_back": 2}
    for offset, (kind, key) in enumerate(kinds, 1):
        sequence = 1 + offset if kind is Kind.CHANGE else 1
        scan.apply(ScannedRecord(offset, kind, 0, 1, sequence, key, control if kind is END else {}))
    assert scan.is_truncated is torn


@pytest.mark.parametrize(
    ("runs", "missed"),
    [
        ([CommittedRun(-1, -1, 3, 10)], False),
        ([CommittedRun(-1, -1, 4, 10)], True),
        ([CommittedRun(-1, -1, 2, 11)], False),
        ([CommittedRun(-1, -1, 2, 12)], True),  # those below are of an earlier time
        ([CommittedRun(-1, -1, 1, 10), CommittedRun(-1, -1, 2, 11)], False),
        ([CommittedRun(-1, -1, 2, 10), CommittedRun(-1, -1, 2, 11)], True),  # no row counts twice
    ],
)
def test_what_is_missed_of_an_incremental_snapshot(runs: list[CommittedRun], missed: bool) -> None:
    scan = SegmentScan(((1, 9),), runs=runs)
    for offset, kind in enumerate((ROW, ROW, ROW, BEGIN, ROW), 10):  # the last one is a reset's
        scan.apply(ScannedRecord(offset, kind, 0, 1, 1, b"%d" % offset, {}))
    assert scan.is_truncated is missed


def skipped(offset: int, epoch: int, first: int, last: int) -> ScannedRecord:
    return ScannedRecord(offset, Kind.SKIPPED, 0, epoch, last, b"", {"first": first})


def test_what_was_skipped_is_written_and_not_missed() -> None:
    scan = SegmentScan(((1, 9),), expected=6, runs=[CommittedRun(1, 6, 6, 0)])
    scan.apply(ScannedRecord(0, Kind.CHANGE, 0, 1, 1, b"a", {}))
    assert scan.is_truncated
    scan.apply(skipped(1, 1, 2, 5))
    assert scan.is_truncated  # the last one is not there yet
    scan.apply(skipped(2, 1, 6, 6))
    assert not scan.is_truncated
    assert (scan.written, scan.phantoms, reason_to_reset(scan, 7, None, False)) == (6, set(), None)


def test_of_a_run_beyond_the_history_nothing_is_written_and_no_key_is_a_phantom() -> None:
    scan = SegmentScan(((1, 3), (3, 4)), runs=[CommittedRun(4, 6, 3, 0, known=False)])
    scan.apply(skipped(0, 1, 2, 6))
    assert (scan.written, scan.sequences, scan.sequences_beyond, scan.ahead) == (3, {2, 3}, {4, 5, 6}, (1, 6))
    scan.apply(skipped(1, 2, 4, 4))  # an epoch that this node never heard of
    assert (scan.written, scan.ahead, scan.phantoms, scan.is_truncated) == (3, (2, 4), set(), False)
