"""The reason of a failed request: what a broker answered, or that none did."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable
from deelog_connector.kafka.client import failure, reason
from deelog_schemas.kafka.connections import Connections


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
