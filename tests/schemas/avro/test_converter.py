"""The Avro codec of a configuration: pinned schemas without a registry, and with one its answers."""

from __future__ import annotations

import sys

import pytest

from deelog_schemas.avro import converter, pinned
from deelog_schemas.avro.schema import Part
from deelog_schemas.config import Config, parse
from deelog_schemas.errors import ConfigError, RegistryError

URL = "http://127.0.0.1:1"


def config_of(**more: str) -> Config:
    fields = {"bootstrap.servers": "b:1", "topic.prefix": "p", "cache.name": "c", "node.id": "n"}
    return parse(fields | {"key.converter": "avro", "value.converter": "avro"} | more)


def registry(*parts: str) -> dict[str, str]:
    return {f"{part}.converter.schema.registry.url": URL for part in parts}


def test_without_a_registry_schemas_are_the_pinned_ones() -> None:
    config = config_of()
    assert converter.connected(config, "grid", False) is config
    keys = converter.keys_of(config, "grid")
    assert keys.key(b"k").startswith(pinned.written_key("string").prefix)
    for cause in (False, True):
        written = converter._written(config, "grid", "value", cause)
        assert written.prefix == pinned.written_value("string", "string", cause).prefix
        assert converter.codec_of(config, "grid", cause, keys).key(b"k") == keys.key(b"k")


def test_with_a_registry_its_answer_is_the_prefix_and_the_other_part_is_pinned() -> None:
    prefix = b"\0\0\0\0\7"
    config = config_of(**registry("key"))
    with pytest.raises(RuntimeError, match="has not been asked"):
        converter.keys_of(config, "grid")
    given = config.with_registered({"key": Part(prefix, {}, ("s",))})
    assert converter.connected(given, "grid", False) is given
    keys = converter.keys_of(given, "grid")
    assert keys.key(b"k").startswith(prefix)
    assert (
        converter._written(given, "grid", "value", True).prefix == pinned.written_value("string", "string", True).prefix
    )


def test_only_the_parts_in_avro_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def part_of(config: Config, part: str, schema: str, topic: str, also: str | None) -> Part:
        asked.append((part, topic, also, '"cause"' in schema))
        return Part(b"\0", {}, ())

    monkeypatch.setattr("deelog_schemas.avro.registry.part_of", part_of)
    config = config_of(**registry("key", "value"))
    changes, diff = config.topics.changes, config.topics.diff
    assert set(converter.connected(config, "grid", False).registered) == {"key", "value"}
    converter.connected(config, "grid", True)
    assert asked == [
        ("key", changes, None, False),
        ("value", changes, None, False),
        ("key", diff, changes, False),
        ("value", diff, changes, True),
    ]
    converter.connected(config_of(**registry("value"), **{"key.converter": "json"}), "grid", False)
    assert asked[4:] == [("value", changes, None, False)]


def test_a_missing_package_is_named_with_the_field_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_registry = config_of(**registry("value"), **{"key.converter": "json"})
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigError, match=r"value\.converter = 'avro': needs confluent_kafka\.schema_registry"):
        converter.connected(with_registry, "grid", False)
    converter.keys_of(config_of(), "grid")  # without a registry it needs no client of one
    given = with_registry.with_registered({"value": Part(b"\0\0\0\0\7", {}, ("s",))})
    written = converter._written(given, "grid", "value", False)
    converter._require_packages(given)
    monkeypatch.setitem(sys.modules, "deelog_schemas.avro.registry", None)
    monkeypatch.delattr("deelog_schemas.avro.registry", raising=False)
    with pytest.raises(RegistryError, match="the schema 00 00 00 00 08, registered since the start"):
        written.find(b"\0\0\0\0\x08")
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"key\.converter = 'avro': needs fastavro"):
        converter.keys_of(config_of(), "grid")
