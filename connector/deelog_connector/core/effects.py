"""What the core asks its shell to do, and which call answers.

One transaction and one scan per partition are under way at most; each effect is answered by exactly one call:

| effect | answered by |
|---|---|
| `OpenProducer` | `producer_opened()` |
| `Commit` | `committed(token)` or `commit_failed(token, cause)` |
| `Fence` | `fenced(producer, takeovers)` |
| `FindHanging` | `hanging_found(partition, transactions, hidden)` |
| `EndHanging` | `hanging_ended(effect)` |
| `Scan` | `scanned(partition, records)` any number of times, then `scan_ended(partition, reached, at_end)` |
| `Count` | `counted(segment, generation, counted)` |
| `Decided` | `resumed(segment)` |
| `ReadRows` | `rows_read(segment, reset_id, entries)` |
| `Correct` | `append` of a correction, or a change, of each key |
| all others | nothing: they inform |

`Count`, `ReadRows`, `Correct`, `Decided` and `PositionRead` are for a stream alone (`settings.py`).

Effects are values, which a simulation can drop, delay and reorder. Alternatives: docs/decisions.md, "Effects are
values".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry, Operation
from deelog_schemas.positions import PositionState, State


@dataclass(frozen=True, slots=True)
class ControlItem:
    """A control record of the change topic. `number` makes its key unique in this member's life."""

    kind: Kind
    segment: int
    partition: int
    position: tuple[int, int]
    number: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OperationsItem:
    """A run of operations of one segment, in sequence order."""

    segment: int
    partition: int
    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True)
class RowsItem:
    """Rows of a reset, all read at `position`. `first`, `last`: the reset's first and last row are among them.

    `incremental`: rows of an incremental snapshot, outside of any reset.
    """

    segment: int
    partition: int
    position: tuple[int, int]
    reason: str
    entries: Sequence[Entry]
    first: bool
    last: bool
    incremental: bool = False


@dataclass(frozen=True, slots=True)
class TakenBackItem:
    """Keys that a reset deletes for consumers that know nothing of resets; its rows were read at `position`."""

    segment: int
    partition: int
    position: tuple[int, int]
    reason: str
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class StateItem:
    """A record of the positions topic; `state` None removes the key."""

    kind: Kind
    segment: int
    partition: int
    position: tuple[int, int]
    key: bytes
    state: State | None


Item = ControlItem | OperationsItem | RowsItem | TakenBackItem | StateItem


class Cause(StrEnum):
    """Why a transaction was not committed."""

    FENCED = "fenced"
    """Somebody else initialised this transactional id, or the transaction timed out: re-initialise, recheck."""
    LOST = "lost"
    """The outcome is unknown or the client gave up: re-initialise, recheck."""
    REFUSED = "refused"
    """The broker refused a record for what it is (too large): re-initialise, bisect by segment."""


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """Open a new session of this node's producer (`init_transactions`)."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Write all items in order in one transaction, and commit it."""

    token: int
    items: Sequence[Item]


class Producer(NamedTuple):
    """One of the two producers of a node."""

    node_id: str
    spare: bool = False


@dataclass(frozen=True, slots=True)
class FindHanging:
    """Find out whose open transactions hide records of ours on this partition of either topic.

    Kafka's word for a transaction that nobody will end: KIP-664.
    """

    partition: int


class Hanging(NamedTuple):
    """The record with which a transaction begins that stays open."""

    segment: int
    epoch: int
    node: int
    """The CRC-32 of its writer's member."""
    member: str = ""
    """Its writer, where the record says it."""


class HangingAbort(NamedTuple):
    """A transaction that stays open, and only aborts what a node has left open: whoever finds it may end it."""

    node_id: str


@dataclass(frozen=True, slots=True)
class EndHanging:
    """Fence this producer, and abort what it has left open on this partition of both topics."""

    producer: Producer
    partition: int


@dataclass(frozen=True, slots=True)
class Fence:
    """Initialise this producer's transactional id: that aborts what it has open and refuses what it sends later."""

    producer: Producer
    takeovers: tuple[tuple[int, int], ...]
    """`(segment, epoch)` of those that wait for it."""


class Place(NamedTuple):
    """An offset of a partition, and the epoch of the leader under whom somebody has looked up to there."""

    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Read a partition of the change topic from an offset up to the last of these control records of ours.

    `from_offset` -1 is the partition's beginning. Where somebody's open transaction hides the records, reading waits
    for a bounded time (read-to-own-record), and ends with `scan_ended(reached=False)`.
    """

    partition: int
    from_offset: int
    until: frozenset[bytes]
    """Entry keys of the awaited control records."""
    keys: frozenset[int] = frozenset()
    """Segments of which every record is wanted with its key. Such a scan has low priority: it may end early with
    `reached=True`, and the next one resumes it."""
    places: tuple[Place, ...] = ()
    """What is to be asked first: whether the log still holds all up to there. If not: `log_was_cut`."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """The core appended corrections of phantoms: replicate and acknowledge them like any other operation."""

    segment: int
    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True)
class Released:
    """The release of a segment is committed and read back."""

    segment: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """There is a claim of a higher epoch than ours, or of another member in the same epoch."""

    segment: int
    reason: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer process with this node id is alive: this one must end."""

    by: str


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """An incremental snapshot of a segment is complete: `rows` are committed, all other keys came as changes.

    `epoch` is that in which this was so: a promotion since has forgotten to look for the rows.
    """

    segment: int
    rows: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SnapshotRefused:
    """The broker refused a row of an incremental snapshot: it ends in this segment, whose changes are written on."""

    segment: int


@dataclass(frozen=True, slots=True)
class Count:
    """Nobody else can write the segment any more: say what of its operations the stream has, by this position.

    Read the stream up to where it is now first. `generation` names the question.
    """

    segment: int
    generation: int
    position: PositionState | None


@dataclass(frozen=True, slots=True)
class Decided:
    """A takeover is decided. Kafka has the segment's operations up to `written`: append those behind it from now on.

    None: a reset comes. Append nothing before its rows are asked for.
    """

    segment: int
    written: int | None


@dataclass(frozen=True, slots=True)
class ReadRows:
    """The begin of a reset is in Kafka: read the segment's entries, listed from now on."""

    segment: int
    reset_id: str


@dataclass(frozen=True, slots=True)
class Correct:
    """Kafka holds changes of these keys that the stream does not have: append what their entries are, or changes."""

    segment: int
    keys: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class PositionRead:
    """A position of the segment was read on the positions topic."""

    segment: int
    state: PositionState


Effect = (
    OpenProducer
    | Commit
    | Fence
    | FindHanging
    | EndHanging
    | Scan
    | Corrected
    | Released
    | SteppedDown
    | Superseded
    | SnapshotRead
    | SnapshotRefused
    | Count
    | Decided
    | ReadRows
    | Correct
    | PositionRead
)


@dataclass(frozen=True, slots=True)
class ScannedRecord:
    """What the core needs of a record of the change topic. `key` is the entry key, decoded by the shell."""

    offset: int
    kind: Kind
    segment: int
    epoch: int
    sequence: int
    key: bytes
    control: Mapping[str, Any]
    gone: bool = False
    """Whether it is a delete or tombstone; set only where the scan asked for keys."""
