"""What a primary keeps of each stream to a backup, and what it needs of the loop that runs a catch-up.

A session goes ASKED → (DIVERGING) → RECOVERING → STREAMING. While it is recovering, new operations collect in its
backlog; the recovery ends itself when the backlog is empty, and that very step begins the normal stream: never both at
once. `LEAVING`: the backup must take a state, and waits until it is out of the in-sync set.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Protocol

from deelog_interceptors.grid.replication.peers import Link
from deelog_schemas.operation import Operation


class StreamState(Enum):
    ASKED = auto()
    DIVERGING = auto()
    LEAVING = auto()
    RECOVERING = auto()
    STREAMING = auto()


class BackupStream:
    """What a primary knows of one backup of one segment, on one connection."""

    __slots__ = ("answered", "asked_in", "backlog", "level_from", "link", "shrinking", "stage", "task")

    def __init__(self, link: Link, asked_in: int) -> None:
        self.link = link
        self.asked_in = asked_in
        """The view in which it was asked what it holds. What it says in an older one may be gone since: in a view
        between the two it may have been no holder, and have dropped everything."""
        self.stage = StreamState.ASKED
        self.shrinking = False
        """The controller was asked to take it out of the in-sync set."""
        self.answered = 0
        self.level_from = 0
        """Everything up to here may be acknowledged without it: in sync only once it answered this much."""
        self.backlog: list[Operation] = []
        self.task: Work | None = None


class Work(Protocol):
    """What replication needs of `asyncio.Task`."""

    def cancel(self) -> object: ...
    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def add_done_callback(self, call: Callable[[Any], object]) -> object: ...


class Loop(Protocol):
    """What replication needs of an event loop: asyncio's, or that of a simulation."""

    def call_soon(self, call: Callable[[], None]) -> object: ...
    def create_task(self, work: Coroutine[Any, Any, None]) -> Work: ...
