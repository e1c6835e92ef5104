"""Brings a backup up to date: by the operations that it lacks, or by the segment's whole state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from deelog_connector.cache_side import History, common_point, last_of
from deelog_interceptors.grid.data.policy import peek
from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import AnyFrame, Ask, Diverged, Patch, Replicate, StateChunk
from deelog_interceptors.grid.replication.session import BackupStream, StreamState
from deelog_interceptors.grid.settings import MAX_BACKLOG
from deelog_schemas.operation import Operation

log = logging.getLogger(__name__)

_CHUNK_OPERATIONS = 2000
_MAX_PATCH_OPERATIONS = 20_000


class CatchUp:
    """`on_streaming(segment, member)` is called once all captured operations are sent: later ones go by the normal
    stream. `poke` requests a heartbeat soon; `on_error` gets unexpected exceptions."""

    def __init__(
        self,
        store: Store,
        on_streaming: Callable[[Segment, str], None],
        poke: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.topology_id = 0
        """The last applied view."""
        self.operations = self.states = 0
        """Catch-ups begun, by kind."""
        self._store, self._core = store, store.core
        self._on_streaming, self._poke, self._on_error = on_streaming, poke, on_error

    def reported(self, segment: Segment, session: BackupStream, history: History) -> None:
        """A backup reported what it holds."""
        if session.task is not None:
            session.task.cancel()
        session.answered, session.backlog = 0, []
        point = common_point(self._core.history(segment.number), history)
        if last_of(history) > point:
            session.stage = StreamState.DIVERGING
            session.link.send(Diverged(segment.number, segment.epoch, point))
        else:
            self.by_operations(segment, session, point, [])

    def by_operations(self, segment: Segment, session: BackupStream, point: int, keys: list[bytes]) -> None:
        """Sends the operations after `point`, and before them the values of `keys`, which only the backup changed."""
        # CHECK catch-up-by-ops: the state only where the op log lacks some of the missing operations.
        operations = self._core.operations_after(segment.number, point)
        if operations is None or (keys and _is_large(segment, keys, operations)):
            self.by_state(segment, session)
            return
        values = [(key, *(peek(segment.data, key) or (None, None))) for key in keys]
        # Present values and all operations up to now go in one frame: between two the backup would be inconsistent.
        first = len(operations) if keys else frames.fitting(operations, _CHUNK_OPERATIONS)
        history = self._core.history(segment.number)
        patch = Patch(self.topology_id, segment.number, segment.epoch, point, history, values, operations[:first])
        self.operations += 1
        session.stage, session.backlog = StreamState.RECOVERING, operations[first:]
        self._start(session, self._run_recovery(segment, session, iter([patch])))

    def by_state(self, segment: Segment, session: BackupStream) -> None:
        """Sends all entries, once the backup is out of the in-sync set and its link has few other states to carry."""
        if session.link.member in segment.waiting:
            # CHECK in-sync-order: it leaves the in-sync set before it takes a state.
            session.stage = StreamState.LEAVING
            self._poke()
            return
        session.stage = StreamState.QUEUED
        self._start(session, self._send_state(segment, session))

    async def _send_state(self, segment: Segment, session: BackupStream) -> None:
        # All segments at once would be held in memory, and every write would queue behind them on the link.
        async with session.link.states:
            self.states += 1
            session.stage, session.backlog = StreamState.RECOVERING, []
            await self._run_recovery(segment, session, self._state(segment))

    def _state(self, segment: Segment) -> Iterator[AnyFrame]:
        """All entries, as they are when the first frame is taken."""
        history, cut = self._core.history(segment.number), segment.last
        entries = list(self._store.entries(segment))
        at, first = 0, True
        while first or at < len(entries):
            end, size = at, 0
            while end < len(entries) and size < frames.CHUNK_BYTES:
                size += len(entries[end].key) + len(entries[end].value) + 32
                end += 1
            some, last = entries[at:end], end == len(entries)
            yield StateChunk(self.topology_id, segment.number, segment.epoch, cut, history, first, last, some)
            at, first = end, False

    def _start(self, session: BackupStream, recovery: Coroutine[Any, Any, None]) -> None:
        session.task = asyncio.create_task(recovery)
        session.task.add_done_callback(self._recovery_ended)

    def _recovery_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_error(error)

    async def _run_recovery(self, segment: Segment, session: BackupStream, first: Iterator[AnyFrame]) -> None:
        link = session.link
        sent = 0
        try:
            for frame in first:
                link.send(frame)
                await link.drain()
            while session.backlog:
                if len(session.backlog) > MAX_BACKLOG:
                    log.warning("segment %d: %s cannot keep up, its catch-up starts over", segment.number, link.member)
                    session.stage, session.asked_in = StreamState.ASKED, self.topology_id
                    link.send(Ask(self.topology_id, [(segment.number, segment.epoch)]))
                    return
                count = frames.fitting(session.backlog, _CHUNK_OPERATIONS)
                chunk, session.backlog = session.backlog[:count], session.backlog[count:]
                sent = chunk[-1].sequence
                link.send(Replicate(self.topology_id, [frames.encode_batch(segment.number, segment.epoch, chunk)]))
                await link.drain()
        except OSError:
            return  # `link_down` has dropped this session
        if sent:
            history = self._core.history(segment.number)
            link.send(Patch(self.topology_id, segment.number, segment.epoch, sent, history, [], []))
        # No await from here on: the recovery ends where the normal stream begins.
        session.task = None
        session.stage = StreamState.STREAMING
        session.level_from = segment.last
        self._on_streaming(segment, link.member)


def _is_large(segment: Segment, keys: list[bytes], operations: list[Operation]) -> bool:
    """Whether one frame with the values of these keys and all operations is more than a member should have to take."""
    values = (peek(segment.data, key) for key in keys)
    size = sum(len(value[0]) for value in values if value is not None) + sum(operation.size for operation in operations)
    return len(operations) > _MAX_PATCH_OPERATIONS or size > frames.MAX_FRAME_BYTES // 4
