"""The view: its record, and what is read from it. Bad input: what is no view, or one of another version."""

from __future__ import annotations

import orjson
import pytest

from deelog_interceptors.grid.topology.controller import OWNERS_LOST
from deelog_interceptors.grid.topology.view import (
    SegmentState,
    State,
    View,
    decode_view,
    encode_view,
    first_slot,
)
from deelog_schemas.errors import RecordError
from tests.interceptors.grid.topology.test_controller import A, B, C, member, online, view


def test_a_view_comes_back_from_its_record_and_nothing_else_does() -> None:
    before = view(
        online(A, B, must_reset=OWNERS_LOST, target=B), SegmentState(), SegmentState(State.OFFLINE, 3, None, (C,), (C,))
    )
    assert decode_view(encode_view(before)) == before
    assert [before.client_address(name) for name in (A, None, "x@9")] == ["127.0.0.1:97", None, None]
    there = before._replace(members={A: before.members[A]._replace(client="[::1]:7001")})
    assert there.client_address(A) == "::1:7001"  # as Redis writes it
    assert [first_slot(segment, 3) for segment in range(4)] == [0, 5462, 10923, 16384]
    short = encode_view(before).replace(b'"segment_count":3', b'"segment_count":4')
    for data in (b"", b"{}", b"[]", b'{"version":2}', encode_view(before)[:-5], short):
        with pytest.raises(RecordError):
            decode_view(data)


def test_a_view_of_all_slots_fits_one_record() -> None:
    rows = tuple(online(A, B, C) for _ in range(16384))
    assert len(encode_view(view(*rows))) < 1_000_000


def test_a_segment_is_held_by_its_owners_and_by_who_is_still_in_sync() -> None:
    assert online(A, B, owners=(C, B)).holders == (C, B, A)
    assert SegmentState().holders == ()


def test_a_view_is_json_that_names_each_member_once() -> None:
    before = View(7, A, {B: member(B, leaving=True)}, (online(A, B), SegmentState()))
    assert orjson.loads(encode_view(before)) == {
        "version": 1,
        "topology_id": 7,
        "controller": A,
        "segment_count": 2,
        "members": [[B, "127.0.0.1:98", "127.0.0.1:1", True]],
        "names": [A, B],
        "rows": [[2, 5, 0, [0, 1], [0, 1], -1, None], [0, 0, -1, [], [], -1, None]],
    }
    assert decode_view(encode_view(before)) == before


@pytest.mark.parametrize(
    ("part", "instead", "words"),
    [
        (b'"version":1', b'"version":2', "version 2, 1 of 1 rows"),
        (b'"segment_count":1', b'"segment_count":2', "version 1, 1 of 2 rows"),
        (b'"rows":[[2,', b'"rows":[[9,', "IndexError"),
        (b'"topology_id":7,', b"", "KeyError"),
        (b"[[2,5,", b"[[5,", "ValueError"),
        (b'"names":', b'"no names":', "KeyError"),
    ],
)
def test_what_is_no_view_of_this_version_says_why(part: bytes, instead: bytes, words: str) -> None:
    data = encode_view(view(online(A)))
    assert part in data
    with pytest.raises(RecordError, match=rf"^not a view that this version can read: .*{words}"):
        decode_view(data.replace(part, instead))
