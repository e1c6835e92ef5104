"""The job's own clients of Kafka: what topics look like, where they end, and records read to a given offset.

The only module of the job that imports `confluent_kafka`, beside `writer.py`. Each call is bounded by a
deadline. Tasks have a `Reader`; all else is the driver's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

import tenacity
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import (
    KafkaException as KafkaException,
)
from confluent_kafka import (
    Message as Message,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from deelog_schemas.config import Config
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.connections import Connections, settle
from deelog_schemas.positions import PositionState, ResetState, decode_state
from deelog_schemas.records import ON_CHANGES, ON_POSITIONS, Record, decode
from deelog_spark.errors import DiffError, LossError, RightsError, TopicError

REQUEST_SECONDS: Final = 30.0
SILENCE_SECONDS: Final = 60.0
"""A read that gets nothing for so long fails: the records it was promised do not come."""
QUIET: Final = {"log_level": 4, "log.connection.close": False}
"""Of librdkafka's own lines, warnings and worse."""
HOPELESS_SECONDS: Final = 5.0
"""The same where the client says that it cannot connect: a broker that restarts may look like that."""
_MOST_OF_A_POLL: Final = 1.0
RETRY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 1.0
_POLL: Final = 0.1
_CHUNK: Final = 2000
_CHUNK_SECONDS: Final = 0.01
"""A chunk is waited for as long as this: the last one is never full."""


_PASSING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._NOENT,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    }
)
"""What a broker that starts, moves or is away answers: worth asking again."""


def passing(error: BaseException) -> bool:
    """Whether a call that failed so may be made again as it was."""
    if not isinstance(error, KafkaException):
        return False
    told = error.args[0]
    return not told.fatal() and (told.retriable() or told.code() in _PASSING)


RETRYING: Final = tenacity.Retrying(
    retry=tenacity.retry_if_exception(passing),
    wait=tenacity.wait_exponential(0.05, max=1),
    stop=tenacity.stop_after_delay(RETRY_SECONDS),
    reraise=True,
)
"""`RETRYING(f, *args)` for calls that may be repeated; gives up after RETRY_SECONDS with the last error."""


def unreachable(error: KafkaException) -> DiffError:
    """What Kafka refused, in one line with its remedy."""
    return DiffError(
        f"Kafka: {error.args[0].str()}; look at the brokers, or at what of *.override.* this names, and start the job "
        "again: it goes on where it was"
    )


def refused(error: KafkaException, client: str, **asked: tuple[str, str]) -> Exception:
    """`RightsError` where a right is missing, of those that the request `asked` for; else the error itself."""
    told = missing_acl(error.args[0], client, **asked)
    return error if told is None else RightsError(told)


def reach(client: Any, connections: Connections) -> None:
    """Returns once a broker has answered. DiffError where none will, be it for its patience or for good."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            settle(client, _LOOK_SECONDS)
            return
        except KafkaException as error:
            with contextlib.suppress(KafkaException):
                connections.hear(client.poll)
            if connections.hopeless or time.monotonic() > deadline:
                raise DiffError(f"no broker answers: {connections.why}") from error


class Layout(NamedTuple):
    """What must not change under the job."""

    topic_id: str
    partitions: int


class Known(NamedTuple):
    """What the positions topic says of the segments."""

    base: dict[int, int]
    """Offset where the last completed reset begins."""
    open: dict[int, ResetState]


def consumer(config: Config, group: str, **more: Any) -> Consumer:
    """A consumer that joins no group, sees committed records only, and never chooses an offset by itself."""
    return Consumer(
        {
            # A read ends at a known offset: a fetch that waits for more would only delay the answer.
            "fetch.wait.max.ms": 2,
            "max.partition.fetch.bytes": 8 << 20,
            # One that has read ahead as far as it may would pause for 1 s, while a task reads faster than that.
            "fetch.queue.backoff.ms": 5,
            # An answer that does not come is asked for again before a reader gives up.
            "socket.timeout.ms": 20_000,
            **QUIET,
            **config.overrides("consumer"),
            "bootstrap.servers": ",".join(config["bootstrap.servers"]),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **more,
        }
    )


def record_of(message: Any, allowed: frozenset[Kind] = ON_CHANGES) -> Record:
    """A message as a record of ours; RecordError with its place where it is none."""
    place = (message.topic(), message.partition(), message.offset())
    return decode(*place, message.key(), message.value(), message.headers(), allowed)


class Reader:
    """Reads bounded ranges, one at a time. Call `close()` when done.

    A consumer per topic: one that turns to another topic waits 0.5 to 0.8 s for its leaders (librdkafka 2.16), a new
    one 0.04 s.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connections = Connections("consumer", config.overrides("consumer"))
        self._consumers: dict[str, Consumer] = {}
        self._silent = 0.0
        """Seconds of polls in a row that gave nothing."""

    def close(self) -> None:
        """Closes the consumers."""
        while self._consumers:
            self._consumers.popitem()[1].close()

    def read(self, topic: str, partition: int, begin: int, end: int) -> Generator[Message]:
        """`chunks`, one by one. To be closed before the reader where it is not read to its end."""
        for messages in self.chunks(topic, partition, begin, end):
            yield from messages

    def chunks(self, topic: str, partition: int, begin: int, end: int) -> Generator[list[Message]]:
        """The committed records of `[begin, end)` in order, as they come.

        LossError where `begin` is not there any more. DiffError where the partition falls silent before `end`.
        """
        if begin >= end:
            return
        client = self._consumer(topic)
        client.assign([TopicPartition(topic, partition, begin)])
        try:
            self._silent, done = 0.0, False
            while not done:
                began = time.monotonic()
                messages = client.consume(_CHUNK, _CHUNK_SECONDS)
                self._heard(bool(messages), topic, {partition: end}, began)
                if messages and all(m.error() is None for m in messages) and _offset(messages[-1]) < end - 1:
                    yield messages  # nearly all are: no look at each
                    continue
                found = []
                for message in messages:
                    taken, done = _taken(message, topic, partition, begin, end)
                    if taken:
                        found.append(message)
                    if done:
                        break
                if found:
                    yield found
        except KafkaException as error:
            raise self._denied(error, topic) from error
        finally:
            client.unassign()

    def together(
        self, topic: str, begins: Mapping[int, int], ends: Mapping[int, int], most_bytes: int
    ) -> dict[int, list[Message]] | None:
        """`chunks` of several partitions at once, for few records: by partition, without those of which there is
        nothing to read. None where keys and values take more than `most_bytes`."""
        left = {p: end for p, end in ends.items() if end > begins[p]}
        found: dict[int, list[Message]] = {p: [] for p in left}
        if not left:
            return found
        client = self._consumer(topic)
        client.assign([TopicPartition(topic, p, begins[p]) for p in left])
        size = 0
        try:
            self._silent = 0.0
            while left:
                began = time.monotonic()
                message = client.poll(_POLL)
                self._heard(message is not None, topic, left, began)
                partition: Any = -1 if message is None else message.partition()
                if message is None or (partition not in left and message.error() is None):
                    continue
                end = left.get(partition, 0)
                taken, done = _taken(message, topic, partition, begins.get(partition, 0), end)
                if taken:
                    found[partition].append(message)
                    size += len(message.key() or b"") + len(message)
                if size > most_bytes:
                    return None
                if done:
                    left.pop(partition, None)
            return found
        except KafkaException as error:
            raise self._denied(error, topic) from error
        finally:
            client.unassign()

    def _consumer(self, topic: str) -> Consumer:
        client = self._consumers.get(topic)
        if client is None:
            group = self._config.topics.diff_group
            client = self._consumers[topic] = consumer(self._config, group, error_cb=self._connections)
        return client

    def _denied(self, error: KafkaException, topic: str) -> Exception:
        return refused(error, "consumer", topic=("Read", topic), group=("Read", self._config.topics.diff_group))

    def _heard(self, something: bool, topic: str, ends: Mapping[int, int], began: float) -> None:
        """Notes a poll that began then; DiffError where too many in a row gave nothing, or nothing will come.

        Counted is the time that was spent asking: a process that stood still has not asked.
        """
        if something:
            self._silent = 0.0
            self._connections.clear()
            return
        self._silent += min(time.monotonic() - began, _MOST_OF_A_POLL)
        if self._connections.hopeless and self._silent > HOPELESS_SECONDS:
            raise DiffError(f"{topic} cannot be read: {self._connections.why}")
        if self._silent > SILENCE_SECONDS:
            partition, end = next(iter(sorted(ends.items())))
            raise DiffError(
                f"{topic}[{partition}] gave nothing for {SILENCE_SECONDS:.0f} s before offset {end}: look at the "
                "brokers, and start again"
            )


def _offset(message: Message) -> int:
    offset: Any = message.offset()
    return int(offset)


def _taken(message: Message, topic: str, partition: int, begin: int, end: int) -> tuple[bool, bool]:
    """Whether a message counts, and whether nothing below `end` is to come."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise _refused(error, topic, partition, begin)
    # An end of partition behind `end`, too, says that nothing below `end` is to come.
    offset = _offset(message)
    return error is None and offset < end, offset >= end - (error is None)


def _refused(error: KafkaError, topic: str, partition: int, begin: int) -> Exception:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return LossError(f"{topic}[{partition}]: offset {begin} or what follows it is not there any more: start again")
    return KafkaException(error)


def headers_of(message: Message) -> tuple[bytes | None, bytes | None]:
    """Our header of a message and that of a control record, each the last of its name."""
    header = control = None
    headers: Any = message.headers() or ()
    if len(headers) == 1 and headers[0][0] == HEADER_NAME:  # nearly all
        return headers[0][1], None
    for name, told in headers:
        if name == HEADER_NAME:
            header = told
        elif name == CONTROL_HEADER_NAME:
            control = told
    return header, control


class Cluster:
    """Everything the driver asks of Kafka. Call `close()` when done."""

    def __init__(self, config: Config) -> None:
        self._config = config
        servers = {"bootstrap.servers": ",".join(config["bootstrap.servers"])}
        self._connections = Connections("admin", {**config.overrides("admin"), **servers})
        self._admin = self._new_admin()
        reach(self._admin, self._connections)
        self.reader = Reader(config)

    def _new_admin(self) -> AdminClient:
        servers = ",".join(self._config["bootstrap.servers"])
        settings: dict[str, Any] = {**self._config.overrides("admin"), **QUIET}
        return AdminClient(settings | {"bootstrap.servers": servers, "error_cb": self._connections})

    def close(self) -> None:
        """Closes the reader."""
        self.reader.close()

    @RETRYING.wraps
    def layout(self, topic: str, wait: float = 0.0, stopping: Callable[[], bool] = lambda: False) -> Layout:
        """Id and partitions of a topic, waited for `wait` seconds at most; TopicError where there is none."""
        deadline = time.monotonic() + wait
        while True:
            try:
                found = self._admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_SECONDS)
                described = found[topic].result(REQUEST_SECONDS)
                return Layout(str(described.topic_id), len(described.partitions))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise refused(error, "admin", topic=("Describe", topic)) from error
            if time.monotonic() >= deadline or stopping():
                raise TopicError(
                    f"topic {topic} does not exist: start a node of the cache first (it creates the topic), or correct "
                    "topic.prefix, cache.name and bootstrap.servers"
                )
            time.sleep(_POLL)

    @RETRYING.wraps
    def settings(self, topic: str) -> dict[str, str]:
        """A topic's effective settings."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
        try:
            found = answer[resource].result(REQUEST_SECONDS)
        except KafkaException as error:
            raise refused(error, "admin", topic=("DescribeConfigs", topic)) from error
        return {name: entry.value for name, entry in found.items()}

    @RETRYING.wraps
    def create(self, topic: str, partitions: int, replication: int, settings: dict[str, str]) -> Layout:
        """Creates a topic, unless somebody else just did; what it looks like."""
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=settings)
        try:
            self._admin.create_topics([new], request_timeout=REQUEST_SECONDS)[topic].result(REQUEST_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise refused(error, "admin", topic=("Create", topic), cluster=("Create", "")) from error
        return self.layout(topic, wait=REQUEST_SECONDS)

    def ensure(self, topic: str, partitions: int, replication: int, settings: dict[str, str]) -> Layout:
        """What a topic looks like, created so where it is not there; one that is there stays as it is."""
        try:
            return self.layout(topic)
        except TopicError:
            return self.create(topic, partitions, replication, settings)

    @RETRYING.wraps
    def alter(self, topic: str, settings: dict[str, str]) -> None:
        """Sets these settings of a topic and leaves the others."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        answer = self._admin.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS)
        answer[resource].result(REQUEST_SECONDS)

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """The last stable offset of every partition."""
        return self._list(topic, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def begins(self, topic: str, partitions: int) -> dict[int, int]:
        """The first offset of every partition that is still there."""
        return self._list(topic, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    @RETRYING.wraps
    def _list(self, topic: str, partitions: int, spec: OffsetSpec) -> dict[int, int]:
        asked = {TopicPartition(topic, p): spec for p in range(partitions)}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=REQUEST_SECONDS
        )
        try:
            found = {tp.partition: future.result(REQUEST_SECONDS).offset for tp, future in answers.items()}
            if min(found.values(), default=0) < 0:
                # librdkafka 2.16 answers -1001 without an error where a slow broker's own answer does not come in time.
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}: an offset was not answered in time"))
            return found
        except KafkaException as error:
            # After a broker's restart the client may go on asking with the leader epoch that it remembers.
            self._admin = self._new_admin()
            raise refused(error, "admin", topic=("Describe", topic)) from error

    def known(self, topic: str) -> Known:
        """Reads the positions topic to its end. RecordError where a record there is not ours."""
        partitions = self.layout(topic, wait=REQUEST_SECONDS).partitions
        begins, ends = self.begins(topic, partitions), self.ends(topic, partitions)
        known = Known({}, {})
        for partition in range(partitions):
            for message in self.reader.read(topic, partition, begins[partition], ends[partition]):
                self._know(known, message)
        return known

    def _know(self, known: Known, message: Message) -> None:
        record = record_of(message, ON_POSITIONS)
        told = decode_state(record.key, record.value, record.header.kind)
        if told.what == "position":
            known.base.pop(told.segment, None)
            if isinstance(told.state, PositionState) and told.state.base_offset >= 0:
                known.base[told.segment] = told.state.base_offset
        elif told.what == "reset":
            known.open.pop(told.segment, None)
            if isinstance(told.state, ResetState):
                known.open[told.segment] = told.state
