"""Commands out of the bytes of a connection: arrays of bulk strings, in any pieces, and nothing else.

Weighed in docs/decisions.md, "Requests have a parser of their own".
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

MAX_ARGUMENTS: Final = 1_048_576
_COUNT: Final = re.compile(rb"\*(\d{1,10})\r\n")
_LENGTH: Final = re.compile(rb"\$(\d{1,10})\r\n")
_HEADER_BYTES: Final = 13
_SHORT: Final = {b"$%d" % size: size for size in range(1024)}
"""Lengths as they come most: finding one takes a third of the time of matching it."""


_MOST_PASSED_OVER: Final = 512 << 20
"""Of one argument, as Redis's `proto-max-bulk-len`."""


class RequestError(Exception):
    """What came is no request; the message is for the client."""


class TooLarge(Exception):
    """A command was larger than is taken, and passed over. The next one can be read."""


class Requests:
    """The commands of one connection. `max_bytes` limits one of them.

    `next` after each `feed`, until it gives None. After a `RequestError` nothing more can be read.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = b""
        self._at = 0
        """Where the next header stands in `_data`."""
        self._arguments: list[bytes] = []
        self._left = 0
        """Arguments of the command that are still to come; 0: its header is."""
        self._room = 0
        """Bytes that its arguments may still have."""
        self._pieces: list[bytes] = []
        """Of an argument that is not complete; it lacks `_missing` bytes."""
        self._missing = 0
        self._too_large = False
        """Whether the command has an argument for which there is no room."""
        self._to_pass_over = 0
        """Bytes of it that are still to come."""

    def feed(self, data: bytes) -> None:
        """Takes what was received."""
        if self._to_pass_over:
            gone = min(self._to_pass_over, len(data))
            self._to_pass_over -= gone
            data = data[gone:]
        if self._missing:
            self._pieces.append(data)
            self._missing = max(0, self._missing - len(data))
            if self._missing:
                return
            self._data, self._at, self._pieces = b"".join(self._pieces), 0, []
        else:
            self._data, self._at = self._data[self._at :] + data, 0

    def next(self) -> list[bytes] | None:
        """The next command that is complete. Raises `RequestError`, and `TooLarge` in the place of one that is."""
        if self._to_pass_over:
            return None
        data, at = self._data, self._at
        if self._too_large and not self._left:
            self._passed_over()
        if at >= len(data):
            return None
        if not self._left:
            header = _COUNT.match(data, at)
            if header is None:
                self._wait(at, b"*", "expected an array of bulk strings", "invalid multibulk length")
                return None
            self._left = int(header[1])
            if not 0 < self._left <= MAX_ARGUMENTS:
                raise RequestError("invalid multibulk length")
            self._arguments, self._room, at = [], self._max_bytes, header.end()
        arguments, room = self._arguments, self._room + at
        for left in range(self._left, 0, -1):
            start = data.find(b"\r\n", at, at + _HEADER_BYTES) + 2
            size = _SHORT.get(data[at : start - 2]) if start > 1 else None
            if size is None:
                header = _LENGTH.match(data, at)
                if header is None:
                    self._left, self._room = left, room - at
                    self._wait(at, b"$", "expected bulk strings", "invalid bulk length")
                    return None
                size = int(header[1])
            end = start + size
            if end > room:
                if size > _MOST_PASSED_OVER:
                    raise RequestError("invalid bulk length")
                self._too_large = True
                if end + 2 > len(data):
                    self._left, self._room = left - 1, room - at
                    self._to_pass_over, self._data, self._at = end + 2 - len(data), b"", 0
                    return None
                room, at = room + end + 2 - at, end + 2
                continue
            if data[end : end + 2] != b"\r\n":
                if end + 2 <= len(data):
                    raise RequestError("invalid bulk length")
                self._left, self._room = left, room - at
                self._pieces, self._missing = [data[at:]], end + 2 - len(data)
                self._data, self._at = b"", 0
                return None
            arguments.append(data[start:end])
            at = end + 2
        self._at, self._left = at, 0
        if self._too_large:
            self._passed_over()
        return arguments

    def _passed_over(self) -> NoReturn:
        self._too_large = False
        raise TooLarge

    def _wait(self, at: int, sign: bytes, kind: str, length: str) -> None:
        """A header is not complete. Raises `RequestError` if it never will be."""
        rest = self._data[at : at + _HEADER_BYTES + 1]
        if rest and rest[:1] != sign:
            raise RequestError(kind)
        if b"\r\n" in rest or len(rest) > _HEADER_BYTES:
            raise RequestError(length)
        self._at = at
