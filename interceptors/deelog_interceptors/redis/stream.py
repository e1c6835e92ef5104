"""The commands of a replication stream, each with the offset behind it.

Offsets count the bytes of a stream, and hiredis does not tell how many a command had. But a server sends commands in
one way only, arrays of bulk strings with decimal lengths, so the bytes follow from the arguments. Where they do not,
what was sent is no replication stream.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, TypeAlias

import hiredis

_LINE_BYTES: Final = 16
"""Most bytes of a line with a count or a length, its end included."""


def _bytes_of(size: int) -> int:
    """The bytes of an argument of that size."""
    return len(b"$%d\r\n" % size) + size + 2


_SHORT: Final = list(map(_bytes_of, range(4096)))
"""For the sizes that come most."""


class StreamError(Exception):
    """What came is no replication stream. Nothing more can be read."""


@dataclass(frozen=True, slots=True)
class Omitted:
    """In the place of an argument of `size` bytes that was passed over."""

    size: int


Arguments: TypeAlias = "list[bytes | Omitted]"


class Stream:
    """The commands behind `offset`. `max_bytes`: of a longer command, arguments longer than that are `Omitted`.

    It holds at most one incomplete command, without what is omitted. After a `StreamError` nothing more can be read.
    """

    def __init__(self, offset: int, max_bytes: int) -> None:
        self.offset = offset
        """Behind the last complete command."""
        self._max_bytes = max_bytes
        self._reader = hiredis.Reader()
        self._pieces: list[bytes] = []
        """Of the command that is not complete."""
        self._held = 0
        """Their bytes."""
        self._long: Generator[None, bytes, tuple[Arguments, int, bytes]] | None = None

    def feed(self, data: bytes) -> list[tuple[Arguments, int]]:
        """The commands that this completes: arguments, and the offset behind them. Raises `StreamError`."""
        done: list[tuple[Arguments, int]] = []
        if self._long is not None:
            rest = self._longer(data, done)
            if rest is None:
                return done
            data = rest
        self._reader.feed(data)
        before = offset = self.offset
        gets, short = self._reader.gets, _SHORT
        try:
            while (arguments := gets()) is not False:
                try:
                    size = 0
                    for argument in arguments:
                        size += short[len(argument)]
                except IndexError:
                    size = sum(_bytes_of(len(argument)) for argument in arguments)
                offset += size + (4 if len(arguments) < 10 else len(b"*%d\r\n" % len(arguments)))
                done.append((arguments, offset))
        except (hiredis.ProtocolError, TypeError) as error:
            raise StreamError(f"behind offset {offset}: {error}") from error
        self.offset = offset
        self._hold(data, offset - before)
        return done

    def _hold(self, data: bytes, read: int) -> None:
        """Keeps what is left of `_pieces` and `data` when `read` bytes of them were complete commands."""
        left = self._held + len(data) - read
        if read:
            self._pieces = [data[-left:]] if left > 0 else []
        elif data:
            self._pieces.append(data)
        self._held = left
        if left < 0 or (self._pieces and self._pieces[0][:1] != b"*"):
            raise StreamError(f"behind offset {self.offset}: no array of bulk strings, or not as a server writes it")
        if left > self._max_bytes:
            # hiredis would collect all of it.
            self._reader = hiredis.Reader()
            pieces, self._pieces, self._held = b"".join(self._pieces), [], 0
            self._long = _long(self._max_bytes)
            next(self._long)
            assert self._longer(pieces, []) is None

    def _longer(self, data: bytes, done: list[tuple[Arguments, int]]) -> bytes | None:
        """What is left behind the long command once it is complete."""
        assert self._long is not None
        try:
            self._long.send(data)
        except StopIteration as end:
            arguments, size, rest = end.value
            self.offset += int(size)
            done.append((arguments, self.offset))
            self._long = None
            return bytes(rest)
        except ValueError as error:
            raise StreamError(f"behind offset {self.offset}: {error}") from error
        return None


def _long(max_bytes: int) -> Generator[None, bytes, tuple[Arguments, int, bytes]]:
    """Reads one command; returns its arguments, its bytes and what was sent behind it. Raises `ValueError`."""
    data, at = b"", 0

    def number(sign: bytes) -> Generator[None, bytes, int]:
        nonlocal data, at
        while (end := data.find(b"\r\n", at, at + _LINE_BYTES)) < 0:
            if len(data) - at >= _LINE_BYTES:
                raise ValueError("a count or a length has no end")
            data, at = data[at:] + (yield), 0
        line, at = data[at:end], end + 2
        if line[:1] != sign or not line[1:].isdigit():
            raise ValueError(f"{line!r} is no {'count' if sign == b'*' else 'length'}")
        return int(line[1:])

    arguments: Arguments = []
    count = yield from number(b"*")
    size = len(b"*%d\r\n" % count)
    for _ in range(count):
        length = yield from number(b"$")
        size += _bytes_of(length)
        if length <= max_bytes:
            while len(data) < at + length + 2:
                data, at = data[at:] + (yield), 0
            arguments.append(data[at : at + length])
            at += length + 2
        else:
            arguments.append(Omitted(length))
            at += length + 2
            while at > len(data):
                at -= len(data)
                data = yield
        if at >= 2 and data[at - 2 : at] != b"\r\n":
            raise ValueError("an argument is longer than its length")
    return arguments, size, data[at:]
