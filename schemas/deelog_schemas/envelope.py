"""Debezium's envelope in JSON, with and without the schema block; the seam where another converter goes.

Weighed: building a dict and dumping it, a struct per envelope, and formatting into a constant template where only
strings are escaped by `orjson`. The last is taken: it builds no object per field; a test proves its bytes equal to
those of a dumped dict on generated records.

Formats of keys and values (`cache.key.format`, `cache.value.format`): `string` is a JSON string, `json` is Debezium's
`io.debezium.data.Json` (a string that holds JSON text), `bytes` is base64 as Connect's JsonConverter writes it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import orjson

from deelog_schemas import __version__, canonical
from deelog_schemas.errors import RecordError
from deelog_schemas.operation import Entry, Operation, Reason

NULL: Final = b"null"
_SNAPSHOTS: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


class Stamp(NamedTuple):
    """Where and when an operation was captured: what `source` says beside its position."""

    segment: int
    node_id: str
    now_us: int
    """When the connector processed it, Unix microseconds: the envelope's own `ts_*`."""


class Codec(Protocol):
    """A converter between captured bytes and what stands in a Kafka record's key and value."""

    def key(self, key: bytes) -> bytes:
        """The record key of an entry key."""

    def change(self, operation: Operation, stamp: Stamp) -> bytes:
        """The envelope of a captured operation: c, u or d."""

    def row(self, entry: Entry, position: tuple[int, int], snapshot: str, reason: str, stamp: Stamp) -> bytes:
        """The envelope of an entry that a reset read (op r). `snapshot` is `first`, `true` or `last`."""

    def decode_key(self, raw: bytes) -> bytes:
        """The entry key of a record key."""

    def decode_value(self, raw: bytes) -> Envelope:
        """What an envelope says."""


class Envelope(NamedTuple):
    """A decoded envelope: `before` and `after` in captured bytes. A `before` of the key alone has an empty value."""

    op: str
    before: Entry | None
    after: Entry | None
    source: dict[str, Any]


_SOURCE = (
    b'{"version":%b,"connector":%b,"name":%b,"ts_ms":%d,"snapshot":"%b","db":"","sequence":"[\\"%d\\",\\"%d\\"]",'
    b'"ts_us":%d,"ts_ns":%d,"cache":%b,"segment":%d,"epoch":%d,"seq":%d,"node":%b,"reason":%b'
)


class JsonCodec:
    """JSON envelopes of one topic.

    `topic` is the change topic (schema names derive from it), `connector` the short name in the source schema
    (`cachetools`, `grid`, `redis`), `name` the `topic.prefix`. `cause` adds `source.cause` (the diff topic has it).

    What encodes raises `UnicodeDecodeError` where a key or value in format `string` or `json` is not UTF-8: refuse
    such bytes before they are captured. What decodes raises `RecordError` and nothing else.
    """

    def __init__(
        self,
        topic: str,
        connector: str,
        name: str,
        cache: str,
        key_format: str = "string",
        value_format: str = "string",
        key_schemas: bool = False,
        value_schemas: bool = False,
        cause: bool = False,
    ) -> None:
        self._topic, self._connector, self._cause = topic, connector, cause
        self._key_text, self._key_bytes = _FORMATS[key_format]
        self._value_text, self._value_bytes = _FORMATS[value_format]
        self._types = {"key": _type(key_format), "value": _type(value_format)}
        self._constants = tuple(orjson.dumps(x) for x in (__version__, connector, name))
        self._cache = orjson.dumps(cache)
        self._nodes: dict[str, bytes] = {}
        opened, closed = self._wrapping(value_schemas, self._value_schema())
        tail = b',"cause":%b}' if cause else b"}"
        self._template = (
            opened
            + b'{"before":%b,"after":%b,"source":'
            + _SOURCE
            + tail
            + b',"transaction":null,"op":"%b","ts_ms":%d,"ts_us":%d,"ts_ns":%d}'
            + closed
        )
        key_opened, key_closed = self._wrapping(key_schemas, self._key_schema())
        self._key_template = key_opened + b'{"key":%b}' + key_closed

    def key(self, key: bytes) -> bytes:
        """The record key: struct `<topic>.Key {key}`; a reserved key, too, in the configured key format."""
        return self._key_template % self._key_text(key)

    def change(self, operation: Operation, stamp: Stamp) -> bytes:
        """The envelope of an operation: c, u, or d."""
        key = self._key_text(operation.key)
        value = operation.value
        before = after = NULL
        if operation.existed or value is None:
            # Never null on u and d: Flink fails on it, and Debezium's own SMT loses such a delete in silence.
            before = self._struct(key, operation.before, None)
        if value is not None:
            after = self._struct(key, value, operation.expires_at)
        code = b"d" if value is None else b"u" if operation.existed else b"c"
        reason = operation.reason
        return self._fill(
            code,
            before,
            after,
            operation.position,
            operation.ts_us,
            b"false",
            None if reason == Reason.PUT else reason,
            stamp,
        )

    def row(self, entry: Entry, position: tuple[int, int], snapshot: str, reason: str, stamp: Stamp) -> bytes:
        """The envelope of a row of a reset (op r)."""
        after = self._struct(self._key_text(entry.key), entry.value, entry.expires_at)
        return self._fill(b"r", NULL, after, position, stamp.now_us, snapshot.encode(), reason, stamp)

    def difference(
        self,
        before: Entry | None,
        after: Entry | None,
        key: bytes,
        position: tuple[int, int],
        source_us: int,
        reason: str | None,
        cause: str,
        stamp: Stamp,
    ) -> bytes:
        """An envelope of the diff topic: c (no `before`), u, or d (no `after`; then `before` has the key at least)."""
        text = self._key_text(key)
        old = self._struct(text, before.value, before.expires_at) if before else NULL
        new = self._struct(text, after.value, after.expires_at) if after else NULL
        if after is None and before is None:
            old = self._struct(text, None, None)
        code = b"d" if after is None else b"c" if before is None else b"u"
        return self._fill(code, old, new, position, source_us, b"false", reason, stamp, cause)

    def _struct(self, key: bytes, value: bytes | None, expires_at: int | None) -> bytes:
        text = NULL if value is None else self._value_text(value)
        if expires_at is None:
            return b'{"key":%b,"value":%b,"expires_at":null}' % (key, text)
        return b'{"key":%b,"value":%b,"expires_at":%d}' % (key, text, expires_at)

    def _fill(
        self,
        code: bytes,
        before: bytes,
        after: bytes,
        position: tuple[int, int],
        ts_us: int,
        snapshot: bytes,
        reason: str | None,
        stamp: Stamp,
        cause: str | None = None,
    ) -> bytes:
        epoch, sequence = position
        node = self._nodes.get(stamp.node_id)
        if node is None:
            node = self._nodes[stamp.node_id] = orjson.dumps(stamp.node_id)
        now = stamp.now_us
        version, connector, name = self._constants
        why = NULL if reason is None else orjson.dumps(reason)
        source = (
            version, connector, name, ts_us // 1000, snapshot, epoch, sequence, ts_us, ts_us * 1000,
            self._cache, stamp.segment, epoch, sequence, node, why,
        )  # fmt: skip
        if self._cause:
            source = (*source, orjson.dumps(cause))  # type: ignore[assignment]
        return self._template % (before, after, *source, code, now // 1000, now, now * 1000)

    def decode_key(self, raw: bytes) -> bytes:
        """The entry key; raises `RecordError` where the record key is not `{key}`."""
        found = _payload(raw, "the record key")
        text = found.get("key")
        if not isinstance(text, str):
            raise RecordError("the record key has no text field `key`")
        try:
            return self._key_bytes(text)
        except ValueError as error:
            raise RecordError(f"the record key is not in this topic's key format: {error}") from error

    def decode_value(self, raw: bytes) -> Envelope:
        """The envelope in captured bytes; raises `RecordError` where a field is missing or of another type."""
        found = _payload(raw, "the record value")
        try:
            op, after, source = found["op"], found["after"], found["source"]
            # An `after` that is missing would pass for a delete, and one without a value for an empty entry.
            if op not in ("c", "u", "d", "r") or (op == "d") != (after is None):
                raise ValueError(f"op {op!r} and its `after`")
            if after is not None and after["value"] is None:
                raise ValueError("`after` has no value")
            if not isinstance(source, dict):
                raise ValueError("`source` is no object")
            return Envelope(op, self._entry(found["before"]), self._entry(after), source)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"the record value is not a Debezium envelope of ours: {error!r}") from error

    def _entry(self, struct: dict[str, Any] | None) -> Entry | None:
        if struct is None:
            return None
        value, expires_at = struct["value"], struct["expires_at"]
        if expires_at is not None and type(expires_at) is not int:
            raise ValueError(f"`expires_at` is {expires_at!r}")
        # A `before` of the key alone reads like one of an empty value; the header's KEY_ONLY_BEFORE tells them apart.
        raw = b"" if value is None else self._value_bytes(value)
        return Entry(self._key_bytes(struct["key"]), raw, expires_at)

    # -- the schema block of `*.converter.schemas.enable` ---------------------------------------------------------

    def _wrapping(self, enabled: bool, schema: dict[str, Any]) -> tuple[bytes, bytes]:
        if not enabled:
            return b"", b""
        return b'{"schema":' + orjson.dumps(schema).replace(b"%", b"%%") + b',"payload":', b"}"

    def _key_schema(self) -> dict[str, Any]:
        return _struct_schema(f"{self._topic}.Key", [{**self._types["key"], "optional": False, "field": "key"}])

    def _value_schema(self) -> dict[str, Any]:
        row = [
            {**self._types["key"], "optional": False, "field": "key"},
            {**self._types["value"], "optional": True, "field": "value"},
            _field("int64", "expires_at"),
        ]
        value = _struct_schema(f"{self._topic}.Value", row, optional=True)
        moments = [_field("int64", name) for name in ("ts_ms", "ts_us", "ts_ns")]
        fields = [
            {**value, "field": "before"},
            {**value, "field": "after"},
            {**self._source_schema(), "field": "source"},
            {**_transaction_schema(), "field": "transaction"},
            _field("string", "op", optional=False),
            *moments,
        ]
        return _struct_schema(f"{self._topic}.Envelope", fields, version=2)

    def _source_schema(self) -> dict[str, Any]:
        snapshot = {
            "type": "string",
            "optional": True,
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {"allowed": _SNAPSHOTS},
            "default": "false",
            "field": "snapshot",
        }  # fmt: skip
        fields = [
            _field("string", "version", optional=False),
            _field("string", "connector", optional=False),
            _field("string", "name", optional=False),
            _field("int64", "ts_ms", optional=False),
            snapshot,
            _field("string", "db", optional=False),
            _field("string", "sequence"),
            _field("int64", "ts_us"),
            _field("int64", "ts_ns"),
            _field("string", "cache", optional=False),
            _field("int32", "segment", optional=False),
            _field("int64", "epoch", optional=False),
            _field("int64", "seq", optional=False),
            _field("string", "node", optional=False),
            _field("string", "reason"),
        ]
        if self._cause:
            fields.append(_field("string", "cause"))
        return _struct_schema(f"io.deelog.connector.{self._connector}.Source", fields)


def _string(raw: bytes) -> bytes:
    return orjson.dumps(raw.decode())


def _base64(raw: bytes) -> bytes:
    return b'"' + base64.b64encode(raw) + b'"'


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)  # else it drops what is not of its alphabet, in silence


_FORMATS: Final[dict[str, tuple[Callable[[bytes], bytes], Callable[[str], bytes]]]] = {
    "string": (_string, str.encode),
    "json": (_string, str.encode),
    "bytes": (_base64, _from_base64),
}
"""By format: captured bytes to JSON text, and the string in it to captured bytes."""


def _type(format_name: str) -> dict[str, Any]:
    if format_name == "json":
        return {"type": "string", "name": "io.debezium.data.Json", "version": 1}
    return {"type": "bytes" if format_name == "bytes" else "string"}


def _field(kind: str, name: str, optional: bool = True) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


def _struct_schema(
    name: str, fields: list[dict[str, Any]], optional: bool = False, version: int | None = None
) -> dict[str, Any]:
    schema = {"type": "struct", "fields": fields, "optional": optional, "name": name}
    return schema if version is None else {**schema, "version": version}


def _transaction_schema() -> dict[str, Any]:
    fields = [
        _field("string", "id", optional=False),
        _field("int64", "total_order", optional=False),
        _field("int64", "data_collection_order", optional=False),
    ]
    return _struct_schema("event.block", fields, optional=True, version=1)


def _payload(raw: bytes, what: str) -> dict[str, Any]:
    found = canonical.loads(raw, what)
    payload = found.get("payload") if "schema" in found and "payload" in found else found
    if not isinstance(payload, dict):
        raise RecordError(f"{what} has no payload object")
    return payload
