"""The fold of READ: what the change topic holds of one segment, in the eyes of a node with a given history.

Pure, so that the takeover, its tests and a model of it decide alike. One fold serves LOOK and READ: LOOK feeds it up
to one's own claim, READ continues to one's own ACTIVE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from deelog_connector.core.effects import Place, ScannedRecord
from deelog_connector.core.history import History, end_of
from deelog_connector.core.ledger import CommittedRun, Inherited
from deelog_schemas.header import Kind, Position
from deelog_schemas.positions import PositionState

Claimant = tuple[int, str]
"""`(epoch, member)`."""

_ALL: Final = 1 << 62
"""What a reset lacks whose begin is gone; what may be the last sequence before an epoch of which that is not known."""


@dataclass(slots=True)
class SegmentScan:
    """What was read of one segment so far."""

    history: History
    written: int | None = None
    """The highest sequence within `history` that Kafka holds; None where nothing in it was ever written."""
    phantoms: set[bytes] = field(default_factory=set)
    """The keys of changes beyond `history`."""
    claims: set[Claimant] = field(default_factory=set)
    """The last ACTIVE and the claims since, without those that a release ended."""
    open_reset: bool = False
    end_beyond: bool = False
    """Whether the last reset ended beyond `history`."""
    sequences: set[int] = field(default_factory=set)
    """Of the changes, skipped operations and ends of resets within `history`."""
    sequences_beyond: set[int] = field(default_factory=set)
    """Of those beyond it."""
    ahead: Position = (0, 0)
    """The highest position beyond `history`."""
    actives: dict[int, int] = field(default_factory=dict)
    """The last sequence before an owner's epoch, by that: it may have written nothing in it."""
    rows: int | None = None
    """The rows of the reset that is open, whose begin is at the offset `begin`; None: none is."""
    begin: int = -1
    reset_id: object = None
    """That of the last begin."""
    deletes: set[bytes] = field(default_factory=set)
    """Keys that the last reset deletes, and sends no row of."""
    from_base: bool = False
    """Whether reading starts at the begin of the last reset, or before. Otherwise its end may come without a begin."""
    snapshot_rows: list[int] = field(default_factory=list)
    """Offsets of the rows of incremental snapshots."""
    shown: set[bytes] = field(default_factory=set)
    """The keys of those beyond `history`: a filter may have left out the changes of these values."""
    missing: int = 0
    """How many rows and deletes the last reset lacks."""
    changed: set[bytes] = field(default_factory=set)
    """The keys of changes after a reset that lacks some: compaction may have removed its rows for their sake."""
    sent_again: set[bytes] = field(default_factory=set)
    """The keys of rows of incremental snapshots after it."""
    complete_resets: dict[int, int] = field(default_factory=dict)
    """Resets that were read with all of their rows: the offset of the begin by the sequence of the end."""
    reset_at: int = -1
    """The sequence of the last reset's end, within `history` or beyond it."""

    expected: int = -1
    """The sequence within `history` that must be read, or one above it."""
    expected_anywhere: int = -1
    """The same, within or beyond `history`."""
    expected_beyond: Position = (0, 0)
    """A position beyond it that must be read where nobody has looked since the leader changed, or one above it."""
    runs: Sequence[CommittedRun] = ()
    """What this very node committed and must find."""
    inherited: list[Inherited] = field(default_factory=list)
    """By the position that was known at one's claim, and by what an old owner wrote between that and its fence."""
    place: Place | None = None
    """What the log must still hold, since nobody has looked under its present leader."""
    unverified_from: int | None = None
    """Where the leader has changed since the last position, the offset from which nobody has looked since: all that is
    inherited must be found, and all of a reset that begins there."""
    writers: dict[int, str] = field(default_factory=dict)
    """By the epoch of the records the member that wrote in it; empty where none of them says so."""
    spares: set[str] = field(default_factory=set)
    """The members that have claimed, or are active, with their spare producers."""

    def apply(self, record: ScannedRecord) -> None:
        """Folds the segment's next record."""
        kind, control = record.kind, record.control
        if kind is Kind.ACTIVE or (record.epoch not in self.writers and kind is not Kind.CLAIM):
            self.writers[record.epoch] = control.get("member", "")
        if kind in (Kind.CLAIM, Kind.ACTIVE):
            (self.spares.add if control.get("spare") else self.spares.discard)(control["member"])
        if kind is Kind.CLAIM:
            self.claims.add((control["epoch"], control["member"]))
        elif kind is Kind.ACTIVE:
            epoch = control["epoch"]
            self.actives[record.epoch] = control.get("opened", _ALL)
            # An ACTIVE ends no claim of a higher epoch.
            self.claims = {c for c in self.claims if c[0] > epoch} | {(epoch, control["member"])}
        elif kind is Kind.RELEASE:
            # CHECK release-is-final: its member writes nothing more before a later claim.
            self.claims = {c for c in self.claims if c[1] != control["member"]}
        elif kind is Kind.RESET_BEGIN:
            self.open_reset, self.rows, self.begin, self.reset_id = True, 0, record.offset, control["id"]
            self.deletes.clear()
        elif self.rows is not None and kind in (Kind.READ, Kind.TOMBSTONE):
            if kind is Kind.READ:
                self.rows += 1
                self.deletes.discard(record.key)  # its delete belongs to its row, and compaction may have removed it
            else:
                self.deletes.add(record.key)
        elif kind is Kind.READ:
            self.snapshot_rows.append(record.offset)
            if record.sequence > end_of(self.history, record.epoch):
                self.shown.add(record.key)
                self.ahead = max(self.ahead, (record.epoch, record.sequence))
            if self.missing:  # compaction removes a reset's row for it as for a change
                self.sent_again.add(record.key)
        elif kind in (Kind.RESET_END, Kind.CHANGE):
            self._position(record)
        elif kind is Kind.SKIPPED:
            self._skipped(record)

    def _position(self, record: ScannedRecord) -> None:
        known = record.sequence <= end_of(self.history, record.epoch)
        if record.kind is Kind.RESET_END:
            self._reset_ended(record, known)
        elif self.missing:
            self.changed.add(record.key)
        if known:
            self.written = max(self.written or 0, record.sequence)
            self.sequences.add(record.sequence)
            if record.kind is Kind.CHANGE:
                self.phantoms.discard(record.key)  # a later change of the key is the truth again
            return
        self.sequences_beyond.add(record.sequence)
        self.ahead = max(self.ahead, (record.epoch, record.sequence))
        if record.kind is Kind.CHANGE:
            self.phantoms.add(record.key)

    def _reset_ended(self, record: ScannedRecord, known: bool) -> None:
        # CHECK end-beyond-again: a reset whose end lies beyond this history is begun again.
        self.open_reset, self.end_beyond = False, not known
        # No reader accepts a reset without its begin. Compaction removes begins as well, long after: then this costs
        # one reset too many.
        if self.rows is None:
            self.missing = _ALL if self.from_base else 0
        elif record.control["id"] != self.reset_id:
            self.missing = _ALL  # the end of another one: this one stays open for readers
        else:
            deletes = max(0, record.control.get("taken_back", 0) - len(self.deletes))
            self.missing = record.control["count"] - self.rows + deletes
        self.changed.clear()
        self.sent_again.clear()
        if not self.missing:
            self.complete_resets[record.sequence] = self.begin
        self.rows, self.reset_at = None, record.sequence
        if known:
            self.phantoms.clear()  # the reset holds the truth about everything before it

    def _skipped(self, record: ScannedRecord) -> None:
        """Operations that were written without their change: none of them is missing, and none makes a phantom.

        Where the history ends among them, some are within it and the others beyond.
        """
        first, end = record.control["first"], end_of(self.history, record.epoch)
        inside = range(first, min(record.sequence, end) + 1)
        beyond = range(max(first, end + 1), record.sequence + 1)
        if inside:
            self.written = max(self.written or 0, inside[-1])
            self.sequences.update(inside)
        if beyond:
            self.sequences_beyond.update(beyond)
            self.ahead = max(self.ahead, (record.epoch, record.sequence))

    def expect_beyond(self, position: PositionState) -> None:
        """What it tells of must be read, within the history or beyond it; see `expected_beyond`."""
        self.expected_anywhere = max(self.expected_anywhere, position.sequence)
        self.expected_beyond = max(self.expected_beyond, position.position)

    def inherited_runs(self) -> list[CommittedRun]:
        """What somebody else has committed, and this node must find until the log's end was looked at."""
        return [run for inherited in self.inherited for run in inherited.runs(self.reset_at)]

    def gaps(self, written: int, behind: int, position: PositionState | None) -> list[tuple[int, int]]:
        """What gave way of the sequences behind that one and the last reset, as `Ledger.coalesced_runs`.

        Where the last position says that all above is behind its `read_from`, so many as it says; below, all not read.
        """
        above, most = (position.read_from_sequence, position.coalesced) if position is not None else (-1, 0)
        low, upto = max(self.reset_at, behind, 0), 0
        end = max(low, min(above, written))
        # There may be a billion below what retention has left.
        number = end - low - sum(low < sequence <= end for sequence in self.sequences)
        if number:
            upto = end + 1
            while upto - 1 in self.sequences:
                upto -= 1
        if most:
            for sequence in (*sorted(s for s in self.sequences if end < s <= written), written + 1):
                more = min(sequence - 1 - end, most)
                if more:
                    upto, number, most = end + 1 + more, number + more, most - more
                end = sequence
        return [(upto, number)] if number else []

    def to_find_again(self, offset: int, above: int) -> list[CommittedRun]:
        """What was found: a look at the log's end has not verified all of it yet.

        None of it is below `offset`, but for operations up to the sequence `above`, which others have vouched for.
        """
        again = [*(run for run in self.runs if not run.number), *self.inherited_runs()]
        if self.snapshot_rows:
            again.append(CommittedRun.of_rows(len(self.snapshot_rows), self.snapshot_rows[0]))
        sequences = [sequence for sequence in self.sequences if sequence > max(self.reset_at, above)]
        if sequences:  # also what an old owner wrote since the position that was inherited
            again.append(CommittedRun(min(sequences), max(sequences), len(sequences), offset))
        reset = CommittedRun(self.reset_at, self.reset_at, 0, self.complete_resets.get(self.reset_at, -1))
        if reset.offset >= 0 and reset not in again:
            again.append(reset)
        return again

    @property
    def is_empty(self) -> bool:
        """Whether no operation was read, within the history or beyond it."""
        return self.written is None and self.ahead == (0, 0)

    @property
    def is_truncated(self) -> bool:
        """Whether records are gone that were committed: the log was cut."""
        runs, excused = list(self.runs), self.sent_again | self.changed
        if self.unverified_from is not None:
            runs += self.inherited_runs()
            if self.begin >= self.unverified_from:
                # Compaction comes long after a look would have: what changes followed makes nothing good that was cut.
                excused = self.sent_again
        highest = max(self.sequences, default=-1)
        short = highest < self.expected or max({highest} | self.sequences_beyond) < self.expected_anywhere
        if self.unverified_from is not None and self.ahead < self.expected_beyond:
            # The sequences of an epoch that this node has never heard of stand for those of none that it has.
            epoch, sequence = self.expected_beyond
            short |= self.actives.get(epoch, -1) < sequence
        return short or self.missing > len(excused) or any(map(self._misses, runs))

    def _misses(self, run: CommittedRun) -> bool:
        if run.is_snapshot:
            number = sum(other.number for other in self.runs if other.is_snapshot and other.offset >= run.offset)
            return sum(offset >= run.offset for offset in self.snapshot_rows) < number
        if not run.number:
            return self.complete_resets.get(run.first, -1) < run.offset
        sequences = self.sequences if run.known else self.sequences_beyond
        if run.known is None:
            sequences = self.sequences | self.sequences_beyond
        return sum(run.first <= sequence <= run.last for sequence in sequences) < run.number


def start_of_read(history: History, position: PositionState | None) -> tuple[int, int | None]:
    """Where READ begins, and the written sequence that needs no reading: `(offset, sequence or None)`.

    From `read_from`, or from the base offset where the position is beyond this history (-1: from the partition's
    beginning).
    """
    if position is None:
        return -1, None
    if position.sequence <= end_of(history, position.epoch):
        return position.read_from, position.sequence
    return position.base_offset, None


def reason_to_reset(scan: SegmentScan, complete_from: int, owed: str | None) -> str | None:
    """DECIDE: why the segment cannot resume, or None. An empty op log is no proof; only contiguity with Kafka is."""
    if owed is not None:
        return owed
    # CHECK truncation-noticed: what the positions topic names and the change topic lost was never written.
    if scan.is_truncated:
        return "truncated"
    # CHECK open-reset-again: begun by the old owner since one's own claim.
    if scan.open_reset:
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
