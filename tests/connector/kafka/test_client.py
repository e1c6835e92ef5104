"""How clients are made, and the reason of a failed request: what a broker answered, or that none did."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_connector.devkafka.ports import free_ports
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka import client as module
from deelog_connector.kafka.client import (
    LOOK_SECONDS,
    begin_session,
    brokers_answer,
    common_settings,
    coordinator_answers,
    failure,
    hear,
    is_held_up,
    log,
    opened,
    reason,
)
from deelog_connector.kafka_port import HELD_UP_SECONDS
from deelog_schemas.kafka.connections import Connections
from tests.connector.cache import config_of
from tests.support.kafka import Broker
from tests.support.waiting import waiting


def connections(*errors: KafkaError) -> Connections:
    made = Connections("admin", {})
    for error in errors:
        made(error)
    return made


REFUSED = KafkaError(KafkaError._TRANSPORT, "h:1/bootstrap: Connect to ipv4#h:1 failed: Connection refused")
UNAUTHENTICATED = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed")


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
        KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION),
        KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found"),
    ],
    ids=KafkaError.name,
)
def test_an_answer_is_the_reason_though_a_connection_failed_before(error: KafkaError) -> None:
    for told in ((), (REFUSED,)):
        assert reason(KafkaException(error), connections(*told)) == error.str()


def test_without_an_answer_the_connection_is_the_reason() -> None:
    error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert "no broker answers in time" in reason(error, connections())
    assert "Connection refused; is Kafka running?" in reason(error, connections(REFUSED))


@pytest.mark.parametrize(
    "said",
    ["Disconnected: SSL connection closed by peer", "Send failed: error:80000020:Broken pipe: tls_retry_write_records"],
)
def test_a_listener_that_hangs_up_on_tls_may_be_another_one(said: str) -> None:
    error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    hung_up = KafkaError(KafkaError._TRANSPORT, f"ssl://h:1/bootstrap: {said}")
    assert "set admin.override.security.protocol to what the listener" in reason(error, connections(hung_up))


def test_where_waiting_is_hopeless_the_connection_is_the_reason_of_all() -> None:
    error = KafkaException(KafkaError(KafkaError._NOENT))
    assert "correct sasl.mechanism, sasl.username" in reason(error, connections(UNAUTHENTICATED))


def test_a_right_that_is_gone_is_named() -> None:
    for code, kind in (
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaUnauthorized),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaUnavailable),
    ):
        error = failure("topic t", KafkaException(KafkaError(code)), connections(REFUSED), topic=("Describe", "t"))
        assert type(error) is kind
        assert ("Kafka refuses Describe on topic t" in str(error)) == (kind is KafkaUnauthorized)


def test_every_client_has_our_log_and_the_name_of_the_connector() -> None:
    config = config_of("h:1,i:2", "p", name="shop")
    assert common_settings(config) == {
        "bootstrap.servers": "h:1,i:2",
        "client.id": "shop",
        "reconnect.backoff.max.ms": 500,
        "logger": log,
    }


def test_a_client_is_made_with_its_settings_and_tells_of_its_connections() -> None:
    given: list[dict[str, Any]] = []

    def make(settings: dict[str, Any]) -> str:
        given.append(settings)
        return "made"

    client, connections = opened(make, "producer", {"a": 1})
    assert (client, connections.client) == ("made", "producer")
    assert given == [{"a": 1, "error_cb": connections}]


@pytest.mark.parametrize("readable", [True, False])
def test_settings_that_make_no_client_say_why_and_which_file_cannot_be_read(tmp_path: Path, readable: bool) -> None:
    file = tmp_path / "key.pem"
    if readable:
        file.write_text("no key")

    def make(settings: dict[str, Any]) -> str:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such key"))

    settings = {"ssl.key.location": str(file), "other": "/nowhere"}
    with pytest.raises(KafkaUnusable) as raised:
        opened(make, "admin", settings)
    told = "" if readable else f"; ssl.key.location: the file {file} cannot be read"
    assert str(raised.value) == f"admin.override.*: no such key{told}"


@pytest.mark.parametrize("connects", [True, False])
def test_a_session_begins_once_the_client_has_tried_to_connect(monkeypatch: pytest.MonkeyPatch, connects: bool) -> None:
    calls: list[tuple[str, Any]] = []

    def settle(producer: Any, seconds: float) -> None:
        calls.append(("settle", seconds))
        if not connects:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(module, "settle", settle)
    begin_session(SimpleNamespace(init_transactions=lambda seconds: calls.append(("init", seconds))), 2.0)
    assert calls == [("settle", LOOK_SECONDS), ("init", 2.0)]


@pytest.mark.parametrize(
    ("code", "retriable", "seconds", "asked"),
    [
        (KafkaError._TIMED_OUT, True, 7.0, [HELD_UP_SECONDS, 7.0 - HELD_UP_SECONDS]),
        (KafkaError._TIMED_OUT, True, 2.0, [2.0]),
        (KafkaError.CONCURRENT_TRANSACTIONS, True, 7.0, [HELD_UP_SECONDS]),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False, 7.0, [HELD_UP_SECONDS]),
    ],
)
def test_only_a_session_whose_id_is_not_held_up_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, code: int, retriable: bool, seconds: float, asked: list[float]
) -> None:
    error, calls = KafkaException(KafkaError(code, retriable=retriable)), list[float]()

    def init(seconds: float) -> None:
        calls.append(seconds)
        raise error

    monkeypatch.setattr(module, "settle", lambda producer, seconds: None)
    with pytest.raises(KafkaException) as raised:
        begin_session(SimpleNamespace(init_transactions=init), seconds)
    assert (raised.value, calls) == (error, asked)
    assert is_held_up(error) is (code == KafkaError.CONCURRENT_TRANSACTIONS)


def test_a_client_with_a_fatal_error_is_heard_without_another() -> None:
    heard: list[Any] = []

    def poll(seconds: float) -> None:
        heard.append(seconds)
        raise KafkaException(KafkaError(KafkaError._FATAL))

    hear(SimpleNamespace(poll=poll), connections())
    assert heard


def test_brokers_that_are_away_or_cannot_be_asked_do_not_answer() -> None:
    (closed,) = free_ports(1)
    assert not brokers_answer(config_of(f"127.0.0.1:{closed}", "p"))
    assert not brokers_answer(config_of("h:1", "p", admin_override_sasl_password="${env:DEELOG_NOT_SET}"))
    tls = {"admin_override_security_protocol": "SSL", "admin_override_ssl_ca_location": "/nowhere"}
    assert not brokers_answer(config_of("h:1", "p", **tls))


@pytest.mark.kafka
def test_a_broker_that_runs_answers(kafka: Broker) -> None:
    assert brokers_answer(config_of(kafka.bootstrap, "p"))


@pytest.mark.kafka
def test_the_coordinator_of_a_group_answers(kafka: Broker, prefix: str) -> None:
    config = config_of(kafka.bootstrap, "p")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(prefix, 1)])[prefix].result(20)
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": prefix})
    try:
        member.commit(offsets=[TopicPartition(prefix, 0, 0)], asynchronous=False)
        waiting(lambda: coordinator_answers(config, prefix), 60, "an answer within the second that it may take")
    finally:
        member.close()
    (closed,) = free_ports(1)
    assert not coordinator_answers(config_of(f"127.0.0.1:{closed}", "p"), prefix)
