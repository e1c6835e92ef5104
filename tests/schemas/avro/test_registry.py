"""Answers of a schema registry, from a real server on a socket. Each bad one is one error with address and remedy.

Bad answers: HTML, truncated JSON, no body, JSON of another type, invalid ids, versions and schemas, the codes 400, 401,
403, 404, 405, 409, 422, 429, 500 and 503 with and without a body, a redirect to itself, a body without an end, one that
takes too long, a closed connection, TLS to a server without it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import httpx2
import pytest

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_schemas import formats
from deelog_schemas.avro import registry as module
from deelog_schemas.avro.registry import Registry
from deelog_schemas.avro.schema import Part
from deelog_schemas.config import Config, parse
from deelog_schemas.errors import RecordError, RegistryAwayError, RegistryError

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Gives every request the same answer, or answers like a registry with one schema per subject."""

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers))  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self.server.answer(self)  # type: ignore[attr-defined]
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has closed the connection

    do_POST = do_GET

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


class Server(ThreadingHTTPServer):
    """A registry with the answers of a test."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), Handler)
        self.answer: Answer = lambda handler: handler.send(200, b'{"id":7}')
        self.seen: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", HOST)
    found = Server()
    thread = Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def config_of(url: str, **more: str) -> Config:
    fields = {
        "bootstrap.servers": "b:1",
        "topic.prefix": "shop",
        "cache.name": "c",
        "node.id": "n1",
        "value.converter": "avro",
        "value.converter.schema.registry.url": url,
        "errors.max.retries": "0",
        **more,
    }
    return parse(fields)


def asked(url: str, **more: str) -> RegistryError:
    with pytest.raises(RegistryError) as found:
        formats.connected(config_of(url, **more), "grid")
    return found.value


def both(first: bytes, then: bytes) -> Answer:
    """One answer to requests that register a schema, another to those that read."""
    return lambda handler: handler.send(200, first if handler.command == "POST" else then)


def is_list(handler: Handler) -> bool:
    """Whether the request is for the list of a subject's versions."""
    return handler.path.split("?")[0].endswith("versions")


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>It works!</body></html>",
        b'{"id":',
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"7",
        b"{}",
        b'{"id":null}',
        b'{"id":"7"}',
        b'{"id":-1}',
        b'{"id":2147483648}',
        b'{"id":1.5}',
        b'{"id":true}',
        b'{"id":[7]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_garbage_for_an_id(server: Server, body: bytes) -> None:
    server.answer = lambda handler: handler.send(200, body)
    error = asked(server.url)
    assert not isinstance(error, RegistryAwayError), "asking again does not help"
    assert server.url in str(error)
    assert "shop.c-value" in str(error)
    assert len(str(error)) < 1000
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"7",
        b'{"a":1}',
        b'["x"]',
        b"[[1]]",
        b'[{"id":1}]',
    ],
)
def test_garbage_for_versions(server: Server, body: bytes) -> None:
    server.answer = both(b'{"id":7}', body)
    assert "shop.c-value" in str(asked(server.url))


@pytest.mark.parametrize(
    "version",
    [
        b"<html>",
        b"null",
        b"[]",
        b"{}",
        b'{"id":7}',
        b'{"id":7,"schema":7}',
        b'{"id":7,"schema":"no schema"}',
        b'{"id":7,"schema":"{}"}',
        b'{"id":7,"schema":"\\"nothing\\""}',
        b'{"schema":"\\"string\\""}',
    ],
)
def test_garbage_for_a_version(server: Server, version: bytes) -> None:
    def answer(handler: Handler) -> None:
        if handler.command == "POST":
            handler.send(200, b'{"id":7}')
        else:
            handler.send(200, b"[1]" if is_list(handler) else version)

    server.answer = answer
    assert "shop.c-value" in str(asked(server.url))


@pytest.mark.parametrize("body", [b"", b'{"error_code":1,"message":"because"}', b"<html>", b"[]"])
@pytest.mark.parametrize(
    ("status", "said", "again"),
    [
        (400, "with HTTP 400", False),
        (401, r"value.converter.basic.auth.user.info", False),
        (403, r"value.converter.basic.auth.user.info", False),
        (404, r"path \(Apicurio: /apis/ccompat/v7\)", False),
        (405, "with HTTP 405", False),
        (409, "refuses the schema of subject shop.c-value as incompatible", False),
        (422, "refuses the schema of subject shop.c-value as incompatible", False),
        (429, "cannot answer", True),
        (500, "cannot answer", True),
        (503, "cannot answer", True),
    ],
)
def test_statuses(server: Server, status: int, said: str, again: bool, body: bytes) -> None:
    server.answer = lambda handler: handler.send(status, body)
    with pytest.raises(RegistryError, match=said) as found:
        formats.connected(config_of(server.url), "grid")
    assert isinstance(found.value, RegistryAwayError) == again
    assert "shop.c-value" in str(found.value)


def test_a_redirect_is_not_followed(server: Server) -> None:
    server.answer = lambda handler: handler.send(302, b"", Location=f"{server.url}/again")
    assert "with HTTP 302" in str(asked(server.url))
    assert len(server.seen) == 1


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:  # until the client closes the connection
        handler.wfile.write(b"x" * 65_536)


def refused(registry: Registry) -> RegistryAwayError:
    """The error of a direct request. It means that the registry is unavailable."""
    with registry, pytest.raises(RegistryAwayError) as found:
        registry.own_id("shop.c-value", '"bytes"')
    return found.value


def test_a_body_without_an_end(server: Server) -> None:
    server.answer = endless
    assert f"an answer of more than {module.ANSWER_BYTES} bytes" in str(asked(server.url))


def test_a_small_body_that_unpacks_to_a_large_one(server: Server) -> None:
    packed = gzip.compress(b" " * (64 << 20))
    server.answer = lambda handler: handler.send(200, packed, Content_Encoding="gzip")
    assert "an answer in encoding gzip" in str(asked(server.url))
    assert server.seen[0][2]["Accept-Encoding"] == "identity"


def test_user_without_password(server: Server) -> None:
    error = asked(server.url, **{"value.converter.basic.auth.user.info": "geheim"})
    assert str(error) == "value.converter.basic.auth.user.info: must be user:password"


def test_a_body_that_takes_too_long(server: Server) -> None:
    server.answer = endless
    clock = itertools.count(0.0, 20.0).__next__
    error = refused(Registry(config_of(server.url), "value", clock=clock))
    assert "not over after 10 s" in str(error)


def test_silence(server: Server) -> None:
    given_up = Event()

    def answer(handler: Handler) -> None:
        given_up.wait(60)

    server.answer = answer
    error = refused(Registry(config_of(server.url), "value", request_seconds=0.3))
    given_up.set()
    assert "does not answer about subject shop.c-value: timed out" in str(error)


def test_a_connection_that_is_closed(server: Server) -> None:
    def answer(handler: Handler) -> None:
        handler.close_connection = True
        handler.connection.close()

    server.answer = answer
    error = asked(server.url)
    assert isinstance(error, RegistryAwayError)
    assert "does not answer about subject shop.c-value: Server disconnected" in str(error)


def test_tls_to_who_does_not_speak_it(server: Server) -> None:
    assert "https" in str(asked(server.url.replace("http", "https")))


def test_it_is_asked_again_as_often_as_may_be(server: Server) -> None:
    good: Answer = both(b'{"id":7}', b"[]")
    count = iter(range(100))
    server.answer = lambda handler: handler.send(503, b"") if next(count) < 3 else good(handler)
    fields = {"retriable.restart.connector.wait.ms": "100"}
    assert isinstance(asked(server.url, **{**fields, "errors.max.retries": "2"}), RegistryAwayError)
    assert len(server.seen) == 3
    found = formats.connected(config_of(server.url, **{**fields, "errors.max.retries": "2"}), "grid")
    assert found.registered["value"].prefix == b"\0\0\0\0\x07"


def test_without_end_is_a_minute_all_the_same(server: Server) -> None:
    server.answer = lambda handler: handler.send(503, b"")
    fields = {"retriable.restart.connector.wait.ms": "100", "errors.max.retries": "-1"}
    clock = itertools.count(0.0, 5.0).__next__
    error = refused(Registry(config_of(server.url, **fields), "value", clock=clock))
    assert "503" in str(error)
    assert len(server.seen) > 1


def test_the_next_address_is_asked(server: Server) -> None:
    server.answer = both(b'{"id":7}', b"[]")
    found = formats.connected(config_of(f"http://{HOST}:{free_port()},{server.url}"), "grid")
    assert found.registered["value"].subjects == ("shop.c-value",)


def test_user_and_password_are_sent_and_never_shown(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.answer = lambda handler: handler.send(401, b"")
    fields = {"value.converter.basic.auth.user.info": "me:geheim"}
    error = asked(server.url, **fields)
    assert server.seen[0][2]["Authorization"] == "Basic bWU6Z2VoZWlt"
    assert "geheim" not in f"{error!r} {caplog.text} {config_of(server.url, **fields)!r}"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_authority_that_is_none(server: Server, tmp_path: Any, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    error = asked(server.url, **{"value.converter.schema.registry.ssl.ca.location": str(path)})
    assert f"value.converter.schema.registry.ssl.ca.location = '{path}'" in str(error)


def test_a_schema_that_was_registered_since_is_looked_up(server: Server) -> None:
    server.answer = both(b'{"id":7}', b"[]")
    config = formats.connected(config_of(server.url), "grid")
    codec = formats.codec_of(config, "grid")
    named = b"\0\0\0\0\x09\x02v"
    with pytest.raises(RecordError, match=r"schema id 9 is not registered under shop\.c-value"):
        codec.plain_value(named)
    told = json.dumps({"id": 9, "version": 1, "subject": "shop.c-value", "schema": '"string"'}).encode()
    server.answer = lambda handler: handler.send(200, b"[1]" if is_list(handler) else told)
    with pytest.raises(RecordError, match="is no record, but str"):
        codec.plain_value(named)
    server.answer = lambda handler: handler.send(503, b"")
    with pytest.raises(RecordError, match="is no record, but str"):
        codec.plain_value(named)  # its schema is known from now on
    with pytest.raises(RegistryAwayError):
        codec.plain_value(b"\0\0\0\0\x0a")


def test_ids_that_differ_by_subject(server: Server) -> None:
    """A registry that numbers per subject: the same key would have different bytes in the diff topic."""

    def answer(handler: Handler) -> None:
        handler.send(200, b"[]" if handler.command == "GET" else b'{"id":%d}' % (len(handler.path) % 1000))

    server.answer = answer
    fields = {"key.converter": "avro", "key.converter.schema.registry.url": server.url}
    formats.connected(config_of(server.url, **fields), "grid")
    with pytest.raises(RegistryError, match=r"another id under shop\.c\.diff-key and shop\.c-key"):
        formats.connected(config_of(server.url, **fields), "grid", diff=True)


def test_values_may_have_another_id_in_each_subject(server: Server) -> None:
    """Nobody compares their bytes between topics, and only the diff topic's subject is written to."""

    def answer(handler: Handler) -> None:
        handler.send(200, b"[]" if handler.command == "GET" else b'{"id":%d}' % len(handler.path))

    server.answer = answer
    found = formats.connected(config_of(server.url), "grid", diff=True).registered["value"]
    posted = [path.split("?")[0] for command, path, _ in server.seen if command == "POST"]
    assert posted == ["/subjects/shop.c.diff-value/versions"]
    assert found.subjects == ("shop.c.diff-value", "shop.c-value")


def test_a_subject_that_nobody_wrote_has_no_other_schemas(server: Server) -> None:
    server.answer = lambda handler: handler.send(200 if handler.command == "POST" else 404, b'{"id":7}')
    found = formats.connected(config_of(server.url), "grid").registered["value"]
    assert list(found.known) == [b"\0\0\0\0\7"]


def test_without_registering_ours_must_be_there(server: Server) -> None:
    fields = {"value.converter.auto.register.schemas": "false"}
    told = json.dumps({"id": 9, "version": 1, "subject": "shop.c-value", "schema": '"string"'}).encode()
    server.answer = both(told, b"[]")
    assert formats.connected(config_of(server.url, **fields), "grid").registered["value"].prefix == b"\0\0\0\0\x09"
    assert [path.split("?")[0] for command, path, _ in server.seen if command == "POST"] == ["/subjects/shop.c-value"]
    server.answer = lambda handler: handler.send(404, b"")
    error = str(asked(server.url, **fields))
    assert "does not have our schema under subject shop.c-value: register it, or set" in error
    assert "has no place to register subject shop.c-value (HTTP 404)" in str(asked(server.url))


def test_a_registry_is_closed_with_its_block(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    with Registry(config_of(server.url), "value") as registry:
        monkeypatch.setattr(registry._client, "close", lambda: closed.append("closed"))
    assert closed == ["closed"]


@pytest.mark.parametrize(("length", "told"), [(300, "x" * 300), (301, "x" * 300 + "…")])
def test_of_what_a_registry_says_300_characters_are_shown(server: Server, length: int, told: str) -> None:
    body = json.dumps({"error_code": 1, "message": "x" * length}).encode()
    server.answer = lambda handler: handler.send(400, body)
    assert f"HTTP 400: {told}; see value.converter" in str(asked(server.url))


class Stream:
    """The body of an answer, chunk by chunk."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks, self.closed = chunks, False

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)

    def close(self) -> None:
        self.closed = True


def test_the_largest_and_the_slowest_body() -> None:
    half = b"x" * (module.ANSWER_BYTES // 2)
    assert list(module._Bounded(Stream(half, half), 1.0, lambda: 0.0)) == [half, half]
    with pytest.raises(httpx2.DecodingError, match="more than"):
        list(module._Bounded(Stream(half, half, b"x"), 1.0, lambda: 0.0))
    moments = iter([5.0, 6.0, 6.01])
    chunks = iter(module._Bounded(Stream(b"a", b"b"), 1.0, lambda: next(moments)))
    assert next(chunks) == b"a"
    with pytest.raises(httpx2.ReadTimeout, match="not over after 1 s"):
        next(chunks)
    stream = Stream()
    module._Bounded(stream, 1.0, lambda: 0.0).close()
    assert stream.closed


def test_a_codec_before_the_registry_was_asked(server: Server) -> None:
    with pytest.raises(RuntimeError, match="connected"):
        formats.codec_of(config_of(server.url), "grid")


def test_what_a_registry_said_travels_without_its_client() -> None:
    """Spark's executors need `fastavro`, but no registry client."""
    fields = {"topic.prefix": "p", "cache.name": "c", "bootstrap.servers": "h:1", "node.id": "n"}
    config = parse(fields).with_registered({"key": Part(b"1234", {b"1234": "{}"}, ("p.c-key",))})
    program = (
        "import sys, pickle\n"
        "for name in ('httpx2', 'confluent_kafka.schema_registry'): sys.modules[name] = None\n"
        "print(pickle.loads(sys.stdin.buffer.read()).registered['key'].subjects)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(config), capture_output=True, check=True)
    assert done.stdout.strip() == b"('p.c-key',)"


def test_one_that_takes_no_schemas_now_is_not_told_as_incompatible(server: Server) -> None:
    server.answer = lambda handler: handler.send(422, b'{"error_code":42205,"message":"is in read-only mode"}')
    told = asked(server.url)
    assert "takes no schemas now, so not that of subject shop.c-value: is in read-only mode" in str(told)
    assert "incompatible" not in str(told)
