"""Captured bytes as values for transforms, and back. Bad input: captured values that do not fit their format."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from typing import Any

import pytest

from deelog_connector.core.effects import OperationsItem
from deelog_connector.errors import TransformFailed
from deelog_connector.transforms import (
    Record,
    Row,
)
from deelog_connector.transforms.pipeline import (
    Pipeline,
    TransformedOperation,
)
from deelog_connector.transforms.values import Unencodable, Values
from deelog_schemas.operation import Operation
from tests.connector.transforms.building import MINE, of


class Seen:
    """The value that a transform gets, and the bytes that are written of its result."""

    def __init__(self, format_name: str) -> None:
        config = of({"type": f"{MINE}.Suffix"}, cache__value__format=format_name, cache__key__format=format_name)
        pipeline = Pipeline.of(config, time, Counter())
        assert pipeline is not None
        self.pipeline = pipeline

    def made(self, raw: bytes, change: Any) -> tuple[Any, bytes]:
        seen = []

        def apply(record: Record) -> Record | None:
            assert record.after is not None
            seen.append(record.after.value)
            return change(record)  # type: ignore[no-any-return]

        self.pipeline._steps[0].transform.apply = apply  # type: ignore[method-assign]
        operation = Operation(1, 1, "put", raw, raw, None, 17, False)
        (item,) = self.pipeline([OperationsItem(3, 1, [operation])])
        (told,) = item.parts  # type: ignore[union-attr]
        assert isinstance(told, TransformedOperation)
        assert told.operation.key == raw
        assert told.operation.value is not None
        return seen[0], told.operation.value


def test_what_is_not_changed_is_written_byte_for_byte() -> None:
    raw = b'{ "b": 1.50, "a": [12345678901234567890123], "\\u00e4": null }'
    value, written = Seen("json").made(raw, lambda record: record)
    assert value == {"b": 1.5, "a": [12345678901234567890123], "ä": None}
    assert written == raw
    same = {"b": 1.5, "a": [12345678901234567890123], "ä": None}
    assert Seen("json").made(raw, lambda record: record.with_value(same))[1] == raw
    assert Seen("string").made(raw, lambda record: record) == (raw.decode(), raw)
    assert Seen("bytes").made(b"\xff\0", lambda record: record) == (b"\xff\0", b"\xff\0")


def test_what_is_changed_in_place_is_written_as_it_is_then() -> None:
    def change(record: Record) -> Record:
        assert record.after is not None
        record.after.value["a"][0] = True
        return record

    _, written = Seen("json").made(b'{"a": [1], "n": 12345678901234567890123}', change)
    assert json.loads(written) == {"a": [True], "n": 12345678901234567890123}
    assert b"true" in written
    assert Seen("bytes").made(b"x", lambda record: record.with_value(bytearray(b"y")))[1] == b"y"


@pytest.mark.parametrize(
    "value",
    [math.nan, {1, 2}, object(), b"x", "\ud800", {"a": math.inf}],
    ids=["nan", "set", "object", "bytes", "surrogate", "infinity"],
)
def test_what_is_no_json_is_a_failure(value: Any) -> None:
    with pytest.raises(TransformFailed, match=r"the value is (no JSON|text that is no UTF-8)"):
        Seen("json").made(b"1", lambda record: record.with_value(value))


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000])
def test_a_captured_value_that_is_no_json_is_a_failure(raw: bytes) -> None:
    with pytest.raises(TransformFailed, match="a captured value is not JSON, though its format says so"):
        Seen("json").made(raw, lambda record: record)


@pytest.mark.parametrize(("format_name", "raw"), [("string", b"a"), ("json", b'{ "a": 1 }'), ("bytes", b"\xff")])
def test_a_value_that_is_the_same_is_written_as_it_was_captured(format_name: str, raw: bytes) -> None:
    read = Values(format_name).read(raw)
    row, other = read.row(7), Values(format_name).read(b"1").row()
    assert row is not None
    assert read.written(row) == raw  # nobody has asked for the value
    assert read.written(other) == b"1"
    assert (read.written(Row(row.value)), read.written(row), row.expires_at) == (raw, raw, 7)


def test_a_value_is_decoded_when_it_is_asked_for_and_once() -> None:
    broken, read = Values("json").read(b"{"), Values("json").read(b'{ "a": [1] }')
    assert broken.written(broken.row()) == b"{"
    row = read.row()
    assert row is not None
    assert row.value is row.value
    row.value["a"].append(2)
    assert read.written(row) == b'{"a":[1,2]}'


@pytest.mark.parametrize(
    ("format_name", "raw", "value", "written"),
    [
        ("string", b"a", "\u00e4", b"\xc3\xa4"),
        ("json", b"1", None, b"null"),
        ("json", b'{ "a": 1 }', {"a": 2, "b": ["\u00e4"]}, b'{"a":2,"b":["\xc3\xa4"]}'),
        ("bytes", b"a", b"\xff", b"\xff"),
        ("bytes", b"a", memoryview(b"b"), b"b"),
    ],
)
def test_a_value_that_was_changed_is_written_anew(format_name: str, raw: bytes, value: Any, written: bytes) -> None:
    assert Values(format_name).read(raw).written(Row(value)) == written


def test_nothing_is_read_and_written_as_nothing() -> None:
    for format_name in ("string", "json", "bytes"):
        read = Values(format_name).read(None)
        assert (read.row(5), read.written(Row("x"))) == (None, None)
    assert Values("string").read(b"a").written(None) is None


@pytest.mark.parametrize(
    ("format_name", "value", "words"),
    [
        ("string", 5, "the value is a int, and the format takes text"),
        ("string", None, "the value is a NoneType, and the format takes text"),
        ("string", "a\ud800", "the value is text that is no UTF-8: surrogates not allowed at 1"),
        ("bytes", "a", "the value is a str, and the format takes bytes"),
        ("json", {1, 2}, "the value is no JSON: Object of type set is not JSON serializable"),
    ],
)
def test_a_value_that_does_not_fit_its_format_says_why(format_name: str, value: Any, words: str) -> None:
    with pytest.raises(Unencodable, match=f"^{words}$"):
        Values(format_name).read(b"1").written(Row(value))


@pytest.mark.parametrize("raw", [b'{"card":"4111","card":""}', b'{"a":[{"card":"4111","card":""}],"card":""}'])
def test_a_value_that_names_a_field_twice_is_written_anew(raw: bytes) -> None:
    """The transform sees the last one; a reader might take the first."""
    value, written = Seen("json").made(raw, lambda record: record)
    assert json.loads(written) == value
    assert b"4111" not in written
