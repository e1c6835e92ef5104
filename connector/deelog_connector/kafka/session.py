"""The transactional producer of one node.

Rules for librdkafka: `message.timeout.ms=0`, since a local timeout skips a message and goes on; delivery reports are
used only for errors, never for a position; a new producer after any failure, since after a fatal error it is unusable,
and after others the outcome is unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka.client import (
    LOOK_SECONDS,
    PRODUCER_ERRORS,
    abort_on,
    begin_session,
    brokers_answer,
    common_settings,
    hear,
    is_held_up,
    opened,
    reason,
)
from deelog_connector.kafka.threads import Run
from deelog_connector.kafka_port import OutRecord, WriteFailed
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.connections import Connections
from deelog_schemas.kafka.progress import Progress

_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
    }
)


def _fatal(producer: Producer, error: KafkaException | SystemError) -> KafkaException:
    """The client's fatal error where a call failed for one: `produce` says only that there is one."""
    if isinstance(error, SystemError) or error.args[0].code() == KafkaError._FATAL:
        try:
            producer.begin_transaction()  # fails with the fatal error itself, without asking a broker
        except KafkaException as fatal:
            return fatal
    return error if isinstance(error, KafkaException) else KafkaException(KafkaError(KafkaError._FAIL, str(error)))


class Session:
    """See `kafka_port.Session`. `run` runs a call in the one thread of all producers.

    Raises `ConfigError` where a secret cannot be read.
    """

    def __init__(
        self, run: Run, config: Config, transactional_id: str, max_message_bytes: Callable[[], int], seconds: float
    ) -> None:
        self._run, self._seconds = run, seconds
        self._config, self._transactional_id, self._max_message_bytes = config, transactional_id, max_message_bytes
        self._producer: Producer | None = None
        self._connections = Connections("producer", {})
        self._errors: list[KafkaError] = []
        topics, letters = config.topics, config["errors.deadletterqueue.topic.name"]
        # Kafka does not report which topic of a transaction it refuses.
        written = " or ".join(filter(None, (topics.changes, topics.positions, letters)))
        self._asked = {"topic": ("Write", written), "transactional_id": ("Write", transactional_id)}
        self._hurries, self._unanswered = False, 0
        self._progress = Progress(lambda: brokers_answer(config), seconds)
        self._settings()

    async def open(self) -> None:
        await self._run(self._ended, self._open)

    async def commit(self, records: Iterable[OutRecord]) -> None:
        await self._run(self._ended, self._commit, records)

    async def abort(self, left_open: Sequence[tuple[str, int]]) -> None:
        await self._run(self._ended, self._abort, left_open)

    async def discard(self) -> None:
        await self._run(self._discard)

    def give_up(self) -> None:
        self._hurries = True

    def _ended(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        finally:
            self._hurries = False

    def _open(self) -> None:
        self._discard()
        self._errors = []
        try:
            producer, self._connections = opened(Producer, "producer", self._settings())
        except (KafkaUnusable, ConfigError) as error:
            raise WriteFailed(Cause.LOST, str(error), denied=True) from error
        try:
            begin_session(producer, self._seconds)
        except KafkaException as error:
            hear(producer, self._connections)
            if denied := self._denied(error):
                raise denied from error
            held_up = is_held_up(error)
            alone = error.args[0].retriable() and not held_up and brokers_answer(self._config)
            why = f"the coordinator of {self._transactional_id} does not answer, though a broker does"
            why = why if alone else reason(error, self._connections)
            raise WriteFailed(Cause.LOST, why, held_up=held_up, uncoordinated=alone) from error
        self._producer = producer

    def _settings(self) -> dict[str, Any]:
        """The settings of the next session. Reads secrets again: a password may have changed."""
        return {
            **common_settings(self._config),
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": self._max_message_bytes(),
            **dict(self._config.overrides("producer")),
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": self._config["transaction.timeout.ms"],
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "delivery.report.only.error": True,
            "on_delivery": self._report,
        }

    def _report(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(error)  # nothing else: this runs inside the client's poll

    def _denied(self, error: KafkaException) -> WriteFailed | None:
        """The error where this user may not write or cannot connect; None for other errors."""
        denied = missing_acl(error.args[0], "producer", **self._asked)
        if denied is None and not self._connections.hopeless:
            return None
        return WriteFailed(Cause.LOST, denied or self._connections.why, denied=True)

    def _commit(self, records: Iterable[OutRecord]) -> None:
        self._within(self._write, records)

    def _abort(self, left_open: Sequence[tuple[str, int]]) -> None:
        self._within(abort_on, self._transactional_id, left_open, self._seconds)

    def _within(self, call: Callable[..., None], *args: Any) -> None:
        """Calls it with the session's producer. Raises `WriteFailed`; the session is over then."""
        producer = self._producer
        if producer is None:
            raise WriteFailed(Cause.LOST, "no session is open")
        self._errors.clear()
        try:
            call(producer, *args)
        except PRODUCER_ERRORS as error:
            raise self._failure(_fatal(producer, error)) from error

    def _write(self, producer: Producer, records: Iterable[OutRecord]) -> None:
        producer.begin_transaction()
        self._progress.begin()
        self._unanswered = 0
        for record in records:
            self._produce(producer, record)
        self._progress.commit(producer, lambda: self._waits(producer))

    def _produce(self, producer: Producer, record: OutRecord) -> None:
        topic, partition, key, value, headers = record
        while True:
            try:
                producer.produce(topic, value, key, partition, None, None, 0, headers)  # by place: a quarter faster
                return
            except BufferError as error:
                if self._hurries:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from error
                producer.poll(0.1)  # the client's queue is full: let it send
                self._progress.check(producer)

    def _waits(self, producer: Producer) -> bool:
        """Whether a commit is repeated: Kafka may be unavailable for a minute.

        If it no longer accepts this client, after a change of passwords, a new client continues. So it does where all
        is sent, brokers answer, and the coordinator does not.
        """
        hear(producer, self._connections)
        self._unanswered += not len(producer)
        late = self._unanswered * LOOK_SECONDS >= self._seconds
        if late and not brokers_answer(self._config):
            late, self._unanswered = False, 0  # it has its time once they do
        return not (self._hurries or self._connections.hopeless or late)

    def _failure(self, error: KafkaException) -> WriteFailed:
        first = error.args[0]
        causes = [first, *self._errors]  # before `_discard`, which reports all that it purges
        codes = {e.code() for e in causes}
        # The first may only say that there are delivery reports.
        why = "; ".join(dict.fromkeys([first.str(), *sorted(e.str() for e in self._errors)]))
        self._discard()
        if codes & _FENCED:
            return WriteFailed(Cause.FENCED, first.str())
        if KafkaError.INVALID_TIMESTAMP in codes:
            # Of all records, whatever is in them; those behind the first are reported as invalid.
            return WriteFailed(Cause.LOST, f"this machine's clock is not the brokers', set it: {why}", denied=True)
        if codes & _REFUSED:
            # After an abort librdkafka's next transaction fails with OUT_OF_ORDER_SEQUENCE_NUMBER ("skipped sequence
            # numbers", seen with 2.16 on a 4.3 broker): only a new session helps.
            return WriteFailed(Cause.REFUSED, why)
        for cause in causes:
            if denied := self._denied(KafkaException(cause)):
                return denied
        return WriteFailed(Cause.LOST, why)

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(*PRODUCER_ERRORS):  # a fatal error: the session ends anyway
                producer.purge()
                producer.poll(0)
