"""READ's results: resets that are complete, torn, or begun before the first offset read; skipped operations."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.ledger import CommittedRun, Inherited
from deelog_connector.core.scan import SegmentScan, reason_to_reset
from deelog_schemas.header import Kind
from deelog_schemas.positions import PositionState

BEGIN, ROW, END = Kind.RESET_BEGIN, Kind.READ, Kind.RESET_END


def lacks(kinds: list[tuple[Kind, bytes]], *, from_begin: bool) -> bool:
    """Whether READ misses records in a log of these kinds and keys. The reset has two rows, at position (1, 1)."""
    scan = SegmentScan(((1, 9),), from_base=from_begin)
    for offset, (kind, key) in enumerate(kinds):
        control: dict[str, Any] = {"id": 7, "count": 2} if kind is END else {"id": 7}
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


def test_an_end_closes_only_its_own_begin() -> None:
    scan = SegmentScan(((1, 9),))
    for offset, (kind, reset_id) in enumerate(((BEGIN, 7), (ROW, 0), (END, 8))):
        scan.apply(ScannedRecord(offset, kind, 0, 1, 1, b"a", {"id": reset_id, "count": 1}))
    assert (scan.is_truncated, scan.complete_resets) == (True, {})


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
    scan.apply(ScannedRecord(0, BEGIN, 0, 1, 1, b"", {"id": 7}))
    control = {"id": 7, "count": sum(kind is ROW for kind, _ in kinds), "taken_back": 2}
    for offset, (kind, key) in enumerate(kinds, 1):
        sequence = 1 + offset if kind is Kind.CHANGE else 1
        scan.apply(ScannedRecord(offset, kind, 0, 1, sequence, key, control))
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
        ([CommittedRun(-1, -1, 3, 10), CommittedRun(1, 1, 1, 10)], False),  # changes are looked for by themselves
    ],
)
def test_what_is_missed_of_an_incremental_snapshot(runs: list[CommittedRun], missed: bool) -> None:
    scan = SegmentScan(((1, 9),), runs=runs)
    for offset, kind in enumerate((ROW, ROW, ROW, Kind.CHANGE, BEGIN, ROW), 10):  # the last one is a reset's
        scan.apply(ScannedRecord(offset, kind, 0, 1, 1, b"%d" % offset, {"id": 7}))
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
    assert (scan.written, scan.phantoms, reason_to_reset(scan, 7, None)) == (6, set(), None)


def test_of_a_run_beyond_the_history_nothing_is_written_and_no_key_is_a_phantom() -> None:
    scan = SegmentScan(((1, 3), (3, 4)), runs=[CommittedRun(4, 6, 3, 0, known=False)])
    scan.apply(skipped(0, 1, 2, 6))
    assert (scan.written, scan.sequences, scan.sequences_beyond, scan.ahead) == (3, {2, 3}, {4, 5, 6}, (1, 6))
    scan.apply(skipped(1, 2, 4, 4))  # an epoch that this node never heard of
    assert (scan.written, scan.ahead, scan.phantoms, scan.is_truncated) == (3, (2, 4), set(), False)


def read(scan: SegmentScan, *records: tuple[Kind, int, int, bytes]) -> SegmentScan:
    """Folds records of these kinds, epochs, sequences and keys; an end has the rows that were read."""
    rows = 0
    for offset, (kind, epoch, sequence, key) in enumerate(records):
        rows = 0 if kind is BEGIN else rows + (kind is ROW)
        scan.apply(ScannedRecord(offset, kind, 0, epoch, sequence, key, {"id": 7, "count": rows}))
    return scan


CHANGE = Kind.CHANGE
HISTORY = ((1, 3), (4, 6))


def test_changes_beyond_the_history_are_phantoms_until_their_key_is_written_again() -> None:
    scan = read(SegmentScan(HISTORY), (CHANGE, 1, 3, b"a"), (CHANGE, 1, 4, b"b"), (CHANGE, 2, 4, b"c"))
    assert (scan.written, scan.phantoms, scan.ahead) == (3, {b"b", b"c"}, (2, 4))
    assert (scan.sequences, scan.sequences_beyond) == ({3}, {4})
    read(scan, (CHANGE, 4, 5, b"b"))
    assert (scan.written, scan.phantoms, scan.sequences) == (5, {b"c"}, {3, 5})


@pytest.mark.parametrize(
    ("sequences", "reset_at", "written", "gaps"),
    [
        ({1, 2, 3}, -1, 3, []),
        ({0, 1, 2, 6, 7}, 0, 7, [(6, 3)]),
        ({2, 5, 7}, -1, 7, [(7, 4)]),
        ({1, 2, 9, 11}, 8, 11, [(11, 1)]),  # what is below a reset does not count
        ({1, 2, 5}, -1, 2, []),
        (set(), -1, 0, []),
        ({8}, 8, 8, []),
        ({1, 5, 7, 11, 12}, -1, 12, [(10, 6)]),  # of 8, 9 and 10 the last position says that two gave way
        ({1, 5, 7, 8, 11, 12}, -1, 12, [(11, 6)]),
        ({1, 5, 7, 8, 9, 10}, -1, 10, [(7, 4)]),
        ({4, 11, 12}, -1, 12, [(10, 8)]),  # a gap of which a part is below
        ({1, 2, 3, 4, 5, 6, 7, 9, 11, 12}, -1, 12, [(11, 2)]),
        ({1, 2, 3, 4, 5, 6, 7, 9, 11, 13}, -1, 13, [(11, 2)]),
    ],
)
def test_what_is_not_there_has_given_way(
    sequences: set[int], reset_at: int, written: int, gaps: list[tuple[int, int]]
) -> None:
    position = PositionState(2, 14, 0, 7, 11, 2, 0, 0, "t", "n0@5")
    assert (position.read_from_sequence, position.coalesced) == (7, 2)
    assert SegmentScan(HISTORY, sequences=sequences, reset_at=reset_at).gaps(written, -1, position) == gaps


def test_what_is_not_read_has_not_given_way() -> None:
    position = PositionState(2, 14, 0, 7, 11, 2, 0, 0, "t", "n0@5")
    assert SegmentScan(HISTORY, sequences={5, 7, 9}).gaps(9, 4, position) == [(9, 2)]


def test_what_retention_has_deleted_is_counted_at_once() -> None:
    position = PositionState(2, 10**12 + 9, 0, 10**12, 11, 2, 0, 0, "t", "n0@5")
    scan = SegmentScan(HISTORY, sequences={10**12 - 1, 10**12 + 4})
    assert scan.gaps(10**12 + 4, -1, position) == [(10**12 + 3, 10**12 + 1)]


def test_without_a_position_nothing_has_given_way() -> None:
    assert SegmentScan(HISTORY, sequences={1, 4}).gaps(4, -1, None) == []


def test_a_reset_makes_phantoms_good_unless_it_ends_beyond_the_history() -> None:
    phantom = (CHANGE, 2, 4, b"a")
    scan = read(SegmentScan(HISTORY), phantom, (BEGIN, 4, 3, b""))
    assert scan.open_reset
    read(scan, (END, 4, 4, b""))
    assert (scan.phantoms, scan.open_reset, scan.end_beyond, scan.written, scan.reset_at) == (set(), False, False, 4, 4)
    scan = read(SegmentScan(HISTORY), phantom, (BEGIN, 4, 3, b""), (END, 5, 9, b""))
    assert (scan.phantoms, scan.open_reset, scan.end_beyond, scan.written) == ({b"a"}, False, True, None)
    assert scan.reset_at == 9
    assert read(scan, (BEGIN, 1, 3, b""), (END, 1, 3, b"")).reset_at == 3  # the last one's


def claim(scan: SegmentScan, kind: Kind, epoch: int, member: str) -> None:
    scan.apply(ScannedRecord(0, kind, 0, epoch, 0, b"", {"epoch": epoch, "member": member}))


def test_who_wrote_in_an_epoch_is_who_was_active_in_it() -> None:
    scan = read(SegmentScan(()), (Kind.CHANGE, 3, 1, b"k"))
    assert (scan.writers, scan.is_empty) == ({3: ""}, False)
    claim(scan, Kind.CLAIM, 4, "n1@1")
    assert scan.writers == {3: ""}  # who claims has written nothing yet
    claim(scan, Kind.ACTIVE, 4, "n1@1")
    claim(scan, Kind.RELEASE, 5, "n2@1")
    claim(scan, Kind.ACTIVE, 3, "n3@1")
    read(scan, (Kind.CHANGE, 3, 2, b"k"), (Kind.READ, 6, 2, b"k"))
    assert scan.writers == {3: "n3@1", 4: "n1@1", 5: "n2@1", 6: ""}


def test_markers_alone_are_no_operations() -> None:
    scan = SegmentScan(())
    claim(scan, Kind.CLAIM, 4, "n1@1")
    claim(scan, Kind.ACTIVE, 4, "n1@1")
    assert scan.is_empty
    assert not read(SegmentScan(((4, 3),)), (Kind.CHANGE, 4, 1, b"k")).is_empty


def test_an_active_ends_lower_claims_and_a_release_its_members() -> None:
    scan = SegmentScan(HISTORY)
    claim(scan, Kind.CLAIM, 1, "n0@1")
    claim(scan, Kind.CLAIM, 2, "n1@1")
    claim(scan, Kind.CLAIM, 3, "n2@1")
    claim(scan, Kind.ACTIVE, 2, "n1@1")
    assert scan.claims == {(2, "n1@1"), (3, "n2@1")}
    claim(scan, Kind.RELEASE, 2, "n1@1")
    assert scan.claims == {(3, "n2@1")}


@pytest.mark.parametrize(
    ("expected", "anywhere", "truncated"), [(3, -1, False), (4, -1, True), (-1, 5, False), (-1, 6, True)]
)
def test_the_position_that_is_named_must_be_read(expected: int, anywhere: int, truncated: bool) -> None:
    scan = SegmentScan(((1, 3),), expected=expected, expected_anywhere=anywhere)
    assert read(scan, (CHANGE, 1, 3, b"a"), (CHANGE, 2, 5, b"a")).is_truncated is truncated


@pytest.mark.parametrize(
    ("run", "truncated"),
    [
        (CommittedRun(1, 3, 2, 0), False),
        (CommittedRun(1, 3, 3, 0), True),
        (CommittedRun(1, 2, 2, 0), True),
        (CommittedRun(4, 5, 1, 0, known=False), False),
        (CommittedRun(4, 5, 2, 0, known=False), True),
        (CommittedRun(3, 4, 2, 0, known=None), False),  # 3 within the history, 4 beyond it
        (CommittedRun(2, 4, 3, 0, known=None), True),
        (CommittedRun(4, 4, 0, 3), False),  # the reset that begins at offset 3
        (CommittedRun(4, 4, 0, 4), True),
        (CommittedRun(5, 5, 0, 3), True),
    ],
)
def test_what_was_committed_must_be_found(run: CommittedRun, truncated: bool) -> None:
    scan = SegmentScan(HISTORY, runs=[run])
    records = ((CHANGE, 1, 1, b"a"), (CHANGE, 1, 3, b"b"), (CHANGE, 2, 4, b"c"), (BEGIN, 4, 4, b""), (END, 4, 4, b""))
    assert read(scan, *records).is_truncated is truncated


def test_what_another_owner_committed_is_looked_for_where_the_leader_has_changed() -> None:
    def scan(unverified: bool, **fields: Any) -> SegmentScan:
        inherited, unverified_from = [Inherited(1, 3, 7, 3)], 7 if unverified else None
        found = SegmentScan(HISTORY, inherited=inherited, unverified_from=unverified_from, **fields)
        return read(found, (CHANGE, 1, 3, b"a"))

    assert SegmentScan(HISTORY, expected=3).inherited_runs() == []
    assert scan(False).inherited_runs() == [CommittedRun(2, 3, 2, 7)]
    assert not scan(False, expected=3).is_truncated
    assert scan(True, expected=3).is_truncated  # 2 is missing
    # What it has written since its position is looked for again, too.
    assert scan(False).to_find_again(9, -1) == [CommittedRun(2, 3, 2, 7), CommittedRun(3, 3, 1, 9)]
    after_reset = read(scan(True, expected=3), (BEGIN, 1, 2, b""), (END, 1, 2, b""))
    assert after_reset.inherited_runs() == [CommittedRun(3, 3, 1, 7)]
    assert not after_reset.is_truncated


@pytest.mark.parametrize(("unverified_from", "truncated"), [(None, False), (3, False), (2, True), (-1, True)])
def test_a_reset_of_which_rows_were_cut_away_is_not_whole_because_other_keys_changed(
    unverified_from: int | None, truncated: bool
) -> None:
    """Where nobody has looked since, changes are no sign of compaction."""
    scan = SegmentScan(HISTORY, unverified_from=unverified_from)
    begin = ScannedRecord(2, Kind.RESET_BEGIN, 1, 1, 0, b"", {"id": 7})
    for record in (begin, ScannedRecord(5, Kind.RESET_END, 1, 1, 0, b"", {"id": 7, "count": 1})):
        scan.apply(record)
    assert scan.is_truncated
    assert read(scan, (CHANGE, 1, 2, b"a")).is_truncated is truncated
    assert not read(scan, (ROW, 1, 2, b"b")).is_truncated  # a row of a snapshot may come as late as compaction


def test_what_was_found_is_looked_for_again() -> None:
    runs = [CommittedRun(1, 3, 3, 4), CommittedRun(2, 2, 0, 5), CommittedRun(-1, -1, 2, 6)]
    scan = SegmentScan(HISTORY, runs=runs)
    assert scan.to_find_again(9, -1) == runs[1:2]
    # Of rows also those that nobody counted: they must not stand for others later.
    read(scan, (ROW, 1, 0, b"x"), (ROW, 1, 0, b"y"), (ROW, 1, 0, b"x"))
    assert scan.to_find_again(9, -1) == [runs[1], CommittedRun(-1, -1, 3, 0)]
    scan = SegmentScan(HISTORY, runs=runs[:2])
    read(scan, (CHANGE, 1, 1, b"a"), (BEGIN, 1, 1, b""), (END, 1, 1, b""), (CHANGE, 1, 2, b"a"), (CHANGE, 4, 5, b"b"))
    assert scan.to_find_again(9, -1) == [runs[1], CommittedRun(2, 5, 2, 9), CommittedRun(1, 1, 0, 1)]
    # Below `read_from`, which need not be read, others have vouched for what is there.
    assert scan.to_find_again(9, 2) == [runs[1], CommittedRun(5, 5, 1, 9), CommittedRun(1, 1, 0, 1)]
    assert scan.to_find_again(9, 5) == [runs[1], CommittedRun(1, 1, 0, 1)]


@pytest.mark.parametrize(
    ("scan", "complete_from", "owed", "reason"),
    [
        (SegmentScan((), 4), 5, None, None),
        (SegmentScan((), 4), 6, None, "hole"),
        (SegmentScan(()), 1, None, "unknown_history"),
        (SegmentScan((), 4, end_beyond=True), 5, None, "end_beyond"),
        (SegmentScan((), 4, open_reset=True, end_beyond=True), 5, None, "open_reset"),
        (SegmentScan((), 4, expected=5, open_reset=True), 5, None, "truncated"),
        (SegmentScan((), 4, expected=5), 5, "signal", "signal"),
    ],
)
def test_why_a_segment_is_reset(scan: SegmentScan, complete_from: int, owed: str | None, reason: str | None) -> None:
    assert reason_to_reset(scan, complete_from, owed) == reason


def test_who_claims_or_is_active_with_its_spare_producer() -> None:
    scan = SegmentScan(((7, 0),))

    def read(kind: Kind, member: str, **fields: Any) -> set[str]:
        scan.apply(ScannedRecord(0, kind, 0, 7, 0, b"", {"epoch": 7, "member": member, **fields}))
        return set(scan.spares)

    assert read(Kind.CLAIM, "n1@1") == set()
    assert read(Kind.CLAIM, "n1@1", spare=True) == {"n1@1"}
    assert read(Kind.ACTIVE, "n2@1", spare=True) == {"n1@1", "n2@1"}
    assert read(Kind.ACTIVE, "n1@1") == {"n2@1"}
