"""The diff topic, exactly once: one transaction per output partition holds a batch's rows and where they end.

Weighed: Spark's own Kafka sink (at least once, and order within a key is lost on a retry), a transaction over all
partitions by the driver (every row through one process), and this. A transaction also commits, to the job's group,
the input end as offset and (checkpoint id, batch) as metadata. So a partition that has a batch already is left
alone, whoever tries it again, and rows below that input end are never written twice even if a batch is cut anew.

A producer is kept per worker process and partition. Whoever initialises last owns the transactional id; one that
finds itself fenced initialises anew and looks at the group again, so it cannot write what another has committed.
"""

from __future__ import annotations

import contextlib
import threading
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
from deelog_spark import kafka
from deelog_spark.errors import BusyError, CheckpointError, DiffError, LossError
from deelog_spark.folding.diff_record import CHANGE, DiffRecord, Renderer, Row, Undecodable, tombstone

Headers = list[tuple[str, str | bytes | None]]

TRANSACTION_MS: Final = 300_000
"""A batch's transaction may stay open so long. The job is the diff topic's only writer: it holds back nobody else."""
_FLUSH_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 5.0
_MARK_SECONDS: Final = 5.0
_QUEUE_KBYTES: Final = 65_536
_RECORD_BYTES: Final = 1_000_000_000
"""As much as librdkafka can be told: how large a record may be, the diff topic alone says."""
_BLOCK_SECONDS: Final = 60.0
_FENCED_AT_ONCE: Final = 16


def _send_offset(producer: Producer, offset: TopicPartition, group: object) -> None:
    """Puts the mark into the open transaction, or raises `KafkaException` after _MARK_SECONDS at the latest.

    librdkafka may wait for ever here, whatever timeout it was given, when the coordinator that it remembers was gone
    from the metadata for a moment (confluentinc/librdkafka#5511): a broker's restart is enough. Only a new producer
    helps, so the wait is ours, and the thread that never comes back is left behind.
    """
    raised: list[BaseException] = []

    def send() -> None:
        try:
            producer.send_offsets_to_transaction([offset], group, _MARK_SECONDS)
        except BaseException as error:  # noqa: BLE001  # raised below, in the caller's thread
            raised.append(error)

    thread = threading.Thread(target=send, name="deelog-mark", daemon=True)
    thread.start()
    thread.join(_MARK_SECONDS)
    if thread.is_alive():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the mark of a batch was not answered"))
    if raised:
        raise raised[0]


class Halt(Exception):
    """Raised by rows that are being written: there is more to a partition than they can tell. Nothing of it is."""


@dataclass(frozen=True, slots=True)
class BatchMarker:
    """What the group holds for one output partition."""

    checkpoint: str
    batch: int
    end: int


@dataclass(slots=True)
class Written:
    """What one output partition got. `ops` counts every row of the batch, written now or before, so that a replay
    gives the same numbers."""

    partition: int
    ops: dict[str, dict[str, int]] = field(default_factory=dict)
    records: int = 0
    letters: dict[int, int] = field(default_factory=dict)
    """Dead letters by segment, counted like `ops`."""
    reasons: list[str] = field(default_factory=list)
    """Why, with the place: of the first, or with `errors.log.enable` of all."""
    error: str | None = None


def read_mark(stored: TopicPartition) -> BatchMarker | None:
    """The mark in a committed offset, None where there is none; BusyError where it is not of this job."""
    if stored.error is not None:
        raise KafkaException(stored.error)
    if stored.offset < 0:
        return None
    try:
        told = orjson.loads(stored.metadata or b"")
        return BatchMarker(told["checkpoint"], told["batch"], stored.offset)
    except (ValueError, TypeError, KeyError) as error:
        raise BusyError(
            f"{stored.topic}[{stored.partition}]: the group's offset was not committed by a diff job: something else "
            "uses the job's consumer group; stop it and delete the group's offsets"
        ) from error


class Writer:
    """Writes output partitions. One per process; keeps one producer per partition and one consumer."""

    def __init__(self, config: Config, renderer: Renderer) -> None:
        self._config, self._topics = config, config.topics
        self._renderer = renderer
        self._tombstones: bool = config["tombstones.on.delete"]
        self._producers: dict[int, Producer] = {}
        self._group: Consumer | None = None
        self._connections = Connections("consumer", config.overrides("consumer"))
        self._making = threading.Lock()
        self._letters: str | None = config["errors.deadletterqueue.topic.name"]
        self._context: bool = config["errors.deadletterqueue.context.headers.enable"]
        self._log: bool = config["errors.log.enable"]

    def fence(self, partitions: Iterable[int]) -> None:
        """Ends what any earlier writer of these partitions left open, and refuses its later commits.

        At once for many: each new producer connects first.
        """
        asked = list(partitions)
        for partition in asked:
            self._producers.pop(partition, None)
        with ThreadPoolExecutor(_FENCED_AT_ONCE, "deelog-fence") as pool:
            for _ in pool.map(self._producer, asked):
                pass

    @kafka.RETRYING.wraps
    def stored(self, partition: int) -> BatchMarker | None:
        """The partition's mark as the group has it now."""
        topics, client = self._topics, self._consumer()
        asked = [TopicPartition(topics.changes, partition)]
        try:
            return read_mark(client.committed(asked, timeout=_ANSWER_SECONDS)[0])
        except KafkaException as error:
            told: Any = client.poll(0)  # why a consumer waits it says there
            if self._connections.hopeless:
                raise DiffError(f"no broker answers: {self._connections.why}") from error
            why = error if told is None or told.error() is None else KafkaException(told.error())
            needed = {"topic": ("Read", topics.changes), "group": ("Read", topics.diff_group)}
            refused = kafka.refused(why, "consumer", **needed)
            raise error if refused is why else refused from error

    def write(
        self,
        partition: int,
        rows: Iterable[Row],
        checkpoint: str,
        batch: int,
        end: int,
        first: bool = False,
        renew: bool = False,
    ) -> Written:
        """Writes a partition's rows of one batch, in order, unless the group has them.

        `end` is the batch's input end. `first` is a start without state, which alone may find no mark or another
        checkpoint's. `renew` writes the mark although it is there. A row that is `Undecodable` goes to the dead-letter
        topic. One that is no record of ours ends the transaction unwritten and comes back as `error`; so does `Halt`,
        without one.
        """
        mark = BatchMarker(checkpoint, batch, end)
        producer, floor = self._begin(partition, mark, first, renew)
        result = Written(partition)
        try:
            with contextlib.ExitStack() as opened:
                originals: Iterator[Message] | None = None
                for row in rows:
                    try:
                        told = self._told(row)
                    except Undecodable as error:
                        self._tell(result, row, error)
                        if producer is not None and row.offset >= floor:
                            if originals is None:
                                # Rows come by offset: the topic is read once more from the first of them on.
                                reader = opened.enter_context(contextlib.closing(kafka.Reader(self._config)))
                                read = reader.read(self._topics.changes, partition, row.offset, end)
                                originals = opened.enter_context(contextlib.closing(read))
                            self._put_aside(producer, row, originals, error)
                        continue
                    result.ops.setdefault(row.cause, {"c": 0, "u": 0, "d": 0})[told.op] += 1
                    if producer is not None and row.offset >= floor:
                        self._produce(producer, partition, told)
                        result.records += 1
            if producer is not None:
                kafka.RETRYING(producer.commit_transaction, _FLUSH_SECONDS)
        except RecordError as error:
            self._abandon(partition, producer)
            result.error = str(error)
        except Halt:
            self._abandon(partition, producer)
        except BaseException as error:
            # What it left open is ended by whoever initialises next.
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

    def _begin(self, partition: int, mark: BatchMarker, first: bool, renew: bool) -> tuple[Producer | None, int]:
        """Opens the transaction and puts the mark into it: its producer, and the input offset below which rows are
        written already.

        No producer where the group has the batch. The mark comes first because the coordinator answers it at once: a
        producer that was fenced since its last batch is found out, and replaced, before a row is taken.
        """
        for fresh in (False, True):
            if fresh:
                self._producers.pop(partition, None)
            producer = self._producer(partition)
            done, floor = self._look(partition, self.stored(partition), mark, first)
            if done and not renew:
                return None, floor
            offset = TopicPartition(
                self._topics.changes,
                partition,
                max(mark.end, floor),
                metadata=orjson.dumps({"checkpoint": mark.checkpoint, "batch": mark.batch}).decode(),
            )
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

    def _abandon(self, partition: int, producer: Producer | None) -> None:
        """Ends the partition's transaction unwritten, if one was begun."""
        if producer is None:
            return
        self._producers.pop(partition, None)
        producer.purge()
        kafka.RETRYING(producer.abort_transaction, _FLUSH_SECONDS)

    def close(self) -> None:
        """Lets go of the producers; what is committed stays."""
        self._producers.clear()
        if self._group is not None:
            self._group.close()
            self._group = None

    def signal(self, key: bytes, value: bytes) -> None:
        """Sends a signal to the connectors of this prefix; DiffError where it could not be delivered."""
        refused: list[KafkaError] = []
        topic = self._topics.signal
        producer = Producer(
            {
                **self._config.overrides("producer"),
                "bootstrap.servers": ",".join(self._config["bootstrap.servers"]),
                "delivery.timeout.ms": int(_BLOCK_SECONDS * 1000),
            }
        )
        producer.produce(topic, value, key, on_delivery=lambda e, _: refused.append(e) if e else None)
        if producer.flush(_BLOCK_SECONDS) or refused:
            error = KafkaException(refused[0] if refused else KafkaError(KafkaError._TIMED_OUT, "no answer"))
            told = kafka.refused(error, "producer", topic=("Write", topic))
            why = f"{error.args[0].str()}: create it" if told is error else str(told)
            raise DiffError(f"the signal reset-segment could not be sent to {topic}: {why}") from error

    def _look(self, partition: int, stored: BatchMarker | None, mark: BatchMarker, first: bool) -> tuple[bool, int]:
        """Whether the group has the batch already, and below which input offset rows are written already."""
        if stored is not None and stored.checkpoint == mark.checkpoint:
            # By the input end alone: a batch whose plan was lost may be cut anew, and then reaches further.
            return stored.end >= mark.end, stored.end
        if first:
            return False, 0
        name = f"{self._topics.changes}[{partition}]"
        if stored is None:
            raise CheckpointError(
                f"{name}: the group {self._topics.diff_group} holds no offset beside a checkpoint that is not empty "
                "(groups expire, or it was deleted): delete the checkpoint; the job then starts over and emits "
                "differences only"
            )
        raise BusyError(
            f"{name}: another diff job (checkpoint {stored.checkpoint}) writes {self._topics.diff}: stop one"
        )

    def _told(self, row: Row) -> DiffRecord:
        if row.cause == CHANGE:
            try:
                return self._renderer.change(row)
            except Undecodable:
                raise
            except RecordError as error:
                raise error.at(self._topics.changes, row.partition, row.offset) from error
        assert row.value is not None
        return DiffRecord(row.op, row.header, row.key, row.value)

    def _produce(self, producer: Producer, partition: int, told: DiffRecord) -> None:
        self._send(producer, partition, told.header, told.key, told.value)
        if told.op == "d" and self._tombstones:
            self._send(producer, partition, tombstone(told.header), told.key, None)

    def _send(self, producer: Producer, partition: int, header: bytes, key: bytes, value: bytes | None) -> None:
        headers: Headers = [(HEADER_NAME, header)]
        self._hand_over(producer, self._topics.diff, value, key, partition=partition, headers=headers)

    def _hand_over(self, producer: Producer, *record: Any, **more: Any) -> None:
        try:
            producer.produce(*record, **more)
        except BufferError:
            # The queue is bounded: wait for the broker, then hand the record over once more.
            producer.flush(_BLOCK_SECONDS)
            producer.produce(*record, **more)

    def _tell(self, result: Written, row: Row, error: Undecodable) -> None:
        segment = unpack(row.header).segment
        result.letters[segment] = result.letters.get(segment, 0) + 1
        if self._log or not result.reasons:
            result.reasons.append(str(error.at(self._topics.changes, row.partition, row.offset)))

    def _put_aside(self, producer: Producer, row: Row, originals: Iterator[Message], error: Undecodable) -> None:
        """Puts the record of a row on the dead-letter topic as it is, headers and time included."""
        message = next((m for m in originals if m.offset() == row.offset), None)
        if message is None:
            raise LossError(
                f"{self._topics.changes}[{row.partition}]@{row.offset}: the record was to be put on {self._letters}, "
                "and is not there any more: start again"
            )
        found: Any = message.headers()
        headers: Headers = [*(found or ()), *(self._why(row, error) if self._context else ())]
        moment = message.timestamp()[1]
        self._hand_over(producer, self._letters, message.value(), message.key(), headers=headers, timestamp=moment)

    def _why(self, row: Row, error: Undecodable) -> Iterator[tuple[str, bytes]]:
        """Kafka Connect's headers of a dead letter."""
        told = {
            "topic": self._topics.changes,
            "partition": row.partition,
            "offset": row.offset,
            "stage": "KEY_CONVERTER" if error.key is None else "VALUE_CONVERTER",
            "class.name": self._renderer.converter("key" if error.key is None else "value"),
            "exception.class.name": f"{RecordError.__module__}.{RecordError.__qualname__}",
            "exception.message": error,
        }
        return ((f"__connect.errors.{name}", str(value).encode()) for name, value in told.items())

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
        return producer

    def _consumer(self) -> Consumer:
        with self._making:
            if self._group is None:
                group = self._topics.diff_group
                self._group = kafka.consumer(self._config, group, error_cb=self._connections)
            return self._group
