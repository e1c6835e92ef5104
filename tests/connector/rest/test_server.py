"""The server of the API: what it cannot serve, its limits, its certificates, and its end. Without Kafka.

Bad input: ports and hosts that cannot be listened on, keys that are encrypted, heads without an end, bytes that are no
HTTP, more connections than are taken.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from deelog_connector.devkafka.ports import can_bind, free_port
from deelog_connector.errors import KafkaUnavailable
from deelog_connector.rest import served
from deelog_connector.rest import server as module
from deelog_connector.rest.server import RestServer
from deelog_connector.runtime.lifecycle import Lifecycle
from deelog_schemas.config import ConfigError, parse
from tests.connector.cache import run
from tests.connector.rest.client import Api
from tests.connector.rest.fakes import GIVEN, FakeLifecycle
from tests.connector.rest.test_security import BASE, READING, TOKEN, exchange
from tests.support.waiting import awaiting


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rest.token": "short"}, "rest.token: must be at least 16"),
        ({"rest.token": "x" * 15 + "ä"}, "rest.token: must be at least 16"),
        ({"rest.token": TOKEN, "rest.readonly.token": TOKEN}, "rest.readonly.token: must not be the same"),
        ({"rest.readonly.token": READING}, "rest.token: is required"),
        ({"rest.token": "${env:DEELOG_TEST_NOT_SET}"}, "DEELOG_TEST_NOT_SET"),
        ({"rest.ssl.key.location": "/nowhere"}, "rest.ssl.certificate.location: is required"),
        ({"rest.ssl.ca.location": "/nowhere"}, "rest.ssl.certificate.location: is required"),
        (
            {"rest.ssl.certificate.location": "/nowhere"},
            "rest.ssl.certificate.location: certificate, key or authorities cannot be used: No such file",
        ),
        (
            {"rest.host.name": "203.0.113.1", "rest.token": TOKEN},
            "cannot be listened on at rest.host.name=203.0.113.1 (Cannot assign requested address",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(given: dict[str, str], words: str) -> None:
    async def work() -> None:
        config = parse(BASE | {"rest.port": str(free_port())} | given)
        await served(config, Lifecycle(config, {}))

    with pytest.raises(ConfigError) as refused:
        asyncio.run(work())
    assert words in str(refused.value)
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("more", [{}, {"rest.ssl.key.location": "encrypted.pem"}])
def test_an_encrypted_key_is_refused_without_asking_for_its_password(
    certificates: Path, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(certificates)
    config = parse(BASE | {"rest.port": str(free_port()), "rest.ssl.certificate.location": "encrypted.pem"} | more)
    where = next(iter(more), "rest.ssl.certificate.location")
    with pytest.raises(ConfigError, match=f"{where}: holds a key that is encrypted"):
        asyncio.run(served(config, Lifecycle(config, {})))


class Admin:
    """Answers the id of a cluster, or fails as often as it is told."""

    asked = 0
    fails = 0

    def __init__(self, config: object) -> None: ...

    def cluster_id(self) -> str:
        type(self).asked += 1
        if self.asked <= self.fails:
            raise KafkaUnavailable("no broker answers")
        return "C"


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[Admin]:
    monkeypatch.setattr(Admin, "asked", 0)
    monkeypatch.setattr(Admin, "fails", 0)
    monkeypatch.setattr(module, "KafkaAdmin", Admin)
    return Admin


def serve(test: Callable[[RestServer, Api], Awaitable[None]], **fields: str) -> None:
    """Runs a test with a server of a lifecycle that is none."""

    async def work() -> None:
        port = free_port()
        config = parse(GIVEN | {"rest.port": str(port)} | {n.replace("_", "."): v for n, v in fields.items()})
        server = RestServer(config, FakeLifecycle().real)
        await server.start()
        try:
            await test(server, Api(port))
        finally:
            await server.stop()
        await server.stop()
        assert can_bind(port)

    run(work(), 60)


def test_it_listens_until_it_is_stopped() -> None:
    async def test(server: RestServer, api: Api) -> None:
        assert server.address == f"127.0.0.1:{api.port}"
        reply = await asyncio.to_thread(api.ask, "GET", "/connectors")
        assert (reply.status, reply.json) == (200, ["shop"])
        assert "server" not in reply.headers
        assert (await asyncio.to_thread(api.ask, "GET", "/metrics")).status == 404

    serve(test)


def test_one_that_never_started_is_stopped_at_once() -> None:
    server = RestServer(parse(GIVEN), FakeLifecycle().real)
    run(server.stop(), 20)
    assert server.address == ""


def test_an_address_of_ip_version_6_is_told_in_brackets() -> None:
    async def test(server: RestServer, api: Api) -> None:
        assert server.address == f"[::1]:{api.port}"
        with socket.create_connection(("::1", api.port), timeout=20):
            pass

    serve(test, rest_host_name="::1")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = RestServer(parse(GIVEN | {"rest.port": str(taken.getsockname()[1])}), FakeLifecycle().real)
        with pytest.raises(ConfigError, match=r"rest\.port = \d+: cannot be listened on .* \(Address already in use"):
            run(server.start(), 20)


def test_the_cluster_is_asked_for_once_and_again_only_after_a_while(
    admin: type[Admin], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin.fails = 1
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    async def test(server: RestServer, api: Api) -> None:
        nonlocal now

        async def cluster() -> str:
            reply = await asyncio.to_thread(api.ask, "GET", "/")
            found: str = reply.json["kafka_cluster_id"]
            return found

        assert list(await asyncio.gather(cluster(), cluster())) == ["", ""]
        now += 4.9
        assert (await cluster(), admin.asked) == ("", 1)
        assert caplog.messages.count("GET /: no broker answers") == 1
        now += 0.2
        assert list(await asyncio.gather(cluster(), cluster())) == ["C", "C"]
        assert (await cluster(), admin.asked) == ("C", 2)

    serve(test)


def test_no_more_connections_than_allowed_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)

    async def test(server: RestServer, api: Api) -> None:
        opened = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(5)]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        await awaiting(lambda: sum(task.done() for task in ended) == 2, 20, "the end of two connections")
        for _, writer in opened:
            writer.close()
        await asyncio.wait(ended)

    serve(test)


@pytest.mark.parametrize("beginning", [b"", b"GET / HT"])
def test_a_head_that_does_not_come_ends_its_connection(monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)

    async def test(server: RestServer, api: Api) -> None:
        begun = time.monotonic()
        answer = await asyncio.to_thread(exchange, api.port, beginning, seconds=20.0)
        assert time.monotonic() - begun >= 0.2
        assert answer == b""

    serve(test)


def test_a_request_that_was_read_may_take_longer_than_a_head(
    admin: type[Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.1)
    goes_on = threading.Event()
    monkeypatch.setattr(admin, "cluster_id", lambda self: str(goes_on.wait(20)))

    async def test(server: RestServer, api: Api) -> None:
        asking = asyncio.ensure_future(asyncio.to_thread(api.ask, "GET", "/"))
        await asyncio.sleep(0.3)
        assert not asking.done()
        goes_on.set()
        assert (await asking).json["kafka_cluster_id"] == "True"

    serve(test)


def test_bytes_that_break_the_parser_end_their_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[dict[str, Any]] = []

    def breaks(self: object, data: bytes) -> None:
        raise RuntimeError("a defect of the parser")

    async def test(server: RestServer, api: Api) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        with monkeypatch.context() as patch:
            patch.setattr(H11Protocol, "data_received", breaks)
            assert await asyncio.to_thread(exchange, api.port, b"GET / HTTP/1.1\r\n\r\n", seconds=20.0) == b""
        assert "a request that cannot be read: RuntimeError" in caplog.messages
        assert (await asyncio.to_thread(api.ask, "GET", "/connectors")).status == 200
        assert errors == []

    serve(test)


@pytest.mark.parametrize("authority", [True, False])
def test_with_a_certificate_it_speaks_tls(certificates: Path, authority: bool) -> None:
    def ask(port: int, name: str | None) -> int:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        if name is not None:
            context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        try:
            connection.request("GET", "/connectors")
            return connection.getresponse().status
        finally:
            connection.close()

    async def test(server: RestServer, api: Api) -> None:
        assert await asyncio.to_thread(ask, api.port, "client") == 200
        for name in (None, "stranger"):
            if authority:
                with pytest.raises(OSError):  # noqa: PT011 - refused in the handshake, or closed behind it
                    await asyncio.to_thread(ask, api.port, name)
            else:
                assert await asyncio.to_thread(ask, api.port, name) == 200

    fields = {
        "rest_ssl_certificate_location": str(certificates / "server.pem"),
        "rest_ssl_key_location": str(certificates / "server.key"),
    }
    serve(test, **fields | ({"rest_ssl_ca_location": str(certificates / "ca.pem")} if authority else {}))


@pytest.mark.parametrize(
    ("field", "file"),
    [("certificate", "server.key"), ("key", "client.key"), ("ca", "client.key"), ("ca", "nowhere.pem")],
)
def test_files_that_are_no_certificates_or_of_another_are_named(certificates: Path, field: str, file: str) -> None:
    files = {"certificate": "server.pem", "key": "server.key", "ca": "ca.pem"} | {field: file}
    config = parse(
        GIVEN
        | {"rest.port": str(free_port())}
        | {f"rest.ssl.{name}.location": str(certificates / file) for name, file in files.items()}
    )
    named = "ca" if field == "ca" else "certificate"
    words = rf"rest\.ssl\.{named}\.location: certificate, key or authorities cannot be used: "
    with pytest.raises(ConfigError, match=words):
        run(RestServer(config, FakeLifecycle().real).start(), 20)
