"""One segment as its owner sees it: its phases, the table of valid transitions, and the data of each phase.

    IDLE ─promote→ CLAIM → LOOK → FENCE → ACTIVE → READ ─┬─resume→ WRITING → RELEASING → RELEASED
                                                         └─reset→ OWED → BEGUN → ROWS → WRITING

A fenced or failed transaction sends a segment back to where it can tell again what is true (`RECHECK`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from deelog_connector.core.history import History, last_of
from deelog_connector.core.oplog import OpLog
from deelog_connector.core.reset_strategy import KeysInKafka
from deelog_connector.core.scan import Claimant, CommittedRun, SegmentScan
from deelog_schemas.operation import Entry
from deelog_schemas.positions import PositionState, ResetState


class Phase(StrEnum):
    """What an owner does with a segment. All but IDLE are a primary's."""

    IDLE = "idle"
    CLAIM = "claim"
    LOOK = "look"
    FENCE = "fence"
    ACTIVE = "active"
    READ = "read"
    OWED = "owed"
    BEGUN = "begun"
    ROWS = "rows"
    WRITING = "writing"
    RELEASING = "releasing"
    RELEASED = "released"
    STOPPED = "stopped"


_ALWAYS: Final = frozenset({Phase.IDLE, Phase.CLAIM})
"""Demoted or stepped down; promoted in a later epoch."""

TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.IDLE: _ALWAYS,
    Phase.CLAIM: _ALWAYS | {Phase.LOOK},
    Phase.LOOK: _ALWAYS | {Phase.FENCE, Phase.ACTIVE},
    Phase.FENCE: _ALWAYS | {Phase.ACTIVE},
    Phase.ACTIVE: _ALWAYS | {Phase.READ},
    Phase.READ: _ALWAYS | {Phase.ACTIVE, Phase.WRITING, Phase.OWED},
    Phase.OWED: _ALWAYS | {Phase.ACTIVE, Phase.BEGUN},
    Phase.BEGUN: _ALWAYS | {Phase.ACTIVE, Phase.ROWS},
    Phase.ROWS: _ALWAYS | {Phase.ACTIVE, Phase.WRITING, Phase.OWED, Phase.STOPPED},
    Phase.WRITING: _ALWAYS | {Phase.ACTIVE, Phase.OWED, Phase.RELEASING, Phase.STOPPED},
    Phase.RELEASING: _ALWAYS | {Phase.RELEASED},
    Phase.RELEASED: _ALWAYS,
    Phase.STOPPED: _ALWAYS | {Phase.ACTIVE, Phase.OWED},
}

_LISTENING: Final = frozenset({Phase.LOOK, Phase.READ, Phase.BEGUN, Phase.RELEASING})

RECHECK: Final[dict[Phase, Phase]] = {
    # CHECK recheck-keeps-place: each takes up again where it was, not further on.
    Phase.CLAIM: Phase.CLAIM,
    Phase.LOOK: Phase.CLAIM,
    Phase.FENCE: Phase.FENCE,
    # CHECK fence-once: behind its own ACTIVE a node commits a fresh one and reads, and fences nobody again.
    Phase.ACTIVE: Phase.ACTIVE,
    Phase.READ: Phase.ACTIVE,
    Phase.OWED: Phase.ACTIVE,
    Phase.BEGUN: Phase.ACTIVE,
    Phase.ROWS: Phase.ACTIVE,
    Phase.WRITING: Phase.ACTIVE,
    Phase.STOPPED: Phase.STOPPED,
    # CHECK release-is-final: the release may stand there; behind it only a new claim writes.
    Phase.RELEASING: Phase.CLAIM,
}
"""Where a segment goes on after a failed transaction, from where it was."""


@dataclass(slots=True)
class PositionsView:
    """What the positions topic said of a segment when one's own record was read there: no later, no earlier."""

    claims: frozenset[Claimant] = frozenset()
    position: PositionState | None = None
    reset: ResetState | None = None
    released: Claimant | None = None
    """Whose release was the last one, and the epoch of the claim that it ended."""

    @property
    def ranked(self) -> frozenset[Claimant]:
        """The claims, and the one that the last release ended."""
        # CHECK release-keeps-rank: what was superseded before the release is superseded behind it.
        return self.claims if self.released is None else self.claims | {self.released}


@dataclass(slots=True)
class Reset:
    """A reset that this node has begun or is about to."""

    reset_id: str
    reason: str
    begin: tuple[int, int]
    """Position of its begin."""
    begin_offset: int = -1
    position: tuple[int, int] | None = None
    """Position at which the rows were read; None until they were."""
    entries: list[Entry] = field(default_factory=list)
    digest: str = ""
    held: KeysInKafka | None = None
    """What consumers hold; read up to the begin, and given up once `gone` and `again` follow from it."""
    gone: list[bytes] = field(default_factory=list)
    """Keys to delete before the rows; `again`: those to delete directly before their row."""
    again: set[bytes] = field(default_factory=set)
    cursor: int = 0
    """How many of `gone`, and behind them of `entries`, are committed."""

    @property
    def size(self) -> int:
        """What `cursor` comes to."""
        return len(self.gone) + len(self.entries)


@dataclass(slots=True)
class Snapshot:
    """The way of an incremental snapshot through a segment that is being written.

    Weighed for the order of keys: sorted keys beyond the last one of the chunk before (the segment is listed and
    sorted again for every chunk: n² log n over the chunks), an ordered index in every cache (each write pays for it),
    and this: the keys are listed once, entries are read when their chunk comes. A key that came later is a change.
    """

    keys: list[bytes] | None = None
    """As they were when the first chunk was read, and behind them those that have another turn; None until then."""
    most: int = 0
    """How many there may be in all."""
    behind: int = 0
    """Operations up to here stand for rows that were left out: it is not over before they are written. The next owner,
    who may lack them, begins again."""
    cursor: int = 0
    """How many of the keys are dealt with."""
    rows: int = 0
    """Rows that are committed."""
    over: bool = False
    """`SnapshotRead` or `SnapshotRefused` tells, or is about to; else whoever was to read it on has forgotten it."""


class Requested(NamedTuple):
    """A reset that was asked for where another node was to do it: with the base offset and until when it stands."""

    reason: str
    base_offset: int
    until: float


@dataclass(slots=True)
class Segment:
    """Everything that one node keeps of one segment."""

    number: int
    partition: int
    log: OpLog
    history: History = ()
    phase: Phase = Phase.IDLE
    epoch: int = 0
    """Of one's own ownership; meaningless while IDLE."""
    turn: int = 0
    """Counts what makes an earlier transaction's outcome meaningless: promotions, rechecks, lost op logs."""
    acked: int = 0
    replicated: int = 0
    owed: str | None = None
    """Why a reset must come, whatever READ says."""
    requested: Requested | None = None
    promoted_at: float | None = None
    noted: Phase = Phase.IDLE
    """The phase that the last poll found."""
    noted_at: float = 0.0
    """Since when."""

    recheck: bool = False
    """The ACTIVE to come follows a fence or failure: look at the claims again."""
    victims: frozenset[Claimant] = frozenset()
    scan: SegmentScan | None = None
    scan_next: int = -1
    marker: bytes | None = None
    """Entry key of one's own control record that is being waited for on the change topic."""
    marker_offset: int = -1
    awaited: int = 0
    """Number of one's own claim record that is being waited for on the positions topic; 0 = none."""
    asked_at: float = 0.0
    """When the record of `awaited` was committed."""
    known: PositionsView = field(default_factory=PositionsView)

    sent: int = 0
    """Highest sequence that a committed transaction of this session holds."""
    in_flight: int = 0
    """Highest sequence ever put into a transaction: nothing above it can stand in Kafka."""
    written: int | None = None
    atomic_to: int = 0
    """The next transaction must hold everything up to here: corrections, or a coalesced run."""
    read_from: int = -1
    read_from_sequence: int = -1
    """All above this stand at `read_from` or behind it; -1: all that matters does."""
    coalesced_to: int = 0
    """Up to here sequences may be missing in the topic, because they gave way to later ones."""
    unwatched: list[CommittedRun] = field(default_factory=list)
    """What was committed since Kafka was last looked at; `watched`: in the time before."""
    watched: list[CommittedRun] = field(default_factory=list)
    base_offset: int = -1
    candidate: tuple[int, int] | None = None
    """`(offset, sequence)`: the next read_from, once every in-sync owner holds the sequence."""
    seen: tuple[int, int] | None = None
    """The next candidate, once Kafka was looked at again."""
    reset: Reset | None = None
    snapshot: Snapshot | None = None
    release_wanted: bool = False
    renewed_at: float = 0.0
    stopped_by: str = ""
    """Why it is in STOPPED; empty in every other phase."""

    @property
    def last_sequence(self) -> int:
        """Highest sequence assigned or applied."""
        return last_of(self.history)

    @property
    def listens(self) -> bool:
        """Whether it waits for a control record of its own on the change topic, and may read up to it now."""
        return self.marker is not None and self.awaited == 0 and self.phase in _LISTENING

    @property
    def gathers(self) -> bool:
        """Whether it has begun a reset and reads which keys Kafka holds, or has not used that yet."""
        return self.phase in (Phase.BEGUN, Phase.ROWS) and self.reset is not None and self.reset.held is not None

    @property
    def is_primary(self) -> bool:
        """Whether a view made this node the segment's primary and nothing has ended that."""
        return self.phase is not Phase.IDLE

    @property
    def watches_beside(self) -> bool:
        """Whether rows were written of which this node alone would know that they are gone: the next owner cannot."""
        return any(run.first < 0 for run in (*self.watched, *self.unwatched))

    def gather(self, held: KeysInKafka) -> None:
        """Reads from `held.start` up to the begin of its reset, instead of only up to that."""
        assert self.reset is not None
        # The begin may stand below, in a log that was cut: it is where it was expected, or behind.
        self.scan_next = min(held.start, self.scan_next)
        self.reset.held, self.marker_offset = held, -1

    def wrote(self, run: CommittedRun) -> None:
        """A run of records was committed. Runs that follow one another are kept as one, so that there are few."""
        for index, before in enumerate(self.unwatched):
            beside = before.first < 0 and run.first < 0
            if beside or (index == len(self.unwatched) - 1 and run.number and _is_followed(before, run)):
                number, offset = before.number + run.number, min(before.offset, run.offset)
                self.unwatched[index] = CommittedRun(before.first, run.last, number, offset)
                return
        self.unwatched.append(run)

    def wrote_beside(self, rows: int, offset: int) -> None:
        """Rows of an incremental snapshot were committed, none of them below the offset."""
        self.wrote(CommittedRun(-1, -1, rows, offset))

    def go(self, phase: Phase) -> None:
        """Enters a phase; an invalid transition is a bug of ours and stops the connector."""
        assert phase in TRANSITIONS[self.phase], f"segment {self.number}: {self.phase} -> {phase}"
        self.phase = phase
        if phase is not Phase.STOPPED:
            self.stopped_by = ""


def _is_followed(before: CommittedRun, run: CommittedRun) -> bool:
    return before.number > 0 and before.first >= 0 and before.known and before.last + 1 == run.first
