"""The records on the topics, byte by byte, and compared with Debezium's own samples.

The literal bytes are a promise to readers in other languages: change one only together with the header's version.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from deelog_schemas import __version__
from deelog_schemas.digest import digest_of
from deelog_schemas.envelope import JsonCodec, JsonKeys, Stamp
from deelog_schemas.fold import Change
from deelog_schemas.header import Kind, node_number, pack
from deelog_schemas.keys import control_key
from deelog_schemas.operation import Entry, Operation
from deelog_schemas.records import decode
from tests.support.paths import INPUTS

SAMPLES = INPUTS / "debezium"
COMMON = ["version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns"]
OWN = ["cache", "segment", "epoch", "seq", "node", "reason"]
ENVELOPE = ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
MOMENTS = ["ts_ms", "ts_us", "ts_ns"]
STAMP = Stamp(7, "n1", 1_700_000_000_123_456)
WHOLE = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def codec(**more: Any) -> JsonCodec:
    return JsonCodec("shop.sessions", "grid", "shop", "sessions", **more)


def source(at: str, snapshot: str = "false", reason: str | None = None, cause: str | None = None) -> str:
    why = "null" if reason is None else f'"{reason}"'
    more = "" if cause is None else f',"cause":"{cause}"'
    return (
        f'{{"version":"{__version__}","connector":"grid","name":"shop","ts_ms":{at[:-3]},"snapshot":"{snapshot}","db":"",'
        f'"sequence":"[\\"2\\",\\"9\\"]","ts_us":{at},"ts_ns":{at}000,"cache":"sessions","segment":7,"epoch":2,"seq":9,'
        f'"node":"n1","reason":{why}{more}}}'
    )


TAIL = '"ts_ms":1700000000123,"ts_us":1700000000123456,"ts_ns":1700000000123456000}'
AT = "1699999999999999"
KEY_ONLY = '{"key":"k","value":null,"expires_at":null}'
NEW = '{"key":"k","value":"v","expires_at":1800000000000}'


def test_changes_in_bytes() -> None:
    put = Operation(2, 9, "put", b"k", b"v", 1_800_000_000_000, int(AT), False)
    expected = f'{{"before":null,"after":{NEW},"source":{source(AT)},"transaction":null,"op":"c",{TAIL}'
    assert codec().change(put, STAMP).decode() == expected
    update = put._replace(existed=True)
    expected = expected.replace('"before":null', f'"before":{KEY_ONLY}').replace('"op":"c"', '"op":"u"')
    assert codec().change(update, STAMP).decode() == expected
    full = expected.replace(KEY_ONLY, KEY_ONLY.replace('"value":null', '"value":"o"'))
    assert codec().change(update._replace(before=b"o"), STAMP).decode() == full
    gone = Operation(2, 9, "expire", b"k", None, None, int(AT), True)
    assert codec().change(gone, STAMP).decode() == (
        f'{{"before":{KEY_ONLY},"after":null,"source":{source(AT, reason="expire")},"transaction":null,"op":"d",{TAIL}'
    )


def test_a_row_and_a_difference_in_bytes() -> None:
    entry = Entry(b"k", b"v", 1_800_000_000_000)
    assert codec().row(entry, (2, 9), "first", "overflow", STAMP).decode() == (
        f'{{"before":null,"after":{NEW},"source":{source("1700000000123456", "first", "overflow")},'
        f'"transaction":null,"op":"r",{TAIL}'
    )
    old = NEW.replace('"v"', '"o"')
    change = Change(b"k", entry._replace(value=b"o"), entry, (2, 9), "reset")
    assert codec(cause=True).difference(change, int(AT), None, STAMP).decode() == (
        f'{{"before":{old},"after":{NEW},"source":{source(AT, cause="reset")},"transaction":null,"op":"u",{TAIL}'
    )


def test_keys_in_bytes() -> None:
    assert codec().key(b'a"b') == b'{"key":"a\\"b"}'
    assert codec(key_format="json").key(b'{"a":1}') == b'{"key":"{\\"a\\":1}"}'
    assert codec(key_format="bytes").key(b"\xff\0") == b'{"key":"/wA="}'
    assert JsonKeys("shop.sessions", "grid", schemas=True).key(b"k") == (
        b'{"schema":{"type":"struct","fields":[{"type":"string","optional":false,"field":"key"}],"optional":false,'
        b'"name":"shop.sessions.Key"},"payload":{"key":"k"}}'
    )
    claim = control_key("claim", 7, "n1@17", 3)
    assert codec().key(claim) == b'{"key":"\\u0000deelog/claim/7/n1@17/3"}'
    assert codec(key_format="bytes").key(claim) == b'{"key":"AGRlZWxvZy9jbGFpbS83L24xQDE3LzM="}'


def test_a_header_in_bytes() -> None:
    raw = pack(Kind.CHANGE, 7, 2, 9, node_number("n1@17"))
    assert raw.hex(" ") == "01 01 00 00 00 00 00 07 00 00 00 02 00 00 00 00 00 00 00 09 " + node_hex("n1@17")
    assert pack(Kind.RESET_END, 0xFFFFFFFF, 2**31, 2**40, 1).hex() == (
        "01140000 ffffffff 80000000 0000010000000000 00000001".replace(" ", "")
    )


def node_hex(member: str) -> str:
    return node_number(member).to_bytes(4, "big").hex(" ")


def test_a_control_record_in_bytes() -> None:
    control = b'{"count":1,"digest":"%b","epoch":2,"id":"r1","member":"n1@17"}' % digest_of([(b"k", b"v")]).encode()
    header = bytes.fromhex("0114000000000007000000020000000000000009") + b"\0\0\0\1"
    record = decode("t", 0, 5, b"{}", None, [("deelog", header), ("deelog.control", control)])
    assert record.header == (Kind.RESET_END, 7, 2, 9, 1)
    assert record.control == {"epoch": 2, "member": "n1@17", "id": "r1", "count": 1, "digest": "dcebe451747903d8"}


# -- schema blocks ------------------------------------------------------------------------------------------------

TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "json": {"type": "string", "name": "io.debezium.data.Json", "version": 1},
    "bytes": {"type": "bytes"},
}


def schema_of(made: JsonCodec) -> dict[str, Any]:
    raw = made.change(Operation(2, 9, "put", b"k", b"v", None, 1, False), STAMP)
    found: dict[str, Any] = json.loads(raw)["schema"]
    return found


def fields_of(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["field"]: field for field in schema["fields"]}


@pytest.mark.parametrize("connector", ["grid", "cachetools", "redis"])
@pytest.mark.parametrize("topic", ["shop.sessions", "shop.sessions.diff", "a-b_c"])
def test_schema_names(topic: str, connector: str) -> None:
    keys = JsonKeys(topic, connector, schemas=True)
    made = JsonCodec(topic, connector, "shop", "sessions", value_schemas=True, keys=keys)
    schema = schema_of(made)
    fields = fields_of(schema)
    assert (schema["name"], schema["version"]) == (f"{topic}.Envelope", 2)
    assert [fields[part]["name"] for part in ("before", "after")] == [f"{topic}.Value"] * 2
    assert fields["source"]["name"] == f"io.deelog.connector.{connector}.Source"
    assert json.loads(made.key(b"k"))["schema"]["name"] == f"{topic}.Key"


@pytest.mark.parametrize("key_format", TYPES)
@pytest.mark.parametrize("value_format", TYPES)
def test_types_of_key_and_value(key_format: str, value_format: str) -> None:
    keys = JsonKeys("shop.sessions", "grid", key_format, schemas=True)
    made = codec(key_format=key_format, value_format=value_format, value_schemas=True, keys=keys)
    key = {**TYPES[key_format], "optional": False, "field": "key"}
    value = {**TYPES[value_format], "optional": True, "field": "value"}
    assert json.loads(made.key(b"k"))["schema"]["fields"] == [key]
    fields = fields_of(schema_of(made))
    for part in ("before", "after"):
        assert fields[part]["fields"] == [key, value, {"type": "int64", "optional": True, "field": "expires_at"}]
        assert fields[part]["optional"] is True


@pytest.mark.parametrize("cause", [False, True])
def test_the_schema_names_the_fields_of_the_payload_in_its_order(cause: bool) -> None:
    raw = codec(value_schemas=True, cause=cause).change(Operation(2, 9, "put", b"k", b"v", None, 1, True), STAMP)
    wrapped = json.loads(raw)
    schema, payload = wrapped["schema"], wrapped["payload"]
    assert list(fields_of(schema)) == list(payload) == ENVELOPE
    fields = fields_of(schema)
    assert list(fields_of(fields["source"])) == list(payload["source"]) == COMMON + OWN + ["cause"] * cause
    assert list(fields_of(fields["after"])) == list(payload["after"]) == ["key", "value", "expires_at"]
    python = {"string": str, "int32": int, "int64": int, "struct": dict}
    for struct, told in ((schema, payload), (fields["source"], payload["source"])):
        for name, field in fields_of(struct).items():
            assert isinstance(told[name], python[field["type"]]) or (told[name] is None and field["optional"]), name


def test_snapshot_is_debeziums_enum() -> None:
    snapshot = fields_of(fields_of(schema_of(codec(value_schemas=True)))["source"])["snapshot"]
    assert (snapshot["name"], snapshot["default"]) == ("io.debezium.data.Enum", "false")
    assert snapshot["parameters"] == {"allowed": WHOLE}
    assert {"false", "first", "true", "last"} <= set(snapshot["parameters"]["allowed"].split(","))


# -- Debezium's shapes ---------------------------------------------------------------------------------------------

ENVELOPE_FIELDS = [
    ("before", "struct", True),
    ("after", "struct", True),
    ("source", "struct", False),
    ("transaction", "struct", True),
    ("op", "string", False),
    ("ts_ms", "int64", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
]
"""Name, type, whether it is optional, in Debezium's order."""
SOURCE_FIELDS = [
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
]


def shapes(fields: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    return [(field["field"], field["type"], field["optional"]) for field in fields]


def test_envelope_and_source_have_debeziums_fields_types_and_order() -> None:
    ours = schema_of(codec(value_schemas=True))
    assert shapes(ours["fields"]) == ENVELOPE_FIELDS
    assert shapes(fields_of(ours)["source"]["fields"])[: len(SOURCE_FIELDS)] == SOURCE_FIELDS


# -- Debezium's own samples ---------------------------------------------------------------------------------------


@cache
def samples() -> list[dict[str, Any]]:
    """Events of Debezium's documentation and of its own tests: `doc`, `event`."""
    path = SAMPLES / "debezium-docs-events.jsonl"
    if not path.exists():
        pytest.skip(f"Debezium's samples are no part of the project, and {path} is not there")
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("serde-with-schema", "serde-without-schema", "serde-update"):
        found.append({"doc": name, "event": json.loads((SAMPLES / f"debezium-tests/{name}.json").read_text())})
    return found


def schemas() -> list[dict[str, Any]]:
    """Schemas of relational envelopes (MongoDB's `after` is a text, as its documents have no columns)."""
    found = [s["event"]["schema"] for s in samples() if "schema" in s["event"] and "mongodb" not in s["doc"]]
    assert len(found) >= 12
    return found


def test_the_envelope_has_the_fields_types_and_order_of_debeziums() -> None:
    ours = schema_of(codec(value_schemas=True))
    without = [field for field in ENVELOPE_FIELDS if field[0] != "transaction"]  # the samples are older than it
    for schema in schemas():
        assert shapes(schema["fields"]) == without
        assert {k: schema[k] for k in ("type", "optional")} == {k: ours[k] for k in ("type", "optional")}
        assert schema["name"].endswith(".Envelope")
        for part in ("before", "after"):
            assert fields_of(schema)[part]["name"] == schema["name"].removesuffix("Envelope") + "Value"
            assert fields_of(schema)[part].keys() == fields_of(ours)[part].keys()
        assert fields_of(schema)["source"]["name"].startswith("io.debezium.connector.")
        assert fields_of(schema)["source"]["name"].endswith(".Source")


def test_the_source_fields_have_the_types_of_debeziums() -> None:
    ours = fields_of(fields_of(schema_of(codec(value_schemas=True)))["source"])
    seen: set[str] = set()
    for schema in schemas():
        theirs = fields_of(fields_of(schema)["source"])
        for name in set(COMMON) & set(theirs):
            if theirs[name]["type"] == "boolean":  # `snapshot` of versions before it was an enum
                assert name == "snapshot"
                continue
            seen.add(name)
            assert ours[name]["type"] == theirs[name]["type"], name
            if "name" in theirs[name]:
                assert ours[name]["name"] == theirs[name]["name"]
                assert ours[name]["default"] == theirs[name]["default"]
                allowed = set(theirs[name]["parameters"]["allowed"].split(","))
                assert allowed <= set(ours[name]["parameters"]["allowed"].split(","))
    assert seen == set(COMMON)
    # Optional as in most samples; they differ from one another.
    for name in ("version", "connector", "name", "ts_ms", "db", "sequence"):
        votes = [t[name]["optional"] for t in (fields_of(fields_of(s)["source"]) for s in schemas()) if name in t]
        assert ours[name]["optional"] == (votes.count(True) > len(votes) / 2), name


def test_the_source_fields_stand_in_the_order_of_recorded_events() -> None:
    recorded = ("yashandb.adoc", "decode-logical-decoding-message-content.adoc")  # the others were written by hand
    found = 0
    for sample in samples():
        if sample["doc"].endswith(recorded):
            event = sample["event"].get("payload", sample["event"])
            assert list(event["source"])[: len(COMMON)] == COMMON
            found += 1
    assert found == 6
    raw = codec().change(Operation(2, 9, "put", b"k", b"v", None, 1, True), STAMP)
    assert list(json.loads(raw)["source"])[: len(COMMON)] == COMMON


def test_sequence_and_moments_look_like_debeziums() -> None:
    raw = codec().change(Operation(2, 9, "put", b"k", b"v", None, int(AT), True), STAMP)
    ours = json.loads(raw)
    theirs = next(s["event"] for s in samples() if s["doc"].endswith("decode-logical-decoding-message-content.adoc"))
    for told in (ours, theirs):
        parsed = json.loads(told["source"]["sequence"])
        assert [type(part) for part in parsed] == [str, str]
        assert json.dumps(parsed, separators=(",", ":")) == told["source"]["sequence"]
        ms, us, ns = (told["source"][name] for name in MOMENTS)
        assert (us // 1000, ns // 1000) == (ms, us)
    assert json.loads(ours["source"]["sequence"]) == ["2", "9"]


def test_what_stands_before_and_after_each_op_as_in_debeziums() -> None:
    """By op: whether `before` and `after` are set, and the value of `snapshot`. Each of our shapes is in a sample."""
    theirs: dict[str, set[tuple[bool, bool]]] = {}
    snapshots: set[str] = set()
    for sample in samples():
        event = sample["event"].get("payload", sample["event"])
        # MongoDB's rows are documents, and the other two have no `before`, or on demand only.
        if any(name in sample["doc"] for name in ("mongodb", "cassandra", "cockroachdb")) or "source" not in event:
            continue
        has = (event.get("before") is not None, event.get("after") is not None)
        theirs.setdefault(event["op"], set()).add(has)
        if event["op"] == "r":
            snapshots.add(str(event["source"].get("snapshot")).lower())
    put = Operation(2, 9, "put", b"k", b"v", None, int(AT), False)
    ours = {
        "c": codec().change(put, STAMP),
        "u": codec().change(put._replace(existed=True), STAMP),
        "d": codec().change(put._replace(reason="remove", value=None, existed=True), STAMP),
        "r": codec().row(Entry(b"k", b"v", None), (2, 9), "true", "start", STAMP),
    }
    for op, raw in ours.items():
        told = json.loads(raw)
        assert told["op"] == op
        assert (told["before"] is not None, told["after"] is not None) in theirs[op], op
    assert json.loads(ours["r"])["source"]["snapshot"] in snapshots
    assert theirs["d"] == {(True, False)}, "a delete of Debezium's has a before and no after, without exception"
