"""The schemas of each release: the newest reads records of all others, and they read its records.

A release that changes a schema gets a new folder below `released/`, made by
`python -m tests.schemas.avro.test_pinned`. The folder of a published release never changes.
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
from deelog_schemas.avro.schema import canonical, pinned_prefix
from deelog_schemas.envelope import Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.operation import Entry, Operation
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


def test_the_schemas_are_in_the_zip_for_spark(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build(tmp_path)).namelist()
    for release, files in pinned.released().items():
        assert {f"deelog_schemas/avro/released/{release}/{name}" for name in files} <= set(names)


@pytest.mark.parametrize("cause", [False, True])
@pytest.mark.parametrize(("value_format", "kind"), [("string", "string"), ("json", "string"), ("bytes", "bytes")])
def test_a_topics_schemas_are_those_of_its_kinds(value_format: str, kind: str, cause: bool) -> None:
    texts = pinned.files()
    key, value = pinned.written_key(value_format), pinned.written_value("bytes", value_format, cause)
    assert key.schema == texts[f"key.{kind}.avsc"]
    assert value.schema == texts[f"{'diff' if cause else 'change'}.bytes.{kind}.avsc"]
    for part in (key, value):
        assert part.prefix == pinned_prefix(part.schema)
        assert part.known[part.prefix] == part.schema


def test_keys_are_read_by_schemas_of_keys_and_envelopes_by_those_of_both_topics() -> None:
    files = [file for files in pinned.released().values() for file in files.items()]

    def told(*begin: str) -> set[str]:
        return {canonical(text) for name, text in files if name.startswith(begin)}

    assert {canonical(text) for text in pinned.written_key("string").known.values()} == told("key.")
    for cause in (False, True):
        known = pinned.written_value("string", "string", cause).known
        assert {canonical(text) for text in known.values()} == told("change.", "diff.")


def test_a_schema_of_no_release_is_named_by_its_fingerprint() -> None:
    find = pinned.written_key("string").find
    with pytest.raises(
        RecordError, match=f"fingerprint 0102030405060708 is none of those of deelog up to {__version__}"
    ):
        find(b"\xc3\x01" + bytes(range(1, 9)))


def write() -> None:
    """Writes this version's folder."""
    folder = FOLDER / __version__
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pinned.files().items():
        (folder / name).write_text(json.dumps(json.loads(text), indent=2) + "\n")


if __name__ == "__main__":
    write()
