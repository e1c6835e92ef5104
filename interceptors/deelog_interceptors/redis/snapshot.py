"""The head of a snapshot (RDB) without keys: which database the stream behind it goes on in."""

from __future__ import annotations

from typing import Final

_AUX: Final = 250
_STREAM_DATABASE: Final = b"repl-stream-db"
_INTEGERS: Final = {0: 1, 1: 2, 2: 4}
"""By the form of a string that is a number: its bytes, the lowest first."""


class SnapshotError(Exception):
    """What came is no snapshot."""


def stream_database(data: bytes) -> int:
    """The database of the next command of the stream, unless that is SELECT. Raises `SnapshotError`."""
    at = 9  # REDIS0010, VALKEY080
    if not data.startswith((b"REDIS", b"VALKEY")) or not data[at - 3 : at].isdigit():
        raise SnapshotError(f"a snapshot does not begin with {data[:at]!r}")
    try:
        while data[at] == _AUX:
            name, at = _string(data, at + 1)
            value, at = _string(data, at)
            if name == _STREAM_DATABASE:
                return int(value)
    except (IndexError, ValueError) as error:
        raise SnapshotError(f"a snapshot's head is broken: {error}") from error
    raise SnapshotError("a snapshot does not say which database the stream behind it is in")


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    first = data[at]
    match first >> 6:
        case 0:
            size, at = first & 0x3F, at + 1
        case 1:
            size, at = (first & 0x3F) << 8 | data[at + 1], at + 2
        case 2 if first == 0x80:
            size, at = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
        case 3 if first & 0x3F in _INTEGERS:
            size = _INTEGERS[first & 0x3F]
            return b"%d" % int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True), at + 1 + size
        case _:
            raise ValueError(f"a string of form {first}")
    if at + size > len(data):
        raise IndexError("it ends inside a string")
    return data[at : at + size], at + size
