"""One record outside any transaction: how long it is waited for, and what an error says. The client is a double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable
from deelog_connector.kafka import publish as module
from deelog_connector.kafka.publish import publish
from deelog_schemas.kafka.connections import Connections
from tests.connector.cache import config_of


class Producer:
    """Answers after so many flushes, with `error` if there is one; `refuses` is raised at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers_after = 1
        self.error: KafkaError | None = None
        self.refuses: Exception | None = None
        self.fatal: Exception | None = None
        self.settings: dict[str, Any] = {}
        self.connections = Connections("producer", {})
        self.produced: list[tuple[Any, ...]] = []
        self.flushes: list[float] = []
        self.purged = self.heard = 0
        self._report: Callable[[Any, Any], None]
        monkeypatch.setattr(module, "opened", self._opened)
        monkeypatch.setattr(module, "hear", self._hear)

    def _opened(self, make: object, client: str, settings: dict[str, Any]) -> tuple[Producer, Connections]:
        assert client == "producer"
        self.settings = settings
        return self, self.connections

    def _hear(self, producer: object, connections: Connections) -> None:
        self.heard += 1

    def produce(self, topic: str, value: bytes, key: str, partition: int, on_delivery: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.produced.append((topic, value, key, partition))
        self._report = on_delivery

    def flush(self, seconds: float) -> int:
        self.flushes.append(seconds)
        if self.fatal is not None:
            raise self.fatal
        if len(self.flushes) < self.answers_after:
            return 1
        self._report(self.error, None)
        return 0

    def purge(self) -> None:
        self.purged += 1

    def publish(self, **fields: Any) -> None:
        publish(config_of("h:1", "p", **fields), "t", "k", b"v", 1.0)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    return Producer(monkeypatch)


def test_a_record_is_written_to_the_first_partition_and_acknowledged_by_all(producer: Producer) -> None:
    producer.answers_after = 3
    producer.publish(producer_override_linger_ms=9)
    assert producer.produced == [("t", b"v", "k", 0)]
    settings = producer.settings
    assert (settings["acks"], settings["enable.idempotence"], settings["message.timeout.ms"]) == ("all", True, 0)
    assert (settings["linger.ms"], settings["bootstrap.servers"]) == ("9", "h:1")
    assert (producer.flushes, producer.purged) == ([0.1] * 3, 0)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaUnauthorized, "Kafka refuses Write on topic t"),
        (KafkaError.MSG_SIZE_TOO_LARGE, KafkaUnavailable, "the broker's words"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False, None])
def test_what_the_brokers_refuse_says_why(
    producer: Producer, code: int, kind: type[Exception], words: str, at_once: bool | None
) -> None:
    error = KafkaError(code, "the broker's words")
    if at_once is None:  # fatal for the client: a user that may write nothing
        producer.fatal = KafkaException(error)
    elif at_once:
        producer.refuses = KafkaException(error)
    else:
        producer.error = error
    with pytest.raises(KafkaUnavailable, match=f"^topic t: k cannot be written: {words}") as raised:
        producer.publish()
    assert type(raised.value) is kind


def test_an_answer_that_does_not_come_is_given_up_and_the_record_dropped(producer: Producer) -> None:
    producer.answers_after = 1000
    with pytest.raises(KafkaUnavailable, match="topic t: k cannot be written: no broker answers in time"):
        producer.publish()
    assert 10 <= len(producer.flushes) <= 11
    assert (producer.purged, producer.heard) == (1, 1)


def test_where_waiting_is_hopeless_nothing_is_waited_for(producer: Producer) -> None:
    producer.answers_after = 1000
    producer.connections(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed"))
    with pytest.raises(KafkaUnavailable, match=r"correct sasl\.mechanism"):
        producer.publish()
    assert (producer.flushes, producer.purged) == ([], 1)
