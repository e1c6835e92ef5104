"""The backup's side: what it reports, takes and refuses."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from deelog_interceptors.grid.replication import backup as module
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import (
    Answers,
    AnyFrame,
    Ask,
    Diverged,
    Patch,
    Refused,
    Replicate,
    Report,
    StateChunk,
    Wanted,
)
from deelog_interceptors.grid.replication.peers import Incoming, Link
from deelog_interceptors.grid.replication.session import StreamState
from deelog_interceptors.grid.topology.requests import GROW
from deelog_schemas.operation import Entry, Operation
from tests.interceptors.grid.replication.pair import A, B, Pair, Wire, put


def test_a_state_counts_once_it_came_as_a_whole_over_one_connection() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()

        def sent(frame: AnyFrame) -> list[type[AnyFrame]]:
            """What is answered to a frame."""
            pair.b.backup.frame(pair.a.incoming, frame)
            answers = [type(answer) for answer in pair.a.wire.back]
            pair.a.wire.back.clear()
            return answers

        def chunk(key: bytes, first: bool, last: bool) -> StateChunk:
            return StateChunk(1, 0, 1, 5, ((1, 5),), first, last, [Entry(key, b"v", None)])

        for _ in range(2):
            with pytest.raises(frames.FrameError, match="before the first one"):
                sent(chunk(b"rest", False, True))
            assert sent(chunk(b"lost", True, False)) == []
            assert sent(Replicate(1, [frames.encode_batch(0, 1, [])])) == [Refused]
            assert sent(Ask(1, [(0, 1)])) == [Report]  # it starts over
        assert sent(chunk(b"first", True, False)) == []
        pair.b.backup.down(cast(Incoming, Wire(A, B).incoming))
        assert sent(chunk(b"last", False, True)) == [Answers]
        assert pair.b.entries == {b"first": b"v", b"last": b"v"}
        assert (pair.b.backup.states, pair.b.core.history(0)) == (1, ((1, 5),))
        assert sent(chunk(b"lost", True, False)) == []
        pair.b.backup.down(pair.a.incoming)
        assert pair.b.segment.staged is None
        assert sent(chunk(b"rest", False, True)) == [Refused]

    asyncio.run(run())


def test_what_the_new_primary_never_had_is_dropped_and_its_values_taken() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "both", "1")
        put(pair.a, "changed", "1")
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        # These never reach B: A is about to lose its role.
        put(pair.a, "changed", "lost")
        put(pair.a, "new", "lost")
        pair.view(3, B, B, A)
        put(pair.b, "after", "1")
        await pair.settle()
        assert pair.a.entries == pair.b.entries == {b"both": b"1", b"changed": b"1", b"after": b"1"}
        assert pair.a.core.history(0) == pair.b.core.history(0) == ((1, 2), (3, 3))
        assert pair.b.segment.acked == 3
        assert pair.a.backup.refused == pair.b.backup.refused

    asyncio.run(run())


def test_a_frame_of_an_older_view_or_a_replaced_stream_is_refused_and_acknowledges_nothing() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        pair.view(3, B, B, A, to=B)  # A has not read it
        put(pair.a, "k", "zombie")
        await asyncio.sleep(0)
        (frame,) = pair.a.wire.there
        assert isinstance(frame, Replicate)
        await pair.settle()
        assert b"k" not in pair.b.entries
        assert pair.a.segment.acked == 0
        assert pair.a.replicator.stale_answers == 1
        # The right epoch, but a connection that was never reported to.
        stranger = Wire(A, B)
        pair.view(4, A, A, B)
        pair.b.backup.frame(cast(Incoming, stranger.incoming), Replicate(4, [frames.encode_batch(0, 4, [])]))
        assert isinstance(stranger.back.popleft(), Refused)
        # The connection that was reported to, but an older epoch.
        await pair.settle()
        pair.b.backup.frame(pair.a.incoming, Replicate(4, [frames.encode_batch(0, 2, [])]))
        assert isinstance(pair.a.wire.back.popleft(), Refused)

    asyncio.run(run())


def test_a_question_from_a_newer_view_waits_until_that_view_is_read() -> None:
    """Else the report would speak of entries that a view in between takes away."""

    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        await pair.settle()
        pair.view(2, A, A, epoch=1, owners=(A,), to=A)
        pair.view(3, A, A, epoch=1, to=A)
        await pair.settle()
        assert pair.a.wire.incoming.asked
        assert pair.requests(pair.a) == []
        pair.view(2, A, A, epoch=1, owners=(A,), to=B)
        assert pair.b.entries == {}
        pair.view(3, A, A, epoch=1, to=B)
        await pair.settle()
        assert pair.b.entries == {b"k": b"1"}
        assert pair.requests(pair.a) == [(GROW, B)]

    asyncio.run(run())


def test_a_question_goes_with_the_connection_it_came_by() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A, to=A)
        pair.b.backup.frame(pair.a.incoming, pair.a.wire.there.popleft())
        pair.b.backup.down(pair.a.incoming)
        pair.view(1, A, A, to=B)
        assert not pair.a.wire.back
        assert pair.b.segment.source is None

    asyncio.run(run())


def test_a_patch_that_answers_an_older_report_is_refused_and_drops_nothing() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        ask = pair.a.wire.there.popleft()
        for _ in range(2):
            pair.b.backup.frame(pair.a.incoming, ask)
        for report in [pair.a.wire.back.popleft() for _ in range(2)]:
            pair.a.replicator.frame(cast(Link, pair.a.wire), report)
            await asyncio.sleep(0)  # the patch leaves
        first, second = pair.a.wire.there
        assert first == second
        pair.b.backup.frame(pair.a.incoming, first)
        assert isinstance(pair.a.wire.back.popleft(), Answers)
        pair.b.backup.frame(pair.a.incoming, second)
        assert isinstance(pair.a.wire.back[-1], Refused)
        assert pair.b.core.last_sequence(0) == 1
        assert pair.b.entries == {b"k": b"1"}
        pair.a.wire.there.clear()
        await pair.settle()
        assert pair.requests(pair.a) == []
        pair.view(2, A, A, epoch=1)  # asked again
        await pair.settle()
        assert pair.requests(pair.a) == [(GROW, B)]

    asyncio.run(run())


def held(pair: Pair, *keys: str) -> None:
    """A's writes, which it never sends; B is asked and answers, but is sent nothing yet."""
    pair.view(1, A, A)
    pair.b.backup.frame(pair.a.incoming, pair.a.wire.there.popleft())
    assert pair.a.wire.back.popleft() == Report(1, 0, 1, ())
    for key in keys:
        put(pair.a, key, "v")


def answers(pair: Pair, frame: AnyFrame) -> list[AnyFrame]:
    """What B answers to a frame of A."""
    pair.b.backup.frame(pair.a.incoming, frame)
    found = list(pair.a.wire.back)
    pair.a.wire.back.clear()
    return found


def operations(pair: Pair) -> list[Operation]:
    """A's op log."""
    return pair.a.core.operations_after(0, 0) or []


def test_who_is_no_primary_of_this_view_is_refused_whatever_it_sends() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        stranger = Wire(A, B)
        frames_of_it: list[AnyFrame] = [
            Diverged(0, 1, 0),
            Patch(1, 0, 1, 0, (), [], []),
            StateChunk(1, 0, 1, 5, ((1, 5),), True, True, []),
            Replicate(1, [frames.encode_batch(0, 1, [])]),
        ]
        for number, frame in enumerate(frames_of_it, 1):
            pair.b.backup.frame(cast(Incoming, stranger.incoming), frame)
            assert stranger.back.popleft() == Refused(1, [(0, 1)])
            assert pair.b.backup.refused == number
        assert answers(pair, Ask(1, [(0, 2)])) == [Refused(1, [(0, 2)])]  # another epoch
        assert answers(pair, Ask(1, [(0, 1), (0, 3)])) == [Report(1, 0, 1, ((1, 0),)), Refused(1, [(0, 3)])]
        pair.view(2, B, B, A, to=B)
        assert answers(pair, Ask(1, [(0, 2)])) == [Refused(2, [(0, 2)])]  # it is primary itself

    asyncio.run(run())


def test_a_frame_of_another_kind_or_segment_is_an_error_of_the_connection() -> None:
    async def run() -> None:
        pair = Pair()
        held(pair)
        with pytest.raises(frames.FrameError, match="Answers is not for a backup"):
            answers(pair, Answers(1, []))
        for number in (1, -1):
            with pytest.raises(frames.FrameError, match=f"segment {number} of 1"):
                answers(pair, Ask(1, [(number, 1)]))

    asyncio.run(run())


def test_operations_are_applied_once_and_in_order() -> None:
    async def run() -> None:
        pair = Pair()
        held(pair, "a", "b", "c", "d", "e")
        first, second, third, _, fifth = operations(pair)

        def sent(*batch: Operation) -> list[AnyFrame]:
            return answers(pair, Replicate(1, [frames.encode_batch(0, 1, list(batch))]))

        assert sent(first, second) == sent(first, second) == [Answers(1, [(0, 1, 2)])]
        assert pair.b.backup.applied == 2
        assert sent(second, third) == [Answers(1, [(0, 1, 3)])]
        assert (pair.b.backup.applied, list(pair.b.entries)) == (3, [b"a", b"b", b"c"])
        with pytest.raises(frames.FrameError, match=r"segment 0: operation 1.5 after 1.3"):
            sent(fifth)
        for epoch in (0, 2):  # of no epoch that may follow
            with pytest.raises(frames.FrameError, match=rf"segment 0: operation {epoch}.4 after 1.3"):
                sent(third._replace(epoch=epoch, sequence=4))
        assert (pair.b.backup.applied, len(pair.b.entries)) == (3, 3)

    asyncio.run(run())


def test_a_patch_that_does_not_know_what_is_held_changes_nothing() -> None:
    async def run() -> None:
        pair = Pair()
        held(pair, "a", "b", "c")
        answers(pair, Replicate(1, [frames.encode_batch(0, 1, operations(pair))]))
        for point, history in ((10**9, ()), (3, ((7, 3),)), (2, ())):
            sent = answers(pair, Patch(1, 0, 1, point, history, [(b"c", None, None)], []))
            assert sent == [Refused(1, [(0, 1)])]
        assert (list(pair.b.entries), pair.b.core.history(0)) == ([b"a", b"b", b"c"], ((1, 3),))

    asyncio.run(run())


def test_the_keys_changed_after_a_point_are_named_unless_only_the_state_can_undo_them() -> None:
    async def run() -> None:
        pair = Pair()
        held(pair, "b", "c", "a", "c")
        pair.b.backup.frame(pair.a.incoming, Replicate(1, [frames.encode_batch(0, 1, operations(pair))]))
        assert answers(pair, Diverged(0, 1, 1))[-1] == Wanted(0, 1, 1, [b"a", b"c"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "MAX_LINK_BYTES", 1)  # more keys than one frame takes
            assert answers(pair, Diverged(0, 1, 1)) == [Wanted(0, 1, 1, None)]
        assert answers(pair, Diverged(0, 1, 4)) == [Wanted(0, 1, 4, [])]
        pair.a.store.clear(pair.a.segment)
        pair.b.backup.frame(pair.a.incoming, Replicate(1, [frames.encode_batch(0, 1, operations(pair))]))
        assert answers(pair, Diverged(0, 1, 1))[-1] == Wanted(0, 1, 1, None)
        assert answers(pair, Diverged(0, 1, 5)) == [Wanted(0, 1, 5, [])]
        pair.b.core.overflow(0)
        assert answers(pair, Diverged(0, 1, 4)) == [Wanted(0, 1, 4, None)]

    asyncio.run(run())


def test_a_patch_sets_and_removes_the_values_that_come_with_it() -> None:
    async def run() -> None:
        pair = Pair()
        held(pair, "a", "b")
        log = operations(pair)
        values = [(b"a", None, None), (b"missing", None, None), (b"c", b"new", 7)]
        assert answers(pair, Patch(1, 0, 1, 0, ((1, 2),), values, log)) == [Answers(1, [(0, 1, 2)])]
        assert pair.b.segment.data == {b"b": (b"v", None), b"c": (b"new", 7)}
        assert pair.b.core.history(0) == ((1, 2),)
        pair.b.core.overflow(0)  # the op log is not asked where nothing is dropped
        assert answers(pair, Patch(1, 0, 1, 2, ((1, 2),), [], [])) == [Answers(1, [(0, 1, 2)])]

    asyncio.run(run())


def test_a_patch_drops_what_came_after_its_point_only_where_it_has_a_value_for_each_key() -> None:
    async def run() -> None:
        pair = Pair()
        held(pair, "a", "b", "c")
        pair.b.backup.frame(pair.a.incoming, Replicate(1, [frames.encode_batch(0, 1, operations(pair))]))
        pair.a.wire.back.clear()
        both: list[tuple[bytes, bytes | None, int | None]] = [(b"b", None, None), (b"c", None, None)]
        assert answers(pair, Patch(1, 0, 1, 1, ((1, 1),), both[:1], [])) == [Refused(1, [(0, 1)])]
        assert (len(pair.b.entries), pair.b.core.last_sequence(0)) == (3, 3)
        assert answers(pair, Patch(1, 0, 1, 1, ((1, 1),), both, [])) == [Answers(1, [(0, 1, 1)])]
        assert (pair.b.entries, pair.b.core.last_sequence(0)) == ({b"a": b"v"}, 1)

    asyncio.run(run())


def test_a_question_for_which_there_is_no_room_is_asked_again() -> None:
    """B is some views behind, and A asks of more and more segments meanwhile."""

    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A, to=A)
        for _ in range(101):
            pair.a.wire.send(Ask(1, [(0, 77)]))
        await pair.settle()
        assert B not in pair.a.segment.sessions  # refused
        pair.a.replicator.follow([pair.a.segment], 1)  # the next heartbeat
        pair.view(1, A, A, to=B)
        await pair.settle()
        assert pair.a.segment.sessions[B].stage is StreamState.STREAMING

    asyncio.run(run())


def test_only_so_many_questions_of_a_connection_wait_for_a_view() -> None:
    pair = Pair()
    for number in range(200):
        pair.b.backup.frame(pair.a.incoming, Ask(1000 + number, []))
    waiting = [ask.topology_id for ask in pair.a.wire.incoming.asked]
    assert waiting == list(range(1100, 1200))
    pair.b.backup.view_applied(1150)
    assert [ask.topology_id for ask in pair.a.wire.incoming.asked] == list(range(1151, 1200))
