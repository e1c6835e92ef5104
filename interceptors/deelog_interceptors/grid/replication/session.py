"""The primary's state of each stream to a backup.

A stream goes ASKED → (DIVERGING) → RECOVERING → STREAMING. While it is recovering, new operations collect in its
backlog. The recovery ends when the backlog is empty, and the same step begins the normal stream: never both at once.
A backup that needs the whole state waits until it is out of the in-sync set, `LEAVING`, and until it is its turn on the
link, `QUEUED`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto

from deelog_interceptors.grid.replication.peers import Link
from deelog_schemas.operation import Operation


class StreamState(Enum):
    ASKED = auto()
    DIVERGING = auto()
    LEAVING = auto()
    QUEUED = auto()
    RECOVERING = auto()
    STREAMING = auto()


@dataclass(slots=True, eq=False)
class BackupStream:
    """The stream of one segment to one backup, on one connection."""

    link: Link
    asked_in: int
    """The view in which it was asked what it holds. Reports of an older view do not count: the backup may have dropped
    everything in a view between."""
    stage: StreamState = StreamState.ASKED
    shrinking: bool = False
    """The controller was asked to remove it from the in-sync set."""
    answered: int = 0
    level_from: int = 0
    """Operations up to here may be acknowledged without it: it may be in sync only once it answered this much."""
    backlog: list[Operation] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
