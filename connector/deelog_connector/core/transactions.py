"""The producer's session and its transactions: one at a time, what their outcomes mean, and which record is refused."""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import Enum, auto
from itertools import chain

from deelog_connector.core.batch import Advance, Batch
from deelog_connector.core.batch_builder import BatchBuilder
from deelog_connector.core.effects import Cause, Commit, Effect, OpenProducer, OperationsItem
from deelog_connector.core.hanging import HangingTransactions
from deelog_connector.core.ledger import CommittedRun
from deelog_connector.core.resets import Resets
from deelog_connector.core.room import Room
from deelog_connector.core.segment import RESETTING, UNDECIDED, Phase, Segment
from deelog_connector.core.snapshots import Snapshots
from deelog_connector.core.state import MIN_BATCH_BYTES, NodeState
from deelog_connector.core.takeover import Takeover


class ProducerState(Enum):
    """The producer's session."""

    NONE = auto()
    OPENING = auto()
    OPEN = auto()


class Transactions:
    """See the module."""

    def __init__(
        self,
        node: NodeState,
        takeover: Takeover,
        resets: Resets,
        snapshots: Snapshots,
        room: Room,
        hanging: HangingTransactions,
    ) -> None:
        self.paused = False
        self.closed = False
        self.producer = ProducerState.NONE
        self._node = node
        self._takeover = takeover
        self._resets = resets
        self._snapshots = snapshots
        self._room = room
        self._hanging = hanging
        self._builder = BatchBuilder(node, takeover, resets, snapshots)
        self._batch: Batch | None = None
        self._token = 0
        self._committed_at = 0.0
        self._opening_at = 0.0
        self._committed_bytes = 0
        self._suspects: list[Sequence[int]] = []
        """After a refusal: the groups of segments that are still to be tried by themselves, the next one last."""
        self._is_trial = False
        """Whether the transaction under way has entries of the last group alone."""

    # -- the session ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no transaction is under way and no session is being opened."""
        return self._batch is None and self.producer is not ProducerState.OPENING

    @property
    def waits_since(self) -> float:
        """Since when a transaction, or the opening of a session, is not answered; now where nothing is under way."""
        if self.idle:
            return self._node.now
        return self._opening_at if self._batch is None else self._committed_at

    def open(self) -> list[Effect]:
        """Asks for a session where there is none."""
        if self.producer is not ProducerState.NONE or self._batch is not None or self.closed:
            return []
        self.producer, self._opening_at = ProducerState.OPENING, self._node.now
        return [OpenProducer()]

    def producer_opened(self, spare: bool = False) -> None:
        """A new session of the producer, or of the spare one, is open."""
        self.producer, self._node.spare = ProducerState.OPEN, spare

    def opening_given_up(self) -> None:
        """The session that was asked for does not come. `poll` asks for another, unless `closed`."""
        assert self.producer is ProducerState.OPENING
        self.producer = ProducerState.NONE

    def reopen(self) -> None:
        """Nothing is assumed of what was under way: a new session, and each segment looks again."""
        if self.producer is not ProducerState.OPENING:  # a session that is not open yet holds nothing
            self.producer = ProducerState.NONE
        for segment in self._node.primaries.values():
            # CHECK recheck-after-fence
            segment.look_again()

    def forget(self) -> None:
        """The session is gone, with what was under way in it."""
        self._batch, self.producer = None, ProducerState.NONE
        self.reopen()

    # -- a transaction --------------------------------------------------------------------------------------------

    @property
    def segments(self) -> set[int]:
        """The segments of the transaction under way."""
        return {item.segment for item in self._batch.items} if self._batch else set()

    def begin(self, working: list[Segment]) -> list[Effect]:
        """The next transaction, where there is anything to write and nothing is under way."""
        if self.producer is not ProducerState.OPEN or self._batch is not None or self.paused:
            return []
        if self._committed_bytes:
            self._node.took(self._node.now - self._committed_at, self._committed_bytes)
            self._committed_bytes = 0
        batch = self._next_batch(working)
        if not batch.items:
            self._snapshots.committed(batch)  # of keys that are gone, or come as changes: there is nothing to write
            return self._node.take_outbox()
        self._batch, batch.ends = batch, dict(self._node.changes.ends)
        self._token += 1
        self._committed_at = self._node.now
        return [Commit(self._token, batch.items)]

    def next_poll(self, now: float) -> float:
        """Seconds until the commit interval is over."""
        return max(0.0, self._committed_at + self._node.settings.commit_interval - now)

    def committed(self, token: int) -> None:
        """The transaction is committed, says the client. What that means for positions is read back."""
        batch = self._take(token)
        self._node.counts.transactions += 1
        self._committed_bytes = batch.size
        self._hanging.committed(batch.items)
        for advance in batch.advances:
            segment = self._node.primaries.get(advance.segment)
            if segment is None or segment.generation != advance.generation or segment.phase is not advance.phase:
                continue
            segment.asked_at = self._node.now
            self._advance(segment, advance, batch)
        if self._is_trial and batch.writers and (left := self._untested(self._suspects.pop())):
            self._suspects.append(left)
        self._snapshots.committed(batch)

    def commit_failed(self, token: int, cause: Cause) -> None:
        """The transaction is not committed, or nobody knows."""
        batch = self._take(token)
        if cause is Cause.REFUSED:
            self._bisect(batch)
        else:
            self._node.counts.refused += 1
            too_slow = self._node.took(self._node.now - self._committed_at, batch.size, committed=False)
            if too_slow and cause is Cause.FENCED:
                self._give_up(batch)
        self.reopen()

    def _give_up(self, batch: Batch) -> None:
        """Gives up runs that must be one transaction each, and are much more than what Kafka takes in time.

        The rows of a reset come in as many transactions as it takes. FENCED is what a coordinator answers that has
        aborted a transaction for its age; where Kafka is away, it is no measure.
        """
        limit = self._node.max_batch_bytes
        for item in batch.items:
            segment = self._node.primaries.get(item.segment)
            if segment is None or not isinstance(item, OperationsItem):
                continue
            size = sum(operation.size for operation in item.operations)
            is_run = item.operations[-1].sequence == segment.atomic_to
            if is_run and (size >= 8 * limit or size > limit == MIN_BATCH_BYTES):
                self._room.overflow(segment.number)

    def _next_batch(self, working: list[Segment]) -> Batch:
        node, self._is_trial = self._node, True
        for _ in range(len(self._suspects)):
            group = self._suspects[-1]
            batch = self._builder.only(group)
            if batch.items:
                return batch
            self._suspects.pop()
            if self._untested(group):  # it waits for Kafka, perhaps for long: nobody waits for it
                self._suspects.insert(0, group)
        self._is_trial = False
        suspected = set(chain.from_iterable(self._suspects))
        working = [segment for segment in working if segment.number not in suspected]
        return self._builder.next(working, due=node.now - self._committed_at >= node.settings.commit_interval)

    def _take(self, token: int) -> Batch:
        batch, self._batch = self._batch, None
        assert batch is not None
        assert token == self._token, f"transaction {token} is not under way"
        return batch

    def _advance(self, segment: Segment, advance: Advance, batch: Batch) -> None:
        if segment.phase in (Phase.CLAIM, Phase.ACTIVE):
            self._takeover.committed(segment)
        elif segment.phase is Phase.OWED:
            segment.go(Phase.BEGUN)
        elif segment.phase is Phase.ROWS:
            self._resets.rows_committed(segment, advance.value, advance.ended)
        else:
            assert segment.phase is Phase.WRITING
            self._node.counts.written += advance.value - segment.sent
            segment.sent = advance.value
            offset = batch.ends.get(segment.partition, -1)
            segment.ledger.committed(CommittedRun(advance.first, advance.value, advance.count, offset))

    # -- refused records ------------------------------------------------------------------------------------------

    def _bisect(self, batch: Batch) -> None:
        """The broker refused a record: finds its segment by halves; it stops, visibly, and the others go on."""
        writers = batch.writers
        if self._is_trial:
            self._suspects.pop()
        if len(writers) > 1:
            half = len(writers) // 2
            self._suspects += [writers[half:], writers[:half]]
            return
        for number in writers:
            segment = self._node.primaries.get(number)
            # If a snapshot had rows in it, the operations are tried again without them.
            if segment is not None and not self._snapshots.refused(segment, batch):
                self._stop(segment)

    def _stop(self, segment: Segment) -> None:
        if segment.phase in (Phase.WRITING, Phase.ROWS):
            self._node.counts.resets_aborted += segment.phase is Phase.ROWS
            segment.reset, segment.stopped_by = None, "the broker refused a record of it (too large?)"
            segment.go(Phase.STOPPED)

    def _untested(self, numbers: Container[int]) -> list[int]:
        """Which of these suspects have yet to write what they may be stopped for: a reset does it a chunk at a time.

        One that is withheld may be suspected again: the others do not wait for it.
        """
        segments = [s for s in self._node.writable(self._node.primaries.values()) if s.number in numbers]
        return [s.number for s in segments if s.phase in UNDECIDED or s.phase in RESETTING]
