"""Avro schemas as Connect's AvroData makes them, so that registries, consumers and generated classes see Debezium's.

A struct's name is split at its last dot into namespace and name. What Avro has no place for goes into `connect.name`,
`connect.version`, `connect.parameters` and `connect.default`. An optional field is a union with null, null first unless
the field has a default. A struct is written out once and referred to by name afterwards.

Weighed in docs/decisions.md, "Avro's schemas".
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import orjson
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form

from deelog_schemas.connect import Names, Schema, envelope_schema, key_schema

_PRIMITIVE: Final = {"string": "string", "bytes": "bytes", "int32": "int", "int64": "long"}
_PROPERTIES: Final = ("version", "parameters", "default", "name")
_CONNECTOR: Final = re.compile(r"io\.deelog\.connector\.\w+\.Source")
NO_SCHEMA: Final = (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The errors that parsing raises for a text that is not an Avro schema."""
SINGLE_OBJECT: Final = b"\xc3\x01"
"""The Avro specification's marker of an object that names its schema by fingerprint."""


def adjusted(names: Names) -> Names:
    """The names in a form that Avro allows: Debezium's `schema.name.adjustment.mode=avro`.

    Characters that are not allowed become `_`, and so does a digit at the beginning of a part.
    """
    return Names(*(".".join(map(_part, name.split("."))) for name in names))


def _part(part: str) -> str:
    return re.sub(r"^[^A-Za-z_]|[^A-Za-z0-9_]", "_", part) or "_"


def key_text(names: Names, key_format: str) -> str:
    """The schema of a record key, as JSON."""
    return _text(key_schema(names, key_format))


def envelope_text(names: Names, key_format: str, value_format: str, cause: bool = False) -> str:
    """The schema of an envelope, as JSON."""
    return _text(envelope_schema(names, key_format, value_format, cause))


def _text(schema: Schema) -> str:
    return orjson.dumps(avro_of(schema)).decode()


def avro_of(schema: Schema) -> Any:
    """The Avro schema of a Connect schema."""
    return _converted(schema, "", set())


def _converted(schema: Schema, namespace: str, known: set[str]) -> Any:
    converted = _struct(schema, namespace, known) if schema["type"] == "struct" else _with_properties(schema)
    if not schema["optional"]:
        return converted
    return ["null", converted] if "default" not in schema else [converted, "null"]


def _with_properties(schema: Schema) -> Any:
    kind, more = _PRIMITIVE[schema["type"]], _properties(schema)
    return {"type": kind, **more} if more else kind


def _properties(schema: Schema) -> Schema:
    return {f"connect.{name}": schema[name] for name in _PROPERTIES if name in schema}


def _struct(schema: Schema, outer: str, known: set[str]) -> Any:
    full: str = schema["name"]
    namespace, _, name = full.rpartition(".")
    if full in known:
        return name if namespace == outer else full
    known.add(full)
    record = {"type": "record", "name": name, "namespace": namespace}
    if namespace == outer:
        del record["namespace"]
    return {**record, "fields": [_field(f, namespace, known) for f in schema["fields"]], **_properties(schema)}


def _field(schema: Schema, namespace: str, known: set[str]) -> Schema:
    field = {"name": schema["field"], "type": _converted(schema, namespace, known)}
    return {**field, "default": schema.get("default")} if schema["optional"] else field


def canonical(text: str) -> str:
    """The schema's Parsing Canonical Form without the connector's name. It decides how bytes are read.

    Raises the errors of `NO_SCHEMA` for a text that is not a schema.
    """
    return _CONNECTOR.sub("io.deelog.connector.Source", to_parsing_canonical_form(json.loads(text)))


def pinned_prefix(text: str) -> bytes:
    """The prefix of a body where there is no registry: the specification's single-object encoding."""
    digits = fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO")
    return SINGLE_OBJECT + bytes.fromhex(digits)


def registry_prefix(schema_id: int) -> bytes:
    """The prefix of a body in Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big")


class Part(NamedTuple):
    """The registry's answers for one part (key or value) of the records. The configuration carries it, also to
    processes that have no registry client."""

    prefix: bytes
    known: dict[bytes, str]
    subjects: tuple[str, ...]
