"""Kafka in memory: the guarantees that the protocol relies on, and its failures.

Transactions that are open, committed or aborted; the last stable offset, after which no consumer reads; fencing by
transactional id; the transaction timeout; markers that take an offset; truncation after an unclean election with a new
leader epoch; retention; compaction; a topic that is deleted and made again; brokers that are unavailable, all of them,
one leader, its followers, or one coordinator; quotas; answers that are lost; missing rights. That a real broker does
the same is tested by `tests/connector/kafka/contract`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import InRecord, OutRecord
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.group import Group
from deelog_proof.memory.log import Log, Transaction, headers_of

DEFAULTS: Final = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""The settings of a topic, as a broker has them by default."""
OVERHEAD: Final = 70
"""Bytes that a batch adds to one record."""


class BrokerError(Exception):
    """What a request ends with, if not with an answer."""


class Unanswered(BrokerError):
    """Nobody answers: the brokers are away, or the one leader or coordinator that could."""


class HeldUp(Unanswered):
    """The last transaction of the id is decided, and one of its partitions takes no marker."""


class UnknownTopic(BrokerError):
    """There is no such topic, or it has no such partition."""


class InvalidSetting(BrokerError):
    """A topic cannot have this setting."""


class UnknownMember(BrokerError):
    """The group does not have this member (any more)."""


class OldGeneration(BrokerError):
    """The group has changed since the member heard of it."""


class InvalidTimestamp(BrokerError):
    """A record's time is too far from the brokers'."""


class OutOfRange(BrokerError):
    """The log does not have this offset, or no longer as it was."""


class Denied(BrokerError):
    """A right is missing."""

    def __init__(self, operation: str, kind: str, name: str) -> None:
        super().__init__(f"{operation} on {kind} {name}")
        self.operation, self.kind, self.name = operation, kind, name


class Failed(BrokerError):
    """The brokers refuse to go on with a transaction."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


class Fetched(NamedTuple):
    """Committed records of a partition; which offset to fetch next, behind markers and aborted records; the leader
    epoch of the one before it, which may be a marker's; and whether there is nothing more."""

    records: list[InRecord]
    following: int
    epoch: int
    at_end: bool


@dataclass(slots=True)
class Topic:
    """`settings` has those that were set."""

    id: str
    partitions: int
    settings: dict[str, str]

    def setting(self, name: str) -> str:
        """The one in effect."""
        return self.settings.get(name) or DEFAULTS[name]

    def check_age(self, ms: float) -> None:
        """Raises `InvalidTimestamp` where a record is too old, or from too far in the future."""
        after, before = (int(self.setting(f"message.timestamp.{name}.max.ms")) for name in ("after", "before"))
        if ms > before or -ms > after:
            raise InvalidTimestamp(f"{ms:.0f} ms old")


class Kafka:
    """All brokers as one. `on_stable(log)` is called when a last stable offset moves, `on_loss(records)` when a
    transaction is committed that had lost these records, or they are aborted though the rest of it was committed.

    The first part has what the brokers do; the second is what clients ask, which fails as tests want it to.
    """

    def __init__(self, engine: Engine, transaction_timeout: float = 60.0) -> None:
        self.engine = engine
        self.timeout = transaction_timeout
        """Seconds, of sessions that name none."""
        self.topics: dict[str, Topic] = {}
        self.logs: dict[tuple[str, int], Log] = {}
        self.groups: dict[str, Group] = {}
        self.sessions: dict[str, int] = {}
        self.transactions: dict[str, Transaction] = {}
        self._up = True
        self._leaderless: set[tuple[str, int]] = set()
        """Partitions without a leader."""
        self._lacking: set[tuple[str, int]] = set()
        """Partitions with fewer replicas in sync than they take records with."""
        self._untold: dict[tuple[str, int], float] = {}
        """Partitions that have lost their leader, and when that is known; until then markers wait for it."""
        self._ending: dict[str, Transaction] = {}
        """Transactions whose fate is decided, and whose markers wait for the replicas of the rest of `added`."""
        self.bytes_per_second = math.inf
        """What each producer may send: a quota. It waits behind each record."""
        self.uncoordinated: set[str] = set()
        """Transactional ids and groups whose coordinator is away."""
        self.silent: set[str] = set()
        """Transactional ids whose next commit takes effect, but is not answered."""
        self.lost: dict[str, bool] = {}
        """Transactional ids whose next commit fails with LOST, and whether it takes effect all the same."""
        self.denied: set[tuple[str, str]] = set()
        """Rights that are missing: `("Write", name of a topic or transactional id)`, `("Read", topic or group)`."""
        self.refused: set[bytes] = set()
        """Record keys that are refused as too large."""
        self.on_stable: Callable[[Log], None] = lambda log: None
        self.on_loss: Callable[[list[InRecord]], None] = lambda records: None
        self.counts: dict[str, int] = dict.fromkeys(
            ("commits", "aborts", "timeouts", "fenced_commits", "zombie_appends", "fences"), 0
        )
        self._timeouts: dict[str, float] = {}
        self._created = 0
        self._answered: dict[str, tuple[int, int, list[OutRecord]]] = {}
        """The last answer of `produce`, by transactional id."""

    @property
    def up(self) -> bool:
        """Whether the brokers answer."""
        return self._up

    @up.setter
    def up(self, value: bool) -> None:
        if value and not self._up:
            for group in self.groups.values():
                group.hear_all()
        self._up = value

    # -- topics -------------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int, settings: Mapping[str, str] | None = None) -> None:
        """A new topic, with an id of its own. Raises `InvalidSetting`."""
        for name, value in (settings or {}).items():
            if DEFAULTS.get(name, "").isdigit() and not value.lstrip("-").isdigit():
                raise InvalidSetting(f"{name}={value}")
        self._created += 1
        self.topics[topic] = Topic(f"t{self._created}", partitions, dict(settings or {}))
        self.logs |= {(topic, p): Log(topic, p) for p in range(partitions)}

    def delete(self, topic: str) -> None:
        """A topic is deleted, with all of its records."""
        for partition in range(self.topics.pop(topic).partitions):
            gone = self.logs.pop((topic, partition))
            for transaction in [*self.transactions.values(), *self._ending.values()]:
                transaction.first.pop(gone, None)
                transaction.added.pop(gone, None)
            self.recover(topic, partition)

    def recreate(self, topic: str) -> None:
        """A topic is deleted and made again."""
        old = self.topics[topic]
        self.delete(topic)
        self.create(topic, old.partitions, old.settings)

    # -- producers ----------------------------------------------------------------------------------------------------

    def init(self, transactional_id: str, by: str = "", timeout: float | None = None) -> int:
        """`init_transactions`: a new session; aborts the open transaction of the last one."""
        self.counts["fences"] += by != transactional_id
        self._end(transactional_id, "aborted")
        self.sessions[transactional_id] = self.sessions.get(transactional_id, 0) + 1
        if timeout is not None:
            self._timeouts[transactional_id] = timeout
        return self.sessions[transactional_id]

    def append(self, transactional_id: str, session: int, records: Sequence[OutRecord]) -> Cause | None:
        """Appends to the session's transaction, beginning it if needed. Returns the cause of an error, or None."""
        if self.sessions.get(transactional_id) != session:
            self.counts["zombie_appends"] += 1
            return Cause.FENCED
        if any(map(self._too_large, records)):
            return Cause.REFUSED
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id)
            self.engine.after(self._timeouts.get(transactional_id, self.timeout), self.expire, transaction)
        for record in records:
            log = self.logs[record.topic, record.partition]
            transaction.added[log] = None
            transaction.first.setdefault(log, log.end)
            log.append(record, transaction)
        return None

    def _too_large(self, record: OutRecord) -> bool:
        if record.key in self.refused and record.value is not None:
            return True
        return size_of(record) > int(self.topics[record.topic].setting("max.message.bytes"))

    def commit(self, transactional_id: str, session: int) -> Cause | None:
        """Commits the open transaction. Returns the cause of an error, or None."""
        if self.sessions.get(transactional_id) != session:
            self.counts["fenced_commits"] += 1
            return Cause.FENCED
        self._end(transactional_id, "committed")
        return None

    def abort(self, transactional_id: str, session: int) -> None:
        """Aborts the open transaction."""
        if self.sessions.get(transactional_id) == session:
            self._end(transactional_id, "aborted")

    def expire(self, transaction: Transaction) -> None:
        """The transaction timeout: the broker aborts it and fences its producer."""
        if transaction.state == "open":
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
        self._ending[transactional_id] = transaction
        self._mark(transactional_id)

    def _mark(self, transactional_id: str) -> None:
        """Writes the markers of a transaction whose fate is decided, on the partitions that take them."""
        transaction = self._ending[transactional_id]
        led = [log for log in transaction.added if (log.topic, log.partition) not in self._leaderless]
        marked = [log for log in led if self.takes(log.topic, log.partition)]
        for log in marked:
            for former, here in log.end_transaction(transaction):
                if former.state != transaction.state:  # it is committed in a part of its partitions
                    elsewhere = [record for one in self.logs.values() for record in one.records_of(former)]
                    self.on_loss(here if former.state == "committed" else [*elsewhere, *former.left])
        # Without a leader it stays open there: the coordinator takes the partition for one that is deleted.
        transaction.added = {log: None for log in led if log not in marked}
        if not transaction.added:
            del self._ending[transactional_id]
        for log in marked:
            self.on_stable(log)

    def takes(self, topic: str, partition: int) -> bool:
        """Whether a partition takes records."""
        return all((topic, partition) not in those for those in (self._leaderless, self._lacking, self._untold))

    # -- failures -----------------------------------------------------------------------------------------------------

    def lose(self, topic: str, partition: int, leader: bool = True, told_after: float = 0.0) -> None:
        """The partition has no leader any more, or too few replicas in sync.

        A transaction that ends now stays open on a partition without leader, until the next one of its id that has
        records there ends, and ends like that one. With too few replicas it waits, and its id begins no other; so it
        does in the `told_after` seconds before the brokers know that the leader is away.
        """
        place = topic, partition
        if leader and told_after and self.takes(topic, partition):
            self._untold[place] = due = self.engine.now + told_after
            self.engine.after(told_after, self._tell, place, due)
        else:
            (self._leaderless if leader else self._lacking).add(place)

    def _tell(self, place: tuple[str, int], due: float) -> None:
        """The brokers know now that this partition has no leader, unless it is back."""
        if self._untold.get(place) == due:
            del self._untold[place]
            self._leaderless.add(place)
            self._mark_all()

    def recover_all(self) -> None:
        """All partitions take records again."""
        for topic, partition in sorted({*self._leaderless, *self._lacking, *self._untold}):
            self.recover(topic, partition)

    def recover(self, topic: str, partition: int) -> None:
        """The partition takes records again; from a leader of a new epoch, if it had none."""
        place = topic, partition
        if place in self._leaderless and place in self.logs:
            self.logs[place].elect()
        for those in (self._leaderless, self._lacking):
            those.discard(place)
        self._untold.pop(place, None)
        self._mark_all()

    def _mark_all(self) -> None:
        for transactional_id in list(self._ending):
            self._mark(transactional_id)

    def truncate(self, topic: str, partition: int, count: int) -> list[InRecord]:
        """An unclean election: a partition loses its last records. Returns the committed ones. None: a clean election.

        Whole transactions go: without its marker one would hang for ever, which only an operator can end.
        """
        log = self.logs[topic, partition]
        keep = max(0, len(log.slots) - count)
        for at in range(len(log.slots) - 1, -1, -1):
            transaction = log.slots[at].transaction
            if at >= keep and transaction is not None:
                # A marker may be all that there is of it.
                keep = min(keep, max(0, transaction.first.get(log, log.first + at) - log.first))
        lost = []
        for slot in log.slots[keep:]:
            if slot.record is not None:
                if slot.transaction is None or slot.transaction.state == "committed":
                    lost.append(slot.record)
                elif slot.transaction.state == "open":
                    slot.transaction.cut.append(slot.record)
        del log.slots[keep:]
        log.elect()
        log.open = {tid: at for tid, at in log.open.items() if at < log.end}
        for transaction in [*self.transactions.values(), *self._ending.values()]:
            if transaction.first.get(log, -1) >= log.end:
                del transaction.first[log]
                transaction.added.pop(log, None)
        return lost

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Retention, or an operator: the records before an offset go."""
        log = self.logs[topic, partition]
        gone = min(max(before - log.first, 0), len(log.slots))
        del log.slots[:gone]
        log.first += gone

    def compact(self, topic: str) -> None:
        """Keeps the last record of each key, below the last stable offset."""
        for partition in range(self.topics[topic].partitions):
            log = self.logs[topic, partition]
            last: dict[bytes | None, int] = {}
            for at, slot in enumerate(log.slots[: log.stable - log.first]):
                if slot.record is not None and (slot.transaction is None or slot.transaction.state == "committed"):
                    last[slot.record.key] = at
            for at, slot in enumerate(log.slots[: log.stable - log.first]):
                if slot.record is not None and last.get(slot.record.key) != at:
                    slot.record = None

    # -- what clients ask, with the exceptions above ------------------------------------------------------------------

    def allow(self, operation: str, kind: str, name: str) -> None:
        """Raises where this right is missing."""
        if (operation, name) in self.denied:
            raise Denied(operation, kind, name)

    def described(self, topic: str) -> Topic:
        """Of a topic, what any broker knows."""
        if not self.up:
            raise Unanswered
        self.allow("Describe", "topic", topic)
        if topic not in self.topics:
            raise UnknownTopic(topic)
        return self.topics[topic]

    def led(self, topic: str, partition: int) -> Log:
        """The log of a partition, from its leader."""
        if partition not in range(self.described(topic).partitions):
            raise UnknownTopic(f"{topic}[{partition}]")
        if (topic, partition) in self._leaderless or (topic, partition) in self._untold:
            raise Unanswered
        return self.logs[topic, partition]

    def unwritable(self, topic: str) -> frozenset[int]:
        """The partitions that take no records, as any broker knows."""
        known = self._leaderless | self._lacking
        return frozenset(p for p in range(self.described(topic).partitions) if (topic, p) in known)

    def fetch(self, topic: str, partition: int, at: int, epoch: int, limit: int) -> Fetched:
        """What is there from the offset `at` on.

        `epoch` is that of the last offset read. A topic that was made again is not noticed where it has the offset.
        """
        log = self.led(topic, partition)
        self.allow("Read", "topic", topic)
        if at < log.first or not log.holds(at, log.epoch if epoch < 0 else epoch):
            raise OutOfRange(f"{topic}[{partition}]@{at}")
        records, following = log.read(at, limit)
        epoch = log.epoch_of(following - 1) if following > at else epoch
        return Fetched(records, following, epoch, at_end=following >= log.stable)

    def coordinated(self, transactional_id: str) -> None:
        """Raises unless its coordinator answers."""
        if not self.up or transactional_id in self.uncoordinated:
            raise Unanswered
        self.allow("Write", "transactional_id", transactional_id)

    def open_session(self, transactional_id: str, by: str, timeout: float) -> int:
        """As `init`. Not answered before all markers of the last transaction are written."""
        self.coordinated(transactional_id)
        if transactional_id not in self._ending:
            session = self.init(transactional_id, by, timeout)
            if transactional_id not in self._ending:
                return session
        raise HeldUp

    def produce(
        self,
        transactional_id: str,
        session: int,
        number: int,
        records: Sequence[OutRecord],
        stamped: float = math.nan,
        unreached: Container[tuple[str, int]] = (),
        largest: int = 0,
    ) -> list[OutRecord]:
        """As `append`. Returns the records whose partition takes none, or is unreached: they were not appended.

        The client makes batches of them of at most `largest` bytes, 0: one of each, and a topic takes a whole one or
        none of it.

        `stamped` is the time of the records, of the engine's in seconds; without it they have the brokers'.

        Asked again with the same `number`, since the answer was lost, it appends nothing.
        """
        self.coordinated(transactional_id)
        answered = self._answered.get(transactional_id)
        if answered is not None and answered[:2] == (session, number):
            return answered[2]
        for record in records:
            self.allow("Write", "topic", record.topic)
            if record.partition not in range(self.described(record.topic).partitions):
                raise UnknownTopic(f"{record.topic}[{record.partition}]")
        for topic in dict.fromkeys(record.topic for record in records):
            self.topics[topic].check_age(1000 * (self.engine.now - stamped))
        if transactional_id in self._ending:
            raise HeldUp
        led: list[OutRecord] = []
        left: list[OutRecord] = []
        for record in records:
            place = record.topic, record.partition
            (led if self.takes(*place) and place not in unreached else left).append(record)
        topics = dict.fromkeys(record.topic for record in led)
        limits = {topic: int(self.topics[topic].setting("max.message.bytes")) for topic in topics}
        if any(limit < largest for limit in limits.values()) and any(
            size > limits[topic] for topic, size in batches(led, largest)
        ):
            raise Failed(Cause.REFUSED)
        cause = self.append(transactional_id, session, led)
        if cause is not None:
            raise Failed(cause)
        transaction = self.transactions[transactional_id]
        transaction.left = [InRecord(r.topic, r.partition, -1, r.key, r.value, headers_of(r)) for r in left]
        for record in left:
            transaction.added[self.logs[record.topic, record.partition]] = None
        self._answered[transactional_id] = session, number, left
        return left

    def end_session(self, transactional_id: str, session: int) -> None:
        """As `commit`. Asked again, it has no effect."""
        self.coordinated(transactional_id)
        takes_effect = self.lost.pop(transactional_id, None)
        cause = None if takes_effect is False else self.commit(transactional_id, session)
        if takes_effect is not None:
            cause = cause or Cause.LOST
        if cause is not None:
            raise Failed(cause)
        if transactional_id in self.silent:
            self.silent.discard(transactional_id)
            raise Unanswered

    def write(self, record: OutRecord) -> None:
        """A record outside of any transaction."""
        log = self.led(record.topic, record.partition)
        if not self.takes(record.topic, record.partition):
            raise Unanswered
        self.allow("Write", "topic", record.topic)
        if self._too_large(record):
            raise Failed(Cause.REFUSED)
        log.append(record, None)
        self.on_stable(log)

    def group(self, name: str) -> Group:
        """A group, from its coordinator."""
        group = self.groups.setdefault(name, Group(self.engine))
        if not self.up or name in self.uncoordinated:
            raise Unanswered
        self.allow("Read", "group", name)
        return group

    def join_group(
        self, name: str, member: str, client_id: str, timeout: float, aside: bool = False
    ) -> tuple[int, bool]:
        """Returns the group's generation, and whether the member is assigned the partition."""
        group = self.group(name)
        group.join(member, client_id, timeout, aside)
        return group.generation, group.holder == member

    def hear(self, name: str, member: str) -> tuple[int, bool]:
        """As `join_group`, of a member that sends a heartbeat."""
        group = self.group(name)
        if member not in group:
            raise UnknownMember(member)
        group.hear(member)
        return group.generation, group.holder == member

    def stand(self, name: str, member: str) -> None:
        """The member has stood aside, and may be elected from now on."""
        self.group(name).stand(member)

    def join_transaction(self, transactional_id: str, session: int, name: str, member: str, generation: int) -> None:
        """The transaction is to succeed only if the member still belongs to this generation of its group."""
        self.coordinated(transactional_id)
        group = self.group(name)
        if self.sessions.get(transactional_id) != session:
            raise Failed(Cause.FENCED)
        if member not in group:
            raise UnknownMember(member)
        if group.generation != generation:
            raise OldGeneration(f"{generation} of {group.generation}")


def batches(records: Iterable[OutRecord], largest: int) -> Iterator[tuple[str, int]]:
    """Topic and size of each batch that a client makes of them."""
    sizes: dict[tuple[str, int], int] = {}
    for record in records:
        place, size = (record.topic, record.partition), size_of(record)
        filled = sizes.get(place, 0)
        if filled and filled + size > largest:
            yield record.topic, filled
            filled = 0
        sizes[place] = filled + size
    yield from ((topic, size) for (topic, _), size in sizes.items())


def size_of(record: OutRecord) -> int:
    """The bytes of a batch of one record."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return OVERHEAD + len(record.key) + len(record.value or b"") + headers
