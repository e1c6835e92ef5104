"""One segment's tape, rule by rule. `test_capture.py` has random histories of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from deelog_connector.cache_side import StreamSink
from deelog_interceptors.redis.segment_tape import UNREAD, Image, SegmentTape, TapedChange
from deelog_interceptors.redis.source import Anchor
from deelog_schemas.operation import OVERHEAD, Reason

ALL = 1 << 40


class Sink:
    """Takes what is handed over: sequence, reason, key, value, expiry, existed."""

    def __init__(self, last: int = 0, room: int = ALL) -> None:
        self.last, self.room, self.acknowledged = last, room, last
        self.told: list[tuple[int, str, bytes, bytes | None, int | None, bool]] = []

    def has_room(self, size: int) -> bool:
        return size <= self.room

    def last_sequence(self, segment: int) -> int:
        return self.last

    def append(self, segment: int, *change: Any, skipped: int = 0) -> None:
        reason, key, value, expires_at, ts_us, existed = change
        assert (segment, ts_us) == (7, 5)
        self.last += 1 + skipped
        self.told.append((self.last, reason, key, value, expires_at, existed))

    def acked(self, segment: int, sequence: int) -> None:
        self.acknowledged = sequence


def hand_over(tape: SegmentTape, acked: int, sink: Sink) -> int:
    return tape.hand_over(7, acked, cast("StreamSink", sink))


def put(offset: int, key: bytes = b"k", value: bytes = b"v", created: bool = False) -> TapedChange:
    return TapedChange(offset, Reason.PUT, key, value, 99, created, 5)


def touch(offset: int, key: bytes = b"k", created: bool = False) -> TapedChange:
    return TapedChange(offset, UNREAD, key, None, None, created, 5)


def clear(offset: int) -> TapedChange:
    return TapedChange(offset, Reason.CLEAR, b"", None, None, False, 5)


def remove(offset: int, key: bytes = b"k") -> TapedChange:
    return TapedChange(offset, Reason.REMOVE, key, None, None, False, 5)


def opened(*changes: TapedChange) -> SegmentTape:
    """A tape that is handed over from sequence 1 on."""
    tape = SegmentTape(0)
    tape.open(Anchor(0, 0), 0, {})
    for change in changes:
        tape.add(change)
    return tape


def test_what_is_known_is_told_up_to_what_is_acknowledged() -> None:
    tape, sink = opened(put(10, created=True), remove(20), clear(30), put(40)), Sink()
    assert hand_over(tape, 30, sink) == 3
    assert sink.told == [
        (1, "put", b"k", b"v", 99, False),
        (2, "remove", b"k", None, None, True),
        (3, "clear", b"", None, None, True),
    ]
    assert sink.acknowledged == 3
    assert hand_over(tape, 39, sink) == 0
    assert hand_over(tape, 40, sink) == 1
    assert [tape.offset_at(sequence) for sequence in range(5)] == [0, 10, 20, 30, 40]


def test_a_closed_tape_keeps_and_prunes() -> None:
    tape = SegmentTape(5)
    for change in (put(10), touch(20), put(30)):
        tape.add(change)
    assert tape.touched == {}
    tape.prune(Anchor(20, 8))
    assert [change.offset for change in tape.waiting] == [30]
    tape.prune(Anchor(10, 4))
    assert tape.mark == Anchor(20, 8)
    assert tape.number(20, 29) == 0
    assert tape.number(20, 30) == 1


def test_a_change_without_a_value_waits_for_its_image() -> None:
    tape, sink = opened(touch(10, created=True), put(20, b"o")), Sink()
    assert hand_over(tape, ALL, sink) == 0
    assert tape.wanted() == [b"k"]
    tape.place(Image(b"k", b"image", 7, 25))
    assert tape.wanted() == []
    assert hand_over(tape, ALL, sink) == 2
    assert sink.told == [(1, "put", b"k", b"image", 7, False), (2, "put", b"o", b"v", 99, True)]


def test_an_image_of_nothing_is_a_removal() -> None:
    tape, sink = opened(touch(10)), Sink()
    tape.place(Image(b"k", None, None, 10))
    hand_over(tape, ALL, sink)
    assert sink.told == [(1, "remove", b"k", None, None, True)]


def test_an_image_stands_at_the_last_change_up_to_its_offset() -> None:
    """What has no value before it gives way; what has one is told; what comes later is read again."""
    tape, sink = opened(touch(10), put(20, value=b"set"), touch(30), put(35, b"o"), touch(40), touch(50)), Sink()
    tape.place(Image(b"k", b"at 45", None, 45))
    assert tape.wanted() == [b"k"]
    assert hand_over(tape, ALL, sink) == 5
    assert sink.told == [
        (2, "put", b"k", b"set", 99, True),
        (4, "put", b"o", b"v", 99, True),
        (5, "put", b"k", b"at 45", None, True),
    ]
    assert tape.later == {b"k": 40}
    tape.prune(Anchor(35, 4))
    assert tape.later == {b"k": 40}
    tape.prune(Anchor(40, 5))
    assert tape.later == {}
    tape.place(Image(b"k", b"at 50", None, 50))
    hand_over(tape, ALL, sink)
    assert sink.told[-1] == (6, "put", b"k", b"at 50", None, True)


def test_an_image_from_before_says_nothing() -> None:
    tape = opened(touch(30))
    tape.place(Image(b"k", b"old", None, 29))
    tape.place(Image(b"another", b"old", None, 99))
    assert tape.wanted() == [b"k"]
    assert tape.images == {}


def test_what_has_given_way_takes_its_sequence_even_where_the_next_one_waits() -> None:
    tape, sink = opened(touch(10), touch(15, b"o"), touch(20)), Sink()
    tape.place(Image(b"k", b"k", None, 20))
    assert hand_over(tape, ALL, sink) == 1
    assert sink.told == []
    assert sink.acknowledged == 0
    tape.place(Image(b"o", b"o", None, 22))
    assert hand_over(tape, ALL, sink) == 2
    assert [(told[0], told[2]) for told in sink.told] == [(2, b"o"), (3, b"k")]
    assert [tape.offset_at(sequence) for sequence in (1, 2, 3)] == [10, 15, 20]


def test_a_clear_tells_what_was_read_behind_it() -> None:
    tape, sink = opened(touch(10), clear(20), put(30)), Sink()
    tape.place(Image(b"k", None, None, 25))
    assert hand_over(tape, ALL, sink) == 3
    assert [told[:3] for told in sink.told] == [(2, "clear", b""), (3, "put", b"k")]
    assert tape.images == {}


def test_the_empty_key_is_no_clear() -> None:
    tape, sink = opened(touch(10, b""), clear(20), touch(30, b"")), Sink()
    tape.place(Image(b"", b"empty", None, 30))
    assert hand_over(tape, ALL, sink) == 3
    assert [told[:4] for told in sink.told] == [(2, "clear", b"", None), (3, "put", b"", b"empty")]


def test_where_the_op_log_is_full_it_stops() -> None:
    change = put(10, b"key", b"value")
    tape, sink = opened(change, clear(20)), Sink(room=OVERHEAD + 7)
    assert hand_over(tape, ALL, sink) == 0
    sink.room = OVERHEAD + 8
    assert hand_over(tape, ALL, sink) == 2
    tape, sink = opened(clear(20)), Sink(room=OVERHEAD - 1)
    assert hand_over(tape, ALL, sink) == 0


def test_it_opens_behind_what_kafka_has() -> None:
    tape, sink = SegmentTape(0), Sink(12)
    for offset in (10, 20, 30, 40):
        tape.add(touch(offset))
    tape.open(Anchor(10, 11), 12, {})
    assert tape.mark == Anchor(20, 12)
    tape.place(Image(b"k", b"v", None, 40))
    hand_over(tape, ALL, sink)
    assert [told[0] for told in sink.told] == [14]
    with pytest.raises(AssertionError):
        tape.open(Anchor(10, 11), 10, {})


def test_a_tape_that_is_closed_has_everything_again_but_corrections() -> None:
    tape, sink = opened(put(10), put(20, b"o")), Sink()
    hand_over(tape, 10, sink)
    tape.correct([b"w"])
    tape.close()
    assert [(change.offset, change.key) for change in tape.waiting] == [(10, b"k"), (20, b"o")]
    assert not tape.is_open
    assert [len(kept) for kept in (tape.told, tape.touched, tape.images, tape.later)] == [0, 0, 0, 0]
    tape.drop(30)
    assert not tape.waiting
    assert (tape.begin, tape.mark) == (30, None)


def test_a_correction_is_told_first_and_by_an_image() -> None:
    tape, sink = opened(put(10)), Sink()
    hand_over(tape, ALL, sink)
    tape.add(put(20, b"o"))
    tape.correct([b"w", b"o", b"gone"])
    assert sorted(tape.wanted()) == [b"gone", b"w"]
    for change in list(tape.waiting)[:2]:
        assert change.offset == 10
    tape.waiting = type(tape.waiting)(change._replace(ts_us=5) for change in tape.waiting)
    tape.touched = {key: [change._replace(ts_us=5) for change in some] for key, some in tape.touched.items()}
    tape.place(Image(b"w", b"true", None, 25))
    tape.place(Image(b"gone", None, None, 25))
    hand_over(tape, ALL, sink)
    assert [told[1:4] for told in sink.told[1:]] == [
        ("correct", b"gone", None),
        ("correct", b"w", b"true"),
        ("put", b"o", b"v"),
    ]


def test_a_correction_that_gives_way_makes_one_of_the_change() -> None:
    tape, sink = opened(), Sink()
    tape.correct([b"k"])
    tape.add(put(10))
    tape.place(Image(b"k", b"true", None, 12))
    hand_over(tape, ALL, sink)
    assert [told[:4] for told in sink.told] == [(2, "correct", b"k", b"true")]
    tape.add(put(20))
    hand_over(tape, ALL, sink)
    assert sink.told[-1][1] == "put"


def test_rows_are_ahead_of_changes_that_are_not_told_then() -> None:
    tape, sink = SegmentTape(0), Sink(5)
    tape.drop(100)
    for change in (put(110, b"a", b"1"), put(120, b"b", b"1"), put(130, b"a", b"2"), put(140, b"a", b"3")):
        tape.add(change)
    rows = tape.take_rows([Image(b"a", b"2", None, 135), Image(b"b", None, None, 115)], 112, 5)
    assert [(row.key, row.value) for row in rows] == [(b"a", b"2")]
    # The change at 110 is before any that the rows do not show: nobody counts it.
    assert tape.mark == Anchor(110, 5)
    assert tape.later == tape.rows == {b"a": 130}
    hand_over(tape, ALL, sink)
    assert [(told[0], told[2], told[3]) for told in sink.told] == [(6, b"b", b"1"), (7, b"a", b"2"), (8, b"a", b"3")]


def test_changes_that_a_row_shows_give_way_to_the_last_of_them() -> None:
    tape, sink = SegmentTape(0), Sink(5)
    tape.drop(100)
    for change in (clear(105), put(110, b"a", b"1"), put(130, b"a", b"2")):
        tape.add(change)
    tape.take_rows([Image(b"a", b"2", 9, 135)], 100, 5)
    assert tape.mark == Anchor(100, 5)
    hand_over(tape, ALL, sink)
    assert [(told[0], told[1], told[3]) for told in sink.told] == [(6, "clear", None), (8, "put", b"2")]
    assert tape.rows == {b"a": 130}, "until it is in Kafka"
    tape.prune(Anchor(130, 8))
    assert tape.rows == {}


def test_who_takes_over_knows_which_rows_are_ahead() -> None:
    tape, sink = SegmentTape(0), Sink(5)
    for change in (put(110, b"b"), put(120, b"a", b"1"), put(130, b"a", b"2")):
        tape.add(change)
    tape.open(Anchor(100, 5), 5, {b"a": 130, b"lost": 140})
    assert tape.rows == tape.later == {b"a": 130}
    hand_over(tape, ALL, sink)
    assert [(told[0], told[3]) for told in sink.told] == [(6, b"v"), (8, b"2")]


def test_a_key_that_is_not_listed_for_a_change_is_told_later() -> None:
    tape = SegmentTape(0)
    tape.drop(100)
    for change in (remove(110, b"gone"), remove(120, b"gone"), put(130, b"new"), clear(140)):
        tape.add(change)
    assert not tape.is_cleared(139)
    assert tape.is_cleared(140)
    tape.take_rows([], 125, 5)
    assert tape.later == {b"gone": 120}
    assert tape.rows == {}


def test_a_key_that_came_back_is_told_once_by_its_image() -> None:
    tape, sink = opened(touch(20), remove(30), touch(35, b"o")), Sink(3)
    assert tape.came_back(b"k")
    tape.add(touch(40))
    tape.place(Image(b"k", b"new", None, 50))
    tape.place(Image(b"o", b"o", None, 50))
    assert hand_over(tape, ALL, sink) == 4
    assert sink.told == [(6, Reason.PUT, b"o", b"o", None, True), (7, Reason.PUT, b"k", b"new", None, True)]
    assert not tape.touched


def test_a_key_that_came_back_waits_to_be_read_though_nothing_else_did() -> None:
    tape = opened(remove(30))
    assert tape.came_back(b"k")
    assert tape.wanted() == [b"k"]
    assert not tape.came_back(b"k"), "that is known"
    assert not tape.came_back(b"o")
    closed = SegmentTape(10)
    closed.add(remove(30))
    assert closed.came_back(b"k")
    assert closed.wanted() == []


def test_a_key_that_went_as_often_as_it_was_told_went_for_these_reasons() -> None:
    """Those between the two offsets count: the second one is behind the last of them."""
    tape = opened(remove(10), remove(20), put(25), remove(30), remove(31), remove(30, b"l"), remove(20, b"m"))
    found = tape.name(10, 30, {b"k": ["expire", "evict"], b"l": ["evict", "evict"], b"n": ["expire"], b"m": ["expire"]})
    assert found == 3
    sink = Sink()
    hand_over(tape, 40, sink)
    assert [(key, reason) for _, reason, key, *_ in sink.told] == [
        (b"k", "remove"),
        (b"k", "expire"),
        (b"k", "put"),
        (b"k", "evict"),
        (b"k", "remove"),
        (b"l", "remove"),
        (b"m", "expire"),
    ]


def test_a_change_that_waits_is_named_where_it_tells_what_is_wrong() -> None:
    tape = opened(put(20, b"a"), put(30, b"a"), clear(40))
    tape.correct([b"a", b"b", b""])
    assert (tape.later, [change.key for change in tape.waiting]) == ({b"a": 20}, [b"", b"b", b"a", b"a", b""])
    tape.later[b"a"] = 30
    tape.correct([b"a"])
    assert tape.later == {b"a": 30}, "one that is told later anyway"


def test_only_what_removes_a_key_is_named() -> None:
    tape = opened(clear(10), put(20, b""), touch(30))
    assert tape.name(0, 40, {b"": ["expire"], b"k": ["expire"]}) == 0
    assert [change.reason for change in tape.waiting] == ["clear", "put", UNREAD]


def test_an_image_of_nothing_leaves_a_removal_its_reason_and_what_was_set_its_value() -> None:
    tape, sink = opened(touch(10), remove(20), touch(30, b"l"), put(35, b"l"), touch(40, b"m")), Sink()
    tape.name(0, 20, {b"k": ["expire"]})
    for key in (b"k", b"l", b"m"):
        tape.place(Image(key, None, None, 50))
    hand_over(tape, 50, sink)
    assert [(key, reason, value) for _, reason, key, value, *_ in sink.told] == [
        (b"k", "expire", None),
        (b"l", "put", b"v"),
        (b"m", "remove", None),
    ]


def test_a_reason_outlives_the_time_in_which_nothing_is_handed_over() -> None:
    tape = opened(remove(10), remove(20))
    tape.name(0, 20, {b"k": ["expire", "expire"]})
    hand_over(tape, 10, Sink())
    tape.close()
    assert [change.reason for change in tape.waiting] == ["expire", "expire"]
    assert not tape.came_back(b"k")
