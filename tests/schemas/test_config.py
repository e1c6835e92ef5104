"""The configuration: which values are accepted, which are refused with which message, and what is never shown."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.config import (
    FIELDS,
    GROUPS,
    Config,
    ConfigError,
    Field,
    FieldError,
    Role,
    Secret,
    Type,
    load,
    parse,
)
from deelog_schemas.config.field import REQUIRED
from deelog_schemas.config.fields import DROPPED, PLANNED
from deelog_schemas.config.overrides import ALLOWED, CLIENTS, REFUSED, refusal
from deelog_schemas.config.secrets import Masked, is_secret
from deelog_schemas.config.sources import MAX_FILE_BYTES
from deelog_schemas.config.validation import judge
from tests.support.paths import ROOT

GOOD = {"topic.prefix": "shop", "bootstrap.servers": "k1:9092,k2:9092", "node.id": "n1", "cache.name": "sessions"}
PASSWORD = "producer.override.sasl.password"


def errors_of(call: Callable[[], object]) -> list[FieldError]:
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.exit_code == 2
    return caught.value.errors


def only_error(mapping: Mapping[str, Any], role: str = "node") -> FieldError:
    (error,) = errors_of(lambda: parse(mapping, role))
    return error


# ---- accepted values


def test_every_default_is_what_its_own_field_would_parse() -> None:
    for field in FIELDS.values():
        if field.default_text:
            assert field.parse(field.default_text) == field.default, field.name


def test_the_declarations_hold_together() -> None:
    for field in FIELDS.values():
        assert field.group in GROUPS, field.name
        assert field.doc.endswith("."), field.name
        assert not set(field.allowed) & field.refused.keys(), field.name
        assert (field.type is Type.PASSWORD) <= is_secret(field.name), field.name
    assert not (PLANNED | DROPPED.keys()) & FIELDS.keys()
    assert not REFUSED.keys() & frozenset().union(*ALLOWED.values())


def test_values_are_typed_and_defaults_filled_in() -> None:
    config = parse(
        GOOD
        | {
            "max.batch.size": " 12 ",
            "tombstones.on.delete": "FALSE",
            "unclean.election": True,
            "cache.acks": 1,
            "skipped.operations": ["c", "u"],
            "transforms": "",
        }
    )
    assert config["bootstrap.servers"] == ("k1:9092", "k2:9092")
    assert (config["max.batch.size"], config["tombstones.on.delete"], config["unclean.election"]) == (12, False, True)
    assert (config["cache.acks"], config["skipped.operations"]) == ("1", ("c", "u"))
    assert config["transforms"] == ()
    assert config["max.queue.size"] == 500_000
    assert config["diff.checkpoint.location"] is None
    assert set(config) == set(FIELDS)
    more = parse(GOOD | {"producer.override.client.id": "x"})
    assert len(more) == len(list(more)) == len(config) + 1
    assert (config.secret("max.queue.size"), config.secret("max.batch.size")) == ("500000", " 12 ")
    assert (config.secret("topic.creation.default.cleanup.policy"), config.secret("diff.topic")) == ("compact", None)


def test_names_that_follow_from_others() -> None:
    config = parse(GOOD | {"cache.listen": "[::1]:7000", "topic.delimiter": "_"})
    assert config["diff.topic"] == "shop_sessions_diff"
    assert config["signal.kafka.topic"] == "shop-signal"
    assert config["cache.advertised.host"] == "::1"
    assert config.topics.positions == "shop_sessions_positions"
    named = parse(GOOD | {"diff.topic": "other", "signal.kafka.topic": "calls"})
    assert (named.topics.diff, named.topics.signal) == ("other", "calls")
    assert parse(GOOD | {"signal.kafka.topic": ""}).topics.signal == ""


def test_each_role_requires_its_own() -> None:
    client = {name: GOOD[name] for name in ("topic.prefix", "bootstrap.servers")}
    assert parse(client, Role.CLIENT)["node.id"] is None
    assert {e.field for e in errors_of(lambda: parse(client, "node"))} == {"node.id", "cache.name"}
    assert {e.field for e in errors_of(lambda: parse(client, "diff"))} == {"cache.name", "diff.checkpoint.location"}
    assert only_error({"topic.prefix": "p"}, "client").field == "bootstrap.servers"
    assert errors_of(lambda: parse(client, "client").topics)[0].field == "cache.name"


def test_a_verdict_shows_all_fields_and_of_unknown_ones_no_value() -> None:
    bad = {"cache.acks": 3, "tombstones.on.delete": True, "max.batch.sise": 5, "transforms": [], PASSWORD: MARKER}
    verdict = judge(GOOD | bad, further=[FieldError("node.id", "is taken")])
    assert verdict.shown == GOOD | {"cache.acks": "3", "tombstones.on.delete": "true", PASSWORD: "********"}
    body = verdict.body
    assert (body["name"], body["error_count"]) == (FIELDS["connector.class"].default, len(verdict.errors))
    values = {entry["value"]["name"]: entry["value"] for entry in body["configs"]}
    assert list(values) == [*FIELDS, "max.batch.sise", PASSWORD]
    assert [name for name, value in values.items() if value["errors"]] == ["cache.acks", "node.id", "max.batch.sise"]
    assert (values["cache.acks"]["value"], values["cache.acks"]["recommended_values"]) == ("3", ["all", "1", "0"])
    assert (values["max.batch.size"]["value"], values["max.batch.sise"]["value"]) == ("8192", None)
    (first, second) = [e["definition"] for e in body["configs"] if (e["definition"] or {}).get("group") == "kafka"][:2]
    assert (first["order_in_group"], second["order_in_group"], first["required"]) == (1, 2, True)
    assert (first["type"], first["name"]) == ("LIST", "bootstrap.servers")


def test_an_unknown_name_asked_for_is_a_key_error_that_helps() -> None:
    with pytest.raises(KeyError, match=r"max\.batch\.size"):
        parse(GOOD)["max.batch.sise"]
    with pytest.raises(KeyError, match=r"max\.batch\.size"):
        parse(GOOD).secret("max.batch.sise")


# ---- refused values

BAD_VALUES: list[tuple[str, Any, str]] = [
    ("max.batch.size", "many", "whole number"),
    ("max.batch.size", "", "whole number"),
    ("max.batch.size", "1_000", "whole number"),
    ("max.batch.size", "٣", "whole number"),
    ("max.batch.size", 1.5, "whole number"),
    ("max.batch.size", True, "whole number"),
    ("max.batch.size", "9" * 30, "whole number"),
    ("max.batch.size", 10**5000, "digits"),
    ("max.batch.size", None, "null"),
    ("max.batch.size", {"a": 1}, "must be text"),
    ("max.batch.size", 0, "from 1 to 1000000"),
    ("errors.max.retries", -2, "at least -1"),
    ("max.queue.size", 2**31, "at least 1"),
    ("reader.max.lag.ms", 2**63, "at least 1000"),
    ("topic.creation.default.replication.factor", 0, "at least 1"),
    ("tombstones.on.delete", 1, "true or false"),
    ("tombstones.on.delete", "yes", "true or false"),
    ("oplog.overflow", "drop", "one of block, coalesce, reset"),
    ("oplog.overflow", "BLOCK", "one of"),
    ("cache.acks", -1, "one of all, 1, 0"),
    ("cache.policy", "ttl", "one of lru"),
    ("snapshot.mode", "sometimes", "must be one of initial, always"),
    ("reset.strategy", "replace", "must be one of marker, tombstones"),
    ("reset.strategy", "resend", "must be one of marker, tombstones: tombstones sends again what is needed"),
    ("snapshot.mode", "when_needed", "initial, always, no_data, initial_only: initial sends again what is needed"),
    ("connector.class", "deelog.RedisConnector", "must be deelog.CachetoolsConnector: a later version"),
    ("connector.class", "io.debezium.connector.mysql.MySqlConnector", "must be deelog.CachetoolsConnector"),
    ("key.converter", "cloudevents", "one of json, avro"),
    ("value.converter", "protobuf", "one of json, avro, cloudevents"),
    ("value.converter", "io.confluent.connect.avro.AvroConverter", "one of json, avro, cloudevents"),
    ("value.converter.schema.registry.url", "registry:8081", "http://HOST or https://HOST"),
    ("value.converter.schema.registry.url", "http://", "http://HOST or https://HOST"),
    ("value.converter.schema.registry.url", "http://r:8081?a=b", "http://HOST or https://HOST"),
    ("value.converter.schema.registry.url", "http://r:8081,ftp://r", "http://HOST or https://HOST"),
    ("value.converter.schema.registry.url", "http://user:geheim@r:8081", "set value.converter.basic.auth.user.info"),
    ("value.converter.schema.registry.url", "http://r:8081", "is for value.converter=avro, and it is json"),
    ("value.converter.basic.auth.user.info", "u:p", "name none"),
    ("value.converter.auto.register.schemas", "false", "name none"),
    ("value.converter.schema.registry.ssl.ca.location", "/ca.pem", "name none"),
    ("diff.jdbc.url", "postgresql://db/app", "matches jdbc:"),
    ("diff.jdbc.table", "Entries", "matches"),
    ("errors.tolerance", "some", "one of none, all"),
    ("errors.deadletterqueue.topic.name", "a b", "matches"),
    ("diff.jdbc.table", 'a"b', "matches"),
    ("topic.creation.default.cleanup.policy", ",", "must not be empty"),
    ("bootstrap.servers", ["h:1", 1], "must be text"),
    ("topic.prefix", "a b", "matches"),
    ("topic.prefix", "", "must not be empty"),
    ("topic.prefix", "x" * 70_000, "65536"),
    ("topic.delimiter", "/", "matches"),
    ("node.id", "a.b", "matches"),
    ("node.id", "x" * 65, "matches"),
    ("node.id", "n1\nn2", "matches"),
    ("cache.name", "sess/ions", "matches"),
    ("bootstrap.servers", "localhost", "HOST:PORT"),
    ("bootstrap.servers", "localhost:0", "HOST:PORT"),
    ("bootstrap.servers", "localhost:70000", "HOST:PORT"),
    ("bootstrap.servers", "", "HOST:PORT"),
    ("bootstrap.servers", "PLAINTEXT://h:1", "HOST:PORT"),
    ("cache.listen", "6379", "HOST:PORT"),
    ("cache.listen", "::1:6379", "HOST:PORT"),
    ("cache.listen", "host:65536", "HOST:PORT"),
    ("topic.prefix", "${vault:x}", "none of"),
    ("topic.prefix", "${env:}", "incomplete reference"),
    ("topic.prefix", "${file:only-a-path}", "incomplete reference"),
    ("topic.prefix", "${dir:/a:}", "incomplete reference"),
    ("producer.override.message.max.bytes", "lots", "matches"),
    ("producer.override.sasl.kerberos.principal", "me;reboot", "matches"),
    ("producer.override.client.id", "", "must not be empty"),
]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    BAD_VALUES,
    ids=[f"{n}={v!s:.20}" if v != 10**5000 else "huge" for n, v, _ in BAD_VALUES],
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: Any, words: str) -> None:
    error = only_error(GOOD | {name: value})
    assert error.field == name
    assert words in error.problem
    assert len(str(error)) < 500


BAD_NAMES = [
    ("max.batch.sise", "is no field", "max.batch.size"),
    ("MAX.BATCH.SIZE", "is no field", None),
    ("topic.prefix ", "is no field", "topic.prefix"),
    ("", "is no field", None),
    ("zzz", "is no field", None),
    ("line\nbreak", "is no field", None),
    ("x" * 5000, "is no field", None),
    ("read.max.wait.ms", "known but not implemented", None),
    ("signal.file", "signals are taken from the topic alone", None),
    ("cache.include.list", "captured where it is named", None),
    ("key.converter.basic.auth.user.info", "is for keys as well", None),
    ("cache.controller.session.timeout.ms", "three times cache.failure.timeout.ms", None),
    ("diff.sinks", "parquet with diff.parquet.path", None),
    ("topic.naming.strategy", "is always <topic.prefix>", None),
    ("producer.override.linger", "is no field", "producer.override.linger.ms"),
    ("producer.overide.linger.ms", "is no field", "producer.override.linger.ms"),
    ("producer.override.", "is no field", None),
    ("producer.override.transactional.id", "fencing rests on it", None),
    ("producer.override.enable.idempotence", "lost, repeated or reordered", None),
    ("producer.override.acks", "lost, repeated or reordered", None),
    ("producer.override.message.timeout.ms", "gives up", None),
    ("producer.override.delivery.timeout.ms", "gives up", None),
    ("producer.override.partitioner", "partition of a record", None),
    ("producer.override.transaction.timeout.ms", "set transaction.timeout.ms", None),
    ("consumer.override.isolation.level", "only committed records", None),
    ("consumer.override.auto.offset.reset", "only committed records", None),
    ("consumer.override.session.timeout.ms", "cache.failure.timeout.ms", None),
    ("consumer.override.plugin.library.paths", "loads code", None),
    ("admin.override.ssl.engine.location", "loads code", None),
    ("admin.override.sasl.kerberos.kinit.cmd", "shell command", None),
    ("admin.override.oauth_cb", "callbacks are code", None),
    ("consumer.override.linger.ms", "no setting of the consumer", None),
    ("admin.override.bootstrap.servers", "set bootstrap.servers", None),
]


@pytest.mark.parametrize(
    ("name", "words", "nearest"), BAD_NAMES, ids=[n[:40].strip() or "empty" for n, _, _ in BAD_NAMES]
)
def test_an_unknown_name_is_an_error_with_a_reason_or_the_nearest(name: str, words: str, nearest: str | None) -> None:
    error = only_error(GOOD | {name: "1"})
    assert words in error.problem
    assert error.value is None
    assert nearest is None or error.nearest == nearest
    assert "\n" not in str(error)
    assert len(str(error)) < 400


def test_names_that_are_no_text_and_too_many_names() -> None:
    assert only_error({**GOOD, 3: "x"}).field == "configuration"  # type: ignore[dict-item]
    assert "1000 keys" in only_error({f"k{i}": "" for i in range(1001)}).problem


BETWEEN: list[tuple[dict[str, Any], str, str]] = [
    ({"commit.interval.ms": 5000}, "commit.interval.ms", "below transaction.timeout.ms (5000)"),
    ({"max.queue.size.in.bytes": 979_999}, "max.entry.bytes", "max.queue.size.in.bytes ('979999')"),
    ({"max.entry.bytes": 980_001}, "max.entry.bytes", "message.max.bytes (1000000)"),
    ({"before.image": "full"}, "max.entry.bytes", "two values"),
    ({"before.image": "full", "max.entry.bytes": 490_001}, "max.entry.bytes", "two values"),
    ({"producer.override.message.max.bytes": "50000"}, "max.entry.bytes", "('50000')"),
    ({"segment.count": 7}, "topic.creation.default.partitions", "segment.count ('7')"),
    ({"cache.max.entries": 255}, "cache.max.entries", "at least segment.count (256)"),
    ({"value.converter": "avro", "value.converter.schemas.enable": True}, "value.converter.schemas.enable", "false"),
    ({"rest.ssl.ca.location": "/ca.pem"}, "rest.ssl.certificate.location", "required, since rest.ssl.ca.location is"),
    ({"rest.port": 1, "rest.host.name": "0.0.0.0"}, "rest.host.name", "is not this machine's own"),
    ({"errors.tolerance": "all"}, "errors.deadletterqueue.topic.name", "required, since errors.tolerance is all: name"),
    ({"errors.deadletterqueue.topic.name": "shop.sessions"}, "errors.deadletterqueue.topic.name", "of its own"),
    ({"errors.deadletterqueue.topic.name": "shop.sessions.diff"}, "errors.deadletterqueue.topic.name", "of its own"),
    ({"cache.listen": "0.0.0.0:6379"}, "cache.advertised.host", "all interfaces"),
    ({"cache.peer.listen": "[::]:1"}, "cache.advertised.host", "cache.peer.listen"),
    ({"cache.name": "mypositions"}, "cache.name", "must not end with"),
    ({"diff.topic": "shop.sessions"}, "diff.topic", "another topic"),
    ({"signal.kafka.topic": "shop.sessions"}, "signal.kafka.topic", "another topic"),
    ({"signal.kafka.topic": "", "on.data.loss": "reset"}, "signal.kafka.topic", "asks there for resets"),
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
        {"max.entry.bytes": 980_000},
        {"before.image": "full", "max.entry.bytes": 490_000},
        {"max.entry.bytes": 5_000_000, "producer.override.message.max.bytes": 5_020_000},
        {"segment.count": 8},
        {"key.converter.schemas.enable": True},
        {"rest.port": 1, "rest.host.name": "localhost"},
        {"rest.port": 1, "rest.host.name": "127.1.2.3"},
        {"cache.max.entries": 256},
        {"cache.listen": "0.0.0.0:1", "cache.advertised.host": "n1.example"},
    ],
    ids=str,
)
def test_fields_that_just_go_together(changes: dict[str, Any]) -> None:
    assert parse(GOOD | changes)


def test_all_errors_come_at_once() -> None:
    bad = {"max.batch.sise": 1, "cache.acks": 3, "topic.prefix": "a b", "commit.interval.ms": 6000}
    errors = errors_of(lambda: parse(bad))
    assert {e.field for e in errors} == {*bad, "bootstrap.servers", "node.id", "cache.name"}


# ---- settings of the clients


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


def test_overrides_come_without_prefix_and_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PW", "hunter2")
    config = parse(
        GOOD | {PASSWORD: "${env:KAFKA_PW}", "producer.override.linger.ms": 5, "consumer.override.check.crcs": "true"}
    )
    producer = config.overrides("producer")
    assert dict(producer) == {"sasl.password": "hunter2", "linger.ms": "5"}
    assert "hunter2" not in repr(producer)
    assert config.overrides("consumer") == {"check.crcs": "true"}
    assert config.overrides("admin") == {}
    assert isinstance(config[PASSWORD], Secret)
    assert config.secret(PASSWORD) == "hunter2"
    with pytest.raises(ValueError, match="streams"):
        config.overrides("streams")


def test_reasons_are_given_for_what_is_refused() -> None:
    for name in REFUSED:
        reason = refusal("producer", name)
        assert reason is not None
        assert reason.startswith("must not be set: "), name


# ---- references


@pytest.fixture
def secrets_folder(tmp_path: Path) -> Path:
    (tmp_path / "kafka.properties").write_text("pw = a:b=${env:NO}\nsize=77\n")
    (tmp_path / "token").write_bytes(b" t0ken \r\n")
    return tmp_path


def test_references_to_all_three_places(secrets_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "k9")
    config = parse(
        GOOD
        | {
            "bootstrap.servers": "${env:HOST}:1,${env:HOST}:2",
            "max.batch.size": f"${{file:{secrets_folder}/kafka.properties:size}}",
            PASSWORD: f"${{file:{secrets_folder}/kafka.properties:pw}}",
            "admin.override.sasl.password": f"${{dir:{secrets_folder}:token}}",
        }
    )
    assert config["bootstrap.servers"] == ("k9:1", "k9:2")
    assert config["max.batch.size"] == 77
    assert config.overrides("producer") == {"sasl.password": "a:b=${env:NO}"}  # resolved once, not twice
    assert config.overrides("admin") == {"sasl.password": " t0ken "}
    assert config.resolved()[PASSWORD] == "a:b=${env:NO}"
    monkeypatch.setenv("HOST", "k8")  # later: no value was kept
    assert config.resolved()["bootstrap.servers"] == ("k8:1", "k8:2")
    assert config.raw["bootstrap.servers"] == "${env:HOST}:1,${env:HOST}:2"
    assert config.masked()["bootstrap.servers"] == "${env:HOST}:1,${env:HOST}:2"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${env:DEELOG_NOT_SET}", "is not set"),
        ("${file:FOLDER/none.properties:pw}", "No such file"),
        ("${file:FOLDER/kafka.properties:other}", "has no key other"),
        ("${file:FOLDER:pw}", "Is a directory"),
        ("${dir:FOLDER:none}", "No such file"),
        ("${dir:FOLDER/sub:../token}", "plain name"),
        ("${dir:FOLDER:..}", "plain name"),
        ("${dir:FOLDER:\0}", "plain name"),
        ("${dir:FOLDER:latin}", "not UTF-8"),
        ("${dir:FOLDER:big}", "larger than"),
    ],
)
def test_a_reference_to_nothing_is_named(secrets_folder: Path, reference: str, words: str) -> None:
    (secrets_folder / "latin").write_bytes(b"\xe9")
    (secrets_folder / "big").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    reference = reference.replace("FOLDER", str(secrets_folder))
    config = parse(GOOD | {PASSWORD: reference, "max.batch.size": reference})
    by_field = {e.field: e for e in errors_of(config.resolved)}
    assert by_field.keys() == {PASSWORD, "max.batch.size"}
    for error in by_field.values():
        assert reference in error.problem
        assert words in error.problem
    assert errors_of(lambda: config["max.batch.size"])[0].field == "max.batch.size"
    assert errors_of(lambda: config.overrides("producer"))[0].field == PASSWORD


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


# ---- files


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def properties(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def test_the_same_configuration_in_every_shape_of_file(tmp_path: Path) -> None:
    files = [
        write(
            tmp_path,
            "a.properties",
            "# a comment\r\n! another\n" + properties(GOOD) + "name : caf\\u00e9\\\n  \u00e9\n",
        ),
        write(tmp_path, "b.json", json.dumps(GOOD | {"name": "caféé"})),
        write(tmp_path, "c.json", json.dumps({"name": "caféé", "config": GOOD})),
        write(tmp_path, "d.json", "\ufeff" + json.dumps({"config": GOOD | {"name": "caféé"}})),
    ]
    configs = [load(file) for file in files]
    assert [dict(config) for config in configs] == [dict(configs[0])] * 4
    assert configs[0]["name"] == "caféé"
    assert configs[0]["topic.prefix"] == "shop"


BAD_FILES = [
    ("x.properties", properties(GOOD) + "node.id=n2\n", "node.id is there more than once"),
    ("x.properties", "a=\\u12", "four hex digits"),
    ("x.yaml", "a: b", "must end with .properties or .json"),
    ("x.json", "", "not JSON"),
    ("x.json", '{"a": 1,}', "line 1, column"),
    ("x.json", "[1]", "JSON object"),
    ("x.json", '{"node.id": "a", "node.id": "a"}', "node.id is there more than once"),
    ("x.json", '{"config": {"node.id": "a", "node.id": "b"}}', "node.id is there more than once"),
    ("x.json", '{"name": "a", "config": {}, "initial_state": "PAUSED"}', "initial_state"),
    ("x.json", '{"name": "a", "config": {"name": "b"}}', "differ"),
    ("x.json", "[" * 200_000, "not JSON"),
    ("x.json", '{"a": ' + "9" * 5000 + "}", "not JSON"),
    ("x.properties", "#" * (MAX_FILE_BYTES + 1), "larger than"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD_FILES, ids=[f"{n}: {w}" for n, _, w in BAD_FILES])
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.source == str(path)
    assert str(caught.value).startswith(f"{path}: file: ")
    assert words in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.properties").write_bytes(b"name=\xe9\n")
    for name, words in [("none.json", "No such file"), ("", "must end with"), ("latin.properties", "not UTF-8")]:
        target = tmp_path / name
        if name == "":
            target = tmp_path / "dir.json"
            target.mkdir()
            words = "Is a directory"
        with pytest.raises(ConfigError, match=words):
            load(target)


def test_errors_in_a_files_fields_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "x.properties", properties(GOOD | {"cache.acks": "2", "zzz": "1"}))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).splitlines()[0] == f"{path}: 2 errors"
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (str(restored), restored.errors) == (str(caught.value), caught.value.errors)


# ---- values that are never shown

MARKER = "xq7marker9zk"
around = st.text(st.characters(exclude_characters="$\n\r", codec="utf-8"), max_size=8)
planted = st.builds(lambda a, b: a + MARKER + b, around, around)
odd = st.sampled_from([str, lambda s: [s], lambda s: {"a": s}, lambda s: [s, 1], lambda s: "${vault:" + s + "}"])
places = st.sampled_from(
    [
        PASSWORD,
        "consumer.override.ssl.key.pem",
        "admin.override.sasl.oauthbearer.client.secret",
        "consumer.override.sasl.pasword",
        "sasl.password",
        "sasl.jaas.config",
        "value.converter.basic.auth.user.info",
        "producer.overrides.ssl.key.password",
        "some.name",
    ]
)


def everything_shown(make: Callable[[], Config]) -> Iterator[str]:
    """All texts that a program might print of a configuration or of its errors."""
    try:
        config = make()
    except ConfigError as error:
        yield from _shown_of(error)
        return
    yield from (repr(config), str(config), f"{config}", repr(config.masked()), repr(config.raw), str(config.raw))
    yield from (repr(config[name]) for name in config.raw if is_secret(name))
    for call in (config.resolved, *(lambda c=c: config.overrides(c) for c in CLIENTS)):
        try:
            value = call()
        except ConfigError as error:
            yield from _shown_of(error)
        else:
            yield from (repr(value), str(value), f"{value}", "%s" % value)  # noqa: UP031


def _shown_of(error: ConfigError) -> Iterator[str]:
    yield from (str(error), repr(error), repr(error.errors), repr(error.args))
    yield "".join(traceback.format_exception(error))


@given(values=st.dictionaries(places, st.tuples(planted, odd), min_size=1))
def test_a_secret_is_never_shown(values: dict[str, tuple[str, Callable[[str], Any]]]) -> None:
    mapping = GOOD | {name: wrap(secret) for name, (secret, wrap) in values.items()}
    for text in everything_shown(lambda: parse(mapping)):
        assert MARKER not in text


@given(secret=planted, names=st.sets(st.sampled_from([n for n in FIELDS if n != "name"]), min_size=1, max_size=6))
@settings(max_examples=200)
def test_what_a_reference_points_at_is_never_shown(secret: str, names: set[str]) -> None:
    secret = secret.replace("\0", "")
    mapping = GOOD | {PASSWORD: "${env:PLANTED}"} | dict.fromkeys(names, "(${env:PLANTED}")
    with mock.patch.dict(os.environ, {"PLANTED": secret}):
        for text in everything_shown(lambda: parse(mapping)):
            assert MARKER not in text


@given(
    secret=planted,
    shape=st.sampled_from(
        [
            ("json", "{"),
            ("json", '{"a": '),
            ("json", '{"config": {"a": "'),
            ("json", ""),
            ("properties", "a=\\u1"),
            ("properties", "sasl.password="),
            ("properties", "cache.acks=${env:X}"),
        ]
    ),
)
def test_a_broken_file_shows_none_of_its_lines(
    tmp_path_factory: pytest.TempPathFactory, secret: str, shape: tuple[str, str]
) -> None:
    suffix, before = shape
    path = write(tmp_path_factory.getbasetemp(), f"broken.{suffix}", before + secret)

    def read() -> Config:
        return load(path)

    for text in everything_shown(read):
        assert MARKER not in text
    path.unlink()


def test_a_value_that_came_by_reference_prints_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", MARKER)
    config = parse(GOOD | {"topic.prefix": "${env:PLANTED}", "producer.override.client.id": "${env:PLANTED}"})
    resolved, producer = config.resolved(), config.overrides("producer")
    assert resolved["topic.prefix"] == producer["client.id"] == MARKER
    assert all(MARKER not in text for text in (repr(resolved), f"{producer}", repr(config)))


def test_a_secret_prints_masked_and_what_is_none_as_it_is() -> None:
    secret = parse(GOOD | {PASSWORD: MARKER})[PASSWORD]
    assert (repr(secret), secret.reveal(), {secret}) == ("********", MARKER, {Secret(MARKER)})
    assert secret not in (Secret("other"), MARKER)
    masked = Masked({"max.batch.size": 1, PASSWORD: MARKER})
    assert repr(masked) == repr({"max.batch.size": 1, PASSWORD: "********"})
    assert only_error(GOOD | {"topic.prefix": "a " * 60}).value == repr("a " * 40 + "…")


def test_an_address_with_credentials_is_masked() -> None:
    error = only_error(GOOD | {"bootstrap.servers": f"https://me:{MARKER}@host"})
    assert error.value == "********"


def test_a_pickled_configuration_has_references_not_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", MARKER)
    config = parse(GOOD | {PASSWORD: "${env:PLANTED}"})
    config.resolved()
    frozen = pickle.dumps(config)
    assert MARKER.encode() not in frozen
    thawed: Config = pickle.loads(frozen)
    assert thawed.overrides("producer") == {"sasl.password": MARKER}
    resolved = pickle.loads(pickle.dumps(config.resolved()))
    assert MARKER not in repr(resolved)


def test_a_configuration_cannot_be_changed() -> None:
    config = parse(GOOD)
    config.raw["node.id"] = "other"
    assert config["node.id"] == "n1"
    with pytest.raises(TypeError):
        config["node.id"] = "other"  # type: ignore[index]


# ---- where it runs


def test_it_works_with_the_standard_library_alone() -> None:
    """A Spark executor gets this package as a zip: it has neither orjson nor javaproperties nor our other packages."""
    schemas = ROOT / "schemas"
    code = f"""
import sys
sys.path.insert(0, {str(schemas)!r})
from deelog_schemas.config import parse
print(parse({GOOD!r})["max.batch.size"])
assert not {{"orjson", "javaproperties", "click", "socket", "ssl"}} & set(sys.modules), sorted(sys.modules)
"""
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("8192\n", "")


def test_a_required_field_names_what_it_takes() -> None:
    field = Field(name="x", type=Type.INT, group="grid", doc="D.", low=1, high=5)
    assert field.default is REQUIRED
    assert field.required_by(Role.NODE)
    assert field.takes == "a whole number from 1 to 5"


@pytest.mark.parametrize("field", ["diff.checkpoint.location", "diff.parquet.path"])
def test_a_directory_is_a_directory(field: str) -> None:
    fields = {"topic.prefix": "p", "cache.name": "c", "bootstrap.servers": "h:1", "diff.checkpoint.location": "/d"}
    for good in ("/data/x", "data/x", "file:///data/x"):
        assert parse(fields | {field: good}, Role.DIFF)[field] == good
    for bad in ("s3a://bucket/x", "hdfs://n:8020/x", "file:/data/x", "gs://b/x"):
        with pytest.raises(ConfigError, match="must be a directory that is mounted"):
            parse(fields | {field: bad}, Role.DIFF)


def test_an_avro_value_holds_the_key_in_bytes() -> None:
    """Its envelope contains the key, too, and Avro has no text form for bytes."""
    fields = {"topic.prefix": "p", "cache.name": "c", "bootstrap.servers": "h:1", "node.id": "n"}
    fields |= {"value.converter": "avro", "cache.key.format": "bytes"}
    assert parse(fields)["binary.handling.mode"] == "bytes"
    with pytest.raises(ConfigError, match=r"binary\.handling\.mode.*must be bytes with value\.converter=avro"):
        parse(fields | {"binary.handling.mode": "hex"})
    assert parse(fields | {"binary.handling.mode": "hex", "cache.key.format": "string"})
