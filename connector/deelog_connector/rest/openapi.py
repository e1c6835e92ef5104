"""The OpenAPI document, from the table of routes and msgspec's schemas of their types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from deelog_connector.rest.entities import ErrorMessage
from deelog_connector.rest.routes import Route

_BOOLEANS: Final = ("includeTasks", "onlyFailed", "connectorsOnly")
_ALWAYS: Final = {
    400: "not right; the message says what",
    404: "nothing there of this name",
    503: "the connector has not started yet",
}
_WITH_BODY: Final = {
    408: "the body did not come in time",
    413: "the body is too large",
    415: "the body is not application/json",
}


def document(table: Iterable[Route], version: str, token: bool) -> dict[str, Any]:
    """OpenAPI 3.1. `token`: whether one is asked for."""
    table = list(table)
    types = [kind for route in table for kind in (route.body, *route.answers.values()) if kind is not None]
    _, components = msgspec.json.schema_components([*types, ErrorMessage], ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, token)
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "deelog",
            "version": version,
            "description": "The REST API of a connector: Kafka Connect's, for change data capture of caches.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return made


def _operation(route: Route, token: bool) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [_query(name) for name in route.query]
    made: dict[str, Any] = {"summary": route.summary, "parameters": parameters, "responses": _responses(route, token)}
    if route.body is not None:
        made["requestBody"] = {"required": True, "content": _json(route.body)}
    if token and not route.open:
        made["security"] = [{"token": []}]
    return made


def _query(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"} if name in _BOOLEANS else {"type": "string"}
    if name == "expand":
        schema = {"type": "array", "items": {"type": "string", "enum": ["status", "info"]}}
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _responses(route: Route, token: bool) -> dict[str, Any]:
    described: dict[int, str] = dict(_ALWAYS)
    if route.body is not None:
        described |= _WITH_BODY
    if token and not route.open:
        described |= {401: "no token, or a wrong one"}
    if route.changes:
        described |= {403: "may only look, or came from another site's page", 500: "Kafka did not answer in time"}
    responses: dict[str, Any] = {
        str(status): {"description": text, "content": _json(ErrorMessage)} for status, text in described.items()
    }
    for status, kind in route.answers.items():
        responses[str(status)] = {"description": route.summary} | ({} if kind is None else {"content": _json(kind)})
    return responses


def _json(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return {"application/json": {"schema": schema}} if kind is not str else {"text/plain": {"schema": schema}}
