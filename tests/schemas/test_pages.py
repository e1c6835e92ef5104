"""Pages over HTTP: by path and method, and what keeps many or slow clients from the process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected

import pytest

from deelog_connector.devkafka.ports import HOST
from deelog_schemas import pages
from deelog_schemas.pages import MAX_REQUESTS, UNAVAILABLE, Page, PageServer
from tests.support.waiting import waiting


def broken(accept: str) -> Page:
    raise ValueError(accept)


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    made = PageServer(HOST, 0, {"/a": lambda accept: Page(accept.encode(), "text/x", UNAVAILABLE), "/bad": broken})
    yield made
    made.close()


def fetched(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(HOST, port, timeout=20)
    try:
        connection.request(method, path, headers={"Accept": "x/y"})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def test_a_page_and_what_is_none(server: PageServer) -> None:
    status, headers, body = fetched(server.port, "/a/")
    assert (status, headers["Content-Type"], headers["Content-Length"], body) == (503, "text/x", "3", b"x/y")
    assert headers["Cache-Control"] == "no-store"
    assert fetched(server.port, "/a", "HEAD")[::2] == (503, b"")
    assert fetched(server.port, "/a", "POST")[::2] == (405, b"only GET\n")
    assert fetched(server.port, "/b")[::2] == (404, b"here are /a, /bad\n")
    assert fetched(server.port, "/bad")[0] == 500


def test_only_so_many_clients_at_a_time(server: PageServer) -> None:
    silent = [socket.create_connection((HOST, server.port)) for _ in range(MAX_REQUESTS)]
    with pytest.raises((RemoteDisconnected, ConnectionResetError)):
        fetched(server.port, "/a")
    for client in silent:
        client.close()

    def answers() -> bool:
        try:
            return fetched(server.port, "/a")[0] == 503
        except (RemoteDisconnected, ConnectionResetError):
            return False

    waiting(answers, 20, "an answer to the next client")


def test_a_slow_client_is_disconnected(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages._Handler.timeout == pages.REQUEST_SECONDS
    monkeypatch.setattr(pages._Handler, "timeout", 0.05)
    with socket.create_connection((HOST, server.port), 20) as client:
        assert client.recv(1) == b""


def test_a_closed_server_has_no_port_and_no_thread() -> None:
    made = PageServer("::1", 0, {"/a": lambda _: Page(b"")})
    socket.create_connection(("::1", made.port), 20).close()
    made.close()
    assert not made._thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("::1", made.port), 20)


def test_a_forked_child_closes_its_copy_and_not_the_servers(server: PageServer) -> None:
    pid = os.fork()
    if pid == 0:
        server.forget()
        os._exit(0 if server._server.socket.fileno() == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert fetched(server.port, "/a")[0] == 503


def test_a_port_in_use(server: PageServer) -> None:
    with pytest.raises(OSError, match="in use"):
        PageServer(HOST, server.port, {})


def test_a_client_that_drags_its_request_out_is_disconnected(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read of the socket takes long: each gets a byte in time."""
    monkeypatch.setattr(pages, "REQUEST_SECONDS", 0.3)
    with socket.create_connection((HOST, server.port), 20) as client:

        def is_cut() -> bool:
            try:
                client.sendall(b"G")
            except OSError:
                return True
            return False

        waiting(is_cut, 20, "the end of the connection")
    assert fetched(server.port, "/a")[0] == 503
