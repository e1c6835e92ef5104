"""Access, sizes and slow clients of the REST API: a real node, by real sockets.

Bad input: no token, one with a wrong byte, too short, too long, or in another scheme; bodies of 100 MB with and without
a length; bodies and heads without an end; bytes that are not HTTP; hundreds of connections; host names that resolve to
this machine, pages of other sites; public addresses without a token; certificates of unknown authorities.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from deelog_connector.devkafka.ports import free_port
from deelog_connector.rest.app import MAX_BODY_BYTES
from deelog_connector.rest.server import MAX_CONNECTIONS
from deelog_schemas.config import ConfigError, parse
from tests.connector.rest.client import Api, api_of
from tests.interceptors.grid.cluster import Grid, GridNode, eventually
from tests.support.kafka import Broker

TOKEN, READING = "everything-0123456789", "looking-0123456789abc"
ME = "/connectors/deelog"
BASE = {"topic.prefix": "p", "cache.name": "c", "bootstrap.servers": "k:9092", "node.id": "n"}


@pytest.fixture(scope="module")
def nodes(kafka: Broker, tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[dict[str, GridNode]]:
    """`token` asks for tokens, `open` for nothing, `tls` for a certificate."""
    folder = tmp_path_factory.mktemp("nodes")
    prefix = f"t{folder.name}{time.time_ns()}"
    grid = Grid(folder, kafka.bootstrap, prefix, cache_failure_timeout_ms="5000", segment_count="8")
    grid.nodes["token"] = grid.node("n1", rest_port=str(free_port()))
    grid.nodes["token"].config |= {"rest.token": TOKEN, "rest.readonly.token": READING}
    grid.nodes["open"] = grid.node("n2", rest_port=str(free_port()))
    grid.nodes["tls"] = grid.node("n3", rest_port=str(free_port()))
    grid.nodes["tls"].config |= {
        "rest.ssl.certificate.location": str(certificates / "both.pem"),
        "rest.ssl.ca.location": str(certificates / "ca.pem"),
    }
    try:
        for node in grid.nodes.values():
            node.start()
        for node in grid.nodes.values():
            node.wait()
        yield grid.nodes
    finally:
        grid.end()


@pytest.fixture
def guarded(nodes: dict[str, GridNode]) -> Api:
    return api_of(nodes["token"])


@pytest.fixture
def unguarded(nodes: dict[str, GridNode]) -> Api:
    return api_of(nodes["open"])


def serves(node: GridNode) -> bool:
    """The node lives, and so does its connector."""
    api = api_of(node)
    return node.alive and api.ask("GET", "/health").status == 200 and api.state() in ("RUNNING", "PAUSED")


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}8",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN}, Bearer {READING}",
        f"Basic {TOKEN}",
        f"Token {TOKEN}",
        TOKEN,
        f"Bearer {'x' * 40_000}",
        "Bearer \xe4\xf6\xfc",
    ],
)
def test_a_token_one_byte_off_is_no_token(guarded: Api, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    nobody = Api(guarded.port)
    for method, path in (("GET", ME), ("PUT", f"{ME}/pause"), ("GET", "/openapi.json"), ("GET", "/")):
        reply = nobody.ask(method, path, headers=headers)
        assert (reply.status, reply.json["error_code"]) == (401, 401)
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert TOKEN not in reply.text
    assert nobody.ask("GET", "/health", headers=headers).status == 200
    assert guarded.state() == "RUNNING"


def test_who_may_look_changes_nothing(guarded: Api) -> None:
    reader = Api(guarded.port, READING)
    assert reader.get("/connectors") == ["deelog"]
    assert reader.ask("HEAD", "/connectors").status == 200
    validate = "/connector-plugins/deelog.CachetoolsConnector/config/validate"
    assert reader.do("PUT", validate, {}).json["error_count"] > 0
    for method, path in (
        *(("PUT", f"{ME}/{what}") for what in ("pause", "resume", "stop", "topics/reset", "config")),
        *(("POST", path) for path in ("/connectors", f"{ME}/restart", f"{ME}/tasks/0/restart")),
        *(("DELETE", path) for path in (ME, f"{ME}/offsets")),
        *(("PATCH", path) for path in (f"{ME}/config", f"{ME}/offsets")),
        ("PUT", "/admin/loggers/root"),
    ):
        reply = reader.ask(method, path, {})
        assert (reply.status, method, path) == (403, method, path)
    assert guarded.state() == "RUNNING"


def exchange(port: int, *parts: bytes, seconds: float = 60.0) -> bytes:
    """Sends until the other side has enough, then what it answers until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except OSError:
            pass  # it closed: what it said before is there to be read
        answer = b""
        try:
            while chunk := connection.recv(65_536):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


def test_a_body_of_100_mb_is_refused_before_it_is_read(guarded: Api, nodes: dict[str, GridNode]) -> None:
    head = f"PUT {ME}/config HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    announced = exchange(guarded.port, f"{head}Content-Length: 100000000\r\n\r\n".encode())
    assert announced.startswith(b"HTTP/1.1 413 ")
    assert b'"error_code":413' in announced
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        yield f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
        for _ in range(1000):
            yield b"186a0\r\n" + b" " * 100_000 + b"\r\n"
            sent += 100_000

    with socket.create_connection(("127.0.0.1", guarded.port), timeout=60) as connection:
        try:
            for part in chunks():
                connection.sendall(part)
        except OSError:
            pass
    assert MAX_BODY_BYTES < sent < 30_000_000  # what lay in the sockets' buffers
    assert serves(nodes["token"])


def test_what_comes_too_slowly_is_not_waited_for(guarded: Api, nodes: dict[str, GridNode]) -> None:
    head = f"PUT {ME}/config HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    beginnings = {
        "nothing": b"",
        "half a head": b"GET / HT",
        "half a body": f"{head}Content-Length: 100\r\n\r\n{{".encode(),
        "half a head after a request": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /",
    }
    answers: dict[str, bytes] = {}

    def slow(name: str, beginning: bytes) -> None:
        answers[name] = exchange(guarded.port, beginning)

    threads = [threading.Thread(target=slow, args=item) for item in beginnings.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert answers.keys() == beginnings.keys()
    assert answers["half a body"].startswith(b"HTTP/1.1 408 ")
    assert answers["nothing"] == answers["half a head"] == b""
    assert serves(nodes["token"])


def test_bytes_that_are_no_http_end_their_connection_alone(guarded: Api, nodes: dict[str, GridNode]) -> None:
    pieces = [
        b"\0" * 1000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\xf0\x9f\x92\xa3 / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT evil:80 HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n",
    ]
    with ThreadPoolExecutor(len(pieces)) as pool:
        for answer in pool.map(partial(exchange, guarded.port), pieces):
            assert b" 200 " not in answer.split(b"\r\n")[0]
            assert b"Traceback" not in answer
    assert serves(nodes["token"])


def test_a_flood_of_connections_leaves_the_node_alone(guarded: Api, nodes: dict[str, GridNode]) -> None:
    crowd = []
    try:
        for _ in range(MAX_CONNECTIONS + 50):
            crowd.append(socket.create_connection(("127.0.0.1", guarded.port), timeout=60))
    finally:
        closed = 0
        for connection in crowd:
            try:
                closed += connection.recv(1) == b""
            except ConnectionResetError:
                closed += 1
            connection.close()
    assert closed == len(crowd)
    eventually(lambda: serves(nodes["token"]), 60)


def test_a_page_of_another_site_changes_nothing(unguarded: Api) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{unguarded.port}"},
        {"Host": ""},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost.evil.example:80"},
    ):
        assert unguarded.ask("GET", ME, headers=headers).status == 403
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert unguarded.ask("PUT", f"{ME}/stop", headers=headers).status == 403
        assert unguarded.ask("POST", f"{ME}/restart", headers=headers).status == 403
    # A page can send this type without asking first.
    assert unguarded.ask("PATCH", f"{ME}/config", "{}", {"Content-Type": "text/plain"}).status == 415
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8083", "10.0.0.1:8083"):
        assert unguarded.ask("GET", ME, headers={"Host": host}).status == 200
    own = {"Host": "localhost:80", "Origin": "http://localhost:80", "Sec-Fetch-Site": "same-origin"}
    assert unguarded.ask("PUT", f"{ME}/resume", headers=own).status == 202
    assert unguarded.state() == "RUNNING"


def test_a_certificate_of_the_authority_is_asked_for(nodes: dict[str, GridNode], certificates: Path) -> None:
    port = int(nodes["tls"].config["rest.port"])

    def ask(name: str | None) -> int:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        if name is not None:
            context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        try:
            connection.request("GET", "/connectors")
            return connection.getresponse().status
        finally:
            connection.close()

    assert ask("client") == 200
    for name in (None, "stranger"):
        with pytest.raises(OSError):  # noqa: PT011 - refused in the handshake, or closed behind it
            ask(name)
    with pytest.raises(OSError):  # noqa: PT011 - plain HTTP
        Api(port).ask("GET", "/health")
    assert nodes["tls"].alive
    assert ask("client") == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node1", "127.0.0.1.evil"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"rest\.host\.name = '.*': is not this machine's own.*rest\.token"):
        parse(BASE | {"rest.port": "8083", "rest.host.name": host})
    parse(BASE | {"rest.port": "8083", "rest.host.name": host, "rest.token": TOKEN})
    parse(BASE | {"rest.port": "0", "rest.host.name": host})
    parse(BASE | {"rest.port": "8083", "rest.host.name": "127.0.0.1"})


def test_a_node_that_others_could_stop_does_not_start(tmp_path: Path) -> None:
    config = {"topic.prefix": "p", "bootstrap.servers": "127.0.0.1:1", "cache.name": "c", "cache.listen": "127.0.0.1:0"}
    node = GridNode(tmp_path / "node", "n1", config | {"rest.port": str(free_port()), "rest.host.name": "0.0.0.0"})
    node.start()
    assert node.ended() == 2
    assert "rest.host.name = '0.0.0.0': is not this machine's own" in node.log
    assert "Traceback" not in node.log
