"""The Avro codec: byte for byte what fastavro gives, in both framings, and nothing read that is not of its schema.

Bad input tried here: keys and values that are not UTF-8, every prefix of a record, every byte of one changed, bytes
behind the end, a schema id that nobody has, one of another subject, JSON, an empty value, another framing, a schema
that is none, an envelope without `after`, numbers without an end.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.avro import pinned
from deelog_schemas.avro.codec import AvroCodec, AvroKeys, Written
from deelog_schemas.avro.schema import adjusted, envelope_text, key_text, registry_prefix
from deelog_schemas.connect import names_of
from deelog_schemas.envelope import Envelope, JsonCodec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.keys import control_key
from deelog_schemas.operation import Entry, Operation, Reason
from tests.schemas.test_envelope import EXPIRIES, FORMATS, MOMENTS, REASONS, Case, all_formats

TOPIC = "shop.sessions"
STAMP = Stamp(7, "n1", 1_700_000_000_123_456)
UPDATE = Operation(2, 9, "put", b"key", "välue".encode(), 5, 1_699_999_999_999_999, True, b"old")


def nobody(prefix: bytes) -> str:
    """A registry that has no schema besides those read at the start."""
    raise RecordError(f"schema {prefix.hex()} is not there")


def written(
    key_format: str, value_format: str, cause: bool = False, by_registry: bool = True, connector: str = "grid"
) -> tuple[Written, Written]:
    """The schemas as `formats` makes them, with a registry that has those of the change topic and of the diff topic."""
    if not by_registry:
        return pinned.written_key(key_format), pinned.written_value(key_format, value_format, cause)
    names = adjusted(names_of(TOPIC, connector))
    key = key_text(names, key_format)
    values = {registry_prefix(2 + more): envelope_text(names, key_format, value_format, more) for more in (False, True)}
    prefix = registry_prefix(2 + cause)
    first = registry_prefix(1)
    return Written(first, key, {first: key}, nobody), Written(prefix, values[prefix], values, nobody)


def codec_of(
    key_format: str = "string", value_format: str = "string", cause: bool = False, by_registry: bool = True
) -> AvroCodec:
    key, value = written(key_format, value_format, cause, by_registry)
    return AvroCodec("grid", "shop", "sessions", AvroKeys(key, key_format), value, key_format, value_format, cause)


def by_fastavro(part: Written, record: dict[str, Any]) -> bytes:
    out = BytesIO()
    out.write(part.prefix)
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(part.schema)), record)
    return out.getvalue()


class AvroCase(Case):
    """The same generated input, for the Avro codec."""

    def __init__(self, data: st.DataObject, key_format: str, value_format: str, cause: bool = False) -> None:
        super().__init__(data, key_format, value_format, cause)
        connector, name, cache = self.names
        self.key_part, self.value_part = written(key_format, value_format, cause, data.draw(st.booleans()), connector)
        self.keys = AvroKeys(self.key_part, key_format)
        self.avro = AvroCodec(connector, name, cache, self.keys, self.value_part, key_format, value_format, cause)

    def text(self, part: str, raw: bytes) -> Any:
        return raw if self.formats[part] == "bytes" else raw.decode()


@all_formats
@settings(max_examples=25)
@given(data=st.data())
def test_a_change_is_what_fastavro_gives(key_format: str, value_format: str, data: st.DataObject) -> None:
    cause = data.draw(st.booleans())
    case = AvroCase(data, key_format, value_format, cause)
    value, before = data.draw(st.none() | case.values), data.draw(st.none() | case.values)
    existed, expires_at, ts_us = data.draw(st.booleans()), data.draw(EXPIRIES), data.draw(MOMENTS)
    reason = data.draw(st.sampled_from(REASONS))
    operation = Operation(*case.position, reason, case.key, value, expires_at, ts_us, existed, before)
    raw = case.avro.change(operation, case.stamp)

    op = "d" if value is None else "u" if existed else "c"
    old = None if op == "c" else case.struct(case.key, before, None)
    new = None if op == "d" else case.struct(case.key, value, expires_at)
    told = None if reason == "put" else str(reason)
    envelope = case.envelope(old, new, op, ts_us, "false", told, None if cause else ())
    assert raw == by_fastavro(case.value_part, envelope)
    assert case.avro.decode_value(raw) == case.codec.decode_value(case.codec.change(operation, case.stamp))


@all_formats
@settings(max_examples=12)
@given(data=st.data())
def test_a_row_and_a_key_are_what_fastavro_gives(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = AvroCase(data, key_format, value_format)
    entry = Entry(case.key, data.draw(case.values), data.draw(EXPIRIES))
    snapshot, reason = data.draw(st.sampled_from(["first", "true", "last"])), data.draw(st.sampled_from(REASONS))
    raw = case.avro.row(entry, case.position, snapshot, reason, case.stamp)
    envelope = case.envelope(None, case.struct(*entry), "r", case.stamp.now_us, snapshot, str(reason))
    assert raw == by_fastavro(case.value_part, envelope)
    assert case.avro.decode_value(raw).after == entry
    for key in (case.key, control_key("claim", 3, "n1@17", 9)):
        raw = case.avro.key(key)
        assert raw == by_fastavro(case.key_part, {"key": case.text("key", key)})
        assert case.avro.decode_key(raw) == key


@all_formats
@settings(max_examples=15)
@given(data=st.data())
def test_a_difference_is_what_fastavro_gives(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = AvroCase(data, key_format, value_format, cause=True)
    entries = st.none() | st.builds(Entry, st.just(case.key), case.values, EXPIRIES)
    before, after, ts_us = data.draw(entries), data.draw(entries), data.draw(MOMENTS)
    reason, cause = data.draw(st.none() | st.sampled_from(REASONS)), data.draw(st.sampled_from(["change", "reset"]))
    raw = case.avro.difference(Change(case.key, before, after, case.position, cause), ts_us, reason, case.stamp)
    op = "d" if after is None else "c" if before is None else "u"
    old = case.struct(*before) if before else case.struct(case.key, None, None) if op == "d" else None
    new = case.struct(*after) if after else None
    why = None if reason is None else str(reason)
    assert raw == by_fastavro(case.value_part, case.envelope(old, new, op, ts_us, "false", why, cause))
    found = case.avro.after_of(raw)
    assert found is not None
    assert (found == case.avro.gone) == (after is None)
    assert after is None or case.avro.decode_after(found) == after


@all_formats
@settings(max_examples=15)
@given(data=st.data())
def test_a_captured_change_is_passed_on_with_its_cause(key_format: str, value_format: str, data: st.DataObject) -> None:
    """It is inserted where the layout is ours; another layout is encoded again. All other fields stay."""
    case = AvroCase(data, key_format, value_format, cause=True)
    value, before = data.draw(st.none() | case.values), data.draw(st.none() | case.values)
    reason = data.draw(st.sampled_from(REASONS))
    operation = Operation(*case.position, reason, case.key, value, None, data.draw(MOMENTS), True, before)
    with_registry = case.value_part.prefix[:1] == b"\0"
    _, own = written(key_format, value_format, False, with_registry, case.names[0])
    capture = AvroCodec(*case.names, case.keys, own, key_format, value_format)
    raw = capture.change(operation, case.stamp)
    op, told = case.avro.passed_on(raw, "change")
    before_it, after_it = case.avro.decode_value(raw), case.avro.decode_value(told)
    assert op == after_it.op == ("d" if value is None else "u")
    assert after_it == before_it._replace(source={**before_it.source, "cause": "change"})
    after = case.avro.after_of(raw)
    assert after is not None
    assert after == case.avro.after_of(told)
    somebody_elses = json.dumps(json.loads(own.schema) | {"name": "Other"})
    value_part = case.value_part._replace(known={own.prefix: somebody_elses})
    other = AvroCodec(*case.names, case.keys, value_part, key_format, value_format, cause=True)
    assert other.after_of(raw) is None
    assert other.passed_on(raw, "change") == (op, told)


def test_what_is_not_utf8_is_refused_but_by_format_bytes() -> None:
    bad = b"\xff\xfe"
    for name in ("string", "json"):
        codec = codec_of(name, name)
        for operation in (UPDATE._replace(key=bad), UPDATE._replace(value=bad), UPDATE._replace(before=bad)):
            with pytest.raises(UnicodeDecodeError):
                codec.change(operation, STAMP)
        for entry in (Entry(bad, b"v", None), Entry(b"k", bad, None)):
            with pytest.raises(UnicodeDecodeError):
                codec.row(entry, (1, 2), "true", "x", STAMP)
        with pytest.raises(UnicodeDecodeError):
            codec.key(bad)
    codec = codec_of("bytes", "bytes")
    assert codec.decode_value(codec.change(UPDATE._replace(key=bad, value=bad), STAMP)).after == Entry(bad, bad, 5)


# -- what is not ours ---------------------------------------------------------------------------------------------


def reads(codec: AvroCodec, raw: bytes) -> Envelope | None:
    """Each way of reading a record gives the same entry, or raises `RecordError` and nothing else."""
    ways = (codec.decode_value, codec.plain_value, lambda one: codec.passed_on(one, "change"))
    results: list[Any] = []
    for way in ways:
        try:
            results.append(way(raw))
        except RecordError:
            results.append(None)
    try:
        after = codec.after_of(raw)
    except RecordError:
        after = None
    found: Envelope | None = results[0]
    plain, passed_on = results[1:]
    assert passed_on is None or plain is not None, "what is passed on can be read"
    if found is not None:
        assert json.loads(plain)["op"] == found.op
    if found is not None and passed_on is not None:
        op, told = passed_on
        assert op == found.op
        assert codec.decode_value(told) == found._replace(source={**found.source, "cause": "change"})
    if found is not None and after is not None:
        assert (found.after is None) == (after == codec.gone)
        assert found.after is None or codec.decode_after(after) == found.after
    return found


@pytest.mark.parametrize("by_registry", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_a_record_cut_short_or_too_long_is_an_error(name: str, by_registry: bool) -> None:
    codec = codec_of(name, name, cause=True, by_registry=by_registry)
    capture = codec_of(name, name, by_registry=by_registry)
    raw, key = capture.change(UPDATE, STAMP), codec.key(b"key")
    assert reads(codec, raw) is not None
    for size in range(len(raw)):
        assert reads(codec, raw[:size]) is None, size
        with pytest.raises(RecordError):
            codec.passed_on(raw[:size], "change")
    for way in (codec.decode_value, codec.plain_value, lambda one: codec.passed_on(one, "change")):
        with pytest.raises(RecordError, match="1 bytes behind"):
            way(raw + b"\0")
    for size in range(len(key)):
        with pytest.raises(RecordError):
            codec.decode_key(key[:size])
    with pytest.raises(RecordError, match="1 bytes behind"):
        codec.decode_key(key + b"\0")


@pytest.mark.parametrize("name", FORMATS)
def test_a_record_with_one_byte_changed_is_an_error_or_another_record(name: str) -> None:
    codec, capture = codec_of(name, name, cause=True), codec_of(name, name)
    raw = capture.change(UPDATE, STAMP)
    for at in range(len(raw)):
        for byte in (*range(8), 0x7F, 0x80, 0xFF):
            reads(codec, raw[:at] + bytes([byte]) + raw[at + 1 :])


def test_a_source_without_a_snapshot_is_passed_on() -> None:
    _, part = written("string", "string")
    fields = json.loads(codec_of().plain_value(codec_of().change(UPDATE, STAMP)))
    fields["source"]["snapshot"] = None
    assert codec_of(cause=True).passed_on(by_fastavro(part, fields), "change")[0] == "u"


@settings(max_examples=120)
@given(data=st.data())
def test_damaged_bytes_are_an_error_or_another_record(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FORMATS))
    codec, capture = codec_of(name, name, cause=True), codec_of(name, name)
    raw = bytearray(capture.change(UPDATE, STAMP))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reads(codec, bytes(raw))


@settings(max_examples=100)
@given(tail=st.binary(max_size=40))
def test_any_bytes_behind_a_known_schema(tail: bytes) -> None:
    codec = codec_of(cause=True)
    for number in (2, 3):
        reads(codec, registry_prefix(number) + tail)
    try:
        key = codec.decode_key(registry_prefix(1) + tail)
    except RecordError:
        return
    assert codec.key(key)[5:] == tail or len(codec.key(key)) < 5 + len(tail), "another way to write the same length"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "begins with nothing"),
        (b"{}", "begins with 7b 7d"),
        (JsonCodec(TOPIC, "grid", "shop", "sessions").change(UPDATE, STAMP), "is not in Confluent's wire format"),
        (b"\x01\0\0\0\x02", "is not in Confluent's wire format"),
        (registry_prefix(9) + b"\0", "schema 0000000009 is not there"),
        (registry_prefix(1) + b"\0", "schema 0000000001 is not there"),
        (registry_prefix(2) + b"\x04", "is not Avro of the schema that it names"),
        (registry_prefix(2) + b"\x80" * 12, "is not Avro of the schema that it names"),
    ],
)
def test_what_is_no_value_of_ours(raw: bytes, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        codec_of().decode_value(raw)


def test_other_framing_and_unknown_fingerprint() -> None:
    bare = codec_of(by_registry=False)
    with pytest.raises(RecordError, match="Avro's single-object encoding: it begins with 00 00"):
        bare.decode_value(codec_of().change(UPDATE, STAMP))
    with pytest.raises(RecordError, match=r"fingerprint 0102030405060708 is none of those of deelog up to"):
        bare.decode_value(b"\xc3\x01" + bytes(range(1, 9)))


@pytest.mark.parametrize("schema", ["", "{", "[]", '"nonsense"', '{"type":"record"}', "null", "7", "[" * 5000])
def test_a_registry_that_gives_no_schema(schema: str) -> None:
    key, value = written("string", "string")
    codec = AvroCodec("grid", "shop", "sessions", AvroKeys(key), value._replace(find=lambda prefix: schema))
    with pytest.raises(RecordError, match=r"that is none|is not Avro of the schema"):
        codec.decode_value(registry_prefix(77) + b"\0")


@pytest.mark.parametrize(
    ("schema", "record"),
    [
        ('"string"', "text"),
        ({"type": "record", "name": "E", "fields": [{"name": "op", "type": "string"}]}, {"op": "c"}),
    ],
)
def test_a_schema_of_something_else(schema: Any, record: Any) -> None:
    key, value = written("string", "string")
    told = schema if isinstance(schema, str) else json.dumps(schema)
    codec = AvroCodec("grid", "shop", "sessions", AvroKeys(key), value._replace(find=lambda prefix: told))
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(told)), record)
    for way in (codec.decode_value, lambda raw: codec.passed_on(raw, "change")):
        with pytest.raises(RecordError):
            way(registry_prefix(77) + out.getvalue())
    assert codec.after_of(registry_prefix(77) + out.getvalue()) is None


def test_a_later_schema_of_ours_is_read_by_its_fields() -> None:
    """One more field, in the middle: an upgraded connector may write it before its readers are upgraded."""
    key, value = written("string", "string")
    later = json.loads(value.schema)
    later["fields"].insert(1, {"name": "more", "type": ["null", "string"], "default": None})
    text = json.dumps(later)
    codec = AvroCodec("grid", "shop", "sessions", AvroKeys(key), value._replace(find=lambda prefix: text))
    told = JsonCodec(TOPIC, "grid", "shop", "sessions").change(UPDATE, STAMP)
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(later), {**json.loads(told), "more": "news"})
    raw = registry_prefix(77) + out.getvalue()
    assert codec.decode_value(raw) == codec_of().decode_value(codec_of().change(UPDATE, STAMP))
    assert codec.after_of(raw) is None, "only the own layout is known without decoding"


@pytest.mark.parametrize(("ours", "theirs"), [("string", "bytes"), ("json", "bytes"), ("bytes", "string")])
def test_a_part_of_another_format_is_an_error(ours: str, theirs: str) -> None:
    """Its schema is one of the topic's, since another connector wrote with it."""
    (key, value), (their_key, their_value) = written(ours, ours), written(theirs, theirs)
    other = codec_of(theirs, theirs)
    keys = AvroKeys(key._replace(find=lambda prefix: their_key.schema), ours)
    codec = AvroCodec(
        *("grid", "shop", "sessions", keys, value._replace(find=lambda prefix: their_value.schema)), ours, ours
    )
    named = registry_prefix(77)
    kind = "bytes" if theirs == "bytes" else "str"
    with pytest.raises(RecordError, match=f"key is {kind}, which is not this topic's format of it"):
        codec.decode_key(named + other.key(b"key")[5:])
    raw = named + other.change(UPDATE, STAMP)[5:]
    with pytest.raises(RecordError, match=f"key is {kind}, which is not this topic's format of it"):
        codec.decode_value(raw)
    mixed = codec_of(ours, theirs)
    codec = AvroCodec(
        *("grid", "shop", "sessions", keys, value._replace(find=lambda prefix: written(ours, theirs)[1].schema)),
        *(ours, ours),
    )
    with pytest.raises(RecordError, match=f"value is {kind}, which is not this topic's format of it"):
        codec.decode_value(named + mixed.change(UPDATE, STAMP)[5:])


def test_a_codec_without_causes_passes_nothing_on_by_its_layout() -> None:
    """Its own schema has no place for one."""
    codec, diff = codec_of(), codec_of(cause=True)
    raw = codec.change(UPDATE, STAMP)
    after = codec.after_of(raw)
    assert after is not None
    assert codec.passed_on(raw, "change") == ("u", raw)
    assert diff.after_of(raw) == after
    told = diff.difference(Change(b"key", None, Entry(b"key", b"v", None), (1, 2), "reset"), 3, None, STAMP)
    assert codec.after_of(told) is None


def test_reasons_that_a_connector_gives_are_all_told() -> None:
    codec = codec_of()
    for reason in Reason:
        told = codec.decode_value(codec.change(UPDATE._replace(reason=reason), STAMP)).source["reason"]
        assert told == (None if reason is Reason.PUT else str(reason))
