"""The gates: what passes, what is held back and arrives late, what is cut, and that a dead process refuses."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from deelog_connector.devkafka.ports import free_port
from deelog_proof.harness.child import until
from tests.support.network import INSIDE, OUTSIDE, Network

THERE, BACK = ("me", "echo"), ("echo", "me")
SECONDS = 60.0


class Echo:
    """Answers what it gets, at INSIDE."""

    def __init__(self, port: int) -> None:
        self._server = socket.create_server((INSIDE, port))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(100):
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        if self._server.fileno() < 0:
            return
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has ended already
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def network(port: int) -> Iterator[Network]:
    made = Network(lambda: {"me": os.getpid()})
    made.start()
    made.gate("echo", port)
    yield made
    made.stop()


@pytest.fixture
def echo(port: int) -> Iterator[Echo]:
    made = Echo(port)
    yield made
    made.close()


def dialled(port: int) -> socket.socket:
    """A connection through the gate, as soon as it is open."""
    found: list[socket.socket] = []

    def opened() -> bool:
        try:
            found.append(socket.create_connection((OUTSIDE, port), 10))
        except ConnectionRefusedError:
            return False
        return True

    until(opened, SECONDS, "the gate to open")
    found[0].settimeout(SECONDS)
    return found[0]


def answers(connection: socket.socket, text: bytes) -> bool:
    connection.sendall(text)
    return connection.recv(100) == text


def ended(connection: socket.socket) -> bool:
    """Whether the other side ended it, in order or by a reset."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def is_held(network: Network, connection: socket.socket, held: int) -> bool:
    """Whether nothing has come, not even an end, once the gates have held back as much."""
    until(lambda: network.held >= held, SECONDS, "something to be held")
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    finally:
        connection.settimeout(SECONDS)
    return False


def test_a_gate_passes_everything_on_and_its_end_too(network: Network, echo: Echo, port: int) -> None:
    with dialled(port) as connection:
        assert answers(connection, b"one")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert network.connections == 1


@pytest.mark.parametrize("way", [THERE, BACK])
def test_what_is_held_arrives_when_it_is_healed(network: Network, echo: Echo, port: int, way: tuple[str, str]) -> None:
    with dialled(port) as connection:
        assert answers(connection, b"one")
        network.hold([way])
        connection.sendall(b"two")
        assert is_held(network, connection, 1)
        with dialled(port) as late:  # a new connection gets no further
            late.sendall(b"three")
            assert is_held(network, late, 2)
            network.heal([way])
            assert connection.recv(100) == b"two"
            assert late.recv(100) == b"three"


def test_an_end_is_held_like_anything_else(network: Network, echo: Echo, port: int) -> None:
    with dialled(port) as connection:
        assert answers(connection, b"one")
        network.hold([BACK])
        echo.close()
        assert is_held(network, connection, 1)
        network.heal([BACK])
        assert connection.recv(100) == b""


def test_a_cut_resets_what_stands_and_what_is_new(network: Network, echo: Echo, port: int) -> None:
    with dialled(port) as connection, dialled(port) as other:
        assert answers(connection, b"one")
        assert answers(other, b"one")
        network.cut("echo", "me")
        for cut in (connection, other, dialled(port)):
            with cut:
                assert ended(cut)
        network.heal([THERE, BACK])
    with dialled(port) as connection:
        assert answers(connection, b"again")


def test_strangers_are_not_let_through(echo: Echo, port: int) -> None:
    network = Network(lambda: {"another": 1})
    network.start()
    network.gate("echo", port)
    try:
        with dialled(port) as connection:
            assert ended(connection)
        assert network.connections == 0
    finally:
        network.stop()


def test_where_nobody_listens_the_gate_refuses_until_somebody_does(network: Network, port: int) -> None:
    first = Echo(port)
    with dialled(port) as connection:
        assert answers(connection, b"one")
        first.close()

        def refused() -> bool:
            try:
                socket.create_connection((OUTSIDE, port), 10).close()
            except ConnectionRefusedError:
                return True
            return False

        until(refused, SECONDS, "the gate to refuse")
    second = Echo(port)
    try:
        with dialled(port) as connection:
            assert answers(connection, b"two")
    finally:
        second.close()


def test_who_dials_while_a_gate_closes_leaves_nothing_open(network: Network, port: int) -> None:
    """What is left open warns when it is collected, in whatever test runs then."""
    over, threads = threading.Event(), list[threading.Thread]()

    def dial() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection((OUTSIDE, port), 10) as connection:
                connection.settimeout(10)
                connection.sendall(b"x")
                connection.recv(1)

    for _ in range(8):
        threads.append(threading.Thread(target=dial))
        threads[-1].start()
    try:
        for _ in range(30):
            echo, so_far = Echo(port), network.connections
            until(lambda so_far=so_far: network.connections > so_far + 8, SECONDS, "connections")  # type: ignore[misc]
            echo.close()
            until(lambda: not network._gates, SECONDS, "the gate to close")
    finally:
        over.set()
        for thread in threads:
            thread.join(SECONDS)
    gc.collect()
