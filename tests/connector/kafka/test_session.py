"""What a session says of a transaction that was not committed. Its producer is a double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka import session as module
from deelog_connector.kafka.client import LOOK_SECONDS
from deelog_connector.kafka.session import Session
from deelog_connector.kafka_port import OutRecord, WriteFailed
from deelog_schemas.config import Config
from deelog_schemas.kafka.connections import Connections
from tests.connector.cache import config_of, run

SUMMARY = "2 message(s) failed delivery (see individual delivery reports)"


class Producer:
    """Reports an error for each record, and commits nothing."""

    def __init__(self, settings: dict[str, Any], code: int) -> None:
        self._report, self._code, self._purged = settings["on_delivery"], code, False

    def list_topics(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(orig_broker_id=1)

    def init_transactions(self, seconds: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def produce(self, topic: str, *_: object, **__: object) -> None:
        self._report(KafkaError(self._code, f"{topic}: the broker's words"), None)

    def commit_transaction(self, seconds: float) -> None:
        raise KafkaException(KafkaError(KafkaError._INCONSISTENT, SUMMARY))

    def purge(self) -> None:
        self._report(KafkaError(KafkaError._PURGE_QUEUE, "purged"), None)

    def poll(self, seconds: float) -> None: ...


async def at_once(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


@pytest.mark.parametrize(
    ("code", "cause"),
    [(KafkaError.NOT_ENOUGH_REPLICAS, Cause.LOST), (KafkaError.MSG_SIZE_TOO_LARGE, Cause.REFUSED)],
)
def test_the_reports_of_the_records_are_in_the_reason(monkeypatch: pytest.MonkeyPatch, code: int, cause: Cause) -> None:
    def opened(_: object, client: str, settings: dict[str, Any]) -> tuple[Producer, Connections]:
        return Producer(settings, code), Connections(client, {})

    monkeypatch.setattr(module, "opened", opened)

    async def work() -> None:
        session = Session(at_once, config_of("h:1", "p"), "t", lambda: 1_000_000, 1.0)
        await session.open()
        with pytest.raises(WriteFailed) as failed:
            await session.commit([OutRecord(topic, 0, b"k", b"v", []) for topic in ("a", "b", "a")])
        assert failed.value.cause is cause
        assert failed.value.reason == f"{SUMMARY}; a: the broker's words; b: the broker's words"

    run(work())


class Scripted:
    """A producer whose calls fail as `errors` say, each with the next error of its list; None: it does not fail."""

    def __init__(self) -> None:
        self.errors: dict[str, list[Exception | None]] = {}
        self.calls: list[str] = []
        self.produced: list[tuple[Any, ...]] = []
        self.settings: dict[str, Any] = {}
        self.sends = False

    def _call(self, name: str) -> None:
        self.calls.append(name)
        errors = self.errors.get(name)
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error

    def begin_transaction(self) -> None:
        self._call("begin")

    def produce(self, *given: Any) -> None:
        self._call("produce")
        self.produced.append(given)

    def commit_transaction(self, seconds: float) -> None:
        assert seconds == LOOK_SECONDS
        self._call("commit")

    def __len__(self) -> int:
        return 0 if self.sends else len(self.produced)

    def purge(self) -> None:
        self._call("purge")

    def poll(self, seconds: float) -> None:
        self._call(f"poll {seconds:g}")


class Desk:
    """A session with a scripted producer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        self.producer, self.connections = Scripted(), Connections("producer", {})
        self.opens = 0
        self.open_error: Exception | None = None
        monkeypatch.setattr(module, "opened", self._opened)
        monkeypatch.setattr(module, "begin_session", self._begun)
        self.brokers_answer = False
        self.answers: list[bool] = []
        """Before it always is as `brokers_answer` says."""
        monkeypatch.setattr(module, "brokers_answer", self._answer)
        monkeypatch.setattr(module, "hear", lambda producer, connections: self.producer.calls.append("hear"))
        self.config = config_of("h:1", "p", **fields)
        self.session = Session(at_once, self.config, "p.c/node/n1", lambda: 1_000_000, 7.0)

    def _opened(self, make: object, client: str, settings: dict[str, Any]) -> tuple[Scripted, Connections]:
        assert client == "producer"
        self.opens += 1
        if self.open_error is not None:
            raise self.open_error
        self.producer.settings = settings
        return self.producer, self.connections

    def _begun(self, producer: Scripted, seconds: float) -> None:
        assert seconds == 7.0
        producer._call("init")

    def _answer(self, config: Config) -> bool:
        return self.answers.pop() if self.answers else self.brokers_answer

    def fails(self, call: str, *errors: Exception | None) -> None:
        self.producer.errors[call] = list(errors)

    def commit(self, *records: OutRecord) -> None:
        async def work() -> None:
            await self.session.commit(records)

        run(work(), 20)

    def open(self) -> None:
        run(self.session.open(), 20)


RECORD = OutRecord("t", 3, b"k", b"v", [("h", b"x")])


def error_of(code: int, words: str = "the broker's words", **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, words, **flags))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def test_all_records_are_one_transaction(desk: Desk) -> None:
    desk.open()
    desk.commit(RECORD, RECORD._replace(key=b"l", value=None))
    assert desk.producer.calls == ["init", "begin", "produce", "produce", "commit"]
    assert desk.producer.produced == [
        ("t", b"v", b"k", 3, None, None, 0, [("h", b"x")]),
        ("t", None, b"l", 3, None, None, 0, [("h", b"x")]),
    ]


def test_the_limit_of_a_record_is_the_topics_or_what_an_override_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for override, limit in ({}, 1_000_000), ({"producer_override_message_max_bytes": 2_000_000}, "2000000"):
        desk = Desk(monkeypatch, **override)
        desk.open()
        assert desk.producer.settings["message.max.bytes"] == limit


def test_a_session_has_settings_that_no_override_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, producer_override_linger_ms=9, transaction_timeout_ms=60_000)
    desk.open()
    settings = desk.producer.settings
    assert (settings["linger.ms"], settings["compression.type"], settings["acks"]) == ("9", "lz4", "all")
    assert settings["transactional.id"] == "p.c/node/n1"
    assert (settings["message.timeout.ms"], settings["transaction.timeout.ms"]) == (0, 60_000)
    assert (settings["message.max.bytes"], settings["enable.idempotence"]) == (1_000_000, True)
    assert (settings["delivery.report.only.error"], settings["queue.buffering.max.messages"]) == (True, 1_000_000)


def test_without_a_session_nothing_is_committed(desk: Desk) -> None:
    with pytest.raises(WriteFailed, match="no session is open") as failed:
        desk.commit(RECORD)
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, False)


def test_an_open_ends_the_session_before_it(desk: Desk) -> None:
    desk.open()
    desk.open()
    assert desk.producer.calls == ["init", "purge", "poll 0", "init"]
    desk.fails("purge", error_of(KafkaError._FATAL))
    run(desk.session.discard(), 20)
    run(desk.session.discard(), 20)
    assert desk.producer.calls[4:] == ["purge"]
    with pytest.raises(WriteFailed, match="no session is open"):
        desk.commit(RECORD)


@pytest.mark.parametrize(
    ("error", "denied", "words"),
    [
        (
            error_of(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            True,
            "Kafka refuses Write on transactional",
        ),
        (error_of(KafkaError.COORDINATOR_NOT_AVAILABLE), False, "the broker's words"),
        (error_of(KafkaError._TIMED_OUT), False, "no broker answers in time"),
    ],
)
def test_a_session_that_cannot_be_opened_is_none(desk: Desk, error: KafkaException, denied: bool, words: str) -> None:
    desk.fails("init", error)
    with pytest.raises(WriteFailed, match=words) as failed:
        desk.open()
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, denied)
    assert desk.producer.calls == ["init", "hear"]
    with pytest.raises(WriteFailed, match="no session is open"):
        desk.commit(RECORD)


def test_a_configuration_that_makes_no_client_is_denied(desk: Desk) -> None:
    desk.open_error = KafkaUnusable("producer.override.*: no such setting")
    with pytest.raises(WriteFailed, match="no such setting") as failed:
        desk.open()
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, True)


def test_a_commit_that_is_not_answered_is_repeated(desk: Desk) -> None:
    again = error_of(KafkaError._TIMED_OUT, retriable=True)
    desk.open()
    desk.fails("commit", again, again, None)
    desk.commit(RECORD)
    assert desk.producer.calls == ["init", "begin", "produce", "commit", "hear", "commit", "hear", "commit"]


def test_a_commit_whose_coordinator_does_not_answer_while_others_do_is_lost(desk: Desk) -> None:
    """Within the seconds of a request; where no broker answers it is repeated."""
    again = error_of(KafkaError._TIMED_OUT, retriable=True)
    desk.open()
    desk.fails("commit", *[again] * 20, None)
    desk.producer.sends = True
    desk.commit(RECORD)
    desk.answers = [False] * 2
    desk.fails("commit", *[again] * 99)
    desk.brokers_answer = True
    with pytest.raises(WriteFailed):
        desk.commit(RECORD)
    assert desk.producer.calls.count("commit") == 21 + 3 * 7  # it has its time behind the last one that nobody answers
    desk.open()
    for _ in range(2):
        desk.producer.calls.clear()
        desk.fails("commit", *[again] * 20)
        with pytest.raises(WriteFailed) as failed:
            desk.commit(RECORD)
        assert (failed.value.cause, desk.producer.calls.count("commit")) == (Cause.LOST, 7)
        desk.open()


@pytest.mark.parametrize(
    ("code", "retriable", "answers", "uncoordinated"),
    [
        (KafkaError._TIMED_OUT, True, True, True),
        (KafkaError._TIMED_OUT, True, False, False),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, True, True, True),
        (KafkaError.CONCURRENT_TRANSACTIONS, True, True, False),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False, True, False),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, False, True, False),
    ],
)
def test_a_session_without_coordinator_says_so(
    desk: Desk, code: int, retriable: bool, answers: bool, uncoordinated: bool
) -> None:
    desk.fails("init", error_of(code, retriable=retriable))
    desk.brokers_answer = answers
    with pytest.raises(WriteFailed) as failed:
        desk.open()
    assert failed.value.uncoordinated is uncoordinated


def test_a_commit_that_is_given_up_is_lost_and_the_next_one_waits_again(desk: Desk) -> None:
    again = error_of(KafkaError._TIMED_OUT, retriable=True)
    desk.open()
    desk.fails("commit", again)
    desk.session.give_up()
    with pytest.raises(WriteFailed) as failed:
        desk.commit(RECORD)
    assert (failed.value.cause, desk.producer.calls[-3:]) == (Cause.LOST, ["hear", "purge", "poll 0"])
    desk.open()
    desk.fails("commit", again, None)
    desk.commit(RECORD)


def test_a_commit_that_is_hopeless_is_not_repeated(desk: Desk) -> None:
    desk.open()
    desk.connections(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed"))
    desk.fails("commit", error_of(KafkaError._TIMED_OUT, retriable=True))
    with pytest.raises(WriteFailed, match=r"correct sasl\.mechanism") as failed:
        desk.commit(RECORD)
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, True)


@pytest.mark.parametrize(
    ("call", "code", "cause", "denied"),
    [
        ("begin", KafkaError._FENCED, Cause.FENCED, False),
        ("commit", KafkaError.INVALID_PRODUCER_EPOCH, Cause.FENCED, False),
        ("commit", KafkaError.PRODUCER_FENCED, Cause.FENCED, False),
        ("commit", KafkaError.INVALID_PRODUCER_ID_MAPPING, Cause.FENCED, False),
        ("produce", KafkaError.MSG_SIZE_TOO_LARGE, Cause.REFUSED, False),
        ("commit", KafkaError.INVALID_MSG_SIZE, Cause.REFUSED, False),
        ("commit", KafkaError.RECORD_LIST_TOO_LARGE, Cause.REFUSED, False),
        ("commit", KafkaError.INVALID_RECORD, Cause.REFUSED, False),
        ("commit", KafkaError.TOPIC_AUTHORIZATION_FAILED, Cause.LOST, True),
        ("commit", KafkaError.INVALID_TIMESTAMP, Cause.LOST, True),
        ("commit", KafkaError.UNKNOWN, Cause.LOST, False),
    ],
)
def test_what_fails_a_transaction_says_what_may_be_assumed(
    desk: Desk, call: str, code: int, cause: Cause, denied: bool
) -> None:
    desk.open()
    desk.fails(call, error_of(code))
    with pytest.raises(WriteFailed) as failed:
        desk.commit(RECORD)
    assert (failed.value.cause, failed.value.denied) == (cause, denied)
    assert (failed.value.reason == "the broker's words") is not denied
    assert desk.producer.calls[-2:] == ["purge", "poll 0"]
    with pytest.raises(WriteFailed, match="no session is open"):
        desk.commit(RECORD)


@pytest.mark.parametrize(("fatal", "cause"), [(KafkaError._FENCED, Cause.FENCED), (KafkaError.UNKNOWN, Cause.LOST)])
def test_a_call_that_fails_for_a_fatal_error_is_told_by_that_error(desk: Desk, fatal: int, cause: Cause) -> None:
    # As `produce` of librdkafka 2.16 does where no report of the records before it has come.
    desk.open()
    desk.fails("produce", error_of(KafkaError._FATAL, "Unable to produce message: Local: Fatal error"))
    desk.fails("begin", None, error_of(fatal, fatal=True))
    with pytest.raises(WriteFailed, match="the broker's words") as failed:
        desk.commit(RECORD)
    assert failed.value.cause is cause
    assert desk.producer.calls == ["init", "begin", "produce", "begin", "purge", "poll 0"]


REPORTED = SystemError("<function Session._report> returned a result with an exception set")
"""What the binding raises where delivery reports come with a fatal error."""


@pytest.mark.parametrize("call", ["produce", "commit"])
def test_a_fatal_error_that_comes_with_delivery_reports_is_told_by_that_error(desk: Desk, call: str) -> None:
    desk.open()
    desk.fails(call, REPORTED)
    desk.fails("begin", None, error_of(KafkaError._FENCED, fatal=True))
    desk.fails("poll 0", REPORTED)  # so it does for those that are purged
    with pytest.raises(WriteFailed, match="the broker's words") as failed:
        desk.commit(RECORD)
    assert failed.value.cause is Cause.FENCED


def test_another_error_of_the_binding_ends_the_session_alone(desk: Desk) -> None:
    desk.open()
    desk.fails("commit", REPORTED)
    with pytest.raises(WriteFailed, match="an exception set") as failed:
        desk.commit(RECORD)
    assert failed.value.cause is Cause.LOST


def test_a_right_to_write_is_named_with_all_topics_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, errors_deadletterqueue_topic_name="dead")
    desk.open()
    desk.fails("commit", error_of(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(WriteFailed, match=r"Kafka refuses Write on topic p\.c or p\.c\.positions or dead"):
        desk.commit(RECORD)


def test_a_full_queue_is_emptied_and_the_record_added_then(desk: Desk) -> None:
    desk.open()
    desk.fails("produce", BufferError(), BufferError(), None)
    desk.commit(RECORD)
    assert desk.producer.calls == [
        "init", "begin", "produce", "poll 0.1", "produce", "poll 0.1", "produce", "commit"
    ]  # fmt: skip
    desk.fails("produce", BufferError())
    desk.session.give_up()
    with pytest.raises(WriteFailed, match="full") as failed:
        desk.commit(RECORD)
    assert failed.value.cause is Cause.LOST


def test_what_the_records_raise_is_raised(desk: Desk) -> None:
    desk.open()

    def records() -> Iterator[OutRecord]:
        yield RECORD
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(desk.session.commit(records()), 20)


def test_reports_of_an_earlier_transaction_count_for_nothing(desk: Desk) -> None:
    desk.open()
    report = desk.producer.settings["on_delivery"]
    report(None, None)
    report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "of before"), None)
    desk.fails("commit", error_of(KafkaError.UNKNOWN))
    with pytest.raises(WriteFailed) as failed:
        desk.commit(RECORD)
    assert (failed.value.cause, failed.value.reason) == (Cause.LOST, "the broker's words")
