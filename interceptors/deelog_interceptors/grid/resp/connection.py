"""A client's connection: its commands in, its replies out, in order.

Requests are parsed by hiredis. Weighed in docs/decisions.md, "Clients are served by a protocol class".
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import hiredis

from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.resp.replies import NULL2, NULL3, error
from deelog_interceptors.grid.settings import ACK_SECONDS, MAX_PIPELINE

_MAX_ARGUMENTS: Final = 1_048_576
_MARGIN_BYTES: Final = 1 << 20
_HEADER: Final = re.compile(rb"\*(\d{1,10})\r\n")
_HEADER_BYTES: Final = 13
_ASTERISK: Final = ord("*")
_MIN_FREE_PIPELINE: Final = MAX_PIPELINE // 2


class Blocked(Exception):
    """Raised by a command that cannot run now: wait for `until()`, then run it again."""

    def __init__(self, until: Callable[[], Awaitable[Any]]) -> None:
        self.until = until


class Execute(Protocol):
    """Runs a command; may raise `Blocked`. If it sets `connection.closing`, the connection ends after the reply."""

    def __call__(self, connection: Connection, arguments: list[bytes]) -> bytes | Pending: ...


class Clients:
    """All connections of one node. `max_bulk` limits the payload of one command in bytes."""

    def __init__(self, execute: Execute, max_bulk: int, max_connections: int) -> None:
        self.execute = execute
        self.max_bytes = max_bulk + _MARGIN_BYTES
        self.max_connections = max_connections
        self.open: dict[Connection, None] = {}
        self.accepted = 0
        """Connections accepted so far."""
        self.executed = 0
        """Command runs so far; a blocked command counts each time that it runs."""

    def __call__(self) -> Connection:
        return Connection(self)


class Connection(asyncio.Protocol):
    """One client. `protocol` is 2 or 3, `readonly` as READONLY set it, `name` as CLIENT SETNAME did."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.protocol = 2
        self.readonly = False
        self.waited = False
        """The current command has waited for a view already."""
        self.closing = False
        self.name = b""
        self.number = 0
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._replies: deque[bytes | Pending] = deque()
        self._chunk = b""
        self._at = 0
        """Start of the next command in `_chunk`; negative where it began in an earlier chunk."""
        self._checked = False
        self._paused = False
        self._task: asyncio.Task[None] | None = None

    @property
    def null(self) -> bytes:
        """The null reply of the connection's protocol."""
        return NULL3 if self.protocol == 3 else NULL2

    # -- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._clients.accepted += 1
        self.number = self._clients.accepted
        if len(self._clients.open) >= self._clients.max_connections:
            transport.write(error("ERR max number of clients reached"))
            transport.close()
            return
        self._clients.open[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.open.pop(self, None)
        self.closing = True
        self._replies.clear()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self._reader.feed(data)
        if self._checked:
            self._chunk, self._at = data, self._at - len(self._chunk)
        else:
            self._chunk, self._at = self._chunk[self._at :] + data, 0
        self._run()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- commands ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.closing and self._task is None:
            if len(self._replies) >= MAX_PIPELINE or self._paused:
                break
            arguments = self._next()
            if arguments is None:
                break
            self._execute(arguments, first=True)
        self.flush()
        self._adjust_reading()

    def _next(self) -> list[bytes] | None:
        """The next complete command. hiredis allocates as many elements as a header names: check the header first."""
        chunk, at = self._chunk, self._at
        if not self._checked:
            if at >= len(chunk):
                return None
            header = _HEADER.match(chunk, at)
            if header is None:
                rest = chunk[at : at + _HEADER_BYTES + 1]
                if rest[0] != _ASTERISK or b"\r\n" in rest or len(rest) > _HEADER_BYTES:
                    self._protocol_error("expected an array of bulk strings")
                return None
            if not 0 < int(header[1]) <= _MAX_ARGUMENTS:
                self._protocol_error("invalid multibulk length")
                return None
            self._checked = True
        try:
            command: Any = self._reader.gets()
        except MemoryError:  # of an array within the command, which it allocates as the header says
            self._protocol_error("invalid multibulk length")
            return None
        except hiredis.HiredisError as problem:
            self._protocol_error(str(problem))
            return None
        if command is _NOTHING:
            if len(chunk) - at > self._clients.max_bytes:
                self._protocol_error("invalid bulk length: the command is too large")
            return None
        self._checked = False
        if not all(type(argument) is bytes for argument in command):
            self._protocol_error("expected bulk strings")
            return None
        self._at = at + 3 + len(b"%d" % len(command))
        for argument in command:
            self._at += 5 + len(b"%d" % len(argument)) + len(argument)
        arguments: list[bytes] = command
        return arguments

    def _execute(self, arguments: list[bytes], first: bool) -> None:
        self._clients.executed += 1
        try:
            self._replies.append(self._clients.execute(self, arguments))
        except Blocked as blocked:
            if not first:
                raise
            self._task = asyncio.create_task(self._wait_and_execute(arguments, blocked))

    async def _wait_and_execute(self, arguments: list[bytes], blocked: Blocked) -> None:
        """Only this client waits; bytes after the command stay in the buffer."""
        deadline = asyncio.get_running_loop().time() + ACK_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await blocked.until()
                self._execute(arguments, first=False)
                break
            except Blocked as again:
                blocked = again
            except TimeoutError:
                self._replies.append(error("TRYAGAIN the segment's owner changes or its op log is full"))
                break
        self._task = None
        self._run()

    # -- replies ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes every reply that is complete, in order."""
        replies = self._replies
        ready: list[bytes] = []
        while replies:
            head = replies[0]
            if type(head) is bytes:
                ready.append(head)
            elif head.left <= 0:  # type: ignore[union-attr]  # a Pending
                ready.append(head.reply)  # type: ignore[union-attr]
            else:
                break
            replies.popleft()
        transport = self._transport
        if transport is None:
            return
        if ready:
            transport.write(b"".join(ready))
        if self.closing and not replies:
            transport.close()
        elif not transport.is_reading():
            self._adjust_reading()

    def _adjust_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        full = self._task is not None or self._paused or len(self._replies) >= MAX_PIPELINE
        if full and transport.is_reading():
            transport.pause_reading()
        elif not transport.is_reading() and not full and len(self._replies) <= _MIN_FREE_PIPELINE:
            transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._run)

    def _protocol_error(self, text: str) -> None:
        self._replies.append(error(f"ERR Protocol error: {text}"))
        self.closing = True
        self.flush()


_NOTHING: Final = object()
