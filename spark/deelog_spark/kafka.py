"""The job's clients of Kafka: a reader of bounded ranges, for tasks and driver, and the driver's admin client.

Only this module and `sinks/kafka.py` import `confluent_kafka`. Every call has a deadline.
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

from deelog_schemas.config import Config, ConfigError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.client_log import client_log
from deelog_schemas.kafka.connections import ADMIN_SETTINGS, Connections, settle
from deelog_schemas.kafka.progress import ProducerLost
from deelog_schemas.positions import ClaimState, PositionState, ResetState, decode_state
from deelog_schemas.records import ON_CHANGES, ON_POSITIONS, Record, decode
from deelog_spark.errors import DiffError, LossError, RightsError, TopicError
from deelog_spark.folding.by_records import LOST, PositionsView

REQUEST_SECONDS: Final = 30.0
SILENCE_SECONDS: Final = 60.0
"""A read that gets no record for so long fails."""
QUIET: Final = {"log_level": 4, "log.connection.close": False, "logger": client_log("deelog.diff.kafka")}
"""librdkafka logs warnings and errors only."""
HOPELESS_SECONDS: Final = 5.0
"""The same where the client cannot connect. Not at once: a broker that restarts looks like that."""
_MOST_OF_A_POLL: Final = 1.0
RETRY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 1.0
_POLL: Final = 0.1
_CHUNK: Final = 2000
_CHUNK_SECONDS: Final = 0.01
"""How long to wait for a full chunk; the last one is never full."""


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
"""Errors of a broker that starts, moves or is away."""


def passing(error: BaseException) -> bool:
    """Whether a call that raised `error` may be repeated as it was."""
    if not isinstance(error, KafkaException) or isinstance(error, ProducerLost):
        return False
    cause = error.args[0]
    return not cause.fatal() and (cause.retriable() or cause.code() in _PASSING)


RETRYING: Final = tenacity.Retrying(
    retry=tenacity.retry_if_exception(passing),
    wait=tenacity.wait_exponential(0.05, max=1),
    stop=tenacity.stop_after_delay(RETRY_SECONDS),
    reraise=True,
)
"""`RETRYING(f, *args)` for calls that may be repeated; raises the last error after RETRY_SECONDS."""


def _admin_client(config: Config, **more: Any) -> AdminClient:
    servers = ",".join(config["bootstrap.servers"])
    settings: dict[str, Any] = {**ADMIN_SETTINGS, **config.overrides("admin"), **QUIET}
    return AdminClient({**settings, "bootstrap.servers": servers, **more})


def brokers_answer(config: Config) -> bool:
    """Whether a broker answers a client that has just been made."""
    try:
        _admin_client(config).list_topics("__transaction_state", _LOOK_SECONDS)
    except (KafkaException, ConfigError):  # a task may have no file of the admin client's secrets
        return False
    return True


def unreachable(error: KafkaException) -> DiffError:
    """An error of Kafka in one line, with its remedy."""
    return DiffError(
        f"Kafka: {error.args[0].str()}; look at the brokers, or at what of *.override.* this names, and start the job "
        "again: it goes on where it was"
    )


def refused(error: KafkaException, client: str, **asked: tuple[str, str]) -> Exception:
    """`RightsError` where one of the rights is missing that the request `asked` for; else the error itself."""
    missing = missing_acl(error.args[0], client, **asked)
    return error if missing is None else RightsError(missing)


def reach(client: Any, connections: Connections, seconds: float = RETRY_SECONDS) -> None:
    """Waits until a broker answers; DiffError after `seconds`, or where the client cannot connect at all."""
    deadline = time.monotonic() + seconds
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
    """What must not change while the job has state of a topic."""

    topic_id: str
    partitions: int


def consumer(config: Config, group: str, **more: Any) -> Consumer:
    """A consumer that joins no group, reads committed records only, and never resets its offset by itself."""
    return Consumer(
        {
            # A read ends at a known offset: a fetch must not wait for more.
            "fetch.wait.max.ms": 2,
            "max.partition.fetch.bytes": 8 << 20,
            # The default pauses for 1 s when the queue is full; a task empties it sooner.
            "fetch.queue.backoff.ms": 5,
            # A lost answer is requested again before a reader gives up.
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
    """A message as a record; RecordError, with its place, for a foreign one."""
    place = (message.topic(), message.partition(), message.offset())
    return decode(*place, message.key(), message.value(), message.headers(), allowed)


class Reader:
    """Reads bounded ranges, one at a time. Call `close()` at the end.

    It has a consumer per topic: a consumer that changes its topic waits 0.5 to 0.8 s for the leaders (librdkafka 2.16),
    a new one 0.04 s. `clock` measures its polls.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._connections = Connections("consumer", config.overrides("consumer"))
        self._consumers: dict[str, Consumer] = {}
        self._silent = 0.0
        """How long the last polls without a record took, in seconds."""

    def close(self) -> None:
        """Closes the consumers."""
        while self._consumers:
            self._consumers.popitem()[1].close()

    def read(self, topic: str, partition: int, begin: int, end: int) -> Generator[Message]:
        """`chunks`, message by message. Close it before the reader if it is not read to its end."""
        for messages in self.chunks(topic, partition, begin, end):
            yield from messages

    def chunks(self, topic: str, partition: int, begin: int, end: int) -> Generator[list[Message]]:
        """The committed records of `[begin, end)` in order, in chunks as they come.

        Raises LossError where `begin` is gone, DiffError where no record comes for SILENCE_SECONDS before `end`.
        """
        if begin >= end:
            return
        client = self._consumer(topic)
        client.assign([TopicPartition(topic, partition, begin)])
        try:
            self._silent, done = 0.0, False
            while not done:
                began = self._clock()
                messages = client.consume(_CHUNK, _CHUNK_SECONDS)
                self._heard(bool(messages), topic, {partition: end}, began)
                if messages and all(m.error() is None for m in messages) and _offset(messages[-1]) < end - 1:
                    yield messages  # the fast path, of nearly all chunks
                    continue
                inside = []
                for message in messages:
                    taken, done = _taken(message, topic, partition, begin, end)
                    if taken:
                        inside.append(message)
                    if done:
                        break
                if inside:
                    yield inside
        except KafkaException as error:
            raise self._denied(error, topic) from error
        finally:
            client.unassign()

    def together(
        self, topic: str, begins: Mapping[int, int], ends: Mapping[int, int], most_bytes: int
    ) -> dict[int, list[Message]] | None:
        """The committed records of several ranges, by partition; for few records.

        Leaves out partitions with an empty range. None where keys and values take more than `most_bytes`. Raises what
        `chunks` raises.
        """
        left = {p: end for p, end in ends.items() if end > begins[p]}
        messages: dict[int, list[Message]] = {p: [] for p in left}
        if not left:
            return messages
        client = self._consumer(topic)
        client.assign([TopicPartition(topic, p, begins[p]) for p in left])
        size = 0
        try:
            self._silent = 0.0
            while left:
                began = self._clock()
                message = client.poll(_POLL)
                partition: Any = -1 if message is None else message.partition()
                self._heard(partition in left, topic, left, began)
                if message is None or (partition not in left and message.error() is None):
                    continue
                end = left.get(partition, 0)
                taken, done = _taken(message, topic, partition, begins.get(partition, 0), end)
                if taken:
                    messages[partition].append(message)
                    size += len(message.key() or b"") + len(message)
                if size > most_bytes:
                    return None
                if done and left.pop(partition, None) is not None:
                    client.incremental_unassign([TopicPartition(topic, partition)])  # it may be a busy one
            return messages
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
        """Counts a poll that began at `began`; DiffError where the last ones gave nothing for too long.

        Only the time in polls counts: a process that was suspended has not polled.
        """
        if something:
            self._silent = 0.0
            self._connections.clear()
            return
        self._silent += min(self._clock() - began, _MOST_OF_A_POLL)
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
    """Whether a message is in the range, and whether it is the last one below `end`."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise _refused(error, topic, partition, begin)
    # An end-of-partition event above `end` also means that nothing below `end` will come.
    offset = _offset(message)
    return error is None and offset < end, offset >= end - (error is None)


def _refused(error: KafkaError, topic: str, partition: int, begin: int) -> Exception:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return LossError(f"{topic}[{partition}]: offset {begin} or what follows it is not there any more: start again")
    return KafkaException(error)


def headers_of(message: Message) -> tuple[bytes | None, bytes | None]:
    """The values of `deelog` and `deelog.control` among a message's headers: of each the last one, None without it."""
    header = control = None
    headers: Any = message.headers() or ()
    if len(headers) == 1 and headers[0][0] == HEADER_NAME:  # nearly all
        return headers[0][1], None
    for name, value in headers:
        if name == HEADER_NAME:
            header = value
        elif name == CONTROL_HEADER_NAME:
            control = value
    return header, control


class Cluster:
    """The driver's admin client and reader. Call `close()` at the end.

    Every call raises `RightsError` where a right is missing, and is repeated for RETRY_SECONDS while brokers are away,
    the first one for `seconds`.
    """

    def __init__(self, config: Config, seconds: float = RETRY_SECONDS) -> None:
        self._config = config
        servers = {"bootstrap.servers": ",".join(config["bootstrap.servers"])}
        self._connections = Connections("admin", {**config.overrides("admin"), **servers})
        self._admin = self._new_admin()
        reach(self._admin, self._connections, seconds)
        self.reader = Reader(config)

    def _new_admin(self) -> AdminClient:
        return _admin_client(self._config, error_cb=self._connections)

    def close(self) -> None:
        """Closes the reader."""
        self.reader.close()

    @RETRYING.wraps
    def layout(self, topic: str, wait: float = 0.0, stopping: Callable[[], bool] = lambda: False) -> Layout:
        """Id and partitions of a topic; TopicError where it does not exist after `wait` seconds, or when `stopping`."""
        deadline = time.monotonic() + wait
        while True:
            try:
                answer = self._admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_SECONDS)
                described = answer[topic].result(REQUEST_SECONDS)
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
            settings = answer[resource].result(REQUEST_SECONDS)
        except KafkaException as error:
            raise refused(error, "admin", topic=("DescribeConfigs", topic)) from error
        return {name: entry.value for name, entry in settings.items()}

    @RETRYING.wraps
    def create(self, topic: str, partitions: int, replication: int, settings: dict[str, str]) -> Layout:
        """Creates a topic, unless it exists by now; its layout."""
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=settings)
        try:
            self._admin.create_topics([new], request_timeout=REQUEST_SECONDS)[topic].result(REQUEST_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise refused(error, "admin", topic=("Create", topic), cluster=("Create", "")) from error
        return self.layout(topic, wait=REQUEST_SECONDS)

    def ensure(self, topic: str, partitions: int, replication: int, settings: dict[str, str]) -> Layout:
        """A topic's layout; creates the topic if it is missing. An existing one is not changed."""
        try:
            return self.layout(topic)
        except TopicError:
            return self.create(topic, partitions, replication, settings)

    @RETRYING.wraps
    def alter(self, topic: str, settings: dict[str, str]) -> None:
        """Changes these settings of a topic, and no others."""
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
        """The first offset of every partition."""
        return self._list(topic, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def since(self, topic: str, partitions: int, moment_ms: int) -> dict[int, int]:
        """The first offset of every partition whose record is of that moment or later; -1 where there is none."""
        return self._list(topic, partitions, OffsetSpec.for_timestamp(moment_ms), least=-1)

    @RETRYING.wraps
    def _list(self, topic: str, partitions: int, spec: OffsetSpec, least: int = 0) -> dict[int, int]:
        asked = {TopicPartition(topic, p): spec for p in range(partitions)}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=REQUEST_SECONDS
        )
        try:
            offsets = {tp.partition: future.result(REQUEST_SECONDS).offset for tp, future in answers.items()}
            if min(offsets.values(), default=0) < least:
                # librdkafka 2.16 answers -1001 without an error where a broker does not answer in time.
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}: an offset was not answered in time"))
            return offsets
        except KafkaException as error:
            # After a broker's restart the client may repeat the request with an old leader epoch.
            self._admin = self._new_admin()
            raise refused(error, "admin", topic=("Describe", topic)) from error

    def positions(self, topic: str, topic_id: str) -> PositionsView:
        """The content of the positions topic; RecordError for a foreign record. `topic_id`: of the change topic."""
        partitions = self.layout(topic, wait=REQUEST_SECONDS).partitions
        begins, ends = self.begins(topic, partitions), self.ends(topic, partitions)
        view, segments = PositionsView({}, {}), 0
        for partition in range(partitions):
            for message in self.reader.read(topic, partition, begins[partition], ends[partition]):
                record = record_of(message, ON_POSITIONS)
                entry = decode_state(record.key, record.value, record.header.kind)
                if entry.what == "position":
                    view.base.pop(entry.segment, None)
                    state = entry.state
                    if isinstance(state, PositionState) and state.base_offset >= 0:
                        # Without an id its writer had not read it yet.
                        ours = state.topic_id in ("", topic_id)
                        view.base[entry.segment] = state.base_offset if ours else LOST
                elif entry.what == "reset":
                    view.open.pop(entry.segment, None)
                    if isinstance(entry.state, ResetState):
                        view.open[entry.segment] = entry.state
                elif isinstance(entry.state, ClaimState):
                    segments = entry.state.segments
        return view._replace(segments=segments)
