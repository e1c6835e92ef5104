"""The network between the parts: a gate in front of each port, which can hold or cut what passes between two of them.

A node listens for its peers at 127.0.0.2 and announces 127.0.0.1; there stands its gate, on the same port. Kafka has a
second listener behind a gate in the same way. Who dials is found by the process that has the other end of the
connection. A direction that is *held* delivers nothing, not even an end of connection, until it is healed: then what
was sent arrives late, as TCP's repeats do. A pair that is *cut* has its connections reset, new ones as well. Where
nobody listens behind a gate it does not listen either: a refused connection means a dead process, here as elsewhere.

Weighed in docs/decisions.md, "Cutting the network".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

OUTSIDE: Final = "127.0.0.1"
INSIDE: Final = "127.0.0.2"
_CHUNK: Final = 1 << 16
_PROBE_SECONDS: Final = 0.05
_CALL_SECONDS: Final = 10.0
_MEASURE_SECONDS: Final = 0.05

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
"""NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY and NLM_F_REQUEST of the kernel's headers, which `socket` does not name."""
_HEAD: Final = struct.Struct("=IHH8x")
_ASKED: Final = struct.Struct("=BB2xI4s16s16s4x8s")
"""inet_diag_req_v2."""
_ANY: Final = b"\xff" * 8
"""No cookie is asked for."""
_PORTS: Final = struct.Struct(">HH")
_INODE: Final = struct.Struct("=68xI")
"""Where inet_diag_msg has it."""

T = TypeVar("T")
Direction = tuple[str, str]


class Network:
    """All gates, in a loop and a thread of their own. `processes` tells the process ids of those who may dial."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        self._processes = processes
        self._open: dict[Direction, asyncio.Event] = {}
        self._cut: set[Direction] = set()
        self._pairs: dict[asyncio.StreamWriter, Direction] = {}
        self._gates: dict[int, asyncio.Server] = {}
        """By port: two may lead to parts of one name."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self.connections = 0
        """How many connections have passed a gate so far."""
        self.held = 0
        """How often something had to wait at a gate so far: a new connection, a chunk, an end."""
        self.latest_ms = 0.0
        """How late the gates were at worst, milliseconds."""

    def start(self) -> None:
        self._thread.start()
        self._loop.call_soon_threadsafe(lambda: self._spawn(self._measure()))

    def gate(self, name: str, port: int) -> None:
        """Whoever dials `port` at OUTSIDE gets to `name`, which listens there at INSIDE, now or later."""
        self._loop.call_soon_threadsafe(self._watch, name, port)

    def hold(self, directions: Iterable[Direction]) -> None:
        """Nothing passes from the first to the second of each direction until `heal`."""
        self._call(self._hold(list(directions)))

    def cut(self, one: str, other: str) -> None:
        """Connections between the two are reset, those that stand and new ones, until `heal`."""
        self._call(self._reset(one, other))

    def heal(self, directions: Iterable[Direction]) -> None:
        """Ends what was done to these directions; what was held arrives."""
        self._call(self._healed(list(directions)))

    def stop(self) -> None:
        """Closes every gate and connection."""
        if self._thread.ident is None:
            return
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    async def _hold(self, directions: list[Direction]) -> None:
        for direction in directions:
            self._way(direction).clear()

    async def _reset(self, one: str, other: str) -> None:
        both = {(one, other), (other, one)}
        self._cut |= both
        for writer, pair in list(self._pairs.items()):
            if pair in both:
                writer.transport.abort()

    async def _healed(self, directions: list[Direction]) -> None:
        for direction in directions:
            self._way(direction).set()
            self._cut.discard(direction)

    async def _end(self) -> None:
        while self._gates:
            await self._close(self._gates.popitem()[1])
        # Those of asyncio, which are about to accept somebody, come to their end. One that ends may have begun another.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks & self._tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in which aborted connections are closed

    async def _close(self, gate: asyncio.Server) -> None:
        """What was accepted before a server closes and gets its transport after it stays open (CPython 109564)."""
        for listener in gate.sockets:
            self._loop.remove_reader(listener.fileno())
        try:
            await asyncio.sleep(0)
        finally:
            gate.close()

    def _way(self, direction: Direction) -> asyncio.Event:
        if direction not in self._open:
            self._open[direction] = asyncio.Event()
            self._open[direction].set()
        return self._open[direction]

    async def _pass(self, direction: Direction) -> None:
        way = self._way(direction)
        self.held += not way.is_set()
        await way.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _watch(self, name: str, port: int) -> None:
        self._spawn(self._until_it_listens(name, port))

    async def _until_it_listens(self, name: str, port: int) -> None:
        """Opens the gate as soon as somebody listens behind it."""
        while not await _listens(port):  # noqa: ASYNC110  # another process starts to listen, which nothing tells
            await asyncio.sleep(_PROBE_SECONDS)

        def dialled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._spawn(self._dialled(name, port, reader, writer))
            # Not in the task: one that is cancelled before its first step closes nothing.
            task.add_done_callback(lambda _: writer.transport.abort())

        self._gates[port] = await asyncio.start_server(dialled, OUTSIDE, port)

    async def _ended(self, name: str, port: int) -> None:
        """A connection ended: where nobody listens any more, the gate closes until somebody does."""
        if port in self._gates and not await _listens(port):
            gate = self._gates.pop(port, None)
            if gate is not None:  # several connections end at once
                await self._close(gate)
                self._watch(name, port)

    async def _dialled(self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = self._source(writer.get_extra_info("peername")[1], port)
        if source is None or (source, name) in self._cut:
            writer.transport.abort()
            return
        there, back = (source, name), (name, source)
        self._pairs[writer] = there
        behind: asyncio.StreamWriter | None = None
        try:
            await self._pass(there)
            answers, behind = await asyncio.open_connection(INSIDE, port)
            self._pairs[behind] = back
            self.connections += 1
            await asyncio.gather(self._pump(reader, behind, there), self._pump(answers, writer, back))
        except OSError:
            writer.transport.abort()
        finally:
            for end in (writer, behind):
                if end is not None:
                    self._pairs.pop(end, None)
                    end.transport.abort()
            await self._ended(name, port)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        data: bytes | None = None
        with contextlib.suppress(ConnectionError):
            while data != b"":
                data = await reader.read(_CHUNK)
                await self._pass(way)
                writer.write(data)
                await writer.drain()
        # The end of a connection travels like anything else.
        await self._pass(way)
        writer.transport.abort() if data != b"" else writer.close()

    def _source(self, dialled_from: int, port: int) -> str | None:
        """Whose end of the connection it is; None where that process has ended."""
        dialled = _socket(dialled_from, port)
        for name, process in self._processes().items() if dialled else ():
            with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as files:
                for file in files:
                    with contextlib.suppress(FileNotFoundError):
                        if os.readlink(file.path) == dialled:
                            return name
        return None

    async def _measure(self) -> None:
        """How late this loop is, at worst: a gate that is late looks like a network that is."""
        while True:
            begin = self._loop.time()
            await asyncio.sleep(_MEASURE_SECONDS)
            late_ms = (self._loop.time() - begin - _MEASURE_SECONDS) * 1000
            if late_ms > self.latest_ms:
                self.latest_ms = late_ms


def _socket(local: int, remote: int) -> str | None:
    """How /proc names the socket with these two ports of 127.0.0.1; None where there is none.

    The kernel is asked for this one (sock_diag(7)). /proc/net/tcp lists all of the machine: 15 ms when there are many,
    in which nothing passes any gate. Late gates make clients connect again, and those are still more.
    """
    home = socket.inet_aton(OUTSIDE) + bytes(12)
    asked = _ASKED.pack(
        socket.AF_INET, socket.IPPROTO_TCP, 0xFFFFFFFF, _PORTS.pack(local, remote), home, home, b"\xff" * 8
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.send(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST) + asked)
        answer = kernel.recv(_CHUNK)
    if _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    return f"socket:[{_INODE.unpack_from(answer, _HEAD.size)[0]}]"


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(INSIDE, port)
    except ConnectionError:  # refused, or reset by a process that ends in this very moment
        return False
    writer.transport.abort()
    return True
