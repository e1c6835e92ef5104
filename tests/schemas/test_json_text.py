"""Text that is to be JSON. Tried: no JSON, numbers, surrogates, names that stand twice, and how deep it is."""

from __future__ import annotations

import json

import pytest

from deelog_schemas.json_text import MOST_DEEP, json_problem


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "1",
        " [1, 2.5e-7] ",
        '"\\u00e4\\ud83d\\ude00"',
        "null",
        '{"a":1,"a":2}',
        "1e308",
        "123456789012345678901234567890",
        "[" * MOST_DEEP + "]" * MOST_DEEP,
        "[" + "[],{}," * MOST_DEEP + "0]",
        json.dumps("[{" * MOST_DEEP),
    ],
)
def test_json_that_every_reader_takes(text: str, as_bytes: bool) -> None:
    assert json_problem(text.encode() if as_bytes else text) == ""
    json.loads(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty document"),
        ("abc", "unexpected character"),
        ("{'a':1}", "unexpected character"),
        ("[1,]", "trailing comma"),
        ("NaN", "unexpected character"),
        ("-Infinity", "no digit after"),
        ("1e400", "number is infinity"),
        ("9" * 5000, "number is infinity"),
        ('"\\ud800"', "no low surrogate"),
        ("[" * (MOST_DEEP + 1) + "]" * (MOST_DEEP + 1), "more than 500 levels deep"),
        ('{"a":' * (MOST_DEEP + 1) + "1" + "}" * (MOST_DEEP + 1), "more than 500 levels deep"),
        ("[" * 100_000, "depth"),
    ],
)
def test_what_is_no_json_for_all(text: str, problem: str) -> None:
    assert problem in json_problem(text)
    assert problem in json_problem(text.encode())


def test_bytes_that_are_no_text() -> None:
    assert "valid UTF-8" in json_problem(b'"\xff"')
