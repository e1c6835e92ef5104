"""A client's connection: its commands in, its replies out, in order.

Weighed in docs/decisions.md, "Clients are served by a protocol class".
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.resp.replies import NULL2, NULL3, error
from deelog_interceptors.grid.resp.requests import RequestError, Requests, TooLarge
from deelog_interceptors.grid.settings import ACK_SECONDS, MAX_PIPELINE

_MARGIN_BYTES: Final = 1 << 20
_MIN_FREE_PIPELINE: Final = MAX_PIPELINE // 2
_FLUSH_BYTES: Final = 1 << 16
_MAX_HELD_BYTES: Final = 1 << 20
"""Of replies behind one that waits. More commands are not run before it is there."""
_TURN_SECONDS: Final = 0.01
"""For so long commands run before the loop has a turn for all else: links to other nodes, heartbeats, Kafka."""
_IDLE_SECONDS: Final = 300
"""As Redis's `tcp-keepalive`."""
MOVES: Final = "the segment's owner changes"


class Blocked(Exception):
    """Raised by a command that cannot run now: wait for `until()`, then run it again. `why` is for the client whose
    command has waited in vain."""

    def __init__(self, why: str, until: Callable[[], Awaitable[Any]]) -> None:
        self.why, self.until = why, until


def _again(blocked: Blocked) -> bytes:
    return error(f"TRYAGAIN {blocked.why}")


class Execute(Protocol):
    """Runs a command; may raise `Blocked`. If it sets `connection.closing`, the connection ends after the reply."""

    def __call__(self, connection: Connection, arguments: list[bytes]) -> bytes | Pending: ...


class Clients:
    """All connections of one node. `max_bulk` limits the payload of one command in bytes. `clock` counts seconds."""

    def __init__(self, execute: Execute, max_bulk: int, max_connections: int, clock: Callable[[], float]) -> None:
        self.execute, self.clock = execute, clock
        self.max_bytes = max_bulk + _MARGIN_BYTES
        self.max_connections = max_connections
        self.open: dict[Connection, None] = {}
        self.accepted = 0
        """Connections accepted so far."""
        self.executed = 0
        """Command runs so far; a blocked command counts each time that it runs."""
        self.waiting: dict[Connection, None] = {}
        """Connections with commands for which this turn had no time left, in the order in which they run."""
        self.left = _TURN_SECONDS
        """Seconds for which commands may still run in this turn. All connections share it."""
        self._next: asyncio.Handle | None = None

    def __call__(self) -> Connection:
        return Connection(self)

    def wait(self, connection: Connection) -> None:
        """Has `connection` run its commands when it is its turn: after those that wait already."""
        self.waiting[connection] = None
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._next, self.left = None, _TURN_SECONDS
        while self.waiting:
            connection = next(iter(self.waiting))
            if self.left <= 0:
                self.wait(connection)
                break
            del self.waiting[connection]
            connection.run()


class Connection(asyncio.Protocol):
    """One client. `protocol` is 2 or 3, `readonly` as READONLY set it, `name` as CLIENT SETNAME did."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.protocol = 2
        self.readonly = False
        self.waited = False
        """Since the last bytes came, a command has waited for a view already."""
        self._in_vain = False
        """Since the last bytes came, a command has waited in vain: those behind it do not wait."""
        self.closing = False
        self.name = b""
        self.number = 0
        self._transport: asyncio.Transport | None = None
        self._requests = Requests(clients.max_bytes)
        self._replies: deque[bytes | Pending] = deque()
        self._held = 0
        """Bytes of the replies that are not written."""
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
        _keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.open.pop(self, None)
        self._clients.waiting.pop(self, None)
        self.closing = True
        self._replies.clear()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if not self.closing:
            self.waited = self._in_vain = False
            self._requests.feed(data)
            self.run()

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

    @property
    def _is_full(self) -> bool:
        """Whether the next command has to wait: for a command, for replies, for the client, for its turn."""
        replies = len(self._replies) >= MAX_PIPELINE or self._held >= _MAX_HELD_BYTES
        return replies or self._paused or self._task is not None or self in self._clients.waiting

    def run(self) -> None:
        """Runs the commands that are there, up to the end of the turn."""
        clock, take = self._clients.clock, self._requests.next
        ends = clock() + self._clients.left
        while not self.closing and not self._is_full:
            if clock() >= ends:
                self._clients.wait(self)
                break
            try:
                arguments = take()
            except RequestError as problem:
                self._reply(error(f"ERR Protocol error: {problem}"))
                self.closing = True
                break
            except TooLarge:
                self._reply(error(f"ERR max.entry.bytes: the command has more than {self._clients.max_bytes} bytes"))
                continue
            if arguments is None:
                break
            self._execute(arguments, first=True)
            if self._held >= _FLUSH_BYTES:
                self.flush()
        self.flush()
        self._clients.left = ends - clock()
        self._adjust_reading()

    def _execute(self, arguments: list[bytes], first: bool) -> None:
        self._clients.executed += 1
        try:
            self._reply(self._clients.execute(self, arguments))
        except Blocked as blocked:
            if not first:
                raise
            if self._in_vain:
                self._reply(_again(blocked))
                return
            self._task = asyncio.create_task(self._wait_and_execute(arguments, blocked))

    async def _wait_and_execute(self, arguments: list[bytes], blocked: Blocked) -> None:
        """Only this client waits; bytes after the command stay in the buffer."""
        deadline = asyncio.get_running_loop().time() + ACK_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await blocked.until()
                    await asyncio.sleep(0)  # where there is nothing to wait for, the others run and the time counts
                self._execute(arguments, first=False)
                break
            except Blocked as again:
                blocked = again
            except TimeoutError:
                self._in_vain = True
                self._reply(_again(blocked))
                break
        self._task = None
        self.run()

    # -- replies ----------------------------------------------------------------------------------------------------

    def _reply(self, reply: bytes | Pending) -> None:
        self._replies.append(reply)
        if type(reply) is bytes:
            self._held += len(reply)

    def flush(self) -> None:
        """Writes every reply that is complete, in order."""
        replies = self._replies
        ready: list[bytes] = []
        while replies:
            head = replies[0]
            if type(head) is bytes:
                ready.append(head)
                self._held -= len(head)
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
        full = self._is_full
        if full and transport.is_reading():
            transport.pause_reading()
        elif not transport.is_reading() and not full and len(self._replies) <= _MIN_FREE_PIPELINE:
            transport.resume_reading()
            asyncio.get_running_loop().call_soon(self.run)


def _keep_alive(transport: asyncio.Transport) -> None:
    """Has the system ask for a silent client: one that vanished would keep its place for ever."""
    plain = transport.get_extra_info("socket")
    if plain is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if idle := getattr(socket, "TCP_KEEPIDLE", None):  # not every system has it
            plain.setsockopt(socket.IPPROTO_TCP, idle, _IDLE_SECONDS)
