"""Captured bytes as Python values for transforms, and back.

What a transform did not change is written as it was captured, byte for byte. For JSON, which a transform may change in
place, that is told by the text that the value gives before and after; so a blank, the order of names, or a number of
many digits is lost only where a value was changed. By the standard library: `orjson` takes no integer beyond 64 bits
and writes NaN as null.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from deelog_connector.transforms.record import Row


class Unencodable(Exception):
    """A captured value that is not what its format says, or a transformed one that cannot be written."""


class Read(NamedTuple):
    """A captured value, and what a transform gets of it."""

    raw: bytes | None
    value: Any
    text: str | None
    """Of JSON: what the value gives."""
    write: Callable[[Any], bytes]

    def written(self, row: Row | None) -> bytes | None:
        """The bytes of what a transform left of it."""
        if self.raw is None or row is None:
            return None
        if self.text is None:
            return self.raw if row.value is self.value else self.write(row.value)
        text = _dumped(row.value)
        return self.raw if text == self.text else _encoded(text)


class Values:
    """By a format of `cache.key.format` or `cache.value.format`."""

    def __init__(self, format_name: str) -> None:
        self._json = format_name == "json"
        self._decode, self._write = _FORMATS[format_name]

    def read(self, raw: bytes | None) -> Read:
        """What a transform gets; of None, nothing."""
        if raw is None:
            return Read(None, None, None, self._write)
        value = self._decode(raw)
        return Read(raw, value, _dumped(value) if self._json else None, self._write)


def _loaded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
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
