"""The digest of a segment's entries that a reset's end carries.

Σ mod 2^64 of the first eight bytes (big-endian) of SHA-256(u32 length of key ‖ key ‖ value), over the captured bytes
before any converter, without expiry; written as 16 hexadecimal digits. It is a sum because that needs no order and,
unlike XOR, does not cancel two equal terms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_MASK = (1 << 64) - 1


def entry_digest(key: bytes, value: bytes) -> int:
    """One entry's term."""
    raw = hashlib.sha256(len(key).to_bytes(4, "big") + key + value).digest()
    return int.from_bytes(raw[:8], "big")


def digest_of(entries: Iterable[tuple[bytes, bytes]]) -> str:
    """The digest over `(key, value)` pairs, in any order."""
    total = 0
    for key, value in entries:
        total += entry_digest(key, value)
    return format_digest(total)


def format_digest(total: int) -> str:
    """16 hexadecimal digits of a running sum."""
    return f"{total & _MASK:016x}"
