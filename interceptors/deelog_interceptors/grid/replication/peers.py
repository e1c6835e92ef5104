"""Connections between nodes: a link to each other node, and a listener for the links of the others.

Weighed in docs/decisions.md, "Connections between nodes".
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Final, Protocol

from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import AnyFrame, Ask, FrameError, Hello, Welcome

log = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 2.0
_HELLO_SECONDS: Final = 5.0
SILENCE_MS: Final = 10_000
MOST_STRANGERS: Final = 64
"""Connections that have not said hello. With one more the oldest is hung up on: a node says hello at once."""
_BACK_OFF_SECONDS: Final = 0.025
_MAX_BACK_OFF_SECONDS: Final = 0.4
_STATES: Final = 2
_BROKEN: Final = (OSError, EOFError, asyncio.IncompleteReadError, FrameError, TimeoutError)


def _limit_silence(writer: asyncio.StreamWriter) -> None:
    """Has the system end a connection on which nothing that was sent is acknowledged, as behind a firewall that has
    forgotten it; else that may take a quarter of an hour."""
    plain, limit = writer.get_extra_info("socket"), getattr(socket, "TCP_USER_TIMEOUT", None)
    if plain is not None and limit is not None:
        plain.setsockopt(socket.IPPROTO_TCP, limit, SILENCE_MS)


class LinkEvents(Protocol):
    """Events of a link. All are called on the loop and must not block."""

    def link_up(self, link: Link) -> None: ...
    def link_frame(self, link: Link, frame: AnyFrame) -> None: ...
    def link_down(self, link: Link) -> None: ...
    def link_refused(self, member: str) -> None:
        """The address refused a connection, or another member answered: the member's process may be gone."""

    def failed(self, error: BaseException) -> None:
        """An unexpected exception: the node should end."""


class Link:
    """A connection that is dialled again until `close()`; `ready` while it is up."""

    def __init__(self, member: str, address: str, hello: Hello, events: LinkEvents) -> None:
        self.member = member
        self.address = address
        self.ready = False
        self.states = asyncio.Semaphore(_STATES)
        """Whole segments' states that it carries at a time. Who sends one holds it until then."""
        self._hello, self._events = hello, events
        self._writer: asyncio.StreamWriter | None = None
        self._attempts = 0
        self._task = asyncio.create_task(self._run(), name=f"link to {member}")
        self._task.add_done_callback(self._finished)

    def close(self) -> None:
        """Ends it for good; calls `link_down` if it was up."""
        self._task.cancel()
        self._ended()

    def send(self, frame: AnyFrame) -> None:
        """Queues a frame, which is lost if the connection breaks; `link_down` is called then."""
        if self._writer is not None and self.ready:
            self._writer.write(frames.encode(frame))

    @property
    def queued(self) -> int:
        """Bytes in the send buffer."""
        return 0 if self._writer is None else self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Returns when the send buffer is nearly empty. Raises `OSError` where the connection broke."""
        if self._writer is None:
            raise ConnectionResetError("the link is down")
        await self._writer.drain()

    def _finished(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._events.failed(error)

    async def _run(self) -> None:
        while True:
            try:
                await self._session()
            except ConnectionRefusedError:
                self._events.link_refused(self.member)
            except _BROKEN as error:
                log.info("link to %s at %s: %r", self.member, self.address, error)
            finally:
                self._ended()
            self._attempts = min(self._attempts + 1, 10)
            await asyncio.sleep(min(_BACK_OFF_SECONDS * 2**self._attempts, _MAX_BACK_OFF_SECONDS))

    async def _session(self) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (ValueError, OverflowError) as error:  # what another node has registered
            raise FrameError(f"{self.address} is no address: {error}") from error
        self._writer = writer
        _limit_silence(writer)
        writer.write(frames.encode(self._hello))
        async with asyncio.timeout(_HELLO_SECONDS):
            welcome = await frames.read(reader, self._hello.segments)
        if not isinstance(welcome, Welcome):
            raise FrameError(f"{type(welcome).__name__} instead of a welcome")
        if welcome.member != self.member:
            self._events.link_refused(self.member)
            raise FrameError(f"{welcome.member} listens at {self.address}")
        self._attempts = 0
        self.ready = True
        self._events.link_up(self)
        while True:
            self._events.link_frame(self, await frames.read(reader, self._hello.segments))

    def _ended(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        if self.ready:
            self.ready = False
            self._events.link_down(self)


class Links(dict[str, Link]):
    """The links of this node, by the other member."""

    def __init__(self, hello: Hello, events: LinkEvents) -> None:
        super().__init__()
        self._hello, self._events = hello, events

    def dial(self, addresses: Mapping[str, str]) -> None:
        """Keeps one link to each of these members, by name and address, and closes all others."""
        for member in sorted(self.keys() - addresses.keys()):
            self.pop(member).close()
        for member in sorted(addresses.keys() - self.keys()):
            self[member] = Link(member, addresses[member], self._hello, self._events)


class Incoming:
    """A connection that another member dialled."""

    def __init__(self, member: str, writer: asyncio.StreamWriter) -> None:
        self.member = member
        self.asked: list[Ask] = []
        """`Ask` frames that arrived before their view."""
        self._writer = writer

    def send(self, frame: AnyFrame) -> None:
        """Queues a frame."""
        self._writer.write(frames.encode(frame))

    def abort(self) -> None:
        """Closes the connection; the other side dials again."""
        self._writer.transport.abort()


class IncomingEvents(Protocol):
    """Events of the listener."""

    def incoming_up(self, connection: Incoming) -> None: ...
    def incoming_frame(self, connection: Incoming, frame: AnyFrame) -> None: ...
    def incoming_down(self, connection: Incoming) -> None: ...


class PeerListener:
    """Takes the connections of other members of the same cache with the same segment count."""

    def __init__(self, hello: Hello, events: IncomingEvents) -> None:
        self._hello, self._events = hello, events
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}

    async def listen(self, host: str, port: int) -> int:
        """Returns the port. Raises `OSError`."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=1 << 20)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Closes the listener and every connection."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()

    def _check(self, hello: Hello) -> None:
        if hello.cluster != self._hello.cluster:
            raise FrameError(f"a node of {hello.cluster}")
        if hello.segments != self._hello.segments:
            raise FrameError(f"segment.count {hello.segments}; here it is {self._hello.segments}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._open[writer] = self._strangers[writer] = None
        _limit_silence(writer)
        connection: Incoming | None = None
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = await frames.read(reader, self._hello.segments)
            if not isinstance(hello, Hello):
                raise FrameError("no hello")
            self._check(hello)
            self._strangers.pop(writer, None)
            writer.write(frames.encode(Welcome(self._hello.member)))
            connection = Incoming(hello.member, writer)
            self._events.incoming_up(connection)
            while True:
                self._events.incoming_frame(connection, await frames.read(reader, self._hello.segments))
                await writer.drain()
        except _BROKEN as error:
            log.info("connection of %s: %r", connection.member if connection else "a stranger", error)
        finally:
            del self._open[writer]
            self._strangers.pop(writer, None)
            writer.transport.abort()
            if connection is not None:
                self._events.incoming_down(connection)
