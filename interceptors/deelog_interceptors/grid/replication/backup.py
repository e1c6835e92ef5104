"""The backup's side of replication: reports what it holds, applies the primary's operations, and acknowledges them.

Only the connection that was reported to may replicate: frames of an older primary, epoch or connection are refused
as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from deelog_connector.cache_side import ReplicaSink, common_point, cut, last_of
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.replication.frames import (
    Answers,
    Ask,
    Diverged,
    FrameError,
    Patch,
    Refused,
    Replicate,
    Report,
    StateChunk,
    Wanted,
)
from deelog_interceptors.grid.replication.peers import Incoming
from deelog_interceptors.grid.settings import MAX_LINK_BYTES
from deelog_schemas.operation import Operation, Reason

log = logging.getLogger(__name__)

_MAX_ASKED = 100
"""`Ask` frames of one connection that wait for a view. Those before are refused: the primary asks again."""


class Backup:
    """Call `view_applied` after each view. `topology_id` is that of the last view applied."""

    def __init__(self, store: Store, core: ReplicaSink) -> None:
        self._store, self._core = store, core
        self.topology_id = 0
        self.refused = self.applied = self.states = 0
        self._connections: dict[Incoming, None] = {}

    def up(self, connection: Incoming) -> None:
        """A member connected."""
        self._connections[connection] = None

    def down(self, connection: Incoming) -> None:
        """The connection ended; drops incomplete states that it sent."""
        self._connections.pop(connection, None)
        for segment in self._store.segments:
            if segment.source is connection:
                segment.source = segment.staged = None

    def view_applied(self, topology_id: int) -> None:
        """Answers the `Ask` frames that arrived before this view."""
        self.topology_id = topology_id
        for connection in self._connections:
            asked, connection.asked = connection.asked, []
            for frame in asked:
                self.ask(connection, frame)

    def frame(self, connection: Incoming, frame: frames.AnyFrame) -> None:
        """A frame of a primary."""
        match frame:
            case Replicate():
                self._replicate(connection, frame)
            case Ask():
                self.ask(connection, frame)
            case Diverged():
                self._diverged(connection, frame)
            case Patch():
                self._patch(connection, frame)
            case StateChunk():
                self._state(connection, frame)
            case _:
                raise FrameError(f"{type(frame).__name__} is not for a backup")

    def ask(self, connection: Incoming, frame: Ask) -> None:
        """Reports each segment whose primary is the asker in this node's view too; refuses the others.

        Waits for a view at least as new as the asker's: a view in between may make this node drop what it reports.
        """
        if frame.topology_id > self.topology_id:
            waiting = [*connection.asked, frame]
            dropped, connection.asked = waiting[:-_MAX_ASKED], waiting[-_MAX_ASKED:]
            for each in dropped:
                self._refuse(connection, each.items)
            return
        refused = []
        for number, epoch in frame.items:
            segment = self._segment(number)
            if not self._is_primary(connection, segment, epoch):
                refused.append((number, epoch))
            else:
                segment.source, segment.staged = connection, None
                connection.send(Report(self.topology_id, number, epoch, self._core.history(number)))
        self._refuse(connection, refused)

    def _segment(self, number: int) -> Segment:
        if not 0 <= number < len(self._store.segments):
            raise FrameError(f"segment {number} of {len(self._store.segments)}")
        return self._store.segments[number]

    @staticmethod
    def _is_primary(connection: Incoming, segment: Segment, epoch: int) -> bool:
        return segment.role is Role.BACKUP and segment.epoch == epoch and segment.primary == connection.member

    def _takes(self, connection: Incoming, number: int, epoch: int) -> Segment | None:
        # CHECK answers-carry-epochs: no frame of an older view, or of a stream that another one has replaced.
        segment = self._segment(number)
        if self._is_primary(connection, segment, epoch) and segment.source is connection:
            return segment
        return None

    def _refuse(self, connection: Incoming, items: list[tuple[int, int]]) -> None:
        if items:
            self.refused += len(items)
            connection.send(Refused(self.topology_id, items))

    def _answer(self, connection: Incoming, segment: Segment) -> None:
        item = (segment.number, segment.epoch, self._core.last_sequence(segment.number))
        connection.send(Answers(self.topology_id, [item]))

    def _replicate(self, connection: Incoming, frame: Replicate) -> None:
        answers, refused = [], []
        for raw in frame.batches:
            number, epoch, operations = frames.decode_batch(raw)
            segment = self._takes(connection, number, epoch)
            if segment is None or segment.staged is not None:
                refused.append((number, epoch))
                continue
            answers.append((number, epoch, self._apply(segment, operations)))
        if answers:
            connection.send(Answers(self.topology_id, answers))
        self._refuse(connection, refused)

    def _apply(self, segment: Segment, operations: Iterable[Operation]) -> int:
        """Applies in sequence order; returns the highest sequence."""
        history = self._core.history(segment.number)
        epoch, last = history[-1] if history else (0, 0)
        for operation in operations:
            if operation.sequence <= last:
                continue  # part of the catch-up already
            if operation.sequence != last + 1 or not epoch <= operation.epoch <= segment.epoch:
                at = f"{operation.epoch}.{operation.sequence}"
                raise FrameError(f"segment {segment.number}: operation {at} after {epoch}.{last}")
            self._store.apply(segment, operation)
            epoch, last = operation.position
            self.applied += 1
        return last

    def _diverged(self, connection: Incoming, frame: Diverged) -> None:
        segment = self._takes(connection, frame.segment, frame.epoch)
        if segment is None:
            return self._refuse(connection, [(frame.segment, frame.epoch)])
        keys = self._keys_beyond(frame.segment, frame.point)
        return connection.send(Wanted(frame.segment, frame.epoch, frame.point, keys))

    def _keys_beyond(self, number: int, point: int) -> list[bytes] | None:
        """The keys changed after a sequence; None where only the whole state can undo that."""
        beyond = self._core.operations_after(number, point)
        if beyond is None or any(operation.reason == Reason.CLEAR for operation in beyond):
            return None
        keys = {operation.key for operation in beyond}
        # They are named in one frame.
        return sorted(keys) if sum(map(len, keys)) <= MAX_LINK_BYTES else None

    def _patch(self, connection: Incoming, frame: Patch) -> None:
        """In one step: drops what the primary does not have, sets those keys, and applies its operations."""
        segment = self._takes(connection, frame.segment, frame.epoch)
        if segment is None:
            return self._refuse(connection, [(frame.segment, frame.epoch)])
        number = frame.segment
        held = cut(self._core.history(number), frame.point)
        if common_point(frame.history, held) != last_of(held):
            return self._refuse(connection, [(number, frame.epoch)])  # it does not know what this backup holds
        if self._core.last_sequence(number) > frame.point:
            dropped = self._keys_beyond(number, frame.point)
            if dropped is None or not {key for key, _, _ in frame.values}.issuperset(dropped):
                # It answers an older report. Nothing was dropped yet: the primary asks again.
                return self._refuse(connection, [(number, frame.epoch)])
            self._core.truncate(number, frame.point)
        self._core.adopt(number, frame.history)
        if self._apply(segment, frame.operations) == last_of(frame.history):
            # Epochs without operations too: the history must contain every written position.
            self._core.adopt(number, frame.history)
        data = self._store.plain(segment)
        for key, value, expires_at in frame.values:
            if value is None:
                data.pop(key, None)
            else:
                data[key] = (value, expires_at)
        return self._answer(connection, segment)

    def _state(self, connection: Incoming, frame: StateChunk) -> None:
        segment = self._takes(connection, frame.segment, frame.epoch)
        if segment is None:
            return self._refuse(connection, [(frame.segment, frame.epoch)])
        if frame.first:
            segment.staged = {}
        if segment.staged is None:
            raise FrameError(f"segment {frame.segment}: a state chunk before the first one")
        for key, value, expires_at in frame.entries:
            segment.staged[key] = (value, expires_at)
        if not frame.last:
            return None
        # CHECK transfer-is-not-ops: the whole state is swapped in, and the op log begins after `cut`.
        segment.data, segment.staged = segment.staged, None
        self._core.install(frame.segment, frame.history, frame.cut)
        self.states += 1
        return self._answer(connection, segment)
