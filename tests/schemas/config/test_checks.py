"""Checks between fields: what does not go together, what just does, and what is left for later."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_schemas.config import FieldError, parse
from deelog_schemas.config.checks import across, is_loopback, without_resolved
from tests.schemas.config.builders import GOOD, errors_of, only_error

LETTERS, CERTIFICATE, HOST = (
    "errors.deadletterqueue.topic.name",
    "rest.ssl.certificate.location",
    "cache.advertised.host",
)
URL, MAX_BYTES = "value.converter.schema.registry.url", "producer.override.message.max.bytes"
AVRO = {"value.converter": "avro", URL: "http://r"}
TEXT = "binary.handling.mode"
HALF = {"before.image": "full", "max.entry.bytes": 490_000}

REDIS = {"connector.class": "deelog.RedisConnector", "cache.value.format": "json"}

WATCHED = {**REDIS, "redis.sentinels": "s:1,t:2", "redis.sentinel.master": "mymaster"}
ANY = {**REDIS, "redis.writer": "any", "cache.acks": "1"}
TLS = {**REDIS, "redis.url": "rediss://h"}
OWN = "redis.ssl.certificate.location"

BETWEEN: list[tuple[dict[str, Any], str, str]] = [
    ({"commit.interval.ms": 5000}, "commit.interval.ms", "must be below transaction.timeout.ms (5000)"),
    ({"max.queue.size.in.bytes": 980_199}, "max.entry.bytes", "exceed max.queue.size.in.bytes ('980199')"),
    ({"max.queue.size.in.bytes": 980_199, **HALF}, "max.entry.bytes", "with the value from before it and 200 bytes"),
    ({"max.entry.bytes": 980_001}, "max.entry.bytes", "too large: this and 20000 bytes of the record's own must fit"),
    ({"max.entry.bytes": 980_001}, "max.entry.bytes", "message.max.bytes (1000000)"),
    ({"before.image": "full"}, "max.entry.bytes", "two values"),
    ({"before.image": "full", "max.entry.bytes": 490_001}, "max.entry.bytes", "two values"),
    ({MAX_BYTES: "50000"}, "max.entry.bytes", "('50000')"),
    ({MAX_BYTES: "999999"}, "max.entry.bytes", "('999999')"),
    ({"segment.count": 7}, "topic.creation.default.partitions", "segment.count ('7')"),
    ({"cache.max.entries": 255}, "cache.max.entries", "at least segment.count (256)"),
    (REDIS | HALF, "before.image", "the stream of Redis does not say what was before: set key"),
    (REDIS | {"skip.messages.without.change": True}, "skip.messages.without.change", "what was before is not known"),
    (REDIS | {"cache.acks": "0"}, "cache.acks", "a server answers before its replicas have a change: set 1 or all"),
    (REDIS | {"cache.value.format": "string"}, "cache.value.format", "entries of Redis have a type and are JSON"),
    (REDIS | {"redis.writer": "any"}, "cache.acks", "a replica does not know what the others have"),
    (ANY | {"redis.reasons": "notifications"}, "redis.reasons", "a replica does not tell why keys go"),
    (ANY | {"segment.count": 16384}, "redis.writer", "where servers elect a primary, its connector writes"),
    (ANY | WATCHED, "redis.writer", "where servers elect a primary, its connector writes"),
    ({"errors.tolerance": "all"}, LETTERS, "required, since errors.tolerance is all: name"),
    (
        {"event.processing.failure.handling.mode": "dead-letter"},
        LETTERS,
        "since event.processing.failure.handling.mode",
    ),
    ({"signal.kafka.topic": "", "on.data.loss": "reset"}, "signal.kafka.topic", "asks there for resets"),
    ({"value.converter": "avro", "value.converter.schemas.enable": True}, "value.converter.schemas.enable", "false"),
    ({"key.converter": "avro", "key.converter.schemas.enable": True}, "key.converter.schemas.enable", "must be false"),
    ({"key.converter": "avro", "cache.key.format": "bytes", TEXT: "hex"}, TEXT, "with key.converter=avro"),
    ({"value.converter": "avro", "cache.value.format": "bytes", TEXT: "hex"}, TEXT, "with value.converter=avro"),
    ({"value.converter": "avro", "cache.key.format": "bytes", TEXT: "hex"}, TEXT, "with value.converter=avro"),
    ({URL: "http://r:8081"}, URL, "is for value.converter=avro, and it is json"),
    ({"key.converter.schema.registry.url": "http://r"}, "key.converter.schema.registry.url", "and it is json"),
    ({"value.converter.basic.auth.user.info": "u:p"}, "value.converter.basic.auth.user.info", "name none"),
    ({"value.converter.auto.register.schemas": "false"}, "value.converter.auto.register.schemas", "name none"),
    (
        {"value.converter.schema.registry.ssl.ca.location": "/ca.pem"},
        "value.converter.schema.registry.ssl.ca.location",
        "is for a schema registry, and key.converter.schema.registry.url and value.converter.schema.registry.url name",
    ),
    ({"cache.peer.listen": "127.0.0.1:6379"}, "cache.peer.listen", "has the port of cache.listen as well"),
    ({"cache.listen": "h:1", "metrics.port": 1, "metrics.host": "0.0.0.0"}, "metrics.port", "the port of cache.listen"),
    ({"metrics.port": 8083, "rest.port": 8083}, "rest.port", "has the port of metrics.port as well: each listens at"),
    ({"cache.listen": "0.0.0.0:6379"}, HOST, "required, since cache.listen is on all interfaces"),
    ({"cache.peer.listen": "[::]:1"}, HOST, "since cache.peer.listen"),
    ({"cache.peer.listen": "[0:0:0:0:0:0:0:0]:1"}, HOST, "since cache.peer.listen"),
    ({"cache.listen": "[::]:1", "cache.peer.listen": "[::]:2"}, HOST, "since cache.listen"),  # said once
    ({"rest.ssl.ca.location": "/ca.pem"}, CERTIFICATE, "required, since rest.ssl.ca.location is set"),
    ({"rest.ssl.key.location": "/k.pem"}, CERTIFICATE, "required, since rest.ssl.key.location is set"),
    *(
        ({**REDIS, field: "/f.pem"}, field, "is for TLS: let redis.url begin with rediss://")
        for field in (OWN, "redis.ssl.ca.location")
    ),
    ({**REDIS, "redis.username": "deelog"}, "redis.password", "required, since redis.username is set"),
    ({**REDIS, "redis.sentinels": "s:1"}, "redis.sentinel.master", "required, since redis.sentinels is set"),
    ({**WATCHED, "redis.sentinel.username": "u"}, "redis.sentinel.password", "since redis.sentinel.username is set"),
    ({**WATCHED, "redis.sentinels": "h:1,t:2,H:01"}, "redis.sentinels", "has one of them twice"),
    ({**WATCHED, "redis.sentinels": "s"}, "redis.sentinels", "must be HOST:PORT"),
    ({**WATCHED, "segment.count": 16384}, "redis.sentinels", "elects by itself: remove it"),
    (
        {**REDIS, "redis.databases": "0:a", "cache.name": "b"},
        "redis.databases",
        "holds the names of the caches: remove",
    ),
    ({**REDIS, "redis.databases": "0:sessions", "segment.count": 16384}, "redis.databases", "has one: set cache.name"),
    *(
        ({**REDIS, f"redis.sentinel.{field}": "x"}, f"redis.sentinel.{field}", "name them in redis.sentinels")
        for field in ("master", "username", "password")
    ),
    ({**TLS, "redis.ssl.key.location": "/k.pem"}, OWN, "required, since redis.ssl.key.location is set"),
    ({"rest.readonly.token": "x" * 16}, "rest.token", "required, since rest.readonly.token is set"),
    ({"rest.port": 1, "rest.host.name": "0.0.0.0"}, "rest.host.name", "is not this machine's own"),
    *(
        ({field: topic}, field, "must be a topic of its own")
        for field in (LETTERS, "notification.sink.topic.name")
        for topic in ("shop.sessions", "shop.sessions.positions", "shop.sessions.topology", "shop.sessions.diff")
    ),
    ({LETTERS: "shop-signal"}, LETTERS, "must be a topic of its own"),
    ({LETTERS: "__debezium-heartbeat.shop"}, LETTERS, "must be a topic of its own"),
    ({LETTERS: "other", "diff.topic": "other"}, LETTERS, "must be a topic of its own"),
    ({LETTERS: "other", "signal.kafka.topic": "other"}, LETTERS, "must be a topic of its own"),
    ({"cache.name": "mypositions"}, "cache.name", "must not end with"),
    ({"diff.topic": "shop.sessions"}, "diff.topic", "another topic"),
    ({"signal.kafka.topic": "shop.sessions"}, "signal.kafka.topic", "another topic"),
    ({"transforms": "a"}, "transforms.a.type", "is required"),
]


@pytest.mark.parametrize(("changes", "field", "words"), BETWEEN, ids=[",".join(c) for c, _, _ in BETWEEN])
def test_fields_that_do_not_go_together(changes: dict[str, Any], field: str, words: str) -> None:
    error = only_error(GOOD | changes)
    assert error.field == field
    assert words in error.problem


@pytest.mark.parametrize(
    "changes",
    [
        {"commit.interval.ms": 4999},
        {"max.queue.size.in.bytes": 980_200},
        {"max.queue.size.in.bytes": 980_200, **HALF},
        {"max.entry.bytes": 980_000},
        {"before.image": "full", "max.entry.bytes": 490_000},
        {"max.entry.bytes": 5_000_000, MAX_BYTES: 5_020_000},
        {"segment.count": 8},
        {"cache.max.entries": 256},
        {"errors.tolerance": "all", LETTERS: "letters"},
        {"signal.kafka.topic": ""},
        {"key.converter.schemas.enable": True},
        AVRO | {"value.converter.basic.auth.user.info": "u:p", "value.converter.auto.register.schemas": False},
        {"value.converter.auto.register.schemas": True},
        {"value.converter": "avro", "cache.value.format": "bytes", TEXT: "bytes"},
        {"value.converter": "avro", "cache.key.format": "string", TEXT: "hex"},
        {"key.converter": "avro", "cache.value.format": "bytes", TEXT: "hex"},  # a key has no value in it
        {"cache.value.format": "bytes", TEXT: "hex"},
        {"cache.listen": "0.0.0.0:1", HOST: "n1.example"},
        {"cache.listen": "a:1", "cache.peer.listen": "b:1", "metrics.port": 1},
        {"cache.listen": "a:0", "cache.peer.listen": "a:0"},
        {"metrics.port": 6379},  # of a cache that listens nowhere
        {"rest.host.name": "0.0.0.0"},
        {"rest.port": 1},
        {"rest.port": 1, "rest.host.name": "localhost"},
        {"rest.port": 1, "rest.host.name": "0.0.0.0", "rest.token": "x" * 16, "rest.readonly.token": "y" * 16},
        {"rest.port": 1, "rest.host.name": "0.0.0.0", "rest.ssl.ca.location": "/ca", CERTIFICATE: "/c"},
        {"rest.ssl.key.location": "/k", CERTIFICATE: "/c"},
        {**TLS, "redis.ssl.key.location": "/k", OWN: "/c", "redis.ssl.ca.location": "/ca"},
        {"redis.ssl.ca.location": "/of another connector's"},
        {**WATCHED, "redis.sentinel.username": "u", "redis.sentinel.password": "p"},
        {LETTERS: "letters", "notification.sink.topic.name": "notes"},
    ],
    ids=str,
)
def test_fields_that_just_go_together(changes: dict[str, Any]) -> None:
    assert parse(GOOD | changes)


@pytest.mark.parametrize(
    ("wrong", "unknown"),
    [
        ({"commit.interval.ms": 5000}, "commit.interval.ms"),
        ({"commit.interval.ms": 5000}, "transaction.timeout.ms"),
        ({"max.queue.size.in.bytes": 1}, "max.entry.bytes"),
        ({"max.entry.bytes": 980_001}, "before.image"),
        ({"max.entry.bytes": 980_001, MAX_BYTES: 1}, MAX_BYTES),
        ({"segment.count": 7}, "topic.creation.default.partitions"),
        ({"cache.max.entries": 255}, "segment.count"),
        ({"errors.tolerance": "all"}, "errors.tolerance"),
        ({"signal.kafka.topic": "", "on.data.loss": "reset"}, "on.data.loss"),
        ({URL: "http://r"}, "value.converter"),
        ({URL: "http://r"}, URL),
        ({"cache.listen": "0.0.0.0:6379"}, "cache.listen"),
        ({"rest.port": 1, "rest.host.name": "0.0.0.0"}, "rest.port"),
        ({"diff.topic": "shop.sessions"}, "topic.prefix"),
        ({"diff.topic": "shop.sessions"}, "cache.name"),
        ({"diff.topic": "shop.sessions"}, "topic.delimiter"),
        ({LETTERS: "shop.sessions"}, LETTERS),
    ],
)
def test_a_check_waits_for_each_of_its_fields(wrong: dict[str, Any], unknown: str) -> None:
    """They are typed, and without an error, once the reference is resolved."""
    assert only_error(GOOD | wrong)
    assert parse(GOOD | wrong | {unknown: "${env:LATER}"})


def test_checks_between_fields_wait_until_references_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEOUT", "1234")
    monkeypatch.setenv("PREFIX", "p" * 200)
    config = parse(
        GOOD
        | {"transaction.timeout.ms": "${env:TIMEOUT}", "commit.interval.ms": 2000}
        | {"topic.prefix": "${env:PREFIX}", "cache.name": "c" * 60}
    )
    errors = {e.field: e for e in errors_of(config.resolved)}
    assert errors.keys() == {"commit.interval.ms", "cache.name", "diff.topic"}
    assert "${env:TIMEOUT}" in errors["commit.interval.ms"].problem
    assert not any("1234" in str(e) or "ppp" in str(e) for e in errors.values())


def test_what_goes_with_a_stream() -> None:
    assert parse(GOOD | REDIS)
    assert parse(GOOD | REDIS | {"cache.acks": "1"})
    assert parse(GOOD | ANY)
    assert parse(GOOD | {"cache.acks": "0", "cache.value.format": "string"})


def test_errors_show_the_given_text_or_the_default() -> None:
    known = {"commit.interval.ms": 2000, "transaction.timeout.ms": 1000}
    (error,) = across(known, {"commit.interval.ms": "${env:X}"})
    assert (error.value, error.problem) == ("'${env:X}'", "must be below transaction.timeout.ms (1000)")
    (error,) = across(known, {"transaction.timeout.ms": "${env:Y}"})
    assert (error.value, error.problem) == ("2000", "must be below transaction.timeout.ms ('${env:Y}')")
    assert across(known | {"commit.interval.ms": None}, {}) == []


def test_a_listener_for_all_says_which_field_makes_it_safe() -> None:
    error = only_error(GOOD | {"rest.port": 1, "rest.host.name": "0.0.0.0"})
    assert error.problem.endswith("set rest.token, or rest.ssl.ca.location for mutual TLS")


@pytest.mark.parametrize("referring", ["topic.prefix", "cache.name", "topic.delimiter", "diff.topic"])
def test_a_topic_that_came_by_reference_is_not_shown(referring: str) -> None:
    told = FieldError("diff.topic", "gives the topic 'secret', which is too long", "'secret'")
    given = GOOD | {"diff.topic": "x"}
    assert without_resolved([told], given) == [told]
    (hidden,) = without_resolved([told], given | {referring: "${env:X}"})
    assert (hidden.field, hidden.problem) == ("diff.topic", "resolves to a name that cannot be used")
    assert hidden.value == ("'${env:X}'" if referring == "diff.topic" else "'x'")
    (unset,) = without_resolved([told], {referring: "${env:X}"})
    assert unset.value == ("'${env:X}'" if referring == "diff.topic" else "(default)")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *((host, True) for host in ("localhost", "::1", "127.0.0.1", "127.1.2.3")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "127.0.0", "127.0.0.1.example", "x127.0.0.1", "h")),
    ],
)
def test_which_hosts_are_this_machines_own(host: str, own: bool) -> None:
    assert is_loopback(host) is own
