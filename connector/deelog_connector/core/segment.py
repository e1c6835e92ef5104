"""One segment as its owner sees it: its phases, the table of valid transitions, and the data of each phase.

    IDLE ─promote→ CLAIM → LOOK → FENCE → ACTIVE → READ ─┬─resume→ WRITING → RELEASING → RELEASED
                                                         └─reset→ OWED → BEGUN → ROWS → WRITING

After a fenced or failed transaction a segment goes back to the phase from which it can look at Kafka again (`RECHECK`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from deelog_connector.core.effects import Producer
from deelog_connector.core.history import History, last_of, opened
from deelog_connector.core.ledger import Ledger
from deelog_connector.core.oplog import OpLog
from deelog_connector.core.reset_strategy import KeysInKafka
from deelog_connector.core.scan import Claimant, SegmentScan
from deelog_schemas.header import Position
from deelog_schemas.operation import Entry, Reason
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


POSITIONS_LOST: Final = "positions_lost"
"""The reason of a reset that is owed where the positions topic was lost, and with it claims that nobody has read."""
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

UNDECIDED: Final = (Phase.CLAIM, Phase.LOOK, Phase.FENCE, Phase.ACTIVE, Phase.READ)
"""The phases of a takeover, up to the decision."""
RESETTING: Final = (Phase.OWED, Phase.BEGUN, Phase.ROWS)
"""The phases of a reset."""
_LISTENING: Final = (Phase.LOOK, Phase.READ, Phase.BEGUN, Phase.RELEASING)

RECHECK: Final[dict[Phase, Phase]] = {
    # CHECK recheck-keeps-place: each resumes where it was, not further on.
    Phase.CLAIM: Phase.CLAIM,
    Phase.LOOK: Phase.CLAIM,
    Phase.FENCE: Phase.FENCE,
    # CHECK fence-once: after its own ACTIVE a node commits another one and reads, and fences nobody again.
    Phase.ACTIVE: Phase.ACTIVE,
    Phase.READ: Phase.ACTIVE,
    Phase.OWED: Phase.ACTIVE,
    Phase.BEGUN: Phase.ACTIVE,
    Phase.ROWS: Phase.ACTIVE,
    Phase.WRITING: Phase.ACTIVE,
    Phase.STOPPED: Phase.STOPPED,
    # CHECK release-is-final: the release may be committed; after it only a new claim may write.
    Phase.RELEASING: Phase.CLAIM,
}
"""The phase after a failed transaction, by the phase before. Others do not change."""


class Counted(NamedTuple):
    """What a stream has of a segment: operations up to the last of `history`, those from `complete_from` on at hand.

    `lost`: why they cannot be counted; a reset is due.
    """

    history: History = ()
    complete_from: int = 1
    lost: str | None = None


@dataclass(slots=True)
class PositionsView:
    """A segment's state on the positions topic, as of the moment when one's own claim was read there."""

    claims: frozenset[Claimant] = frozenset()
    position: PositionState | None = None
    reset: ResetState | None = None
    released: Claimant | None = None
    """The member of the last release, and the epoch of the claim that it ended."""
    spares: frozenset[str] = frozenset()
    """The members that have claimed with their spare producers."""
    is_certain: bool = False
    """Whether the position was read since the topic was lost last. Who wrote it had made sure that no record is of a
    higher epoch, or of another member in its own; without one there may be any."""

    @property
    def ranked(self) -> frozenset[Claimant]:
        """The claims, and the one that the last release ended."""
        # CHECK release-keeps-rank: what was superseded before the release is superseded after it.
        return self.claims if self.released is None else self.claims | {self.released}


@dataclass(slots=True)
class Reset:
    """A reset that this node has begun or is about to."""

    reset_id: str
    reason: str
    begin: Position
    """Position of the begin record; `begin_offset`: its offset, -1 until it was read back."""
    begin_offset: int = -1
    position: Position | None = None
    """Position at which the rows were read; None until they were."""
    asked: bool = False
    """Whether a stream was asked for them."""
    entries: list[Entry] = field(default_factory=list)
    digest: int = 0
    """The sum over the rows that were written; the end has that of all."""
    keys_in_kafka: KeysInKafka | None = None
    """Read up to the begin; None once `gone` and `again` were derived from it, and where the strategy has no use."""
    gone: list[bytes] = field(default_factory=list)
    """Keys to delete before the rows."""
    again: set[bytes] = field(default_factory=set)
    """Keys to delete directly before their row."""
    cursor: int = 0
    """How many of `gone`, and then of `entries`, are committed."""

    @property
    def size(self) -> int:
        """The value of `cursor` at the end."""
        return len(self.gone) + len(self.entries)


@dataclass(slots=True)
class Snapshot:
    """An incremental snapshot of a segment that is being written, and how far it is.

    The keys are listed once, entries are read when their chunk comes; keys that are added later come as changes.
    Alternatives: docs/decisions.md, "Keys of an incremental snapshot are listed once".
    """

    keys: list[bytes] | None = None
    """As listed for the first chunk, then those that are tried again; None until then."""
    max_keys: int = 0
    """The length that `keys` may grow to."""
    complete_at: int = 0
    """Operations up to this sequence replace rows that were left out: the snapshot ends once they are written. The next
    owner, who may lack them, begins again."""
    cursor: int = 0
    """How many of the keys are done."""
    rows: int = 0
    """How many rows are committed."""
    over: bool = False
    """Whether it ended with `SnapshotRead` or `SnapshotRefused`. One that is forgotten never is."""


class Requested(NamedTuple):
    """A reset that was asked for."""

    reason: str
    base_offset: int
    """The segment's base offset then: a reset that ended since has changed it."""
    topic_id: str
    """The change topic's then: another one's segments are reset anyway, and its offsets come again."""


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
    generation: int = 0
    """Counts promotions, rechecks and lost op logs: the outcome of a transaction of an earlier generation is void."""
    acked: int = 0
    """Highest sequence that is acknowledged in the present epoch."""
    replicated: int = 0
    """Highest sequence that every in-sync owner holds."""
    owed: str | None = None
    """Why a reset must come, whatever READ finds."""
    requested: Requested | None = None
    promoted_at: float | None = None
    """`now` of the first poll after the promotion; None before it, 0 once the takeover is counted."""
    noted: Phase = Phase.IDLE
    """The phase at the last poll; `noted_at`: since when."""
    noted_at: float = 0.0

    recheck: bool = False
    """The ACTIVE to come follows a fence or failure: look at the claims again."""
    victims: frozenset[Claimant] = frozenset()
    """The claimants to fence, whose claims the first ACTIVE removes."""
    unfenced: frozenset[Producer] = frozenset()
    """The producers that are still to be fenced before it."""
    scan: SegmentScan | None = None
    scan_next: int = -1
    """The offset from which to read on."""
    marker: bytes | None = None
    """Entry key of one's own control record that is awaited on the change topic."""
    marker_offset: int = -1
    """Where it is; -1 until it was read."""
    awaited: int = 0
    """Number of one's own claim record that is awaited on the positions topic; 0: none."""
    asked_at: float = 0.0
    """When the record of `awaited` was committed."""
    in_vain: int = 0
    """How many such records were given up since it was taken over last."""
    known: PositionsView = field(default_factory=PositionsView)

    sent: int = 0
    """Highest sequence that a committed transaction of this session holds."""
    in_flight: int = 0
    """Highest sequence ever put into a transaction: nothing above it can be in Kafka."""
    written: int | None = None
    """Highest sequence of one's own history that was read back from Kafka; None: unknown."""
    atomic_to: int = 0
    """The next transaction must hold everything up to this sequence: corrections, or a coalesced run."""
    ledger: Ledger = field(default_factory=Ledger)
    uncounted: bool = False
    """Whether a stream's operations are still to be counted in this takeover; `undecided`: whether it has not heard
    yet what Kafka has of them."""
    undecided: bool = False
    wrong: set[bytes] = field(default_factory=set)
    """Keys of phantoms that a stream has not corrected yet."""
    corrected_at: int = 0
    """The sequence of the last correction."""
    reset: Reset | None = None
    snapshot: Snapshot | None = None
    release_wanted: bool = False
    renewed_at: float = 0.0
    is_unread: bool = False
    """Whether its last position is gone before anybody has read it."""
    stopped_by: str = ""
    """Why it is in STOPPED; empty in every other phase."""

    @property
    def last_sequence(self) -> int:
        """Highest sequence assigned or applied."""
        return last_of(self.history)

    @property
    def listens(self) -> bool:
        """Whether it waits for a control record of its own on the change topic, and may read up to it now."""
        awaits = self.marker is not None and self.awaited == 0
        return awaits and self.phase in _LISTENING and not self.is_counting

    @property
    def is_counting(self) -> bool:
        """Whether READ waits for a stream to say what it has."""
        return self.uncounted and self.owed is None and self.phase is Phase.READ

    @property
    def collects_keys(self) -> bool:
        """Whether it has begun a reset and reads which keys Kafka holds, or has not used that yet."""
        reset = self.reset if self.phase in (Phase.BEGUN, Phase.ROWS) else None
        return reset is not None and reset.keys_in_kafka is not None

    @property
    def is_primary(self) -> bool:
        """Whether a view made this node the segment's primary and nothing has ended that."""
        return self.phase is not Phase.IDLE

    @property
    def is_drained(self) -> bool:
        """Whether it is being written and Kafka holds everything."""
        return self.phase is Phase.WRITING and self.written == self.sent == self.last_sequence and not self.undecided

    @property
    def aborted_reset(self) -> str | None:
        """Why a reset is under way that comes again if this ends here. A clear's is an operation's, which stays."""
        return self.reset.reason if self.reset and self.reset.reason != Reason.CLEAR else None

    def promote(self, epoch: int, must_reset: str | None, requested: str | None, is_stream: bool) -> None:
        """Its owner is primary in this epoch: the takeover begins. The reasons are those of resets that must come."""
        self.epoch, self.acked, self.replicated, self.generation = epoch, 0, 0, self.generation + 1
        self.uncounted = self.undecided = is_stream
        if is_stream:
            self.history, self.written, self.corrected_at = (), None, 0
            self.log.restart(1)
            self.wrong.clear()
        self.history = opened(self.history, epoch)
        self.owed = must_reset or self.owed or self.aborted_reset or requested
        self.reset, self.recheck, self.release_wanted, self.promoted_at = None, False, False, None
        self.noted, self.in_vain = Phase.IDLE, 0
        self.snapshot = None
        self.ledger.forget_runs()
        self.victims, self.atomic_to = frozenset(), 0
        self.go(Phase.CLAIM)

    def owe(self, reason: str) -> None:
        """A reset must come; that positions were lost is not forgotten before it was looked who wrote since."""
        if self.owed != POSITIONS_LOST:
            self.owed = reason

    def gaps_known(self, position: PositionState) -> None:
        """What gave way above the position's `read_from_sequence`: so it says, and what was not written then."""
        ledger, runs = self.ledger, [(position.coalesced_to, position.coalesced)] if position.coalesced else []
        if ledger.is_complete:
            ledger.coalesced_runs = runs + [run for run in ledger.coalesced_runs if run[0] > position.sequence]
        else:
            ledger.coalesced_runs = runs
            self.count_gaps(position.sequence)

    def count_gaps(self, sequence: int) -> None:
        """The operations above this sequence that gave way here will not be written."""
        for upto, number in self.log.gaps_after(sequence):
            self.ledger.coalesce(sequence, upto, number)
            sequence = upto

    def await_marker(self, marker: bytes, scan_from: int) -> None:
        """Waits until this control record of its own is read back; it is at `scan_from` or later."""
        self.marker, self.marker_offset = marker, -1
        self.scan, self.scan_next = None, scan_from

    def collect_keys(self, keys: KeysInKafka) -> None:
        """Reads from `keys.start` up to the begin of its reset, instead of only up to that."""
        assert self.reset is not None
        # In a log that was cut the begin may be below: it is where it was expected, or later.
        self.scan_next = min(keys.start, self.scan_next)
        self.reset.keys_in_kafka, self.marker_offset = keys, -1

    def look_again(self) -> None:
        """Nothing is assumed of what is under way: goes back to where Kafka is looked at."""
        phase = RECHECK.get(self.phase)
        if phase is None:
            return
        self.recheck, self.generation = phase is not Phase.CLAIM, self.generation + 1
        self.owed = self.owed or self.aborted_reset
        self.reset, self.marker, self.scan = None, None, None
        self.phase = phase

    def go(self, phase: Phase) -> None:
        """Enters a phase; an invalid transition is a bug of ours and stops the connector."""
        assert phase in TRANSITIONS[self.phase], f"segment {self.number}: {self.phase} -> {phase}"
        self.phase = phase
        if phase is not Phase.STOPPED:
            self.stopped_by = ""


def in_phase(segments: Iterable[Segment], *phases: Phase) -> list[Segment]:
    """Those of them that are in one of these phases.

    A poll asks that of thousands: to name a member of an enumeration for each would take it half its time.
    """
    return [segment for segment in segments if segment.phase in phases]
