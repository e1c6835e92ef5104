"""A key's segment and partition, and the keys of control records."""

from __future__ import annotations

import binascii
from typing import Final

SLOTS: Final = 16384
RESERVED_PREFIX: Final = b"\0deelog/"
"""Writes of entry keys with this prefix are refused: it is reserved for control records."""
POSITION_KEYS: Final = b"position/"
"""With what the keys of positions begin."""


def slot_of(key: bytes) -> int:
    """Redis Cluster's hash slot: CRC16 (XMODEM) of the key, or of its `{hash tag}`, modulo 16384."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


def segment_of(key: bytes, segments: int) -> int:
    """The segment of a key: the same in every interceptor."""
    return slot_of(key) * segments // SLOTS


def partition_of(segment: int, partitions: int, segments: int) -> int:
    """The Kafka partition of a segment; fixed when the topic is created."""
    return segment * partitions // segments


def segments_of(partition: int, partitions: int, segments: int) -> range:
    """The segments that map to a partition."""
    first = -(-partition * segments // partitions)
    return range(first, -(-(partition + 1) * segments // partitions))


def control_key(kind: str, segment: int, member: str, number: int) -> bytes:
    """The reserved entry key of one control record. `number` makes it unique until the next restart."""
    return RESERVED_PREFIX + f"{kind}/{segment}/{member}/{number}".encode()


def claim_key(segment: int, member: str) -> bytes:
    """Positions topic: one claim per claimant, so that a late, lower one overwrites no other (claim-key-per-member)."""
    return f"claim/{segment}/{member}".encode()


def position_key(segment: int) -> bytes:
    """Positions topic: the written position of a segment."""
    return b"%s%d" % (POSITION_KEYS, segment)


def reset_key(segment: int) -> bytes:
    """Positions topic: the open or owed reset of a segment."""
    return f"reset/{segment}".encode()


def release_key(segment: int) -> bytes:
    """Positions topic: the last release of a segment."""
    return f"release/{segment}".encode()
