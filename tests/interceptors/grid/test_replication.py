"""A primary and a backup in one process, their frames carried one by one: every way to catch up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import Any, cast

import pytest

from deelog_connector.core import ConnectorCore
from deelog_connector.core import Settings as CoreSettings
from deelog_connector.core.segment import Phase
from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication import catch_up, frames
from deelog_interceptors.grid.replication.backup import Backup
from deelog_interceptors.grid.replication.frames import Answers, AnyFrame, Ask, Refused, Replicate, Report, StateChunk
from deelog_interceptors.grid.replication.peers import Incoming, Link
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.replication.roles import Roles
from deelog_interceptors.grid.settings import MAX_UNREPLICATED, Settings
from deelog_interceptors.grid.topology.requests import GROW, RELEASED, RESET_DONE, SHRINK, STEPPED_DOWN
from deelog_interceptors.grid.topology.view import Registration, SegmentState, State, View
from deelog_schemas.config import parse
from deelog_schemas.operation import Entry, Operation
from tests.support.memory import Memory

A, B = "a@1", "b@1"


class NoState:
    def entries(self, segment: int) -> list[Entry]:
        return []

    def get(self, segment: int, key: bytes) -> Entry | None:
        return None


def _carried(frame: AnyFrame) -> AnyFrame:
    async def read() -> AnyFrame:
        reader = asyncio.StreamReader()
        reader.feed_data(frames.encode(frame))
        return await frames.read(reader)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(read())
    return frames._decoder.decode(frames.encode(frame)[4:])


class Wire:
    """Both ends of one connection from `member` to another: what each sent and the other has not read yet."""

    def __init__(self, dialled_by: str, to: str) -> None:
        self.member = to
        self.ready = True
        self.queued = 0
        self.there: deque[AnyFrame] = deque()
        self.back: deque[AnyFrame] = deque()
        self.incoming = _In(dialled_by, self.back)

    def send(self, frame: AnyFrame) -> None:
        self.there.append(_carried(frame))

    async def drain(self) -> None:
        await asyncio.sleep(0)


class _In:
    def __init__(self, member: str, back: deque[AnyFrame]) -> None:
        self.member, self._back = member, back
        self.asked: list[Ask] = []

    def send(self, frame: AnyFrame) -> None:
        self._back.append(_carried(frame))


class Replica:
    """One node with one segment, without sockets."""

    def __init__(self, member: str, other: str, entries: int = 10_000) -> None:
        config = {"topic.prefix": "p", "cache.name": "c", "node.id": "x", "bootstrap.servers": "h:1"}
        more = {"segment.count": "1", "topic.creation.default.partitions": "1", "cache.max.entries": str(entries)}
        self.member = member
        self.leased = True
        self.core = ConnectorCore(member, CoreSettings(1, 1, max_operations=10_000), NoState())
        self.links: dict[str, Link] = {}
        self.store = Store(Settings.of(parse(config | more)), self.core, self._captured, time)
        self.replicator = Replicator(
            self.store, self.links, True, lambda _: None, lambda: None, self.fail, lambda: self.leased, time
        )
        self.backup = Backup(self.store, self.core)
        self.roles = Roles(member, self.store, self.core, self.replicator, self.backup, lambda: None, time)
        self.connect(other)

    def connect(self, other: str) -> None:
        self.wire = Wire(self.member, other)
        self.links[other] = cast(Link, self.wire)
        self.incoming = cast(Incoming, self.wire.incoming)

    def _captured(self, segment: Segment, operation: Operation) -> None:
        self.replicator.operation(segment, operation)

    @staticmethod
    def fail(error: BaseException) -> None:
        raise error

    @property
    def segment(self) -> Segment:
        return self.store.segments[0]

    @property
    def entries(self) -> dict[bytes, bytes]:
        return {entry.key: entry.value for entry in self.store.entries(self.segment)}


class Pair:
    def __init__(self, entries_of_b: int = 10_000) -> None:
        self.a, self.b = Replica(A, B), Replica(B, A, entries_of_b)
        self.a.backup.up(self.b.incoming)
        self.b.backup.up(self.a.incoming)

    def view(
        self, number: int, primary: str, *in_sync: str, to: str = A + B, epoch: int | None = None, **row: Any
    ) -> None:
        """Both (or one) apply a view; epoch = its number by default."""
        state = SegmentState(State.ONLINE, epoch or number, primary, in_sync, (A, B))._replace(**row)
        members = {m: Registration(m, "h:1", "h:2") for m in (A, B)}
        for replica in (self.a, self.b):
            if replica.member in to:
                replica.roles.apply(View(number, A, members, (state,)))

    async def settle(self) -> None:
        """Carries frames until there are none."""
        for _ in range(200):
            await asyncio.sleep(0)
            for one, other in ((self.a, self.b), (self.b, self.a)):
                while one.wire.there:
                    other.backup.frame(one.incoming, one.wire.there.popleft())
                while one.wire.back:
                    one.replicator.frame(cast(Link, one.wire), one.wire.back.popleft())

    def requests(self, replica: Replica, now: float = 0.0) -> list[tuple[str, str]]:
        return [(r.kind, r.member) for r in replica.replicator.requests(now, 1.0)]


def put(replica: Replica, key: str, value: str) -> int:
    return replica.store.put(replica.segment, key.encode(), value.encode(), None)


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


@pytest.mark.parametrize("cannot_keep_up", [False, True])
def test_many_operations_come_in_pieces_while_writes_go_on(
    cannot_keep_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A, to=A)
        for number in range(5000):
            put(pair.a, f"k{number % 100}", str(number))
        pair.view(2, A, A, to=A)
        put(pair.a, "k0", "of another epoch")
        if cannot_keep_up:
            monkeypatch.setattr(catch_up, "MAX_BACKLOG", 100)
        pair.view(3, A, A, epoch=2)
        settling = asyncio.ensure_future(pair.settle())
        for _ in range(4):
            await asyncio.sleep(0)
        put(pair.a, "k1", "meanwhile")
        await settling
        monkeypatch.undo()
        await pair.settle()
        caught_up = pair.a.replicator.catch_up
        assert (caught_up.operations > 1, caught_up.states) == (cannot_keep_up, 0)
        assert pair.b.entries == pair.a.entries
        assert pair.b.core.history(0) == pair.a.core.history(0) == ((1, 5000), (2, 5002))
        assert pair.a.segment.sessions[B].task is None
        assert pair.requests(pair.a) == [(GROW, B)]

    asyncio.run(run())


def test_a_newer_report_ends_the_catch_up_before_it() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A, to=A)
        pair.view(1, A, A, to=B)
        for number in range(5000):
            put(pair.a, f"k{number}", "v")
        ask = pair.a.wire.there.popleft()
        assert isinstance(ask, Ask)
        tasks = []
        for _ in range(2):
            pair.b.backup.frame(pair.a.incoming, ask)
            pair.a.replicator.frame(cast(Link, pair.a.wire), pair.a.wire.back.popleft())
            tasks.append(pair.a.segment.sessions[B].task)
        await asyncio.sleep(0)
        first, second = tasks
        assert first is not None
        assert second is not None
        assert (first.cancelled(), second.cancelled()) == (True, False)
        await pair.settle()
        assert pair.b.entries == pair.a.entries

    asyncio.run(run())


def test_a_state_is_no_operations_and_comes_while_writes_go_on() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A, to=A)
        for number in range(3000):
            put(pair.a, f"k{number}", "x" * 1000)
        pair.a.core.overflow(0)
        pair.view(2, A, A, epoch=1)
        for number in range(50):
            put(pair.a, f"k{number}", "later")
            await asyncio.sleep(0)
            if number == 25:
                await pair.settle()
        await pair.settle()
        assert pair.b.entries == pair.a.entries
        assert (pair.a.replicator.catch_up.states, pair.b.backup.states) == (1, 1)
        assert pair.b.core.complete_from(0) > 3000
        assert pair.b.core.history(0) == pair.a.core.history(0)

    asyncio.run(run())


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
        assert sent(chunk(b"lost", True, False)) == []
        pair.b.backup.down(pair.a.incoming)
        assert pair.b.segment.staged is None
        assert sent(chunk(b"rest", False, True)) == [Refused]

    asyncio.run(run())


def test_one_in_sync_leaves_before_it_takes_a_state() -> None:
    async def run() -> None:
        pair = Pair()
        pair.view(1, A, A, to=A)
        put(pair.a, "k", "1")
        pair.a.core.overflow(0)
        pair.view(2, A, A, B, epoch=1)
        await pair.settle()
        assert pair.b.backup.states == 0
        assert pair.requests(pair.a) == [(SHRINK, B)]
        pair.view(3, A, A, epoch=1)
        await pair.settle()
        assert pair.b.backup.states == 1
        assert pair.b.entries == {b"k": b"1"}

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


class Client:
    """Counts its flushes."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


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


def test_a_segment_is_released_once_all_of_it_is_acknowledged_and_can_be_taken_back() -> None:
    async def run() -> None:
        pair = Pair()
        roles, segment, core = pair.a.roles, pair.a.segment, pair.a.core
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        put(pair.a, "k", "1")
        pair.view(3, A, A, B, epoch=1, target=B)
        assert (segment.releasing, segment.release_begun, core._segments[0].release_wanted) == (True, False, False)
        await pair.settle()
        assert not roles.hand_over()
        assert (segment.release_begun, core._segments[0].release_wanted) == (True, True)
        core.paused = True
        assert roles.hand_over()
        assert (segment.releasing, segment.release_begun, core._segments[0].release_wanted) == (False, False, False)
        assert not roles.hand_over()
        core.paused = False
        roles.hand_over()
        segment.released = True
        assert [r.kind for r in roles.requests()] == [RELEASED]
        assert not list(pair.b.roles.requests())

    asyncio.run(run())


def test_what_a_primary_asks_of_the_controller_and_what_a_view_takes_from_it() -> None:
    async def run() -> None:
        pair = Pair()
        roles, segment = pair.a.roles, pair.a.segment
        pair.view(1, A, A, must_reset="owners_lost")
        assert list(roles.requests()) == []
        pair.a.core._segments[0].phase = Phase.WRITING
        assert [r.kind for r in roles.requests()] == [RESET_DONE]
        pair.b.roles.stepped_down(0, "a higher claim")
        roles.stepped_down(0, "a higher claim")
        assert (segment.stepped_down, pair.b.segment.stepped_down) == (True, False)
        assert [r.kind for r in roles.requests()] == [STEPPED_DOWN]
        pair.view(2, A, A)
        assert not segment.stepped_down
        pair.view(3, B, B, must_reset="unclean_election")
        assert (roles.given_away, pair.b.roles.given_away) == (1, 0)
        pair.view(4, B, B, epoch=3, owners=(B,))
        pair.view(5, B, B, epoch=3)
        pair.b.core._segments[0].phase = Phase.WRITING
        assert list(pair.b.roles.requests()) == []  # this view wants no reset
        assert roles.transitions == {
            "none→primary": 1, "primary→primary": 1, "primary→backup": 1, "backup→none": 1, "none→backup": 1
        }  # fmt: skip
        assert pair.b.roles.transitions == {"none→backup": 1, "backup→backup": 1, "backup→primary": 1}

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


@pytest.mark.parametrize("seed", range(30))
def test_whatever_changes_hands_both_hold_the_same_and_nothing_acknowledged_is_lost(seed: int) -> None:
    """Random writes, frames carried or not, roles that change: the acknowledged value of each key is never older."""

    async def run() -> None:
        random_ = random.Random(seed)
        pair = Pair()
        number, primary = 1, A
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        number = 2
        acked: dict[bytes, int] = {}
        written: dict[int, tuple[bytes, int]] = {}
        for step in range(1, 300):
            replica = pair.a if primary == A else pair.b
            key = b"k%d" % random_.randrange(6)
            written[replica.store.put(replica.segment, key, b"%d" % step, None)] = (key, step)
            if random_.random() < 0.3:
                await pair.settle()
            for sequence in [s for s in written if s <= replica.segment.acked]:
                found, value = written.pop(sequence)
                acked[found] = max(acked.get(found, 0), value)
            if random_.random() < 0.05:
                written.clear()
                number, primary = number + 1, B if primary == A else A
                pair.view(number, primary, primary, B if primary == A else A)
                if random_.random() < 0.5:
                    await pair.settle()
        await pair.settle()
        assert pair.a.entries == pair.b.entries
        assert pair.a.core.history(0) == pair.b.core.history(0)
        assert all(int(pair.a.entries[key]) >= value for key, value in acked.items())

    asyncio.run(run())


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
