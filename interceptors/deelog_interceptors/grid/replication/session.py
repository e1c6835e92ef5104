"""The primary's state of each stream to a backup.

A stream goes ASKED → (DIVERGING) → RECOVERING → STREAMING. While it is recovering, new operations collect in its
backlog. The recovery ends when the backlog is empty, and the same step begins the normal stream: never both at once.
`LEAVING`: the backup needs the whole state, and waits until it is out of the in-sync set.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from deelog_interceptors.grid.replication.peers import Link
from deelog_schemas.operation import Operation


class StreamState(Enum):
    ASKED = auto()
    DIVERGING = auto()
    LEAVING = auto()
    RECOVERING = auto()
    STREAMING = auto()


class BackupStream:
    """The stream of one segment to one backup, on one connection."""

    __slots__ = ("answered", "asked_in", "backlog", "level_from", "link", "shrinking", "stage", "task")

    def __init__(self, link: Link, asked_in: int) -> None:
        self.link = link
        self.asked_in = asked_in
        """The view in which it was asked what it holds. Reports of an older view do not count: the backup may have
        dropped everything in a view between."""
        self.stage = StreamState.ASKED
        self.shrinking = False
        """The controller was asked to remove it from the in-sync set."""
        self.answered = 0
        self.level_from = 0
        """Operations up to here may be acknowledged without it: it may be in sync only once it answered this much."""
        self.backlog: list[Operation] = []
        self.task: asyncio.Task[None] | None = None
