"""Incremental snapshots of one cache: which were requested, which segments are done, and which to read next.

Their state is a fold of the signal topic, the same on every node: requests, requests to stop, and notes of owners
("these segments of that snapshot are done"). A starting node reads it from the beginning. So the owner of a segment
knows whether it must still be read. If its last owner died in the middle, it begins the segment again. The note that
leaves no segment completes a snapshot, and its writer sends the notification.

A note is written after its rows, not with them, and once two looks at the log have found them there: a note in the
topic is true, and for a lost one the segment is read again. Weighed in docs/decisions.md, "Progress of incremental
snapshots".

Snapshots that run at the same time share reads: a segment is read once for all that were requested before it was
begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from deelog_connector.core import ConnectorCore
from deelog_connector.core.effects import SnapshotRead, SnapshotRefused
from deelog_connector.core.segment import Snapshot
from deelog_connector.signals.notifications import Notifications, ranges
from deelog_schemas.signals import Progress

log = logging.getLogger(__name__)

INCREMENTAL: Final = "Incremental Snapshot"
MAX_RUNNING: Final = 16
"""Running snapshots of one cache; more are refused."""
MAX_PASSES: Final = 8
"""Segments read at the same time: each holds a list of its keys."""
NOTE_SECONDS: Final = 0.5
"""Interval of notes and of IN_PROGRESS notifications."""
NOTED_AT_ONCE: Final = 4_096
"""Segments of one note: their numbers fit into what a reader takes."""
AGAIN_SECONDS: Final = 10.0
"""After this, a note that was not read back is written again."""


class Read(NamedTuple):
    """How many rows of a segment were sent, by this node as its owner in that epoch."""

    rows: int
    epoch: int


@dataclass(slots=True)
class Running:
    """One snapshot."""

    id: str
    left: set[int]
    total: int
    rows: int = 0
    started: bool = False
    lowest: int = -1
    """The node that begins this segment sends STARTED, so that only one does."""
    read: dict[int, Read] = field(default_factory=dict)
    """By segment, of segments that this node has read and whose note was not read back."""
    noted: dict[int, float] = field(default_factory=dict)
    """By segment, when its note was written."""
    announced: int = 0


class Pass(NamedTuple):
    """A segment that is being read, for these snapshots."""

    ids: tuple[str, ...]
    snapshot: Snapshot


class Snapshots:
    """For the loop's thread. `note` writes a note to the signal topic."""

    def __init__(
        self,
        core: ConnectorCore,
        cache: str,
        member: str,
        note: Callable[[Progress], None],
        notifications: Notifications,
    ) -> None:
        self._core, self._cache, self._member = core, cache, member
        self._note, self._notifications = note, notifications
        self._running: dict[str, Running] = {}
        self._passes: dict[int, Pass] = {}
        """By segment being read."""
        self._noted_at = 0.0
        self.replaying = False
        """The records being read are older than this process: no notifications are sent."""

    @property
    def running(self) -> list[str]:
        """Ids of the snapshots that are not complete."""
        return [running.id for running in self._running.values()]

    # -- requests ----------------------------------------------------------------------------------------------------

    def ask(self, identity: str, segments: Iterable[int] | None) -> str | None:
        """Adds a snapshot of these segments (None: all). Returns None, or why it is refused."""
        wanted = set(range(self._core.segments) if segments is None else segments)
        if wanted and max(wanted) >= self._core.segments:
            return f"segment {max(wanted)} does not exist (segment.count={self._core.segments})"
        if identity in self._running:
            return "a snapshot with this id is already running"
        if len(self._running) >= MAX_RUNNING:
            return f"{MAX_RUNNING} snapshots are already running"
        self._running[identity] = Running(identity, wanted, len(wanted), lowest=min(wanted))
        return None

    def stop(self) -> None:
        """Ends all snapshots."""
        for running in list(self._running.values()):
            self._end(running, "ABORTED", self._speaks_for(running), reason="stop-snapshot")

    def paused(self, paused: bool) -> None:
        """Writing was paused or resumed, and the snapshots with it: sends PAUSED or RESUMED."""
        for running in self._running.values():
            if self._speaks_for(running):
                self._tell(running, "PAUSED" if paused else "RESUMED")

    def progressed(self, note: Progress) -> None:
        """A note was read from the topic."""
        running = self._running.get(note.id)
        if running is None:
            return
        mine = note.member == self._member
        if note.refused:
            self._end(running, "ABORTED", mine, reason="refused", segments=ranges(note.segments))
            return
        running.left.difference_update(note.segments)
        running.rows += note.rows
        for segment in note.segments:
            running.read.pop(segment, None)
            running.noted.pop(segment, None)
        if not running.left:
            self._complete(running, mine)

    # -- reading ------------------------------------------------------------------------------------------------------

    def heard(self, effect: SnapshotRead | SnapshotRefused) -> None:
        """The core has read a segment, or a row was refused."""
        finished = self._passes.pop(effect.segment, None)
        for identity in finished.ids if finished is not None else ():
            running = self._running.get(identity)
            if running is None or effect.segment not in running.left:
                continue
            if isinstance(effect, SnapshotRead):
                running.read[effect.segment] = Read(effect.rows, effect.epoch)
                continue
            log.error("segment %d: snapshot %s is aborted: a row was refused", effect.segment, running.id)
            self._note(Progress(running.id, self._cache, (effect.segment,), 0, self._member, True))

    def work(self, now: float) -> None:
        """Begins segments of this node, and writes notes of those that are read. Call it after every poll."""
        if not self._running and not self._passes:
            return
        for segment, one in list(self._passes.items()):
            if not one.snapshot.over and self._core.snapshot_of(segment) is not one.snapshot:
                del self._passes[segment]  # a takeover dropped it
        self._begin()
        if now - self._noted_at >= NOTE_SECONDS:
            self._noted_at = now
            for running in list(self._running.values()):
                self._note_read(running, now)

    def _begin(self) -> None:
        for running in self._running.values():
            for segment in sorted(running.left - running.read.keys()):
                if len(self._passes) >= MAX_PASSES:
                    return
                if segment in self._passes or not self._core.may_snapshot(segment):
                    continue
                asked = [r for r in self._running.values() if segment in r.left and segment not in r.read]
                self._passes[segment] = Pass(tuple(r.id for r in asked), self._core.snapshot(segment))
                for one in asked:
                    if segment == one.lowest and not one.started:
                        one.started = True
                        self._tell(one, "STARTED", segments=ranges(one.left))

    def _note_read(self, running: Running, now: float) -> None:
        new = {}
        for segment, read in list(running.read.items()):
            epoch, whole = self._core.vouching(segment)
            if epoch != read.epoch:  # nobody looks for its rows any more
                del running.read[segment]
                running.noted.pop(segment, None)
            elif whole and now - running.noted.get(segment, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                new[segment] = read.rows
        running.noted.update(dict.fromkeys(new, now))
        order = sorted(new)
        for at in range(0, len(order), NOTED_AT_ONCE):
            some = tuple(order[at : at + NOTED_AT_ONCE])
            rows = sum(new[segment] for segment in some)
            self._note(Progress(running.id, self._cache, some, rows, self._member, False))
        if new:
            self._tell_progress(running, len(new))

    # -- notifications ------------------------------------------------------------------------------------------------

    def _speaks_for(self, running: Running) -> bool:
        return any(segment.number == min(running.left) for segment in self._core.primaries())

    def _tell_progress(self, running: Running, segments: int) -> None:
        running.announced += segments
        self._tell(
            running,
            "IN_PROGRESS",
            current_collection_in_progress=self._cache,
            segments=f"{running.announced} of this node, {running.total} in all",
        )

    def _complete(self, running: Running, mine: bool) -> None:
        log.info("snapshot %s of %s is complete: %d rows", running.id, self._cache, running.rows)
        if mine and not self.replaying:
            status = "SUCCEEDED" if running.rows else "EMPTY"
            rows = running.rows
            self._tell(
                running, "TABLE_SCAN_COMPLETED", scanned_collection=self._cache, total_rows_scanned=rows, status=status
            )
        self._end(running, "COMPLETED", mine)

    def _end(self, running: Running, kind: str, tell: bool, **more: object) -> None:
        del self._running[running.id]
        for segment, one in list(self._passes.items()):
            if not any(identity in self._running for identity in one.ids):
                self._core.stop_snapshot(segment)
                del self._passes[segment]
        if tell:
            self._tell(running, kind, **more)

    def _tell(self, running: Running, kind: str, **more: object) -> None:
        if not self.replaying:
            self._notifications.notify(INCREMENTAL, kind, running.id, member=self._member, **more)
