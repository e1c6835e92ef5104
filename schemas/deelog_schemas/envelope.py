"""What every format of keys and envelopes is, and Debezium's envelope in JSON, with and without the schema block.

The JSON is put together as text; a test compares its bytes with those of a dumped dict on generated records. Weighed
in docs/decisions.md, "The envelope in JSON".

Formats of keys and values (`cache.key.format`, `cache.value.format`): `string` is a JSON string, `json` is Debezium's
`io.debezium.data.Json` (a string that holds JSON text), `bytes` is base64 as Connect's JsonConverter writes it, or by
`binary.handling.mode` a string in one of Debezium's encodings.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from deelog_schemas import __version__, canonical
from deelog_schemas.connect import Schema, envelope_schema, key_schema, names_of
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.operation import Entry, Operation, Reason

NULL: Final = "null"
FOREIGN: Final = "the record value is not a Debezium envelope of ours"
_PUT: Final = str(Reason.PUT)


class Stamp(NamedTuple):
    """Where and when an operation was captured: the fields of `source` besides the position."""

    segment: int
    node_id: str
    now_us: int
    """When the connector processed the operation, in Unix microseconds: the envelope's own `ts_*`."""


Source = tuple[int, int, int, str, str | None, str | None]
"""What differs from record to record in `source`: epoch, sequence, `ts_us`, `snapshot`, reason, cause."""


class Envelope(NamedTuple):
    """A decoded envelope: `before` and `after` in captured bytes. A `before` without a value has an empty one."""

    op: str
    before: Entry | None
    after: Entry | None
    source: dict[str, Any]


class KeyCodec(ABC):
    """Converts between entry keys and record keys, in one format. Errors are those of `Codec`."""

    @abstractmethod
    def key(self, key: bytes) -> bytes:
        """The record key of an entry key: struct `<topic>.Key {key}`. Reserved keys are in this format, too."""

    @abstractmethod
    def decode_key(self, raw: bytes) -> bytes:
        """The entry key of a record key."""

    @abstractmethod
    def _fields(self, raw: bytes) -> dict[str, Any]:
        """The struct of a record key."""

    def plain_key(self, raw: bytes) -> bytes:
        """The record key as JSON without a schema block."""
        return orjson.dumps(self._fields(raw), default=_encoded)


class Codec(ABC):
    """Converts between captured bytes and the records of one topic: envelopes in one format, keys by `keys`.

    Encoding raises `UnicodeDecodeError` where a key or value in format `string` or `json` is not UTF-8: refuse
    such bytes before they are captured. Decoding raises `RecordError` and nothing else.
    """

    gone: bytes
    """What `after_of` returns for a delete."""
    _null: Any
    """An absent `before` or `after`, as `_struct` writes one that is there."""
    _named: Callable[[bytes], Any]
    """The key as `_struct` takes it."""
    _key_bytes: Callable[[Any], bytes]
    """The captured bytes of a key that `_fields` found, `_value_bytes` those of a value."""
    _value_bytes: Callable[[Any], bytes]

    def __init__(self, keys: KeyCodec) -> None:
        self.keys = keys
        # Bound once, which saves a call for each record.
        self.key, self.decode_key, self.plain_key = keys.key, keys.decode_key, keys.plain_key

    # -- encoding --------------------------------------------------------------------------------------------------

    @abstractmethod
    def change(self, operation: Operation, stamp: Stamp) -> bytes:
        """The envelope of a captured operation: c, u or d."""

    def row(self, entry: Entry, position: tuple[int, int], snapshot: str, reason: str, stamp: Stamp) -> bytes:
        """The envelope of an entry that a reset read (op r). `snapshot` is `first`, `true` or `last`."""
        after = self._struct(self._named(entry.key), entry.value, entry.expires_at)
        return self._fill("r", self._null, after, (*position, stamp.now_us, snapshot, reason, None), stamp)

    def difference(self, change: Change, source_us: int, reason: str | None, stamp: Stamp) -> bytes:
        """An envelope of the diff topic: c (no `before`), u, or d (no `after`; then `before` has the key at least).

        `source_us` and `reason` are those of `source`.
        """
        before, after, named = change.before, change.after, self._named(change.key)
        old = self._struct(named, before.value, before.expires_at) if before else self._null
        new = self._struct(named, after.value, after.expires_at) if after else self._null
        if after is None and before is None:
            old = self._struct(named, None, None)
        code = "d" if after is None else "c" if before is None else "u"
        source = *change.position, source_us, "false", reason, change.cause
        return self._fill(code, old, new, source, stamp)

    @abstractmethod
    def passed_on(self, raw: bytes, cause: str) -> tuple[str, bytes]:
        """The op of a captured envelope, and the envelope with `source.cause` added and nothing else changed."""

    @abstractmethod
    def _struct(self, named: Any, value: bytes | None, expires_at: int | None) -> Any:
        """A `before` or `after`."""

    @abstractmethod
    def _fill(self, code: str, before: Any, after: Any, source: Source, stamp: Stamp) -> bytes:
        """The envelope of op `code`."""

    # -- decoding --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _fields(self, raw: bytes) -> dict[str, Any]:
        """The envelope's fields: `op`, `before`, `after` and `source` at least, if it is one of ours."""

    def decode_value(self, raw: bytes) -> Envelope:
        """The envelope in captured bytes; raises `RecordError` where a field is missing or of another type."""
        fields = self._fields(raw)
        try:
            op, before, after, source = fields["op"], fields["before"], fields["after"], fields["source"]
            # A missing `after` would be read as a delete, and one without a value as an empty entry.
            if op not in ("c", "u", "d", "r") or (op == "d") != (after is None):
                raise ValueError(f"op {op!r} and its `after`")
            if after is not None and after["value"] is None:
                raise ValueError("`after` has no value")
            if not isinstance(source, dict):
                raise ValueError("`source` is no object")
            old = None if before is None else self._entry(before)
            return Envelope(op, old, None if after is None else self._entry(after), source)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{FOREIGN}: {error!r}") from error

    def _entry(self, struct: Mapping[str, Any]) -> Entry:
        """The entry in `before` or `after`; raises KeyError, TypeError or ValueError where it is malformed."""
        value, expires_at = struct["value"], struct["expires_at"]
        if expires_at is not None and type(expires_at) is not int:
            raise ValueError(f"`expires_at` is {expires_at!r}")
        return Entry(self._key_bytes(struct["key"]), b"" if value is None else self._value_bytes(value), expires_at)

    def plain_value(self, raw: bytes) -> bytes:
        """An envelope as JSON without a schema block: `op`, `before`, `after` and `source` at least."""
        return orjson.dumps(self._fields(raw), default=_encoded)

    # -- comparing by bytes ----------------------------------------------------------------------------------------

    @abstractmethod
    def after_of(self, raw: bytes) -> bytes | None:
        """The bytes of an envelope's `after`, without decoding it; None where it must be decoded.

        Equal bytes mean equal entries.
        """

    @abstractmethod
    def decode_after(self, raw: bytes) -> Entry:
        """The entry in what `after_of` returned; raises `RecordError` where it is malformed."""


class _Frame(NamedTuple):
    """The parts that all envelopes of one stamp share, as JSON text."""

    stamp: Stamp | None
    place: str
    node: str
    gap: str
    """The text between the reason of a captured change, which has no cause, and its op."""
    tail: str


class JsonKeys(KeyCodec):
    """Record keys in JSON; `schemas` is `key.converter.schemas.enable`, the rest as for `JsonCodec`."""

    def __init__(
        self, topic: str, connector: str, key_format: str = "string", schemas: bool = False, binary: str = "bytes"
    ) -> None:
        written = written_as(key_format, binary)
        self._text, self._bytes = _FORMATS[written]
        opened, closed = _wrapping(schemas, key_schema(names_of(topic, connector), written))
        self._opened, self._closed = opened + '{"key":', "}" + closed

    def key(self, key: bytes) -> bytes:
        return f"{self._opened}{self._text(key)}{self._closed}".encode()

    def decode_key(self, raw: bytes) -> bytes:
        text = self._fields(raw).get("key")
        if not isinstance(text, str):
            raise RecordError("the record key has no text field `key`")
        try:
            return self._bytes(text)
        except ValueError as error:
            raise RecordError(f"the record key is not in this topic's key format: {error}") from error

    def _fields(self, raw: bytes) -> dict[str, Any]:
        return _payload(raw, "the record key")


class JsonCodec(Codec):
    """JSON envelopes of one topic.

    `topic` is the change topic (schema names derive from it), `connector` the short name in the source schema
    (`cachetools`, `grid`, `redis`), `name` the `topic.prefix`. `cause` adds `source.cause` (the diff topic has it),
    `binary` is `binary.handling.mode`. Without `keys`, those are JSON without a schema block.
    """

    gone, _null = b"null", NULL

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
        super().__init__(keys or JsonKeys(topic, connector, key_format, binary=binary))
        self._cause = cause
        key_format, value_format = written_as(key_format, binary), written_as(value_format, binary)
        self._named, self._key_bytes = _FORMATS[key_format]
        self._value_text, self._value_bytes = _FORMATS[value_format]
        names = names_of(topic, connector)
        self._cache = quoted(cache)
        opened, self._closed = _wrapping(value_schemas, envelope_schema(names, key_format, value_format, cause))
        self._opened, self._wrapped = opened + '{"before":', opened.encode()
        self._source = f'"version":{quoted(__version__)},"connector":{quoted(connector)},"name":{quoted(name)}'
        self._frame = _Frame(None, "", "", "", "")

    def change(self, operation: Operation, stamp: Stamp) -> bytes:
        # `_struct` and `_fill`, inlined: this runs once per operation, and the calls take a quarter of its time.
        epoch, sequence, reason, key, value, expires_at, ts_us, existed, image = operation
        text, code, before, after = self._named(key), "c", NULL, NULL
        if value is not None:
            moment = NULL if expires_at is None else expires_at
            after = f'{{"key":{text},"value":{self._value_text(value)},"expires_at":{moment}}}'
        if existed or value is None:
            # Never null for u and d: Flink fails on that, and Debezium's own SMT silently drops such a delete.
            before = f'{{"key":{text},"value":{NULL if image is None else self._value_text(image)},"expires_at":null}}'
            code = "d" if value is None else "u"
        known, place, node, gap, tail = self._frame
        if known is not stamp:  # a batch has one stamp per segment
            _, place, node, gap, tail = self._frame = self._framed(stamp)
        why = NULL if reason == _PUT else quoted(reason)
        return (
            f'{self._opened}{before},"after":{after},"source":{{{self._source},"ts_ms":{ts_us // 1000},'
            f'"snapshot":"false","db":"","sequence":"[\\"{epoch}\\",\\"{sequence}\\"]","ts_us":{ts_us},'
            f'"ts_ns":{ts_us * 1000},{place},"epoch":{epoch},"seq":{sequence},{node},"reason":{why}{gap}{code}",{tail}'
        ).encode()

    def _struct(self, key: str, value: bytes | None, expires_at: int | None) -> str:
        text = NULL if value is None else self._value_text(value)
        return f'{{"key":{key},"value":{text},"expires_at":{NULL if expires_at is None else expires_at}}}'

    def _fill(self, code: str, before: str, after: str, source: Source, stamp: Stamp) -> bytes:
        epoch, sequence, ts_us, snapshot, reason, cause = source
        _, place, node, _, tail = self._framed(stamp)
        why = NULL if reason is None else quoted(reason)
        if self._cause:
            why = f'{why},"cause":{quoted(cause)}'
        return (
            f'{self._opened}{before},"after":{after},"source":{{{self._source},"ts_ms":{ts_us // 1000},'
            f'"snapshot":"{snapshot}","db":"","sequence":"[\\"{epoch}\\",\\"{sequence}\\"]","ts_us":{ts_us},'
            f'"ts_ns":{ts_us * 1000},{place},"epoch":{epoch},"seq":{sequence},{node},"reason":{why}}},'
            f'"transaction":null,"op":"{code}",{tail}'
        ).encode()

    def _framed(self, stamp: Stamp) -> _Frame:
        segment, node_id, now = stamp
        return _Frame(
            stamp,
            f'"cache":{self._cache},"segment":{segment}',
            f'"node":{quoted(node_id)}',
            (',"cause":null' if self._cause else "") + '},"transaction":null,"op":"',
            f'"ts_ms":{now // 1000},"ts_us":{now},"ts_ns":{now * 1000}}}{self._closed}',
        )

    def passed_on(self, raw: bytes, cause: str) -> tuple[str, bytes]:
        """See `Codec`. Key and value are not decoded."""
        try:
            payload = _inner(orjson.loads(raw))
            op = payload["op"]
            payload["source"]["cause"] = cause
            value = orjson.dumps(payload)
        except (ValueError, TypeError, KeyError) as error:
            raise RecordError(f"{FOREIGN}: {error!r}") from error
        return op, b"%b%b%b" % (self._wrapped, value, self._closed.encode())

    def _fields(self, raw: bytes) -> dict[str, Any]:
        return _payload(raw, "the record value")

    def after_of(self, raw: bytes) -> bytes | None:
        """The JSON of an envelope's `after`, cut out without parsing; None where only parsing is certain.

        The same key and the same bytes mean the same entry. Quotes inside strings are escaped, so the searched text
        occurs nowhere else. A delete has `null`.
        """
        first, end = raw.find(b'"after":'), raw.rfind(b',"source":{')
        after = raw[first + 8 : end] if 0 <= first < end else None
        return None if after == b"null" and b'"op":"d"' not in raw[end:] else after

    def decode_after(self, raw: bytes) -> Entry:
        try:
            struct = orjson.loads(raw)
            if struct["value"] is None:
                raise ValueError("`after` has no value")
            return self._entry(struct)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{FOREIGN}: {error!r}") from error


def _wrapping(enabled: bool, schema: Schema) -> tuple[str, str]:
    """The text before and after a payload: the schema block of `*.converter.schemas.enable`, or nothing."""
    return (f'{{"schema":{orjson.dumps(schema).decode()},"payload":', "}") if enabled else ("", "")


def quoted(text: str | None) -> str:
    return orjson.dumps(text).decode()


def _string(raw: bytes) -> str:
    return orjson.dumps(raw.decode()).decode()


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _base64(raw: bytes) -> str:
    return f'"{_encoded(raw)}"'


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)  # else it silently drops characters outside its alphabet


def _base64_url(raw: bytes) -> str:
    return f'"{base64.urlsafe_b64encode(raw).decode()}"'


def _from_base64_url(text: str) -> bytes:
    return base64.b64decode(text, altchars=b"-_", validate=True)


def _hex(raw: bytes) -> str:
    return f'"{raw.hex()}"'


def _from_hex(text: str) -> bytes:
    return binascii.unhexlify(text)  # `bytes.fromhex` would skip blanks


_Format = tuple[Callable[[bytes], str], Callable[[str], bytes]]
_FORMATS: Final[dict[str, _Format]] = {
    "string": (_string, str.encode),
    "json": (_string, str.encode),
    "bytes": (_base64, _from_base64),
    "base64": (_base64, _from_base64),
    "base64-url-safe": (_base64_url, _from_base64_url),
    "hex": (_hex, _from_hex),
}
"""By format, or `binary.handling.mode`: from captured bytes to JSON text, and from the JSON string back to bytes."""


def written_as(format_name: str, binary: str) -> str:
    """The format in which a key or value is written in JSON: for bytes, what `binary.handling.mode` says."""
    return binary if format_name == "bytes" else format_name


def _inner(content: Any) -> Any:
    return content["payload"] if "schema" in content and "payload" in content else content


def _payload(raw: bytes, what: str) -> dict[str, Any]:
    payload = _inner(canonical.loads(raw, what))
    if not isinstance(payload, dict):
        raise RecordError(f"{what} has no payload object")
    return payload
