"""The port to Kafka: all that a connector asks of brokers, of clocks, of chance and of threads.

Two implementations: `deelog_connector.kafka`, on librdkafka, and Kafka in memory for tests and the simulation. One
contract suite (`tests/connector/kafka/contract`) runs on both. Weighed in docs/decisions.md, "One port to Kafka".

Rules of all calls:

- The answer is a value, and an error one of `deelog_connector.errors`, a `WriteFailed`, or a `ConfigError` where a
  secret of the configuration cannot be read now.
- Cancelling the task of a call does not stop the call: a cancelled commit may still take effect. The next call of the
  same session or reader begins after it has ended. Calls of `Brokers` may run at the same time.
- An iterable that is passed in is consumed on another thread than the loop's. What it raises is raised.
- A request takes at most `REQUEST_SECONDS`; where nobody answers it may take five more, to find out why.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from deelog_connector.core.effects import Cause
from deelog_schemas.config import Config

T = TypeVar("T")

REQUEST_SECONDS: Final = 10.0
"""Seconds that one request to the brokers may take before it fails."""
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
"""The settings of a topic of which only the last record of each key counts, and which whoever starts reads as a whole.

Kafka compacts no segment that is written to, and closes it by default after a gigabyte: of positions, hours of a load.
A megabyte is the least that Kafka 4 takes, and about its largest batch by default.
"""
HELD_UP_SECONDS: Final = 3.0
"""Seconds after which the opening of a session ends as held up."""
MAX_READ: Final = 2000
"""The most records of one `Reader.read`: they are processed without a pause."""
BEGINNING: Final = -1
"""The first offset of a partition."""


class OutRecord(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


class InRecord(NamedTuple):
    """One record read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


class TopicState(NamedTuple):
    """What all brokers know of a topic. A new topic of its name has another id."""

    topic_id: str
    unwritable: frozenset[int]
    """Partitions without a leader, with one that does not answer here while others do, or with fewer replicas in sync
    than they take records with."""


class PartitionEnd(NamedTuple):
    """The last stable offset of a partition, or the end of all its records, and its leader epoch."""

    partition: int
    offset: int
    leader_epoch: int


class WriteFailed(Exception):
    """A transaction was not committed. `cause` is what the core may assume.

    `denied`: the brokers refuse this user, or the configuration makes no client. It stays so until that is mended.
    `held_up`: the last transaction of the id does not end in time. Perhaps one of its partitions has too few replicas
    in sync; the others show what becomes of it. `uncoordinated`: the id's coordinator does not answer, though a broker
    does.
    """

    def __init__(
        self, cause: Cause, reason: str, *, denied: bool = False, held_up: bool = False, uncoordinated: bool = False
    ) -> None:
        super().__init__(f"{cause}: {reason}")
        self.cause, self.reason, self.denied = cause, reason, denied
        self.held_up, self.uncoordinated = held_up, uncoordinated


class Session(Protocol):
    """The transactional producer of one node. Its calls run one after the other."""

    async def open(self) -> None:
        """Begins a session, which fences every other one of the transactional id and aborts its open transaction.

        Raises `WriteFailed(LOST)`, never FENCED.
        """

    async def commit(self, records: Iterable[OutRecord]) -> None:
        """Writes all records in one transaction, and commits it. Without records nothing is asked of the brokers.

        When it returns, the records are committed; readers and `ends` may see them a moment later. A commit that is not
        answered is repeated until it is, until `give_up`, or until brokers answer others and not this session. Raises
        `WriteFailed`; the session is over then, and with LOST it is unknown whether the transaction was committed. What
        `records` raises ends the session, too.
        """

    async def abort(self, left_open: Sequence[tuple[str, int]]) -> None:
        """Aborts what an earlier transaction of the id has left open on these partitions, as `Brokers.fence` does.

        Raises as `commit`; the session is over then.
        """

    async def discard(self) -> None:
        """Ends the session. Its open transaction, if any, is aborted by the next session or by its timeout."""

    def give_up(self) -> None:
        """The call under way, or else the next one, does not wait for brokers that are unavailable: it raises
        `WriteFailed(LOST)`. An `open` under way ends with its request."""


class Reader(Protocol):
    """Reads committed records of one topic. For one task at a time, but for `close`."""

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Reads these partitions from these offsets on, and no others; none: it rests.

        A partition that does not have its offset (any more, or yet) is read from its beginning. Raises
        `KafkaUnavailable`, `KafkaUnauthorized`; the reader is where it was then.
        """

    async def read(self, seconds: float) -> list[InRecord]:
        """Up to `MAX_READ` records, in order for each partition. It may take all of `seconds` though there are some.

        Raises `KafkaUnauthorized` where the right to read was taken away: the next `read` continues; `KafkaUnusable`
        where the log does not have the next offset (any more): `seek` again. A deleted topic reads as one that nobody
        writes to: ask for its `topic_id`. Without brokers it returns nothing, and goes on when they are back. What a
        cancelled `read` has taken is lost: `seek` again.
        """

    @property
    def caught_up(self) -> bool:
        """Whether each partition was read to the end that it had at `seek`. To know it may take a `read` of nothing."""

    def next_offset(self, partition: int) -> int:
        """The offset behind the last record read, or that of `seek`. Markers of transactions may follow it."""

    async def close(self) -> None:
        """Ends it, once the read under way has ended."""


def session_seconds(config: Config) -> float:
    """After this without a sign of life the controller's place goes to another node."""
    return float(3 * config["cache.failure.timeout.ms"] / 1000)


def beat_seconds(config: Config) -> float:
    """The time between two signs of life to the controller's group.

    A rebalance, and with it the seat, waits until each member has heard of it by its next one.
    """
    return min(session_seconds(config) / 4, 1.0)


class Brokers(Protocol):
    """Requests about topics."""

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        """Creates a topic unless it exists. Raises `KafkaUnusable` where it has another number of partitions.

        `partitions` None: created with one, accepted with any number.
        """

    async def settings(self, topic: str) -> Mapping[str, str]:
        """A topic's effective settings. Raises `KafkaUnavailable`, also where no broker hears of the topic in time."""

    async def state(self, topic: str) -> TopicState:
        """Raises `KafkaUnavailable`, also without topic."""

    async def ends(self, topic: str, partitions: Iterable[int], committed: bool = True) -> list[PartitionEnd]:
        """The last stable offsets of these partitions, in any order; or the ends of all records, also open ones.

        Raises `KafkaUnavailable` where one is not answered. So it does for a moment after a topic was created, until
        its partitions have leaders.
        """

    async def still_holds(self, topic: str, end: PartitionEnd) -> bool:
        """Whether the log still has its records up to `end`, as they were under its leader epoch (KIP-320).

        A broker that has just restarted may report an end below its log's for a moment; the log itself decides. Raises
        `KafkaUnavailable`.
        """

    async def hanging(self, topic: str, partition: int) -> InRecord | None:
        """The record with which the oldest transaction begins that is open on a partition; None where none is.

        No reader passes it. Raises `KafkaUnavailable`.
        """

    async def members(self, group: str) -> frozenset[str]:
        """The client ids of a consumer group's members: who has lately been heard of by Kafka. None of a group that
        does not exist. Raises `KafkaUnavailable`."""

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        """Writes one record to partition 0 outside any transaction; returns once it is acknowledged.

        Raises `KafkaUnavailable`; the record may arrive all the same.
        """

    async def fence(self, transactional_id: str, left_open: Sequence[tuple[str, int]] = ()) -> None:
        """Opens and drops a session: fences its owner and aborts its open transaction. Raises `WriteFailed(LOST)`.

        Where a partition had no leader when a transaction of the id ended, Kafka leaves it open there for good, and no
        reader passes it: it is aborted on the partitions of `left_open`, by topic and number.
        """

    async def close(self) -> None:
        """Drops its connections. A later call makes new ones."""


class Notes(Protocol):
    """Sends records that may be lost: notifications, heartbeats, progress of snapshots."""

    @property
    def dropped(self) -> int:
        """Records that were not sent: the queue was full, or Kafka was unavailable for a minute."""

    def send(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        """Queues a record; its key chooses the partition by default. Returns at once, never raises."""

    async def close(self) -> None:
        """Sends what is queued, or drops it after two seconds."""


class NotController(Exception):
    """Another node is or may be controller: stop deciding, `rejoin()`, and wait to be elected again."""


class Election(Protocol):
    """A member of the grid's controller group, of which one is elected, and that one's producer.

    Once elected: `take`, read the topology topic up to your own record, then `commit` views. After `NotController`:
    `rejoin`, and no `take` until elected again. You must call `stop`.
    """

    def start(self) -> None:
        """Joins the group."""

    async def take(self) -> None:
        """Becomes controller: fences the last controller's producer. Raises `NotController`."""

    async def commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        """Commits keys and values to the topology topic if this node is still controller. Raises `NotController`.

        Takes at most about five times as long as a request.
        """

    def rejoin(self, aside: float = 0.0) -> None:
        """Leaves the group, and joins it as a new member, which is not elected for `aside` seconds."""

    async def stop(self) -> None:
        """Leaves the group, so that the next member is elected at once."""


class Clock(Protocol):
    """What time it is, and how much has passed."""

    def monotonic(self) -> float:
        """Seconds. They pass while the machine sleeps, too: others go on meanwhile."""

    def time_ns(self) -> int:
        """Unix nanoseconds."""


class KafkaPort(Protocol):
    """Makes clients by a configuration. They are independent of one another; you must close what you have made."""

    @property
    def clock(self) -> Clock:
        """For all that is measured or stamped."""

    @property
    def random(self) -> random.Random:
        """For the waits of retries."""

    async def session(self, config: Config, transactional_id: str, max_message_bytes: Callable[[], int]) -> Session:
        """A producer, without a session yet. Raises `ConfigError`; what else is wrong with `config`, `open` reports.

        `max_message_bytes` is asked at each `open`.
        """

    async def reader(self, config: Config, topic: str) -> Reader:
        """A reader at rest. Raises `KafkaUnusable` or `ConfigError` where `config` makes none."""

    def brokers(self, config: Config) -> Brokers:
        """Errors of `config` are those of the first call."""

    def notes(self, config: Config) -> Notes:
        """Errors of `config` are dropped records."""

    def election(
        self,
        config: Config,
        client_id: str,
        on_elected: Callable[[bool], None],
        on_refused: Callable[[Exception], None],
    ) -> Election:
        """`on_elected` and `on_refused` are called on the loop: elected or deposed, and where an ACL is missing."""

    def new_id(self) -> str:
        """A new UUID."""

    async def work(self, call: Callable[..., T], *args: object) -> T:
        """Runs what takes processor time, or blocks, in another thread. Work that never ends holds up nothing else."""

    async def close(self) -> None:
        """Waits for the calls under way, for work as long as for a request; cancels those that wait for a thread. The
        port cannot be used any more."""
