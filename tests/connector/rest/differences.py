"""Where our answers differ from Kafka Connect's, and why. The reasons are in docs/rest.md word for word."""
# ruff: noqa: E501 - a reason is one line of the table

from __future__ import annotations

REASONS: dict[str, str] = {  # one line each, as in the table
    "bad-body": "What is no JSON, or not of its type, is the client's mistake: 400. Connect says 500, in the words of its parser, or of a null pointer.",
    "unknown-connector": "404 for stop and restart of a connector that is not there, as for everything else. Connect says 500.",
    "error-type": "Errors say that they are JSON. Connect leaves `Content-Type` out where no route matches.",
    "own-words": "Errors name field, value, what is allowed and the nearest known name; other names than values are not repeated, for they may be misspelt secrets.",
    "own-fields": "The fields are ours, and so are their groups, defaults and documentation; `recommended_values` lists what an enumeration takes. `name` and `connector.class` have defaults here.",
    "own-tasks": "A task has segments, not a class: `cache.name`, `partition`, `segments`. They are there from the start; Connect makes those of a paused connector at its first resume.",
    "own-topics": "A connector writes a change and a positions topic for each cache.",
    "own-offsets": "What Kafka holds is listed by segment, as epoch and sequence.",
    "one-connector": "A process has one connector, which its file names and which lives as long as the cache: 405 for create, delete and `topics/reset`. Connect creates as many as it is asked for.",
    "one-plugin": "There is one plugin. Of one that is not there validate says 404, where Connect says 500.",
    "commit": "No commit of the source is shown: the version is what was released.",
    "own-loggers": "Loggers are Python's; levels have log4j's names.",
}

_NOT_OURS = ["status", r"\.error_code", r"\.message"]
_FIELDS = [r"(\.configs)?\[\](\.definition|\.value)?\.[a-z_]+(\[\])?", r"\.groups\[\]", r"\.error_count"]
_BODIES = [f"{what}: {how}" for what in ("offsets", "configure") for how in ("no JSON", "another type", "empty")]
_INFO = ["location", r"\.config\.\$config", r"\.(name|type)", r"\.tasks\[\]\.(connector|task)"]

DIFFERENCES: dict[str, dict[str, list[str]]] = {
    **{label: {"bad-body": _NOT_OURS} for label in _BODIES},
    **{
        label: {"bad-body": _NOT_OURS}
        for label in (
            "offsets: unknown key",
            "configure: an object inside",
        )
    },
    **{
        f"nobody: {request}": {"unknown-connector": _NOT_OURS}
        for request in ("PUT /stop", "POST /restart", "POST /tasks/0/restart")
    },
    **{
        label: {"error-type": ["content-type"]}
        for label in (
            "no such path",
            "no such method",
            "no such method of one",
            "offsets: no JSON by its type",
            "configure: no JSON by its type",
        )
    },
    **{label: {"own-words": [r"\.message"]} for label in ("configure: no class", "configure: wrong")},
    "root": {"commit": [r"\.commit"]},
    "tasks": {"own-tasks": [r"\[\]\.config\.(\$config|cache\.name|partition|segments|task\.class)"]},
    "topics": {"own-topics": [r"\.mine\.topics\[\]"]},
    "offsets": {"own-offsets": [r"\.offsets\[\]\.(offset\.(epoch|seq|position)|partition\.(cache|segment|filename))"]},
    "stopped: offsets": {
        "own-offsets": [r"\.offsets\[\]\.(offset\.(epoch|seq|position)|partition\.(cache|segment|filename))"]
    },
    "a second one": {"one-connector": [*_NOT_OURS, *_INFO]},
    **{
        label: {"one-connector": [*_NOT_OURS, "content-type"]}
        for label in (
            "a second one gone",
            "nobody: PUT /topics/reset",
            "delete",
            "topics forgotten",
        )
    },
    "nobody: DELETE /": {"one-connector": _NOT_OURS},
    "create": {"one-connector": [*_NOT_OURS, *_INFO]},
    "plugins": {"one-plugin": [r"\[\]\.(class|type)"]},
    "plugin": {"own-fields": _FIELDS[:1]},
    "validate": {"own-fields": _FIELDS},
    "validate: wrong": {"own-fields": _FIELDS},
    "validate: no class": {"own-fields": [*_NOT_OURS, *_FIELDS, r"\.name"]},
    "validate: no plugin": {"one-plugin": _NOT_OURS},
    "loggers": {"own-loggers": [r"\..+\.(level|last_modified)"]},
    "logger": {"own-loggers": [r"\.level"]},
}
