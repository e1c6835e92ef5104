"""The records of the diff topic: of a captured change and of a difference."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.header import Kind, pack, unpack
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_spark.folding.diff_record import (
    CHANGE,
    RESET,
    ROW_DDL,
    ROW_SCHEMA,
    Renderer,
    Row,
    Undecodable,
    connected,
    entry_of,
    op_of,
    renderer_of,
    tolerant,
    tombstone,
)
from tests.support.changes import config_of

CAPTURE = JsonCodec("t", "grid", "p", "c")
CODEC = JsonCodec("t", "grid", "p", "c", cause=True)
STAMP = Stamp(7, "n", 5)
ENTRY = Entry(b"k", b"v", None)
LENIENT, STRICT = Renderer(CODEC), Renderer(CODEC, strict=True)


def captured(
    value: bytes | None = b"v",
    existed: bool = False,
    kind: Kind = Kind.CHANGE,
    raw: bytes | None = None,
) -> Row:
    """A captured change, or, with `raw`, one with that value."""
    operation = Operation(2, 9, Reason.PUT, b"k", value, None, 3, existed)
    raw = CAPTURE.change(operation, STAMP) if raw is None else raw
    return Row(1, 11, 0, CHANGE, "", pack(kind, 7, 2, 9, 4), CODEC.key(b"k"), raw)


@pytest.mark.parametrize(
    ("row", "op"), [(captured(), "c"), (captured(existed=True), "u"), (captured(None, existed=True), "d")]
)
@pytest.mark.parametrize("renderer", [LENIENT, STRICT], ids=["lenient", "strict"])
def test_a_captured_change_keeps_all_but_its_cause(row: Row, op: str, renderer: Renderer) -> None:
    record = renderer.change(row)
    assert (record.op, record.key, record.header) == (op, row.key, row.header)
    before = orjson.loads(row.value or b"")
    before["source"]["cause"] = "change"
    assert orjson.loads(record.value) == before


def test_a_tombstone_whose_delete_is_gone_becomes_a_delete() -> None:
    row = captured(kind=Kind.TOMBSTONE)._replace(value=None, moment_ms=5)
    record = STRICT.change(row)
    assert (record.op, record.key) == ("d", row.key)
    assert unpack(record.header) == unpack(pack(Kind.CHANGE, 7, 2, 9, 4))
    envelope = CODEC.decode_value(record.value)
    assert (envelope.op, envelope.before, envelope.after) == ("d", Entry(b"k", b"", None), None)
    assert (envelope.source["cause"], envelope.source["segment"], envelope.source["ts_us"]) == ("change", 7, 5000)
    assert tombstone(record.header) == pack(Kind.TOMBSTONE, 7, 2, 9, 4)


@pytest.mark.parametrize("renderer", [LENIENT, STRICT], ids=["lenient", "strict"])
def test_a_change_without_a_value_is_foreign(renderer: Renderer) -> None:
    with pytest.raises(RecordError, match="a change without a value") as caught:
        renderer.change(captured()._replace(value=None))
    assert not isinstance(caught.value, Undecodable)


@pytest.mark.parametrize("renderer", [LENIENT, STRICT], ids=["lenient", "strict"])
def test_a_row_of_a_reset_is_no_captured_change(renderer: Renderer) -> None:
    with pytest.raises(RecordError, match="op 'r' does not belong"):
        renderer.change(captured(raw=CAPTURE.row(ENTRY, (2, 9), "true", "overflow", STAMP)))


def test_only_a_strict_renderer_decodes_the_key_and_the_value() -> None:
    bad_key = captured()._replace(key=b'{"key":5}')
    bad_value = captured(
        raw=CAPTURE.change(Operation(2, 9, Reason.PUT, b"k", b"v", None, 3, False), STAMP).replace(b'"v"', b"5")
    )
    for row, key in ((bad_key, None), (bad_value, b"k")):
        assert LENIENT.change(row).op == "c"
        assert LENIENT.reads(row)
        assert not STRICT.reads(row)
        with pytest.raises(Undecodable) as caught:
            STRICT.change(row)
        assert caught.value.key == key


def test_a_difference_is_at_the_end_of_its_reset() -> None:
    old = Entry(b"k", b"o", 5)
    for before, after, op in ((None, ENTRY, "c"), (old, ENTRY, "u"), (old, None, "d")):
        row = LENIENT.difference(Change(b"k", before, after, (3, 4), RESET), 1, 20, 6, 7, "overflow", 1_000_001)
        assert row[:5] == (1, 20, 6, RESET, op)
        assert (row.header, row.key) == (pack(Kind.CHANGE, 7, 3, 4, 0), CODEC.key(b"k"))
        envelope = CODEC.decode_value(row.value or b"")
        assert (envelope.op, envelope.before, envelope.after) == (op, before, after)
        source = envelope.source
        assert (source["cause"], source["reason"], source["segment"], source["ts_us"]) == (
            "reset",
            "overflow",
            7,
            1_000_001,
        )


def test_ops() -> None:
    assert [op_of(*pair) for pair in ((None, ENTRY), (ENTRY, ENTRY), (ENTRY, None), (None, None))] == [
        "c",
        "u",
        "d",
        "d",
    ]


def test_entries_of_records() -> None:
    change = captured()
    assert entry_of(CODEC, Kind.CHANGE, change.key, change.value) == (b"k", ENTRY)
    assert entry_of(CODEC, Kind.TOMBSTONE, change.key, None) == (b"k", None)
    row = CAPTURE.row(ENTRY, (2, 9), "true", "overflow", STAMP)
    assert entry_of(CODEC, Kind.READ, change.key, row) == (b"k", ENTRY)
    wrong = [
        (Kind.CHANGE, row, "op 'r' does not belong"),
        (Kind.CHANGE, None, "a change without a value"),
        (Kind.READ, None, "a change without a value"),
    ]
    for kind, value, said in wrong:
        with pytest.raises(Undecodable, match=said) as caught:
            entry_of(CODEC, kind, change.key, value)
        assert caught.value.key == b"k"


def test_the_schemas_are_those_of_a_row() -> None:
    assert ROW_SCHEMA.names == list(Row._fields) == [column.split()[0] for column in ROW_DDL.split(", ")]


def test_the_renderer_of_a_configuration(tmp_path: Path) -> None:
    config = config_of("127.0.0.1:1", "p", str(tmp_path))
    assert connected(config) is config, "no registry to ask"
    assert not tolerant(config)
    undecodable = captured()._replace(key=b'{"key":5}')
    assert renderer_of(config).reads(undecodable)
    errors = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": "dlq"}
    lenient = config_of("127.0.0.1:1", "p", str(tmp_path), **errors)
    assert tolerant(lenient)
    assert not renderer_of(lenient).reads(undecodable), "a dead letter is what a later start could not decode"


def test_the_class_that_encodes_a_part_is_named() -> None:
    assert LENIENT.converter("key") == "deelog_schemas.envelope.JsonKeys"
    assert LENIENT.converter("value") == "deelog_schemas.envelope.JsonCodec"
