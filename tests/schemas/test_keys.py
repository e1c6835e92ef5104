"""Slots as Redis Cluster computes them, segments and partitions, and the keys of control and state records."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.keys import (
    RESERVED_PREFIX,
    SLOTS,
    claim_key,
    control_key,
    partition_of,
    position_key,
    release_key,
    reset_key,
    segment_of,
    segments_of,
    slot_of,
)

KNOWN = [
    (b"123456789", 12739),  # 0x31C3, the check value of CRC-16/XMODEM
    (b"", 0),
    (b"foo", 12182),
    (b"bar", 5061),
    (b"user1000", 3443),
    (b"{user1000}.following", 3443),
    (b"{user1000}.followers", 3443),
    (b"foo{}{bar}", 8363),  # an empty tag is ignored, and a second one does not count
    (b"foo{{bar}}zap", 4015),  # the tag is "{bar"
    (b"foo{bar}{zap}", 5061),  # the first tag counts
    (b"{}", 15257),
    (b"{", 4092),
    (b"}{a", 12925),
    (b"{a}", 15495),
]


def crc16(raw: bytes) -> int:
    """CRC-16/XMODEM bit by bit: polynomial 0x1021, nothing reflected, starts at 0."""
    crc = 0
    for byte in raw:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
    return crc


@pytest.mark.parametrize(("key", "slot"), KNOWN)
def test_known_slots(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


@settings(deadline=None)
@given(st.binary(max_size=30) | st.text("{}ab", max_size=10).map(str.encode))
def test_slots_are_those_of_another_implementation(key: bytes) -> None:
    tag = re.match(rb"[^{]*\{([^}]+)\}", key)
    assert slot_of(key) == crc16(tag[1] if tag else key) % 16384


@pytest.mark.parametrize("segments", [1, 2, 3, 7, 64, 1000, 4096, SLOTS])
def test_segments_cut_the_slots_into_ranges_of_about_one_size(segments: int) -> None:
    of_slot: dict[int, int] = {}
    number = 0
    while len(of_slot) < 2000:
        key = b"%d" % number
        of_slot[slot_of(key)] = segment_of(key, segments)
        number += 1
    assert all(segment == slot * segments // SLOTS for slot, segment in of_slot.items())
    in_order = [of_slot[slot] for slot in sorted(of_slot)]
    assert in_order == sorted(in_order)
    assert 0 <= min(in_order) <= max(in_order) < segments


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 300), st.integers(1, 600))
def test_partitions_and_segments_agree(partitions: int, segments: int) -> None:
    by_partition: dict[int, list[int]] = {p: [] for p in range(partitions)}
    for segment in range(segments):
        by_partition[partition_of(segment, partitions, segments)].append(segment)  # KeyError: out of range
    assert {p: list(segments_of(p, partitions, segments)) for p in range(partitions)} == by_partition
    sizes = [len(found) for found in by_partition.values()]
    assert max(sizes) - min(sizes) <= 1


def test_control_keys_are_reserved_and_their_own() -> None:
    assert control_key("reset-begin", 7, "n1@17", 3) == b"\0deelog/reset-begin/7/n1@17/3"
    assert control_key("claim", 1, "n1@1", 1).startswith(RESERVED_PREFIX)
    parts = product(("claim", "active"), (1, 11), ("a@1", "b@1"), (1, 11))
    assert len({control_key(*each) for each in parts}) == 16


def test_keys_of_the_positions_topic() -> None:
    assert claim_key(3, "n1@1690000000000") == b"claim/3/n1@1690000000000"
    assert (position_key(3), reset_key(3), release_key(3)) == (b"position/3", b"reset/3", b"release/3")
