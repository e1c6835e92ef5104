"""The reading rule, sentence by sentence, and the reader against an oracle that sees the whole log at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.digest import digest_of
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import START, Change, OpenReset, SegmentReader, difference, fold_step
from deelog_schemas.header import Header, Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record

Position = tuple[int, int]
Decoded = tuple[bytes, Entry | None]
MEMBER = {"epoch": 1, "member": "n1@1"}


def entry_of(key: bytes, value: bytes | None) -> Entry | None:
    return None if value is None else Entry(key, value, None)


def record(kind: Kind, position: Position, key: bytes = b"", value: bytes | None = None, **control: Any) -> Record:
    told = {**MEMBER, **control} if control else {}
    return Record("t", 0, 0, Header(kind, 3, *position, 0), key, value, told)


def decode(found: Record) -> Decoded:
    assert found.header.kind in (Kind.CHANGE, Kind.TOMBSTONE, Kind.READ), "control records have nothing to decode"
    return found.key, entry_of(found.key, found.value)


def change(position: Position, key: bytes, value: bytes | None) -> Record:
    return record(Kind.CHANGE, position, key, value)


def tombstone(position: Position, key: bytes) -> Record:
    return record(Kind.TOMBSTONE, position, key)


def row(position: Position, key: bytes, value: bytes) -> Record:
    return record(Kind.READ, position, key, value)


def begin(position: Position, name: str = "r1", reason: str = "overflow") -> Record:
    return record(Kind.RESET_BEGIN, position, id=name, reason=reason)


def end(position: Position, name: str = "r1", **entries: bytes) -> Record:
    digest = digest_of((key.encode(), value) for key, value in entries.items())
    return record(Kind.RESET_END, position, id=name, count=len(entries), digest=digest)


def run(*records: Record) -> tuple[SegmentReader, list[Change]]:
    reader, told = SegmentReader(3), []
    for each in records:
        told += reader.apply(each, decode)
    return reader, told


def values(reader: SegmentReader) -> dict[bytes, bytes]:
    assert all(entry.key == key for key, entry in reader.entries.items())
    return {key: entry.value for key, entry in reader.entries.items()}


# -- outside a reset ----------------------------------------------------------------------------------------------


def test_changes_apply_in_order_and_tell_what_was_there_before() -> None:
    reader, told = run(
        change((1, 1), b"a", b"1"),
        change((1, 2), b"b", b"2"),
        change((1, 3), b"a", b"3"),
        change((2, 4), b"b", None),
    )
    assert values(reader) == {b"a": b"3"}
    assert (reader.mark, reader.repeats) == ((2, 4), 0)
    assert told == [
        Change(b"a", None, entry_of(b"a", b"1"), (1, 1), "change"),
        Change(b"b", None, entry_of(b"b", b"2"), (1, 2), "change"),
        Change(b"a", entry_of(b"a", b"1"), entry_of(b"a", b"3"), (1, 3), "change"),
        Change(b"b", entry_of(b"b", b"2"), None, (2, 4), "change"),
    ]


@pytest.mark.parametrize("position", [(1, 5), (1, 4), (0, 9)])
def test_a_change_at_or_below_the_mark_is_dropped_and_counted(position: Position) -> None:
    reader, told = run(change((1, 5), b"a", b"1"), change(position, b"a", b"again"), change(position, b"b", b"other"))
    assert values(reader) == {b"a": b"1"}
    assert (reader.mark, reader.repeats, len(told)) == ((1, 5), 2, 1)


def test_a_lower_sequence_of_a_higher_epoch_is_above_the_mark() -> None:
    reader, _ = run(change((1, 5), b"a", b"1"), change((2, 1), b"a", b"2"))
    assert (values(reader), reader.mark, reader.repeats) == ({b"a": b"2"}, (2, 1), 0)


def test_a_tombstone_at_the_mark_is_dropped_in_silence() -> None:
    reader, told = run(change((1, 1), b"a", b"1"), change((1, 2), b"a", None), tombstone((1, 2), b"a"))
    assert (reader.mark, reader.repeats, len(told)) == ((1, 2), 0, 2)
    reader, _ = run(change((1, 1), b"a", b"1"), tombstone((1, 1), b"a"))
    assert values(reader) == {b"a": b"1"}


def test_a_tombstone_above_the_mark_is_the_delete_that_compaction_took() -> None:
    reader, told = run(change((1, 1), b"a", b"1"), tombstone((1, 2), b"a"))
    assert (values(reader), reader.mark, reader.repeats) == ({}, (1, 2), 0)
    assert told[-1] == Change(b"a", entry_of(b"a", b"1"), None, (1, 2), "change")


def test_a_tombstone_below_the_mark_is_a_repeat() -> None:
    reader, told = run(change((1, 5), b"a", b"1"), tombstone((1, 4), b"a"))
    assert (values(reader), reader.mark, reader.repeats, len(told)) == ({b"a": b"1"}, (1, 5), 1, 1)


def test_rows_count_only_inside_a_reset() -> None:
    reader, told = run(row((1, 1), b"a", b"1"))
    assert (values(reader), reader.mark, reader.repeats, told) == ({}, START, 0, [])


SILENT = [Kind.CLAIM, Kind.ACTIVE, Kind.RELEASE, Kind.SKIPPED]


@pytest.mark.parametrize("kind", SILENT)
def test_what_tells_of_no_entry_never_moves_the_mark(kind: Kind) -> None:
    control = record(kind, (9, 9), epoch=9, first=8)
    reader, told = run(change((1, 1), b"a", b"1"), control, change((1, 2), b"a", b"2"))
    assert (values(reader), reader.mark, reader.repeats, len(told)) == ({b"a": b"2"}, (1, 2), 0, 2)
    reader, _ = run(begin((1, 1)), control, row((1, 1), b"a", b"1"), end((1, 1), a=b"1"))
    assert (values(reader), reader.mark) == ({b"a": b"1"}, (1, 1))


# -- resets -------------------------------------------------------------------------------------------------------


def test_a_reset_replaces_the_entries_and_tells_the_least() -> None:
    reader, told = run(
        *(change((1, n), key, b"old") for n, key in enumerate([b"gone", b"kept", b"other"], 1)),
        begin((2, 3)),
        row((2, 3), b"kept", b"old"),
        row((2, 3), b"other", b"new"),
        row((2, 4), b"added", b"new"),
    )
    assert set(values(reader)) == {b"gone", b"kept", b"other"}, "an open reset must not be seen"
    assert len(told) == 3
    assert reader.open is not None
    told = reader.apply(end((2, 4), kept=b"old", other=b"new", added=b"new"), decode)
    assert values(reader) == {b"kept": b"old", b"other": b"new", b"added": b"new"}
    assert reader.open is None
    assert (reader.mark, reader.resets, reader.repeats) == ((2, 4), ["overflow"], 0)
    assert told == [
        Change(b"added", None, entry_of(b"added", b"new"), (2, 4), "reset"),
        Change(b"gone", entry_of(b"gone", b"old"), None, (2, 4), "reset"),
        Change(b"other", entry_of(b"other", b"old"), entry_of(b"other", b"new"), (2, 4), "reset"),
    ]


def test_a_row_counts_at_or_above_the_mark_of_its_own_fold() -> None:
    reader, _ = run(
        begin((2, 3)),
        row((2, 2), b"below", b"x"),
        row((2, 3), b"at", b"1"),
        row((2, 3), b"at_too", b"1"),
        row((2, 5), b"above", b"1"),
        row((2, 4), b"below again", b"x"),
        end((2, 5), at=b"1", at_too=b"1", above=b"1"),
    )
    assert set(values(reader)) == {b"at", b"at_too", b"above"}
    assert (reader.mark, reader.repeats) == ((2, 5), 0), "rows that do not count are no repeats"


def test_changes_inside_a_reset_count_above_its_mark_only() -> None:
    reader, told = run(
        change((1, 1), b"a", b"0"),
        begin((1, 1)),
        row((1, 3), b"a", b"3"),
        change((1, 3), b"a", b"in the row"),
        change((1, 2), b"a", b"older"),
        tombstone((1, 2), b"a"),
        tombstone((1, 3), b"a"),
        change((1, 4), b"b", b"4"),
        change((1, 5), b"a", None),
        tombstone((1, 5), b"a"),
        tombstone((1, 6), b"b"),
    )
    assert reader.repeats == 3
    assert (values(reader), reader.mark, len(told)) == ({b"a": b"0"}, (1, 1), 1)
    assert reader.apply(end((1, 6)), decode) == [Change(b"a", entry_of(b"a", b"0"), None, (1, 6), "reset")]
    assert (values(reader), reader.mark) == ({}, (1, 6))


def test_the_marks_of_begin_and_end_count_outside_as_well() -> None:
    reader, _ = run(begin((2, 5)))
    assert reader.mark == (2, 5)
    reader, _ = run(begin((2, 5)), end((2, 7)), change((2, 7), b"a", b"x"), change((2, 8), b"a", b"1"))
    assert (values(reader), reader.repeats) == ({b"a": b"1"}, 1)
    reader, _ = run(begin((2, 5)), change((2, 9), b"a", b"1"), end((2, 7), a=b"1"), change((2, 8), b"a", b"x"))
    assert (values(reader), reader.mark, reader.repeats) == ({b"a": b"1"}, (2, 9), 1)
    reader, _ = run(change((3, 1), b"a", b"1"), begin((2, 5), "late"), end((2, 6), "other"))
    assert reader.mark == (3, 1), "a mark never goes back"


def test_a_later_begin_replaces_an_earlier_one() -> None:
    reader, told = run(
        begin((1, 1), "r1", "overflow"),
        row((1, 1), b"a", b"1"),
        begin((2, 1), "r2", "owners_lost"),
        row((2, 1), b"b", b"2"),
        end((1, 1), "r1", a=b"1"),
    )
    assert (values(reader), told, reader.resets) == ({}, [], [])
    reader.apply(end((2, 1), "r2", b=b"2"), decode)
    assert (values(reader), reader.resets) == ({b"b": b"2"}, ["owners_lost"])


def test_an_end_closes_its_own_begin_only() -> None:
    reader, told = run(change((1, 1), b"a", b"1"), end((1, 1), "r0"))
    assert (values(reader), len(told), reader.resets) == ({b"a": b"1"}, 1, [])
    reader, _ = run(begin((1, 1), "r1"), end((1, 1), "r2"))
    assert [reader.open] == [OpenReset("r1", "overflow", (1, 1))]
    reader.apply(end((1, 1), "r1"), decode)
    assert reader.resets == ["overflow"]
    reader.apply(end((1, 1), "r1"), decode)  # and only once
    assert reader.resets == ["overflow"]


def test_a_clear_is_a_reset_without_entries() -> None:
    reader, told = run(
        change((1, 1), b"a", b"1"), begin((1, 2), "c", "clear"), end((1, 2), "c"), change((1, 3), b"b", b"2")
    )
    assert (values(reader), reader.resets, reader.mark) == ({b"b": b"2"}, ["clear"], (1, 3))
    assert [(c.key, c.after is None, c.cause) for c in told] == [
        (b"a", False, "change"),
        (b"a", True, "reset"),
        (b"b", False, "change"),
    ]


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        ({"count": 2}, "count 2.* but 1 entries"),
        ({"digest": "0123456789abcdef"}, f"digest 0123456789abcdef.* of digest {digest_of([(b'a', b'1')])}"),
    ],
)
def test_an_end_that_does_not_match_is_an_error(lie: dict[str, Any], named: str) -> None:
    reader, _ = run(change((1, 1), b"old", b"x"), begin((1, 1)), row((1, 1), b"a", b"1"))
    true = end((1, 1), a=b"1")
    with pytest.raises(RecordError, match=f"reset r1 .*{named}.*reset-segment"):
        reader.apply(true._replace(control={**true.control, **lie}), decode)
    assert values(reader) == {b"old": b"x"}
    assert reader.open is not None
    assert len(reader.apply(true, decode)) == 2


def test_an_expiry_alone_makes_a_difference_but_not_another_digest() -> None:
    before, after = Entry(b"a", b"1", None), Entry(b"a", b"1", 99)
    assert difference({b"a": before}, {b"a": after}, (1, 2)) == [Change(b"a", before, after, (1, 2), "reset")]
    assert difference({b"a": before}, {b"a": Entry(b"a", b"1", None)}, (1, 2)) == []
    reader, _ = run(begin((1, 1)))
    reader.apply(row((1, 1), b"a", b"1"), lambda r: (r.key, after))
    reader.apply(end((1, 1), a=b"1"), decode)
    assert reader.entries == {b"a": after}


def test_what_is_dropped_is_not_decoded() -> None:
    def never(found: Record) -> Decoded:
        raise AssertionError(f"decoded {found}")

    reader = SegmentReader(3, mark=(1, 5))
    for each in (
        change((1, 5), b"a", b"1"),
        tombstone((1, 5), b"a"),
        tombstone((1, 4), b"a"),
        row((1, 6), b"a", b"1"),
        record(Kind.CLAIM, (2, 5), epoch=2),
        begin((1, 6)),
        row((1, 5), b"a", b"1"),
        end((1, 6)),
    ):
        reader.apply(each, never)
    assert reader.resets == ["overflow"]


def test_one_step_by_itself() -> None:
    entries: dict[bytes, Entry] = {}
    one, two = Entry(b"a", b"1", None), Entry(b"a", b"2", None)
    assert fold_step(entries, (1, 1), Kind.CHANGE, (1, 1), b"a", one) == (1, 1)
    assert fold_step(entries, (1, 1), Kind.READ, (1, 0), b"a", one) == (1, 1)
    assert entries == {}
    assert fold_step(entries, (1, 1), Kind.READ, (1, 1), b"a", one) == (1, 1)
    assert entries == {b"a": one}
    assert fold_step(entries, (1, 1), Kind.CHANGE, (1, 2), b"a", two) == (1, 2)
    assert entries == {b"a": two}
    assert fold_step(entries, (1, 2), Kind.TOMBSTONE, (1, 2), b"a", None) == (1, 2)
    assert entries == {b"a": two}
    assert fold_step(entries, (1, 2), Kind.TOMBSTONE, (1, 3), b"a", None) == (1, 3)
    assert entries == {}


# -- against an oracle --------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """`name` is the key of an entry or the id of a reset; `true` says whether an end's count and digest are right."""

    kind: Kind
    position: Position
    name: str
    value: bytes | None
    true: bool = True


ENTRIES = (Kind.CHANGE, Kind.TOMBSTONE, Kind.READ)
POSITIONS = st.tuples(st.integers(1, 2), st.integers(0, 6))
EVENTS = st.one_of(
    st.builds(Event, st.just(Kind.CHANGE), POSITIONS, st.sampled_from("abc"), st.sampled_from([b"1", b"2", None])),
    st.builds(Event, st.just(Kind.TOMBSTONE), POSITIONS, st.sampled_from("abc"), st.none()),
    st.builds(Event, st.just(Kind.READ), POSITIONS, st.sampled_from("abc"), st.sampled_from([b"1", b"2"])),
    st.builds(Event, st.just(Kind.RESET_BEGIN), POSITIONS, st.sampled_from("xy"), st.none()),
    st.builds(Event, st.just(Kind.RESET_END), POSITIONS, st.sampled_from("xy"), st.none(), st.integers(0, 9).map(bool)),
    st.builds(
        Event, st.sampled_from([Kind.CLAIM, Kind.ACTIVE, Kind.RELEASE, Kind.SKIPPED]), POSITIONS, st.just(""), st.none()
    ),
)


class Oracle:
    """The reading rule over a whole log, by index, without state that is kept from record to record."""

    def __init__(self, log: list[Event]) -> None:
        self.log = log
        begins = [i for i, e in enumerate(log) if e.kind is Kind.RESET_BEGIN]
        self.windows: dict[int, tuple[int, bool]] = {}  # begin -> (where it stops, whether its own end stops it)
        for number, begin in enumerate(begins):
            following = begins[number + 1] if number + 1 < len(begins) else len(log)
            ends = (
                i for i in range(begin, following) if log[i].kind is Kind.RESET_END and log[i].name == log[begin].name
            )
            closed = next(ends, None)
            self.windows[begin] = (following, False) if closed is None else (closed, True)
        open_now = bool(begins) and not self.windows[begins[-1]][1]
        self.open = begins[-1] if open_now else None

    def window(self, index: int) -> int | None:
        """The begin of the reset that a record is in."""
        return next((b for b, (stop, _) in self.windows.items() if b < index < stop), None)

    def mark(self, index: int, inside: int | None = None) -> Position:
        """The mark before a record, or that of the open reset `inside`.

        It is the highest position of all records that count: a dropped record is never above the mark before it.
        """
        inside = self.window(index) if inside is None else inside
        met = [START]
        for i, event in enumerate(self.log[:index]):
            b = self.window(i)
            if inside is not None:
                counts = i == inside or (b == inside and event.kind in ENTRIES)
            elif b is not None and event.kind in ENTRIES:
                stop, ended = self.windows[b]
                counts = ended and stop < index
            else:
                counts = event.kind in (Kind.RESET_BEGIN, Kind.RESET_END, Kind.CHANGE, Kind.TOMBSTONE)
            if counts:
                met.append(event.position)
        return max(met)

    def counts(self, index: int) -> bool:
        """Whether an entry's record is applied, to the entries or to the open reset."""
        event = self.log[index]
        if event.kind is Kind.READ:
            return self.window(index) is not None and event.position >= self.mark(index)
        return event.kind in ENTRIES and event.position > self.mark(index)

    def repeats(self) -> int:
        found = 0
        for i, event in enumerate(self.log):
            if event.kind is Kind.CHANGE:
                found += not self.counts(i)
            elif event.kind is Kind.TOMBSTONE:
                found += event.position < self.mark(i)
        return found

    def told(self, indexes: list[int]) -> dict[bytes, bytes]:
        """The last counted value of each key."""
        last = {self.log[i].name.encode(): self.log[i].value for i in indexes if self.counts(i)}
        return {key: value for key, value in last.items() if value is not None}

    def within(self, begin: int) -> dict[bytes, bytes]:
        """The entries of the reset that begins there."""
        return self.told([i for i in range(len(self.log)) if self.window(i) == begin])

    def entries(self) -> dict[bytes, bytes]:
        completed = [(stop, begin) for begin, (stop, ended) in self.windows.items() if ended]
        stop, begin = max(completed, default=(-1, -1))
        after = [i for i in range(stop + 1, len(self.log)) if self.window(i) is None]
        return self.told([i for i in range(len(self.log)) if begin >= 0 and self.window(i) == begin] + after)

    def reasons(self) -> list[str]:
        return [f"reason {begin}" for begin, (_, ended) in sorted(self.windows.items()) if ended]


def of_event(log: list[Event], index: int) -> Record:
    """The record of an event. An end has the oracle's count and digest of its reset, or wrong ones."""
    event = log[index]
    match event.kind:
        case Kind.RESET_BEGIN:
            return begin(event.position, event.name, f"reason {index}")
        case Kind.RESET_END:
            oracle = Oracle(log[:index])
            held = {} if oracle.open is None else oracle.within(oracle.open)
            true = end(event.position, event.name, **{k.decode(): v for k, v in held.items()})
            lie = {**true.control, "count": true.control["count"] + 1}
            return true if event.true else true._replace(control=lie)
        case _:
            return record(event.kind, event.position, event.name.encode(), event.value)


@settings(deadline=None, max_examples=400)
@given(st.lists(EVENTS, max_size=25))
def test_the_reader_agrees_with_the_oracle(log: list[Event]) -> None:
    reader = SegmentReader(3)
    world: dict[bytes, Entry] = {}
    for index, event in enumerate(log):
        each = of_event(log, index)
        closes = event.kind is Kind.RESET_END and Oracle(log[: index + 1]).reasons() != Oracle(log[:index]).reasons()
        if closes and not event.true:
            with pytest.raises(RecordError, match="records are missing"):
                reader.apply(each, decode)
            return  # a reader stops there
        for told in reader.apply(each, decode):
            assert world.get(told.key) == told.before
            assert told.cause == ("reset" if closes else "change")
            assert told.position == event.position
            if told.after is None:
                world.pop(told.key, None)
            else:
                world[told.key] = told.after
        oracle = Oracle(log[: index + 1])
        assert reader.mark == oracle.mark(index + 1)
        assert values(reader) == oracle.entries()
        assert reader.entries == world
        assert reader.repeats == oracle.repeats()
        assert reader.resets == oracle.reasons()
        assert (reader.open is None) == (oracle.open is None)
        if reader.open is not None and oracle.open is not None:
            assert {k: e.value for k, e in reader.open.entries.items()} == oracle.within(oracle.open)
            assert reader.open.mark == oracle.mark(index + 1, oracle.open)
