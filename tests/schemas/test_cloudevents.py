"""Cloud events: attributes as in the specification and in Debezium's converter, data as in the envelope.

Bad input: JSON that is not an event, an event without data or attributes, malformed numbers, truncated events, an
invalid envelope.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas import __version__
from deelog_schemas.cloudevents import CloudEventsCodec
from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.operation import Entry, Operation, Reason
from tests.schemas.test_envelope import EXPIRIES, FORMATS, REASONS, TOPIC, Case, all_formats

MOMENTS = st.integers(0, 4_102_444_800_000_000)
STAMP = Stamp(7, "n1", 1_700_000_000_123_456)
UPDATE = Operation(2, 9, "put", b"k", b"v", 5, 1_699_999_999_007_999, True, b"old")
NUMBERS = ("ts_ms", "ts_us", "ts_ns", "epoch", "seq")


def codec_of(value_schemas: bool = False, cause: bool = False, name: str = "string") -> CloudEventsCodec:
    return CloudEventsCodec(TOPIC, "grid", "shop", "sessions", name, name, value_schemas, cause)


def test_a_change_in_bytes() -> None:
    assert codec_of().change(UPDATE, STAMP).decode() == (
        '{"id":"name:shop;cache:sessions;segment:7;epoch:2;seq:9","source":"/debezium/grid/shop","specversion":"1.0",'
        '"type":"io.debezium.connector.grid.DataChangeEvent","time":"2023-11-14T22:13:19.007Z",'
        '"datacontenttype":"application/json","iodebeziumop":"u",'
        f'"iodebeziumversion":"{__version__}","iodebeziumconnector":"grid","iodebeziumname":"shop",'
        '"iodebeziumtsms":"1699999999007","iodebeziumsnapshot":"false","iodebeziumdb":"",'
        '"iodebeziumsequence":"[\\"2\\",\\"9\\"]","iodebeziumtsus":"1699999999007999",'
        '"iodebeziumtsns":"1699999999007999000","iodebeziumcache":"sessions","iodebeziumsegment":7,'
        '"iodebeziumepoch":"2","iodebeziumseq":"9","iodebeziumnode":"n1","iodebeziumreason":null,'
        '"data":{"before":{"key":"k","value":"old","expires_at":null},"after":{"key":"k","value":"v","expires_at":5}}}'
    )


class EventCase(Case):
    """The same generated input, for the cloud events codec."""

    def __init__(self, data: st.DataObject, key_format: str, value_format: str, cause: bool = False) -> None:
        super().__init__(data, key_format, value_format, cause)
        connector, name, cache = self.names
        self.stamp = self.stamp._replace(now_us=data.draw(MOMENTS))
        arguments = TOPIC, connector, name, cache, key_format, value_format, self.schemas[1], cause
        self.events = CloudEventsCodec(*arguments)
        self.codec = JsonCodec(*arguments)

    def same(self, raw: bytes, envelope: bytes) -> dict[str, Any]:
        """The decoded event. Fails unless it has the content of the envelope."""
        event: dict[str, Any] = json.loads(raw)
        found = self.events.decode_value(raw)
        assert found == self.codec.decode_value(envelope)
        data = event["data"]["payload"] if self.schemas[1] else event["data"]
        told = json.loads(envelope)
        told = told["payload"] if self.schemas[1] else told
        assert data == {"before": told["before"], "after": told["after"]}
        for field, value in told["source"].items():
            expected = str(value) if field in NUMBERS else value
            assert event["iodebezium" + field.replace("_", "")] == expected
        assert all(re.fullmatch("[a-z0-9]+", name) for name in event), "CloudEvents allows no other names"
        assert raw == orjson.dumps(event), "nothing twice, nothing escaped otherwise"
        after = self.events.after_of(raw)
        assert after is not None
        assert (after == self.events.gone) == (found.after is None)
        assert found.after is None or self.events.decode_after(after) == found.after
        return event


@all_formats
@settings(max_examples=15)
@given(data=st.data())
def test_a_change_says_what_the_envelope_does(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = EventCase(data, key_format, value_format, data.draw(st.booleans()))
    value, before = data.draw(st.none() | case.values), data.draw(st.none() | case.values)
    existed, expires_at, ts_us = data.draw(st.booleans()), data.draw(EXPIRIES), data.draw(MOMENTS)
    reason = data.draw(st.sampled_from(REASONS))
    operation = Operation(*case.position, reason, case.key, value, expires_at, ts_us, existed, before)
    case.same(case.events.change(operation, case.stamp), case.codec.change(operation, case.stamp))
    assert case.events.key(case.key) == case.codec.key(case.key)


@all_formats
@settings(max_examples=15)
@given(data=st.data())
def test_rows_and_differences_say_so_too(key_format: str, value_format: str, data: st.DataObject) -> None:
    case = EventCase(data, key_format, value_format, cause=True)
    entries = st.builds(Entry, st.just(case.key), case.values, EXPIRIES)
    entry, reason = data.draw(entries), data.draw(st.sampled_from(REASONS))
    row = (entry, case.position, "first", reason, case.stamp)
    case.same(case.events.row(*row), case.codec.row(*row))
    before, after = data.draw(st.none() | entries), data.draw(st.none() | entries)
    why, ts_us = data.draw(st.none() | st.sampled_from(REASONS)), data.draw(MOMENTS)
    difference = (Change(case.key, before, after, case.position, "reset"), ts_us, why, case.stamp)
    case.same(case.events.difference(*difference), case.codec.difference(*difference))


@pytest.mark.parametrize("schemas", [False, True])
def test_rows_of_a_reset_have_ids_of_their_own(schemas: bool) -> None:
    codec = codec_of(schemas)
    rows = [codec.row(Entry(key, b"v", None), (2, 9), "true", "x", STAMP) for key in (b"a", b'b"', b"c;key:a")]
    ids = [json.loads(row)["id"] for row in rows]
    assert ids[1] == 'name:shop;cache:sessions;segment:7;epoch:2;seq:9;key:b"'
    assert len(set(ids)) == 3


def test_what_a_reset_takes_back_has_ids_of_its_own() -> None:
    """Its deletes share the reset's position and have its reason; captured ones have a position each."""
    codec = codec_of()
    taken = [Operation(2, 9, "overflow", key, None, None, 17, True) for key in (b"a", b"b")]
    ids = [json.loads(codec.change(delete, STAMP))["id"] for delete in taken]
    assert ids == [f"name:shop;cache:sessions;segment:7;epoch:2;seq:9;key:{key}" for key in "ab"]
    for reason in Reason:
        captured = Operation(2, 9, reason, b"a", None, None, 17, True)
        assert json.loads(codec.change(captured, STAMP))["id"] == "name:shop;cache:sessions;segment:7;epoch:2;seq:9"


def test_with_the_schema_in_the_data() -> None:
    event = json.loads(codec_of(value_schemas=True).change(UPDATE, STAMP))
    assert list(event["data"]) == ["schema", "payload"]
    schema = event["data"]["schema"]
    assert (schema["name"], schema["type"]) == ("io.debezium.connector.grid.Data", "struct")
    block = json.loads(JsonCodec(TOPIC, "grid", "shop", "c", value_schemas=True).change(UPDATE, STAMP))["schema"]
    assert schema["fields"] == [f for f in block["fields"] if f["field"] in ("before", "after")]
    assert "schema" not in event, "the event itself must stay one"


@pytest.mark.parametrize("schemas", [False, True])
def test_passed_on_with_its_cause(schemas: bool) -> None:
    raw = codec_of(schemas).change(UPDATE, STAMP)
    diff = codec_of(schemas, cause=True)
    op, told = diff.passed_on(raw, "change")
    event = json.loads(told)
    assert op == "u"
    assert event.pop("iodebeziumcause") == "change"
    assert event == json.loads(raw)
    assert list(event)[-1] == "data"
    assert diff.decode_value(told).source["cause"] == "change"
    assert diff.after_of(told) == diff.after_of(raw)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("schemas", [False, True])
def test_what_is_no_event_of_ours(name: str, schemas: bool) -> None:
    codec = codec_of(schemas, cause=True, name=name)
    raw = codec.change(UPDATE, STAMP)
    whole = json.loads(raw)
    wrong = [raw[:size] for size in range(0, len(raw), 7)]
    wrong += [orjson.dumps({k: v for k, v in whole.items() if k != left}) for left in ("data", "iodebeziumop")]
    odd: list[Any] = [None, 7, "text", [], {}, {"before": None}]
    wrong += [orjson.dumps({**whole, "iodebeziumseq": value}) for value in odd if value != 7]
    wrong += [orjson.dumps({**whole, "data": value}) for value in odd]
    wrong += [b"null", b"[]", b"7", JsonCodec(TOPIC, "grid", "shop", "c").change(UPDATE, STAMP)]
    for one in wrong:
        with pytest.raises(RecordError):
            codec.decode_value(one)
        with pytest.raises(RecordError):
            codec.plain_value(one)
        with pytest.raises(RecordError):
            codec.passed_on(one, "change")
