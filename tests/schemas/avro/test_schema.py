"""Avro schemas: Debezium's names, AvroData's shape, and the prefix that names one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deelog_schemas.avro import pinned
from deelog_schemas.avro.schema import (
    NO_SCHEMA,
    adjusted,
    avro_of,
    canonical,
    envelope_text,
    key_text,
    pinned_prefix,
    registry_prefix,
)
from deelog_schemas.connect import Names, envelope_schema, key_schema, names_of
from deelog_schemas.envelope import JsonCodec
from tests.schemas.avro.test_codec import STAMP, UPDATE
from tests.schemas.test_envelope import FORMATS


def test_a_key_schema_in_bytes() -> None:
    assert key_text(names_of("shop.sessions", "grid"), "json") == (
        '{"type":"record","name":"Key","namespace":"shop.sessions","fields":[{"name":"key","type":{"type":"string",'
        '"connect.version":1,"connect.name":"io.debezium.data.Json"}}],"connect.name":"shop.sessions.Key"}'
    )


def test_an_envelope_schema_is_what_avrodata_gives() -> None:
    """AvroData's rules: null first in a union unless there is a default, a struct written out once, and the rest in
    `connect.*` properties."""
    schema: Any = avro_of(envelope_schema(names_of("shop.sessions", "grid"), "string", "bytes", cause=True))
    assert {k: schema[k] for k in schema if k != "fields"} == {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.sessions",
        "connect.version": 2,
        "connect.name": "shop.sessions.Envelope",
    }
    fields = {field["name"]: field for field in schema["fields"]}
    assert list(fields) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert fields["before"] == {
        "name": "before",
        "type": [
            "null",
            {
                "type": "record",
                "name": "Value",
                "fields": [
                    {"name": "key", "type": "string"},
                    {"name": "value", "type": ["null", "bytes"], "default": None},
                    {"name": "expires_at", "type": ["null", "long"], "default": None},
                ],
                "connect.name": "shop.sessions.Value",
            },
        ],
        "default": None,
    }
    assert fields["after"] == {"name": "after", "type": ["null", "Value"], "default": None}
    assert fields["op"] == {"name": "op", "type": "string"}
    assert fields["ts_ns"] == {"name": "ts_ns", "type": ["null", "long"], "default": None}
    block = fields["transaction"]["type"][1]
    assert (block["namespace"], block["name"], block["connect.version"]) == ("event", "block", 1)
    source = fields["source"]["type"]
    assert (source["namespace"], source["name"]) == ("io.deelog.connector.grid", "Source")
    inner = {field["name"]: field for field in source["fields"]}
    assert inner["segment"] == {"name": "segment", "type": "int"}
    assert inner["snapshot"] == {
        "name": "snapshot",
        "type": [
            {
                "type": "string",
                "connect.version": 1,
                "connect.parameters": {
                    "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
                },
                "connect.default": "false",
                "connect.name": "io.debezium.data.Enum",
            },
            "null",
        ],
        "default": "false",
    }


@pytest.mark.parametrize("cause", [False, True])
def test_field_names_types_and_order_are_those_of_the_schema_block(cause: bool) -> None:
    """The golden tests compare the schema block with Debezium's own samples."""
    made = JsonCodec("shop.sessions", "grid", "shop", "c", value_schemas=True, cause=cause)
    block = json.loads(made.change(UPDATE, STAMP))["schema"]
    kinds = {"string": "string", "bytes": "bytes", "int": "int32", "long": "int64", "record": "struct"}
    named: dict[str, Any] = {}

    def told(avro: Any, name: str = "") -> dict[str, Any]:
        optional = isinstance(avro, list)
        kind: Any = next(branch for branch in avro if branch != "null") if optional else avro
        kind = named.get(kind, kind) if isinstance(kind, str) else kind
        found: dict[str, Any] = {"type": kinds[kind if isinstance(kind, str) else kind["type"]], "optional": optional}
        if isinstance(kind, dict):
            if kind["type"] == "record":
                found["fields"] = [told(field["type"], field["name"]) for field in kind["fields"]]
                named[kind["name"]] = kind
            found |= {k.removeprefix("connect."): kind[k] for k in kind if k.startswith("connect.")}
        return {**found, "field": name} if name else found

    avro = json.loads(envelope_text(names_of("shop.sessions", "grid"), "string", "string", cause))
    assert told(avro) == block
    assert told(json.loads(key_text(names_of("a.b", "grid"), "bytes"))) == key_schema(names_of("a.b", "grid"), "bytes")


@pytest.mark.parametrize("key_format", FORMATS)
@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize("cause", [False, True])
def test_a_registrys_schema_differs_in_names_alone(key_format: str, value_format: str, cause: bool) -> None:
    """So that tests of the pinned schemas are valid for the registry's, too."""
    names = adjusted(names_of("shop.sessions", "grid"))

    def pinned_names(text: str) -> str:
        for name, ours in zip(names, pinned.NAMES, strict=True):
            text = text.replace(name, ours)
        return text.replace("io.deelog.connector.Source", "io.deelog.Source")

    kinds = ["bytes" if f == "bytes" else "string" for f in (key_format, value_format)]
    key = canonical(key_text(names, key_format))
    assert pinned_names(key) == canonical(pinned.files()[f"key.{kinds[0]}.avsc"])
    value = canonical(envelope_text(names, key_format, value_format, cause))
    name = f"{'diff' if cause else 'change'}.{kinds[0]}.{kinds[1]}.avsc"
    assert pinned_names(value) == canonical(pinned.files()[name])


def test_names_are_adjusted_as_debezium_does() -> None:
    adjust = adjusted(names_of("my-shop.2nd cache", "redis"))
    assert adjust == Names(
        "my_shop._nd_cache.Key",
        "my_shop._nd_cache.Value",
        "my_shop._nd_cache.Envelope",
        "io.deelog.connector.redis.Source",
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a.b", "a.b"),
        ("_a.B9", "_a.B9"),
        ("9a.1", "_a._"),
        ("a-b.c d", "a_b.c_d"),
        ("a..b", "a._.b"),
        ("é", "_"),
        ("", "_"),
    ],
)
def test_each_part_of_a_name_is_one_of_avros(name: str, told: str) -> None:
    assert adjusted(Names(name, "v", "e", "s")) == Names(told, "v", "e", "s")


def struct(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "name": name, "optional": False, "fields": list(fields), **more}


def test_a_struct_is_written_out_once_and_then_named() -> None:
    """By its short name inside of its own namespace, by its full name outside."""
    inner = struct("a.In", {"type": "int32", "optional": False, "field": "n"})
    other = struct("b.Other", inner | {"field": "z"}, field="o")
    schema = struct("a.Out", inner | {"field": "x"}, inner | {"field": "y", "optional": True}, other)
    in_full: Any = {
        "type": "record",
        "name": "In",
        "fields": [{"name": "n", "type": "int"}],
        "connect.name": "a.In",
    }
    assert avro_of(schema) == {
        "type": "record",
        "name": "Out",
        "namespace": "a",
        "fields": [
            {"name": "x", "type": in_full},
            {"name": "y", "type": ["null", "In"], "default": None},
            {
                "name": "o",
                "type": {
                    "type": "record",
                    "name": "Other",
                    "namespace": "b",
                    "fields": [{"name": "z", "type": "a.In"}],
                    "connect.name": "b.Other",
                },
            },
        ],
        "connect.name": "a.Out",
    }


def test_a_default_comes_first_in_its_union() -> None:
    schema = {"type": "string", "optional": True}
    assert avro_of(schema) == ["null", "string"]
    assert avro_of(schema | {"default": "x"}) == [{"type": "string", "connect.default": "x"}, "null"]
    assert avro_of({"type": "int64", "optional": False, "version": 1}) == {"type": "long", "connect.version": 1}


def test_the_canonical_form_has_no_connectors_name() -> None:
    texts = {envelope_text(names_of("t", name), "string", "string") for name in ("grid", "cachetools")}
    assert len(texts) == 2
    assert len({canonical(text) for text in texts}) == 1
    assert canonical('{"type": "record", "name": "R", "doc": "D.", "fields": []}') == (
        '{"name":"R","type":"record","fields":[]}'
    )


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "null", '"nonsense"', "{}", '{"type":"record"}', "[" * 100_000])
def test_a_text_that_is_no_schema_raises_one_of_the_named_errors(text: str) -> None:
    with pytest.raises(NO_SCHEMA):
        canonical(text)


def test_a_prefix_names_the_schema() -> None:
    assert registry_prefix(0) == b"\0\0\0\0\0"
    assert registry_prefix(0x01020304) == b"\0\1\2\3\4"
    assert pinned_prefix('"int"').hex() == "c3018f5c393f1ad57572"
