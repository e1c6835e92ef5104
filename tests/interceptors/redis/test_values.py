"""Entries as values: each type, bytes that are no text, the same bytes whatever the order, what is too large."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deelog_interceptors.redis import values as module
from deelog_interceptors.redis.values import UNAVAILABLE, Values, encode, encode_string
from tests.interceptors.redis.test_address import config

NOT_TEXT = b"\xff\x00"


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        (b"string", b'a"b\xc3\xa4', {"type": "string", "value": 'a"bä'}),
        (b"string", NOT_TEXT, {"type": "string.base64", "value": "/wA="}),
        (b"string", b"", {"type": "string", "value": ""}),
        (b"hash", [b"f", b"1", b"e", b""], {"type": "hash", "value": {"e": "", "f": "1"}}),
        (b"hash", [b"f", NOT_TEXT], {"type": "hash.base64", "value": {"Zg==": "/wA="}}),
        (b"list", [b"b", b"a", b"b"], {"type": "list", "value": ["b", "a", "b"]}),
        (b"set", [b"b", b"a"], {"type": "set", "value": ["a", "b"]}),
        (b"zset", [b"m", b"1.5", b"n", b"inf"], {"type": "zset", "value": [["m", "1.5"], ["n", "inf"]]}),
        (b"zset", [NOT_TEXT, b"1"], {"type": "zset.base64", "value": [["/wA=", "1"]]}),
        (b"stream", [[b"1-1", [b"f", b"v"]]], {"type": "stream", "value": [["1-1", ["f", "v"]]]}),
        (b"stream", [], {"type": "stream", "value": []}),
    ],
)
def test_each_type(kind: bytes, content: Any, expected: dict[str, Any]) -> None:
    value = encode(kind, content)
    assert value is not None
    assert json.loads(value) == expected


@pytest.mark.parametrize(
    ("kind", "content"), [(b"string", None), (b"hash", []), (b"list", []), (b"set", []), (b"zset", [])]
)
def test_what_is_no_entry(kind: bytes, content: Any) -> None:
    assert encode(kind, content) is None


def test_the_order_of_a_server_does_not_show() -> None:
    assert encode(b"hash", [b"a", b"1", b"b", b"2"]) == encode(b"hash", [b"b", b"2", b"a", b"1"])
    assert encode(b"set", [b"a", b"b"]) == encode(b"set", [b"b", b"a"])
    assert encode(b"list", [b"a", b"b"]) != encode(b"list", [b"b", b"a"])


def test_an_unknown_type() -> None:
    with pytest.raises(ValueError, match="vectorset"):
        encode(b"vectorset", [b"a"])


def test_what_is_captured() -> None:
    text, raw = Values(config(max_entry_bytes="300")), Values(config(cache_key_format="bytes", max_entry_bytes="300"))
    assert text.most == 300
    for key in (b"", b"k", "ä".encode()):
        assert text.accepts(key)
        assert raw.accepts(key)
    assert not text.accepts(NOT_TEXT)
    assert raw.accepts(NOT_TEXT)
    for values in (text, raw):
        assert not values.accepts(b"\0deelog/x")
        assert not values.accepts(b"k" * 300)


def test_what_is_too_large_is_named() -> None:
    values = Values(config(max_entry_bytes="200"))
    assert values.string(b"k", b"v" * 100) == encode_string(b"v" * 100)
    assert values.unavailable == 0
    assert json.loads(values.string(b"k", b"v" * 200)) == {"type": "string", "value": UNAVAILABLE}
    large = values.entry(b"k", b"list", [b"v" * 200])
    assert large is not None
    assert json.loads(large) == {"type": "list", "value": UNAVAILABLE}
    assert json.loads(values.too_large(b"hash")) == {"type": "hash", "value": UNAVAILABLE}
    assert values.unavailable == 3
    assert values.entry(b"k", b"list", []) is None
    assert values.entry(b"k", b"list", [b"v"]) == b'{"type":"list","value":["v"]}'
    assert values.entry(b"k", b"stream", [(b"1-1", [b"f", b"v" * 100])]) is not None
    assert values.unavailable == 3


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (b"zset", [b"m" * 150, b"1", b"n" * 150, b"2"]),
        (b"hash", [b"f", b"v" * 300]),
        (b"stream", [(b"1-1", [b"f", b"v" * 300])]),
    ],
)
def test_what_is_too_large_is_not_encoded(kind: bytes, content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of hundreds of thousands of parts would take long."""
    values = Values(config(max_entry_bytes="250"))
    monkeypatch.setattr(module, "encode", None)
    large = values.entry(b"k", kind, content)
    assert large is not None
    assert json.loads(large)["value"] == UNAVAILABLE
