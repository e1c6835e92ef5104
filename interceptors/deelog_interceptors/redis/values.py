"""What an entry of a server is as a value: its type and its content, as JSON.

The same content always gives the same bytes, whatever order a server keeps it in. Where a part is not UTF-8, the type
ends in `.base64`, and every part is written so.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

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
