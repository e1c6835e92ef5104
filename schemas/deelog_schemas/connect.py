"""The schemas of our records, as Kafka Connect writes them. The schema of every format is derived from these.

They are dicts in the form of JsonConverter's schema block (`type`, `optional`, `name`, `version`, `parameters`,
`default`, `fields`). JSON and CloudEvents write them as they are; `avro.schema` derives Avro's from them.
Weighed in docs/decisions.md, "One declaration of keys and envelopes".
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

SNAPSHOTS: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"

Schema = dict[str, Any]


class Names(NamedTuple):
    """Full names of the structs. `envelope` must end with `.Envelope`: Debezium's transforms check for that."""

    key: str
    value: str
    envelope: str
    source: str


def names_of(topic: str, connector: str) -> Names:
    """Debezium's names: the topic's, and for `source` the connector's."""
    return Names(f"{topic}.Key", f"{topic}.Value", f"{topic}.Envelope", f"io.deelog.connector.{connector}.Source")


def key_schema(names: Names, key_format: str) -> Schema:
    """Struct `{key}`."""
    return _struct(names.key, [{**_type(key_format), "optional": False, "field": "key"}])


def envelope_schema(names: Names, key_format: str, value_format: str, cause: bool = False) -> Schema:
    """Debezium's envelope; `cause` adds `source.cause`, which the diff topic has."""
    moments = [_field("int64", name) for name in ("ts_ms", "ts_us", "ts_ns")]
    fields = [
        *_images(names, key_format, value_format),
        {**_source(names, cause), "field": "source"},
        {**_transaction(), "field": "transaction"},
        _field("string", "op", optional=False),
        *moments,
    ]
    return _struct(names.envelope, fields, version=2)


def data_schema(names: Names, name: str, key_format: str, value_format: str) -> Schema:
    """Struct `{before, after}`: the data of a cloud event."""
    return _struct(name, _images(names, key_format, value_format))


def _images(names: Names, key_format: str, value_format: str) -> list[Schema]:
    row = [
        {**_type(key_format), "optional": False, "field": "key"},
        {**_type(value_format), "optional": True, "field": "value"},
        _field("int64", "expires_at"),
    ]
    value = _struct(names.value, row, optional=True)
    return [{**value, "field": "before"}, {**value, "field": "after"}]


def _source(names: Names, cause: bool) -> Schema:
    snapshot = {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": SNAPSHOTS},
        "default": "false",
        "field": "snapshot",
    }
    fields = [
        _field("string", "version", optional=False),
        _field("string", "connector", optional=False),
        _field("string", "name", optional=False),
        _field("int64", "ts_ms", optional=False),
        snapshot,
        _field("string", "db", optional=False),
        _field("string", "sequence"),
        _field("int64", "ts_us"),
        _field("int64", "ts_ns"),
        _field("string", "cache", optional=False),
        _field("int32", "segment", optional=False),
        _field("int64", "epoch", optional=False),
        _field("int64", "seq", optional=False),
        _field("string", "node", optional=False),
        _field("string", "reason"),
    ]
    if cause:
        fields.append(_field("string", "cause"))
    return _struct(names.source, fields)


def _transaction() -> Schema:
    fields = [
        _field("string", "id", optional=False),
        _field("int64", "total_order", optional=False),
        _field("int64", "data_collection_order", optional=False),
    ]
    return _struct("event.block", fields, optional=True, version=1)


def _type(format_name: str) -> Schema:
    if format_name == "json":
        return {"type": "string", "name": "io.debezium.data.Json", "version": 1}
    return {"type": "bytes" if format_name == "bytes" else "string"}


def _field(kind: str, name: str, optional: bool = True) -> Schema:
    return {"type": kind, "optional": optional, "field": name}


def _struct(name: str, fields: list[Schema], optional: bool = False, version: int | None = None) -> Schema:
    schema = {"type": "struct", "fields": fields, "optional": optional, "name": name}
    return schema if version is None else {**schema, "version": version}
