"""Keys and envelopes in Avro: written by hand where that happens once per operation, by fastavro elsewhere.

Our envelope has a fixed shape. The bytes that a topic and a batch share are put together once; only two strings, a few
numbers and two flags differ from record to record. A test compares the bytes with fastavro's on generated records.
Weighed in docs/decisions.md, "The envelope in Avro".

A prefix names the schema of the body: with a registry, Confluent's wire format (0x0, the id); without one, the Avro
specification's single-object encoding (0xc3 0x01, the schema's fingerprint). A body without a prefix is not safe: a
reader with another schema decodes it without an error, to other values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, Final, NamedTuple

import fastavro

from deelog_schemas import __version__
from deelog_schemas.avro.schema import NO_SCHEMA, canonical
from deelog_schemas.envelope import FOREIGN, Codec, KeyCodec, Source, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.operation import Entry, Operation, Reason

_PUT: Final = str(Reason.PUT)
_LIVE: Final = b"\x00\x0afalse\x00\x02"
"""`snapshot` and `db` of a captured change, and the union branch of a `sequence` that is not null."""
_DAMAGED: Final = (
    *(EOFError, IndexError, ValueError, TypeError, KeyError),
    *(OverflowError, MemoryError, RecursionError, struct.error),
)
"""The errors that fastavro raises for bytes that do not fit the schema."""


_Past = Callable[[bytes, int], int]
"""From the offset where a value begins to the offset where it ends; raises RecordError or IndexError for bad bytes."""


class Written(NamedTuple):
    """The schema by which one part of a record (key or value) is written, and those by which it may be read.

    `prefix` comes before each body and names `schema`. `known` has the schemas by prefix, `schema` included. `find`
    looks another one up; it raises `RecordError` where this topic has no schema with that prefix.
    """

    prefix: bytes
    schema: str
    known: Mapping[bytes, str]
    find: Callable[[bytes], str]


def _varint(rest: int) -> bytes:
    raw = bytearray()
    while rest > 0x7F:
        raw.append(rest & 0x7F | 0x80)
        rest >>= 7
    raw.append(rest)
    return bytes(raw)


def long(number: int) -> bytes:
    """Avro's `long` and `int`: zigzag, then seven bits per byte, lowest first."""
    return _varint((number << 1) ^ (number >> 63))


_SMALL: Final = tuple(long(number) for number in range(8192))
_LOW: Final = tuple(bytes((bits & 0x7F | 0x80, bits >> 7 | 0x80)) for bits in range(1 << 14))
"""Fourteen bits that more bits follow, as two bytes."""


_EARLY: Final = 8_192_000
"""Microseconds since 1970. From here on a timestamp in any unit has more than the bits that `_LOW` writes of it."""
_high: Final = lru_cache(maxsize=4096)(_varint)
"""The upper bits of a number. Timestamps that are close together share them, so they are cached."""


def text(raw: bytes) -> bytes:
    """Avro's `string` and `bytes`."""
    size = len(raw)
    return (_SMALL[size] if size < 8192 else long(size)) + raw


def _utf8(raw: bytes) -> None:
    if not raw.isascii():
        raw.decode()


def _anything(raw: bytes) -> None:
    """Bytes are not checked."""


_CHECKS: Final[dict[str, Callable[[bytes], None]]] = {"string": _utf8, "json": _utf8, "bytes": _anything}


class _Frame(NamedTuple):
    """The parts that all envelopes of one stamp share."""

    stamp: Stamp | None
    place: bytes
    node: bytes
    tails: Mapping[str, bytes]
    """The bytes after `source`, by op."""


class AvroKeys(KeyCodec):
    """Record keys in Avro."""

    def __init__(self, key: Written, key_format: str = "string") -> None:
        self._reader, self._prefix, self._check = _Reader(key, "key"), key.prefix, _CHECKS[key_format]
        self._bytes = partial(_captured, "key", key_format)

    def key(self, key: bytes) -> bytes:
        self._check(key)
        return self._prefix + text(key)

    def decode_key(self, raw: bytes) -> bytes:
        """See `KeyCodec`; raises `RecordError` where its schema is not one of this topic."""
        size = len(self._prefix)
        if raw.startswith(self._prefix) and len(raw) > size:  # the usual case, and a scan decodes every key
            length = raw[size]
            if not length & 0x81 and len(raw) == size + 1 + (length >> 1):  # the length is one byte and not negative
                key = raw[size + 1 :]
                try:
                    self._check(key)
                except UnicodeDecodeError as error:
                    raise RecordError(f"the record key is not in this topic's key format: {error}") from error
                return key
        return self._bytes(self._fields(raw).get("key"))

    def _fields(self, raw: bytes) -> dict[str, Any]:
        return self._reader.read(raw)


class AvroCodec(Codec):
    """Avro of one topic. Parameters are those of `JsonCodec`."""

    gone = _null = b"\0"

    def __init__(
        self,
        connector: str,
        name: str,
        cache: str,
        keys: KeyCodec,
        value: Written,
        key_format: str = "string",
        value_format: str = "string",
        cause: bool = False,
    ) -> None:
        super().__init__(keys)
        self._value, self._cause = _Reader(value, "value"), cause
        self._pasts = tuple(_past_value if f == "bytes" else _past_text for f in (key_format, value_format))
        self._check_key, self._check_value = _CHECKS[key_format], _CHECKS[value_format]
        self._key_bytes = partial(_captured, "key", key_format)
        self._value_bytes = partial(_captured, "value", value_format)
        self._opened = value.prefix
        self._source = b"".join(map(text, (__version__.encode(), connector.encode(), name.encode())))
        self._cache = text(cache.encode())
        self._frame = _Frame(None, b"", b"", {})

    def change(self, operation: Operation, stamp: Stamp) -> bytes:
        # Inlined, since this runs once per operation: a call takes a tenth of its time.
        epoch, sequence, reason, key, value, expires_at, ts_us, existed, image = operation
        if not key.isascii():
            self._check_key(key)
        size = len(key)
        named = b"\x02" + (_SMALL[size] if size < 8192 else long(size)) + key
        code, before, after = "c", b"\0", b"\0"
        if value is not None:
            if not value.isascii():
                self._check_value(value)
            size = len(value)
            length = _SMALL[size] if size < 8192 else long(size)
            if expires_at is None:
                moment = b"\0"
            elif expires_at < 8192:
                moment = b"\x02" + long(expires_at)
            else:
                moment = b"\x02" + _LOW[expires_at << 1 & 0x3FFF] + _high(expires_at >> 13)
            after = b"%b\x02%b%b%b" % (named, length, value, moment)
        if existed or value is None:
            before = named + b"\0\0" if image is None else self._struct(named, image, None)
            code = "d" if value is None else "u"
        if ts_us < _EARLY:
            plain = None if reason == _PUT else reason
            return self._fill(code, before, after, (epoch, sequence, ts_us, "false", plain, None), stamp)
        known, place, node, tails = self._frame
        if known is not stamp:  # a batch has one stamp per segment
            _, place, node, tails = self._frame = self._framed(stamp)
        position = b'["%d","%d"]' % (epoch, sequence)
        milli, micro, nano = ts_us // 1000 * 2, ts_us * 2, ts_us * 2000
        why = b"\0" if reason == _PUT else b"\x02" + text(reason.encode())
        return b"".join(
            (
                self._opened,
                before,
                after,
                self._source,
                _LOW[milli & 0x3FFF],
                _high(milli >> 14),
                _LIVE,
                _SMALL[len(position)],
                position,
                b"\x02",
                _LOW[micro & 0x3FFF],
                _high(micro >> 14),
                b"\x02",
                _LOW[nano & 0x3FFF],
                _LOW[nano >> 14 & 0x3FFF],
                _high(nano >> 28),
                place,
                _SMALL[epoch] if epoch < 8192 else long(epoch),
                _SMALL[sequence] if sequence < 8192 else long(sequence),
                node,
                why,
                tails[code],
            )
        )

    def _named(self, key: bytes) -> bytes:
        self._check_key(key)
        return b"\x02" + text(key)

    def _struct(self, named: bytes, value: bytes | None, expires_at: int | None) -> bytes:
        if value is None:
            content = b"\0"
        else:
            self._check_value(value)
            content = b"\x02" + text(value)
        return named + content + (b"\0" if expires_at is None else b"\x02" + long(expires_at))

    def _fill(self, code: str, before: bytes, after: bytes, source: Source, stamp: Stamp) -> bytes:
        epoch, sequence, ts_us, snapshot, reason, cause = source
        _, place, node, tails = self._framed(stamp)
        parts = [self._opened, before, after, self._source, long(ts_us // 1000), b"\0", text(snapshot.encode())]
        parts += [b"\0", _optional(f'["{epoch}","{sequence}"]'), b"\x02", long(ts_us), b"\x02", long(ts_us * 1000)]
        parts += [place, long(epoch), long(sequence), node, _optional(reason)]
        if self._cause:
            parts += [_optional(cause), tails[code][1:]]
        else:
            parts.append(tails[code])
        return b"".join(parts)

    def _framed(self, stamp: Stamp) -> _Frame:
        segment, node_id, now = stamp
        moments = b"".join(b"\x02" + long(moment) for moment in (now // 1000, now, now * 1000))
        gap = b"\0\0" if self._cause else b"\0"  # a captured change has no cause; no transaction
        tails = {code: gap + text(code.encode()) + moments for code in "cudr"}
        return _Frame(stamp, self._cache + long(segment), text(node_id.encode()), tails)

    # -- decoding --------------------------------------------------------------------------------------------------

    def _fields(self, raw: bytes) -> dict[str, Any]:
        return self._value.read(raw)

    def passed_on(self, raw: bytes, cause: str) -> tuple[str, bytes]:
        """See `Codec`. Inserts the cause into a record of our own schema; re-encodes one of another schema."""
        reader = self._value
        if reader.layout(raw) == "change":
            op, end = reader.walk(raw, *self._pasts)
            return op, b"%b%b%b%b" % (self._opened, raw[len(self._opened) : end], _optional(cause), raw[end:])
        fields = reader.read(raw)
        try:
            fields["source"]["cause"] = cause
            written = BytesIO()
            fastavro.schemaless_writer(written, reader.own, fields)
        except _DAMAGED as error:
            raise RecordError(f"{FOREIGN}: {error!r}") from error
        return fields["op"], self._opened + written.getvalue()

    def after_of(self, raw: bytes) -> bytes | None:
        """See `Codec`: the union `after`, with its branch."""
        if self._value.layout(raw) is None:
            return None
        try:
            begin = _past_image(raw, len(self._opened))
            return raw[begin : _past_image(raw, begin)]
        except RecordError:
            return None  # decoding it raises the error that says what is wrong

    def decode_after(self, raw: bytes) -> Entry:
        key, at = _text(raw, 1)
        value = None
        if raw[at] == 2:
            value, at = _text(raw, at + 1)
        else:
            at += 1
        expires_at = _long(raw, at + 1)[0] if raw[at] == 2 else None
        try:
            self._check_key(key)
            if value is None:
                raise ValueError("`after` has no value")
            self._check_value(value)
        except ValueError as error:
            raise RecordError(f"{FOREIGN}: {error!r}") from error
        return Entry(key, value, expires_at)


def _captured(part: str, format_name: str, content: Any) -> bytes:
    if isinstance(content, bytes if format_name == "bytes" else str):
        return content if isinstance(content, bytes) else str.encode(content)
    raise RecordError(f"{part} is {type(content).__name__}, which is not this topic's format of it")


class _Reader:
    """Reads one part (key or value) of a record by the schema that its prefix names."""

    def __init__(self, written: Written, part: str) -> None:
        self._written, self._what, self._size = written, f"the record {part}", len(written.prefix)
        self.own = _parsed(written.schema)
        own = canonical(written.schema)
        self._layouts = {own: "own"}
        cause = ',{"name":"cause","type":["null","string"]}'
        if cause in own:
            self._layouts = {own: "diff", own.replace(cause, "", 1): "change"}
        self._schemas: dict[bytes, tuple[Any, str | None]] = {}

    def _schema(self, raw: bytes) -> tuple[Any, str | None]:
        prefix = raw[: self._size]
        schema = self._schemas.get(prefix)
        if schema is None:
            self._named(raw)
            text = self._written.known.get(prefix) or self._written.find(prefix)
            try:
                schema = _parsed(text), self._layouts.get(canonical(text))
            except NO_SCHEMA as error:
                raise RecordError(f"{self._what} names a schema that is none: {error!r}") from error
            self._schemas[prefix] = schema
        return schema

    def _named(self, raw: bytes) -> None:
        mark = self._written.prefix[: 1 if self._size == 5 else 2]
        if len(raw) < self._size or not raw.startswith(mark):
            how = "Confluent's wire format (0x0, schema id)" if self._size == 5 else "Avro's single-object encoding"
            raise RecordError(f"{self._what} is not in {how}: it begins with {raw[:10].hex(' ') or 'nothing'}")

    def layout(self, raw: bytes) -> str | None:
        """How the bytes are laid out: `change` (our envelope without a cause), `diff` (with one), `own` (our schema, in
        a codec without causes), or None (another schema)."""
        return self._schema(raw)[1]

    def read(self, raw: bytes) -> dict[str, Any]:
        """The fields; raises `RecordError` where the bytes do not fit the schema that they name."""
        schema, _ = self._schema(raw)
        stream = BytesIO(raw)
        stream.seek(self._size)
        try:
            fields = fastavro.schemaless_reader(stream, schema, None)
        except _DAMAGED as error:
            raise RecordError(f"{self._what} is not Avro of the schema that it names: {error!r}") from error
        if stream.tell() != len(raw):
            raise RecordError(f"{self._what} has {len(raw) - stream.tell()} bytes behind what its schema tells")
        if not isinstance(fields, dict):
            raise RecordError(f"{self._what} is no record, but {type(fields).__name__}")
        return fields

    def walk(self, raw: bytes, past_key: _Past, past_value: _Past) -> tuple[str, int]:
        """The op of our envelope without a cause, and the offset where `source` ends; raises `RecordError`."""
        try:
            at = self._size
            for _ in range(2):
                at = _past_image(raw, at, past_key, past_value)
            for _ in range(3):
                at = _past_text(raw, at)
            at = _long(raw, at)[1]
            at = _past_text(raw, at + 1) if raw[at] == 0 else _past_none(raw, at, 2)
            at = _past_text(raw, at)
            at = _past_optional(raw, at, _past_text)
            at = _past_optional(raw, _past_optional(raw, at, _past_long), _past_long)
            at = _past_text(raw, at)
            for _ in range(3):
                at = _long(raw, at)[1]
            end = _past_optional(raw, _past_text(raw, at), _past_text)
            op_at = _past_none(raw, end, 0)
            at = _past_text(raw, op_at)
            for _ in range(3):
                at = _past_optional(raw, at, _past_long)
        except IndexError as error:
            raise _cut_short() from error
        if at != len(raw):
            raise RecordError(f"{self._what} has {len(raw) - at} bytes behind what its schema tells")
        return _text(raw, op_at)[0].decode(), end


def _optional(content: str | None) -> bytes:
    return b"\0" if content is None else b"\x02" + text(content.encode())


@lru_cache(maxsize=256)
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


# -- reading by hand, where every record of a batch is read ------------------------------------------------------------


def _cut_short() -> RecordError:
    return RecordError(f"{FOREIGN}: it ends too early")


def _long(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    number, shift, at = byte & 0x7F, 7, at + 1
    while byte > 0x7F:
        byte = raw[at]
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 70:
            raise RecordError(f"{FOREIGN}: a number of more than ten bytes")
    return (number >> 1) ^ -(number & 1), at


def _text(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(raw, at)
    end = at + size
    if size < 0 or end > len(raw):
        raise _cut_short()
    return raw[at:end], end


def _past_text(raw: bytes, at: int) -> int:
    content, at = _text(raw, at)
    try:
        _utf8(content)
    except UnicodeDecodeError as error:
        raise RecordError(f"{FOREIGN}: {error!r}") from error
    return at


def _past_long(raw: bytes, at: int) -> int:
    return _long(raw, at)[1]


def _past_none(raw: bytes, at: int, branch: int) -> int:
    if raw[at] != branch:
        raise RecordError(f"{FOREIGN}: a union has no branch {raw[at]}")
    return at + 1


def _past_optional(raw: bytes, at: int, past: _Past) -> int:
    return past(raw, at + 1) if raw[at] == 2 else _past_none(raw, at, 0)


def _past_value(raw: bytes, at: int) -> int:
    return _text(raw, at)[1]


def _past_image(raw: bytes, at: int, past_key: _Past = _past_value, past_value: _Past = _past_value) -> int:
    """The offset after `before` or `after`."""
    try:
        if raw[at] != 2:
            return _past_none(raw, at, 0)
        return _past_optional(raw, _past_optional(raw, past_key(raw, at + 1), past_value), _past_long)
    except IndexError as error:
        raise _cut_short() from error
