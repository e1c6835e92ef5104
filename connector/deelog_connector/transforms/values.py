"""Captured bytes as Python values for transforms, and back.

A value that a transform did not change is written byte for byte as it was captured. For JSON, which a transform may
change in place, the serialized text before and after is compared; so a blank, the order of names, or a number with many
digits is lost only in changed values, and in those that name a field twice: a reader may take the other one. Uses the
standard library: `orjson` takes no integer beyond 64 bits and writes NaN as null.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from deelog_connector.transforms.record import Row

_UNSEEN: Final = object()


class Unencodable(Exception):
    """A captured value that is not of its format, or a transformed one that cannot be written."""


class _Format(NamedTuple):
    decode: Callable[[bytes], tuple[Any, str | None]]
    """The value, and of JSON its text: see `Read`."""
    encode: Callable[[Any], bytes]


class Read:
    """A captured value, which is decoded once a transform asks for it."""

    __slots__ = ("_format", "_raw", "_text", "_value")

    def __init__(self, raw: bytes | None, form: _Format) -> None:
        self._raw, self._format = raw, form
        self._value: Any = _UNSEEN
        """As the transforms have got it."""
        self._text: str | None = None
        """For JSON, the serialized value; empty where it is written anew in any case."""

    def row(self, expires_at: int | None = None) -> Row | None:
        """The transforms' view of it; None where there is no value."""
        return None if self._raw is None else Row.loaded_by(self._load, expires_at)

    def _load(self) -> Any:
        assert self._raw is not None
        self._value, self._text = self._format.decode(self._raw)
        return self._value

    def written(self, row: Row | None) -> bytes | None:
        """The bytes to write after the transforms."""
        if self._raw is None or row is None:
            return None
        if row.waits_for(self._load):
            return self._raw
        if self._text is None:
            return self._raw if row.value is self._value else self._format.encode(row.value)
        text = _dumped(row.value)
        return self._raw if text == self._text else _encoded(text)


class Values:
    """Converts keys or values of one format."""

    def __init__(self, format_name: str) -> None:
        self._format = _FORMATS[format_name]

    def read(self, raw: bytes | None) -> Read:
        """A captured value, or none."""
        return Read(raw, self._format)

    def decoded(self, raw: bytes) -> Any:
        """A captured key or value as transforms see it."""
        return self._format.decode(raw)[0]


def _loaded(raw: bytes) -> tuple[Any, str]:
    """The value, of equal names the last one, and its text, empty where there are any."""
    repeats = False

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeats
        value = dict(pairs)
        repeats = repeats or len(value) < len(pairs)
        return value

    try:
        value = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Unencodable(f"a captured value is not JSON, though its format says so: {error}") from error
    return value, "" if repeats else _dumped(value)


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Unencodable(f"the value is no JSON: {error}") from error


def _encoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Unencodable(f"the value is a {type(value).__name__}, and the format takes text")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise Unencodable(f"the value is text that is no UTF-8: {error.reason} at {error.start}") from error


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Unencodable(f"the value is a {type(value).__name__}, and the format takes bytes")
    return bytes(value)


_FORMATS: Final = {
    "string": _Format(lambda raw: (raw.decode(), None), _encoded),
    "json": _Format(_loaded, lambda value: _encoded(_dumped(value))),
    "bytes": _Format(lambda raw: (raw, None), _bytes),
}
