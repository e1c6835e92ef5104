"""Writes the topics of a cache as a node does: encoded records in transactions, and their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from deelog_schemas import canonical, formats
from deelog_schemas.config import Config, parse
from deelog_schemas.digest import digest_of
from deelog_schemas.envelope import Stamp
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind, node_number, pack
from deelog_schemas.keys import claim_key, control_key, partition_of, position_key, reset_key, segment_of
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.positions import ClaimState, PositionState, ResetState, encode_state
from deelog_spark.kafka import RETRYING
from tests.support.waiting import waiting

MEMBER = "n1@1700000000000"
LAG = 604_800_000


def config_of(bootstrap: str, prefix: str, location: str, **more: Any) -> Config:
    """A configuration of the job: 8 segments on 2 partitions. `more` has further fields (`_` for `.`)."""
    fields = {
        "bootstrap.servers": bootstrap,
        "topic.prefix": prefix,
        "cache.name": "c",
        "segment.count": 8,
        "diff.checkpoint.location": location,
        "diff.trigger.interval.ms": 100,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return parse(fields, "diff")


@dataclass
class Live:
    """One segment of the imagined cache."""

    epoch: int = 1
    sequence: int = 0
    entries: dict[bytes, Entry] = field(default_factory=dict)
    begin: int = -1
    reset: str = ""
    reason: str = ""


class Cache:
    """A simulated cache with its writer. Operations change its entries and, unless lost, are written to Kafka.

    Every method writes one transaction, or joins the one of `batch()`. `more` are settings of the topics
    (`_` for `.`).
    """

    def __init__(self, config: Config, partitions: int = 2, cleanup: str = "compact", **more: str) -> None:
        self.config, self.topics = config, config.topics
        self.partitions, self.segments = partitions, int(config["segment.count"])
        self.live = [Live() for _ in range(self.segments)]
        self.codec = formats.codec_of(formats.connected(config, "cachetools"), "cachetools")
        servers = ",".join(config["bootstrap.servers"])
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._create(cleanup, more)
        self.look()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "log_level": 0,
                "transactional.id": f"{self.topics.prefix}/builder",
                "linger.ms": 1,
                "message.max.bytes": 1_000_000_000,  # the topic's own limit counts
            }
        )
        self._producer.init_transactions(30)
        self._depth = 0
        self._resets = 0
        self._number = 0
        self._clock = 1_700_000_000_000_000

    def _create(self, cleanup: str, more: dict[str, str]) -> None:
        settings = {
            "cleanup.policy": cleanup,
            "retention.ms": "-1",
            "min.compaction.lag.ms": str(LAG),
            "delete.retention.ms": str(LAG),
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        names = (self.topics.changes, self.topics.positions)
        topics = [NewTopic(n, num_partitions=self.partitions, replication_factor=1, config=settings) for n in names]
        topics.append(NewTopic(self.topics.signal, num_partitions=1, replication_factor=1))
        for future in self.admin.create_topics(topics).values():
            future.result(30)

    def look(self) -> None:
        """Takes the change topic's id, which its positions name; a test that creates the topic again calls it."""
        name = self.topics.changes

        def topic_id() -> str:
            described = self.admin.describe_topics(TopicCollection([name]))[name]
            error = described.exception(30)
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""  # the broker that answers has not heard of it yet
            return str(described.result().topic_id)

        self.topic_id = waiting(topic_id, 30, f"topic {name}")

    # -- what a test does ------------------------------------------------------------------------------------------

    @contextmanager
    def batch(self, aborted: bool = False) -> Iterator[None]:
        """One transaction for everything inside. `aborted`: it reaches Kafka, is aborted, and no reader may see it."""
        if self._depth == 0:
            self._producer.begin_transaction()
        self._depth += 1
        yield
        self._depth -= 1
        if self._depth == 0 and aborted:
            self._producer.flush(30)
            self._producer.abort_transaction(30)
        elif self._depth == 0:
            self._producer.commit_transaction(30)

    def key(self, segment: int, number: int) -> bytes:
        """The `number`-th key of a segment."""
        candidates = (f"k{segment}-{number}-{n}".encode() for n in range(10**6))
        return next(key for key in candidates if segment_of(key, self.segments) == segment)

    def put(
        self, key: bytes, value: bytes | None, *, lost: bool = False, expires_at: int | None = None, again: int = 1
    ) -> None:
        """Writes a value; None deletes. `lost`: it is not written to Kafka. `again`: how often it is written."""
        segment = segment_of(key, self.segments)
        live = self.live[segment]
        live.sequence += 1
        self._clock += 1
        old = live.entries.get(key)
        before = old.value if old is not None and self.config["before.image"] == "full" else None
        reason = Reason.PUT if value is not None else Reason.REMOVE
        operation = Operation(
            live.epoch, live.sequence, reason, key, value, expires_at, self._clock, old is not None, before
        )
        if value is None:
            live.entries.pop(key, None)
        else:
            live.entries[key] = Entry(key, value, expires_at)
        if not lost:
            for _ in range(again):
                self.write(segment, operation)

    def write(self, segment: int, operation: Operation, tombstone: bool = True) -> None:
        """Writes the records of an operation. The entries stay as they are."""
        with self.batch():
            raw, position = self.codec.key(operation.key), operation.position
            stamp = Stamp(segment, "n1", operation.ts_us + 5)
            self.produce(segment, Kind.CHANGE, position, raw, self.codec.change(operation, stamp))
            if operation.value is None and tombstone:
                self.produce(segment, Kind.TOMBSTONE, position, raw, None)

    def garble(self, key: bytes, again: int = 1) -> None:
        """Writes a change with a value that cannot be decoded. The entries stay as they are."""
        segment = segment_of(key, self.segments)
        live = self.live[segment]
        live.sequence += 1
        with self.batch():
            for _ in range(again):
                self.produce(segment, Kind.CHANGE, (live.epoch, live.sequence), self.codec.key(key), b"{garbled")

    def claim(self, segment: int, epochs: int = 1) -> None:
        """A new owner: claim and active of a new epoch."""
        live = self.live[segment]
        live.epoch += epochs
        with self.batch():
            fields = {"epoch": live.epoch, "member": MEMBER}
            whole = {**fields, "segments": self.segments, "partitions": self.partitions}
            self.control(segment, Kind.CLAIM, (live.epoch, live.sequence), whole)
            self.control(segment, Kind.ACTIVE, (live.epoch, live.sequence), fields)
            names, layout = (self.topics.prefix, self.config["cache.name"]), (self.segments, self.partitions)
            state = ClaimState(live.epoch, MEMBER, *names, *layout, 1)
            self._positions(segment, claim_key(segment, MEMBER), encode_state(state), Kind.CLAIM_STATE)

    def begin(self, segment: int, reason: str = "overflow") -> None:
        """The begin of a reset. It is committed alone, and its offset is written to the positions topic."""
        live = self.live[segment]
        self._resets += 1
        live.reset, live.reason = f"r{self._resets}", reason
        fields = {"epoch": live.epoch, "member": MEMBER, "id": live.reset, "reason": reason}
        offsets: list[int] = []
        with self.batch():
            self.control(segment, Kind.RESET_BEGIN, (live.epoch, live.sequence), fields, offsets.append)
        self._producer.flush(30)
        if offsets:  # inside a test's batch() the offset is known only at its end
            live.begin = offsets[0]
            with self.batch():
                state = ResetState(live.reset, live.epoch, live.sequence, reason, live.begin, MEMBER)
                self._positions(segment, reset_key(segment), encode_state(state), Kind.RESET_STATE)

    def rows(self, segment: int, keys: list[bytes] | None = None) -> None:
        """Rows of the open reset: of all live entries, or of `keys`."""
        live = self.live[segment]
        with self.batch():
            for key in sorted(live.entries) if keys is None else keys:
                position = (live.epoch, live.sequence)
                stamp = Stamp(segment, "n1", self._clock)
                value = self.codec.row(live.entries[key], position, "true", live.reason, stamp)
                self.produce(segment, Kind.READ, position, self.codec.key(key), value)

    def end(self, segment: int, *, count: int | None = None, reset: str | None = None) -> None:
        """The end of the open reset, with the base offset. `count` and `reset` replace the true values."""
        live = self.live[segment]
        entries = list(live.entries.values())
        fields = {
            "epoch": live.epoch,
            "member": MEMBER,
            "id": live.reset if reset is None else reset,
            "count": len(entries) if count is None else count,
            "digest": digest_of((e.key, e.value) for e in entries),
        }
        with self.batch():
            self.control(segment, Kind.RESET_END, (live.epoch, live.sequence), fields)
            if live.begin >= 0 and reset is None:
                position, begin = (live.epoch, live.sequence), live.begin
                state = PositionState(*position, begin, -1, 0, 0, begin, 0, self.topic_id, MEMBER)
                self._positions(segment, position_key(segment), encode_state(state), Kind.POSITION)
                self._positions(segment, reset_key(segment), None, Kind.RESET_STATE)

    def reset(self, segment: int, reason: str = "overflow") -> None:
        """A complete reset."""
        self.begin(segment, reason)
        self.rows(segment)
        self.end(segment)

    # -- records ---------------------------------------------------------------------------------------------------

    def control(
        self,
        segment: int,
        kind: Kind,
        position: tuple[int, int],
        fields: dict[str, Any],
        offset: Callable[[int], None] | None = None,
    ) -> None:
        """A control record."""
        self._number += 1
        key = self.codec.key(control_key(kind.name.lower(), segment, MEMBER, self._number))
        self.produce(segment, kind, position, key, None, [(CONTROL_HEADER_NAME, canonical.dumps(fields))], offset)

    def produce(
        self,
        segment: int,
        kind: int,
        position: tuple[int, int],
        key: bytes,
        value: bytes | None,
        more: list[tuple[str, bytes]] | None = None,
        offset: Callable[[int], None] | None = None,
    ) -> None:
        """Any record, within a `batch()`."""
        header = pack(kind, segment, *position, node_number(MEMBER))
        partition = partition_of(segment, self.partitions, self.segments)
        self.raw(self.topics.changes, partition, key, value, [(HEADER_NAME, header), *(more or [])], offset)

    def raw(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[Any],
        offset: Callable[[int], None] | None = None,
    ) -> None:
        """Any message on any topic, within a `batch()`."""

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            if offset is not None:
                offset(message.offset())

        self._producer.produce(topic, value, key, partition=partition, headers=headers, on_delivery=delivered)

    def _positions(self, segment: int, key: bytes, value: bytes | None, kind: Kind) -> None:
        live = self.live[segment]
        header = pack(kind, segment, live.epoch, live.sequence, node_number(MEMBER))
        partition = partition_of(segment, self.partitions, self.segments)
        self.raw(self.topics.positions, partition, key, value, [(HEADER_NAME, header)])

    # -- the state -------------------------------------------------------------------------------------------------

    def entries(self) -> dict[bytes, Entry]:
        """All entries of the cache."""
        return {key: entry for live in self.live for key, entry in live.entries.items()}

    def ends(self) -> dict[int, int]:
        """The end offsets of the change topic."""
        return settled_ends(",".join(self.config["bootstrap.servers"]), self.topics.changes, self.partitions)


def settled_ends(servers: str, topic: str, partitions: int, seconds: float = 200) -> dict[int, int]:
    """A topic's last stable offsets, once no transaction is open.

    A commit returns before its markers are written, and readers do not see the committed records until then. Each
    request has a new client: after a restart of the broker, an old one sends the earlier leader epoch and is refused.
    """
    asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}  # type: ignore[no-untyped-call]

    def ends(level: IsolationLevel) -> dict[int, int]:
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        answers = admin.list_offsets(asked, isolation_level=level)
        return {tp.partition: future.result(seconds).offset for tp, future in answers.items()}

    def stable() -> dict[int, int]:
        committed: dict[int, int] = RETRYING(ends, IsolationLevel.READ_COMMITTED)
        return committed if committed == RETRYING(ends, IsolationLevel.READ_UNCOMMITTED) else {}

    return waiting(stable, seconds, f"the end of a transaction on {topic}")
