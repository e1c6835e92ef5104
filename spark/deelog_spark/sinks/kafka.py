"""The diff topic, written exactly once: a transaction per output partition and batch.

The transaction also commits the batch's input end to the job's consumer group, as offset, with checkpoint id and batch
number as metadata: the batch marker. A partition whose marker has reached a batch is skipped, whoever writes it again,
and rows below the marker's offset are never written twice, even if a batch ends elsewhere the second time.

A worker process keeps a producer per partition. The last one to initialise owns the transactional id. A producer that
was fenced initialises again and reads the marker again, so that it cannot write what another one has committed.

A transaction that ended while its partition had no leader stays open there, whatever became of it, and the next one of
its id decides. So a new producer aborts what is open before it writes, and a batch is done when its rows are visible.
Alternatives: docs/decisions.md, "The diff topic, exactly once".
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError
from deelog_schemas.header import HEADER_NAME, unpack
from deelog_schemas.kafka.connections import Connections
from deelog_schemas.kafka.progress import LOOK_SECONDS, STALL_SECONDS, ProducerLost, Progress
from deelog_spark import kafka
from deelog_spark.batches.checkpoint import START
from deelog_spark.errors import BusyError, CheckpointError, DiffError, LossError
from deelog_spark.folding.diff_record import CHANGE, DiffRecord, Renderer, Row, Undecodable, tombstone

Headers = list[tuple[str, str | bytes | None]]

TRANSACTION_MS: Final = 300_000
"""How long a batch's transaction may stay open. The job is the diff topic's only writer: no other one waits for it."""
_FLUSH_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 5.0
_MARKER_SECONDS: Final = 5.0
_VISIBLE_POLL: Final = 0.02
_QUEUE_KBYTES: Final = 65_536
_RECORD_BYTES: Final = 1_000_000_000
"""librdkafka's maximum: only the topic limits the size of a record."""
_BLOCK_SECONDS: Final = 60.0
_QUEUE_SECONDS: Final = 0.1
_FENCED_AT_ONCE: Final = 16


def _send_offset(producer: Producer, offset: TopicPartition, group: object) -> None:
    """Adds the marker to the open transaction; `KafkaException` after _MARKER_SECONDS.

    librdkafka may wait for ever here, whatever its timeout, when the coordinator that it remembers was missing in the
    metadata for a moment (confluentinc/librdkafka#5511): a broker's restart is enough. Only a new producer helps. So
    the call has a thread of its own, which is given up.
    """
    raised: list[BaseException] = []

    def send() -> None:
        try:
            producer.send_offsets_to_transaction([offset], group, _MARKER_SECONDS)
        except BaseException as error:  # noqa: BLE001  # raised below, in the caller's thread
            raised.append(error)

    thread = threading.Thread(target=send, name="deelog-marker", daemon=True)
    thread.start()
    thread.join(_MARKER_SECONDS)
    if thread.is_alive():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the marker of a batch was not answered"))
    if raised:
        raise raised[0]


def _claim_of(checkpoint: str) -> str:
    """What a start's claim has in place of its checkpoint's id."""
    return f"{checkpoint} starts"


class NeedsPlan(Exception):
    """Raised by the row source: the partition needs a full plan. Nothing was written."""


@dataclass(frozen=True, slots=True)
class BatchMarker:
    """How far an output partition is, as committed to the consumer group."""

    checkpoint: str
    batch: int
    end: int
    """The batch's input end, an offset of the change topic."""


@dataclass(slots=True)
class Written:
    """The result of writing one output partition."""

    partition: int
    ops: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows of the batch by cause and op, written now or before: a replay gives the same numbers."""
    records: int = 0
    """Rows that were written now."""
    letters: dict[int, int] = field(default_factory=dict)
    """Dead letters by segment, counted like `ops`."""
    reason: str | None = None
    """Why, with the place: of the first dead letter."""
    error: str | None = None
    """Where a row is foreign: what is wrong. Nothing was written."""


def stays_hidden(topic: str) -> ProducerLost:
    """The error for rows that are committed and not visible: a new producer takes them back."""
    return ProducerLost(KafkaError(KafkaError._TIMED_OUT, f"{topic}: what a transaction has committed stays hidden"))


def read_marker(stored: TopicPartition) -> BatchMarker | None:
    """The marker in a committed offset, if there is one; BusyError where no diff job has committed it."""
    if stored.error is not None:
        raise KafkaException(stored.error)
    if stored.offset < 0:
        return None
    try:
        metadata = orjson.loads(stored.metadata or b"")
        return BatchMarker(metadata["checkpoint"], metadata["batch"], stored.offset)
    except (ValueError, TypeError, KeyError) as error:
        raise BusyError(
            f"{stored.topic}[{stored.partition}]: the group's offset was not committed by a diff job: something else "
            "uses the job's consumer group; stop it and delete the group's offsets"
        ) from error


class Writer:
    """Writes output partitions. One per process; keeps one producer per partition and one consumer.

    `write` may be called by several threads, each for other partitions.

    Raises `RightsError` where a right is missing, `BusyError` where another job writes the topic, `ProducerLost` where
    only a new producer goes on: the next call makes one.
    """

    def __init__(self, config: Config, renderer: Renderer) -> None:
        self._config, self._topics = config, config.topics
        self._renderer = renderer
        self._tombstones: bool = config["tombstones.on.delete"]
        self._producers: dict[int, Producer] = {}
        self._new: set[int] = set()
        """Partitions whose producer has not looked yet for what is open there."""
        self._consumers: dict[str, Consumer] = {}
        """By isolation level."""
        self._connections = Connections("consumer", config.overrides("consumer"))
        self._making = threading.Lock()
        self._letters: str | None = config["errors.deadletterqueue.topic.name"]
        self._progress = defaultdict[int, Progress](lambda: Progress(functools.partial(kafka.brokers_answer, config)))
        """By partition: each may be written by a thread of its own."""

    def fence(self, partitions: Iterable[int]) -> None:
        """Fences every earlier writer of these partitions, and aborts the transaction that it left open.

        In parallel, since each new producer connects first.
        """
        fenced = list(partitions)
        for partition in fenced:
            self._producers.pop(partition, None)
        with ThreadPoolExecutor(_FENCED_AT_ONCE, "deelog-fence") as pool:
            for _ in pool.map(self._producer, fenced):
                pass

    def hidden(self, partitions: Iterable[int], seconds: float = 0.0, patience: float = STALL_SECONDS) -> list[int]:
        """Those whose last records a reader of committed records still does not see after `seconds`.

        After a commit markers are a little late. After `fence()` there is nothing to wait for. Raises `ProducerLost`
        where a partition's end is not answered for `patience` seconds.
        """
        left, begun = list(partitions), time.monotonic()
        with ThreadPoolExecutor(_FENCED_AT_ONCE, "deelog-look") as pool:
            while True:
                try:
                    hides = dict(zip(left, pool.map(self._hides, left), strict=True))
                except KafkaException as error:
                    # librdkafka 2.16, told once that there is no leader, as behind a broker's pause, may go on saying
                    # that it knows no such partition, and ask nobody.
                    self._consumers.clear()
                    refused = kafka.refused(error, "consumer", topic=("Describe", self._topics.diff))
                    if refused is not error:
                        raise refused from error
                    if time.monotonic() - begun > max(seconds, patience):
                        why = f"{self._topics.diff}: the end of a partition is not answered: {error.args[0].str()}"
                        raise ProducerLost(KafkaError(KafkaError._TIMED_OUT, why)) from error
                    time.sleep(LOOK_SECONDS)  # a new client is told at once that there is no leader
                else:
                    left = [partition for partition in left if hides[partition]]
                    if not left or time.monotonic() - begun > seconds:
                        return left
                time.sleep(_VISIBLE_POLL)

    def _hides(self, partition: int) -> bool:
        end = self._end(self._consumer("read_uncommitted"), partition)
        return self._end(self._consumer(), partition) < end

    def _end(self, client: Consumer, partition: int) -> int:
        found: Any = client.get_watermark_offsets(TopicPartition(self._topics.diff, partition), LOOK_SECONDS)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "it was not answered in time"))
        return int(found[1])

    def take_back(self, partition: int, known: BatchMarker | None) -> None:
        """Undoes what is `hidden()` after `fence()`, so that it is written again; DiffError where it is another's.

        `known` is the last marker whose rows were visible: the marker goes back to it first, so that a crash in between
        loses nothing.
        """
        producer, stored = self._producer(partition), self.stored(partition)
        if (known and stored) and stored.checkpoint == known.checkpoint and stored.end > known.end:
            producer.begin_transaction()
            _send_offset(producer, self._offset(partition, known), self._consumer().consumer_group_metadata())
            kafka.RETRYING(producer.commit_transaction, _FLUSH_SECONDS)
        self._end_open(producer, partition)

    def _end_open(self, producer: Producer, partition: int) -> None:
        """Aborts what this id has left open on the partition: a transaction with a record there, which nobody sees."""
        producer.begin_transaction()
        producer.produce(self._topics.diff, None, b"", partition=partition)
        progress = self._progress[partition]
        progress.begin()
        while producer.flush(LOOK_SECONDS):
            progress.check(producer)  # ProducerLost where the partition still has no leader
        kafka.RETRYING(producer.abort_transaction, _FLUSH_SECONDS)
        self._new.discard(partition)
        if self.hidden([partition], _MARKER_SECONDS):
            raise DiffError(
                f"{self._topics.diff}[{partition}]: a transaction that is not the diff job's stays open and hides the "
                "job's records: find and abort it (kafka-transactions.sh find-hanging), and start the job again"
            )

    @kafka.RETRYING.wraps
    def stored(self, partition: int, claims: bool = False) -> BatchMarker | None:
        """The partition's marker as it is committed now; DiffError where a later one stays open for good.

        Who `claims` reads past that one: the claim ends it.
        """
        topics = self._topics
        client = self._consumer("read_uncommitted" if claims else "read_committed")
        asked = [TopicPartition(topics.changes, partition)]
        try:
            return read_marker(client.committed(asked, timeout=_ANSWER_SECONDS)[0])
        except KafkaException as error:
            event: Any = client.poll(0)  # a consumer gives the reason of its wait there
            if self._connections.hopeless:
                raise DiffError(f"no broker answers: {self._connections.why}") from error
            why = error if event is None or event.error() is None else KafkaException(event.error())
            needed = {"topic": ("Read", topics.changes), "group": ("Read", topics.diff_group)}
            refused = kafka.refused(why, "consumer", **needed)
            if refused is why and not claims and self._stays_open(asked):
                raise DiffError(
                    f"{topics.changes}[{partition}]: a transaction stays open on the offsets of the group "
                    f"{topics.diff_group}, since their partition had no leader at its end, so nobody knows how far "
                    f"{topics.diff} is written: delete the checkpoint; the job then starts over and emits differences "
                    "only"
                ) from error
            raise error if refused is why else refused from error

    def _stays_open(self, asked: list[TopicPartition]) -> bool:
        """Whether the group's coordinator answers all but what an open transaction would change."""
        try:
            self._consumer("read_uncommitted").committed(asked, timeout=_ANSWER_SECONDS)
        except KafkaException:
            return False  # it answers nobody
        try:
            self._consumer().committed(asked, timeout=_ANSWER_SECONDS)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError._TIMED_OUT)
        return False

    def claim(self, partitions: Iterable[int], checkpoint: str) -> None:
        """Marks the diff topic as this start's, before it is read: another job that goes on ends at its next batch.

        The offset stays: below it, dead letters are written.
        """
        for partition in partitions:
            stored = self.stored(partition, claims=True)
            end = 0 if stored is None else stored.end
            self.write(partition, (), _claim_of(checkpoint), START, end, claims=True)

    def renew(self, partitions: Iterable[int], checkpoint: str) -> None:
        """Commits the markers again as they are: Kafka forgets those of a group that commits nothing for a week."""
        for partition in partitions:
            mark = self.stored(partition)
            if mark is not None:
                if mark.checkpoint != checkpoint:  # before that job's producer is fenced for it
                    raise self._busy(partition, mark)
                self.write(partition, (), checkpoint, mark.batch, mark.end, renew=True)

    def claimed(self, partitions: Iterable[int], checkpoint: str) -> bool:
        """Whether nobody has written since this start's claim but itself."""
        own = {checkpoint, _claim_of(checkpoint)}
        marks = map(self.stored, partitions)
        return all(mark is not None and mark.checkpoint in own for mark in marks)

    def write(
        self,
        partition: int,
        rows: Iterable[Row],
        checkpoint: str,
        batch: int,
        end: int,
        claims: bool = False,
        renew: bool = False,
        patience: float = STALL_SECONDS,
    ) -> Written:
        """Writes a partition's rows of one batch, in order, unless the marker has reached it.

        `end` is the batch's input end. Only who `claims` may find no marker, or that of another checkpoint. `renew`
        commits the marker even if it is there. `patience`: see `Progress.begin`. An `Undecodable` row goes to the
        dead-letter topic. A foreign row aborts the transaction and comes back as `error`; `NeedsPlan` aborts it without
        one.
        """
        marker = BatchMarker(checkpoint, batch, end)
        producer, floor = self._begin(partition, marker, claims, renew, patience)
        result = Written(partition)
        progress = self._progress[partition]
        progress.begin(patience)
        try:
            with contextlib.ExitStack() as opened:
                originals: Iterator[Message] | None = None
                for row in rows:
                    try:
                        record = self._rendered(row)
                    except Undecodable as error:
                        self._count(result, row, error)
                        if producer is not None and row.offset >= floor:
                            if originals is None:
                                # Rows come in the order of offsets: one read, from the first dead letter on.
                                reader = opened.enter_context(contextlib.closing(kafka.Reader(self._config)))
                                read = reader.read(self._topics.changes, partition, row.offset, end)
                                originals = opened.enter_context(contextlib.closing(read))
                            self._dead_letter(producer, progress, row, originals, error)
                        continue
                    result.ops.setdefault(row.cause, {"c": 0, "u": 0, "d": 0})[record.op] += 1
                    if producer is not None and row.offset >= floor:
                        self._produce(producer, progress, partition, record)
                        result.records += 1
            if producer is not None:
                until = time.monotonic() + _FLUSH_SECONDS
                kafka.RETRYING(progress.commit, producer, lambda: time.monotonic() < until)
        except RecordError as error:
            self._abandon(partition, producer)
            result.error = str(error)
        except NeedsPlan:
            self._abandon(partition, producer)
        except BaseException as error:
            # The next producer that initialises aborts the open transaction.
            self._producers.pop(partition, None)
            if isinstance(error, KafkaException):
                raise self._refused(error, partition) from error
            raise
        return result

    def _refused(self, error: KafkaException, partition: int) -> Exception:
        """`RightsError` where a right is missing, else the error itself."""
        topics, to = self._topics, self._topics.diff
        return kafka.refused(
            error,
            "producer",
            topic=("Write", to if self._letters is None else f"{to} or {self._letters}"),
            group=("Read", topics.diff_group),
            transactional_id=("Write", topics.transactional_id_diff(partition)),
        )

    def _begin(
        self, partition: int, marker: BatchMarker, claims: bool, renew: bool, patience: float
    ) -> tuple[Producer | None, int]:
        """Begins the transaction and adds the marker to it.

        Returns its producer, None where the marker has reached the batch, and the input offset below which rows are
        written already. The marker comes first because the coordinator answers it at once: a producer that was fenced
        since its last batch is replaced before it gets a row.
        """
        for fresh in (False, True):
            if fresh:
                self._producers.pop(partition, None)
            producer = self._producer(partition)
            done, floor = self._look(partition, self.stored(partition, claims), marker, claims)
            if done and not renew:
                return None, floor
            if partition in self._new and self.hidden([partition], patience=patience):
                self._end_open(producer, partition)  # of this batch: those before it were visible
            self._new.discard(partition)
            offset = self._offset(partition, marker, floor)
            try:
                producer.begin_transaction()
                _send_offset(producer, offset, self._consumer().consumer_group_metadata())
            except KafkaException as error:
                if fresh:
                    raise self._refused(error, partition) from error
                if error.args[0].code() == KafkaError._TIMED_OUT:
                    self._producers.clear()  # the others remember the same coordinator
            else:
                return producer, floor
        raise AssertionError("unreachable")

    def _offset(self, partition: int, marker: BatchMarker, floor: int = 0) -> TopicPartition:
        """A marker as the offset to commit."""
        metadata = orjson.dumps({"checkpoint": marker.checkpoint, "batch": marker.batch}).decode()
        return TopicPartition(self._topics.changes, partition, max(marker.end, floor), metadata=metadata)

    def _abandon(self, partition: int, producer: Producer | None) -> None:
        """Aborts the partition's transaction, if one was begun."""
        if producer is None:
            return
        self._producers.pop(partition, None)
        producer.purge()
        kafka.RETRYING(producer.abort_transaction, _FLUSH_SECONDS)

    def close(self) -> None:
        """Drops the producers and closes the consumers."""
        self._producers.clear()
        while self._consumers:
            self._consumers.popitem()[1].close()

    def signal(self, key: bytes, value: bytes) -> None:
        """Sends a signal to the connectors of this prefix; DiffError where it was not delivered."""
        failed: list[KafkaError] = []
        topic = self._topics.signal
        producer = Producer(
            {
                **self._config.overrides("producer"),
                "bootstrap.servers": ",".join(self._config["bootstrap.servers"]),
                "delivery.timeout.ms": int(_BLOCK_SECONDS * 1000),
            }
        )
        producer.produce(topic, value, key, on_delivery=lambda e, _: failed.append(e) if e else None)
        if producer.flush(_BLOCK_SECONDS) or failed:
            error = KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT, "no answer"))
            refused = kafka.refused(error, "producer", topic=("Write", topic))
            why = f"{error.args[0].str()}: create it" if refused is error else str(refused)
            raise DiffError(f"the signal reset-segment could not be sent to {topic}: {why}") from error

    def _look(self, partition: int, stored: BatchMarker | None, marker: BatchMarker, claims: bool) -> tuple[bool, int]:
        """Whether the batch is written already, and below which input offset rows are written already."""
        if stored is not None and stored.checkpoint == marker.checkpoint:
            # By the input end alone: a batch whose plan was lost may end elsewhere the second time.
            return stored.end >= marker.end, stored.end
        if claims or (stored is not None and stored.checkpoint == _claim_of(marker.checkpoint)):
            return False, 0
        if stored is not None:
            raise self._busy(partition, stored)
        raise CheckpointError(
            f"{self._topics.changes}[{partition}]: the group {self._topics.diff_group} holds no offset beside a "
            "checkpoint that is not empty (groups expire, or it was deleted): delete the checkpoint; the job then "
            "starts over and emits differences only"
        )

    def _busy(self, partition: int, other: BatchMarker) -> BusyError:
        return BusyError(
            f"{self._topics.changes}[{partition}]: another diff job (checkpoint {other.checkpoint}) writes "
            f"{self._topics.diff}: stop one"
        )

    def _rendered(self, row: Row) -> DiffRecord:
        if row.cause == CHANGE:
            try:
                return self._renderer.change(row)
            except Undecodable:
                raise
            except RecordError as error:
                raise error.at(self._topics.changes, row.partition, row.offset) from error
        assert row.value is not None
        return DiffRecord(row.op, row.header, row.key, row.value)

    def _produce(self, producer: Producer, progress: Progress, partition: int, record: DiffRecord) -> None:
        sent: list[tuple[bytes, bytes | None]] = [(record.header, record.value)]
        if record.op == "d" and self._tombstones:
            sent.append((tombstone(record.header), None))
        for header, value in sent:
            headers: Headers = [(HEADER_NAME, header)]
            self._enqueue(
                producer, progress, self._topics.diff, value, record.key, partition=partition, headers=headers
            )

    def _enqueue(self, producer: Producer, progress: Progress, *record: Any, **more: Any) -> None:
        until, waited = time.monotonic() + _BLOCK_SECONDS, False
        while True:
            try:
                producer.produce(*record, **more)
                break
            except BufferError:  # the queue is bounded: wait for the broker
                if time.monotonic() > until:
                    raise
            waited = True
            producer.poll(_QUEUE_SECONDS)
            progress.check(producer)
        if waited:
            progress.begin()  # there was room: that is progress, though the queue is as long as before

    def _count(self, result: Written, row: Row, error: Undecodable) -> None:
        segment = unpack(row.header).segment
        result.letters[segment] = result.letters.get(segment, 0) + 1
        if result.reason is None:
            result.reason = str(error.at(self._topics.changes, row.partition, row.offset))

    def _dead_letter(
        self, producer: Producer, progress: Progress, row: Row, originals: Iterator[Message], error: Undecodable
    ) -> None:
        """Writes a row's original record to the dead-letter topic, with its headers and timestamp."""
        message = next((m for m in originals if m.offset() == row.offset), None)
        if message is None:
            raise LossError(
                f"{self._topics.changes}[{row.partition}]@{row.offset}: the record was to be put on {self._letters}, "
                "and is not there any more: start again"
            )
        own: Any = message.headers()
        headers: Headers = [*(own or ()), *self._context_headers(row, error)]
        moment = message.timestamp()[1]
        self._enqueue(
            producer, progress, self._letters, message.value(), message.key(), headers=headers, timestamp=moment
        )

    def _context_headers(self, row: Row, error: Undecodable) -> Iterator[tuple[str, bytes]]:
        """Kafka Connect's headers of a dead letter."""
        context = {
            "topic": self._topics.changes,
            "partition": row.partition,
            "offset": row.offset,
            "stage": "KEY_CONVERTER" if error.key is None else "VALUE_CONVERTER",
            "class.name": self._renderer.converter("key" if error.key is None else "value"),
            "exception.class.name": f"{RecordError.__module__}.{RecordError.__qualname__}",
            "exception.message": error,
        }
        return ((f"__connect.errors.{name}", str(value).encode()) for name, value in context.items())

    def _producer(self, partition: int) -> Producer:
        producer = self._producers.get(partition)
        if producer is None:
            settings: dict[str, Any] = {
                "message.max.bytes": _RECORD_BYTES,
                "queue.buffering.max.kbytes": _QUEUE_KBYTES,
                **kafka.QUIET,
                **self._config.overrides("producer"),
                "bootstrap.servers": ",".join(self._config["bootstrap.servers"]),
                "transactional.id": self._topics.transactional_id_diff(partition),
                "transaction.timeout.ms": TRANSACTION_MS,
                "message.timeout.ms": 0,
            }
            connections = Connections("producer", settings)
            producer = Producer({**settings, "error_cb": connections})
            kafka.reach(producer, connections)
            try:
                kafka.RETRYING(producer.init_transactions, _FLUSH_SECONDS)
            except KafkaException as error:
                raise self._refused(error, partition) from error
            self._producers[partition] = producer
            self._new.add(partition)
        return producer

    def _consumer(self, level: str = "read_committed") -> Consumer:
        with self._making:
            made = self._consumers.get(level)
            if made is None:
                more = {"error_cb": self._connections, "isolation.level": level}
                made = self._consumers[level] = kafka.consumer(self._config, self._topics.diff_group, **more)
            return made
