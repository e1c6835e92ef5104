"""The tape of a stream: commands as changes of segments, and what a position says. `test_capture.py` has histories.

Bad input: commands that are not known, that lack arguments, keys and values that were passed over.
"""

from __future__ import annotations

from collections import deque

import pytest

from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.segment_tape import UNREAD
from deelog_interceptors.redis.source import Anchor, Source
from deelog_interceptors.redis.stream import Arguments, Omitted, StreamError
from deelog_interceptors.redis.tape import Tape, unknown_of
from deelog_interceptors.redis.view import View
from deelog_schemas.keys import segment_of
from tests.interceptors.redis.model import Plain

SEGMENTS = 4
Command = tuple["list[bytes | Omitted]", int]
ONE = Lineage((("one", 0),))
OF_A, OF_D = segment_of(b"a", SEGMENTS), segment_of(b"d", SEGMENTS)
assert OF_A != OF_D


def taped(*commands: Command, database: int = 0, captured: int = 0) -> Tape:
    """Of a stream of which Kafka has all up to the tape's begin."""
    tape = Tape(ONE, 100, database, captured, SEGMENTS, Plain())
    for segment in tape.segments:
        segment.prune(Anchor(100, 0))
    tape.feed(list(commands), 5)
    return tape


def held(tape: Tape, segment: int) -> list[tuple[int, str, bytes]]:
    return [(change.offset, change.reason, change.key) for change in tape.segments[segment].waiting]


def test_a_command_is_a_change_of_its_key() -> None:
    tape = taped(([b"SET", b"a", b"1", b"PXAT", b"77", b"NX"], 150), ([b"INCR", b"d"], 200), ([b"DEL", b"a"], 230))
    assert held(tape, OF_A) == [(150, "put", b"a"), (230, "remove", b"a")]
    assert tape.segments[OF_A].waiting[0] == (150, "put", b"a", b"1", 77, True, 5)
    assert held(tape, OF_D) == [(200, UNREAD, b"d")]
    assert (tape.offset, tape.busy) == (230, {OF_A, OF_D})


def test_the_changes_of_one_command_have_offsets_of_their_own() -> None:
    tape = taped(([b"MSET", b"a", b"1", b"d", b"2", b"a", b"3"], 150))
    assert held(tape, OF_A) == [(148, "put", b"a"), (150, "put", b"a")]
    assert held(tape, OF_D) == [(149, "put", b"d")]


def test_other_databases_are_passed_over() -> None:
    tape = taped(
        ([b"SET", b"a", b"0"], 110),
        ([b"SELECT", b"2"], 120),
        ([b"SET", b"a", b"2"], 130),
        ([b"FLUSHDB"], 140),
        ([b"MOVE", b"a", b"3"], 150),
        ([b"select", b"3"], 160),
        ([b"FLUSHDB"], 170),
        captured=3,
    )
    assert held(tape, OF_A) == [(150, UNREAD, b"a"), (170, "clear", b"")]
    assert held(tape, OF_D) == [(170, "clear", b"")]
    assert tape.database == 3
    tape.feed([([b"SELECT", b"0"], 180), ([b"FLUSHALL"], 190)], 5)
    assert held(tape, OF_D)[-1] == (190, "clear", b"")


def test_what_is_no_change() -> None:
    tape = taped(([b"PING"], 110), ([b"MULTI"], 120), ([b"exec"], 130), ([b"REPLCONF", b"GETACK", b"*"], 140))
    assert tape.offset == 140
    assert not tape.busy
    assert not tape.unknown


def test_the_places_of_what_is_not_known() -> None:
    known: list[Arguments] = [[b"PING"], [b"SELECT", b"0"], [b"SET", b"k", b"v"], [b"incr", b"n"], [b"exec"]]
    commands: list[Arguments] = [[b"NEWLY", b"a"], *known, [b"JSON.SET", b"k"], [Omitted(9)]]
    assert unknown_of([(given, 0) for given in commands]) == [0, 6, 7]
    assert unknown_of([(given, 0) for given in known]) == []


def test_what_is_not_known() -> None:
    tape = taped(([b"NEWLY", b"a"], 110), ([b"SET", b"a"], 120), ([b"X" * 100], 130))
    assert tape.unknown == {"b'NEWLY'", "b'SET'", ("b'" + "X" * 100)[:80]}
    assert taped(([b"SWAPDB", b"0", b"1"], 110)).unknown == {"SWAPDB"}
    assert taped(([b"SWAPDB", b"2", b"1"], 110)).unknown == set()
    assert taped(([b"SWAPDB", b"0", b"0"], 110)).unknown == set()


def test_what_cannot_be_captured_is_counted() -> None:
    class Some(Plain):
        def accepts(self, key: bytes) -> bool:
            return key != b"a"

    tape = Tape(ONE, 100, 0, 0, SEGMENTS, Some())
    tape.feed([([b"SET", b"a", b"1"], 110), ([b"DEL", Omitted(9)], 120), ([b"SET", b"d", Omitted(9)], 130)], 5)
    assert tape.passed_over == 2
    assert held(tape, OF_A) == []
    assert held(tape, OF_D) == [(130, UNREAD, b"d")], "a value that was passed over is read"


def test_what_is_low_and_how_much_is_held() -> None:
    tape = taped(([b"SET", b"a", b"1"], 110), ([b"SELECT", b"0"], 120), ([b"SET", b"d", b"1"], 130))
    assert (tape.low(), tape.length()) == ((100, 0), 2)
    tape.segments[OF_D].prune(Anchor(130, 1))
    assert tape.low() == (100, 0)
    tape.segments[OF_A].prune(Anchor(110, 1))
    assert (tape.low(), tape.length()) == ((130, 0), 0)
    tape.feed([([b"SELECT", b"1"], 140), ([b"PING"], 150)], 5)
    assert tape.low() == (150, 1)


def test_nothing_is_low_while_a_segment_may_lack_what_was_before_the_tape() -> None:
    tape = Tape(ONE, 100, 0, 0, SEGMENTS, Plain())
    tape.feed(sets(110), 5)
    for segment in tape.segments[1:]:
        segment.open(Anchor(110, 7), 7, {})
    assert tape.low() == (0, 0), "it is still to be taken over"
    tape.segments[0].prune(Anchor(90, 3))
    assert tape.low() == (0, 0), "and what its position does not have is not here"
    tape.segments[0].drop(110)
    tape.segments[0].take_rows([], 110, 4)
    assert tape.low() == (110, 0)


def test_what_a_position_says() -> None:
    tape = taped(([b"SET", b"a", b"1"], 110), ([b"INCR", b"a"], 120), ([b"SET", b"d", b"1"], 130))
    for segment in (OF_A, OF_D):
        tape.segments[segment].open(Anchor(100, 7), 7, {})
    one = tape.segments[OF_A]
    one.later, one.rows = {b"x": 111, b"y": 105, b"z": 300}, {b"z": 300}
    source = tape.source(OF_A, 7, [(1, 2)])
    expected = {b"x": 0, b"y": 0, b"z": 300}
    assert source == Source("one", Anchor(100, 7), Anchor(100, 7), 100, 0, expected, ((1, 2),))
    assert tape.source(OF_D, 7, []).later == {}


def sets(*offsets: int) -> list[Command]:
    """Of one key, at these offsets."""
    return [([b"SET", b"a", b"1"], offset) for offset in offsets]


def source(begin: tuple[int, int], end: tuple[int, int], name: str = "one") -> Source:
    return Source(name, Anchor(*begin), Anchor(*end), 0, 0)


def test_changes_are_counted_from_a_position() -> None:
    tape = taped(*sets(110, 120, 130, 140))
    tape.lineage = Lineage((("one", 0), ("two", 130)))
    assert tape.counted(OF_A, source((100, 5), (110, 6)), -1) == (Anchor(110, 6), 8), "up to the fork"
    assert tape.counted(OF_A, source((100, 5), (140, 9), "two"), -1) == (Anchor(140, 9), 9)
    assert tape.counted(OF_A, source((100, 5), (130, 8)), -1) == (Anchor(130, 8), 8)
    assert tape.counted(OF_A, source((120, 7), (131, 9)), -1) == (Anchor(120, 7), 8), "from where its run begins"
    assert tape.counted(OF_A, source((131, 7), (140, 9)), -1) is None, "another stream's"
    assert tape.counted(OF_A, source((100, 5), (110, 6), "three"), -1) is None
    assert tape.counted(OF_A, source((100, 5), (150, 9), "two"), -1) == (Anchor(100, 5), 9), "it is not read so far"


def test_of_a_run_that_forks_all_is_in_kafka_up_to_where_it_was_when_it_began() -> None:
    tape = taped(*sets(110, 120, 130, 140))
    tape.lineage = Lineage((("one", 0), ("two", 130)))
    run = source((80, 5), (135, 9))
    assert tape.counted(OF_A, run, -1) is None, "what was between its beginning and the tape's is not known"
    assert tape.counted(OF_A, run._replace(low=99), -1) is None
    assert tape.counted(OF_A, run._replace(low=100), -1) == (Anchor(100, 5), 8)
    assert tape.counted(OF_A, run._replace(low=125), -1) == (Anchor(125, 5), 6)
    assert tape.counted(OF_A, run._replace(low=134), -1) == (Anchor(130, 5), 5), "the fork"
    assert tape.counted(OF_A, run._replace(begin=Anchor(120, 7), low=110), -1) == (Anchor(120, 7), 8)
    assert tape.counted(OF_A, run._replace(begin=Anchor(131, 7), low=131), -1) is None, "it began behind the fork"


def test_changes_that_are_missing_cannot_be_counted() -> None:
    tape = taped(([b"SET", b"a", b"1"], 110))
    assert tape.counted(OF_A, source((80, 5), (99, 6)), -1) is None
    assert tape.counted(OF_A, source((80, 5), (99, 6)), 99) is None
    assert tape.counted(OF_A, source((80, 5), (99, 6)), 100) == (Anchor(100, 6), 7), "all up to there is in Kafka"
    assert tape.counted(OF_A, source((80, 5), (99, 6)), 500) == (Anchor(110, 6), 6)
    assert tape.counted(OF_A, source((80, 5), (200, 6)), 500) is None


def test_nothing_is_counted_from_before_what_was_pruned() -> None:
    tape = taped(*sets(110, 120, 130))
    tape.segments[OF_A].prune(Anchor(120, 2))
    assert tape.counted(OF_A, source((100, 0), (110, 1)), -1) is None, "of a server that lacked what was pruned"
    assert tape.counted(OF_A, source((110, 1), (500, 9)), -1) == (Anchor(120, 2), 3), "of the run that was pruned"
    assert tape.counted(OF_A, source((110, 1), (500, 1)), -1) is None, "of another one"
    assert tape.counted(OF_A, source((110, 3), (500, 9)), -1) is None
    assert tape.counted(OF_A, source((120, 2), (500, 9)), -1) == (Anchor(120, 2), 3)


def test_positions_prune_what_cannot_fork_before_them() -> None:
    tape = taped(*sets(110, 120, 130))
    tape.position_read(OF_A, source((110, 5), (131, 8)))
    assert [change.offset for change in tape.segments[OF_A].waiting] == [120, 130]
    tape.position_read(OF_A, source((110, 5), (120, 6)))
    assert [change.offset for change in tape.segments[OF_A].waiting] == [130]
    tape.position_read(OF_A, source((110, 5), (130, 7), "unknown"))
    assert [change.offset for change in tape.segments[OF_A].waiting] == [130]
    tape.position_read(OF_A, source((110, 5), (130, 7)))
    assert not tape.segments[OF_A].waiting


def test_behind_a_command_that_is_not_known_nothing_is_counted() -> None:
    tape = taped(*sets(110), ([b"NEWLY", b"a"], 120), *sets(130))
    assert tape.gap == 120
    assert tape.counted(OF_A, source((100, 5), (110, 6)), -1) is None
    assert tape.counted(OF_A, source((100, 5), (110, 6)), 119) is None
    assert tape.counted(OF_A, source((110, 6), (120, 6)), -1) == (Anchor(120, 6), 7)
    tape.segments[OF_A].prune(Anchor(130, 2))
    assert tape.low() == (110, 0), "the others are to be sent anew"
    for segment in tape.segments:
        segment.prune(Anchor(120, 1))
    assert tape.low() == (130, 0)


def test_a_command_without_a_name() -> None:
    with pytest.raises(StreamError, match="without a name"):
        unknown_of([([b"SET", b"a", b"1"], 110), ([], 114)])


def view(writes: set[int], *moving: int, follows: set[int] | None = None, rank: int = 3) -> View:
    return View(True, frozenset(writes), frozenset(follows or ()), frozenset(moving), rank)


ALL = set(range(SEGMENTS))


def test_of_the_segments_of_others_nothing_is_kept() -> None:
    tape = Tape(ONE, 100, 0, 0, SEGMENTS, Plain())
    tape.view_is(view({OF_A}))
    tape.feed([*sets(110), ([b"SET", b"d", b"1"], 120), ([b"FLUSHALL"], 130), ([b"NEWLY", b"d"], 140)], 5)
    assert held(tape, OF_A) == [(110, "put", b"a"), (130, "clear", b"")]
    assert tape.busy == {OF_A}
    assert (tape.length(), tape.rank) == (3, 3)
    tape.view_is(view(set(), follows={OF_A, OF_D}))
    assert held(tape, OF_A) == [(110, "put", b"a"), (130, "clear", b"")], "its primary's, from now on"
    assert tape.segments[OF_D].begin == 140
    tape.view_is(view({OF_D}))
    assert held(tape, OF_A) == []
    tape.segments[OF_D].prune(Anchor(140, 0))
    assert tape.low() == (140, 0), "what is not kept holds up nobody"


def test_nobody_begins_behind_where_a_segment_began_to_move() -> None:
    tape = taped(*sets(110))
    tape.segments[OF_A].prune(Anchor(110, 1))
    tape.view_is(view(ALL - {OF_A}, OF_A))
    tape.feed([*sets(120), ([b"SET", b"d", b"1"], 130)], 5)
    tape.segments[OF_D].prune(Anchor(130, 1))
    tape.view_is(view(ALL - {OF_A}, OF_A))
    assert (tape.low(), tape.length()) == ((110, 0), 0)
    assert not tape.waits(130, ALL)
    tape.view_is(view(ALL))
    assert (tape.segments[OF_A].begin, tape.low()) == (130, (110, 0)), "it stays, and something may be missing"
    assert tape.counted(OF_A, source((100, 0), (110, 1)), tape.low()[0]) is None
    tape.written(OF_A, source((130, 1), (130, 1)))
    assert tape.low() == (130, 0)


def test_a_segment_that_moves_is_written_up_to_there() -> None:
    tape = taped(*sets(110))
    one = tape.segments[OF_A]
    one.open(Anchor(100, 0), 0, {})
    tape.view_is(view(ALL - {OF_A}, OF_A))
    assert one.is_open, "what was told is still to be written, and its position says where that is"
    assert (tape.low(), tape.length(), tape.waits(110, ALL)) == ((100, 0), 0, False), "and it holds up no other"
    tape.view_is(view(ALL - {OF_A}))
    assert not one.is_open
    assert tape.low() == (110, 0)
    assert (one.begin, one.waiting) == (110, deque())


def test_whether_a_segment_waits() -> None:
    tape = taped(*sets(110), ([b"SET", b"d", b"1"], 120))
    assert [tape.waits(offset, {OF_D}) for offset in (110, 111)] == [False, True]
    assert not tape.waits(120, ())
    tape.segments[OF_D].prune(Anchor(120, 1))
    assert not tape.waits(120, {OF_D})
    assert tape.waits(120, {OF_A, OF_D})


def test_where_too_much_is_held_the_oldest_segments_are_dropped() -> None:
    tape = taped(*sets(110, 120), ([b"SET", b"d", b"1"], 130), *sets(140))
    assert (tape.shed({OF_A, OF_D}, 4), tape.low()) == (0, (100, 0))
    assert tape.shed({OF_D}, 3) == 1, "those of others may be older"
    assert tape.shed({OF_A, OF_D}, 2) == 1
    assert (tape.length(), tape.segments[OF_A].begin) == (0, 140)
    assert tape.low() == (100, 0), "nobody begins behind what was dropped"
    tape.feed(sets(150), 5)
    assert held(tape, OF_A) == [(150, "put", b"a")]
    assert (tape.shed({OF_A, OF_D}, 0), tape.shed({OF_A, OF_D}, 0)) == (1, 0)
    assert (tape.length(), tape.low()) == (0, (100, 0))
    tape.position_read(OF_A, source((100, 0), (149, 4)))
    assert tape.low() == (100, 0), "it lacks one still"
    tape.position_read(OF_A, source((100, 0), (150, 4)))
    assert tape.low() == (120, 0)
    tape.position_read(OF_D, source((100, 0), (140, 1)))
    assert tape.low() == (150, 0)


def test_a_slot_that_is_flushed() -> None:
    tape = Tape(ONE, 100, 0, 0, 16384, Plain())
    tape.view_is(View(True, frozenset({7, 9}), frozenset()))
    tape.feed([([b"CLUSTER", b"FLUSHSLOT", b"7", b"ASYNC"], 110), ([b"CLUSTER", b"flushslot", b"8"], 120)], 5)
    assert held(tape, 7) == [(110, "clear", b"")]
    assert (tape.busy, tape.unknown) == ({7}, set())
    tape.feed([([b"CLUSTER", b"SETSLOT", b"7", b"NODE", b"x"], 130), ([b"CLUSTER", b"SYNCSLOTS", b"ACK"], 140)], 5)
    assert (tape.busy, tape.unknown) == ({7}, set())
    tape.feed([([b"CLUSTER", b"NEWLY", b"7"], 150), ([b"CLUSTER"], 160)], 5)
    assert tape.unknown == {"b'CLUSTER'"}


def test_a_key_that_comes_back_was_not_deleted() -> None:
    """A move that is taken back at once: what the keys' deletes meant is known before they are told."""
    back: list[Command] = [([b"RESTORE-ASKING", b"a", b"0", b"dump"], 130)]
    assert held(taped(*sets(110), ([b"DEL", b"a"], 120), *back), OF_A)[1:] == [(120, UNREAD, b"a"), (130, UNREAD, b"a")]
    tape = taped(*sets(110), ([b"DEL", b"a"], 120), *back)
    assert [change.created for change in tape.segments[OF_A].waiting] == [False, False, False]
    for before in (sets(110, 120), [([b"DEL", b"a"], 110), *sets(120)], [([b"FLUSHALL"], 120)]):
        tape = taped(*before, *back)
        assert held(tape, OF_A)[-1] == (130, UNREAD, b"a")
        assert {reason for _, reason, _ in held(tape, OF_A)[:-1]} <= {"put", "remove", "clear"}
        assert tape.segments[OF_A].waiting[-1].created
    restored = taped(([b"DEL", b"a"], 120), ([b"RESTORE", b"a", b"0", b"dump"], 130))
    assert held(restored, OF_A) == [(120, "remove", b"a"), (130, UNREAD, b"a")], "that is somebody's own wish"
