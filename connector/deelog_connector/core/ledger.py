"""What a primary has committed of a segment and must find in Kafka again, and from which offset Kafka is to be read.

Commits are not proof: a leader that was elected uncleanly may have cut the log. So each committed run is kept until two
looks at the log's end have found the log whole: the first may have come while the run's transaction was in flight.
`read_from` follows at the same pace, and only up to what every in-sync owner holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from deelog_connector.core.history import History, end_of
from deelog_schemas.positions import PositionState


class CommittedRun(NamedTuple):
    """Records that were committed, none of them below `offset`.

    `number` 0 is the end of a reset. `first` below 0 is rows of an incremental snapshot, which have no sequence of
    their own.
    """

    first: int
    last: int
    number: int
    offset: int
    known: bool | None = True
    """Whether they are in this node's history, or all of them beyond it; None: either."""

    @classmethod
    def of_rows(cls, rows: int, offset: int) -> CommittedRun:
        """So many rows of an incremental snapshot."""
        return cls(-1, -1, rows, offset)

    @property
    def is_snapshot(self) -> bool:
        """Whether these are rows of an incremental snapshot."""
        return self.first < 0

    def is_followed_by(self, run: CommittedRun) -> bool:
        """Whether both are operations of this node's history, and nothing is between them."""
        changes = self.number > 0 and run.number > 0 and not self.is_snapshot
        return changes and self.known is True and self.last + 1 == run.first


class Inherited(NamedTuple):
    """What another owner has committed, or this member in an earlier promotion, by the position that it wrote.

    Every sequence above `above`, up to `upto`, is at `offset` or later, but for those that were coalesced: at most
    `coalesced`, none above `coalesced_to`. Up to `shared` they are in this node's history, above that none is; -1: that
    is not known.
    """

    above: int
    upto: int
    offset: int
    shared: int
    coalesced_to: int = 0
    coalesced: int = 0

    @classmethod
    def of(cls, history: History, position: PositionState, offset: int) -> Inherited:
        """What that position says is at the offset or later."""
        shared, gaps = end_of(history, position.epoch), (position.coalesced_to, position.coalesced)
        return cls(position.read_from_sequence, position.sequence, offset, shared, *gaps)

    def runs(self, reset_at: int) -> list[CommittedRun]:
        """What must be found of it after a reset whose end has that sequence (-1: after none)."""
        above = max(self.above, reset_at)
        if self.shared < 0:
            parts: list[tuple[int, int, bool | None]] = [(above, self.upto, None)]
        else:
            parts = [(above, min(self.shared, self.upto), True), (max(above, self.shared), self.upto, False)]
        runs = []
        for low, high, known in parts:
            number = high - low - (self.coalesced if low < self.coalesced_to else 0)
            if number > 0:
                runs.append(CommittedRun(low + 1, high, number, self.offset, known))
        return runs


class LogEnd(NamedTuple):
    """An offset, and the highest sequence that can be below it."""

    offset: int
    sequence: int
    is_below: bool = True
    """Whether that one is; else it may have been in flight, and stand behind the offset."""

    def vouched(self, written: int) -> bool:
        """Whether positions may say so, now that a look has found the log whole which held all up to `written`.

        Who inherits such a position looks for what is behind that sequence, and for what was below the offset. So the
        sequence must be below, or one behind it was in that log as well: then a cut that takes it takes both.
        """
        return written >= self.sequence + (not self.is_below)


@dataclass(slots=True)
class Ledger:
    """One segment's. It begins anew with each promotion and each reset."""

    read_from: int = -1
    """The offset from which the next owner reads; -1: from the partition's beginning."""
    read_from_sequence: int = -1
    """Operations above this are at `read_from` or later; -1: everything that counts is."""
    base_offset: int = -1
    """Where the last complete reset begins; -1: there was none."""
    leader_epoch: int = -1
    """That of the partition when its owner has seen the log up to `read_from`; -1: nobody has."""
    coalesced_runs: list[tuple[int, int]] = field(default_factory=list)
    """Up to which sequence, and how many, operations gave way to later ones and are not in the topic, or will not be.
    None of these runs ends at `read_from_sequence` or below."""
    is_complete: bool = False
    """Whether the runs are all that this member has committed. After a promotion, not before DECIDE."""
    since_last_look: list[CommittedRun] = field(default_factory=list)
    before_last_look: list[CommittedRun] = field(default_factory=list)
    observed_end: LogEnd | None = None
    """Of a look; becomes `next_read_from` at a later look that vouches for it."""
    next_read_from: LogEnd | None = None
    """Becomes `read_from` once every in-sync owner holds its sequence."""
    written_at_last_look: int = -1
    """What was read back then: it is below the end that any later look finds."""

    def coalesced(self, written: int) -> tuple[int, int]:
        """No sequence from this one up to `written` gave way; and how many above `read_from_sequence` did.

        A run that is not written yet is another owner's to write in full, if this one is lost.
        """
        runs = [run for run in self.coalesced_runs if run[0] <= written]
        return (runs[-1][0] if runs else 0), sum(number for _, number in runs)

    @property
    def unverified(self) -> list[CommittedRun]:
        """The runs that Kafka may have lost without anybody noticing."""
        return [*self.before_last_look, *self.since_last_look]

    @property
    def has_unverified_rows(self) -> bool:
        """Whether rows of an incremental snapshot are unverified: only this node could notice their loss."""
        return any(run.is_snapshot for run in self.unverified)

    def committed(self, run: CommittedRun) -> None:
        """A run of records was committed. Adjacent runs are merged, so that there are few."""
        runs = self.since_last_look
        for index, before in enumerate(runs):
            rows = before.is_snapshot and run.is_snapshot
            if rows or (index == len(runs) - 1 and before.is_followed_by(run)):
                offset = min(before.offset, run.offset)
                runs[index] = CommittedRun(before.first, run.last, before.number + run.number, offset)
                return
        runs.append(run)

    def rows_committed(self, rows: int, offset: int) -> None:
        """Rows of an incremental snapshot were committed, none of them below the offset."""
        self.committed(CommittedRun.of_rows(rows, offset))

    def looked(self, offset: int, in_flight: int, written: int) -> None:
        """The log is whole up to `offset`, its end. No sequence above `in_flight` was in any transaction so far."""
        self.before_last_look, self.since_last_look = self.since_last_look, []
        # Whatever is below this offset was put into a transaction before now. Only a later look that finds the log
        # whole vouches for what was in flight at this one.
        before, end = self.written_at_last_look, LogEnd(offset, in_flight, in_flight <= self.written_at_last_look)
        if self.next_read_from is None and self.observed_end is not None and self.observed_end.vouched(before):
            self.next_read_from, self.observed_end = self.observed_end, None
        if self.observed_end is None or (end.is_below and not self.observed_end.is_below):
            self.observed_end = end
        self.written_at_last_look = written

    def advance(self, written: int, replicated: int, atomic_to: int, leader_epoch: int) -> None:
        """Moves `read_from` on where that is safe. `leader_epoch` is that of the last look."""
        candidate = self.next_read_from
        if candidate is None:
            return
        # CHECK read-from-trails: only what every in-sync owner holds lies below.
        offset = advanced_read_from(candidate[:2], written, replicated, atomic_to)
        if offset is not None:
            self.read_from, self.read_from_sequence = offset, candidate.sequence
            self.leader_epoch = leader_epoch
            self.coalesced_runs = [run for run in self.coalesced_runs if run[0] > self.read_from_sequence]
            self.next_read_from = None

    def begin(self, offset: int, leader_epoch: int) -> None:
        """The segment's life in Kafka begins at this offset, without a reset and with its first operation."""
        self.read_from, self.read_from_sequence, self.base_offset = offset, 0, -1
        self.leader_epoch, self.is_complete = leader_epoch, True

    def rebase(self, offset: int, leader_epoch: int) -> None:
        """A complete reset begins at this offset: nothing below it counts any more."""
        self.base_offset = self.read_from = offset
        self.read_from_sequence = -1
        self.coalesced_runs.clear()
        self.leader_epoch, self.is_complete = leader_epoch, True
        self._forget_ends()

    def replaced(self, reset: CommittedRun) -> None:
        """A reset was committed to its end: what was committed before it is not missed any more."""
        self.before_last_look, self.since_last_look = [], [reset]

    def lose(self) -> None:
        """The log was cut or the topic is another one: no offset holds any more."""
        self.base_offset = self.read_from = 0
        self.leader_epoch = -1
        self._forget_ends()

    def resume(self, runs: Iterable[CommittedRun]) -> None:
        """READ has found what was committed so far. These runs of it are verified by the looks to come."""
        self.before_last_look, self.since_last_look = [], list(runs)
        self.is_complete = True
        self._forget_ends()

    def forget_runs(self) -> None:
        """A promotion: what this member committed is looked for as anybody else's would be."""
        self.before_last_look, self.since_last_look = [], []
        self.is_complete = False
        self._forget_ends()

    def coalesce(self, above: int, upto: int, number: int) -> None:
        """Of the sequences above `above`, up to `upto`, so many more gave way to later ones.

        Runs of which one begins before the other's end wait for one transaction: they are one.
        """
        while self.coalesced_runs and self.coalesced_runs[-1][0] > above:
            before, more = self.coalesced_runs.pop()
            upto, number = max(upto, before), number + more
        self.coalesced_runs.append((upto, number))

    def _forget_ends(self) -> None:
        self.observed_end = self.next_read_from = None
        self.written_at_last_look = -1


def advanced_read_from(candidate: tuple[int, int] | None, written: int, replicated: int, atomic_to: int) -> int | None:
    """The offset that `read_from` may move to now; None: it stays.

    `candidate` is `(offset, sequence)`: no sequence above that one is below the offset.
    """
    if candidate is None or candidate[1] > min(written, replicated) or written < atomic_to:
        return None
    return candidate[0]
