"""The `deelog` header: 24 bytes, encoded and decoded, and errors that say what is wrong with other bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.errors import RecordError
from deelog_schemas.header import (
    CONTROL_KINDS,
    POSITION_BYTES,
    SIZE,
    Header,
    Kind,
    node_number,
    pack,
    unpack,
)
from deelog_schemas.records import ON_CHANGES, ON_POSITIONS

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(Header, st.sampled_from(Kind), U32, U32, U64, U32)
NEAR = st.builds(Header, st.just(Kind.CHANGE), U32, st.integers(0, 2), st.integers(0, 3) | U64, U32)
VALID = pack(Kind.CHANGE, 1, 2, 3, 4)


@settings(deadline=None)
@given(HEADERS)
def test_a_header_reads_as_it_was_written(header: Header) -> None:
    raw = pack(*header)
    assert len(raw) == SIZE == 24
    assert unpack(raw) == header
    assert unpack(raw).position == (header.epoch, header.sequence)
    assert isinstance(unpack(raw).kind, Kind)


@settings(deadline=None)
@given(NEAR, NEAR)
def test_positions_compare_as_their_bytes_do(one: Header, other: Header) -> None:
    raw, others = pack(*one)[POSITION_BYTES], pack(*other)[POSITION_BYTES]
    assert (raw < others) == (one.position < other.position)
    assert (raw == others) == (one.position == other.position)


def test_another_length_is_an_error_that_names_it() -> None:
    for size in set(range(50)) - {SIZE}:
        with pytest.raises(RecordError, match=rf"`deelog` has {size} bytes, not 24"):
            unpack((VALID * 3)[:size])


def test_another_version_is_an_error_that_names_version_and_kind() -> None:
    for version in set(range(256)) - {1}:
        with pytest.raises(RecordError, match=rf"of version {version}, .*kind 1\b.*upgrade"):
            unpack(bytes([version]) + VALID[1:])


def test_a_reserved_bit_that_is_set_is_an_unknown_version() -> None:
    for bit in range(16):
        reserved = 1 << bit
        with pytest.raises(RecordError, match=rf"reserved bytes {reserved:#x}, kind 1\b.*upgrade"):
            unpack(VALID[:2] + reserved.to_bytes(2, "big") + VALID[4:])


def test_an_unknown_kind_is_an_error_that_names_kind_and_version() -> None:
    for kind in set(range(256)) - set(Kind):
        with pytest.raises(RecordError, match=rf"kind {kind} of header version 1 is unknown; upgrade"):
            unpack(pack(kind, 0, 0, 0, 0))


@settings(deadline=None)
@given(st.binary(min_size=SIZE, max_size=SIZE) | st.binary(max_size=40))
def test_any_bytes_are_a_header_or_a_record_error(raw: bytes) -> None:
    try:
        header = unpack(raw)
    except RecordError:
        return
    assert pack(*header) == raw


@pytest.mark.parametrize(
    "fields", [(256, 0, 0, 0, 0), (1, 2**32, 0, 0, 0), (1, 0, -1, 0, 0), (1, 0, 0, 2**64, 0), (1, 0, 0, 0, 2**32)]
)
def test_a_number_that_does_not_fit_is_not_cut_off(fields: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(struct.error):
        pack(*fields)


def test_the_kinds_are_divided_among_the_topics() -> None:
    assert frozenset(Kind) == ON_CHANGES | ON_POSITIONS
    assert {Kind.CHANGE, Kind.TOMBSTONE, Kind.READ} == ON_CHANGES - CONTROL_KINDS
    assert not CONTROL_KINDS - ON_CHANGES
    assert not ON_CHANGES & ON_POSITIONS
    assert sorted(map(int, ON_CHANGES)) == [1, 2, 3, 16, 17, 18, 19, 20, 23]
    assert sorted(map(int, ON_POSITIONS)) == [22, 32, 33, 34, 35]


def test_the_node_number_is_the_crc_of_the_member() -> None:
    assert node_number("123456789") == 0xCBF43926  # the published check value of CRC-32
    assert unpack(pack(Kind.CHANGE, 0, 0, 0, node_number("123456789"))).node == 0xCBF43926
