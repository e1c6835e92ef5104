"""The schemas of each release: the newest reads records of all others, and they read its records.

A release that changes a schema gets a new folder below `released/`, made by
`python -m tests.schemas.test_avro_released`. The folder of a published release never changes.
"""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

import deelog_schemas.avro
from deelog_schemas import __version__
from deelog_schemas.avro import pinned
from deelog_schemas.avro.codec import AvroCodec, AvroKeys
from deelog_schemas.avro.schema import adjusted, avro_of, canonical, envelope_text, key_text, pinned_prefix
from deelog_schemas.connect import envelope_schema, key_schema, names_of
from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.operation import Entry, Operation
from tests.schemas.test_envelope import FORMATS
from tools.pyfiles import build

FOLDER = Path(deelog_schemas.avro.__file__).parent / "released"


def number(release: str) -> tuple[int, ...]:
    """The release as numbers, for sorting."""
    return tuple(map(int, release.split(".")))


RELEASES = sorted(pinned.released(), key=number)
NEWEST = RELEASES[-1]
STAMP = Stamp(7, "n1", 1_700_000_000_123_456)
UPDATE = Operation(2, 9, "put", b"k", b"v", 5, 1_699_999_999_999_999, True, b"old")
REMOVED = Operation(2, 10, "remove", b"k", None, None, 1_699_999_999_999_999, True)
FINGERPRINTS = {
    "change.bytes.bytes.avsc": "cb1667f87ce3288b",
    "change.bytes.string.avsc": "a1695ef645031776",
    "change.string.bytes.avsc": "6b83cfa2e2fafbf7",
    "change.string.string.avsc": "1bfb5a938f089226",
    "diff.bytes.bytes.avsc": "551c8b81be098924",
    "diff.bytes.string.avsc": "5fddb9692c12d750",
    "diff.string.bytes.avsc": "109e98f956a83151",
    "diff.string.string.avsc": "90ac631d16fe676e",
    "key.bytes.avsc": "5614c6b9a637b8c0",
    "key.string.avsc": "819b010554cd3b90",
}
"""The fingerprints of release 0.1.0. They are the prefix of records in Kafka, so they cannot change."""


def records(name: str) -> list[dict[str, Any]]:
    """Records of the newest codec with the schema of a file, as fields."""
    kind, *formats, _ = name.split(".")
    if kind == "key":
        keys = AvroKeys(pinned.written_key(formats[0]), formats[0])
        return [keys._fields(keys.key(b"k"))]
    cause = kind == "diff"
    of_key, of_value = formats
    keys, value = AvroKeys(pinned.written_key(of_key), of_key), pinned.written_value(of_key, of_value, cause)
    codec = AvroCodec("grid", "shop", "c", keys, value, of_key, of_value, cause)
    raw = [codec.change(UPDATE, STAMP), codec.change(REMOVED, STAMP)]
    raw.append(codec.row(Entry(b"k", b"v", None), (2, 9), "first", "start", STAMP))
    return [codec._fields(one) for one in raw]


def test_this_versions_schemas_are_those_of_the_newest_folder() -> None:
    """If not, make a folder for this version, and see whether the other tests of this file pass."""
    assert {name: json.loads(text) for name, text in pinned.released()[NEWEST].items()} == {
        name: json.loads(text) for name, text in pinned.files().items()
    }
    assert number(NEWEST) <= number(__version__)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", sorted(pinned.files()))
def test_the_newest_reads_all_others_and_they_it(release: str, name: str) -> None:
    old, new = (fastavro.parse_schema(json.loads(pinned.released()[of][name])) for of in (release, NEWEST))
    for writer, reader in ((old, new), (new, old)):
        for record in records(name):
            out = BytesIO()
            fastavro.schemaless_writer(out, writer, record)
            out.seek(0)
            found: Any = fastavro.schemaless_reader(out, writer, reader)
            for field in ("key", "before", "after", "op"):
                assert found.get(field) == record.get(field), (release, field)


@pytest.mark.parametrize("release", RELEASES)
def test_keys_never_change(release: str) -> None:
    """A key with different bytes is a different key: compaction would keep both for ever."""
    for key in ("key.string.avsc", "key.bytes.avsc"):
        assert canonical(pinned.released()[release][key]) == canonical(pinned.files()[key])


def test_fingerprints_of_release_0_1_0() -> None:
    found = {
        name: fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO")
        for name, text in pinned.released()["0.1.0"].items()
    }
    assert found == FINGERPRINTS
    assert pinned_prefix(pinned.files()["key.string.avsc"]).hex() == "c301" + FINGERPRINTS["key.string.avsc"]


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


def test_the_schemas_are_in_the_zip_for_spark(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build(tmp_path)).namelist()
    for release, files in pinned.released().items():
        assert {f"deelog_schemas/avro/released/{release}/{name}" for name in files} <= set(names)


# -- AvroData's shape ---------------------------------------------------------------------------------------------


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


def write() -> None:
    """Writes this version's folder."""
    folder = FOLDER / __version__
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pinned.files().items():
        (folder / name).write_text(json.dumps(json.loads(text), indent=2) + "\n")


if __name__ == "__main__":
    write()
