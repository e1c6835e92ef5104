"""The consumer group whose one assigned member is the grid's controller.

Weighed in docs/decisions.md, "Who is controller".
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from deelog_connector.errors import KafkaUnusable, TopologyError
from deelog_connector.kafka.client import (
    LOOK_SECONDS,
    begin_session,
    brokers_answer,
    common_settings,
    coordinator_answers,
    opened,
)
from deelog_connector.kafka.threads import Run, begun
from deelog_connector.kafka_port import NotController, beat_seconds, session_seconds
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.progress import STALL_SECONDS, Progress

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.1
_FOR_GOOD: Final = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.INVALID_TIMESTAMP})
"""Why a view cannot be committed, however often it is tried. The second: by this machine's clock."""


def _error(exception: KafkaException) -> KafkaError:
    error: KafkaError = exception.args[0]
    return error


class Election:
    """See `kafka_port.Election`. Make it on the loop on which the callbacks are called."""

    def __init__(
        self,
        run: Run,
        config: Config,
        client_id: str,
        on_elected: Callable[[bool], None],
        on_refused: Callable[[Exception], None],
        seconds: float,
    ) -> None:
        self._config = config
        self._topic = config.topics.topology
        timeout = round(session_seconds(config) * 1000)
        self._settings = common_settings(config) | {
            "group.id": config.topics.controller_group,
            "session.timeout.ms": timeout,
            "heartbeat.interval.ms": max(round(beat_seconds(config) * 1000), 1),
            # A joining node does not depose the controller.
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",  # nothing is read: only the assignment counts
            "allow.auto.create.topics": False,
            **config.overrides("consumer"),
            "client.id": client_id,  # by it the group says who is alive
        }
        self._run_blocking, self._seconds = run, seconds
        self._progress = Progress(lambda: brokers_answer(config), seconds)
        self._loop = asyncio.get_running_loop()
        self._on_elected, self._on_refused = on_elected, on_refused
        self._asked = {
            "group": ("Read", config.topics.controller_group),
            "transactional_id": ("Write", config.topics.transactional_id_controller),
            "topic": ("Write", config.topics.topology),
        }
        self._metadata: Any = None
        self._candidate: Any = None
        self._lock = threading.Lock()
        self._seat: object | None = None
        """Another object for each term: what a call of an earlier one still does is not done in this one."""
        self._producer: Any = None
        self._rejoin = threading.Event()
        self._aside = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deelog-controller-group", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            await self._run_blocking(self._thread.join)

    def rejoin(self, aside: float = 0.0) -> None:
        self._aside = aside
        self._sit(None)
        self._rejoin.set()

    async def take(self) -> None:
        await self._run_blocking(self._take)

    async def commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        await self._run_blocking(self._commit, records)

    def _take(self) -> None:
        seat = self._seat
        if seat is None:
            raise NotController("not elected")
        producer, self._candidate = self._candidate, None
        try:
            if producer is None:  # the seat was lost and is back, in the same membership
                producer = self._transactional()
            begin_session(producer, self._seconds)
        except (KafkaUnusable, ConfigError) as problem:
            raise NotController(f"cannot become controller: {problem}") from problem
        except KafkaException as error:
            self._report_denied(_error(error), "producer")
            raise NotController(f"cannot become controller: {_error(error).str()}") from error
        with self._lock:
            if self._seat is not seat:
                raise NotController("the seat was lost meanwhile")
            self._producer = producer

    def _sit(self, seat: object | None) -> None:
        with self._lock:
            self._seat, self._producer = seat, None

    def _transactional(self) -> Any:
        config = self._config
        settings = common_settings(config) | {
            "transactional.id": config.topics.transactional_id_controller,
            "transaction.timeout.ms": config["transaction.timeout.ms"],
            "acks": "all",
            "linger.ms": 0,
        }
        return opened(Producer, "producer", settings | dict(config.overrides("producer")))[0]

    def _commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        last, producer = "", self._producer
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            metadata = self._metadata  # once for an attempt: `rejoin` comes at any time
            # CHECK read-to-own-record: a term's view does not come behind the next term's first record.
            if producer is None or self._producer is not producer or metadata is None:
                raise NotController("not elected")
            try:
                self._commit_once(producer, metadata, records)
                return
            except KafkaException as error:
                cause = _error(error)
                last = cause.str()
                self._report_denied(cause, "producer")
                if not cause.txn_requires_abort() or not self._aborted(producer):
                    break
                if cause.code() in _FOR_GOOD:
                    break
                time.sleep(_POLL_SECONDS)  # a rebalance: the next poll gets the group's new generation
        raise NotController(f"a view cannot be committed: {last}")

    def _commit_once(self, producer: Any, metadata: Any, records: Sequence[tuple[str, bytes]]) -> None:
        producer.begin_transaction()
        self._progress.begin()
        for key, value in records:
            producer.produce(self._topic, value, key.encode(), partition=0)
        self._send_offsets(producer, metadata)
        until = time.monotonic() + self._seconds
        self._progress.commit(producer, lambda: time.monotonic() < until)

    def _send_offsets(self, producer: Any, metadata: Any) -> None:
        """With the group's metadata the broker refuses the view of a former member. Raises `NotController` if it hangs.

        Once its connection to the coordinator was lost, librdkafka 2.16 may never return from this call, whatever its
        timeout. So it is given up where the coordinator answers another client. The waiting thread is abandoned with
        its producer: the next term has a new one.
        """
        offsets = [TopicPartition(self._topic, 0, 0)]
        call = begun("deelog-offsets", producer.send_offsets_to_transaction, offsets, metadata, self._seconds)
        waited = 0.0  # turn by turn: a process that was stopped has not waited meanwhile
        while waited < 2 * self._seconds:
            turn = min(LOOK_SECONDS, self._seconds)
            try:
                call.result(turn)
                return
            except FutureTimeout:
                waited += turn
            if waited >= STALL_SECONDS:
                if coordinator_answers(self._config, self._config.topics.controller_group):
                    break
                waited += LOOK_SECONDS
        if not call.done():
            raise NotController(f"the group's coordinator has not answered for {waited:.0f} s")
        call.result()

    def _aborted(self, producer: Any) -> bool:
        try:
            producer.abort_transaction(self._seconds)
        except KafkaException as error:
            log.warning("a view's transaction cannot be aborted: %s", _error(error).str())
            return False
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            self._rejoin.clear()
            try:
                # Connects before the election: saves half a second without a controller.
                self._candidate = self._transactional()
                consumer, _ = opened(Consumer, "consumer", self._settings)
            except (KafkaUnusable, ConfigError) as problem:  # e.g. a file of secrets being written
                log.warning("controller group: %s; trying again", problem)
                self._stop.wait(_RETRY_SECONDS)
                continue
            aside, self._aside = self._aside, 0.0
            try:
                # Who stands aside is a member, which says that its node lives: with the partitions of another topic.
                self._subscribe(consumer, self._config.topics.positions if aside else self._topic)
                stands_at = time.monotonic() + aside
                while not self._stop.is_set() and not self._rejoin.is_set():
                    if aside and time.monotonic() >= stands_at:
                        aside = 0.0
                        self._subscribe(consumer, self._topic)
                    error = getattr(consumer.poll(_POLL_SECONDS), "error", lambda: None)()
                    if error is not None and not self._report_denied(error, "consumer"):
                        log.warning("controller group: %s", error.str())
                    if error is not None and error.fatal():
                        break
            except KafkaException as error:  # of a callback, too
                log.warning("controller group: %s; joining again", _error(error).str())
                self._stop.wait(_RETRY_SECONDS)
            finally:
                self._metadata = self._candidate = None
                self._sit(None)
                # `close` alone tells the group nothing where no partition is assigned (librdkafka 2.16): a member that
                # is gone would stay, and be assigned the seat in the next rebalance, until its session is over.
                self._leave(consumer)
            self._tell(False)

    def _leave(self, consumer: Any) -> None:
        """What fails here must not end the thread, which joins again."""
        for step in consumer.unsubscribe, partial(consumer.poll, _POLL_SECONDS), consumer.close:
            try:
                step()
            except KafkaException as error:
                log.warning("controller group: %s; leaving it", _error(error).str())

    def _subscribe(self, consumer: Any, topic: str) -> None:
        consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost)

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        # Called at each rebalance, without partitions if they stay, so the metadata has the present generation. Not
        # called elsewhere: the client holds the interpreter lock while it waits, and would wait for ever if a callback
        # were due first.
        self._metadata = consumer.consumer_group_metadata()
        if self._is_the_seat(partitions):
            self._sit(object())
            self._tell(True)

    def _lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        if self._is_the_seat(partitions):
            self._sit(None)
            self._tell(False)

    def _is_the_seat(self, partitions: list[TopicPartition]) -> bool:
        # Its first partition alone: somebody may give the topic more, and one node has one seat.
        return any((partition.topic, partition.partition) == (self._topic, 0) for partition in partitions)

    def _report_denied(self, error: KafkaError, client: str) -> bool:
        """Whether the error is a missing ACL; if so, calls `on_refused`."""
        denied = missing_acl(error, client, **self._asked)
        if denied is not None:
            _hand_over(self._loop, self._on_refused, TopologyError(denied))
        return denied is not None

    def _tell(self, elected: bool) -> None:
        _hand_over(self._loop, self._on_elected, elected)


def _hand_over(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # The loop is closed: there is no receiver, and the stop flag ends the thread.
        log.info("the event loop ended before %s", getattr(function, "__name__", "a callback"))
