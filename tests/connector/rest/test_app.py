"""The application: how a request finds its handler, what bodies are taken, and how errors are answered.

Bad input: bodies that are too large, of another type, no JSON, not UTF-8, nested too deep, or with a name twice; routes
that there are not; handlers that fail.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
import pytest
from starlette.requests import Request

from deelog_connector.rest import app as module
from deelog_connector.rest.access import Access
from deelog_connector.rest.app import MAX_BODY_BYTES, application
from deelog_connector.rest.entities import Answer, Call, RestError
from deelog_connector.rest.routes import Route
from deelog_schemas.config import parse
from tests.connector.rest.asgi import JSON, Asgi, Reply
from tests.connector.rest.fakes import GIVEN

TOKEN = "everything-0123456789"


class Body(msgspec.Struct):
    level: Literal["low", "high"]
    count: int = 0


class Handlers:
    """Note their calls, and answer or raise what they are told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answer: Answer | Exception = Answer({"a": 1})

    async def __call__(self, call: Call) -> Answer:
        self.calls.append(call)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def app(handlers: Handlers, **fields: str) -> Asgi:
    table = [
        Route("GET", "/connectors", handlers, "List", {200: str}, query=("expand",)),
        Route("GET", "/connector-plugins", handlers, "List", {200: str}),
        Route("GET", "/admin/loggers", handlers, "List", {200: str}),
        Route("GET", "/connectors/{connector}", handlers, "One", {200: str}),
        Route("PUT", "/connectors/{connector}", handlers, "Change", {200: str}, Body),
        Route("GET", "/health", handlers, "Health", {200: str}, open=True),
    ]
    config = parse(GIVEN | {name.replace("_", "."): value for name, value in fields.items()})
    return Asgi(application(table, Access(config), "1.2"))


def test_a_request_finds_its_handler_with_path_query_and_body(handlers: Handlers) -> None:
    asgi = app(handlers)
    assert asgi.ask("GET", "/connectors?expand=a&expand=b").status == 200
    assert asgi.ask("PUT", "/connectors/shop", b'{"level": "low"}', JSON).status == 200
    assert handlers.calls == [
        Call({}, [("expand", "a"), ("expand", "b")], None),
        Call({"connector": "shop"}, [], Body("low")),
    ]


@pytest.mark.parametrize("path", ["/connectors/", "/connector-plugins/", "/admin/loggers/"])
def test_collections_have_two_spellings_and_others_one(handlers: Handlers, path: str) -> None:
    asgi = app(handlers)
    assert asgi.ask("GET", path).status == 200
    assert asgi.ask("GET", "/connectors/shop/").status == 404
    assert len(handlers.calls) == 1


def test_a_head_is_a_get(handlers: Handlers) -> None:
    assert app(handlers).ask("HEAD", "/connectors").status == 200
    assert len(handlers.calls) == 1


def test_an_answer_is_json_bytes_or_nothing(handlers: Handlers) -> None:
    asgi = app(handlers)
    reply = asgi.ask("GET", "/connectors")
    assert (reply.json, reply.headers["content-type"]) == ({"a": 1}, "application/json")
    assert (reply.headers["cache-control"], reply.headers["x-content-type-options"]) == ("no-store", "nosniff")
    handlers.answer = Answer(b"page", 203, {"Content-Type": "text/x", "Cache-Control": "max-age=1"})
    reply = asgi.ask("GET", "/connectors")
    assert (reply.status, reply.content, reply.headers["content-type"]) == (203, b"page", "text/x")
    assert reply.headers["cache-control"] == "max-age=1"
    handlers.answer = Answer(status=204, headers={"X": "y"})
    reply = asgi.ask("GET", "/connectors")
    assert (reply.status, reply.content, reply.headers["x"]) == (204, b"", "y")


def error(reply: Reply) -> tuple[int, str]:
    """The error of a reply, whose body has the status, too."""
    assert reply.json["error_code"] == reply.status
    return reply.status, reply.json["message"]


def test_errors_are_connects(handlers: Handlers, caplog: pytest.LogCaptureFixture) -> None:
    asgi = app(handlers)
    handlers.answer = RestError(409, "not now", {"Retry-After": "1"})
    reply = asgi.ask("GET", "/connectors")
    assert (error(reply), reply.headers["retry-after"]) == ((409, "not now"), "1")
    assert error(asgi.ask("GET", "/nowhere")) == (404, "HTTP 404 Not Found")
    reply = asgi.ask("POST", "/health")
    assert (error(reply), set(reply.headers["allow"].split(", "))) == (
        (405, "HTTP 405 Method Not Allowed"),
        {"GET", "HEAD"},
    )
    handlers.answer = RuntimeError("hunter2")
    reply = asgi.ask("GET", "/connectors")
    assert error(reply) == (500, "Internal error; the log of the process says more")
    assert "GET /connectors: a bug" in caplog.messages
    assert "hunter2" in caplog.text


def test_what_connect_has_and_this_process_has_not_is_refused_with_the_reason(handlers: Handlers) -> None:
    asgi = app(handlers)
    for method, path, allowed in (
        ("POST", "/connectors", "GET"),
        ("DELETE", "/connectors/shop", "GET, PUT"),
        ("PUT", "/connectors/shop/topics/reset", ""),
    ):
        reply = asgi.ask(method, path)
        assert (reply.status, reply.headers["allow"]) == (405, allowed)
        assert "Method Not Allowed" not in error(reply)[1]
    assert handlers.calls == []


def test_access_is_checked_before_a_handler_or_a_body(handlers: Handlers) -> None:
    asgi = app(handlers, rest_token=TOKEN, rest_readonly_token="looking-0123456789abc")
    for method, path in (
        ("GET", "/connectors"),
        ("PUT", "/connectors/shop"),
        ("DELETE", "/connectors/shop"),
        ("GET", "/openapi.json"),
    ):
        assert asgi.ask(method, path).status == 401
        assert asgi.took == 0
    looks = {"authorization": "Bearer looking-0123456789abc", **JSON}
    assert [asgi.ask(m, "/connectors/shop", b'{"level":"low"}', looks).status for m in ("GET", "PUT", "DELETE")] == [
        200,
        403,
        403,
    ]
    assert asgi.ask("GET", "/openapi.json", headers=looks).status == 200
    assert asgi.ask("GET", "/health").status == 200
    assert len(handlers.calls) == 2


def test_the_document_is_that_of_the_table(handlers: Handlers) -> None:
    asgi = app(handlers)
    document = asgi.ask("GET", "/openapi.json")
    assert document.headers["content-type"] == "application/json"
    assert set(document.json["paths"]) == {
        "/connectors",
        "/connector-plugins",
        "/admin/loggers",
        "/connectors/{connector}",
        "/health",
    }
    assert document.json["info"]["version"] == "1.2"
    assert "securitySchemes" not in document.json["components"]


def put(asgi: Asgi, body: Any, **headers: str) -> Reply:
    return asgi.ask("PUT", "/connectors/shop", body, JSON | {n.replace("_", "-"): v for n, v in headers.items()})


def test_a_body_comes_in_pieces_up_to_its_limit(handlers: Handlers) -> None:
    asgi = app(handlers)
    whole = b'{"level":"low"}'
    assert put(asgi, [whole[:3], b"", whole[3:]]).status == 200
    blanks = b" " * (MAX_BODY_BYTES - len(whole))
    assert put(asgi, [whole, blanks]).status == 200
    reply = put(asgi, [whole, blanks, b" ", b" "])
    assert (error(reply)[0], reply.headers["connection"], asgi.took) == (413, "close", 3)
    reply = put(asgi, whole, content_length=str(MAX_BODY_BYTES + 1))
    assert (error(reply), asgi.took) == ((413, f"The body must not be larger than {MAX_BODY_BYTES} bytes"), 0)
    assert put(asgi, whole, content_length="9" * 5000).status == 413
    assert put(asgi, whole, content_length=str(MAX_BODY_BYTES)).status == 200
    assert put(asgi, whole, content_length="many").status == 200


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("", 415),
        ("application/json-patch+json", 415),
    ],
)
def test_a_body_is_json_by_its_type(handlers: Handlers, kind: str, status: int) -> None:
    reply = put(app(handlers), b'{"level":"low"}', content_type=kind)
    assert reply.status == status
    assert status == 200 or error(reply)[1] == "HTTP 415 Unsupported Media Type"


def test_a_client_that_is_gone_or_slow_is_not_waited_for(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    asgi = app(handlers)
    assert error(put(asgi, [b"{", None])) == (400, "The client went away")
    monkeypatch.setattr(module, "BODY_SECONDS", 0.05)

    async def never(self: Any) -> Any:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr(Request, "stream", never)
    reply = put(asgi, b"{}")
    assert error(reply) == (408, "The body did not come within 0.05 s")
    assert reply.headers["connection"] == "close"
    assert handlers.calls == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "The body is not JSON: Expecting value at line 1, column 1"),
        (b'{"level":\n1,}', "The body is not JSON: "),
        (b'{"level":"\xff"}', "The body is not UTF-8 at byte 10"),
        (b"[" * 100_000, "The body is not JSON that a request could be"),
        (b"9" * 5000, "The body is not JSON that a request could be"),
        (b'{"level":"low","level":"high"}', "The body is not right: a name is there more than once"),
        (b'{"level":"low","count":NaN}', "The body is not JSON: NaN is no number of it"),
        (b'{"level":"\\ud83d"}', "The body holds half of a character"),
        (b'{"level":"secret"}', "The body is not right: Invalid enum value - at `$.level`"),
        (b'{"level":5}', "The body is not right: Expected `str`, got `int` - at `$.level`"),
        (b"[]", "The body is not right: Expected `object`, got `array`"),
        (b'{"count":1}', "The body is not right: Object missing required field `level`"),
    ],
)
def test_a_body_that_is_not_right_says_what_and_not_what_was_there(handlers: Handlers, body: bytes, words: str) -> None:
    status, message = error(put(app(handlers), body))
    assert (status, message.startswith(words)) == (400, True), message
    assert "secret" not in message
    assert handlers.calls == []
