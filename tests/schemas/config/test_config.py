"""From a flat map to typed values: what is accepted, which names are refused, and what each access gives."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deelog_schemas.config import (
    FIELDS,
    MASK,
    Config,
    ConfigError,
    Role,
    Secret,
    config_of,
    load,
    parse,
)
from deelog_schemas.config.config import MAX_SUGGESTIONS, displayed
from tests.schemas.config.builders import GOOD, PASSWORD, errors_of, only_error, properties, write
from tests.support.paths import ROOT

# ---- accepted values


def test_values_are_typed_and_defaults_filled_in() -> None:
    config = parse(
        GOOD
        | {
            "max.batch.size": " 12 ",
            "tombstones.on.delete": "FALSE",
            "unclean.election": True,
            "skip.messages.without.change": False,
            "cache.acks": 1,
            "skipped.operations": ["c", "u"],
            "transforms": "",
        }
    )
    assert config["bootstrap.servers"] == ("k1:9092", "k2:9092")
    assert (config["max.batch.size"], config["tombstones.on.delete"], config["unclean.election"]) == (12, False, True)
    assert config["skip.messages.without.change"] is False
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


def test_caches_of_a_program_have_defaults_of_their_own() -> None:
    names = "segment.count", "reset.strategy"
    assert [[parse(GOOD, role)[name] for name in names] for role in ("node", "cache", "connector")] == [
        [256, "marker"],
        [16, "tombstones"],
        [16, "tombstones"],
    ]


def test_an_unknown_name_asked_for_is_a_key_error_that_helps() -> None:
    with pytest.raises(KeyError, match=r"max\.batch\.size"):
        parse(GOOD)["max.batch.sise"]
    with pytest.raises(KeyError, match=r"max\.batch\.size"):
        parse(GOOD).secret("max.batch.sise")


# ---- refused values

BAD_VALUES: list[tuple[str, Any, str]] = [
    ("max.batch.size", 1.5, "must be a whole number"),
    ("max.batch.size", True, "must be a whole number"),
    ("max.batch.size", 10**5000, "must not be a number of thousands of digits"),
    ("max.batch.size", None, "must not be null; leave the field out"),
    ("max.batch.size", {"a": 1}, "must be text, a number, true, false or a list of texts"),
    ("bootstrap.servers", ["h:1", 1], "must be text, a number, true, false or a list of texts"),
    ("topic.prefix", "x" * 65_537, "must not be longer than 65536 characters"),
    ("topic.prefix", "x" * 65_536, "must be text that matches"),
    ("topic.prefix", "${vault:x}", "refers to a provider that is none of"),
    ("topic.prefix", "${env:}", "has an incomplete reference"),
    ("topic.prefix", "${env:A}${file:only-a-path}", "has an incomplete reference"),
    ("topic.prefix", "${file::key}", "has an incomplete reference"),
    ("topic.prefix", "${dir:/a:}", "has an incomplete reference"),
    ("producer.override.message.max.bytes", "lots", "must be text that matches"),
    ("producer.override.client.id", "", "must not be empty"),
]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    BAD_VALUES,
    ids=[f"{n}={v!s:.20}" if v != 10**5000 else "huge" for n, v, _ in BAD_VALUES],
)
def test_a_value_that_is_no_text_of_its_field(name: str, value: Any, words: str) -> None:
    error = only_error(GOOD | {name: value})
    assert error.field == name
    assert error.problem.startswith(words)
    assert len(str(error)) < 500


BAD_NAMES = [
    ("max.batch.sise", "is no field", "max.batch.size"),
    ("MAX.BATCH.SIZE", "is no field", None),
    ("topic.prefix ", "is no field", "topic.prefix"),
    ("", "is no field", None),
    ("zzz", "is no field", None),
    ("linger.ms", "is no field", None),
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
    ("producer.override.acks", "lost, repeated or reordered", None),
    ("admin.override.oauth_cb", "callbacks are code", None),
    ("consumer.override.linger.ms", "no setting of the consumer", None),
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


def test_of_many_unknown_names_a_few_get_a_suggestion() -> None:
    """To look for one takes ten milliseconds, on the loop that serves the cache; a request to validate may have 990."""
    with pytest.raises(ConfigError) as caught:
        parse({f"producer.override.linger.{number}": "1" for number in range(990)})
    suggested = [error.nearest for error in caught.value.errors if error.problem == "is no field of deelog"]
    assert len(suggested) == 990
    assert sum(nearest is not None for nearest in suggested) == MAX_SUGGESTIONS


@pytest.mark.parametrize("length", [200, 201])
def test_an_error_shows_200_characters_of_a_name(length: int) -> None:
    error = only_error(GOOD | {"x" * length: "1"})
    assert error.field == ("x" * 200 if length == 200 else repr("x" * 200))


def test_names_that_are_no_text_and_too_many_names() -> None:
    assert only_error({**GOOD, 3: "x"}).field == "configuration"  # type: ignore[dict-item]
    assert "1000 keys" in only_error({f"k{i}": "" for i in range(1001)}).problem
    assert len(errors_of(lambda: parse({f"k{i}": "" for i in range(1000)}))) == 1004


def test_all_errors_come_at_once() -> None:
    bad = {"max.batch.sise": 1, "cache.acks": 3, "topic.prefix": "a b", "commit.interval.ms": 6000}
    errors = errors_of(lambda: parse(bad))
    assert {e.field for e in errors} == {*bad, "bootstrap.servers", "node.id", "cache.name"}


def test_an_error_shows_the_value_if_it_is_a_text() -> None:
    assert only_error(GOOD | {"max.batch.size": [0]}).value is None
    assert only_error(GOOD | {"max.batch.size": 0}).value == "'0'"
    assert only_error(GOOD | {"producer.override.message.max.bytes": ["a,b", "c"]}).value == "'a\\\\,b,c'"


# ---- settings of the clients


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


# ---- references


def test_references_are_resolved_at_each_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t0ken")
    monkeypatch.setenv("HOST", "k9")
    config = parse(
        GOOD
        | {"bootstrap.servers": "${env:HOST}:1,${env:HOST}:2", "max.batch.size": "7${env:SIZE}"}
        | {PASSWORD: f"${{dir:{tmp_path}:token}}"}
    )
    monkeypatch.setenv("SIZE", "7")
    assert (config["bootstrap.servers"], config["max.batch.size"]) == (("k9:1", "k9:2"), 77)
    assert config.overrides("producer") == {"sasl.password": "t0ken"}
    assert config.resolved()[PASSWORD] == "t0ken"
    monkeypatch.setenv("HOST", "k8")  # later: no value was kept
    assert config.resolved()["bootstrap.servers"] == ("k8:1", "k8:2")
    assert config.raw["bootstrap.servers"] == "${env:HOST}:1,${env:HOST}:2"
    assert config.masked()["bootstrap.servers"] == "${env:HOST}:1,${env:HOST}:2"


def test_a_reference_to_nothing_or_to_something_else_is_an_error_at_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(GOOD | {PASSWORD: "${env:NOT_SET}", "max.batch.size": "${env:NOT_SET}", "cache.acks": "${env:ODD}"})
    monkeypatch.setenv("ODD", "many")
    assert {error.field for error in errors_of(config.resolved)} == {PASSWORD, "max.batch.size", "cache.acks"}
    assert errors_of(lambda: config.overrides("producer"))[0].field == PASSWORD
    assert errors_of(lambda: config["max.batch.size"])[0].problem.startswith("${env:NOT_SET} cannot be resolved")
    (error,) = errors_of(lambda: config["cache.acks"])
    assert error.problem == "resolves to something that is not allowed: must be one of all, 1, 0"
    assert error.value == "'${env:ODD}'"


# ---- files


def test_a_file_is_read_as_a_map_is(tmp_path: Path) -> None:
    role = {"diff.checkpoint.location": "/x"}
    assert dict(load(write(tmp_path, "a.properties", properties(GOOD)))) == dict(parse(GOOD))
    assert load(str(write(tmp_path, "b.json", json.dumps(GOOD | role))), "diff").role is Role.DIFF


def test_errors_in_a_files_fields_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "x.properties", properties(GOOD | {"cache.acks": "2", "zzz": "1"}))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).splitlines()[0] == f"{path}: 2 errors"
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (str(restored), restored.errors) == (str(caught.value), caught.value.errors)


def test_what_an_answer_may_show_of_a_map() -> None:
    given = {
        "cache.acks": 1,
        "tombstones.on.delete": True,
        "max.batch.size": "many",
        "reader.max.lag.ms": 1.5,
        PASSWORD: "pw",
        "bootstrap.servers": "me:pw@h:1",
        "topic.prefix": "x" * 70_000,
        "unclean.election": None,
        "transforms": ["a"],
        "some.name": "maybe a secret",
        "node.id": "${env:X}",
    }
    assert displayed(given) == {
        "cache.acks": "1",
        "tombstones.on.delete": "true",
        "max.batch.size": "many",
        "reader.max.lag.ms": "1.5",
        PASSWORD: MASK,
        "bootstrap.servers": MASK,
        "topic.prefix": "x" * 65_536,
        "node.id": "${env:X}",
    }


def test_it_prints_what_was_given_with_secrets_masked() -> None:
    config = parse(GOOD | {PASSWORD: "pw"}, "connector")
    assert config.masked() == GOOD | {PASSWORD: MASK}
    assert repr(config) == f"Config(connector, {config.masked()!r})"
    shown = repr(config.resolved())
    assert "'diff.topic': 'shop.sessions.diff'" in shown  # no reference is part of it
    assert "'pw'" not in shown


def test_what_a_registry_said_is_kept_with_all_the_rest() -> None:
    config = parse(GOOD | {PASSWORD: "${env:X}"})
    assert config.registered == {}
    given = config.with_registered({"key": b"1"})
    assert (given.registered, config.registered) == ({"key": b"1"}, {})
    thawed: Config = pickle.loads(pickle.dumps(given))
    assert (thawed.registered, thawed.raw, thawed.role) == ({"key": b"1"}, given.raw, Role.NODE)
    assert thawed["max.batch.size"] == 8192


def test_the_same_configuration_for_another_cache() -> None:
    config = parse({"topic.prefix": "shop", "bootstrap.servers": "h:1", "node.id": "n"}, "connector")
    assert config["cache.name"] is None
    assert config["diff.topic"] is None
    named = config.of_cache("carts")
    assert (named["cache.name"], named["diff.topic"], named.role) == ("carts", "shop.carts.diff", Role.CONNECTOR)
    assert errors_of(lambda: config.of_cache("a b"))[0].field == "cache.name"


def test_topics_by_reference_are_not_shown_in_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFF", "shop.sessions")
    config = parse(GOOD | {"diff.topic": "${env:DIFF}"})
    (error,) = errors_of(lambda: config.topics)
    assert (error.field, error.problem) == ("diff.topic", "resolves to a name that cannot be used")
    assert errors_of(config.resolved)[0] == error


def test_aliases_are_declared_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(GOOD).declared("transforms") == {}
    fields = {"transforms": "b,a", "transforms.a.type": "m.A", "transforms.b.type": "m.B", "transforms.b.x": "${env:X}"}
    monkeypatch.setenv("X", "1")
    found = parse(GOOD | fields).declared("transforms")
    assert [(alias, declared.type, declared.options) for alias, declared in found.items()] == [
        ("b", "m.B", ("x",)),
        ("a", "m.A", ()),
    ]
    monkeypatch.setenv("WHICH", "c")
    later = parse(GOOD | {"transforms": "${env:WHICH}", "transforms.a.type": "m.A"})
    fields_of_errors = [error.field for error in errors_of(lambda: later.declared("transforms"))]
    assert fields_of_errors == ["transforms.c.type", "transforms.a.type"]


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


def test_a_configuration_is_a_file_its_fields_or_itself(tmp_path: Path) -> None:
    fields = {"bootstrap.servers": "a:1", "topic.prefix": "shop", "cache.name": "sessions"}
    file = tmp_path / "reader.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))
    for given in (fields, file, str(file)):
        config = config_of(given, Role.CLIENT)
        assert (config.topics.diff, config.role) == ("shop.sessions.diff", Role.CLIENT)
        assert config_of(config, Role.NODE) is config
    with pytest.raises(ConfigError, match=r"node\.id: is required"):
        config_of(fields)
    with pytest.raises(ConfigError, match=r"diff\.checkpoint\.location: is required"):
        config_of(str(file), "diff")
