"""A cluster that speaks RESP over real sockets and fails on purpose: what a player has to cope with, reproducibly.

It is no cache: it keeps the writes that it applied, in order, so that a test can see in which order they came.
"""

from __future__ import annotations

import random
import socket
import threading
from types import TracebackType
from typing import Self

import hiredis

from deelog_schemas.keys import slot_of

HELLO = b"%3\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n$4\r\nmode\r\n$7\r\ncluster\r\n"
_COMMAND = b"*6\r\n$3\r\n%b\r\n:-2\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n"
_COMMANDS = b"*2\r\n" + _COMMAND % b"set" + _COMMAND % b"del"


class FailingCluster:
    """Two nodes, half of the slots each. A share of `trouble` of the writes fails in one of several ways.

    `refused` is a key that is always answered with an error for good; `down` makes every write fail. Every
    `headless`-th answer about slots, the first one included, says that no slot has a primary.
    """

    def __init__(
        self, seed: int, trouble: float = 0.0, refused: bytes = b"", down: bool = False, headless: int = 0
    ) -> None:
        self.applied: list[tuple[bytes, bytes | None]] = []
        self.troubles: set[str] = set()
        self._draw = random.Random(seed)
        self._trouble, self._refused, self._down = trouble, refused, down
        self._headless, self.asked_for_slots = headless, 0
        self.reads = 0
        """How often a connection gave something to read."""
        self._swapped = False
        self._state: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def nodes(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", server.getsockname()[1]) for server in self._servers]

    def __enter__(self) -> Self:
        for index, server in enumerate(self._servers):
            self._spawn(self._accept, server, index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown(socket.SHUT_RDWR)
            server.close()
        with self._lock:
            for connection in self._connections:
                connection.close()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, server: socket.socket, index: int) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
            self._spawn(self._serve, connection, index)

    def _serve(self, connection: socket.socket, index: int) -> None:
        reader = hiredis.Reader()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                with self._lock:
                    self.reads += 1
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    with self._lock:
                        answer = self._answer(command, index)
                    if answer is None:
                        return
                    try:
                        connection.sendall(answer)
                    except OSError:
                        return

    def _answer(self, command: list[bytes], index: int) -> bytes | None:
        match command[0].upper():
            case b"HELLO":
                return HELLO
            case b"CLUSTER":
                return self._slots()
            case b"COMMAND":
                return _COMMANDS
            case b"SET" | b"DEL" as name:
                return self._write(command[1], command[2] if name == b"SET" else None, index)
        return b"+OK\r\n"

    def _owner(self, slot: int) -> int:
        return (slot >= 8192) ^ self._swapped

    def _slots(self) -> bytes:
        self.asked_for_slots += 1
        if self._headless and self.asked_for_slots % self._headless == 1:
            return b"*0\r\n"
        rows = b""
        for first, last in ((0, 8191), (8192, 16383)):
            port = self.nodes[self._owner(first)][1]
            rows += b"*3\r\n:%d\r\n:%d\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$4\r\nn%03d\r\n" % (
                first,
                last,
                port,
                port % 1000,
            )
        return b"*2\r\n" + rows

    def _write(self, key: bytes, value: bytes | None, index: int) -> bytes | None:
        if key == self._refused:
            return b"-ERR value is larger than max.entry.bytes\r\n"
        if self._down:
            return b"-CLUSTERDOWN nobody is there\r\n"
        if self._owner(slot_of(key)) != index:
            return b"-MOVED %d 127.0.0.1:%d\r\n" % (slot_of(key), self.nodes[1 - index][1])
        kind = (
            self._draw.choice(("moved", "tryagain", "drop", "lost-answer"))
            if self._draw.random() < self._trouble
            else ""
        )
        if kind:
            self.troubles.add(kind)
        if kind == "moved":
            self._swapped = not self._swapped
            return b"-MOVED %d 127.0.0.1:%d\r\n" % (slot_of(key), self.nodes[1 - index][1])
        if kind == "tryagain":
            return b"-TRYAGAIN the backups are not in sync\r\n"
        if kind == "drop":
            return None
        self.applied.append((key, value))
        existed = key in self._state
        if value is None:
            self._state.pop(key, None)
        else:
            self._state[key] = value
        if kind == "lost-answer":
            return None
        return b"+OK\r\n" if value is not None else b":%d\r\n" % existed
