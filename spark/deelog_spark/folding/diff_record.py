"""Records of the diff topic before they are written, made of captured changes and of differences.

A captured change keeps its bytes: the codec adds `source.cause`, and the rest is as it was captured.
Alternatives: docs/decisions.md, "Passing a captured change on".
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from deelog_schemas import formats
from deelog_schemas.config import Config
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import Change
from deelog_schemas.header import Kind, pack, unpack
from deelog_schemas.operation import Entry

CHANGE, RESET = "change", "reset"
_ODD_OP: Final = "op {!r} does not belong in a captured change"


class Undecodable(RecordError):
    """The key or value of a deelog record cannot be decoded. `key` is the entry's key, None where it is the key."""

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
    """One row of a batch: a captured change or a row of a reset."""

    partition: int
    offset: int
    """Of the cause in the change topic: of the change, or of the reset's end."""
    ordinal: int
    """Orders the rows of one reset."""
    cause: str
    """CHANGE: header, key and value are as they were read. RESET: they are as they are written."""
    op: str
    """Of a row of a reset: c, u or d. Empty in a captured change, whose value has it."""
    header: bytes
    key: bytes
    value: bytes | None
    moment_ms: int = 0
    """Kafka's timestamp of a tombstone that comes alone. Whatever has a value has its time in it."""


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
        ("moment_ms", pa.int64()),
    ]
)
"""`Row` as Arrow's schema."""

ROW_DDL: Final = (
    "partition int, offset bigint, ordinal int, cause string, op string, header binary, key binary, value binary, "
    "moment_ms bigint"
)
"""`Row` as Spark's schema."""

ROW_ORDER: Final = ("partition", "offset", "ordinal", "key")
"""The order in which rows are written. `key` orders rows of several segments at a start, which share one offset."""


class DiffRecord(NamedTuple):
    """A record to write; `op` is c, u or d."""

    op: str
    header: bytes
    key: bytes
    value: bytes


class Renderer:
    """Turns rows into records of the diff topic. `codec` must be built with `cause=True`.

    `strict`: the key and value of a captured change are decoded too, as a later start or reset would; `change` raises
    `Undecodable` where that fails. Without it, only the value is parsed.
    """

    def __init__(self, codec: Codec, strict: bool = False) -> None:
        self._codec, self._strict = codec, strict

    def change(self, row: Row) -> DiffRecord:
        """The record of a captured change, or of a tombstone whose delete is gone; RecordError for no envelope."""
        raw = row.header
        if self._strict and (row.value is not None or raw[1] == Kind.TOMBSTONE):  # a change without a value is foreign
            entry_of(self._codec, Kind(raw[1]), row.key, row.value)
        if raw[1] == Kind.TOMBSTONE:
            return self._bare_delete(row)
        if row.value is None:
            raise RecordError("a change without a value")
        op, value = self._codec.passed_on(row.value, CHANGE)
        if op not in ("c", "u", "d"):
            raise RecordError(_ODD_OP.format(op))
        return DiffRecord(op, raw, row.key, value)

    def reads(self, row: Row) -> bool:
        """Whether a captured change can be decoded."""
        try:
            self.change(row)
        except Undecodable:
            return False
        return True

    def converter(self, part: str) -> str:
        """The class that encodes a part of the records, `key` or `value`."""
        codec = type(self._codec.keys if part == "key" else self._codec)
        return f"{codec.__module__}.{codec.__qualname__}"

    def _bare_delete(self, row: Row) -> DiffRecord:
        header = unpack(row.header)
        key = self._codec.decode_key(row.key)
        moment_us = row.moment_ms * 1000
        stamp = Stamp(header.segment, "", moment_us)
        value = self._codec.difference(Change(key, None, None, header.position, CHANGE), moment_us, None, stamp)
        return DiffRecord("d", _header(header.segment, header.position, header.node), row.key, value)

    def difference(
        self, change: Change, partition: int, offset: int, ordinal: int, segment: int, reason: str, moment_us: int
    ) -> Row:
        """A row of a reset. `change.before` is the entry in the diff topic, `change.after` that of the reset.

        `offset` is the offset of the reset's end, `ordinal` orders its rows, `moment_us` is the time of its cause in
        Unix microseconds: of a reset's end, which a node's clock gave, so that a watermark does not run ahead of the
        changes behind it.
        """
        value = self._codec.difference(change, moment_us, reason, Stamp(segment, "", moment_us))
        header = _header(segment, change.position, 0)
        op = op_of(change.before, change.after)
        return Row(partition, offset, ordinal, RESET, op, header, self._codec.key(change.key), value)


def tombstone(header: bytes) -> bytes:
    """The header of the tombstone after a delete."""
    return header[:1] + bytes([Kind.TOMBSTONE]) + header[2:]


def op_of(before: object, after: object) -> str:
    """The op of a difference: c, u or d."""
    return "d" if after is None else "c" if before is None else "u"


def _header(segment: int, position: tuple[int, int], node: int) -> bytes:
    return pack(Kind.CHANGE, segment, *position, node)


def codec_of(config: Config) -> Codec:
    """The codec of the diff topic, which reads the change topic too."""
    return formats.codec_of(config, connector_of(config), cause=True)


def connector_of(config: Config) -> str:
    """The connector's short name."""
    name: str = config["connector.class"]
    return name.removeprefix("deelog.").removesuffix("Connector").lower()


def connected(config: Config) -> Config:
    """The configuration with the schema registry's answers, so that no task has to ask."""
    return formats.connected(config, connector_of(config), diff=True)


def tolerant(config: Config) -> bool:
    """Whether a change that cannot be decoded becomes a dead letter."""
    return bool(config["errors.tolerance"] == "all")


def renderer_of(config: Config) -> Renderer:
    """The renderer of the diff topic's records."""
    return Renderer(codec_of(config), strict=tolerant(config))
