"""How a backup is brought up to date: by operations, or by the whole state."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.replication import catch_up, frames
from deelog_interceptors.grid.replication.catch_up import CatchUp
from deelog_interceptors.grid.replication.frames import AnyFrame, Ask, Diverged, Patch, Replicate, StateChunk
from deelog_interceptors.grid.replication.peers import Link
from deelog_interceptors.grid.replication.session import BackupStream, StreamState
from deelog_interceptors.grid.topology.requests import GROW, SHRINK
from deelog_schemas.operation import Entry
from tests.interceptors.grid.replication.pair import A, B, Pair, put


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


class Backup:
    """The link to a backup: keeps what it is sent. From the second frame on, `breaks` is raised."""

    member = B

    def __init__(self) -> None:
        self.sent: list[AnyFrame] = []
        self.drained = 0
        self.breaks: Exception | None = None
        self.states = asyncio.Semaphore(2)

    def send(self, frame: AnyFrame) -> None:
        self.sent.append(frame)

    async def drain(self) -> None:
        self.drained += 1
        await asyncio.sleep(0)
        if self.breaks is not None:
            raise self.breaks


class Desk:
    """A catch-up of one segment, with these keys written, to one backup."""

    def __init__(self, *keys: str) -> None:
        self.pair = Pair()
        self.pair.view(1, A, A, to=A)
        for key in keys:
            put(self.pair.a, key, f"value of {key}")
        self.segment = self.pair.a.segment
        self.link = Backup()
        self.stream = BackupStream(cast(Link, self.link), 1)
        self.streaming: list[tuple[Segment, str]] = []
        self.pokes = 0
        self.errors: list[BaseException] = []
        self.catch_up = CatchUp(self.pair.a.store, self._streaming, self._poke, self.errors.append)
        self.catch_up.topology_id = 7

    def _streaming(self, segment: Segment, member: str) -> None:
        self.streaming.append((segment, member))

    def _poke(self) -> None:
        self.pokes += 1

    async def ended(self) -> list[AnyFrame]:
        """What was sent, once the recovery has ended."""
        assert self.stream.task is not None
        await asyncio.wait([self.stream.task])
        await asyncio.sleep(0)  # its callback
        return self.link.sent


def sent_sequences(frame: AnyFrame) -> list[int]:
    """The operations of a frame."""
    if isinstance(frame, Replicate):
        (raw,) = frame.batches
        return [operation.sequence for operation in frames.decode_batch(raw).operations]
    assert isinstance(frame, Patch)
    return [operation.sequence for operation in frame.operations]


@pytest.mark.parametrize(("reported", "diverged_at"), [(((1, 2),), None), (((1, 9),), 3), (((1, 1), (2, 5)), 1)])
def test_one_that_has_more_than_the_primary_is_asked_what_it_changed(
    reported: tuple[tuple[int, int], ...], diverged_at: int | None
) -> None:
    async def run() -> None:
        desk = Desk("a", "b", "c")
        desk.stream.answered, desk.stream.backlog = 99, cast(Any, ["old"])
        desk.catch_up.reported(desk.segment, desk.stream, reported)
        assert (desk.stream.answered, desk.stream.backlog) == (0, [])
        if diverged_at is None:
            assert desk.stream.stage is StreamState.RECOVERING
            (patch,) = await desk.ended()
            assert sent_sequences(patch) == [3]
        else:
            assert (desk.stream.stage, desk.stream.task) == (StreamState.DIVERGING, None)
            assert desk.link.sent == [Diverged(0, 1, diverged_at)]

    asyncio.run(run())


def test_once_all_is_sent_the_normal_stream_begins() -> None:
    async def run() -> None:
        desk = Desk("a", "b", "c")
        desk.catch_up.by_operations(desk.segment, desk.stream, 1, [])
        assert (desk.stream.stage, desk.streaming) == (StreamState.RECOVERING, [])
        (patch,) = await desk.ended()
        assert patch == Patch(7, 0, 1, 1, ((1, 3),), [], desk.pair.a.core.operations_after(0, 1) or [])
        assert (desk.stream.stage, desk.stream.level_from, desk.stream.task) == (StreamState.STREAMING, 3, None)
        assert (desk.streaming, desk.link.drained) == ([(desk.segment, B)], 1)
        assert (desk.catch_up.operations, desk.catch_up.states, desk.errors) == (1, 0, [])

    asyncio.run(run())


def test_operations_are_sent_in_chunks_and_at_the_end_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "_CHUNK_OPERATIONS", 2)

    async def run() -> None:
        desk = Desk("a", "b", "c", "d", "e")
        desk.catch_up.by_operations(desk.segment, desk.stream, 0, [])
        *sent, last = await desk.ended()
        assert [type(frame) for frame in sent] == [Patch, Replicate, Replicate]
        assert [sent_sequences(frame) for frame in sent] == [[1, 2], [3, 4], [5]]
        assert last == Patch(7, 0, 1, 5, ((1, 5),), [], [])
        assert desk.link.drained == 3

    asyncio.run(run())


def test_values_that_only_the_backup_changed_go_with_all_operations_in_one_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catch_up, "_CHUNK_OPERATIONS", 2)

    async def run() -> None:
        desk = Desk("a", "b", "c", "d", "e")
        desk.catch_up.by_operations(desk.segment, desk.stream, 0, [b"b", b"missing"])
        (patch,) = await desk.ended()
        assert sent_sequences(patch) == [1, 2, 3, 4, 5]
        assert isinstance(patch, Patch)
        assert patch.values == [(b"b", b"value of b", None), (b"missing", None, None)]

    asyncio.run(run())


@pytest.mark.parametrize(("room", "kind"), [(0, StateChunk), (1, Patch)])
def test_the_whole_state_is_sent_where_one_frame_of_operations_had_too_many_bytes(
    monkeypatch: pytest.MonkeyPatch, room: int, kind: type[AnyFrame]
) -> None:
    async def run() -> None:
        desk = Desk("a", "b", "c")
        size = len(b"value of a") + sum(operation.size for operation in desk.pair.a.core.operations_after(0, 0) or [])
        monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 4 * (size - 1 + room))
        desk.catch_up.by_operations(desk.segment, desk.stream, 0, [b"a", b"missing"])
        (frame,) = await desk.ended()
        assert isinstance(frame, kind)

    asyncio.run(run())


def test_operations_are_sent_in_chunks_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 1)

    async def run() -> None:
        desk = Desk("a", "b", "c")
        desk.catch_up.by_operations(desk.segment, desk.stream, 0, [])
        *sent, _ = await desk.ended()
        assert [sent_sequences(frame) for frame in sent] == [[1], [2], [3]]

    asyncio.run(run())


@pytest.mark.parametrize(("most", "keys", "kind"), [(2, [b"a"], StateChunk), (3, [b"a"], Patch), (2, [], Patch)])
def test_the_whole_state_is_sent_where_one_frame_of_operations_were_too_long(
    monkeypatch: pytest.MonkeyPatch, most: int, keys: list[bytes], kind: type[AnyFrame]
) -> None:
    monkeypatch.setattr(catch_up, "_MAX_PATCH_OPERATIONS", most)

    async def run() -> None:
        desk = Desk("a", "b", "c")
        desk.catch_up.by_operations(desk.segment, desk.stream, 0, keys)
        (frame,) = await desk.ended()
        assert isinstance(frame, kind)
        assert (desk.catch_up.states, desk.catch_up.operations) == ((1, 0) if kind is StateChunk else (0, 1))

    asyncio.run(run())


def test_a_state_is_sent_in_chunks_by_the_size_of_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry here has 2 + 10 bytes and counts for 32 more."""
    monkeypatch.setattr(frames, "CHUNK_BYTES", 3 * 44 + 1)

    async def run() -> None:
        desk = Desk("k1", "k2", "k3", "k4", "k5", "k6")
        desk.pair.a.core.overflow(0)
        for number in range(1, 7):
            put(desk.pair.a, f"k{number}", "0123456789")
        desk.catch_up.by_state(desk.segment, desk.stream)
        await asyncio.sleep(0)  # the first chunk is sent
        put(desk.pair.a, "k1", "later")
        chunks = await desk.ended()
        assert [(c.first, c.last, len(c.entries)) for c in chunks if isinstance(c, StateChunk)] == [
            (True, False, 4),
            (False, True, 2),
        ]
        entries = [entry for c in chunks if isinstance(c, StateChunk) for entry in c.entries]
        assert entries == [Entry(b"k%d" % number, b"0123456789", None) for number in range(1, 7)]
        assert {(c.topology_id, c.cut, c.history) for c in chunks if isinstance(c, StateChunk)} == {(7, 12, ((1, 12),))}

    asyncio.run(run())


def test_an_empty_state_is_one_chunk() -> None:
    async def run() -> None:
        desk = Desk()
        desk.catch_up.by_state(desk.segment, desk.stream)
        assert await desk.ended() == [StateChunk(7, 0, 1, 0, ((1, 0),), True, True, [])]

    asyncio.run(run())


def test_one_that_is_waited_for_is_sent_no_state() -> None:
    async def run() -> None:
        desk = Desk("a")
        desk.segment.waiting = {B}
        desk.catch_up.by_state(desk.segment, desk.stream)
        assert (desk.stream.stage, desk.pokes, desk.stream.task) == (StreamState.LEAVING, 1, None)
        assert (desk.catch_up.states, desk.link.sent) == (0, [])

    asyncio.run(run())


@pytest.mark.parametrize(("most", "over"), [(2, True), (3, False)])
def test_one_that_cannot_keep_up_is_asked_again(monkeypatch: pytest.MonkeyPatch, most: int, over: bool) -> None:
    monkeypatch.setattr(catch_up, "_CHUNK_OPERATIONS", 1)
    monkeypatch.setattr(catch_up, "MAX_BACKLOG", most)

    async def run() -> None:
        desk = Desk("a", "b", "c", "d")
        desk.catch_up.by_operations(desk.segment, desk.stream, 0, [])
        sent = await desk.ended()
        if over:
            assert sent[1:] == [Ask(7, [(0, 1)])]
            assert (desk.stream.stage, desk.stream.asked_in, desk.streaming) == (StreamState.ASKED, 7, [])
        else:
            assert len(sent) == 5
            assert (desk.stream.stage, desk.stream.asked_in) == (StreamState.STREAMING, 1)

    asyncio.run(run())


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), RuntimeError("a defect")])
def test_a_connection_that_breaks_ends_the_recovery_and_a_defect_is_reported(error: Exception) -> None:
    async def run() -> None:
        desk = Desk("a")
        desk.link.breaks = error
        desk.catch_up.by_operations(desk.segment, desk.stream, 0, [])
        assert len(await desk.ended()) == 1
        assert desk.errors == ([] if isinstance(error, OSError) else [error])
        assert (desk.stream.stage, desk.streaming) == (StreamState.RECOVERING, [])

    asyncio.run(run())


def test_a_link_carries_few_states_at_a_time_and_each_is_of_the_moment_it_is_sent() -> None:
    async def run() -> None:
        desks = [Desk("a") for _ in range(4)]
        for desk in desks:
            desk.link = desks[0].link
            desk.stream = BackupStream(cast(Link, desk.link), 1)
            desk.catch_up.by_state(desk.segment, desk.stream)
        await asyncio.sleep(0)
        assert [desk.stream.stage.name for desk in desks] == ["RECOVERING", "RECOVERING", "QUEUED", "QUEUED"]
        assert [desk.catch_up.states for desk in desks] == [1, 1, 0, 0]
        given_up, last = desks[2:]
        assert given_up.stream.task is not None
        given_up.stream.task.cancel()
        put(last.pair.a, "b", "while it waits")
        frames_sent = await last.ended()
        assert [len(frame.entries) for frame in frames_sent if isinstance(frame, StateChunk)] == [1, 1, 2]
        assert last.stream.stage is StreamState.STREAMING
        assert given_up.errors == []

    asyncio.run(run())
