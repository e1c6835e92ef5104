"""The OpenAPI document of a table of routes."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.rest.entities import Answer, Call, LoggerLevel, NewLevel
from deelog_connector.rest.openapi import document
from deelog_connector.rest.routes import Route


async def handler(call: Call) -> Answer:
    return Answer()


QUERY = ("expand", "onlyFailed", "scope")
TABLE = [
    Route(
        "GET", "/{a}/b/{c}", handler, "Looks", {200: LoggerLevel, 204: None}, query=("expand", "onlyFailed", "scope")
    ),
    Route("PUT", "/{a}/b/{c}", handler, "Changes", {200: list[str]}, NewLevel),
    Route("PUT", "/config/validate", handler, "Judges", {200: dict[str, str]}, NewLevel),
    Route("GET", "/metrics", handler, "Page", {200: str}),
    Route("GET", "/health", handler, "Health", {200: LoggerLevel}, open=True),
]


def operation(method: str, path: str, token: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = document(TABLE, "1.2", token)["paths"][path][method]
    return found


def test_it_has_each_path_with_its_methods_and_each_type_once() -> None:
    made = document(iter(TABLE), "1.2", False)
    assert (made["openapi"], made["info"]["title"], made["info"]["version"]) == ("3.1.0", "deelog", "1.2")
    assert {path: set(methods) for path, methods in made["paths"].items()} == {
        "/{a}/b/{c}": {"get", "put"},
        "/config/validate": {"put"},
        "/metrics": {"get"},
        "/health": {"get"},
    }
    assert made["components"].keys() == {"schemas"}
    assert made["components"]["schemas"].keys() == {"LoggerLevel", "NewLevel", "ErrorMessage"}


def test_parameters_are_those_of_the_path_and_of_the_query() -> None:
    text, boolean = {"type": "string"}, {"type": "boolean"}
    expand = {"type": "array", "items": {"type": "string", "enum": ["status", "info"]}}
    assert operation("get", "/{a}/b/{c}")["parameters"] == [
        {"name": "a", "in": "path", "required": True, "schema": text},
        {"name": "c", "in": "path", "required": True, "schema": text},
        {"name": "expand", "in": "query", "required": False, "schema": expand},
        {"name": "onlyFailed", "in": "query", "required": False, "schema": boolean},
        {"name": "scope", "in": "query", "required": False, "schema": text},
    ]
    assert operation("put", "/config/validate")["parameters"] == []


@pytest.mark.parametrize(
    ("method", "path", "token", "statuses"),
    [
        ("get", "/{a}/b/{c}", True, {"200", "204", "400", "401", "404", "503"}),
        ("get", "/{a}/b/{c}", False, {"200", "204", "400", "404", "503"}),
        ("put", "/{a}/b/{c}", True, {"200", "400", "401", "403", "404", "408", "413", "415", "500", "503"}),
        ("put", "/config/validate", True, {"200", "400", "401", "404", "408", "413", "415", "503"}),
        ("get", "/health", True, {"200", "400", "404", "503"}),
    ],
)
def test_answers_are_those_of_the_route_and_the_errors_that_it_may_have(
    method: str, path: str, token: bool, statuses: set[str]
) -> None:
    assert operation(method, path, token)["responses"].keys() == statuses


def test_what_is_sent_and_answered_has_its_schema() -> None:
    def reference(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    looks, changes = operation("get", "/{a}/b/{c}"), operation("put", "/{a}/b/{c}")
    assert (looks["summary"], "requestBody" in looks) == ("Looks", False)
    assert looks["responses"]["200"] == {"description": "Looks", "content": reference("LoggerLevel")}
    assert looks["responses"]["204"] == {"description": "Looks"}
    assert looks["responses"]["404"] == {
        "description": "nothing there of this name",
        "content": reference("ErrorMessage"),
    }
    assert changes["requestBody"] == {"required": True, "content": reference("NewLevel")}
    assert operation("get", "/metrics")["responses"]["200"]["content"] == {"text/plain": {"schema": {"type": "string"}}}


def test_a_token_is_asked_for_but_where_it_is_open() -> None:
    made = document(TABLE, "1.2", True)
    assert made["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert operation("get", "/metrics")["security"] == [{"token": []}]
    assert "security" not in operation("get", "/health")
    assert "security" not in operation("get", "/metrics", token=False)
