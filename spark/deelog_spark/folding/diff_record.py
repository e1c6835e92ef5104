"""A record of the diff topic, before it is written: what a captured change or a difference becomes.

Weighed: decoding a captured envelope and building it anew (5 µs, and `op`, `ts_*` and a key-only `before` would have
to be carried by hand), parsing and dumping JSON here (tied to one converter's bytes), and asking the codec to add
`source.cause` to the captured bytes. The last one: everything that the capture said stays as it was said.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from deelog_schemas import formats
from deelog_schemas.config import Config
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.header import Flags, Kind, pack, unpack
from deelog_schemas.operation import Entry

CHANGE, RESET = "change", "reset"
_ODD_OP: Final = "op {!r} does not belong in a captured change"
_RUN_FLAGS = int(Flags.FIRST | Flags.LAST)


class Undecodable(RecordError):
    """The key or value of a record of ours cannot be decoded. `key` is the entry's, None where that is the trouble."""

    def __init__(self, text: str, key: bytes | None) -> None:
        super().__init__(text)
        self.key = key


def entry_of(codec: Codec, kind: Kind, raw: bytes, value: bytes | None) -> tuple[bytes, Entry | None]:
    """Key and entry of a change, row or tombstone; raises `Undecodable`."""
    key = None
    try:
        key = codec.decode_key(raw)
        if kind is Kind.TOMBSTONE:
            return key, None
        if value is None:
            raise RecordError("a change without a value")
        envelope = codec.decode_value(value)
        if kind is Kind.CHANGE and envelope.op == "r":
            raise RecordError(_ODD_OP.format(envelope.op))
    except RecordError as error:
        raise Undecodable(str(error), key) from error
    return key, envelope.after


class Row(NamedTuple):
    """One row of a batch, in the order of the sinks: (partition, offset, ordinal).

    `offset` is that of the cause on the change topic: for a reset its end's. `ordinal` orders the rows of one reset.
    Captured rows (`cause` change) hold key, value and header as they were read, rows of a reset as they are written.
    """

    partition: int
    offset: int
    ordinal: int
    cause: str
    op: str
    """Of a row of a reset: c, u or d. Empty in captured rows, whose value says it."""
    header: bytes
    key: bytes
    value: bytes | None


ROW_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ordinal", pa.int32()),
        ("cause", pa.string()),
        ("op", pa.string()),
        ("header", pa.binary()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""Of `Row`, in files and frames."""

ROW_DDL: Final = (
    "partition int, offset bigint, ordinal int, cause string, op string, header binary, key binary, value binary"
)
"""The same, as Spark writes it."""

ROW_ORDER: Final = ("partition", "offset", "ordinal", "key")
"""How rows leave; `key` only settles the order of segments at a start, whose rows share one offset."""


class DiffRecord(NamedTuple):
    """A record to write; `op` is c, u or d."""

    op: str
    header: bytes
    key: bytes
    value: bytes


class Renderer:
    """Turns rows into records of the diff topic. `codec` must be built with `cause=True`.

    `strict`: a captured change is first decoded, key and value, as a start or a reset does that reads it again, and is
    `Undecodable` where they could not. Without, its value is parsed alone.
    """

    def __init__(self, codec: Codec, strict: bool = False) -> None:
        self._codec, self._strict = codec, strict

    def change(self, row: Row) -> DiffRecord:
        """A captured change, or a tombstone whose delete is gone; raises `RecordError` where it is not an envelope."""
        raw = row.header
        if self._strict and (row.value is not None or raw[1] == Kind.TOMBSTONE):  # without one, it is no record of ours
            entry_of(self._codec, Kind(raw[1]), row.key, row.value)
        if raw[1] == Kind.TOMBSTONE:
            return self._bare_delete(row)
        if raw[3] & _RUN_FLAGS:  # they speak of a transaction on another topic
            raw = raw[:3] + bytes([raw[3] & ~_RUN_FLAGS]) + raw[4:]
        if row.value is None:
            raise RecordError("a change without a value")
        op, value = self._codec.passed_on(row.value, CHANGE)
        if op not in ("c", "u", "d"):
            raise RecordError(_ODD_OP.format(op))
        return DiffRecord(op, raw, row.key, value)

    def reads(self, row: Row) -> bool:
        """Whether a captured change is not `Undecodable`."""
        try:
            self.change(row)
        except Undecodable:
            return False
        return True

    def converter(self, part: str) -> str:
        """The class that reads and writes a part of the records."""
        found = type(getattr(self._codec, f"{part}s", self._codec))
        return f"{found.__module__}.{found.__qualname__}"

    def _bare_delete(self, row: Row) -> DiffRecord:
        header = unpack(row.header)
        key = self._codec.decode_key(row.key)
        stamp = Stamp(header.segment, "", 0)
        value = self._codec.difference(None, None, key, header.position, 0, None, CHANGE, stamp)
        return DiffRecord("d", _header(header.segment, header.position, header.node), row.key, value)

    def difference(
        self, change: Change, partition: int, offset: int, ordinal: int, segment: int, reason: str, now_us: int
    ) -> Row:
        """A row of a reset: `before` is the last value in the diff topic, `after` what the reset brought."""
        value = self._codec.difference(
            change.before, change.after, change.key, change.position, now_us, reason, RESET, Stamp(segment, "", now_us)
        )
        header = _header(segment, change.position, 0)
        op = op_of(change.before, change.after)
        return Row(partition, offset, ordinal, RESET, op, header, self._codec.key(change.key), value)


def tombstone(header: bytes) -> bytes:
    """The header of the tombstone behind a delete."""
    return header[:1] + bytes([Kind.TOMBSTONE]) + header[2:]


def op_of(before: object, after: object) -> str:
    """c, u or d."""
    return "d" if after is None else "c" if before is None else "u"


def _header(segment: int, position: tuple[int, int], node: int) -> bytes:
    return pack(Kind.CHANGE, 0, segment, *position, node)


def codec_of(config: Config) -> Codec:
    """The codec of the diff topic, which reads the change topic too."""
    return formats.codec_of(config, connector_of(config), cause=True)


def connector_of(config: Config) -> str:
    """The connector's short name."""
    name: str = config["connector.class"]
    return name.removeprefix("deelog.").removesuffix("Connector").lower()


def connected(config: Config) -> Config:
    """The configuration with what a schema registry says: for tasks, which shall not ask it."""
    return formats.connected(config, connector_of(config), diff=True)


def tolerant(config: Config) -> bool:
    """Whether a change that cannot be decoded is put aside."""
    return bool(config["errors.tolerance"] == "all")


def renderer_of(config: Config) -> Renderer:
    """What makes the diff topic's records."""
    return Renderer(codec_of(config), strict=tolerant(config))
