"""Kafka in memory: the guarantees that the protocol relies on, and its failures.

Transactions that are open, committed or aborted; the last stable offset, after which no consumer reads; fencing by
transactional id; the transaction timeout; markers that take an offset; truncation after an unclean election with a new
leader epoch; retention; compaction of the positions topic; a topic that is deleted and made again; brokers that are
unavailable. That a real broker does the same is tested by `tests/connector/runtime/test_connector.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from deelog_connector.core.effects import Cause
from deelog_connector.kafka.follower import TopologyRecord
from deelog_connector.kafka_port import InRecord, OutRecord
from deelog_proof.simulation.engine import Engine

CHANGES: Final = "p.c"
POSITIONS: Final = "p.c.positions"


@dataclass(slots=True)
class Transaction:
    """`state`: open, committed, aborted."""

    transactional_id: str
    state: str = "open"
    first: dict[Log, int] = field(default_factory=dict)
    """The first offset on each partition that it has written to."""
    cut: list[InRecord] = field(default_factory=list)
    """Its records that an unclean election removed while it was open; it can be committed all the same."""


@dataclass(slots=True)
class Slot:
    """One offset: a record, or None for a marker or a compacted record."""

    record: InRecord | None
    transaction: Transaction | None


class Log:
    """One partition. `first` is the log start offset, `epoch` the leader epoch."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.first = self.epoch = 0
        self.slots: list[Slot] = []
        self.open: dict[str, int] = {}
        """First offset of each open transaction, by transactional id."""
        self.cuts: list[tuple[int, int]] = []
        """`(leader epoch, offset)`: where each leader epoch but the first begins."""

    @property
    def end(self) -> int:
        """The next offset."""
        return self.first + len(self.slots)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)

    def append(self, record: OutRecord | None, transaction: Transaction | None) -> None:
        """A record, or a marker."""
        offset, read = self.end, None
        if record is not None:
            headers = [(n, v if isinstance(v, bytes) else None) for n, v in record.headers]
            read = InRecord(self.topic, self.partition, offset, record.key, record.value, headers)
            if transaction is not None:
                self.open.setdefault(transaction.transactional_id, offset)
        self.slots.append(Slot(read, transaction))

    def read(self, start: int, limit: int) -> tuple[list[InRecord], int]:
        """Committed records from `start` on, of at most `limit` offsets, and the next offset to read."""
        start = max(start, self.first)
        end = min(self.stable, start + limit)
        if end <= start:
            return [], start
        records = []
        for slot in self.slots[start - self.first : end - self.first]:
            if slot.record is not None and (slot.transaction is None or slot.transaction.state == "committed"):
                records.append(slot.record)
        return records, end

    def holds(self, offset: int, epoch: int) -> bool:
        """Whether the log up to `offset` is the one of leader epoch `epoch` (KIP-320)."""
        later = [cut for at, cut in self.cuts if at > epoch]
        return offset <= min(later, default=self.end)


class Kafka:
    """All brokers as one. `on_stable(log)` is called when a last stable offset moves, `on_loss(records)` when a
    transaction is committed that had lost these records."""

    def __init__(self, engine: Engine, partitions: int, transaction_timeout: float) -> None:
        self.engine = engine
        self.partitions = partitions
        self.timeout = transaction_timeout
        self.up = True
        self.topic_id = "t1"
        self.logs = {(t, p): Log(t, p) for t in (CHANGES, POSITIONS) for p in range(partitions)}
        self.topology: list[TopologyRecord] = []
        self.sessions: dict[str, int] = {}
        self.transactions: dict[str, Transaction] = {}
        self.refused: set[bytes] = set()
        """Record keys that are refused as too large."""
        self.on_stable: Callable[[Log], None] = lambda log: None
        self.on_loss: Callable[[list[InRecord]], None] = lambda records: None
        self.counts: dict[str, int] = dict.fromkeys(
            ("commits", "aborts", "timeouts", "fenced_commits", "zombie_appends", "fences"), 0
        )

    # -- producers --------------------------------------------------------------------------------------------------

    def init(self, transactional_id: str, by: str = "") -> int:
        """`init_transactions`: a new session; aborts the open transaction of the last one."""
        self.counts["fences"] += by != transactional_id
        self._end(transactional_id, "aborted")
        self.sessions[transactional_id] = self.sessions.get(transactional_id, 0) + 1
        return self.sessions[transactional_id]

    def append(self, transactional_id: str, session: int, records: Sequence[OutRecord]) -> Cause | None:
        """Appends to the session's transaction, beginning it if needed. Returns the cause of an error, or None."""
        if self.sessions.get(transactional_id) != session:
            self.counts["zombie_appends"] += 1
            return Cause.FENCED
        if any(r.key in self.refused and r.value is not None and r.topic == CHANGES for r in records):
            return Cause.REFUSED
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id)
            self.engine.after(self.timeout, self._expire, transaction)
        for record in records:
            log = self.logs[record.topic, record.partition]
            transaction.first.setdefault(log, log.end)
            log.append(record, transaction)
        return None

    def commit(self, transactional_id: str, session: int) -> Cause | None:
        """Commits the open transaction. Returns the cause of an error, or None."""
        if self.sessions.get(transactional_id) != session:
            self.counts["fenced_commits"] += 1
            return Cause.FENCED
        self._end(transactional_id, "committed")
        return None

    def _expire(self, transaction: Transaction) -> None:
        if transaction.state == "open":
            # The transaction timeout: the broker aborts it and fences its producer.
            self.counts["timeouts"] += 1
            self.init(transaction.transactional_id, transaction.transactional_id)

    def _end(self, transactional_id: str, state: str) -> None:
        transaction = self.transactions.pop(transactional_id, None)
        if transaction is None:
            return
        self.counts["commits" if state == "committed" else "aborts"] += 1
        transaction.state = state
        if transaction.cut and state == "committed":
            self.on_loss(transaction.cut)
        for log in transaction.first:
            log.open.pop(transactional_id, None)
            log.append(None, transaction)
        for log in transaction.first:
            self.on_stable(log)

    # -- the topology topic: each commit at once, by the controller's last session -------------------------------------

    def publish(self, key: str, value: bytes) -> None:
        """A record outside any transaction."""
        self.topology.append(TopologyRecord(len(self.topology), key, value))

    def publish_seated(self, session: int, key: str, value: bytes) -> bool:
        """A record of the controller; returns whether its session is still the last one."""
        if self.sessions.get("controller") != session:
            return False
        self.publish(key, value)
        return True

    # -- failures ---------------------------------------------------------------------------------------------------

    def truncate(self, partition: int, count: int) -> list[InRecord]:
        """An unclean election: a partition of the change topic loses its last records. Returns the committed ones.

        Whole transactions go: without its marker one would hang for ever, which only an operator can end.
        """
        log = self.logs[CHANGES, partition]
        keep = max(0, len(log.slots) - count)
        for at in range(len(log.slots) - 1, -1, -1):
            transaction = log.slots[at].transaction
            if at >= keep and transaction is not None:
                keep = min(keep, transaction.first[log] - log.first)
        lost = []
        for slot in log.slots[keep:]:
            if slot.record is not None and slot.transaction is not None:
                if slot.transaction.state == "committed":
                    lost.append(slot.record)
                elif slot.transaction.state == "open":
                    slot.transaction.cut.append(slot.record)
        del log.slots[keep:]
        log.epoch += 1
        log.cuts = [(e, min(at, log.end)) for e, at in log.cuts] + [(log.epoch, log.end)]
        log.open = {tid: at for tid, at in log.open.items() if at < log.end}
        for transaction in self.transactions.values():
            if transaction.first.get(log, -1) >= log.end:
                del transaction.first[log]
        return lost

    def recreate(self) -> None:
        """The change topic is deleted and made again."""
        self.topic_id = f"t{int(self.topic_id[1:]) + 1}"
        for partition in range(self.partitions):
            old = self.logs[CHANGES, partition]
            self.logs[CHANGES, partition] = Log(CHANGES, partition)
            for transaction in self.transactions.values():
                transaction.first.pop(old, None)

    def compact(self) -> None:
        """The positions topic keeps the last record of each key, below the last stable offset."""
        for partition in range(self.partitions):
            log = self.logs[POSITIONS, partition]
            last: dict[bytes | None, int] = {}
            for at, slot in enumerate(log.slots[: log.stable - log.first]):
                if slot.record is not None and (slot.transaction is None or slot.transaction.state == "committed"):
                    last[slot.record.key] = at
            for at, slot in enumerate(log.slots[: log.stable - log.first]):
                if slot.record is not None and last.get(slot.record.key) != at:
                    slot.record = None
