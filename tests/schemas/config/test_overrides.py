"""Settings of the clients: librdkafka knows those that are allowed, and the others are refused with a reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from deelog_schemas.config.overrides import ALLOWED, CLIENTS, PATTERNS, REFUSED, refusal


def _unknown_to_librdkafka(client: str, setting: str) -> bool:
    """Creates a client with nonsense as the setting's value: librdkafka checks the name first."""
    make: dict[str, Any] = {
        "producer": Producer,
        "consumer": Consumer,
        "admin": AdminClient,
    }
    try:
        make[client]({setting: "\x01", "bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": "0"})
    except KafkaException as error:
        return "No such configuration property" in str(error)
    return False


@pytest.mark.parametrize("client", CLIENTS)
def test_librdkafka_knows_every_setting_that_may_be_overridden(client: str) -> None:
    assert _unknown_to_librdkafka(client, "no.such.thing")
    names = ALLOWED[client] - {"log_level"}
    assert {name for name in names if _unknown_to_librdkafka(client, name)} == set()


def test_what_is_refused_is_allowed_to_no_client() -> None:
    assert not REFUSED.keys() & frozenset().union(*ALLOWED.values())
    assert PATTERNS.keys() <= ALLOWED["admin"]


@pytest.mark.parametrize("client", CLIENTS)
def test_reasons_are_given_for_what_is_refused(client: str) -> None:
    for name, reason in REFUSED.items():
        assert refusal(client, name) == f"must not be set: {reason}"


@pytest.mark.parametrize(
    ("client", "setting", "words"),
    [
        ("producer", "transactional.id", "must not be set: .*fencing rests on it"),
        ("producer", "enable.idempotence", "must not be set: .*lost, repeated or reordered"),
        ("producer", "acks", "must not be set: .*lost, repeated or reordered"),
        ("producer", "message.timeout.ms", "must not be set: .*gives up"),
        ("producer", "delivery.timeout.ms", "must not be set: .*gives up"),
        ("producer", "partitioner", "must not be set: .*partition of a record"),
        ("producer", "transaction.timeout.ms", "must not be set: .*set transaction.timeout.ms"),
        ("consumer", "isolation.level", "must not be set: .*only committed records"),
        ("consumer", "auto.offset.reset", "must not be set: .*only committed records"),
        ("consumer", "session.timeout.ms", "must not be set: .*cache.failure.timeout.ms"),
        ("consumer", "plugin.library.paths", "must not be set: loads code"),
        ("admin", "ssl.engine.location", "must not be set: loads code"),
        ("admin", "sasl.kerberos.kinit.cmd", "must not be set: .*shell command"),
        ("admin", "oauth_cb", "must not be set: callbacks are code"),
        ("admin", "bootstrap.servers", "must not be set: .*set bootstrap.servers"),
        ("consumer", "linger.ms", "is no setting of the consumer$"),
        ("producer", "check.crcs", "is no setting of the producer$"),
        ("admin", "no.such.thing", "is not among the settings of the admin that may be overridden$"),
        ("admin", "", "is not among the settings of the admin that may be overridden$"),
    ],
)
def test_a_setting_is_refused_with_what_is_known_of_it(client: str, setting: str, words: str) -> None:
    assert re.match(words, refusal(client, setting) or "") is not None


def test_a_clients_own_settings_and_those_of_all_are_accepted() -> None:
    assert refusal("producer", "linger.ms") is None
    assert refusal("consumer", "check.crcs") is None
    assert [refusal(client, "ssl.ca.location") for client in CLIENTS] == [None, None, None]


@pytest.mark.parametrize(
    ("setting", "good", "bad"),
    [
        ("message.max.bytes", "1000000", "lots"),
        ("sasl.kerberos.principal", "kafka/host@REALM", "me;reboot"),
        ("sasl.kerberos.keytab", "/etc/a-b_c.keytab", "$(reboot)"),
        ("sasl.kerberos.service.name", "kafka", "a b"),
    ],
)
def test_what_reaches_a_shell_has_no_characters_special_to_it(setting: str, good: str, bad: str) -> None:
    assert PATTERNS[setting].fullmatch(good)
    assert not PATTERNS[setting].fullmatch(bad)
