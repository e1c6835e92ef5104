"""Debezium's notifications and heartbeats as JSON, with and without the schema block.

Names, fields and their order are those of `SchemaFactory` and `HeartbeatImpl` in Debezium 3.7: consumers and
transforms recognise these records by the names of their schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

_TEXT: Final = {"type": "string", "optional": False}
_MAP: Final = {"type": "map", "keys": _TEXT, "values": _TEXT, "optional": True}


def _struct(name: str, **fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{**shape, "field": field} for field, shape in fields.items()],
        "optional": False,
        "name": f"io.debezium.connector.common.{name}",
        "version": 1,
    }


_INT64: Final = {"type": "int64", "optional": False}
_NOTIFICATION_KEY: Final = _struct("NotificationKey", id=_TEXT)
_NOTIFICATION: Final = _struct(
    "Notification", id=_TEXT, type=_TEXT, aggregate_type=_TEXT, additional_data=_MAP, timestamp=_INT64
)
_HEARTBEAT_KEY: Final = _struct("ServerNameKey", serverName=_TEXT)
_HEARTBEAT: Final = _struct("Heartbeat", ts_ms=_INT64)


class Notification(NamedTuple):
    """What a connector reports about itself. `timestamp` is in Unix milliseconds."""

    id: str
    type: str
    aggregate_type: str
    additional_data: Mapping[str, str]
    timestamp: int

    def key(self, schemas: bool) -> bytes:
        """The record key."""
        return _json({"id": self.id}, _NOTIFICATION_KEY if schemas else None)

    def value(self, schemas: bool) -> bytes:
        """The record value."""
        return _json(self._asdict(), _NOTIFICATION if schemas else None)


def heartbeat_key(prefix: str, schemas: bool) -> bytes:
    """Key of a heartbeat: Debezium's `ServerNameKey`."""
    return _json({"serverName": prefix}, _HEARTBEAT_KEY if schemas else None)


def heartbeat_value(ts_ms: int, schemas: bool) -> bytes:
    """Value of a heartbeat."""
    return _json({"ts_ms": ts_ms}, _HEARTBEAT if schemas else None)


def _json(payload: Mapping[str, Any], schema: Mapping[str, Any] | None) -> bytes:
    return orjson.dumps(payload if schema is None else {"schema": schema, "payload": payload})
