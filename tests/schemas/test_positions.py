"""States of the positions topic, encoded and decoded. Every key or value that is not ours is a `RecordError`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas import canonical
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind
from deelog_schemas.keys import claim_key, position_key, release_key, reset_key
from deelog_schemas.positions import (
    ClaimState,
    PositionState,
    ReleaseState,
    ResetState,
    State,
    StateRecord,
    decode_state,
    encode_state,
)

MEMBER = "n1@1690000000000"
U32, U64, I64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(-1, 2**63 - 1)
MEMBERS = st.from_regex(r"\A[A-Za-z0-9_-]{1,64}@[0-9]{1,13}\Z")
TEXT = st.text(max_size=20)
STATES: st.SearchStrategy[State] = (
    st.builds(ClaimState, U32, MEMBERS, TEXT, TEXT, U32, U32, U32, st.booleans(), U32)
    | st.builds(PositionState, U32, U64, I64, I64, I64, I64, I64, I64, TEXT, MEMBERS)
    | st.builds(ResetState, TEXT, U32, U64, TEXT, I64, MEMBERS)
    | st.builds(ReleaseState, U32, U64, MEMBERS, st.booleans(), U32)
)
ONE_OF_EACH: list[tuple[bytes, Kind, State]] = [
    (claim_key(3, MEMBER), Kind.CLAIM_STATE, ClaimState(2, MEMBER, "p", "c", 64, 4, 9)),
    (position_key(3), Kind.POSITION, PositionState(2, 7, 100, 6, 3, 1, 90, 1, "topic-id", MEMBER)),
    (reset_key(3), Kind.RESET_STATE, ResetState("r1", 2, 7, "overflow", -1, MEMBER)),
    (release_key(3), Kind.RELEASE_STATE, ReleaseState(2, 7, MEMBER, True)),
]
names = [type(state).__name__ for _, _, state in ONE_OF_EACH]


def key_and_kind(segment: int, state: State) -> tuple[bytes, Kind]:
    match state:
        case ClaimState():
            return claim_key(segment, state.member), Kind.CLAIM_STATE
        case PositionState():
            return position_key(segment), Kind.POSITION
        case ResetState():
            return reset_key(segment), Kind.RESET_STATE
        case ReleaseState():
            return release_key(segment), Kind.RELEASE_STATE


@settings(deadline=None, max_examples=200)
@given(U32, STATES)
def test_every_state_reads_as_it_was_written(segment: int, state: State) -> None:
    key, kind = key_and_kind(segment, state)
    found = decode_state(key, encode_state(state), kind)
    assert found.state == state
    assert type(found.state) is type(state)
    assert found.segment == segment
    assert found.member == (state.member if isinstance(state, ClaimState) else "")
    assert key.decode().startswith(f"{found.what}/")


@pytest.mark.parametrize(("key", "kind", "state"), ONE_OF_EACH, ids=names)
def test_no_value_removes_the_key(key: bytes, kind: Kind, state: State) -> None:
    what, member = key.decode().split("/")[0], MEMBER if kind is Kind.CLAIM_STATE else ""
    assert decode_state(key, None, kind) == StateRecord(what, 3, member, None)


def test_a_renewal_is_a_position() -> None:
    key, _, state = ONE_OF_EACH[1]
    assert decode_state(key, encode_state(state), Kind.POSITION_RENEWAL).state == state
    assert isinstance(state, PositionState)
    assert state.position == (2, 7)


def test_values_are_canonical() -> None:
    state = ReleaseState(2, 7, MEMBER, True)
    assert encode_state(state) == b'{"epoch":2,"known":true,"member":"n1@1690000000000","sequence":7}'


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(("key", "own", "state"), ONE_OF_EACH, ids=names)
def test_a_key_goes_with_its_own_kind_only(key: bytes, own: Kind, state: State, kind: Kind) -> None:
    if kind is own or (own, kind) == (Kind.POSITION, Kind.POSITION_RENEWAL):
        assert decode_state(key, encode_state(state), kind).state == state
    else:
        with pytest.raises(RecordError, match=rf"{key.decode()}.*{kind.name}"):
            decode_state(key, encode_state(state), kind)


BAD_KEYS = [
    b"",
    b"position",
    b"position/",
    b"position/x",
    b"position/-1",
    b"position/+1",
    b"position/ 1",
    b"position/01",
    b"position/1_0",
    b"position/4294967296",
    b"position/" + b"9" * 5000,
    "position/\u0663".encode(),  # a digit to Python, not to us
    b"position/1/n1@1",
    b"position/1/",
    b"Position/1",
    b"/1",
    b"\0deelog/position/1",
    b"position/\xff",
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_a_key_that_is_not_ours_is_an_error_that_shows_it(key: bytes) -> None:
    with pytest.raises(RecordError) as caught:
        decode_state(key, None, Kind.POSITION)
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize("key", [b"claim/1", b"claim/1/", b"claim//n1@1", b"claim/x/n1@1"])
def test_a_claim_has_segment_and_member(key: bytes) -> None:
    with pytest.raises(RecordError, match="claim"):
        decode_state(key, None, Kind.CLAIM_STATE)


def test_a_claim_is_of_the_member_of_its_key() -> None:
    _, _, state = ONE_OF_EACH[0]
    with pytest.raises(RecordError, match="claim of another member, 'n1@1690000000000'"):
        decode_state(claim_key(3, "n2@1"), encode_state(state), Kind.CLAIM_STATE)


def test_the_claim_of_a_spare_producer_says_so_and_another_has_not_changed() -> None:
    claim = ClaimState(2, "n2@1", "p", "c", 8, 2, 1)
    assert b"spare" not in encode_state(claim)
    key = claim_key(3, "n2@1")
    for spare in (claim._replace(spare=True), claim):
        assert decode_state(key, encode_state(spare), Kind.CLAIM_STATE).state == spare


@pytest.mark.parametrize("state", [ClaimState(2, MEMBER, "p", "c", 8, 2, 1), ReleaseState(2, 7, MEMBER, True)])
def test_the_highest_epoch_is_told_where_it_is_another_one(state: ClaimState | ReleaseState) -> None:
    assert b"highest" not in encode_state(state)
    above = state._replace(highest=9)
    claims = isinstance(state, ClaimState)
    key, kind = (claim_key(3, MEMBER), Kind.CLAIM_STATE) if claims else (release_key(3), Kind.RELEASE_STATE)
    assert decode_state(key, encode_state(above), kind).state == above


OTHERS: list[Any] = [None, "text", 1, 1.5, True, [], {}]


@pytest.mark.parametrize(("key", "kind", "state"), ONE_OF_EACH, ids=names)
def test_a_field_that_is_missing_unknown_or_of_another_type_is_named(key: bytes, kind: Kind, state: State) -> None:
    fields = state._asdict()
    for name, value in fields.items():
        without = canonical.dumps({k: v for k, v in fields.items() if k != name})
        if name in state._field_defaults:
            assert decode_state(key, without, kind).state == state
        else:
            with pytest.raises(RecordError, match=rf"{type(state).__name__}.*{name}"):
                decode_state(key, without, kind)
        for other in OTHERS:
            if type(other) is not type(value):
                with pytest.raises(RecordError, match=f"`{name}`"):
                    decode_state(key, canonical.dumps({**fields, name: other}), kind)
    with pytest.raises(RecordError, match="surplus"):
        decode_state(key, canonical.dumps({**fields, "surplus": 1}), kind)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b"{",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        json.dumps(ONE_OF_EACH[3][2]._asdict()).encode("utf-16"),
        b'{"epoch":2,"known":true,"member":"\\ud800","sequence":7}',
        b'{"epoch":NaN,"known":true,"member":"n1@1","sequence":7}',
        b'{"epoch":2,"known":true,"member":"n1@1","sequence":' + b"9" * 5000 + b"}",
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_a_value_that_is_no_state_is_a_record_error(value: bytes) -> None:
    with pytest.raises(RecordError, match="release/3"):
        decode_state(release_key(3), value, Kind.RELEASE_STATE)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(ONE_OF_EACH), st.data())
def test_any_damage_is_a_state_or_a_record_error(one: tuple[bytes, Kind, State], data: st.DataObject) -> None:
    key, kind, state = one
    raw = [bytearray(key), bytearray(encode_state(state))]
    damaged = data.draw(st.sampled_from(raw))
    at = data.draw(st.integers(0, len(damaged)))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=2))
    try:
        found = decode_state(bytes(raw[0]), bytes(raw[1]), kind)
    except RecordError:
        return
    assert found.state is not None
    assert {name: type(v) for name, v in found.state._asdict().items()} == {
        name: type(v) for name, v in state._asdict().items()
    }


def test_canonical_json_is_the_same_for_the_same_object() -> None:
    assert canonical.dumps({"b": [1, None], "a": "ü\n"}) == b'{"a":"\xc3\xbc\\n","b":[1,null]}'
    assert canonical.loads(canonical.dumps({"b": {"d": 1, "c": 2}}), "it") == {"b": {"c": 2, "d": 1}}
    for value in (float("nan"), float("inf"), "\ud800"):
        with pytest.raises(ValueError, match=r"JSON compliant|surrogates"):
            canonical.dumps({"a": value})
