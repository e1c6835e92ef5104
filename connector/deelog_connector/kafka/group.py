"""The grid's side of Kafka: the topology topic, and the consumer group whose one assigned member is the controller.

Weighed: ZooKeeper or etcd (another system to run), Raft among the nodes (another protocol to get right, and Kafka has
elected and fenced already), and this one: Kafka's group protocol says who is controller, and a transaction that
carries the group's metadata is refused for one who no longer is.

All classes here block or own a thread; what they find is handed over on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential

from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.opening import KafkaUnusable, begin_session, common_settings, opened, reason
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.errors import DeelogError
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.connections import Connections

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.1
_CALL_SECONDS: Final = 10.0
_TRIES: Final = 4
_RETRY_SECONDS: Final = 1.0
_MAX_RECORDS: Final = 500


class GridKafkaError(DeelogError):
    """Kafka refuses something that the grid cannot do without; the message says what and the remedy."""

    exit_code = 3


class NotController(Exception):
    """Somebody else is controller, or nobody can tell: give up the office, `rejoin()`, and wait to be seated anew."""


class TopologyRecord(NamedTuple):
    """A record of the topology topic; `value` is None where the key is removed."""

    offset: int
    key: str
    value: bytes | None


def _error(found: KafkaException) -> KafkaError:
    error: KafkaError = found.args[0]
    return error


def create_topology_topic(config: Config) -> None:
    """Creates the topology topic (one partition, compacted) where it is missing. Blocks; `KafkaUnusable`."""
    KafkaAdmin(config).ensure(config.topics.topology, 1, {"cleanup.policy": "compact"})


class TopologyReader:
    """Follows the topology topic from its beginning, `read_committed`, in a thread of its own.

    `on_records` gets batches in order, `on_failure` the error after which nothing comes any more; both are called on
    `loop`. You must call `stop()`.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        on_records: Callable[[list[TopologyRecord]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._topic, self._group = config.topics.topology, config.topics.reader_group
        self._settings = common_settings(config) | {
            "group.id": self._group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "reconnect.backoff.max.ms": 500,
            **config.overrides("consumer"),
        }
        self._loop, self._on_records, self._on_failure = loop, on_records, on_failure
        self._has_read = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deelog-topology", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; blocks until it has."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            consumer, _ = opened(Consumer, "consumer", self._settings)
        except KafkaUnusable as error:
            _hand_over(self._loop, self._on_failure, error)
            return
        try:
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            while not self._stop.is_set():
                records = [self._decoded(message) for message in consumer.consume(_MAX_RECORDS, _POLL_SECONDS)]
                found = [record for record in records if record is not None]
                if found:
                    _hand_over(self._loop, self._on_records, found)
        except (KafkaException, GridKafkaError, UnicodeDecodeError) as error:
            _hand_over(self._loop, self._on_failure, error)
        finally:
            consumer.close()

    def _decoded(self, message: Any) -> TopologyRecord | None:
        error = message.error()
        if error is None:
            self._has_read = True
            return TopologyRecord(message.offset(), (message.key() or b"").decode(), message.value())
        refused = missing_acl(error, "consumer", topic=("Read", self._topic), group=("Read", self._group))
        if refused is not None:
            if not self._has_read:
                raise GridKafkaError(refused)
            log.error("%s", refused)  # the client asks on, and reads on once the right is back
            return None
        if error.fatal() or error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError._AUTO_OFFSET_RESET,
        ):
            raise GridKafkaError(f"topic {self._topic}: {error.str()}; was it deleted? Restart the nodes")
        log.warning("topic %s: %s", self._topic, error.str())
        return None


def _hand_over(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # The loop is closed: there is nobody left to tell, and the caller's own loop ends by its stop flag.
        log.info("the event loop ended before %s", getattr(function, "__name__", "a callback"))


def publish(config: Config, key: str, value: bytes) -> None:
    """Writes one record to the topology topic, outside any transaction; returns once Kafka holds it. Blocks."""
    topic = config.topics.topology
    settings = common_settings(config)
    settings |= {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0, "linger.ms": 0}
    producer, connections = opened(Producer, "producer", settings | dict(config.overrides("producer")))
    failures: list[KafkaError] = []

    def report(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    producer.produce(topic, value, key.encode(), partition=0, on_delivery=report)
    left = _flushed(producer, connections)
    if left or failures:
        silence = connections.why or f"no answer within {_CALL_SECONDS:.0f} s"
        why = reason(KafkaException(failures[0]), connections, topic=("Write", topic)) if failures else silence
        producer.purge()
        producer.flush(1)
        raise GridKafkaError(f"topic {topic}: {key} cannot be written: {why}")


def _flushed(producer: Any, connections: Connections) -> int:
    """How many records are still on their way after the time that a call may take, or once that is in vain."""
    until = time.monotonic() + _CALL_SECONDS
    while True:
        left = int(producer.flush(_POLL_SECONDS))
        if not left or connections.hopeless or time.monotonic() > until:
            return left


@retry(
    retry=retry_if_exception_type(KafkaException),
    stop=stop_after_attempt(_TRIES),
    wait=wait_exponential(multiplier=0.1),
    reraise=True,
)
def fence(config: Config, node_id: str) -> None:
    """Fences the producer of a node: its open transaction is aborted and its later ones are refused. Blocks.

    Raises `KafkaException`; `GridKafkaError` where this user may not.
    """
    transactional_id = config.topics.transactional_id_node(node_id)
    producer = _transactional(config, transactional_id)
    try:
        begin_session(producer, _CALL_SECONDS)
    except KafkaException as error:
        _refuse(error, "producer", transactional_id=("Write", transactional_id))
        raise


def _transactional(config: Config, transactional_id: str) -> Any:
    settings = common_settings(config) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": config["transaction.timeout.ms"],
        "acks": "all",
        "linger.ms": 0,
    }
    return opened(Producer, "producer", settings | dict(config.overrides("producer")))[0]


def _refuse(error: KafkaException, client: str, **asked: tuple[str, str]) -> None:
    """Raises `GridKafkaError` where the error is a missing right."""
    told = missing_acl(_error(error), client, **asked)
    if told is not None:
        raise GridKafkaError(told) from error


class Election:
    """A member of the controller group, and the producer of whoever is assigned the topology topic.

    `on_seated(seated)` is called on `loop` at each change, `on_refused(error)` where a right to stand for the office is
    missing. When seated: `take()`, read the topic to your own record, then `commit()` views. After `NotController`:
    `rejoin()`, never `take()` again until seated. You must call `stop()`.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        on_seated: Callable[[bool], None],
        on_refused: Callable[[Exception], None],
        client_id: str,
    ) -> None:
        self._config = config
        self._topic = config.topics.topology
        timeout = config["cache.controller.session.timeout.ms"]
        self._settings = common_settings(config) | {
            "group.id": config.topics.controller_group,
            "client.id": client_id,
            "session.timeout.ms": timeout,
            "heartbeat.interval.ms": max(timeout // 4, 1),
            # A node that joins does not take the office away from the one that has it.
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",  # nothing is read here: the assignment is all that counts
            "allow.auto.create.topics": False,
            "reconnect.backoff.max.ms": 500,
            **config.overrides("consumer"),
        }
        self._loop, self._on_seated, self._on_refused = loop, on_seated, on_refused
        self._asked = {
            "group": ("Read", config.topics.controller_group),
            "transactional_id": ("Write", config.topics.transactional_id_controller),
            "topic": ("Write", config.topics.topology),
        }
        self._metadata: Any = None
        self._candidate: Any = None
        self._producer: Any = None
        self._rejoin = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deelog-controller-group", daemon=True)

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, so that the next one is assigned at once; blocks."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def rejoin(self) -> None:
        """Leave the group and join it as a new member."""
        self._producer = None
        self._rejoin.set()

    def take(self) -> None:
        """Takes the office: fences the last controller's producer. Blocks; `NotController`."""
        producer = self._candidate
        if producer is None:
            raise NotController("not seated")
        try:
            begin_session(producer, _CALL_SECONDS)
        except KafkaException as error:
            self._tell_of_rights(_error(error), "producer")
            raise NotController(f"the office cannot be taken: {_error(error).str()}") from error
        self._producer = producer

    def commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        """Commits records to the topology topic if this node is still controller. Blocks; `NotController`."""
        last = ""
        deadline = time.monotonic() + _CALL_SECONDS
        while time.monotonic() < deadline:
            try:
                self._commit_once(records)
                return
            except KafkaException as error:
                found = _error(error)
                last = found.str()
                self._tell_of_rights(found, "producer")
                if not found.txn_requires_abort() or not self._aborted():
                    break
                if found.code() == KafkaError.UNKNOWN_MEMBER_ID:
                    break
                time.sleep(_POLL_SECONDS)  # a rebalance: the next poll brings the group's new generation
        raise NotController(f"a view cannot be committed: {last}")

    def _commit_once(self, records: Sequence[tuple[str, bytes]]) -> None:
        producer, metadata = self._producer, self._metadata
        if producer is None or metadata is None:
            raise NotController("not seated")
        producer.begin_transaction()
        for key, value in records:
            producer.produce(self._topic, value, key.encode(), partition=0)
        # The group's metadata makes the broker refuse the view of one who is no longer a member.
        offsets = [TopicPartition(self._topic, 0, 0)]
        _within(2 * _CALL_SECONDS, lambda: producer.send_offsets_to_transaction(offsets, metadata, _CALL_SECONDS))
        producer.commit_transaction(_CALL_SECONDS)

    def _aborted(self) -> bool:
        try:
            self._producer.abort_transaction(_CALL_SECONDS)
        except KafkaException as error:
            log.warning("a view's transaction cannot be aborted: %s", _error(error).str())
            return False
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            self._rejoin.clear()
            try:
                # Connected already when the office comes: half a second less without a controller.
                self._candidate = _transactional(self._config, self._config.topics.transactional_id_controller)
                consumer, _ = opened(Consumer, "consumer", self._settings)
            except (KafkaUnusable, ConfigError) as problem:  # a file of secrets that is just being written
                log.warning("controller group: %s; trying again", problem)
                self._stop.wait(_RETRY_SECONDS)
                continue
            try:
                consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost)
                while not self._stop.is_set() and not self._rejoin.is_set():
                    error = getattr(consumer.poll(_POLL_SECONDS), "error", lambda: None)()
                    if error is not None and not self._tell_of_rights(error, "consumer"):
                        log.warning("controller group: %s", error.str())
                    if error is not None and error.fatal():
                        break
            finally:
                self._metadata = self._candidate = None
                consumer.close()
            self._tell(False)

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        # Called at each rebalance, with no partitions where they stay, so the generation is the group's present one.
        # Never elsewhere: the client holds the interpreter lock while it waits for this answer, and where a callback
        # was due first it would wait for ever.
        self._metadata = consumer.consumer_group_metadata()
        if partitions:
            self._tell(True)

    def _lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._tell(False)

    def _tell_of_rights(self, error: KafkaError, client: str) -> bool:
        """Whether the error is a missing right; the node is told then."""
        told = missing_acl(error, client, **self._asked)
        if told is not None:
            _hand_over(self._loop, self._on_refused, GridKafkaError(told))
        return told is not None

    def _tell(self, seated: bool) -> None:
        _hand_over(self._loop, self._on_seated, seated)


def _within(seconds: float, call: Callable[[], None]) -> None:
    """Runs a client's call that may outlast its own timeout; raises `NotController` where it does.

    After a broker's restart librdkafka 2.16 may never answer `send_offsets_to_transaction`. The thread that waits for
    it is given up, with its producer: a new seat has a new one.
    """
    answer: Future[None] = Future()

    def run() -> None:
        try:
            call()
            answer.set_result(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name="deelog-offsets", daemon=True).start()
    try:
        answer.result(seconds)
    except FutureTimeout as error:
        raise NotController(f"the group's coordinator did not answer within {seconds:.0f} s") from error
