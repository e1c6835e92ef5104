"""The schemas of keys, envelopes and the data of cloud events: types, names, and what may be null."""

from __future__ import annotations

from typing import Any

from deelog_schemas.connect import Names, data_schema, envelope_schema, key_schema, names_of

NAMES = names_of("t", "grid")


def shape(schema: dict[str, Any]) -> Any:
    """A struct as its name and fields, another type as its name; `?` where it may be null."""
    kind = schema.get("name", schema["type"]) + ("?" if schema["optional"] else "")
    if schema["type"] != "struct":
        return kind
    return kind, {field["field"]: shape(field) for field in schema["fields"]}


def test_names_are_debeziums() -> None:
    assert Names("t.Key", "t.Value", "t.Envelope", "io.deelog.connector.grid.Source") == NAMES


def test_keys_and_images_have_the_type_of_their_format() -> None:
    assert shape(key_schema(NAMES, "bytes")) == ("t.Key", {"key": "bytes"})
    assert shape(key_schema(NAMES, "string")) == ("t.Key", {"key": "string"})
    json = key_schema(NAMES, "json")["fields"][0]
    assert json == {"type": "string", "name": "io.debezium.data.Json", "version": 1, "optional": False, "field": "key"}
    image = ("t.Value?", {"key": "string", "value": "bytes?", "expires_at": "int64?"})
    assert shape(data_schema(NAMES, "d", "string", "bytes")) == ("d", {"before": image, "after": image})


def test_the_envelope() -> None:
    plain, diff = (envelope_schema(NAMES, "bytes", "bytes", cause) for cause in (False, True))
    name, fields = shape(plain)
    assert (name, plain["version"]) == ("t.Envelope", 2)
    assert list(fields) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert [fields[f] for f in ("op", "ts_ms", "ts_us", "ts_ns")] == ["string", "int64?", "int64?", "int64?"]
    numbers = dict.fromkeys(("total_order", "data_collection_order"), "int64")
    assert fields["transaction"] == ("event.block?", {"id": "string", **numbers})
    of, source = fields["source"]
    assert of == NAMES.source
    optional = {field for field, kind in source.items() if kind.endswith("?")}
    assert optional == {"snapshot", "sequence", "ts_us", "ts_ns", "reason"}
    assert shape(diff)[1]["source"] == (of, {**source, "cause": "string?"})
    by_name = {field["field"]: field for field in plain["fields"]}
    snapshot = next(field for field in by_name["source"]["fields"] if field["field"] == "snapshot")
    assert (snapshot["default"], snapshot["version"], snapshot["type"]) == ("false", 1, "string")
    assert by_name["transaction"]["version"] == 1
