"""The keys that a stock consumer has, as folded from the log, and which of them a reset deletes."""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.reset_strategy import KeysInKafka, Strategy, taken_back
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry


def record(offset: int, kind: Kind, key: bytes = b"", gone: bool = False, **control: object) -> ScannedRecord:
    return ScannedRecord(offset, kind, 0, 1, 0, key, control, gone)


def test_keys_are_folded_whatever_the_position() -> None:
    held = KeysInKafka(-1)
    assert held.whole
    for found in (
        record(0, Kind.CHANGE, b"a"),
        record(1, Kind.READ, b"b"),
        record(2, Kind.CHANGE, b"c"),
        record(3, Kind.CHANGE, b"a", gone=True),
        record(4, Kind.TOMBSTONE, b"c", gone=True),
        record(5, Kind.CLAIM, b"\0deelog/claim"),
        record(6, Kind.CHANGE, b"a"),
    ):
        held.apply(found)
    assert held.keys == {b"a", b"b"}


@pytest.mark.parametrize(
    ("records", "whole", "in_vain"),
    [
        ([], False, False),
        ([record(7, Kind.RESET_BEGIN, id="x", strategy="tombstones")], False, False),
        (
            [record(7, Kind.RESET_BEGIN, id="x", strategy="resend"), record(9, Kind.RESET_END, id="x")],
            True,
            False,
        ),
        (
            [record(7, Kind.RESET_BEGIN, id="x", strategy="tombstones"), record(9, Kind.RESET_END, id="y")],
            False,
            False,
        ),
        ([record(7, Kind.RESET_BEGIN, id="x", strategy="marker"), record(9, Kind.RESET_END, id="x")], False, True),
        ([record(7, Kind.RESET_BEGIN, id="x"), record(9, Kind.RESET_END, id="x")], False, True),
        ([record(8, Kind.RESET_BEGIN, id="x", strategy="resend"), record(9, Kind.RESET_END, id="x")], False, True),
        ([record(7, Kind.CHANGE, b"a")], False, True),
        (
            [
                record(5, Kind.CHANGE, b"below"),
                record(7, Kind.RESET_BEGIN, id="x", strategy="resend"),
                record(8, Kind.RESET_END, id="x"),
            ],
            True,
            False,
        ),
        (
            [
                record(7, Kind.RESET_BEGIN, id="x", strategy="tombstones"),
                record(8, Kind.TOMBSTONE, b"a", gone=True),
                record(9, Kind.RESET_END, id="x", taken_back=1),
                record(10, Kind.TOMBSTONE, b"b", gone=True),
            ],
            True,
            False,
        ),
        (
            [
                record(7, Kind.RESET_BEGIN, id="x", strategy="resend"),
                record(8, Kind.TOMBSTONE, b"b", gone=True),
                record(9, Kind.READ, b"b"),
                record(10, Kind.RESET_END, id="x", taken_back=1),  # it was another one
            ],
            False,
            True,
        ),
        (
            [
                record(7, Kind.RESET_BEGIN, id="x", strategy="resend"),
                record(9, Kind.READ, b"b"),
                record(10, Kind.RESET_END, id="x", count=2),  # the delete before the other row is gone with it
                record(11, Kind.READ, b"c"),
            ],
            False,
            True,
        ),
    ],
)
def test_only_a_whole_reset_that_takes_back_vouches_for_what_lies_below(
    records: list[ScannedRecord], whole: bool, in_vain: bool
) -> None:
    held = KeysInKafka(7)
    for found in records:
        held.apply(found)
    assert (held.whole, held.in_vain) == (whole, in_vain)
    assert b"below" not in held.keys


def test_no_key_that_lives_is_deleted_without_its_row() -> None:
    entries = [Entry(b"a", b"1", None), Entry(b"b", b"2", None)]
    assert taken_back(Strategy.MARKER, {b"a", b"z"}, entries) == ([b"z"], set())
    assert taken_back(Strategy.TOMBSTONES, {b"a", b"z", b"y"}, entries) == ([b"y", b"z"], set())
    assert taken_back(Strategy.RESEND, {b"a", b"z"}, entries) == ([b"z"], {b"a"})
