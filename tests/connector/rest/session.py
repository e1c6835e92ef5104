"""One session as a user would type it with curl, sent to a real Kafka Connect and to one of our nodes.

`$config` is the connector's own configuration, `$plugin` its class. `until` is a state of the connector to wait for
after the request, since Connect does most of its work asynchronously.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

NAME = "mine"
ME = f"/connectors/{NAME}"


@dataclass(frozen=True)
class Step:
    label: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    until: str | None = None
    ready: str | None = None
    """Repeat the request until the answer has this name: Connect sees its own topics and offsets later."""


CONFIG: dict[str, Any] = {"$config": {}}


def but(**changes: Any) -> dict[str, Any]:
    """The configuration with other values; None removes a name."""
    return {"$config": {name.replace("_", "."): value for name, value in changes.items()}}


def _nobody() -> list[Step]:
    """Requests for an unknown connector."""
    none = "/connectors/nobody"
    asked = [("GET", f"{none}{path}") for path in ("", "/config", "/status", "/tasks", "/topics", "/offsets")]
    asked += [("GET", f"{none}/tasks/0/status"), ("DELETE", none), ("DELETE", f"{none}/offsets")]
    asked += [("PUT", f"{none}/{path}") for path in ("pause", "resume", "stop", "topics/reset")]
    asked += [("POST", f"{none}/restart"), ("POST", f"{none}/restart?includeTasks=true")]
    asked += [("POST", f"{none}/tasks/0/restart")]
    steps = [Step(f"nobody: {method} {path.removeprefix(none) or '/'}", method, path) for method, path in asked]
    return [*steps, Step("nobody: PATCH /config", "PATCH", f"{none}/config", {"a": "b"})]


def _bodies(label: str, method: str, path: str) -> list[Step]:
    """Invalid bodies."""
    return [
        Step(f"{label}: no JSON", method, path, "nonsense"),
        Step(f"{label}: another type", method, path, '"text"'),
        Step(f"{label}: empty", method, path, ""),
        Step(f"{label}: no JSON by its type", method, path, "{}", {"Content-Type": "text/plain"}),
    ]


SESSION: list[Step] = [
    Step("root", "GET", "/"),
    Step("health", "GET", "/health"),
    Step("no such path", "GET", "/nonsense"),
    Step("no such method", "PUT", "/connectors"),
    Step("no such method of one", "POST", ME),
    *_nobody(),
    Step("create", "POST", "/connectors", {"name": NAME, "config": CONFIG}, until="RUNNING"),
    Step("list", "GET", "/connectors"),
    Step("list with a slash", "GET", "/connectors/"),
    Step("list expanded", "GET", "/connectors?expand=status&expand=info"),
    Step("list expanded oddly", "GET", "/connectors?expand=nonsense"),
    Step("info", "GET", ME),
    Step("config", "GET", f"{ME}/config"),
    Step("status", "GET", f"{ME}/status"),
    Step("tasks", "GET", f"{ME}/tasks"),
    Step("task", "GET", f"{ME}/tasks/0/status"),
    Step("no such task", "GET", f"{ME}/tasks/77/status"),
    Step("no number of a task", "GET", f"{ME}/tasks/x/status"),
    Step("topics", "GET", f"{ME}/topics", ready="topics"),
    Step("offsets", "GET", f"{ME}/offsets", ready="offsets"),
    Step("topics forgotten", "PUT", f"{ME}/topics/reset"),
    Step("offsets while running", "DELETE", f"{ME}/offsets"),
    Step("pause", "PUT", f"{ME}/pause", until="PAUSED"),
    Step("paused", "GET", f"{ME}/status"),
    Step("resume", "PUT", f"{ME}/resume", until="RUNNING"),
    Step("stop", "PUT", f"{ME}/stop", until="STOPPED"),
    Step("stopped", "GET", f"{ME}/status"),
    Step("stopped: tasks", "GET", f"{ME}/tasks"),
    Step("stopped: offsets", "GET", f"{ME}/offsets"),
    Step("offsets: none given", "PATCH", f"{ME}/offsets", {}),
    Step("offsets: an empty list", "PATCH", f"{ME}/offsets", {"offsets": []}),
    Step("offsets: null", "PATCH", f"{ME}/offsets", {"offsets": None}),
    Step("offsets: unknown key", "PATCH", f"{ME}/offsets", {"offsets": [], "foo": 1}),
    *_bodies("offsets", "PATCH", f"{ME}/offsets"),
    Step("offsets altered", "PATCH", f"{ME}/offsets", {"offsets": [{"partition": "$partition", "offset": None}]}),
    Step("offsets reset", "DELETE", f"{ME}/offsets"),
    Step("stopped: restart", "POST", f"{ME}/restart", until="STOPPED"),
    Step("resume from stop", "PUT", f"{ME}/resume", until="RUNNING"),
    Step("restart", "POST", f"{ME}/restart", until="RUNNING"),
    Step("restart what failed", "POST", f"{ME}/restart?includeTasks=true&onlyFailed=true"),
    Step("restart all", "POST", f"{ME}/restart?includeTasks=true", until="RUNNING"),
    Step("restart oddly", "POST", f"{ME}/restart?includeTasks=nonsense", until="RUNNING"),
    Step("restart a task", "POST", f"{ME}/tasks/0/restart", until="RUNNING"),
    Step("configure: the same", "PUT", f"{ME}/config", CONFIG, until="RUNNING"),
    Step("configure: another", "PUT", f"{ME}/config", {"$config": {"$tuned": "1000"}}, until="RUNNING"),
    Step("configure: a number", "PUT", f"{ME}/config", {"$config": {"$tuned": 999}}, until="RUNNING"),
    Step("configure: patched", "PATCH", f"{ME}/config", {"$tuned": "500"}, until="RUNNING"),
    Step("configure: taken out", "PATCH", f"{ME}/config", {"$tuned": None}, until="RUNNING"),
    Step("configured", "GET", f"{ME}/config"),
    Step("configure: another name", "PUT", f"{ME}/config", but(name="other")),
    Step("configure: no class", "PUT", f"{ME}/config", {"a": "b"}),
    Step("configure: wrong", "PUT", f"{ME}/config", {"$config": {"$tuned": "x"}}),
    Step("configure: an object inside", "PUT", f"{ME}/config", {"a": {"b": 1}}),
    *_bodies("configure", "PUT", f"{ME}/config"),
    Step("a second one", "PUT", "/connectors/second/config", CONFIG),
    Step("a second one gone", "DELETE", "/connectors/second"),
    Step("plugins", "GET", "/connector-plugins"),
    Step("plugin", "GET", "/connector-plugins/$plugin/config"),
    Step("no such plugin", "GET", "/connector-plugins/Nonsense/config"),
    Step("validate", "PUT", "/connector-plugins/$plugin/config/validate", CONFIG),
    Step("validate: wrong", "PUT", "/connector-plugins/$plugin/config/validate", {"$config": {"$tuned": "x"}}),
    Step("validate: another class", "PUT", "/connector-plugins/$plugin/config/validate", {"connector.class": "Odd"}),
    Step("validate: no class", "PUT", "/connector-plugins/$plugin/config/validate", {}),
    Step("validate: no plugin", "PUT", "/connector-plugins/Odd/config/validate", {"connector.class": "Odd"}),
    Step("loggers", "GET", "/admin/loggers"),
    Step("logger", "GET", "/admin/loggers/root"),
    Step("logger set", "PUT", "/admin/loggers/deelog.test", {"level": "warn"}),
    Step("logger after", "GET", "/admin/loggers/deelog.test"),
    Step("logger: no level", "PUT", "/admin/loggers/deelog.test", {"level": "nonsense"}),
    Step("logger: nothing", "PUT", "/admin/loggers/deelog.test", {}),
    Step("no such logger", "GET", "/admin/loggers/nonsense.logger"),
    Step("delete", "DELETE", ME),
]


@dataclass(frozen=True)
class System:
    """The values of `$config` and the other placeholders."""

    config: dict[str, str]
    plugin: str
    tuned: str
    """An integer field that may be changed while the connector runs."""
    partition: dict[str, Any]

    def text(self, template: str) -> str:
        return template.replace("$plugin", self.plugin)

    def body(self, template: Any) -> Any:
        if isinstance(template, dict) and "$config" in template:
            changed = {**self.config, **{self._name(name): value for name, value in template["$config"].items()}}
            return {name: value for name, value in changed.items() if value is not None}
        if isinstance(template, dict):
            return {self._name(name): self.body(value) for name, value in template.items()}
        if isinstance(template, list):
            return [self.body(value) for value in template]
        return self.partition if template == "$partition" else template

    def _name(self, name: str) -> str:
        return self.tuned if name == "$tuned" else name


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """The leaves by path. The entries of a list share one path, with the set of their values; [] is a leaf."""
    found: dict[str, set[str]] = {}
    _leaves(value, at, found)
    return {path: sorted(values) for path, values in found.items()}


def _leaves(value: Any, at: str, found: dict[str, set[str]]) -> None:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            _leaves(inner, f"{at}.{name}", found)
    elif isinstance(value, list) and value:
        for inner in value:
            _leaves(inner, f"{at}[]", found)
    else:
        found.setdefault(at or ".", set()).add(json.dumps(value))
