"""The JSON codec: its bytes are those of a dumped dict, can be decoded, and have no null `before` for u and d."""

from __future__ import annotations

import base64
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas import __version__
from deelog_schemas.envelope import JsonCodec, JsonKeys, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.keys import control_key
from deelog_schemas.operation import Entry, Operation, Reason

FORMATS = ["string", "json", "bytes"]
TOPIC = "shop.sessions"
MOMENTS = st.integers(0, 2**62 // 1000)
EXPIRIES = st.none() | st.integers(0, 2**63 - 1)
REASONS = [*Reason, 'a "quoted" 100% reason']
TEXTS = st.text(max_size=12) | st.sampled_from(["", "%b%d%%", '{"a": "\\u00e9"}', "\u2028\0\x7f\\", "💥"])


class Case:
    """A codec, and generated input for its formats."""

    def __init__(self, data: st.DataObject, key_format: str, value_format: str, cause: bool = False) -> None:
        draw = data.draw
        self.formats = {"key": key_format, "value": value_format}
        self.of = {f: TEXTS.map(str.encode) if f != "bytes" else st.binary(max_size=12) for f in FORMATS}
        self.schemas = draw(st.tuples(st.booleans(), st.booleans()))
        self.names = draw(st.tuples(TEXTS, TEXTS, TEXTS))
        connector, name, cache = self.names
        keys = JsonKeys(TOPIC, connector, key_format, self.schemas[0])
        formats = key_format, value_format
        self.codec = JsonCodec(TOPIC, connector, name, cache, *formats, self.schemas[1], cause, keys=keys)
        self.key: bytes = draw(self.of[key_format])
        self.values = self.of[value_format]
        self.stamp = Stamp(draw(st.integers(0, 2**31 - 1)), draw(TEXTS), draw(MOMENTS))
        self.position = (draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 2**63 - 1)))

    def text(self, part: str, raw: bytes) -> str:
        """The JSON string of captured bytes."""
        return base64.b64encode(raw).decode() if self.formats[part] == "bytes" else raw.decode()

    def struct(self, key: bytes, value: bytes | None, expires_at: int | None) -> dict[str, Any]:
        shown = None if value is None else self.text("value", value)
        return {"key": self.text("key", key), "value": shown, "expires_at": expires_at}

    def envelope(
        self, before: Any, after: Any, op: str, ts_us: int, snapshot: str, reason: str | None, cause: Any = ()
    ) -> dict[str, Any]:
        """The envelope of `schemas/README.md`, as a dict."""
        connector, name, cache = self.names
        epoch, sequence = self.position
        segment, node, now = self.stamp
        source = {
            "version": __version__,
            "connector": connector,
            "name": name,
            "ts_ms": ts_us // 1000,
            "snapshot": snapshot,
            "db": "",
            "sequence": json.dumps([str(epoch), str(sequence)], separators=(",", ":")),
            "ts_us": ts_us,
            "ts_ns": ts_us * 1000,
            "cache": cache,
            "segment": segment,
            "epoch": epoch,
            "seq": sequence,
            "node": node,
            "reason": reason,
        }
        if cause != ():
            source["cause"] = cause
        moments = {"ts_ms": now // 1000, "ts_us": now, "ts_ns": now * 1000}
        return {"before": before, "after": after, "source": source, "transaction": None, "op": op, **moments}

    def dumped(self, payload: dict[str, Any], raw: bytes, of_key: bool = False) -> bytes:
        """The dict as bytes. Its schema block is copied from `raw`, since other tests check it."""
        if not self.schemas[0 if of_key else 1]:
            return orjson.dumps(payload)
        return orjson.dumps({"schema": orjson.loads(raw)["schema"], "payload": payload})


all_formats = pytest.mark.parametrize(("key_format", "value_format"), [(k, v) for k in FORMATS for v in FORMATS])


@all_formats
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_change_is_what_dumping_a_dict_gives(key_format: str, value_format: str, data: st.DataObject) -> None:
    cause = data.draw(st.booleans())
    case = Case(data, key_format, value_format, cause)
    value, before = data.draw(st.none() | case.values), data.draw(st.none() | case.values)
    existed, expires_at, ts_us = data.draw(st.booleans()), data.draw(EXPIRIES), data.draw(MOMENTS)
    reason = data.draw(st.sampled_from(REASONS))
    operation = Operation(*case.position, reason, case.key, value, expires_at, ts_us, existed, before)
    raw = case.codec.change(operation, case.stamp)

    op = "d" if value is None else "u" if existed else "c"
    old = None if op == "c" else case.struct(case.key, before, None)
    new = None if op == "d" else case.struct(case.key, value, expires_at)
    told = None if reason == "put" else str(reason)
    assert raw == case.dumped(case.envelope(old, new, op, ts_us, "false", told, None if cause else ()), raw)

    found = case.codec.decode_value(raw)
    assert found.op == op
    assert found.after == (None if value is None else Entry(case.key, value, expires_at))
    assert found.before == (None if op == "c" else Entry(case.key, before or b"", None))
    assert found.source["reason"] == told


@all_formats
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_row_is_what_dumping_a_dict_gives(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = Case(data, key_format, value_format)
    entry = Entry(case.key, data.draw(case.values), data.draw(EXPIRIES))
    snapshot, reason = data.draw(st.sampled_from(["first", "true", "last"])), data.draw(st.sampled_from(REASONS))
    raw = case.codec.row(entry, case.position, snapshot, reason, case.stamp)
    envelope = case.envelope(None, case.struct(*entry), "r", case.stamp.now_us, snapshot, str(reason))
    assert raw == case.dumped(envelope, raw)
    assert case.codec.row(entry, case.position, snapshot, reason, case.stamp) == raw
    found = case.codec.decode_value(raw)
    assert (found.op, found.before, found.after) == ("r", None, entry)


@all_formats
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_difference_is_what_dumping_a_dict_gives(key_format: str, value_format: str, data: st.DataObject) -> None:
    told = data.draw(st.booleans())
    case = Case(data, key_format, value_format, cause=told)
    entries = st.none() | st.builds(Entry, st.just(case.key), case.values, EXPIRIES)
    before, after, ts_us = data.draw(entries), data.draw(entries), data.draw(MOMENTS)
    reason, cause = data.draw(st.none() | st.sampled_from(REASONS)), data.draw(st.sampled_from(["change", "reset"]))
    raw = case.codec.difference(Change(case.key, before, after, case.position, cause), ts_us, reason, case.stamp)
    op = "d" if after is None else "c" if before is None else "u"
    old = case.struct(*before) if before else case.struct(case.key, None, None) if op == "d" else None
    new = case.struct(*after) if after else None
    why = None if reason is None else str(reason)
    assert raw == case.dumped(case.envelope(old, new, op, ts_us, "false", why, cause if told else ()), raw)
    found = case.codec.decode_value(raw)
    assert (found.op, found.after) == (op, after)
    assert found.before == (before or (Entry(case.key, b"", None) if op == "d" else None))


@all_formats
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_key_is_what_dumping_a_dict_gives(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = Case(data, key_format, value_format)
    for key in (case.key, control_key("claim", 3, "n1@17", 9)):
        raw = case.codec.key(key)
        assert raw == case.dumped({"key": case.text("key", key)}, raw, of_key=True)
        assert case.codec.decode_key(raw) == key


@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize(("existed", "value"), [(True, b"v"), (True, None), (False, None)])
def test_before_is_never_null_on_u_and_d(value_format: str, reason: Reason, existed: bool, value: bytes | None) -> None:
    codec = JsonCodec(TOPIC, "test", "shop", "sessions", value_format=value_format)
    raw = codec.change(Operation(1, 2, reason, b"", value, None, 3, existed), Stamp(0, "n1", 4))
    envelope = json.loads(raw)
    assert envelope["op"] == ("d" if value is None else "u")
    assert envelope["before"] == {"key": "", "value": None, "expires_at": None}


def test_what_is_not_utf8_is_refused_but_by_format_bytes() -> None:
    stamp, bad = Stamp(0, "n1", 4), b"\xff\xfe"
    for name in ("string", "json"):
        codec = JsonCodec(TOPIC, "test", "shop", "sessions", name, name)
        for operation in (
            Operation(1, 2, "put", bad, b"v", None, 3, False),
            Operation(1, 2, "put", b"k", bad, None, 3, False),
        ):
            with pytest.raises(UnicodeDecodeError):
                codec.change(operation, stamp)
        with pytest.raises(UnicodeDecodeError):
            codec.key(bad)
    codec = JsonCodec(TOPIC, "test", "shop", "sessions", "bytes", "bytes")
    raw = codec.change(Operation(1, 2, "put", bad, bad, None, 3, False), stamp)
    assert codec.decode_value(raw).after == Entry(bad, bad, None)
    assert codec.decode_key(codec.key(bad)) == bad


def test_the_version_without_blocks_is_the_payload_of_the_one_with() -> None:
    operation, stamp = Operation(1, 2, "put", b"100%", b"%d", None, 3, True), Stamp(0, "n1", 4)
    plain = JsonCodec(TOPIC, "test", "shop", "sessions")
    keys = JsonKeys(TOPIC, "test", schemas=True)
    wrapped = JsonCodec(TOPIC, "test", "shop", "sessions", value_schemas=True, keys=keys)
    assert json.loads(wrapped.change(operation, stamp))["payload"] == json.loads(plain.change(operation, stamp))
    assert json.loads(wrapped.key(b"100%"))["payload"] == json.loads(plain.key(b"100%"))
    for codec, other in ((plain, wrapped), (wrapped, plain)):  # each reads the other's records
        assert codec.decode_value(other.change(operation, stamp)) == plain.decode_value(plain.change(operation, stamp))
        assert codec.decode_key(other.key(b"k")) == b"k"


def test_each_stamp_tells_its_own_place_and_time() -> None:
    codec, operation = JsonCodec(TOPIC, "test", "shop", "sessions"), Operation(1, 2, "put", b"k", b"v", None, 3, True)
    stamps: list[Stamp] = [Stamp(0, "n1", 4000), Stamp(9, "n1", 4000), Stamp(9, "n2", 5000), Stamp(0, "n1", 4000)]
    for stamp in [*stamps, stamps[0]]:
        for raw in (codec.change(operation, stamp), codec.row(Entry(b"k", b"v", None), (1, 2), "true", "x", stamp)):
            told = json.loads(raw)
            assert (told["source"]["segment"], told["source"]["node"], told["ts_us"]) == tuple(stamp)
            assert (told["ts_ms"], told["ts_ns"]) == (stamp.now_us // 1000, stamp.now_us * 1000)


# -- comparing by bytes, and passing on -----------------------------------------------------------------------------


@all_formats
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_after_is_cut_out_of_the_bytes(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = Case(data, key_format, value_format, data.draw(st.booleans()))
    entry = Entry(case.key, data.draw(case.values), data.draw(EXPIRIES))
    existed, image = data.draw(st.booleans()), data.draw(st.none() | case.values)
    key, value, expires_at = entry
    operation = Operation(*case.position, "put", key, value, expires_at, 3, existed, image)
    for raw in (
        case.codec.change(operation, case.stamp),
        case.codec.row(entry, case.position, "true", "x", case.stamp),
        case.codec.difference(Change(case.key, entry, entry, case.position, "change"), 3, None, case.stamp),
    ):
        after = case.codec.after_of(raw)
        assert after is not None
        assert after != case.codec.gone
        assert orjson.loads(after) == case.struct(*entry)
        assert case.codec.decode_after(after) == entry
    assert case.codec.after_of(case.codec.change(operation._replace(value=None), case.stamp)) == case.codec.gone


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b'{"before":null,"after":null,"source":{},"op":"u"}',  # a delete has another op
        b'{"before":null, "after": {}, "source": {}, "op": "c"}',
        b'{"source":{"a":1},"after":{}}',
        b'{"x":1,"source":{"after":{}}}',
    ],
)
def test_what_is_not_as_we_write_it_must_be_parsed(raw: bytes) -> None:
    assert CODECS["string"].after_of(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"null", b"7", b"[]", b"{}", b'{"key":"a","value":"b"}', b'{"value":"b","expires_at":null}'),
        *(b'{"key":"a","value":null,"expires_at":null}', b'{"key":"a","value":"b","expires_at":"5"}'),
    ],
)
def test_an_after_that_is_malformed_is_a_record_error(raw: bytes) -> None:
    with pytest.raises(RecordError, match="envelope"):
        CODECS["string"].decode_after(raw)


@all_formats
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_a_change_is_passed_on_with_its_cause(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = Case(data, key_format, value_format)
    value, before = data.draw(st.none() | case.values), data.draw(st.none() | case.values)
    raw = case.codec.change(Operation(*case.position, "put", case.key, value, 5, 3, True, before), case.stamp)
    blocks = data.draw(st.booleans())
    diff = JsonCodec(TOPIC, *case.names, key_format, value_format, blocks, True)
    op, told = diff.passed_on(raw, "change")
    assert op == ("d" if value is None else "u")
    content, captured = orjson.loads(told), orjson.loads(raw)
    payload = content["payload"] if blocks else content
    source = (captured["payload"] if case.schemas[1] else captured)["source"]
    assert payload["source"] == {**source, "cause": "change"}
    assert diff.decode_value(told).after == case.codec.decode_value(raw).after
    assert diff.decode_value(told).before == case.codec.decode_value(raw).before
    if blocks:
        written = diff.difference(Change(case.key, None, Entry(b"", b"", None), (1, 2), "reset"), 3, None, case.stamp)
        assert content["schema"] == orjson.loads(written)["schema"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"null", b"7", b"[]", b"{}", b'{"op":"c"}', b'{"op":"c","source":7}', b'{"source":{}}'],
)
def test_what_cannot_be_passed_on_is_a_record_error(raw: bytes) -> None:
    with pytest.raises(RecordError, match="envelope"):
        CODECS["string"].passed_on(raw, "change")


def test_a_payload_is_one_beside_its_schema() -> None:
    keys = JsonKeys(TOPIC, "test")
    assert keys.decode_key(b'{"schema":{},"payload":{"key":"a"},"key":"b"}') == b"a"
    assert keys.decode_key(b'{"schema":{},"key":"b"}') == b"b"
    assert keys.decode_key(b'{"payload":{"key":"a"},"key":"b"}') == b"b"


# -- what is not ours ---------------------------------------------------------------------------------------------

CODECS = {name: JsonCodec(TOPIC, "test", "shop", "sessions", name, name) for name in FORMATS}
UPDATE = Operation(1, 2, "put", b"key", b"value", 5, 3, True, b"old")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"key":null}',
        b'{"key":7}',
        b'{"key":["a"]}',
        b'{"schema":{},"payload":null}',
        b'{"schema":{},"payload":"x"}',
        b'{"key":"\\ud800"}',
        b'{"key":"\xff"}',
        b'{"key":"a"',
        b"{" * 100_000,
    ],
    ids=lambda raw: repr(raw[:30]),
)
@pytest.mark.parametrize("name", FORMATS)
def test_a_key_that_is_not_ours_is_a_record_error(name: str, raw: bytes) -> None:
    with pytest.raises(RecordError, match="record key"):
        CODECS[name].decode_key(raw)


@pytest.mark.parametrize("text", ["a", "YQ=", "Y Q==", "YQ==\n", "Y-==", "é"])
def test_what_is_not_base64_is_refused_and_not_mended(text: str) -> None:
    codec = CODECS["bytes"]
    with pytest.raises(RecordError, match="key format"):
        codec.decode_key(orjson.dumps({"key": text}))
    envelope = orjson.loads(codec.change(UPDATE, Stamp(0, "n1", 4)))
    for part in ("before", "after"):
        for field in ("key", "value"):
            damaged = {**envelope, part: {**envelope[part], field: text}}
            with pytest.raises(RecordError, match="envelope"):
                codec.decode_value(orjson.dumps(damaged))


@pytest.mark.parametrize(
    ("where", "others"),
    [
        ("op", [None, 7, "t", "m", "", "d", ["u"]]),
        ("source", [None, 7, "x", []]),
        ("before", [7, "x", [], {}]),
        ("after", [None, 7, "x", [], {}]),
        ("before.key", [None, 7, {}]),
        ("after.key", [None, 7, {}]),
        ("before.value", [7, {}]),
        ("after.value", [None, 7, {}]),
        ("before.expires_at", ["5", 1.5, True]),
        ("after.expires_at", ["5", 1.5, True]),
    ],
)
@pytest.mark.parametrize("name", FORMATS)
def test_a_field_that_is_missing_or_of_another_type_is_a_record_error(name: str, where: str, others: list[Any]) -> None:
    codec = CODECS[name]
    raw = codec.change(UPDATE, Stamp(0, "n1", 4))
    assert codec.decode_value(raw).after == Entry(b"key", b"value", 5)
    *path, last = where.split(".")
    for other in [*others, KeyError]:
        envelope = orjson.loads(raw)
        struct = envelope[path[0]] if path else envelope
        if other is KeyError:
            del struct[last]
        else:
            struct[last] = other
        with pytest.raises(RecordError, match="envelope"):
            codec.decode_value(orjson.dumps(envelope))


def test_a_delete_with_an_after_is_not_ours() -> None:
    codec = CODECS["string"]
    envelope = orjson.loads(codec.change(UPDATE._replace(value=None), Stamp(0, "n1", 4)))
    assert codec.decode_value(orjson.dumps(envelope)).op == "d"
    with pytest.raises(RecordError, match="op 'd'"):
        codec.decode_value(orjson.dumps({**envelope, "after": envelope["before"]}))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("schemas", [False, True])
def test_every_prefix_of_an_envelope_and_a_key_is_a_record_error(name: str, schemas: bool) -> None:
    codec = JsonCodec(
        TOPIC, "test", "shop", "sessions", name, name, schemas, keys=JsonKeys(TOPIC, "test", name, schemas)
    )
    value, key = codec.change(UPDATE, Stamp(0, "n1", 4)), codec.key(b"key")
    for size in range(len(value)):
        with pytest.raises(RecordError):
            codec.decode_value(value[:size])
    for size in range(len(key)):
        with pytest.raises(RecordError):
            codec.decode_key(key[:size])


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(FORMATS), st.data())
def test_any_damage_is_an_envelope_or_a_record_error(name: str, data: st.DataObject) -> None:
    codec = CODECS[name]
    raw = bytearray(codec.change(UPDATE, Stamp(0, "n1", 4)))
    at = data.draw(st.integers(0, len(raw)))
    raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=3))
    try:
        found = codec.decode_value(bytes(raw))
    except RecordError:
        return
    for entry in (found.before, found.after):
        if entry is not None:
            assert isinstance(entry.key, bytes)
            assert isinstance(entry.value, bytes)
            assert entry.expires_at is None or type(entry.expires_at) is int
    assert (found.op == "d") == (found.after is None)


@pytest.mark.parametrize(
    ("binary", "text"),
    [("bytes", "+/8A"), ("base64", "+/8A"), ("base64-url-safe", "-_8A"), ("hex", "fbff00")],
)
def test_bytes_are_written_in_the_encoding_that_was_chosen(binary: str, text: str) -> None:
    codec = JsonCodec(
        *(TOPIC, "test", "shop", "sessions", "bytes", "bytes", True),
        binary=binary,
        keys=JsonKeys(TOPIC, "test", "bytes", True, binary),
    )
    raw = b"\xfb\xff\0"
    key, value = codec.key(raw), codec.change(Operation(1, 2, "put", raw, raw, None, 3, True, raw), Stamp(7, "n1", 5))
    assert json.loads(key)["payload"] == {"key": text}
    assert json.loads(value)["payload"]["after"]["value"] == text
    kind = "bytes" if binary == "bytes" else "string"
    assert [field["type"] for field in json.loads(key)["schema"]["fields"]] == [kind]
    assert codec.decode_key(key) == raw
    assert codec.decode_value(value).after == Entry(raw, raw, None)
    for damaged in ("+", "f", "zz", "fb ff00", "ä", "-_8A!", "+/8A!"):
        with pytest.raises(RecordError):
            codec.decode_key(json.dumps({"key": damaged}).encode())
    plain = JsonCodec(TOPIC, "test", "shop", "sessions", binary=binary)  # text stays text
    assert json.loads(plain.key(b"a")) == {"key": "a"}
