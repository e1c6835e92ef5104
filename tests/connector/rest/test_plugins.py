"""The plugin of a process, and its judgement of configurations. Bad input: other plugins, fields that are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.rest.entities import Plugin
from deelog_connector.rest.plugins import Plugins
from deelog_schemas.config.validation import definitions
from tests.connector.rest.fakes import GIVEN, FakeLifecycle, asked, refused

PLUGINS = Plugins(FakeLifecycle().real, "1.2")


def judged(given: dict[str, Any], plugin: str = "CachetoolsConnector") -> dict[str, list[str]]:
    """The errors of each field that has some."""
    body = asked(PLUGINS.validate, given, plugin=plugin).body
    errors = {entry["value"]["name"]: entry["value"]["errors"] for entry in body["configs"] if entry["value"]["errors"]}
    assert body["error_count"] == sum(map(len, errors.values()))
    return errors


def test_there_is_one_plugin() -> None:
    assert asked(PLUGINS.listed).body == [Plugin("deelog.CachetoolsConnector", "source", "1.2")]


@pytest.mark.parametrize(
    "plugin", ["deelog.CachetoolsConnector", "deelog.Cachetools", "CachetoolsConnector", "Cachetools"]
)
def test_it_answers_by_each_of_its_names(plugin: str) -> None:
    assert asked(PLUGINS.config, plugin=plugin).body == definitions()
    assert judged(GIVEN, plugin) == {}


@pytest.mark.parametrize("plugin", ["deelog", "Connector", "other.CachetoolsConnector", "Cachetool", ""])
def test_another_plugin_is_unknown(plugin: str) -> None:
    assert refused(PLUGINS.config, plugin=plugin) == (404, f"Unknown plugin {plugin}.")
    assert refused(PLUGINS.validate, {}, plugin=plugin) == (404, f"Unknown plugin {plugin}.")


def test_a_configuration_of_another_class_is_refused() -> None:
    given = {"connector.class": "deelog.Other"}
    assert refused(PLUGINS.validate, given, plugin="CachetoolsConnector") == (
        400,
        "Included connector type deelog.Other does not match request type CachetoolsConnector",
    )


def test_what_is_wrong_is_in_the_answer_and_references_are_not_looked_up() -> None:
    errors = judged({**GIVEN, "max.batch.size": -1, "tracing.headers.enabled": True, "topic.prefix": "${env:NONE}"})
    assert errors.keys() == {"max.batch.size", "topic.prefix"}
    assert errors["topic.prefix"] == [
        "topic.prefix: must not refer to anything but what the process's own file refers to, under the same name"
    ]
