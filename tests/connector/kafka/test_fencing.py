"""A fence: what is opened, why it fails, and a broker that allows only short transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.core.effects import Cause
from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka import fencing as module
from deelog_connector.kafka.fencing import fence
from deelog_connector.kafka.session import Session
from deelog_connector.kafka_port import WriteFailed
from deelog_schemas.config import parse
from deelog_schemas.kafka.connections import Connections
from tests.connector.cache import config_of
from tests.connector.kafka.test_session import at_once


@pytest.mark.kafka
def test_a_broker_with_a_low_limit_on_transactions_is_fenced_on(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, overrides={"transaction.max.timeout.ms": "10000"})
    try:
        broker.start()
        settings = {"bootstrap.servers": broker.bootstrap, "topic.prefix": "p", "cache.name": "c", "node.id": "n1"}
        config = parse({**settings, "transaction.timeout.ms": "5000"}, "node")
        fence(config, config.topics.transactional_id_node("n2"))
        config = parse({**settings, "transaction.timeout.ms": "10001"}, "node")
        too_long = r"transaction\.timeout\.ms is above the brokers' transaction\.max\.timeout\.ms: lower it here"
        with pytest.raises(WriteFailed, match=f"lost: fencing p.c/node/n2: {too_long}"):
            fence(config, config.topics.transactional_id_node("n2"))
        with pytest.raises(WriteFailed, match=f"lost: {too_long}"):
            asyncio.run(Session(at_once, config, "p.c/node/n1", lambda: 1_000_000, 10.0).open())
    finally:
        broker.kill()


class Producer:
    """Writes nothing, and remembers what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.left = 0

    def flush(self, seconds: float) -> int:
        self.calls.append(("flush", seconds))
        return self.left

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.calls.append((name, *given))


class Fences:
    """Producers that are doubles; `open_error` and `begin_error` are raised where they are made and begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: dict[str, Any] = {}
        self.open_error: Exception | None = None
        self.begin_error: Exception | None = None
        self.begun: list[float] = []
        self.heard = 0
        self.producer = Producer()
        monkeypatch.setattr(module, "opened", self._opened)
        monkeypatch.setattr(module, "begin_session", self._begun)
        monkeypatch.setattr(module, "hear", self._hear)

    def _opened(self, make: object, client: str, settings: dict[str, Any]) -> tuple[object, Connections]:
        assert client == "producer"
        if self.open_error is not None:
            raise self.open_error
        self.settings = settings
        return self.producer, Connections(client, {})

    def _begun(self, producer: object, seconds: float) -> None:
        assert producer is self.producer
        self.begun.append(seconds)
        if self.begin_error is not None:
            raise self.begin_error

    def _hear(self, producer: object, connections: Connections) -> None:
        self.heard += 1

    def fails(self, denied: bool = False) -> str:
        with pytest.raises(WriteFailed) as failed:
            fence(CONFIG, "id", seconds=7.0)
        assert (failed.value.cause, failed.value.denied) == (Cause.LOST, denied)
        return failed.value.reason


CONFIG = config_of("h:1", "p", transaction_timeout_ms=60_000, producer_override_linger_ms=3)


def test_a_session_of_the_others_id_is_begun_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    fences = Fences(monkeypatch)
    fence(CONFIG, "id", seconds=7.0)
    settings = fences.settings
    assert (settings["transactional.id"], settings["transaction.timeout.ms"]) == ("id", 60_000)
    assert (settings["linger.ms"], settings["bootstrap.servers"]) == ("3", "h:1")
    assert (fences.begun, fences.heard) == ([7.0], 0)


def test_a_fence_that_fails_says_whose_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    fences = Fences(monkeypatch)
    fences.begin_error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert fences.fails().startswith("fencing id: no broker answers in time")
    assert fences.heard == 1
    fences.begin_error = KafkaException(KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    assert fences.fails(denied=True).startswith("fencing id: Kafka refuses Write on transactional")
    fences.open_error = KafkaUnusable("no such setting")
    assert fences.fails() == "fencing id: no such setting"
    assert len(fences.begun) == 2


def test_what_was_left_open_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    fences = Fences(monkeypatch)
    fence(CONFIG, "id", [("t", 1), ("u", 0)], seconds=7.0)
    assert fences.producer.calls == [
        ("begin_transaction",),
        ("produce", "t", b"", b"abort/id", 1),
        ("produce", "u", b"", b"abort/id", 0),
        ("flush", 7.0),
        ("abort_transaction", 7.0),
    ]


def test_a_producer_whose_last_transaction_does_not_end_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fences = Fences(monkeypatch)
    fences.begin_error = KafkaException(KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "words of the broker"))
    with pytest.raises(WriteFailed, match="fencing id: words of the broker") as failed:
        fence(CONFIG, "id")
    assert failed.value.held_up


def test_what_could_not_be_written_is_not_aborted_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would send no marker."""
    fences = Fences(monkeypatch)
    fences.producer.left = 1
    with pytest.raises(WriteFailed, match="fencing id: "):
        fence(CONFIG, "id", [("t", 1)])
    assert fences.producer.calls[-1][0] == "flush"
