"""The seam between a cache and the connector: all that an interceptor sees of the connector's insides.

An interceptor implements `CacheSide` and calls `Connector.sink`. A cache of one process needs `CaptureSink`, one
whose entries have copies on other nodes `ReplicaSink`. Every call comes on the connector's event loop and returns at
once; none does I/O. `docs/howto/interceptor.md` builds an interceptor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

from deelog_connector.core.history import History, common_point, cut, last_of
from deelog_connector.core.oplog import Budget
from deelog_connector.core.segment import Counted
from deelog_connector.core.settings import StreamState
from deelog_schemas.operation import Entry, Operation, Trace
from deelog_schemas.positions import PositionState


class CacheSide(Protocol):
    """What an interceptor gives the connector. Called on the loop's thread; none of them may block."""

    def entries(self, segment: int) -> list[Entry]:
        """All live entries of a segment, consistent with `sink.last_sequence(segment)` at this moment."""

    def get(self, segment: int, key: bytes) -> Entry | None:
        """One live entry."""

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        """The core appended corrections: replicate and acknowledge them like any other operation."""

    def released(self, segment: int) -> None:
        """The segment's release is committed and read back."""

    def stepped_down(self, segment: int, reason: str) -> None:
        """A higher claim was read: this node is no primary of the segment until it is promoted again."""


class StreamSide(StreamState):
    """What an interceptor gives the connector whose cache is in another process, and tells its changes as a stream.

    Instead of `CacheSide`. None of these calls blocks either: what they ask for is answered by calls of `StreamSink`.
    """

    @abstractmethod
    def count(self, segment: int, generation: int, position: PositionState | None) -> None:
        """Nobody else writes the segment any more. Read the stream up to where it is now; then call `sink.counted`."""

    @abstractmethod
    def decided(self, segment: int, written: int | None) -> None:
        """Kafka has the operations up to `written`: append those behind it. None: a reset comes, append none.

        Call `sink.resumed` first.
        """

    @abstractmethod
    def read_rows(self, segment: int, reset_id: str) -> None:
        """List the segment's entries, from now on, and read them; then call `sink.rows_read`. Append none before."""

    @abstractmethod
    def correct(self, segment: int, keys: frozenset[bytes]) -> None:
        """Append of each of these keys what its entry is, as a correction, or a change of it that is later."""

    @abstractmethod
    def position_read(self, segment: int, state: PositionState) -> None:
        """Kafka has this position of the segment, from whomever."""

    @abstractmethod
    def released(self, segment: int) -> None:
        """The segment's release is committed and read back."""

    @abstractmethod
    def stepped_down(self, segment: int, reason: str) -> None:
        """A higher claim was read: this node is no primary of the segment until it is promoted again."""


class CaptureSink(Protocol):
    """What takes the changes of the segments that this process owns: `deelog_connector.core.ConnectorCore`.

    Segments are numbered from 0 to `segment.count` - 1; `deelog_schemas.keys.segment_of` gives a key's.
    """

    @property
    def budget(self) -> Budget:
        """What the op logs may hold together, and do hold."""

    def has_room(self, size: int) -> bool:
        """Whether the op logs take one more operation of `size` bytes (`Operation.size`)."""

    def promote(self, segment: int, epoch: int, must_reset: str | None = None) -> None:
        """This process owns the segment in `epoch`. `must_reset` says why the segment must be sent anew.

        Raises `ValueError` for an epoch that is not above the last one in which this process owned it.
        """

    def append(
        self,
        segment: int,
        reason: str,
        key: bytes,
        value: bytes | None,
        expires_at: int | None,
        ts_us: int,
        existed: bool,
        before: bytes | None = None,
        trace: Trace | None = None,
        skipped: int = 0,
    ) -> Operation:
        """Captures a change of a segment that was promoted: it takes the segment's next position. Never fails or waits.

        `reason` is a `Reason`; a clear has the key `b""`. `value` is None for what removes. `expires_at` is in Unix
        milliseconds, `ts_us`, the moment of the change, in Unix microseconds. `existed`: whether the key had an entry.
        `before` is its value before the change where `before.image=full`. `skipped`: so many of a stream's operations
        before it have given way to later ones of their keys, and take a position each.
        """

    def acked(self, segment: int, sequence: int) -> None:
        """Every owner that counts holds the segment's operations up to here: only these are written to Kafka."""

    def last_sequence(self, segment: int) -> int:
        """The sequence of the segment's last operation; 0 before the first."""

    def highest_claim(self) -> int:
        """The highest epoch that any process ever claimed a segment of this cache in; 0 for none."""

    def phase(self, segment: int) -> str:
        """How far the segment's takeover is: `writing` once changes are written, `released`, `idle` if not owned."""

    def withholds(self, segment: int) -> bool:
        """Whether the segment's partition takes nothing at the moment, or was not read yet: its writes wait."""

    def unwritten(self) -> int:
        """Acknowledged operations, resets and takeovers that Kafka is not yet known to hold."""


class StreamSink(CaptureSink, Protocol):
    """What a cache needs besides whose changes come as a stream."""

    def counted(self, segment: int, generation: int, counted: Counted) -> None:
        """Answers `StreamSide.count`; of an older generation it is passed over."""

    def resumed(self, segment: int) -> None:
        """Answers `StreamSide.decided`."""

    def rows_read(self, segment: int, reset_id: str, entries: list[Entry]) -> bool:
        """Answers `StreamSide.read_rows`: the entries at `last_sequence(segment)`. False where nobody waits for it.

        An entry may be ahead of that; the interceptor's `source` then says so.
        """

    def request_reset(self, segment: int, reason: str) -> None:
        """The stream has lost something of a segment that this process writes."""

    def position(self, segment: int) -> PositionState | None:
        """The segment's position that was read last."""

    def demote(self, segment: int) -> None:
        """The cache that this process reads is no primary of the segment any more."""

    def release(self, segment: int) -> None:
        """Gives the segment up once all of it is written; `StreamSide.released` follows."""


class ReplicaSink(CaptureSink, Protocol):
    """What a cache with copies on several nodes needs besides."""

    @property
    def paused(self) -> bool:
        """Whether nothing is written to Kafka for now."""

    def met(self, members: Iterable[str]) -> None:
        """These own segments, or did. Who takes over from one ends what it has left open in Kafka, and needs its name,
        which the positions topic may have lost."""

    def apply(self, segment: int, operation: Operation) -> None:
        """A backup applied an operation of the primary. They come in sequence order."""

    def acked_here(self, segment: int, sequence: int) -> None:
        """Operations up to here may be written though in-sync backups may lack them: `cache.acks` is below `all`."""

    def demote(self, segment: int) -> None:
        """This node is a backup from now on; history and op log stay."""

    def release(self, segment: int) -> None:
        """Gives the segment up once all of it is written; `CacheSide.released` follows."""

    def keep(self, segment: int) -> bool:
        """Takes a `release` back; False where Kafka has it. One on its way may arrive: the segment is claimed again."""

    def waits(self, seconds: float) -> bool:
        """Whether Kafka has not answered for so long: a transaction, the opening of a session, a release."""

    def forget(self, segment: int) -> None:
        """This node holds no copy any more; history and op log are dropped."""

    def history(self, segment: int) -> History:
        """The epochs of the segment and the last sequence of each; empty if this node never held it."""

    def captured_after(self, segment: int, sequence: int) -> int | None:
        """When the first operation after `sequence` in the op log was captured, in Unix microseconds."""

    def operations_after(self, segment: int, sequence: int) -> list[Operation] | None:
        """The operations that a backup lacks which has those up to `sequence`; None if the op log lacks some."""

    def truncate(self, segment: int, sequence: int) -> list[bytes] | None:
        """Drops the operations after `sequence`; returns their keys, or None where they are not known any more."""

    def adopt(self, segment: int, history: History) -> None:
        """Takes the primary's history, as far as this backup has applied it. Truncate first."""

    def install(self, segment: int, history: History, sequence: int) -> None:
        """A copy of the primary's entries, taken at `sequence`, replaced those of this backup."""


class Sink(ReplicaSink, StreamSink, Protocol):
    """All of it: what a connector has."""


__all__ = [
    "Budget",
    "CacheSide",
    "CaptureSink",
    "Counted",
    "History",
    "ReplicaSink",
    "Sink",
    "StreamSide",
    "StreamSink",
    "common_point",
    "cut",
    "last_of",
]
