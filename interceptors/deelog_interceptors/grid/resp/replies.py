"""Replies of the Redis protocol, RESP2 and RESP3, as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OK: Final = b"+OK\r\n"
NULL2: Final = b"$-1\r\n"
NULL3: Final = b"_\r\n"


def simple(text: str) -> bytes:
    """A simple string."""
    return b"+%s\r\n" % text.encode()


def error(text: str) -> bytes:
    """An error; its first word is the code."""
    return b"-%s\r\n" % text.replace("\r", " ").replace("\n", " ").encode()


def integer(number: int) -> bytes:
    """An integer."""
    return b":%d\r\n" % number


def bulk(value: bytes | str) -> bytes:
    """A bulk string."""
    data = value.encode() if isinstance(value, str) else value
    return b"$%d\r\n%s\r\n" % (len(data), data)


def array(items: Iterable[bytes]) -> bytes:
    """An array of encoded replies."""
    parts = list(items)
    return b"*%d\r\n%s" % (len(parts), b"".join(parts))


def mapping(items: Iterable[tuple[bytes, bytes]], protocol: int) -> bytes:
    """A map in RESP3; in RESP2 a flat array."""
    parts = [part for item in items for part in item]
    if protocol == 3:
        return b"%%%d\r\n%s" % (len(parts) // 2, b"".join(parts))
    return array(parts)
