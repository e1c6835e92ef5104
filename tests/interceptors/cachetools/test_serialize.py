"""Keys and values as they are captured: checked and frozen at the write, or refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import cachetools
import psutil
import pytest
from cachetools.keys import hashkey, typedkey

from deelog_interceptors.cachetools import NotCapturable
from deelog_interceptors.cachetools.serialize import PlainKeys, SerializedKeys, Values, encoded, keys_of, named
from tests.interceptors.cachetools.support import Attached


def test_an_empty_key_and_a_key_that_begins_with_nul_are_keys() -> None:
    attached = Attached(cachetools.LRUCache(9))
    attached.cache[""] = "empty"
    attached.cache["\0"] = "nul"
    assert [(o.key, o.value) for o in attached.drain()] == [(b"", b"empty"), (b"\0", b"nul")]
    del attached.cache[""]
    attached.check()


def test_text_is_captured_as_utf8_and_bytes_as_they_are() -> None:
    attached = Attached(cachetools.LRUCache(9))
    attached.cache["ä"] = "ö"
    attached.cache["b"] = "ö".encode()
    assert [(o.key.decode(), o.value) for o in attached.drain()] == [("ä", "ö".encode()), ("b", "ö".encode())]
    raw = Attached(cachetools.LRUCache(9), key_format="bytes", value_format="bytes")
    raw.cache[b"\xff"] = b"\xfe"
    assert [(o.key, o.value) for o in raw.drain()] == [(b"\xff", b"\xfe")]
    with pytest.raises(NotCapturable, match="takes bytes"):
        raw.cache["text"] = b"v"
    raw.check()


def test_a_value_is_what_the_serializer_gives_and_no_method_of_a_subclass() -> None:
    class Odd(str):
        __slots__ = ()
        encode = isascii = None  # type: ignore[assignment]

    class Pair(NamedTuple):
        left: int
        right: int

    attached = Attached(cachetools.LRUCache(9))
    attached.cache[Odd("k")] = Odd("v")
    assert [(type(each[1]), type(each[2])) for each in attached.changes.queue] == [(str, str)]
    raw = Attached(cachetools.LRUCache(9), key_format="bytes", key_serializer=lambda key: b"\xff%d" % key)
    raw.cache[1] = "v"
    assert [o.key for o in raw.drain()] == [b"\xff1"]
    json = Attached(cachetools.LRUCache(9), value_serializer="json")
    json.cache["k"] = Pair(1, 2)
    assert [o.value for o in json.drain()] == [b"[1,2]"]
    wrong = Attached(cachetools.LRUCache(9), value_serializer=lambda value: value)
    with pytest.raises(NotCapturable, match="must return str or bytes, and returned int"):
        wrong.cache["k"] = 1


def test_equal_keys_stay_one_key_and_colliding_keys_are_refused() -> None:
    attached = Attached(cachetools.LRUCache(9), key_serializer=lambda key: str(key))
    cache = attached.cache
    cache[1] = "int"
    cache[1.0] = "float"
    assert [(o.key, o.existed) for o in attached.drain()] == [(b"1", False), (b"1", True)]
    with pytest.raises(NotCapturable, match="serialize to the same bytes"):
        cache["1"] = "text"
    del cache[True]
    assert attached.told() == [("remove", "1")]
    cache["1"] = "text"
    cache.clear()
    cache[1] = "int"
    with pytest.raises(NotCapturable, match="serialize to the same bytes"):
        cache["1"] = "text"
    attached.check()
    with pytest.raises(NotCapturable, match="reserved"):
        cache["\0deelog/x"] = "v"


class Text(str):
    """Text whose own methods are not called."""

    __slots__ = ()


class Bytes(bytes):
    """Bytes whose own methods are not called."""


@pytest.mark.parametrize(
    ("format_name", "key", "raw"),
    [
        ("string", "a", "a"),
        ("json", '"ä"', '"ä"'.encode()),
        ("string", Text("a"), "a"),
        ("bytes", b"\xff", b"\xff"),
        ("bytes", Bytes(b"a"), b"a"),
    ],
)
def test_a_plain_key_is_kept_as_exact_ascii_text_or_bytes(format_name: str, key: Any, raw: Any) -> None:
    keys = keys_of(format_name, None)
    assert isinstance(keys, PlainKeys)
    prepared = keys.prepare(key)
    assert (prepared, type(prepared)) == (raw, type(raw))
    assert keys.raw(key) == raw
    keys.stored(key, raw)
    keys.forget(key)
    keys.cleared()


@pytest.mark.parametrize(
    ("format_name", "key", "words"),
    [
        ("string", b"a", "a key of type bytes cannot be captured: cache.key.format takes str"),
        ("bytes", "a", "a key of type str cannot be captured: cache.key.format takes bytes"),
        ("string", "\udc80", r"key '\\udc80' is not valid Unicode: surrogates not allowed"),
        ("string", "\0deelog/x", "are reserved for deelog's control records"),
        ("bytes", b"\0deelog/x", "are reserved for deelog's control records"),
    ],
)
def test_a_plain_key_of_another_kind_is_refused(format_name: str, key: Any, words: str) -> None:
    with pytest.raises(NotCapturable, match=words):
        keys_of(format_name, None).prepare(key)


def test_of_a_key_that_was_never_captured_nothing_is_gone() -> None:
    assert PlainKeys("string").raw(b"a") is None
    assert PlainKeys("string").raw("\udc80") is None
    assert PlainKeys("bytes").raw("a") is None
    assert SerializedKeys(str).raw("a") is None


def test_a_serialized_key_keeps_the_bytes_of_its_first_write_until_it_is_gone() -> None:
    keys = keys_of("bytes", repr)
    assert keys.prepare(1) == b"1"
    keys.stored(1, b"1")
    keys.stored(1.0, b"ignored: an equal key is there")
    assert keys.prepare(1.0) == b"1"
    assert keys.raw(True) == b"1"
    keys.forget(True)
    assert keys.raw(1) is None
    keys.forget(1)
    assert keys.prepare(1.0) == b"1.0"
    keys.stored("x", "text")
    assert keys.prepare("x") == b"text"
    keys.cleared()
    assert keys.prepare("x") == b"'x'"


def test_different_keys_of_the_same_bytes_are_named() -> None:
    keys = SerializedKeys(str)
    keys.stored(1, b"1")
    with pytest.raises(NotCapturable, match="keys 1 and '1' serialize to the same bytes: give a key_serializer"):
        keys.prepare("1")
    keys.forget(1)
    assert keys.prepare("1") == b"1"


def test_a_text_format_takes_only_text_from_a_serializer() -> None:
    keys = keys_of("string", lambda key: b"\xff" if key else "ä")
    assert keys.prepare(0) == "ä".encode()
    with pytest.raises(NotCapturable, match=r"key b'\\xff' is not UTF-8 \(invalid start byte at byte 0\)"):
        keys.prepare(1)
    assert keys_of("bytes", lambda key: b"\xff").prepare(1) == b"\xff"


@pytest.mark.parametrize(
    ("format_name", "serializer", "value", "raw"),
    [
        ("string", None, "a", "a"),
        ("string", None, Text("ä"), "ä".encode()),
        ("string", None, "ä".encode(), "ä".encode()),
        ("bytes", None, b"\xff", b"\xff"),
        ("bytes", None, Bytes(b"\xff"), b"\xff"),
        ("bytes", None, "a", "a"),
        ("string", str, 1, b"1"),
        ("bytes", lambda value: b"\xff%d" % value, 1, b"\xff1"),
        ("string", lambda value: Bytes(b"a"), 1, b"a"),
    ],
)
def test_a_value_is_text_or_bytes_or_what_the_serializer_makes_of_it(
    format_name: str, serializer: Any, value: Any, raw: Any
) -> None:
    values = Values(format_name, serializer)
    assert (values.plain, values.text) == (serializer is None, format_name != "bytes")
    prepared = values.prepare(value)
    assert (prepared, type(prepared)) == (raw, type(raw))


@pytest.mark.parametrize(
    ("serializer", "value", "words"),
    [
        (None, 1, "a value of type int cannot be captured: it is neither str nor bytes"),
        (
            None,
            b"a\xff",
            r"value b'a\\xff' is not UTF-8 \(invalid start byte at byte 1\): set cache.value.fo",
        ),
        (lambda value: b"\xff", 1, "is not UTF-8"),
        (lambda value: "\udc80", 1, "is not valid Unicode"),
        (lambda value: 7, 1, "the value serializer must return str or bytes, and returned int"),
        (lambda value: value / 0, 1, "value 1 cannot be serialized: division by zero"),
        (lambda value: value / 0, "x" * 100, rf"value '{'x' * 76}\.\.\. cannot be serialized"),
    ],
)
def test_a_value_that_cannot_be_captured_says_why(serializer: Any, value: Any, words: str) -> None:
    with pytest.raises(NotCapturable, match=words):
        Values("string", serializer).prepare(value)


@pytest.mark.parametrize("text", ["abc", "{'a':1}", "NaN", "1e400", "[1,]", ""])
@pytest.mark.parametrize("made", [False, True])
def test_what_is_to_be_json_is_looked_at(text: str, made: bool) -> None:
    """`made`: by a function, which may return anything. Transforms could not read it, when it is written already."""
    values, keys = Values("json", str if made else None), keys_of("json", str if made else None)
    with pytest.raises(NotCapturable, match=r"value .* is not JSON \(.*\): set cache.value.format=string to capture"):
        values.prepare(text)
    with pytest.raises(NotCapturable, match=r"key .* is not JSON \(.*\): set cache.key.format=string to capture"):
        keys.prepare(text)
    good = '{"a":[1]}'
    assert (encoded(values.prepare(good)), encoded(keys.prepare(good))) == (good.encode(), good.encode())
    assert not values.plain


def test_what_is_no_json_in_another_format_is_text() -> None:
    assert (Values("string", None).prepare("abc"), keys_of("string", None).prepare("abc")) == ("abc", "abc")
    assert Values("json", named("json")).prepare({"a": float("nan")}) == b'{"a":null}'


def test_an_error_of_ones_own_serializer_is_left_as_it_is() -> None:
    own = NotCapturable("mine")

    def refuse(value: Any) -> str:
        raise own

    with pytest.raises(NotCapturable) as raised:
        Values("string", refuse).prepare(1)
    assert raised.value is own


def test_a_serializer_is_a_function_or_has_a_name() -> None:
    assert named(str) is str
    assert named("json")({"a": (1, 2)}) == b'{"a":[1,2]}'
    with pytest.raises(NotCapturable, match="cannot be serialized: Type is not JSON serializable: set"):
        Values("string", named("json")).prepare({1})
    with pytest.raises(ValueError, match="serializer 'xml' is unknown: give \"json\" or a function"):
        named("xml")


def test_raw_text_is_encoded_and_raw_bytes_are_as_they_are() -> None:
    assert (encoded("a"), encoded(b"\xff")) == (b"a", b"\xff")


def test_a_serialized_value_takes_little_more_than_its_bytes() -> None:
    """orjson's own result keeps the buffer of 4 kB and more that it grew in."""
    values = Values("json", named("json"))
    before = psutil.Process().memory_info().rss
    kept = [values.prepare({"n": number, "text": "x" * 80}) for number in range(20_000)]
    taken = psutil.Process().memory_info().rss - before
    assert taken < 20_000 * 600, f"{taken / len(kept):.0f} bytes for each of {len(kept[0])}"


def test_the_keys_of_cached_functions_are_json() -> None:
    keys = keys_of("json", "json")

    class Mine:
        """An argument whose class is not of a library."""

    given = hashkey(7, "a"), hashkey(7, lang="en", all=True), typedkey(7, lang="en")
    found = [keys.prepare(key) for key in given]
    if ("lang", "en") in given[1]:
        assert found == [
            b'[7,"a"]',
            b'[7,{"keywords":true},["all",true],["lang","en"]]',
            b'[7,{"keywords":true},["lang","en"],{"type":"builtins.str"},{"type":"builtins.int"}]',
        ]
    else:  # before cachetools 7.1
        assert found == [
            b'[7,"a"]',
            b'[7,{"keywords":true},"all",true,"lang","en"]',
            b'[7,{"keywords":true},"lang","en",{"type":"builtins.int"},{"type":"builtins.str"}]',
        ]
    assert keys.prepare((1, Mine)) == f'[1,{{"type":"{__name__}.{Mine.__qualname__}"}}]'.encode()
    with pytest.raises(NotCapturable, match="cannot be serialized"):
        keys.prepare((1, Mine()))
    with pytest.raises(NotCapturable, match="cannot be serialized"):
        Values("json", named("json")).prepare(Mine)
