"""The table of routes as an ASGI application. The one module that knows Starlette."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as AtPath

from deelog_connector.rest.access import Access
from deelog_connector.rest.entities import Answer, Call, ErrorMessage, RestError
from deelog_connector.rest.openapi import document
from deelog_connector.rest.routes import REFUSED, Route

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 1_048_576
"""As much as a configuration file may hold."""
BODY_SECONDS: Final = 5.0
_PHRASES: Final = {404: "Not Found", 405: "Method Not Allowed", 415: "Unsupported Media Type"}


def application(table: Iterable[Route], access: Access, version: str) -> Starlette:
    """What a server serves: `{error_code, message}` for every error, unless the process ends meanwhile."""
    table = list(table)
    openapi = msgspec.json.encode(document(table, version, access.asks))
    paths: dict[str, dict[str, Route]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method] = route
    routes = [
        AtPath(path, _endpoint(methods, access), methods=list(methods), include_in_schema=False)
        for path, methods in paths.items()
    ]
    routes.append(AtPath("/openapi.json", _document(openapi, access), methods=["GET"]))
    # Connect serves both spellings of its collections without a redirect.
    routes += [
        AtPath(f"{path}/", _endpoint(paths[path], access), methods=list(paths[path]))
        for path in ("/connectors", "/connector-plugins", "/admin/loggers")
    ]
    for (method, path), why in REFUSED.items():
        routes.append(AtPath(path, _refusal(why, paths.get(path, {}), access), methods=[method]))
    app = Starlette(
        routes=routes, exception_handlers={RestError: _rest_error, HTTPException: _http_error, Exception: _bug}
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(methods: Mapping[str, Route], access: Access) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        route = methods["GET" if request.method == "HEAD" else request.method]
        access.check(request.headers, route.changes, route.open)
        body = None
        if route.body is not None:
            body = _decoded(await _body(request), route.body)
        call = Call(dict(request.path_params), request.query_params.multi_items(), body)
        answer = await route.handler(call)
        return _response(answer)

    return endpoint


def _refusal(why: str, methods: Iterable[str], access: Access) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        access.check(request.headers, True, False)
        raise RestError(405, why, {"Allow": ", ".join(methods)})

    return endpoint


def _document(content: bytes, access: Access) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        access.check(request.headers, False, False)
        return Response(content, media_type="application/json")

    return endpoint


async def _body(request: Request) -> bytes:
    """At most `MAX_BODY_BYTES`, within `BODY_SECONDS`; refused as soon as it is known to be more."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RestError(415, f"HTTP 415 {_PHRASES[415]}")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_BODY_BYTES:
                    raise _too_large()
    except TimeoutError:
        raise RestError(408, f"The body did not come within {BODY_SECONDS:g} s", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise RestError(400, "The client went away") from None
    return bytes(content)


def _too_large() -> RestError:
    return RestError(413, f"The body must not be larger than {MAX_BODY_BYTES} bytes", {"Connection": "close"})


def _decoded(content: bytes, kind: Any) -> Any:
    """Errors name the place and the type, never what was there: it may be a secret."""
    try:
        given = json.loads(content.decode(), object_pairs_hook=_without_repeats, parse_constant=_no_constant)
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise RestError(400, f"The body is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise RestError(
            400, f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except UnicodeEncodeError:
        raise RestError(400, "The body holds half of a character (a surrogate without its other half)") from None
    except (RecursionError, ValueError):  # nested too deep; a number of more than 4300 digits
        raise RestError(400, "The body is not JSON that a request could be") from None
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RestError(400, f"The body is not right: {_without_value(error)}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise RestError(400, "The body is not right: a name is there more than once")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise RestError(400, f"The body is not JSON: {name} is no number of it")


def _without_value(error: Exception) -> str:
    """msgspec quotes a value of an enumeration that it does not know."""
    text, _, place = str(error).partition(" - at ")
    return f"{'Invalid enum value' if text.startswith('Invalid enum value') else text}{place and f' - at {place}'}"


def _response(answer: Answer) -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **answer.headers}
    if answer.body is None:
        return Response(status_code=answer.status, headers=headers)
    if isinstance(answer.body, bytes):
        return Response(answer.body, answer.status, headers)
    return Response(msgspec.json.encode(answer.body), answer.status, headers, media_type="application/json")


async def _rest_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RestError)
    return _response(Answer(ErrorMessage(error.status, error.message), error.status, error.headers))


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    message = f"HTTP {status} {_PHRASES.get(status, error.detail)}"
    return _response(Answer(ErrorMessage(status, message), status, dict(error.headers or {})))


async def _bug(request: Request, error: Exception) -> Response:
    """No stack trace to the client: it is in the log."""
    log.error("%s %s: a bug", request.method, request.url.path, exc_info=error)
    return _response(Answer(ErrorMessage(500, "Internal error; the log of the process says more"), 500))
