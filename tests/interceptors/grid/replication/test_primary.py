"""The primary's side: what is acknowledged, who is waited for, and which answers count."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest

from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import (
    Answers,
    AnyFrame,
    Ask,
    FrameError,
    Refused,
    Replicate,
    Report,
    Wanted,
)
from deelog_interceptors.grid.replication.peers import Link
from deelog_interceptors.grid.replication.session import StreamState
from deelog_interceptors.grid.settings import MAX_LINK_BYTES, MAX_UNREPLICATED
from deelog_interceptors.grid.topology.requests import GROW, SHRINK
from deelog_schemas.operation import Reason
from tests.interceptors.grid.replication.pair import A, B, Client, Pair, Wire, put
from tests.support.memory import Memory


def test_an_expiry_without_a_lease_is_not_acknowledged_before_the_writes_that_wait() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A, B)
        await pair.settle()
        node, segment = pair.a, pair.a.segment
        put(node, "t", "x")
        await pair.settle()
        node.wire.ready = False
        node.replicator.link_down(cast(Link, node.wire))
        sequence, client = put(node, "k", "v"), Client()
        waits = node.replicator.reply(client, b"+OK", [(segment, sequence)])
        node.leased = False
        pair.view(2, A, A, epoch=1, to=A)
        node.store._gone(segment, b"t", Reason.EXPIRE)  # the timer asks for no lease
        assert segment.acked < sequence
        node.leased = True
        node.replicator.renewed()
        assert (segment.acked, client.flushes, list(segment.pendings)) == (segment.last, 1, [])
        assert isinstance(waits, Pending)
        assert waits.left == 0

    asyncio.run(run())


def test_a_newcomer_is_streamed_to_waited_for_and_let_in() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        assert pair.a.segment.acked == 1
        await pair.settle()
        assert pair.b.entries == {b"k": b"1"}
        assert pair.requests(pair.a) == [(GROW, B)]
        assert pair.a.segment.waiting == {B}
        put(pair.a, "k", "2")
        assert pair.a.segment.acked == 1
        await pair.settle()
        assert pair.a.segment.acked == 2
        pair.view(2, A, A, B, epoch=1)
        assert pair.requests(pair.a) == []
        assert pair.b.core.complete_from(0) == 1  # by operations: it could resume

    asyncio.run(run())


def test_what_a_promotion_evicts_is_acknowledged_by_all_who_are_waited_for() -> None:
    """A backup takes all that its primary keeps; as a primary with room for less it gives entries up at once, and with
    them what came before in its op log waits for the other owner."""

    async def run() -> None:
        pair = Pair(entries_of_b=4)
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        for number in range(10):
            put(pair.a, f"k{number}", "v")
        await pair.settle()
        assert len(pair.b.entries) == 10
        pair.view(3, B, A, B, to=B)
        assert len(pair.b.entries) == 4
        assert pair.b.segment.last == 16
        core = pair.b.core._segments[0]
        assert (pair.b.segment.acked, core.acked, core.replicated) == (0, 0, 0)
        assert pair.b.replicator.unreplicated == 6
        pair.view(3, B, A, B, to=A)
        await pair.settle()
        assert pair.a.entries == pair.b.entries
        assert (pair.b.segment.acked, core.acked, core.replicated) == (16, 16, 16)
        assert pair.b.replicator.unreplicated == 0
        pair.view(4, A, A)
        pair.b.segment.data = dict.fromkeys((b"1", b"2", b"3", b"4", b"5"), (b"v", None))
        pair.view(5, B, B, to=B)  # alone: nobody is waited for
        assert (pair.b.segment.acked, pair.b.replicator.unreplicated) == (pair.b.segment.last, 0)

    asyncio.run(run())


def test_an_answer_of_another_epoch_or_connection_counts_for_nothing() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B)
        sequence = put(pair.a, "k", "1")
        link, other = cast(Link, pair.a.wire), cast(Link, Wire(A, B))
        pair.a.replicator.frame(link, Answers(2, [(0, 1, sequence)]))
        pair.a.replicator.frame(other, Answers(2, [(0, 2, sequence)]))
        pair.a.replicator.frame(other, Refused(2, [(0, 2)]))
        assert pair.a.segment.acked == 0
        await pair.settle()
        assert pair.a.segment.acked == sequence
        pair.a.replicator.frame(link, Answers(2, [(0, 2, sequence - 1)]))  # of before
        assert pair.a.segment.sessions[B].answered == sequence

    asyncio.run(run())


def test_an_answer_to_an_older_question_says_nothing_of_what_is_held_now() -> None:
    """It was a holder when it answered, is none in the next view, which it has yet to read, and is one again."""

    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        await pair.settle()
        pair.a.replicator.link_down(cast(Link, pair.a.wire))
        pair.a.replicator.follow([pair.a.segment], 1)
        pair.b.backup.frame(pair.a.incoming, pair.a.wire.there.popleft())
        old = pair.a.wire.back.popleft()
        assert isinstance(old, Report)
        pair.view(2, A, A, epoch=1, owners=(A,), to=A)
        pair.view(3, A, A, epoch=1, to=A)
        pair.a.replicator.frame(cast(Link, pair.a.wire), old)
        await asyncio.sleep(0)
        assert all(isinstance(frame, Ask) for frame in pair.a.wire.there)
        pair.a.replicator.frame(cast(Link, pair.a.wire), Answers(1, [(0, 1, 1)]))
        assert pair.a.segment.sessions[B].answered == 0
        pair.view(2, A, A, epoch=1, owners=(A,), to=B)
        pair.view(3, A, A, epoch=1, to=B)
        await pair.settle()
        assert pair.b.entries == {b"k": b"1"}
        assert pair.requests(pair.a) == [(GROW, B)]

    asyncio.run(run())


def test_one_that_does_not_answer_is_reported_and_waited_for_until_a_view_lets_it_go() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        put(pair.a, "k", "1")
        assert pair.requests(pair.a, 10.0) == []
        assert pair.requests(pair.a, 10.9) == []
        assert pair.requests(pair.a, 11.1) == [(SHRINK, B)]
        assert pair.a.segment.acked == 0
        put(pair.a, "k", "2")
        pair.a.replicator.frame(cast(Link, pair.a.wire), Answers(2, [(0, 1, 1)]))
        assert pair.requests(pair.a, 11.2) == []  # it is behind, and comes nearer
        assert pair.requests(pair.a, 12.1) == []
        assert pair.requests(pair.a, 12.3) == [(SHRINK, B)]
        pair.view(3, A, A, epoch=1, to=A)
        assert pair.a.segment.acked == 2
        assert pair.a.replicator.unreplicated == 0

    asyncio.run(run())


def test_without_the_lease_nothing_is_acknowledged_until_it_is_renewed() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        pair.a.leased = False
        put(pair.a, "k", "1")
        await pair.settle()
        assert (pair.b.entries, pair.a.segment.acked) == ({b"k": b"1"}, 0)
        pair.a.leased = True
        pair.a.replicator.renewed()
        assert pair.a.segment.acked == 1

    asyncio.run(run())


@pytest.mark.parametrize("owners", [(A, B), (B,)])
def test_a_reply_waits_for_all_of_its_writes_and_fails_where_they_may_be_lost(owners: tuple[str, ...]) -> None:
    async def run() -> None:
        pair, client = Pair(), Client()
        replicator, segment = pair.a.replicator, pair.a.segment
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        writes = [(segment, put(pair.a, "k", "1")), (segment, put(pair.a, "k", "2"))]

        def waiting() -> Pending:
            reply = replicator.reply(client, b"+OK", writes)
            assert isinstance(reply, Pending)
            return reply

        pending = waiting()
        assert pending.left == 2
        await pair.settle()
        assert (pending.left, pending.reply, client.flushes, replicator.acknowledged) == (0, b"+OK", 1, 1)
        assert replicator.reply(client, b"+OK", writes) == b"+OK"
        writes.append((segment, put(pair.a, "k", "3")))
        late = waiting()
        replicator.expire_pendings(time.monotonic())
        assert (late.left, replicator.timed_out) == (1, 0)
        replicator.expire_pendings(time.monotonic() + 3600)
        assert (late.left, replicator.timed_out, client.flushes) == (0, 1, 2)
        assert late.reply.startswith(b"-TRYAGAIN not acknowledged in time")
        lost = waiting()
        pair.view(3, B, B, owners=owners)
        assert (lost.left, client.flushes) == (0, 3)
        assert lost.reply.startswith(b"-TRYAGAIN the segment's primary changed")

    asyncio.run(run())


def test_writes_wait_for_room_until_a_backup_answers(memory: Memory) -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        put(pair.a, "k", "1")
        pair.a.replicator.unreplicated = MAX_UNREPLICATED - 1
        assert pair.a.replicator.has_room()
        put(pair.a, "k", "2")
        assert not pair.a.replicator.has_room()
        begun = memory.loop.time()
        waiting = asyncio.ensure_future(pair.a.replicator.room())
        await pair.settle()
        await waiting
        assert memory.loop.time() == begun
        assert pair.a.replicator.has_room()

    memory.run(run())


def test_a_newcomer_is_let_in_only_once_it_answered_what_was_acknowledged_without_it() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        pair.b.backup.frame(pair.a.incoming, pair.a.wire.there.popleft())
        pair.a.replicator.frame(cast(Link, pair.a.wire), pair.a.wire.back.popleft())
        for _ in range(5):
            await asyncio.sleep(0)
        assert pair.a.replicator.stages() == {"streaming": 1}
        assert pair.requests(pair.a) == []
        await pair.settle()
        assert pair.requests(pair.a) == [(GROW, B)]

    asyncio.run(run())


def test_one_whose_admission_was_asked_for_is_waited_for_until_the_next_view_even_if_its_stream_broke() -> None:
    """The view that lets it in may be made already: it is elected next, as one that lacks nothing."""

    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        assert pair.requests(pair.a) == [(GROW, B)]
        pair.a.wire.ready = False
        pair.a.replicator.link_down(cast(Link, pair.a.wire))
        put(pair.a, "k", "1")
        pair.a.replicator.follow([pair.a.segment], 1)
        assert pair.a.segment.acked == 0
        pair.view(2, A, A, epoch=1)
        assert pair.a.segment.acked == 1

    asyncio.run(run())


async def streaming(acks_all: bool = True) -> Pair:
    """A pair whose backup is in sync, in epoch 1."""
    pair = Pair(acks_all=acks_all)
    pair.view(1, A, A)
    await pair.settle()
    pair.view(2, A, A, B, epoch=1)
    await pair.settle()
    assert pair.a.segment.sessions[B].stage is StreamState.STREAMING
    return pair


def test_a_frame_that_is_not_for_a_primary_is_an_error_of_the_connection() -> None:
    async def run() -> None:
        pair = await streaming()
        with pytest.raises(FrameError, match="Ask is not for a primary"):
            pair.a.replicator.frame(cast(Link, pair.a.wire), Ask(1, []))

    asyncio.run(run())


def test_a_refused_stream_is_dropped_and_asked_for_again() -> None:
    async def run() -> None:
        pair = await streaming()
        link, segment, replicator = cast(Link, pair.a.wire), pair.a.segment, pair.a.replicator
        replicator.frame(link, Refused(2, [(0, 2)]))  # another epoch
        replicator.frame(cast(Link, Wire(A, B)), Refused(2, [(0, 1)]))
        assert B in segment.sessions
        assert replicator.stale_answers == 2
        replicator.frame(link, Refused(2, [(0, 1), (0, 1)]))
        assert (segment.sessions, replicator.stale_answers) == ({}, 4)
        replicator.follow([segment], 2)
        assert pair.a.wire.there[-1] == Ask(2, [(0, 1)])
        assert replicator.stages() == {"asked": 1}

    asyncio.run(run())


def test_who_was_not_in_sync_is_asked_again_where_a_view_was_not_read() -> None:
    """In the view that A does not read B is no owner, and drops all."""

    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        put(pair.a, "k", "1")
        await pair.settle()
        assert pair.requests(pair.a) == [(GROW, B)]
        pair.view(2, A, A, epoch=1, to=B, owners=(A,))
        assert pair.b.entries == {}
        pair.view(3, A, A, epoch=1)
        assert pair.requests(pair.a) == []
        await pair.settle()
        assert pair.b.entries == {b"k": b"1"}
        assert pair.requests(pair.a) == [(GROW, B)]
        session = pair.a.segment.sessions[B]
        pair.view(4, A, A, epoch=1)
        assert pair.a.segment.sessions[B] is session  # no view was passed over
        pair.view(6, A, A, B, epoch=1)
        assert pair.a.segment.sessions[B] is session  # only this primary could have it admitted

    asyncio.run(run())


def test_only_the_link_that_broke_loses_its_streams() -> None:
    async def run() -> None:
        pair = await streaming()
        pair.a.replicator.link_down(cast(Link, Wire(A, B)))
        assert B in pair.a.segment.sessions
        pair.a.replicator.link_down(cast(Link, pair.a.wire))
        assert (pair.a.segment.sessions, pair.a.segment.waiting) == ({}, {B})

    asyncio.run(run())


@pytest.mark.parametrize("keys", [None, [b"k"]])
def test_what_a_diverged_backup_wants_is_sent_and_to_no_other(keys: list[bytes] | None) -> None:
    async def run() -> None:
        pair = await streaming()
        put(pair.a, "k", "1")
        await pair.settle()
        pair.view(3, A, A, epoch=1)  # not waited for: it may be sent the state
        link, stream, caught_up = cast(Link, pair.a.wire), pair.a.segment.sessions[B], pair.a.replicator.catch_up
        pair.a.segment.waiting = set()
        before = caught_up.operations
        pair.a.replicator.frame(link, Wanted(0, 1, 0, keys))
        assert (stream.stage, caught_up.states, caught_up.operations) == (StreamState.STREAMING, 0, before)
        stream.stage = StreamState.DIVERGING
        pair.a.replicator.frame(cast(Link, Wire(A, B)), Wanted(0, 1, 0, keys))
        assert (stream.stage, pair.a.replicator.stale_answers) == (StreamState.DIVERGING, 1)
        pair.a.replicator.frame(link, Wanted(0, 1, 0, keys))
        await asyncio.sleep(0)
        assert stream.stage is StreamState.RECOVERING
        assert (caught_up.states, caught_up.operations) == ((1, before) if keys is None else (0, before + 1))
        await pair.settle()

    asyncio.run(run())


def test_a_link_with_too_much_to_send_holds_up_writes_until_it_has_sent_it() -> None:
    async def run() -> None:
        pair = await streaming()
        replicator = pair.a.replicator
        for queued, room in ((MAX_LINK_BYTES - 1, True), (MAX_LINK_BYTES, False), (MAX_LINK_BYTES - 1, True)):
            pair.a.wire.queued = queued
            put(pair.a, "k", "v")
            await pair.settle()
            assert replicator.has_room() is room
        pair.a.wire.queued = MAX_LINK_BYTES  # nothing was sent since: the link is not looked at
        assert replicator.has_room()

    asyncio.run(run())


def test_a_segment_that_is_no_longer_primary_sends_and_asks_for_nothing() -> None:
    async def run() -> None:
        pair = await streaming()
        put(pair.a, "k", "1")
        assert pair.a.segment.outgoing
        pair.a.replicator.end(pair.a.segment)
        assert (pair.a.segment.outgoing, pair.a.segment.sessions) == ([], {})
        assert (pair.a.segment.waiting, pair.a.segment.admitting, pair.a.segment.lagging) == (set(), set(), {})
        await asyncio.sleep(0)
        assert not pair.a.wire.there
        pair.a.segment.waiting = {B}
        pair.a.segment.role = Role.BACKUP
        assert pair.requests(pair.a, 0.0) == pair.requests(pair.a, 9.0) == []

    asyncio.run(run())


def test_one_without_a_stream_is_removed_after_the_timeout_too() -> None:
    async def run() -> None:
        pair = await streaming()
        pair.a.wire.ready = False
        pair.a.replicator.link_down(cast(Link, pair.a.wire))
        assert pair.requests(pair.a, 5.0) == pair.requests(pair.a, 6.0) == []
        assert pair.requests(pair.a, 6.1) == [(SHRINK, B)]

    asyncio.run(run())


def test_without_acks_of_all_a_write_is_acknowledged_here_and_still_replicated() -> None:
    async def run() -> None:
        pair = await streaming(acks_all=False)
        segment, replicator = pair.a.segment, pair.a.replicator
        sequence = put(pair.a, "k", "1")
        assert replicator.reply(Client(), b"+OK", [(segment, sequence)]) == b"+OK"
        core = pair.a.core._segments[0]
        assert (core.acked, core.replicated, segment.acked, replicator.unreplicated) == (1, 0, 0, 1)
        await pair.settle()
        assert (core.replicated, segment.acked, replicator.unreplicated) == (1, 1, 0)
        assert (pair.b.entries, replicator.operations) == ({b"k": b"1"}, 1)

    asyncio.run(run())


def test_an_answer_of_one_that_is_not_in_sync_hurries_the_next_heartbeat() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A)
        await pair.settle()
        assert pair.requests(pair.a) == [(GROW, B)]
        for in_sync, poked in (((A,), True), ((A, B), False)):
            pair.view(1, A, *in_sync)
            before = pair.a.pokes
            put(pair.a, "k", "1")
            await pair.settle()
            assert (pair.a.pokes > before) is poked

    asyncio.run(run())


def test_room_is_waited_for_no_longer_than_a_moment(memory: Memory) -> None:
    async def run() -> None:
        pair = await streaming()
        begun = memory.loop.time()
        await pair.a.replicator.room()
        assert memory.loop.time() - begun == pytest.approx(0.05)
        assert not pair.a.replicator._room  # else one more each time, for as long as nothing moves

    memory.run(run())


def test_what_is_much_goes_in_frames_that_a_backup_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 4 * 1000)
    monkeypatch.setattr(frames, "CHUNK_BYTES", 1000)

    async def run() -> None:
        pair = await streaming()
        sent: list[list[int]] = []
        send = pair.a.wire.send

        def count(frame: AnyFrame) -> None:
            assert isinstance(frame, Replicate)
            assert sum(map(len, frame.batches)) <= 1000
            sent.append([len(frames.decode_batch(raw).operations) for raw in frame.batches])
            send(frame)

        monkeypatch.setattr(pair.a.wire, "send", count)
        for number in range(20):
            put(pair.a, f"k{number}", "v" * 100)
        await pair.settle()
        assert max(map(max, sent)) > 1
        assert (len(sent) > 1, sum(map(sum, sent))) == (True, 20)
        assert len(pair.b.entries) == 20

    asyncio.run(run())
