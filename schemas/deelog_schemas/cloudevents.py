"""Envelopes as cloud events in structured mode, in the shape of Debezium's CloudEventsConverter; keys stay JSON.

The fields of `source` become extension attributes `iodebezium…`; 64-bit numbers are text, since the specification has
no such type. `before` and `after` become the data. The envelope's own `ts_ms` is left out.
`value.converter.schemas.enable` puts the schema next to the data, inside the event.
`id` is the position. Rows of a reset share a position, as do the deletes of what it takes back, so their key is
appended: an id must be unique.

Weighed in docs/decisions.md, "Cloud events".
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import orjson

from deelog_schemas import __version__, canonical
from deelog_schemas.connect import data_schema, names_of
from deelog_schemas.envelope import FOREIGN, NULL, JsonCodec, KeyCodec, Source, Stamp, quoted, written_as
from deelog_schemas.errors import RecordError
from deelog_schemas.operation import Operation, Reason

_PREFIX: Final = "iodebezium"
_FIELDS: Final = (
    *("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns"),
    *("cache", "segment", "epoch", "seq", "node", "reason", "cause"),
)
_NUMBERS: Final = frozenset({"ts_ms", "ts_us", "ts_ns", "epoch", "seq"})
"""64-bit numbers, written as text in attributes."""
_CAPTURED: Final = frozenset(map(str, Reason))
_ATTRIBUTES: Final = {field: _PREFIX + field.replace("_", "") for field in _FIELDS}


class CloudEventsCodec(JsonCodec):
    """Cloud events of one topic. Parameters and errors are those of `JsonCodec`."""

    def __init__(
        self,
        topic: str,
        connector: str,
        name: str,
        cache: str,
        key_format: str = "string",
        value_format: str = "string",
        value_schemas: bool = False,
        cause: bool = False,
        binary: str = "bytes",
        keys: KeyCodec | None = None,
    ) -> None:
        super().__init__(topic, connector, name, cache, key_format, value_format, False, cause, binary, keys)
        self._id = _inside(f"name:{name};cache:{cache};segment:")
        self._from = (
            f'"source":{quoted(f"/debezium/{connector}/{name}")},"specversion":"1.0",'
            f'"type":{quoted(f"io.debezium.connector.{connector}.DataChangeEvent")},"time":"'
        )
        self._who = (
            f'"iodebeziumversion":{quoted(__version__)},"iodebeziumconnector":{quoted(connector)},'
            f'"iodebeziumname":{quoted(name)},"iodebeziumtsms":"'
        )
        self._where = f'"iodebeziumcache":{quoted(cache)},"iodebeziumsegment":'
        self._data, self._end = '"data":{"before":', "}}"
        if value_schemas:
            names = names_of(topic, connector)
            written = written_as(key_format, binary), written_as(value_format, binary)
            schema = data_schema(names, f"io.debezium.connector.{connector}.Data", *written)
            self._data = f'"data":{{"schema":{orjson.dumps(schema).decode()},"payload":{{"before":'
            self._end = "}}}"

    def change(self, operation: Operation, stamp: Stamp) -> bytes:
        epoch, sequence, reason, key, value, expires_at, ts_us, existed, image = operation
        text, code, before, after = self._named(key), "c", NULL, NULL
        if value is not None:
            after = self._struct(text, value, expires_at)
        if existed or value is None:
            before, code = self._struct(text, image, None), "d" if value is None else "u"
        why = None if reason == Reason.PUT else reason
        return self._fill(code, before, after, (epoch, sequence, ts_us, "false", why, None), stamp)

    def _fill(self, code: str, before: str, after: str, source: Source, stamp: Stamp) -> bytes:
        epoch, sequence, ts_us, snapshot, reason, cause = source
        unique = ""
        # Rows of a reset, what it takes back, whose reason is the reset's, and what the Spark job makes of them.
        if code == "r" or cause is not None or (reason is not None and reason not in _CAPTURED):
            # The key is in `after`, or in `before` for a delete.
            image = after if after != NULL else before
            unique = _inside(f";key:{orjson.loads(image)['key']}")
        segment, node_id, _ = stamp
        milli = ts_us // 1000
        why = NULL if reason is None else quoted(reason)
        if self._cause:
            why = f'{why},"iodebeziumcause":{quoted(cause)}'
        return (
            f'{{"id":"{self._id}{segment};epoch:{epoch};seq:{sequence}{unique}",{self._from}'
            f'{_second(milli // 1000)}.{milli % 1000:03d}Z","datacontenttype":"application/json",'
            f'"iodebeziumop":"{code}",{self._who}{milli}","iodebeziumsnapshot":"{snapshot}","iodebeziumdb":"",'
            f'"iodebeziumsequence":"[\\"{epoch}\\",\\"{sequence}\\"]","iodebeziumtsus":"{ts_us}",'
            f'"iodebeziumtsns":"{ts_us * 1000}",{self._where}{segment},"iodebeziumepoch":"{epoch}",'
            f'"iodebeziumseq":"{sequence}","iodebeziumnode":{quoted(node_id)},"iodebeziumreason":{why},'
            f'{self._data}{before},"after":{after}{self._end}'
        ).encode()

    def passed_on(self, raw: bytes, cause: str) -> tuple[str, bytes]:
        event = canonical.loads(raw, "the record value")
        op = _envelope(event)["op"]
        data = event.pop("data")
        return op, orjson.dumps({**event, _ATTRIBUTES["cause"]: cause, "data": data})

    def after_of(self, raw: bytes) -> bytes | None:
        first = raw.find(b'"after":')
        inner = raw.find(b'"data":{"schema":') >= 0
        if first < 0 or not raw.endswith(b"}}}" if inner else b"}}"):
            return None
        after = raw[first + 8 : -3 if inner else -2]
        return None if after == self.gone and b'"iodebeziumop":"d"' not in raw else after

    def _fields(self, raw: bytes) -> dict[str, Any]:
        return _envelope(canonical.loads(raw, "the record value"))


def _envelope(event: dict[str, Any]) -> dict[str, Any]:
    """The envelope's fields, from those of an event; raises `RecordError` where one is missing."""
    try:
        data = event["data"]
        data = data["payload"] if "schema" in data and "payload" in data else data
        source = {
            field: int(event[name]) if field in _NUMBERS else event[name]
            for field, name in _ATTRIBUTES.items()
            if name in event
        }
        return {"before": data["before"], "after": data["after"], "source": source, "op": event["iodebeziumop"]}
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{FOREIGN}, as a cloud event: {error!r}") from error


def _inside(text: str) -> str:
    """The text as it is written inside a JSON string."""
    return quoted(text)[1:-1]


@lru_cache(maxsize=64)
def _second(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S")
