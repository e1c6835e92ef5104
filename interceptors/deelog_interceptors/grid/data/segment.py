"""One segment on one node: its role in the view, its entries, and what is owed to clients and backups."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING

from deelog_interceptors.grid.data.pending import Pending
from deelog_interceptors.grid.data.policy import EvictingCache, Value
from deelog_schemas.operation import Operation

if TYPE_CHECKING:
    from deelog_interceptors.grid.replication.session import BackupStream


class Role(StrEnum):
    NONE = "none"
    PRIMARY = "primary"
    BACKUP = "backup"


class Segment:
    """Plain data; `store`, `replicator`, `backup` say what happens to it. A primary's `data` is an evicting cache."""

    __slots__ = (
        "acked",
        "admitting",
        "begun",
        "behind",
        "data",
        "epoch",
        "in_sync",
        "last",
        "members",
        "number",
        "outgoing",
        "pendings",
        "primary",
        "release_begun",
        "released",
        "releasing",
        "role",
        "sessions",
        "source",
        "staged",
        "stepped_down",
        "waiting",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.role = Role.NONE
        self.epoch = 0
        self.primary: str | None = None
        self.in_sync: tuple[str, ...] = ()
        self.members: tuple[str, ...] = ()
        """All who hold it or are to hold it."""
        self.data: EvictingCache | dict[bytes, Value] = {}
        # As primary.
        self.last = 0
        """Highest sequence assigned."""
        self.acked = 0
        """Every member that is waited for holds up to here."""
        self.begun = 0
        """Where this epoch began."""
        self.waiting: set[str] = set()
        self.admitting: set[str] = set()
        """Members that the controller was asked to let in, in the present view: it may have, in the next one."""
        self.behind: dict[str, tuple[float, int]] = {}
        """Member that is waited for: since when it has not answered beyond which sequence."""
        self.sessions: dict[str, BackupStream] = {}
        self.outgoing: list[Operation] = []
        self.pendings: deque[tuple[int, Pending]] = deque()
        self.releasing = self.release_begun = self.released = self.stepped_down = False
        # As backup.
        self.source: object | None = None
        """The primary's connection that this segment was reported to: only its stream counts."""
        self.staged: dict[bytes, Value] | None = None

    @property
    def closed(self) -> bool:
        """A primary that takes no more writes: it gives the segment away, or found out that it lost it."""
        return self.releasing or self.stepped_down
