"""The fold of READ: what the change topic holds of one segment, in the eyes of a node with a given history.

Pure, so that the takeover, its tests and a model of it decide alike. One fold serves LOOK and READ: LOOK feeds it up
to one's own claim, READ goes on to one's own ACTIVE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.history import History, end_of
from deelog_schemas.header import Kind
from deelog_schemas.positions import PositionState, ResetState

Claimant = tuple[int, str]
"""`(epoch, member)`."""

_ALL: Final = 1 << 62
"""Of a reset whose begin is gone."""


class CommittedRun(NamedTuple):
    """Records that were committed, none of them below the offset.

    Number 0 stands for the end of a reset; `first` below 0 for rows of an incremental snapshot, which have no sequence
    of their own.
    """

    first: int
    last: int
    number: int
    offset: int
    known: bool = True
    """Within this node's history, or all of them beyond it."""


@dataclass(slots=True)
class SegmentScan:
    """What was read of one segment so far.

    `written` is the highest sequence within `history` that Kafka holds, None where nothing in it was ever written.
    `phantoms` are the keys of records beyond the history. `claims` are those since the last ACTIVE, and that one, but
    for those that a release ended.
    """

    history: History
    written: int | None = None
    phantoms: set[bytes] = field(default_factory=set)
    claims: set[Claimant] = field(default_factory=set)
    open_reset: bool = False
    end_beyond: bool = False
    found: set[int] = field(default_factory=set)
    """Sequences of the change records within `history`, and of what was skipped; `strange`: of those beyond it."""
    strange: set[int] = field(default_factory=set)
    ahead: tuple[int, int] = (0, 0)
    """The highest position beyond `history`."""
    top: int = -1
    """The highest sequence within `history` that was read; `last`: of all records."""
    last: int = -1
    rows: int | None = None
    """Of the reset whose begin was read last, at the offset `begin`."""
    begin: int = -1
    from_begin: bool = False
    """Whether reading starts where the last reset begins, or before: else its end may well come without a begin."""
    taken: set[bytes] = field(default_factory=set)
    """Keys that the reset whose begin was read last takes back, and does not tell of again."""
    beside: list[int] = field(default_factory=list)
    """Offsets of the rows that are of no reset."""
    torn: int = 0
    """Rows, and keys taken back, that the last reset lacks; `changed` are the keys that stand behind its end, for whose
    sake compaction may have taken rows away."""
    changed: set[bytes] = field(default_factory=set)
    whole: dict[int, int] = field(default_factory=dict)
    """By sequence, where the last reset begins that was read with all of its rows."""
    expected: int = -1
    """The sequence within `history` that must be read, or one above it; `told`: within or beyond."""
    told: int = -1
    runs: Sequence[CommittedRun] = ()
    """What this very node committed and must find."""
    others: tuple[int, int] | None = None
    """`(sequence, offset)`: above that sequence, and up to `expected` or `told`, all is somebody else's and stands at
    that offset or behind it."""
    unwatched: bool = False
    """Nobody has looked at that since the leader changed: every sequence of it must be found."""
    reset_at: int = -1
    """The sequence of the last reset's end."""

    def apply(self, record: ScannedRecord) -> None:
        """Folds the segment's next record."""
        kind, control = record.kind, record.control
        if kind is Kind.CLAIM:
            self.claims.add((control["epoch"], control["member"]))
        elif kind is Kind.ACTIVE:
            epoch = control["epoch"]
            # An ACTIVE ends no claim of a higher epoch.
            self.claims = {c for c in self.claims if c[0] > epoch} | {(epoch, control["member"])}
        elif kind is Kind.RELEASE:
            # CHECK release-is-final: its member writes nothing more before a claim that stands behind it.
            self.claims = {c for c in self.claims if c[1] != control["member"]}
        elif kind is Kind.RESET_BEGIN:
            self.open_reset, self.rows, self.begin = True, 0, record.offset
            self.taken.clear()
        elif self.rows is not None and kind in (Kind.READ, Kind.TOMBSTONE):
            if kind is Kind.READ:
                self.rows += 1
                self.taken.discard(record.key)  # its delete stood there for its row's sake, and may be compacted away
            else:
                self.taken.add(record.key)
        elif kind is Kind.READ:
            self.beside.append(record.offset)
            if self.torn:  # a row of an incremental snapshot takes a reset's row away as a change does
                self.changed.add(record.key)
        elif kind in (Kind.RESET_END, Kind.CHANGE):
            self._position(record)
        elif kind is Kind.SKIPPED:
            self._skipped(record)

    def _position(self, record: ScannedRecord) -> None:
        known = record.sequence <= end_of(self.history, record.epoch)
        self.last = max(self.last, record.sequence)
        if record.kind is Kind.RESET_END:
            # CHECK end-beyond-again: a reset whose end lies beyond this history is begun again.
            self.open_reset, self.end_beyond = False, not known
            # No reader sees a reset without its begin. Compaction takes begins away as well, long after: then this is
            # one reset too many.
            short = max(0, record.control.get("taken_back", 0) - len(self.taken))
            self.torn = self.from_begin * _ALL if self.rows is None else record.control["count"] - self.rows + short
            self.changed.clear()
            if not self.torn:
                self.whole[record.sequence] = self.begin
            self.rows = None
            if known:
                self.phantoms.clear()  # the reset told the truth about everything before it
        elif self.torn:
            self.changed.add(record.key)
        if known:
            self.written = max(self.written or 0, record.sequence)
            self.top = max(self.top, record.sequence)
            if record.kind is Kind.CHANGE:
                self.found.add(record.sequence)
                self.phantoms.discard(record.key)  # what stands behind it is the truth again
            else:
                self.reset_at = max(self.reset_at, record.sequence)
        elif record.kind is Kind.CHANGE:
            self.phantoms.add(record.key)
            self.strange.add(record.sequence)
            self.ahead = max(self.ahead, (record.epoch, record.sequence))

    def _skipped(self, record: ScannedRecord) -> None:
        """Operations that stand there and tell of no entry: none of them is missing, and none makes a phantom.

        Where the history ends among them, some lie within it and the others beyond.
        """
        first, end = record.control["first"], end_of(self.history, record.epoch)
        inside = range(first, min(record.sequence, end) + 1)
        beyond = range(max(first, end + 1), record.sequence + 1)
        self.last = max(self.last, record.sequence)
        if inside:
            self.written = max(self.written or 0, inside[-1])
            self.top = max(self.top, inside[-1])
            self.found.update(inside)
        if beyond:
            self.strange.update(beyond)
            self.ahead = max(self.ahead, (record.epoch, record.sequence))

    def inherited(self) -> list[CommittedRun]:
        """What somebody else has committed, and this node must find as long as nobody has looked at it."""
        if self.others is None:
            return []
        (above, offset), upto = self.others, max(self.expected, self.told)
        above = max(above, self.reset_at)
        return [CommittedRun(above + 1, upto, upto - above, offset, self.told < 0)] if upto > above else []

    def to_find_again(self, offset: int) -> list[CommittedRun]:
        """What was found, from `offset` on: a look at the log's end has not vouched for all of it yet."""
        found = [sequence for sequence in self.found if sequence > self.reset_at]
        again = [CommittedRun(min(found), max(found), len(found), offset)] if found else []
        return [*(run for run in self.runs if not run.number or run.first < 0), *again]

    @property
    def lacks(self) -> bool:
        """Whether records are gone that were committed: the log was cut behind where it is known to be whole."""
        runs = [*self.runs, *(self.inherited() if self.unwatched else ())]
        short = self.top < self.expected or self.last < self.told or self.torn > len(self.changed)
        return short or any(map(self._misses, runs))

    def _misses(self, run: CommittedRun) -> bool:
        if run.first < 0:
            upto = sum(other.number for other in self.runs if other.first < 0 and other.offset >= run.offset)
            return sum(offset >= run.offset for offset in self.beside) < upto
        if not run.number:
            return self.whole.get(run.first, -1) < run.offset
        found = self.found if run.known else self.strange
        return sum(run.first <= sequence <= run.last for sequence in found) < run.number


def start_of_read(history: History, position: PositionState | None, reset: ResetState | None) -> tuple[int, int | None]:
    """Where READ begins, and the written sequence that needs no reading: `(offset, sequence or None)`.

    From `read_from`, or from the base offset where the position is beyond this history or a reset is open
    (-1: from the partition's beginning).
    """
    if position is None:
        return -1, None
    inside = position.sequence <= end_of(history, position.epoch)
    if inside and reset is None:
        return position.read_from, position.sequence
    return position.base_offset, position.sequence if inside else None


def reason_to_reset(scan: SegmentScan, complete_from: int, owed: str | None, open_reset: bool) -> str | None:
    """DECIDE: why the segment cannot resume, or None. An empty op log is no proof; only contiguity with Kafka is."""
    if owed is not None:
        return owed
    # CHECK truncation-noticed: what the positions topic tells of and the change topic lost was never written.
    if scan.lacks:
        return "truncated"
    # CHECK open-reset-again: a reset found open is never resumed.
    if scan.open_reset or open_reset:
        return "open_reset"
    # CHECK end-beyond-again
    if scan.end_beyond:
        return "end_beyond"
    if scan.written is None:
        return "unknown_history"
    # CHECK continuity
    if complete_from > scan.written + 1:
        return "hole"
    return None
