"""The `deelog` record header: 24 bytes from which our own readers fold a topic without decoding a value.

Layout, big-endian: `version u8, kind u8, reserved u16, segment u32, epoch u32, sequence u64, node u32`. The reserved
bytes are zero. Epoch and sequence are side by side, so that bytes 8..20 compare as a position does.

Weighed in docs/decisions.md, "One header".
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

from deelog_schemas.errors import RecordError

HEADER_NAME: Final = "deelog"
CONTROL_HEADER_NAME: Final = "deelog.control"
VERSION: Final = 1
SIZE: Final = 24
POSITION_BYTES: Final = slice(8, 20)
"""Where `(epoch, sequence)` is in the header, comparable as raw bytes."""

Position = tuple[int, int]
"""`(epoch, sequence)`."""

_FORMAT: Final = struct.Struct(">BBHIIQI")
assert _FORMAT.size == SIZE


class Kind(IntEnum):
    """What a record is. A reader that meets another number stops."""

    CHANGE = 1
    TOMBSTONE = 2  # after a delete; within a reset: the key is gone, for consumers that do not know resets
    READ = 3
    CLAIM = 16
    ACTIVE = 17
    RELEASE = 18
    RESET_BEGIN = 19
    RESET_END = 20
    SKIPPED = 23
    # On the positions topic only:
    POSITION_RENEWAL = 22
    POSITION = 32
    RESET_STATE = 33
    CLAIM_STATE = 34
    RELEASE_STATE = 35


CONTROL_KINDS: Final = frozenset(
    {Kind.CLAIM, Kind.ACTIVE, Kind.RELEASE, Kind.RESET_BEGIN, Kind.RESET_END, Kind.SKIPPED}
)
"""Kinds of the change topic that carry no entry."""


_KINDS: Final = {int(k): k for k in Kind}


class Header(NamedTuple):
    """One decoded `deelog` header. `node` is the CRC-32 of the member text.

    That is for people, and to guess whose transaction hides a record; never for decisions about records.
    """

    kind: Kind
    segment: int
    epoch: int
    sequence: int
    node: int

    @property
    def position(self) -> Position:
        return self.epoch, self.sequence


def node_number(member: str) -> int:
    """CRC-32 of a member text `<node.id>@<incarnation>`."""
    return zlib.crc32(member.encode())


def pack(kind: int, segment: int, epoch: int, sequence: int, node: int) -> bytes:
    """The 24 bytes. Raises `struct.error` where a number does not fit its field."""
    return _FORMAT.pack(VERSION, kind, 0, segment, epoch, sequence, node)


def unpack(raw: bytes) -> Header:
    """Decodes a header; raises `RecordError` on another length, version or kind, naming it."""
    if len(raw) != SIZE:
        raise RecordError(f"header `{HEADER_NAME}` has {len(raw)} bytes, not {SIZE}")
    version, kind, reserved, segment, epoch, sequence, node = _FORMAT.unpack(raw)
    if version != VERSION or reserved:
        raise RecordError(
            f"header `{HEADER_NAME}` of version {version}, reserved bytes {reserved:#x}, kind {kind}: this reader "
            f"knows version {VERSION} only; upgrade it before you read on"
        )
    known = _KINDS.get(kind)
    if known is None:
        raise RecordError(f"record kind {kind} of header version {version} is unknown; upgrade the reader")
    return Header(known, segment, epoch, sequence, node)
