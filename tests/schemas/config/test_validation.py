"""The verdict on a configuration, in Kafka Connect's format."""

from __future__ import annotations

from typing import Any

from deelog_schemas.config import FIELDS, GROUPS, FieldError
from deelog_schemas.config.validation import definitions, judge
from tests.schemas.config.builders import GOOD, PASSWORD


def values_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["value"]["name"]: entry["value"] for entry in body["configs"]}


def test_a_verdict_shows_all_fields_and_of_unknown_ones_no_value() -> None:
    bad = {"cache.acks": 3, "tombstones.on.delete": True, "max.batch.sise": 5, "transforms": [], PASSWORD: "hunter2"}
    verdict = judge(GOOD | bad, further=[FieldError("node.id", "is taken")])
    assert verdict.shown == GOOD | {"cache.acks": "3", "tombstones.on.delete": "true", PASSWORD: "********"}
    body = verdict.body
    assert (body["name"], body["error_count"]) == (FIELDS["connector.class"].default, len(verdict.errors))
    assert body["groups"] == list(GROUPS)
    values = values_of(body)
    assert list(values) == [*FIELDS, "max.batch.sise", PASSWORD]
    assert [name for name, value in values.items() if value["errors"]] == ["cache.acks", "node.id", "max.batch.sise"]
    assert values["node.id"]["errors"] == ["node.id: is taken"]
    assert (values["cache.acks"]["value"], values["cache.acks"]["recommended_values"]) == ("3", ["all", "1", "0"])
    assert (values["max.batch.size"]["value"], values["max.batch.sise"]["value"]) == ("8192", None)
    assert values["max.batch.sise"]["recommended_values"] == []
    assert all(value["visible"] for value in values.values())
    assert [e["value"]["name"] for e in body["configs"] if e["definition"] is None] == ["max.batch.sise", PASSWORD]


def test_what_is_accepted_has_no_errors_and_each_role_its_own() -> None:
    verdict = judge(GOOD | {"connector.class": "deelog.CachetoolsConnector"})
    assert (verdict.errors, verdict.body["error_count"]) == ((), 0)
    assert verdict.body["name"] == "deelog.CachetoolsConnector"
    assert [error.field for error in judge(GOOD, "diff").errors] == ["diff.checkpoint.location"]


def test_a_class_that_is_none_is_named_as_it_was_given() -> None:
    body = judge(GOOD | {"connector.class": "other"}).body
    assert (body["name"], body["error_count"]) == ("other", 1)


def test_definitions_are_those_of_connect() -> None:
    answers = definitions()
    assert [answer["name"] for answer in answers] == list(FIELDS)
    by_name = {answer["name"]: answer for answer in answers}
    servers = FIELDS["bootstrap.servers"]
    assert by_name["bootstrap.servers"] == {
        "name": "bootstrap.servers",
        "type": "LIST",
        "required": True,
        "default_value": None,
        "importance": "HIGH",
        "documentation": servers.doc,
        "group": "kafka",
        "order_in_group": 1,
        "width": "MEDIUM",
        "display_name": "bootstrap.servers",
        "dependents": [],
    }
    acks = by_name["cache.acks"]
    assert (acks["type"], acks["required"], acks["default_value"]) == ("STRING", False, "all")
    for group in GROUPS:
        places = [answer["order_in_group"] for answer in answers if answer["group"] == group]
        assert places == list(range(1, len(places) + 1)), group
