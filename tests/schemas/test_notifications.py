"""Notifications and heartbeats, with and without the schema block."""

from __future__ import annotations

from typing import Any

import orjson

from deelog_schemas.notifications import Notification, heartbeat_key, heartbeat_value

TOLD = Notification("i", "STARTED", "Reset", {"a": "b"}, 5)


def split(raw: bytes) -> tuple[str, list[tuple[str, str, bool]], Any]:
    """Name and fields of the schema, and the payload."""
    schema, payload = orjson.loads(raw).values()
    fields = [(f["field"], f["type"], f["optional"]) for f in schema["fields"]]
    assert (schema["type"], schema["optional"], schema["version"]) == ("struct", False, 1)
    return schema["name"].removeprefix("io.debezium.connector.common."), fields, payload


def test_without_schemas() -> None:
    assert (TOLD.key(False), heartbeat_key("p", False)) == (b'{"id":"i"}', b'{"serverName":"p"}')
    assert heartbeat_value(7, False) == b'{"ts_ms":7}'
    assert orjson.loads(TOLD.value(False)) == TOLD._asdict()


def test_with_schemas() -> None:
    assert split(TOLD.key(True)) == ("NotificationKey", [("id", "string", False)], {"id": "i"})
    texts = [(name, "string", False) for name in ("id", "type", "aggregate_type")]
    fields = [*texts, ("additional_data", "map", True), ("timestamp", "int64", False)]
    assert split(TOLD.value(True)) == ("Notification", fields, TOLD._asdict())
    key = ("ServerNameKey", [("serverName", "string", False)], {"serverName": "p"})
    assert split(heartbeat_key("p", True)) == key
    assert split(heartbeat_value(7, True)) == ("Heartbeat", [("ts_ms", "int64", False)], {"ts_ms": 7})
