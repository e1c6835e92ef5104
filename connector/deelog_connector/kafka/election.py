"""The consumer group whose one assigned member is the grid's controller.

Weighed in docs/decisions.md, "Who is controller".
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from deelog_connector.errors import KafkaUnusable, TopologyError
from deelog_connector.kafka.client import begin_session, common_settings, opened
from deelog_connector.kafka.follower import CALL_SECONDS, POLL_SECONDS, hand_over
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class NotController(Exception):
    """Another node is or may be controller: stop deciding, `rejoin()`, and wait to be elected again."""


def _error(exception: KafkaException) -> KafkaError:
    error: KafkaError = exception.args[0]
    return error


class Election:
    """A member of the controller group, and the producer of the member that is assigned the topology topic.

    `on_seated(seated)` is called on `loop` when the node is elected or deposed, `on_refused(error)` where an ACL for
    the election is missing. Once elected: `take()`, read the topic up to your own record, then `commit()` views. After
    `NotController`: `rejoin()`, and no `take()` until elected again. You must call `stop()`.
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
            # A joining node does not depose the controller.
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",  # nothing is read: only the assignment counts
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
        """Joins the group."""
        self._thread.start()

    def stop(self) -> None:
        """Leaves the group, so that the next member is assigned at once. Blocks."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def rejoin(self) -> None:
        """Leaves the group and joins it as a new member."""
        self._producer = None
        self._rejoin.set()

    def take(self) -> None:
        """Becomes controller: fences the last controller's producer. Blocks. Raises `NotController`."""
        producer = self._candidate
        if producer is None:
            raise NotController("not elected")
        try:
            begin_session(producer, CALL_SECONDS)
        except KafkaException as error:
            self._report_denied(_error(error), "producer")
            raise NotController(f"cannot become controller: {_error(error).str()}") from error
        self._producer = producer

    def commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        """Commits records to the topology topic if this node is still controller. Blocks. Raises `NotController`."""
        last = ""
        deadline = time.monotonic() + CALL_SECONDS
        while time.monotonic() < deadline:
            try:
                self._commit_once(records)
                return
            except KafkaException as error:
                cause = _error(error)
                last = cause.str()
                self._report_denied(cause, "producer")
                if not cause.txn_requires_abort() or not self._aborted():
                    break
                if cause.code() == KafkaError.UNKNOWN_MEMBER_ID:
                    break
                time.sleep(POLL_SECONDS)  # a rebalance: the next poll gets the group's new generation
        raise NotController(f"a view cannot be committed: {last}")

    def _commit_once(self, records: Sequence[tuple[str, bytes]]) -> None:
        producer, metadata = self._producer, self._metadata
        if producer is None or metadata is None:
            raise NotController("not elected")
        producer.begin_transaction()
        for key, value in records:
            producer.produce(self._topic, value, key.encode(), partition=0)
        # With the group's metadata the broker refuses the view of a former member.
        offsets = [TopicPartition(self._topic, 0, 0)]
        _within(2 * CALL_SECONDS, lambda: producer.send_offsets_to_transaction(offsets, metadata, CALL_SECONDS))
        producer.commit_transaction(CALL_SECONDS)

    def _aborted(self) -> bool:
        try:
            self._producer.abort_transaction(CALL_SECONDS)
        except KafkaException as error:
            log.warning("a view's transaction cannot be aborted: %s", _error(error).str())
            return False
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            self._rejoin.clear()
            try:
                # Connects before the election: saves half a second without a controller.
                self._candidate = _transactional(self._config, self._config.topics.transactional_id_controller)
                consumer, _ = opened(Consumer, "consumer", self._settings)
            except (KafkaUnusable, ConfigError) as problem:  # e.g. a file of secrets being written
                log.warning("controller group: %s; trying again", problem)
                self._stop.wait(_RETRY_SECONDS)
                continue
            try:
                consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost)
                while not self._stop.is_set() and not self._rejoin.is_set():
                    error = getattr(consumer.poll(POLL_SECONDS), "error", lambda: None)()
                    if error is not None and not self._report_denied(error, "consumer"):
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
        # Called at each rebalance, without partitions if they stay, so the metadata has the present generation. Not
        # called elsewhere: the client holds the interpreter lock while it waits, and would wait for ever if a callback
        # were due first.
        self._metadata = consumer.consumer_group_metadata()
        if partitions:
            self._tell(True)

    def _lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._tell(False)

    def _report_denied(self, error: KafkaError, client: str) -> bool:
        """Whether the error is a missing ACL; if so, calls `on_refused`."""
        denied = missing_acl(error, client, **self._asked)
        if denied is not None:
            hand_over(self._loop, self._on_refused, TopologyError(denied))
        return denied is not None

    def _tell(self, seated: bool) -> None:
        hand_over(self._loop, self._on_seated, seated)


def _transactional(config: Config, transactional_id: str) -> Any:
    settings = common_settings(config) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": config["transaction.timeout.ms"],
        "acks": "all",
        "linger.ms": 0,
    }
    return opened(Producer, "producer", settings | dict(config.overrides("producer")))[0]


def _within(seconds: float, call: Callable[[], None]) -> None:
    """Runs a client's call that may outlast its own timeout; raises `NotController` if it does.

    After a broker's restart librdkafka 2.16 may never return from `send_offsets_to_transaction`. The waiting thread is
    abandoned with its producer: the next term has a new one.
    """
    answer: Future[None] = Future()

    def run() -> None:
        try:
            call()
            answer.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            answer.set_exception(error)

    threading.Thread(target=run, name="deelog-offsets", daemon=True).start()
    try:
        answer.result(seconds)
    except FutureTimeout as error:
        raise NotController(f"the group's coordinator did not answer within {seconds:.0f} s") from error
