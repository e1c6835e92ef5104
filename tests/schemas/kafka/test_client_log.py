"""librdkafka's log lines: one per cause, readable, never at ERROR."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError

from deelog_schemas.kafka.client_log import SILENCE_SECONDS, OncePerCause, client_log
from tests.support.kafka import Broker
from tests.support.waiting import waiting

REFUSED = (
    "[thrd:127.0.0.1:9092/bootstrap]: 127.0.0.1:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: "
    "Connection refused (after {}ms in state CONNECT, 1 identical error(s) suppressed)"
)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def logger() -> logging.Logger:
    made = logging.getLogger(f"test.{uuid.uuid4().hex}")
    made.propagate = False
    return made


@pytest.fixture
def lines(logger: logging.Logger) -> Iterator[Lines]:
    found = Lines()
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)


def says(logger: logging.Logger, text: str, level: int = logging.ERROR) -> None:
    """Logs a line as confluent_kafka does for librdkafka."""
    logger.log(level, "%s [%s] %s", "FAIL", "rdkafka#consumer-1", text)


def test_a_cause_is_told_once_until_it_was_away_for_a_minute(logger: logging.Logger, lines: Lines) -> None:
    now = 0.0
    logger.addFilter(OncePerCause(lambda: now))
    for number in range(10):
        says(logger, REFUSED.format(number))
        now += SILENCE_SECONDS - 1
    assert lines.texts == ["127.0.0.1:9092 refuses connections"]
    assert lines.records[0].levelname == "WARNING"
    now += 2
    says(logger, REFUSED.format(7))
    assert lines.texts == ["127.0.0.1:9092 refuses connections"] * 2


def test_another_broker_and_another_cause_are_told(logger: logging.Logger, lines: Lines) -> None:
    logger.addFilter(OncePerCause())
    for _ in range(2):
        says(logger, REFUSED.format(1))
        says(logger, REFUSED.format(1).replace("9092", "9093"))
        says(logger, "[thrd:main]: 127.0.0.1:9092/1: 3 request(s) timed out: disconnect (average rtt 12.5ms)")
        says(logger, "[thrd:app]: Configuration property x is deprecated", logging.WARNING)
    assert lines.texts == [
        "127.0.0.1:9092 refuses connections",
        "127.0.0.1:9093 refuses connections",
        "127.0.0.1:9092: 3 request(s) timed out: disconnect (average rtt 12.5ms)",
        "Configuration property x is deprecated",
    ]
    assert {record.levelno for record in lines.records} == {logging.WARNING}


def test_a_coordinator_that_refuses_has_its_address(logger: logging.Logger, lines: Lines) -> None:
    logger.addFilter(OncePerCause())
    says(logger, REFUSED.format(1))
    for name, address in (
        ("GroupCoordinator", "ipv4#127.0.0.1:9092"),
        ("TxnCoordinator: 127.0.0.1:9092", "ipv4#127.0.0.1:9092"),
        ("TxnCoordinator", "ipv6#[::1]:9094"),
    ):
        says(logger, f"[thrd:x]: {name}: Connect to {address} failed: Connection refused (after 0ms in state CONNECT)")
    assert lines.texts == ["127.0.0.1:9092 refuses connections", "[::1]:9094 refuses connections"]


def test_what_a_takeover_brings_about_is_a_detail(logger: logging.Logger, lines: Lines) -> None:
    logger.addFilter(OncePerCause())
    text = "[thrd:main]: Fatal error: Local: This instance has been fenced by a newer instance"
    says(logger, text, logging.CRITICAL)
    assert lines.texts == []
    logger.setLevel(logging.INFO)
    says(logger, text, logging.CRITICAL)
    assert [record.levelno for record in lines.records] == [logging.INFO]


def test_our_own_records_pass_unchanged(logger: logging.Logger, lines: Lines) -> None:
    logger.addFilter(OncePerCause())
    for _ in range(2):
        logger.error("topic %s: %s", "t", "cannot be read")
    assert lines.texts == ["topic t: cannot be read"] * 2


def test_a_logger_gets_one_filter() -> None:
    name = f"test.{uuid.uuid4().hex}"
    assert client_log(name) is client_log(name)
    assert len(client_log(name).filters) == 1


@pytest.mark.slow
def test_a_broker_that_is_killed_and_restarted(own_kafka: Broker, logger: logging.Logger, lines: Lines) -> None:
    """Two clients; the broker is down twice."""
    settings = {"bootstrap.servers": own_kafka.bootstrap, "group.id": "t", "logger": client_log(logger.name)}
    errors: list[list[KafkaError]] = [[], []]
    clients = [Consumer({**settings, "error_cb": told.append}) for told in errors]

    def each_noticed() -> bool:
        for client in clients:
            client.poll(0.05)
        return all(errors)

    try:
        for _ in range(2):
            assert all(client.list_topics(timeout=30).brokers for client in clients)
            for told in errors:
                told.clear()
            own_kafka.kill()
            waiting(each_noticed, 60, "both clients to notice that the broker is gone")
            own_kafka.start()
    finally:
        for client in clients:
            client.close()
    assert lines.texts.count(f"{own_kafka.bootstrap} refuses connections") == 1
    assert {record.levelno for record in lines.records} == {logging.WARNING}
