"""One partition of a Kafka in memory: its records, its open transactions, its leader epochs."""

from __future__ import annotations

from dataclasses import dataclass, field

from deelog_connector.kafka_port import InRecord, OutRecord


@dataclass(slots=True)
class Transaction:
    """`state`: open, committed, aborted."""

    transactional_id: str
    state: str = "open"
    first: dict[Log, int] = field(default_factory=dict)
    """The first offset on each partition that it has written to."""
    added: dict[Log, None] = field(default_factory=dict)
    """Its partitions, in order, also those that have none of its records yet: each gets a marker at its end."""
    cut: list[InRecord] = field(default_factory=list)
    """Its records that an unclean election removed while it was open; it can be committed all the same."""
    left: list[InRecord] = field(default_factory=list)
    """Its records that no partition has taken yet."""


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
        return max(self.first, min(self.open.values(), default=self.end))

    @property
    def hanging(self) -> InRecord | None:
        """The first record behind the last stable offset."""
        hidden = (slot.record for slot in self.slots[self.stable - self.first :])
        return next((record for record in hidden if record is not None), None)

    def append(self, record: OutRecord | None, transaction: Transaction | None) -> None:
        """A record, or a marker."""
        offset, read = self.end, None
        if record is not None:
            read = InRecord(self.topic, self.partition, offset, record.key, record.value, headers_of(record))
            if transaction is not None:
                self.open.setdefault(transaction.transactional_id, offset)
        self.slots.append(Slot(read, transaction))

    def end_transaction(self, transaction: Transaction) -> list[tuple[Transaction, list[InRecord]]]:
        """Writes its marker, which also ends what earlier ones of its id have left open here: them, with records."""
        begin = self.open.pop(transaction.transactional_id, self.end)
        left_open: list[tuple[Transaction, list[InRecord]]] = []
        for slot in self.slots[max(0, begin - self.first) : transaction.first.get(self, self.end) - self.first]:
            former = slot.transaction
            if former is not None and former.transactional_id == transaction.transactional_id:
                if not left_open or left_open[-1][0] is not former:
                    left_open.append((former, []))
                if slot.record is not None:
                    left_open[-1][1].append(slot.record)
                if former.state != transaction.state:  # else the records of each stay known
                    slot.transaction = transaction
        if left_open:
            transaction.first[self] = begin
        self.append(None, transaction)
        return left_open

    def records_of(self, transaction: Transaction) -> list[InRecord]:
        """What is here of a transaction."""
        return [s.record for s in self.slots if s.transaction is transaction and s.record is not None]

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

    def elect(self) -> None:
        """A new leader, who has the log as it is now."""
        self.epoch += 1
        self.cuts = [(e, min(at, self.end)) for e, at in self.cuts] + [(self.epoch, self.end)]

    def holds(self, offset: int, epoch: int) -> bool:
        """Whether the log up to `offset` is the one of leader epoch `epoch` (KIP-320)."""
        later = [cut for at, cut in self.cuts if at > epoch]
        return offset <= min(later, default=self.end)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch under which an offset was written."""
        return max((epoch for epoch, begin in self.cuts if begin <= offset), default=0)


def headers_of(record: OutRecord) -> list[tuple[str, bytes | None]]:
    """As a reader gets them."""
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
