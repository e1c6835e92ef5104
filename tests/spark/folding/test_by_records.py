"""The folds by records, one rule per test. Random histories, in both folds, are in `test_by_columns.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deelog_schemas import canonical
from deelog_schemas.digest import digest_of
from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.errors import RecordError
from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind, pack
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.positions import ResetState
from deelog_schemas.records import Record, decode
from deelog_spark.folding.by_records import PositionsView, ResetMismatch, Started, reads_from, resets, start
from deelog_spark.folding.diff_record import CHANGE, RESET, Renderer, Row, entry_of
from deelog_spark.folding.walk import Ended, Open, Segment, position_bytes, waiting

CODEC = JsonCodec("t", "grid", "p", "c", cause=True)
RENDERER = Renderer(CODEC)
STAMP = Stamp(0, "n", 5)


def entry(key: bytes, value: bytes) -> Entry:
    return Entry(key, value, None)


class Log:
    """Both topics, one record at a time. An offset is the number of records before it."""

    def __init__(self, old: dict[bytes, bytes] | None = None) -> None:
        self.log: list[Record] = []
        self.old = {key: entry(key, value) for key, value in (old or {}).items()}

    def add(
        self, kind: Kind, sequence: int, key: bytes, value: bytes | None, control: Any = None, segment: int = 0
    ) -> int:
        offset = len(self.log)
        headers = [(HEADER_NAME, pack(kind, segment, 1, sequence, 0))]
        if control is not None:
            headers.append((CONTROL_HEADER_NAME, canonical.dumps({"epoch": 1, "member": "n@1", **control})))
        self.log.append(decode("t", 0, offset, key, value, headers))
        return offset

    def put(self, sequence: int, key: bytes, value: bytes | None, segment: int = 0) -> int:
        operation = Operation(1, sequence, Reason.PUT, key, value, None, 3, False)
        return self.add(Kind.CHANGE, sequence, CODEC.key(key), CODEC.change(operation, STAMP), segment=segment)

    def broken(self, sequence: int, key: bytes) -> int:
        return self.add(Kind.CHANGE, sequence, CODEC.key(key), b"{}")

    def row(self, sequence: int, key: bytes, value: bytes) -> int:
        raw = CODEC.row(entry(key, value), (1, sequence), "true", "overflow", STAMP)
        return self.add(Kind.READ, sequence, CODEC.key(key), raw)

    def begin(self, sequence: int, reset_id: str) -> int:
        return self.add(Kind.RESET_BEGIN, sequence, b"k", None, {"id": reset_id, "reason": "overflow"})

    def end(self, sequence: int, reset_id: str, content: dict[bytes, bytes]) -> int:
        control = {"id": reset_id, "reason": "overflow", "count": len(content), "digest": digest_of(content.items())}
        return self.add(Kind.RESET_END, sequence, b"k", None, control)

    # -- the folds' input

    def entries(self, partition: int, only: frozenset[int] | None = None) -> dict[int, dict[bytes, Entry]]:
        return {0: self.old}

    def records(self, partition: int, begin: int, end: int) -> Iterator[Record]:
        return iter(self.log[begin:end])

    def entry(self, record: Record) -> tuple[bytes, Entry | None]:
        return entry_of(CODEC, record.header.kind, record.key, record.value)

    # -- the folds

    def start(self, base: int | None = None, named: ResetState | None = None, begin: int = 0) -> Started:
        view = PositionsView({} if base is None else {0: base}, {} if named is None else {0: named})
        return start(self, RENDERER, 0, view, [0], begin, len(self.log))

    def resets(self, ended: Ended, before: Segment | None = None, begin: int = 0, void: int | None = None) -> list[Row]:
        voided = frozenset() if void is None else frozenset({(0, void)})
        return resets(self, RENDERER, 0, {} if before is None else {0: before}, [ended], voided, begin)


def content(rows: list[Row]) -> dict[bytes, tuple[str, bytes | None]]:
    """The rows of resets by key: their op and value."""
    after = {row.key: CODEC.decode_value(row.value).after for row in rows if row.cause == RESET and row.value}
    return {
        CODEC.decode_key(row.key): (row.op, None if after[row.key] is None else after[row.key].value)  # type: ignore[union-attr]
        for row in rows
        if row.cause == RESET
    }


# -- a start -----------------------------------------------------------------------------------------------------------


def test_a_segment_without_a_base_starts_empty() -> None:
    log = Log({b"gone": b"x", b"same": b"v"})
    log.put(1, b"same", b"v")
    log.put(2, b"new", b"v")
    log.row(2, b"gone", b"x")  # a row outside of a reset
    started = log.start()
    assert content(started.rows) == {b"gone": ("d", None), b"new": ("c", b"v")}
    assert started.segments == {0: Segment(position_bytes((1, 2)))}
    assert {row.offset for row in started.rows} == {2}


def test_without_a_base_what_the_diff_topic_has_stays_where_the_head_of_the_log_is_gone() -> None:
    log = Log({b"before": b"x", b"deleted": b"x", b"changed": b"x"})
    log.put(1, b"gone", b"v")
    log.put(2, b"changed", b"v")
    log.put(3, b"deleted", None)
    assert content(log.start(begin=1).rows) == {b"changed": ("u", b"v"), b"deleted": ("d", None)}


def test_records_below_the_base_do_not_count() -> None:
    log = Log()
    log.put(1, b"old", b"v")
    base = log.begin(2, "r1")
    log.row(2, b"k", b"v")
    started = log.start(base)
    assert content(started.rows) == {b"k": ("c", b"v")}
    assert started.segments[0].open is None, "the begin at the base opens nothing, even without its end"


def test_the_end_at_the_base_is_not_checked_and_closes_no_later_reset() -> None:
    log = Log()
    base = log.begin(1, "r1")
    later = log.begin(2, "r2")
    log.row(2, b"k", b"v")
    log.end(3, "r1", {b"compacted": b"away"})
    started = log.start(base)
    assert content(started.rows) == {}
    opened = started.segments[0].open
    assert opened is not None
    assert (opened.reset_id, opened.begin) == ("r2", later)
    assert opened.mark == position_bytes((1, 2))


def test_a_later_reset_is_checked() -> None:
    log = Log({b"old": b"x"})
    base = log.begin(1, "r1")
    log.put(2, b"k", b"v")
    log.begin(3, "r2")
    log.row(3, b"k", b"w")
    log.end(4, "r2", {b"k": b"w"})
    assert content(log.start(base).rows) == {b"old": ("d", None), b"k": ("c", b"w")}
    begin = log.begin(5, "r3")
    end = log.end(6, "r3", {b"k": b"w"})
    with pytest.raises(ResetMismatch) as caught:
        log.start(base)
    assert caught.value.ended == Ended(0, "r3", "overflow", begin, end)
    assert str(caught.value.error).startswith(f"t[0]@{end}: reset r3 ends with count 1")


def test_a_reset_that_only_the_positions_topic_names_is_open() -> None:
    log = Log()
    log.put(1, b"a", b"v")
    named = ResetState("r9", 1, 2, "overflow", len(log.log), "n@1")
    log.row(2, b"b", b"v")
    log.put(3, b"a", b"w")
    started = log.start(named=named)
    assert started.rows == []
    opened = Open("r9", "overflow", 1, position_bytes((1, 2)), position_bytes((1, 3)))
    assert started.segments == {0: Segment(position_bytes((1, 2)), opened)}


def test_a_named_reset_at_the_end_of_the_log_is_open_even_before_any_record() -> None:
    named = ResetState("r9", 1, 2, "overflow", 0, "n@1")
    opened = Open("r9", "overflow", 0, position_bytes((1, 2)), position_bytes((1, 2)))
    assert Log({b"k": b"v"}).start(named=named) == Started({0: Segment(position_bytes((1, 2)), opened)}, [], [])


def test_a_named_reset_opens_at_its_offset_and_not_before() -> None:
    log = Log()
    log.begin(1, "r1")
    log.end(2, "r1", {})
    named = ResetState("r2", 1, 3, "overflow", len(log.log), "n@1")
    log.row(3, b"k", b"v")
    opened = log.start(named=named).segments[0].open
    assert opened is not None
    assert (opened.reset_id, opened.mark) == ("r2", position_bytes((1, 3)))


def test_a_named_reset_does_not_replace_a_later_one() -> None:
    log = Log()
    begin = log.begin(3, "r2")
    started = log.start(named=ResetState("r1", 1, 2, "overflow", begin, "n@1"))
    opened = started.segments[0].open
    assert opened is not None
    assert opened.reset_id == "r2"


def test_a_segment_whose_base_is_gone_waits_for_a_reset() -> None:
    log = Log({b"k": b"old"})
    log.put(1, b"k", b"v")
    log.put(2, b"k", b"w")
    assert log.start(base=0, begin=1) == Started({0: Segment(open=waiting())}, [], [0])
    assert log.start(base=1, begin=1).lost == []


def test_segments_that_are_not_asked_for_are_passed_over() -> None:
    log = Log()
    log.put(1, b"k", b"v", segment=1)
    assert log.start() == Started({}, [], [])


# -- changes that cannot be decoded ------------------------------------------------------------------------------------


def test_an_undecodable_change_outside_of_a_reset_keeps_the_last_good_value() -> None:
    log = Log({b"k": b"good", b"deleted": b"x"})
    log.put(1, b"deleted", None)
    broken = [log.broken(2, b"k"), log.broken(3, b"deleted"), log.broken(4, b"never")]
    started = log.start()
    assert content(started.rows) == {b"deleted": ("d", None)}
    captured = [row for row in started.rows if row.cause == CHANGE]
    assert [(row.offset, row.value, row.op) for row in captured] == [(offset, b"{}", "") for offset in broken]
    assert captured[0].header == pack(Kind.CHANGE, 0, 1, 2, 0)
    assert started.segments == {0: Segment(position_bytes((1, 4)))}


def test_an_undecodable_repeat_is_none() -> None:
    log = Log()
    log.put(2, b"k", b"v")
    log.broken(2, b"k")
    log.broken(1, b"k")
    assert [row.cause for row in log.start().rows] == [RESET]


def test_an_undecodable_change_inside_a_reset_stops_the_start() -> None:
    log = Log()
    log.begin(1, "r1")
    broken = log.broken(2, b"k")
    with pytest.raises(RecordError, match=rf"^t\[0\]@{broken}: the record value"):
        log.start()


def test_an_undecodable_change_inside_the_reset_at_the_base_stops_the_start_at_its_end() -> None:
    log = Log()
    base = log.begin(1, "r1")
    broken = log.broken(2, b"k")
    assert [row.cause for row in log.start(base).rows] == [CHANGE], "the end is compacted away: nothing to check"
    log.broken(2, b"k")
    end = log.end(3, "r1", {})
    with pytest.raises(RecordError, match=rf"^t\[0\]@{end}: reset r1 has .*: t\[0\]@{broken}: the record value"):
        log.start(base)
    after = Log()
    base = after.begin(1, "r1")
    after.end(2, "r1", {})
    after.broken(3, b"k")
    assert [row.cause for row in after.start(base).rows] == [CHANGE]


def test_a_completed_reset_forgets_what_was_passed_over_before_it() -> None:
    log = Log({b"k": b"good"})
    log.broken(1, b"k")
    log.begin(2, "r1")
    log.end(3, "r1", {})
    assert content(log.start().rows) == {b"k": ("d", None)}


# -- the resets of a batch ---------------------------------------------------------------------------------------------


def ended(begin: int, end: int, reset_id: str = "r1", reason: str = "overflow") -> Ended:
    return Ended(0, reset_id, reason, begin, end)


def test_a_reset_gives_the_differences_from_the_diff_topic_and_the_changes_before_it() -> None:
    log = Log({b"a": b"1", b"b": b"1"})
    log.put(1, b"a", b"2")
    begin = log.begin(2, "r1")
    log.row(2, b"a", b"3")
    log.put(3, b"c", b"3")
    end = log.end(4, "r1", {b"a": b"3", b"c": b"3"})
    rows = log.resets(ended(begin, end), Segment(position_bytes((1, 0))))
    assert content(rows) == {b"a": ("u", b"3"), b"b": ("d", None), b"c": ("c", b"3")}
    assert [(row.offset, row.ordinal) for row in rows] == [(end, 0), (end, 1), (end, 2)]
    before = CODEC.decode_value(rows[0].value or b"").before
    assert before == entry(b"a", b"2")


def test_a_reset_that_was_open_before_the_batch_is_read_from_its_begin() -> None:
    log = Log()
    begin = log.begin(1, "r1")
    log.row(1, b"k", b"v")
    batch = len(log.log)
    end = log.end(2, "r1", {b"k": b"v"})
    opened = Open("r1", "overflow", begin, position_bytes((1, 1)), position_bytes((1, 1)))
    state = Segment(position_bytes((1, 1)), opened)
    assert reads_from(state, batch) == begin + 1
    assert content(log.resets(ended(begin, end), state, batch)) == {b"k": ("c", b"v")}


def test_each_segment_is_read_from_its_own_offset_and_others_not_at_all() -> None:
    log = Log()
    opened = log.begin(1, "r1")
    log.put(1, b"other", b"v", segment=1)
    log.row(1, b"k", b"v")
    batch = log.put(2, b"another", b"v", segment=2)
    end = log.end(2, "r1", {b"k": b"v"})
    states = {
        0: Segment(position_bytes((1, 1)), Open("r1", "overflow", opened, position_bytes((1, 1)), bytes(12))),
        1: Segment(),
    }
    second = log.add(Kind.RESET_BEGIN, 3, b"k", None, {"id": "r2", "reason": "overflow"}, segment=1)
    control = {"id": "r2", "reason": "overflow", "count": 0, "digest": digest_of([])}
    last = log.add(Kind.RESET_END, 4, b"k", None, control, segment=1)
    both = [ended(opened, end), Ended(1, "r2", "overflow", second, last)]
    rows = resets(log, RENDERER, 0, states, both, frozenset(), batch)
    assert content(rows) == {b"k": ("c", b"v")}, "segment 1 has only what the batch brought: nothing"


@pytest.mark.parametrize(
    ("state", "first"),
    [
        (None, 7),
        (Segment(), 7),
        (Segment(open=waiting()), 7),
        (Segment(open=Open("r", "x", 9, b"", b"")), 7),
        (Segment(open=Open("r", "x", 3, b"", b"")), 4),
        (Segment(open=Open("r", "x", 0, b"", b"")), 1),
    ],
)
def test_where_a_segment_is_read_from(state: Segment | None, first: int) -> None:
    assert reads_from(state, 7) == first


def test_a_reset_that_does_not_match_names_its_end() -> None:
    log = Log()
    begin = log.begin(1, "r1")
    end = log.end(2, "r1", {b"k": b"v"})
    with pytest.raises(ResetMismatch) as caught:
        log.resets(ended(begin, end))
    assert caught.value.ended == ended(begin, end)
    assert str(caught.value.error).startswith(f"t[0]@{end}: reset r1 ends with count 1")


def test_a_void_end_closes_nothing_and_the_next_reset_does() -> None:
    log = Log()
    log.begin(1, "r1")
    void = log.end(2, "r1", {b"k": b"v"})
    log.put(3, b"late", b"v")  # the segment waits: not emitted
    begin = log.begin(4, "r2")
    log.row(4, b"k", b"v")
    end = log.end(5, "r2", {b"k": b"v"})
    assert content(log.resets(ended(begin, end, "r2"), void=void)) == {b"k": ("c", b"v")}


def test_an_undecodable_change_while_a_segment_waits_is_passed_over() -> None:
    log = Log({b"k": b"old"})
    log.add(Kind.CHANGE, 1, CODEC.key(b"k"), b"{")
    begin = log.begin(2, "r1")
    log.row(2, b"k", b"v")
    end = log.end(2, "r1", {b"k": b"v"})
    before = Segment(position_bytes((1, 0)), waiting())
    assert content(log.resets(ended(begin, end), before)) == {b"k": ("u", b"v")}


def test_an_undecodable_change_before_a_reset_is_passed_over_and_inside_it_stops() -> None:
    log = Log({b"k": b"old"})
    log.broken(1, b"k")
    begin = log.begin(2, "r1")
    end = log.end(3, "r1", {})
    assert content(log.resets(ended(begin, end))) == {b"k": ("d", None)}
    log = Log()
    begin = log.begin(1, "r1")
    broken = log.broken(2, b"k")
    end = log.end(3, "r1", {})
    with pytest.raises(RecordError, match=rf"^t\[0\]@{broken}: the record value") as caught:
        log.resets(ended(begin, end))
    assert not isinstance(caught.value, ResetMismatch)
