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


class Unencodable(Exception):
    """A captured value that is not of its format, or a transformed one that cannot be written."""


class Read(NamedTuple):
    """A captured value, and the transform's view of it."""

    raw: bytes | None
    value: Any
    text: str | None
    """For JSON, the serialized value; empty where it is written anew in any case."""
    write: Callable[[Any], bytes]

    def written(self, row: Row | None) -> bytes | None:
        """The bytes to write after the transforms."""
        if self.raw is None or row is None:
            return None
        if self.text is None:
            return self.raw if row.value is self.value else self.write(row.value)
        text = _dumped(row.value)
        return self.raw if text == self.text else _encoded(text)


class Values:
    """Converts keys or values of one format."""

    def __init__(self, format_name: str) -> None:
        self._json = format_name == "json"
        self._decode, self._write = _FORMATS[format_name]

    def read(self, raw: bytes | None) -> Read:
        """The transform's view of captured bytes; None for None."""
        if raw is None:
            return Read(None, None, None, self._write)
        if not self._json:
            return Read(raw, self._decode(raw), None, self._write)
        value, repeats = _loaded(raw)
        return Read(raw, value, "" if repeats else _dumped(value), self._write)


def _loaded(raw: bytes) -> tuple[Any, bool]:
    """The value, of equal names the last one, and whether there are any."""
    repeats = False

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeats
        value = dict(pairs)
        repeats = repeats or len(value) < len(pairs)
        return value

    try:
        return json.loads(raw, object_pairs_hook=unique), repeats
    except (ValueError, RecursionError) as error:
        raise Unencodable(f"a captured value is not JSON, though its format says so: {error}") from error


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


_FORMATS: Final[dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]]] = {
    "string": (bytes.decode, _encoded),
    "json": (_loaded, lambda value: _encoded(_dumped(value))),
    "bytes": (bytes, _bytes),
}
