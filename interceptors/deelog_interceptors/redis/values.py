"""What an entry of a server is as a value: its type and its content, as JSON.

The same content always gives the same bytes, whatever order a server keeps it in. Where a part is not UTF-8, the type
ends in `.base64`, and every part is written so.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import orjson

from deelog_schemas.config import Config
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.keys import RESERVED_PREFIX

Content = Any
"""What the command that reads a type answers."""

READS: Final[dict[bytes, Callable[[bytes], Sequence[bytes]]]] = {
    b"string": lambda key: (b"GET", key),
    b"hash": lambda key: (b"HGETALL", key),
    b"list": lambda key: (b"LRANGE", key, b"0", b"-1"),
    b"set": lambda key: (b"SMEMBERS", key),
    b"zset": lambda key: (b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"),
    b"stream": lambda key: (b"XRANGE", key, b"-", b"+"),
}
"""By type the command that reads an entry."""


UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's word for a value that is not told: an entry that is larger than `max.entry.bytes`."""


class Values:
    """What entries are captured, and as what, by one configuration."""

    def __init__(self, config: Config) -> None:
        self._limit = EntryLimit.of(config)
        self._text = config["cache.key.format"] != "bytes"
        self._sure = self._limit.sure - len(_UNAVAILABLE_STRING)
        """Keys of so many bytes always fit, beside a value that is not told."""
        self.unavailable = 0
        """Entries that were too large to be told."""

    @property
    def most(self) -> int:
        """`max.entry.bytes`."""
        return self._limit.most

    def accepts(self, key: bytes) -> bool:
        """Whether entries of that key can be captured: it is not reserved, and can be written."""
        if key.startswith(RESERVED_PREFIX):
            return False
        try:
            if self._text and not key.isascii():
                key.decode()
        except UnicodeDecodeError:
            return False
        return len(key) <= self._sure or not self._limit.problem(key, _UNAVAILABLE_STRING)

    def string(self, key: bytes, value: bytes) -> bytes:
        """The value of a string."""
        return self._limited(key, b"string", encode_string(value))

    def entry(self, key: bytes, kind: bytes, content: Content) -> bytes | None:
        """The value of an entry of that type; None where the content is that of no entry."""
        if content and kind != b"string" and _least(kind, content) > self.most:  # to encode it would take long
            return self.too_large(kind)
        value = encode(kind, content)
        return None if value is None else self._limited(key, kind, value)

    def too_large(self, kind: bytes) -> bytes:
        """The value of an entry that is not read for its size."""
        self.unavailable += 1
        return _unavailable(kind.decode())

    def _limited(self, key: bytes, kind: bytes, value: bytes) -> bytes:
        if len(key) + len(value) <= self._limit.sure or not self._limit.problem(key, value):
            return value
        return self.too_large(kind)


def _least(kind: bytes, content: Content) -> int:
    """The bytes that the value has at least."""
    return sum(map(len, chain.from_iterable(fields for _, fields in content) if kind == b"stream" else content))


def _unavailable(kind: str) -> bytes:
    return _dumped(kind, UNAVAILABLE)


def encode_string(value: bytes) -> bytes:
    """The value of a string."""
    try:
        return b'{"type":"string","value":%b}' % orjson.dumps(value.decode())
    except UnicodeDecodeError:
        return b'{"type":"string.base64","value":"%b"}' % base64.b64encode(value)


def encode(kind: bytes, content: Content) -> bytes | None:
    """The value of an entry of that type; None where the content is that of no entry."""
    if content is None or (content == [] and kind != b"stream"):
        return None
    if kind == b"string":
        return encode_string(content)
    try:
        return _dumped(kind.decode(), _shape(kind, content, bytes.decode))
    except UnicodeDecodeError:
        return _dumped(f"{kind.decode()}.base64", _shape(kind, content, lambda part: base64.b64encode(part).decode()))


def _dumped(name: str, value: Any) -> bytes:
    return orjson.dumps({"type": name, "value": value}, option=orjson.OPT_SORT_KEYS)


_UNAVAILABLE_STRING: Final = _unavailable("string")


def _shape(kind: bytes, content: Content, text: Callable[[bytes], str]) -> Any:
    match kind:
        case b"hash":
            return {text(name): text(value) for name, value in zip(content[::2], content[1::2], strict=True)}
        case b"list":
            return [text(each) for each in content]
        case b"set":
            return sorted(text(each) for each in content)
        case b"zset":
            pairs = zip(content[::2], content[1::2], strict=True)
            return [[text(member), score.decode()] for member, score in pairs]
        case b"stream":
            return [[number.decode(), [text(each) for each in fields]] for number, fields in content]
    raise ValueError(f"no type {kind!r}")
