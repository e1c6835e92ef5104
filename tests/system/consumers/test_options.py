"""What a setting of a consumer or of the cache changes: the lines of the table on docs/consumers.md, one by one."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable

import pytest

from deelog_schemas.keys import RESERVED_PREFIX, segment_of
from tests.system.consumers.history import SEGMENTS, Short
from tests.system.consumers.readers import (
    ConsumerFailed,
    Place,
    consumers,
    flink,
    kcat,
    pathway,
    pathway_until,
    plain,
    spark,
    unwrapped,
)

Shorts = Callable[..., Short]
Places = Callable[[str], Place]

pytestmark = pytest.mark.consumers

TEXT = ((b"a", b"1"), (b"j", b'{"a":[1]}'), (b"\xd0\xba", b"\xd0\xb7"))
BINARY = ((b"a", b"1"), (b"\xff\0", b"\xfe\xfd\n"), (b"e", b""))
WITH_SCHEMA = (("key.converter.schemas.enable", "true"), ("value.converter.schemas.enable", "true"))
BYTES = (*WITH_SCHEMA, ("cache.key.format", "bytes"), ("cache.value.format", "bytes"))
QUIET = (*WITH_SCHEMA, ("cache.key.format", "json"), ("cache.value.format", "json"), ("tombstones.on.delete", "false"))
CONVERTERS = [f"{part}.converter=org.apache.kafka.connect.json.JsonConverter" for part in ("key", "value")]
SCHEMA_INCLUDE = ",\n  'debezium-json.schema-include' = 'true'"
NO_PAYLOAD = "payload"
UNWRAP = "transforms.unwrap.type=io.debezium.transforms.ExtractNewRecordState"
NAMES = tuple(consumers(frozenset()))


def option(line: str) -> dict[str, str]:
    """The sink's recipe with one line more."""
    return {UNWRAP: f"{UNWRAP}\n{line}"}


def text(made: Short) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in made.content.items()}


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# -- formats of keys and values, tombstones -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_binary_keys_and_values_are_base64(name: str, shorts: Shorts, place: Places) -> None:
    made = shorts(BINARY, BYTES)
    held = consumers(frozenset(map(encoded, made.ends)))[name](place(made.topic), {})
    assert held == {encoded(key): encoded(value) for key, value in made.content.items()}


def test_flink_decodes_binary_columns(shorts: Shorts, place: Places) -> None:
    made = shorts(BINARY, BYTES)
    held = flink(place(made.topic), {"`value` STRING": "`value` BYTES"})
    assert held == {encoded(key): value.hex() for key, value in made.content.items()}


@pytest.mark.parametrize("name", NAMES)
def test_json_values_are_text_and_deletes_need_no_tombstones(name: str, shorts: Shorts, place: Places) -> None:
    made = shorts(TEXT, QUIET)
    held = consumers(frozenset(end.decode() for end in made.ends))[name](place(made.topic), {})
    assert held == text(made)


# -- without the schema block -------------------------------------------------------------------------------------


def test_what_reads_envelopes_without_schemas(shorts: Shorts, place: Places) -> None:
    """Everything but Connect's transforms and Pathway, with these changes to the recipes."""
    made = shorts(TEXT, ())
    where = place(made.topic)
    assert kcat(where, {}) == text(made)
    assert plain(where, {'["payload"]': ""}) == text(made)
    assert flink(where, {SCHEMA_INCLUDE: ""}) == text(made)
    bare = {"payload STRUCT<key: STRING>": "key STRING", "key.payload.key": "key.key"}
    bare |= {"payload STRUCT<op: STRING, after: {after}>": "op STRING, after {after}", "value.payload.": "value."}
    assert spark(where, bare) == text(made)


def test_connects_converter_refuses_what_has_no_schema(shorts: Shorts, place: Places) -> None:
    where = place(shorts(TEXT, ()).topic)
    with pytest.raises(ConsumerFailed, match=r'schemas.enable requires "schema" and "payload" fields'):
        unwrapped(where, {})


def test_the_transform_lets_envelopes_without_a_schema_pass(shorts: Shorts, place: Places) -> None:
    """In silence: the sink gets envelopes instead of entries."""
    where = place(shorts(TEXT, ()).topic)
    off = {f"{line}\n": f"{line}\n{line.split('=')[0]}.schemas.enable=false\n" for line in CONVERTERS}
    values = [row["value"] for row in unwrapped(where, off) if row["value"] is not None]
    assert values
    assert all({"before", "after", "op", "source"} <= value.keys() for value in values)


@pytest.mark.parametrize(("config", "changes"), [((), {}), (WITH_SCHEMA, {SCHEMA_INCLUDE: ""})])
def test_flink_stops_where_schema_include_is_not_as_the_topic(
    config: tuple[tuple[str, str], ...], changes: dict[str, str], shorts: Shorts, place: Places
) -> None:
    with pytest.raises(ConsumerFailed, match="Corrupt Debezium JSON message"):
        flink(place(shorts(TEXT, config).topic), changes)


def test_pathway_takes_nothing_from_envelopes_without_a_schema(shorts: Shorts, place: Places) -> None:
    held = pathway_until(place(shorts(TEXT, ()).topic), {}, lambda _, log: NO_PAYLOAD in log)
    assert held == {}


# -- Debezium's transform -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "deleted", "controls"),
    [
        ("tombstone", [None], False),
        ("delete-to-tombstone", [None], False),
        ("rewrite", ["true"], False),
        ("rewrite-with-tombstone", ["true", None], True),
        ("drop", [], False),
    ],
)
def test_what_the_transform_makes_of_a_delete(
    mode: str, deleted: list[str | None], controls: bool, shorts: Shorts, place: Places
) -> None:
    """What reaches the sink behind the entry; and whether the null values of control records do."""
    made = shorts(TEXT, WITH_SCHEMA)
    rows = unwrapped(place(made.topic), option(f"transforms.unwrap.delete.tombstone.handling.mode={mode}"))
    gone = [row["value"] for row in rows if row["key"]["key"] == "gone 1"]
    told = [value and value.get("__deleted", "none") for value in gone]
    assert [mark for mark in told if mark not in ("none", "false")] == deleted
    assert any(row["key"]["key"].startswith(RESERVED_PREFIX.decode()) for row in rows) is controls


def test_the_transform_adds_fields_of_ours(shorts: Shorts, place: Places) -> None:
    made = shorts(TEXT, WITH_SCHEMA)
    rows = unwrapped(place(made.topic), option("transforms.unwrap.add.fields=op,source.segment,source.sequence,ts_ms"))
    added = [row["value"] for row in rows if row["value"] is not None]
    assert {row["__op"] for row in added} == {"c", "u", "r"}
    for row in added:
        assert row["__source_segment"] == segment_of(row["key"].encode(), SEGMENTS)
        assert len(json.loads(row["__source_sequence"])) == 2
        assert row["__ts_ms"] > 1_700_000_000_000


# -- Flink --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normalized", "right"),
    [("true", True), ("false", False)],
)
def test_flink_counts_right_with_the_setting(normalized: str, right: bool, shorts: Shorts, place: Places) -> None:
    """Else it takes a row of a reset for one more."""
    made = shorts(TEXT, WITH_SCHEMA)
    count = {"SELECT `key`, `value` FROM": "SELECT 'entries', COUNT(*) FROM"}
    counted = flink(place(made.topic), count | {"= 'true';": f"= '{normalized}';"})["entries"]
    assert (counted == len(made.content)) is right


def test_flink_reads_the_source_as_metadata(shorts: Shorts, place: Places) -> None:
    made = shorts(TEXT, WITH_SCHEMA)
    columns = {
        "expires_at BIGINT": "expires_at BIGINT,\n  source MAP<STRING, STRING> METADATA FROM 'value.source.properties'",
        "SELECT `key`, `value`": "SELECT `key`, source['segment']",
    }
    held = flink(place(made.topic), columns)
    assert held == {key: str(segment_of(key.encode(), SEGMENTS)) for key in text(made)}


# -- Pathway, kcat ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", ["key", "full"])
def test_pathway_is_wrong_where_it_takes_the_topic_for_postgres(image: str, shorts: Shorts, place: Places) -> None:
    """Its default: then it wants every row's exact `before`, and takes a row of a reset for one more."""
    made = shorts(TEXT, (*WITH_SCHEMA, ("before.image", image), ("max.entry.bytes", "400000")))
    ends = frozenset(end.decode() for end in made.ends)
    where = place(made.topic)
    pathway(where, {"    db_type=pw.io.debezium.DebeziumDBType.MONGO_DB,\n": ""}, ends)
    told: Counter[str] = Counter()
    for line in (where.folder / "sessions.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        told[row["key"]] += row["diff"]
    assert {key: n for key, n in told.items() if n} != dict.fromkeys(text(made), 1)


def test_kcats_json_is_no_utf_8_for_the_header_is_binary(shorts: Shorts, place: Places) -> None:
    with pytest.raises(UnicodeDecodeError):
        kcat(place(shorts(TEXT, WITH_SCHEMA).topic), {"-f '%k\\t%s\\n'": "-J"})
