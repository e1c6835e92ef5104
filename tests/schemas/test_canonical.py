"""Canonical JSON, and what is none."""

from __future__ import annotations

import pytest

from deelog_schemas.canonical import dumps, loads
from deelog_schemas.errors import RecordError


def test_the_same_object_gives_the_same_bytes() -> None:
    assert dumps({"b": 1, "a": ["ä", None]}) == '{"a":["ä",null],"b":1}'.encode()
    for bad in (float("nan"), "\ud800"):
        with pytest.raises(ValueError, match=r"JSON|surrogates"):
            dumps(bad)


def test_an_object_or_an_error_that_names_the_record() -> None:
    assert loads(b'{"a": 1}', "it") == {"a": 1}
    for bad, problem in ((b"[1]", "not a JSON object but list"), (b'{"a":NaN}', "not JSON: "), (b"\xff", "not JSON: ")):
        with pytest.raises(RecordError, match=f"^it is {problem}"):
            loads(bad, "it")
