"""From Kafka's bytes to a deelog record. Anything else is a `RecordError` with topic, partition and offset."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas import canonical
from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_KINDS, Kind, pack
from deelog_schemas.records import MAX_SKIPPED, ON_CHANGES, ON_POSITIONS, Record, decode

Headers = list[tuple[str, bytes | None]]

PLACE = ("shop.sessions", 3, 41)
WHERE = r"^shop\.sessions\[3\]@41: "
MEMBER = {"epoch": 2, "member": "n1@17"}
CONTROL: dict[Kind, dict[str, Any]] = {
    Kind.CLAIM: {**MEMBER, "segments": 64, "partitions": 4},
    Kind.ACTIVE: MEMBER,
    Kind.RELEASE: {**MEMBER, "known": True},
    Kind.RESET_BEGIN: {**MEMBER, "id": "r1", "reason": "overflow"},
    Kind.RESET_END: {**MEMBER, "id": "r1", "count": 0, "digest": "0" * 16},
    Kind.SKIPPED: {**MEMBER, "first": 4},
}


OTHERS: list[Any] = [None, "x", 1, 1.5, True, []]


def parts(kind: Kind) -> tuple[bytes, bytes | None, Headers]:
    """Key, value and headers of a valid record."""
    headers: Headers = [("deelog", pack(kind, 7, 2, 9, 1))]
    if kind in CONTROL:
        headers.append(("deelog.control", canonical.dumps(CONTROL[kind])))
    return b"key", b"value" if kind in (Kind.CHANGE, Kind.READ) else None, headers


def read(kind: Kind, key: bytes | None, value: bytes | None, headers: Headers | None) -> Record:
    return decode(*PLACE, key, value, headers, ON_POSITIONS if kind in ON_POSITIONS else ON_CHANGES)


def read_or_refuse(kind: Kind, key: bytes | None, value: bytes | None, headers: Headers | None) -> Record | None:
    """The record, or None if the error names topic, partition and offset. Other exceptions are not caught."""
    try:
        return read(kind, key, value, headers)
    except RecordError as error:
        if not str(error).startswith("shop.sessions[3]@41: "):
            raise
        return None


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_reads_as_it_was_written(kind: Kind) -> None:
    key, value, headers = parts(kind)
    record = read(kind, key, value, headers)
    assert record == Record(*PLACE, (kind, 7, 2, 9, 1), key, value, CONTROL.get(kind, {}))  # type: ignore[arg-type]
    assert frozenset(CONTROL) == CONTROL_KINDS
    foreign: Headers = [("__debezium.context.runId", b"x"), *headers, ("trace", None)]
    assert read(kind, key, value, foreign) == record


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_of_the_other_topic_is_an_error(kind: Kind) -> None:
    with pytest.raises(RecordError, match=rf"{WHERE}record kind {kind.name} does not belong on this topic"):
        decode(*PLACE, *parts(kind), ON_CHANGES if kind in ON_POSITIONS else ON_POSITIONS)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("headers", [None, [], [("deelog", None)], [("Deelog", b"x")], [("deelog.control", b"{}")]])
def test_a_record_without_our_header_is_not_ours(kind: Kind, headers: Headers | None) -> None:
    with pytest.raises(RecordError, match=rf"{WHERE}the record has no header `deelog`"):
        read(kind, b"key", b"value", headers)


@pytest.mark.parametrize("kind", Kind)
def test_a_record_without_a_key_is_not_ours(kind: Kind) -> None:
    _, value, headers = parts(kind)
    with pytest.raises(RecordError, match=rf"{WHERE}the record has no key"):
        read(kind, None, value, headers)


@pytest.mark.parametrize("kind", [Kind.CHANGE, Kind.READ])
def test_a_change_without_a_value_does_not_pass_for_a_delete(kind: Kind) -> None:
    key, _, headers = parts(kind)
    with pytest.raises(RecordError, match=rf"{WHERE}a {kind.name} record without a value"):
        read(kind, key, None, headers)


@pytest.mark.parametrize("kind", CONTROL)
def test_a_control_record_has_its_second_header(kind: Kind) -> None:
    key, value, headers = parts(kind)
    for lacking in (headers[:1], [headers[0], ("deelog.control", None)]):
        with pytest.raises(RecordError, match=rf"{WHERE}a {kind.name} record without header `deelog\.control`"):
            read(kind, key, value, lacking)


@pytest.mark.parametrize("kind", CONTROL)
def test_a_field_that_a_control_record_lacks_is_named(kind: Kind) -> None:
    key, value, headers = parts(kind)
    for name, told in CONTROL[kind].items():
        without = {k: v for k, v in CONTROL[kind].items() if k != name}
        others = [{**without, name: other} for other in OTHERS if type(other) is not type(told)]
        for damaged in [without, *others, {**without, name: ""}]:
            with pytest.raises(RecordError, match=rf"{WHERE}header `deelog\.control` of a {kind.name} .*`{name}`"):
                read(kind, key, value, [headers[0], ("deelog.control", canonical.dumps(damaged))])
    more = {**CONTROL[kind], "later": [1]}
    assert read(kind, key, value, [headers[0], ("deelog.control", canonical.dumps(more))]).control == more


@pytest.mark.parametrize("first", [10, 0, -5, 9 - MAX_SKIPPED])
def test_what_a_skipped_record_stands_for_is_bounded_and_ends_at_its_position(first: int) -> None:
    key, value, headers = parts(Kind.SKIPPED)
    control = canonical.dumps({**CONTROL[Kind.SKIPPED], "first": first})
    with pytest.raises(RecordError, match=rf"{WHERE}a SKIPPED record for operations {first} to 9"):
        read(Kind.SKIPPED, key, value, [headers[0], ("deelog.control", control)])


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"{", b"\xff", b"{\0}", b"[" * 100_000], ids=lambda r: repr(r[:9])
)
def test_a_control_header_is_a_json_object(raw: bytes) -> None:
    key, value, headers = parts(Kind.RESET_END)
    with pytest.raises(RecordError, match=rf"{WHERE}header `deelog\.control` is not"):
        read(Kind.RESET_END, key, value, [headers[0], ("deelog.control", raw)])


@pytest.mark.parametrize("kind", Kind)
def test_every_prefix_of_a_header_is_a_record_error(kind: Kind) -> None:
    key, value, headers = parts(kind)
    for index, (name, whole) in enumerate(headers):
        assert whole is not None
        for size in range(len(whole)):
            cut: Headers = [*headers]
            cut[index] = (name, whole[:size])
            with pytest.raises(RecordError, match=WHERE):
                read(kind, key, value, cut)


@settings(deadline=None, max_examples=500)
@given(st.sampled_from(Kind), st.data())
def test_any_damage_is_a_record_or_a_record_error(kind: Kind, data: st.DataObject) -> None:
    key, value, headers = parts(kind)
    index = data.draw(st.integers(0, len(headers) - 1))
    name, whole = headers[index]
    raw = bytearray(whole or b"")
    at = data.draw(st.integers(0, len(raw)))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    headers[index] = (name, bytes(raw))
    found = read_or_refuse(kind, key, value, headers)
    if found is None:
        return
    assert (found.key, found.value) == (key, value)
    expected = CONTROL.get(found.header.kind, {})  # a flipped bit may change the kind to another
    assert {k: type(v) for k, v in expected.items()}.items() <= {k: type(v) for k, v in found.control.items()}.items()


@settings(deadline=None)
@given(
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=9),
    st.none()
    | st.lists(st.tuples(st.sampled_from(["deelog", "deelog.control", "x"]), st.none() | st.binary(max_size=26))),
)
def test_anything_at_all_is_a_record_or_a_record_error(key: bytes | None, value: bytes | None, headers: Any) -> None:
    for kind in (Kind.CHANGE, Kind.POSITION):
        found = read_or_refuse(kind, key, value, headers)
        if found is not None:
            assert (found.key, found.value) == (key, value)
            assert ("deelog", pack(*found.header)) in headers
