"""What READ tells of a reset that it finds: whole, torn, or begun before where reading starts."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.scan import SegmentScan
from deelog_schemas.header import Kind

BEGIN, ROW, END = Kind.RESET_BEGIN, Kind.READ, Kind.RESET_END


def lacks(kinds: list[tuple[Kind, bytes]], *, from_begin: bool) -> bool:
    """Whether records are missed, of these kinds and keys; the reset has two rows, at position (1, 1)."""
    scan = SegmentScan(((1, 9),), from_begin=from_begin)
    for offset, (kind, key) in enumerate(kinds):
        control: dict[str, Any] = {"count": 2} if kind is END else {}
        sequence = 1 if kind is not Kind.CHANGE else 1 + offset
        scan.apply(ScannedRecord(offset, kind, 0, 1, sequence, key, control))
    return scan.lacks


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
