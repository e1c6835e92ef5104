"""A way to a broker on which one answer gets lost, that to the end of a transaction, or what present clients send."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Final, cast

OUTSIDE: Final = "127.0.0.1"
INSIDE: Final = "127.0.0.2"
_RECORDS: Final = {0, 1}
_END_TXN: Final = 26
"""Kafka's numbers of requests: those for records are Produce and Fetch."""


class Gate(socketserver.ThreadingTCPServer):
    """Whoever dials `port` at OUTSIDE gets to the broker, which listens there at INSIDE. Use it with `serving`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__((OUTSIDE, port), _Passage)
        self.bootstrap = f"{OUTSIDE}:{port}"
        self.loses = threading.Event()
        """Whether the next answer to the end of a transaction is lost, with its connection."""
        self.connections = 0
        self.mute = 0
        """Connections up to this one bring no request for records to the broker any more."""

    @contextlib.contextmanager
    def serving(self) -> Iterator[Gate]:
        with self:
            thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="gate")
            thread.start()
            yield self
            self.shutdown()
            thread.join()


class _Passage(socketserver.BaseRequestHandler):
    """One connection. Requests and answers are numbered, after four bytes of length."""

    def handle(self) -> None:
        gate = cast("Gate", self.server)
        client: socket.socket = self.request
        lost = set[bytes]()
        gate.connections += 1  # on the thread of this connection: a test looks when its clients rest
        number = gate.connections
        try:
            behind = socket.create_connection((INSIDE, gate.server_address[1]))
        except ConnectionError:  # the broker has ended
            return
        with behind:
            answers = threading.Thread(target=self._answer, args=(behind, client, lost), name="gate-answers")
            answers.start()
            for frame in _frames(client):
                if int.from_bytes(frame[4:6]) == _END_TXN and gate.loses.is_set():
                    gate.loses.clear()
                    lost.add(frame[8:12])
                if int.from_bytes(frame[4:6]) in _RECORDS and number <= gate.mute:
                    continue
                with contextlib.suppress(OSError):
                    behind.sendall(frame)
            _hang_up(behind)
            answers.join()

    @staticmethod
    def _answer(behind: socket.socket, client: socket.socket, lost: set[bytes]) -> None:
        for frame in _frames(behind):
            if frame[4:8] in lost:
                break
            with contextlib.suppress(OSError):
                client.sendall(frame)
        _hang_up(client)


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """Until the connection ends."""
    with contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield head + stream.read(int.from_bytes(head))


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
