"""The primary's side of replication: one stream per segment and backup, the same for acks 0, 1 and all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from deelog_connector.kafka_port import Clock
from deelog_interceptors.grid.data.pending import Pending, ReplyTo
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.catch_up import CatchUp
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
from deelog_interceptors.grid.replication.session import BackupStream, StreamState
from deelog_interceptors.grid.resp import replies
from deelog_interceptors.grid.settings import ACK_SECONDS, MAX_LINK_BYTES, MAX_UNREPLICATED
from deelog_interceptors.grid.topology.requests import GROW, SHRINK, Request
from deelog_schemas.operation import Operation


class Replicator:
    """`on_level(segment)` is called when a segment's acknowledged position moves; `poke` requests a heartbeat soon;
    `on_error` gets unexpected exceptions: the node should end. `leased()` returns whether this node may acknowledge
    now; call `renewed()` when it may again."""

    def __init__(
        self,
        store: Store,
        links: Mapping[str, Link],
        acks_all: bool,
        on_level: Callable[[Segment], None],
        poke: Callable[[], None],
        on_error: Callable[[BaseException], None],
        leased: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self.topology_id = 0
        self.unreplicated = 0
        self.stale_answers = self.timed_out = self.operations = self.acknowledged = 0
        self.catch_up = CatchUp(store, self._streaming, poke, on_error)
        self._store, self._core, self._clock = store, store.core, clock
        self._links, self._acks_all = links, acks_all
        self._on_level, self._poke, self._leased = on_level, poke, leased
        self._dirty: dict[Segment, None] = {}
        self._scheduled = self._congested = False
        self._room: dict[asyncio.Future[None], None] = {}

    # -- writes -----------------------------------------------------------------------------------------------------

    def operation(self, segment: Segment, operation: Operation) -> None:
        """A captured operation: it is sent with the next batch, in the next turn of the loop."""
        self.operations += 1
        if segment.waiting:
            self.unreplicated += 1
            if not self._acks_all:
                self._core.acked_here(segment.number, operation.sequence)
        elif not segment.pendings:  # else there is no lease, and what waits for it comes first
            self._core.acked(segment.number, operation.sequence)
            segment.acked = operation.sequence
        if segment.sessions:
            segment.outgoing.append(operation)
            self._dirty[segment] = None
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._flush)

    def reply(self, to: ReplyTo, reply: bytes, upto: Iterable[tuple[Segment, int]]) -> bytes | Pending:
        """The reply itself where all of `upto` is acknowledged as `cache.acks` says, else one that waits for it."""
        pending: Pending | None = None
        if self._acks_all:
            for segment, sequence in upto:
                if segment.acked < sequence:
                    if pending is None:
                        pending = Pending(to, reply, self._clock.monotonic() + ACK_SECONDS)
                    pending.left += 1
                    segment.pendings.append((sequence, pending))
        if pending is None:
            self.acknowledged += 1
        return pending or reply

    def has_room(self) -> bool:
        """Whether in-sync backups keep up. Where not, writes wait for `room()`."""
        if self._congested:
            self._congested = any(link.queued >= MAX_LINK_BYTES for link in self._links.values())
        return self.unreplicated < MAX_UNREPLICATED and not self._congested

    async def room(self) -> None:
        """Returns when a backup acknowledged operations, or after 50 ms."""
        future = asyncio.get_running_loop().create_future()
        self._room[future] = None
        try:
            await asyncio.wait([future], timeout=0.05)
        finally:
            self._room.pop(future, None)

    def _flush(self) -> None:
        self._scheduled = False
        dirty, self._dirty = self._dirty, {}
        streams: dict[Link, list[msgspec.Raw]] = {}
        for segment in dirty:
            operations, segment.outgoing = segment.outgoing, []
            streaming = [s.link for s in segment.sessions.values() if s.stage is StreamState.STREAMING]
            for session in segment.sessions.values():
                if session.stage is StreamState.RECOVERING:
                    session.backlog += operations
            while streaming and operations:
                # One encoded batch, shared by all backups that get it.
                count = frames.fitting(operations, len(operations))
                raw = frames.encode_batch(segment.number, segment.epoch, operations[:count])
                operations = operations[count:]
                for link in streaming:
                    streams.setdefault(link, []).append(raw)
        for link, batches in streams.items():
            self._send(link, batches)
            self._congested = self._congested or link.queued >= MAX_LINK_BYTES

    def _send(self, link: Link, batches: list[msgspec.Raw]) -> None:
        """In frames that the other side takes."""
        first, size = 0, 0
        for number, batch in enumerate(batches):
            if size and size + len(batch) > frames.MAX_FRAME_BYTES // 4:
                link.send(Replicate(self.topology_id, batches[first:number]))
                first, size = number, 0
            size += len(batch)
        link.send(Replicate(self.topology_id, batches[first:]))

    # -- acknowledgement ----------------------------------------------------------------------------------------------

    def answers(self, link: Link, frame: Answers) -> None:
        """A backup acknowledges what it applied."""
        touched: dict[ReplyTo, None] = {}
        for number, epoch, sequence in frame.items:
            stream = self._session(link, number, epoch, frame.topology_id)
            if stream is None:
                continue
            segment, session = stream
            if sequence > session.answered:
                session.answered = sequence
                self.level(segment, touched)
                if link.member not in segment.in_sync and session.stage is StreamState.STREAMING:
                    self._poke()
        for to in touched:
            to.flush()

    def level(self, segment: Segment, touched: dict[ReplyTo, None]) -> None:
        """Acknowledges what all members in `waiting` hold."""
        reached = segment.last
        for member in segment.waiting:
            session = segment.sessions.get(member)
            if session is None:
                return
            reached = min(reached, session.answered)
        # The lease: the segment may have been given to another member meanwhile.
        if reached <= segment.acked or not self._leased():
            return
        self.unreplicated -= self._owing(segment)
        segment.acked = reached
        self.unreplicated += self._owing(segment)
        self._core.acked(segment.number, reached)
        pendings = segment.pendings
        while pendings and pendings[0][0] <= reached:
            _, pending = pendings.popleft()
            pending.left -= 1
            if pending.left == 0:
                self.acknowledged += 1
                touched[pending.to] = None
        self._wake_writers()
        self._on_level(segment)

    def renewed(self) -> None:
        """Acknowledges what backups acknowledged while there was no lease."""
        touched: dict[ReplyTo, None] = {}
        for segment in self._store.segments:
            if segment.role is Role.PRIMARY:
                self.level(segment, touched)
        for to in touched:
            to.flush()

    def fail_pendings(self, segment: Segment, error: bytes) -> None:
        """The node is no longer primary: waiting writers get an error and try again."""
        touched: dict[ReplyTo, None] = {}
        while segment.pendings:
            self._fail(segment.pendings.popleft()[1], error, touched)
        for to in touched:
            to.flush()

    def expire_pendings(self, now: float) -> None:
        """Answers with an error the writes that waited too long. Such a write may still succeed."""
        touched: dict[ReplyTo, None] = {}
        for segment in self._store.segments:
            pendings = segment.pendings
            while pendings and pendings[0][1].deadline <= now:
                self.timed_out += 1
                self._fail(pendings.popleft()[1], replies.error("TRYAGAIN not acknowledged in time"), touched)
        for to in touched:
            to.flush()

    @staticmethod
    def _fail(pending: Pending, error: bytes, touched: dict[ReplyTo, None]) -> None:
        if pending.left > 0:
            pending.left, pending.reply = 0, error
            touched[pending.to] = None

    def _wake_writers(self) -> None:
        if self._room:
            waiting, self._room = self._room, {}
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    # -- views --------------------------------------------------------------------------------------------------------

    def begin(self, segment: Segment) -> None:
        """A new epoch as primary: earlier answers do not count. Until `follow` nothing is acknowledged, not even
        evictions of the promotion."""
        self.end(segment)
        segment.acked, segment.begun = 0, segment.last
        segment.waiting = set(segment.in_sync)  # includes this node, which never answers: nothing is acknowledged

    def end(self, segment: Segment) -> None:
        """The node is no longer primary, or only in another epoch."""
        for member in list(segment.sessions):
            self._drop(segment, member)
        self.unreplicated -= self._owing(segment)
        segment.outgoing = []
        segment.waiting, segment.admitting, segment.lagging = set(), set(), {}
        self._dirty.pop(segment, None)

    def follow(self, segments: Iterable[Segment], topology_id: int) -> None:
        """Applies the view to primary segments: waits for the members that it names, asks those without a stream."""
        if topology_id != self.topology_id:
            skipped = topology_id != self.topology_id + 1
            for segment in self._store.segments:
                segment.admitting.clear()  # a request counts only in the view that it was made in
                # In a view between, who is not in sync may have been no holder, and have dropped all.
                for member in segment.sessions.keys() - set(segment.in_sync) if skipped else ():
                    self._drop(segment, member)
        self.topology_id = self.catch_up.topology_id = topology_id
        asks: dict[Link, list[tuple[int, int]]] = {}
        touched: dict[ReplyTo, None] = {}
        for segment in segments:
            for member, session in list(segment.sessions.items()):
                out = session.shrinking and session.stage is not StreamState.LEAVING and member not in segment.in_sync
                if out or member not in segment.members:
                    self._drop(segment, member)
            me = segment.primary
            streaming = {m for m, session in segment.sessions.items() if session.stage is StreamState.STREAMING}
            # CHECK in-sync-order: a removed member is waited for until this view without it is read.
            self._wait_for(segment, (set(segment.in_sync) - {me or ""}) | streaming | segment.admitting)
            for member, session in segment.sessions.items():
                if session.stage is StreamState.LEAVING and member not in segment.waiting:
                    self.catch_up.by_state(segment, session)
            for member in segment.members:
                link = self._links.get(member)
                if link is not None and link.ready and member not in segment.sessions:
                    segment.sessions[member] = BackupStream(link, topology_id)
                    asks.setdefault(link, []).append((segment.number, segment.epoch))
            self.level(segment, touched)
        for link, items in asks.items():
            link.send(Ask(topology_id, items))
        for to in touched:
            to.flush()

    def _wait_for(self, segment: Segment, waiting: set[str]) -> None:
        self.unreplicated -= self._owing(segment)
        segment.waiting = waiting
        self.unreplicated += self._owing(segment)
        segment.lagging = {m: since for m, since in segment.lagging.items() if m in waiting}

    @staticmethod
    def _owing(segment: Segment) -> int:
        """Operations of this epoch that in-sync backups have not acknowledged."""
        return segment.last - max(segment.acked, segment.begun) if segment.waiting else 0

    def link_down(self, link: Link) -> None:
        """Drops the link's streams. Its member stays in `waiting` until a view removes it."""
        for segment in self._store.segments:
            session = segment.sessions.get(link.member)
            if session is not None and session.link is link:
                self._drop(segment, link.member)

    def _drop(self, segment: Segment, member: str) -> None:
        session = segment.sessions.pop(member)
        if session.task is not None:
            session.task.cancel()

    def stages(self) -> Counter[str]:
        """The number of streams to backups, by stage."""
        return Counter(session.stage.name.lower() for s in self._store.segments for session in s.sessions.values())

    def requests(self, now: float, timeout: float) -> Iterator[Request]:
        """Requests to add members to in-sync sets and to remove them."""
        for segment in self._store.segments:
            if segment.role is not Role.PRIMARY:
                continue
            for member, session in segment.sessions.items():
                level = session.stage is StreamState.STREAMING and session.answered >= session.level_from
                if level and member not in segment.in_sync:
                    # CHECK in-sync-order: a streaming member is in `waiting`, so no position is acked without it.
                    segment.admitting.add(member)
                    yield Request(GROW, segment.number, segment.epoch, member)
            for member in sorted(segment.waiting):
                if self._is_lagging(segment, member, now, timeout):
                    if member in segment.sessions:
                        segment.sessions[member].shrinking = True
                    yield Request(SHRINK, segment.number, segment.epoch, member)

    def _is_lagging(self, segment: Segment, member: str, now: float, timeout: float) -> bool:
        session = segment.sessions.get(member)
        if session is not None and session.stage is StreamState.LEAVING:
            return True
        if session is not None and session.answered >= segment.last:
            segment.lagging.pop(member, None)
            return False
        answered = -1 if session is None else session.answered
        since, before = segment.lagging.get(member, (now, answered))
        if answered > before:
            since = now
        segment.lagging[member] = (since, answered)
        return now - since > timeout

    # -- frames of backups --------------------------------------------------------------------------------------------

    def frame(self, link: Link, frame: AnyFrame) -> None:
        """A frame of a backup."""
        match frame:
            case Answers():
                self.answers(link, frame)
            case Report():
                stream = self._session(link, frame.segment, frame.epoch, frame.topology_id)
                if stream is not None:
                    self.catch_up.reported(*stream, tuple(frame.history))
            case Wanted():
                stream = self._session(link, frame.segment, frame.epoch)
                if stream is not None and stream[1].stage is StreamState.DIVERGING:
                    self._wanted(*stream, frame)
            case Refused():
                self._refused(link, frame)
            case _:
                raise FrameError(f"{type(frame).__name__} is not for a primary")

    def _session(
        self, link: Link, number: int, epoch: int, topology_id: int | None = None
    ) -> tuple[Segment, BackupStream] | None:
        """The stream that a frame belongs to; None for a stale frame."""
        segment = self._store.segments[number]
        session = segment.sessions.get(link.member)
        # CHECK answers-carry-epochs: an answer of another epoch or connection acknowledges nothing. One of an older
        # view belongs to an earlier session; that of this session follows.
        if (
            segment.role is not Role.PRIMARY
            or epoch != segment.epoch
            or session is None
            or session.link is not link
            or (topology_id is not None and topology_id < session.asked_in)
        ):
            self.stale_answers += 1
            return None
        return segment, session

    def _wanted(self, segment: Segment, session: BackupStream, frame: Wanted) -> None:
        if frame.keys is None:
            self.catch_up.by_state(segment, session)
        else:
            self.catch_up.by_operations(segment, session, frame.point, frame.keys)

    def _streaming(self, segment: Segment, member: str) -> None:
        # CHECK in-sync-order: the primary waits for the member from here on, and only then requests its admission.
        self._wait_for(segment, segment.waiting | {member})
        self._poke()

    def _refused(self, link: Link, frame: Refused) -> None:
        """Drops the refused streams; the next heartbeat asks again (`follow`)."""
        self.stale_answers += len(frame.items)
        for number, epoch in frame.items:
            segment = self._store.segments[number]
            session = segment.sessions.get(link.member)
            if session is not None and session.link is link and segment.epoch == epoch:
                self._drop(segment, link.member)
