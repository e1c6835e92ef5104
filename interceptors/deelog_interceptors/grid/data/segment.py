"""One segment on one node: its role in the view, its entries, and its pending replies and streams."""

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
    """Plain data; `Store`, `Replicator` and `Backup` change it. A primary's `data` is an evicting cache."""

    __slots__ = (
        "acked",
        "admitting",
        "begun",
        "data",
        "epoch",
        "in_sync",
        "lagging",
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
        """All other members that hold it or shall hold it."""
        self.data: EvictingCache | dict[bytes, Value] = {}
        # As primary.
        self.last = 0
        """Highest sequence assigned."""
        self.acked = 0
        """Every member in `waiting` holds the operations up to here."""
        self.begun = 0
        """The sequence at which this epoch began."""
        self.waiting: set[str] = set()
        self.admitting: set[str] = set()
        """Members that the controller was asked to admit in the present view; the next view may name them in sync."""
        self.lagging: dict[str, tuple[float, int]] = {}
        """By member in `waiting`: `(since, sequence)`, it has answered nothing above `sequence` since then."""
        self.sessions: dict[str, BackupStream] = {}
        self.outgoing: list[Operation] = []
        self.pendings: deque[tuple[int, Pending]] = deque()
        self.releasing = self.release_begun = self.released = self.stepped_down = False
        # As backup.
        self.source: object | None = None
        """The primary's connection that this segment was reported to; frames of others are refused."""
        self.staged: dict[bytes, Value] | None = None

    @property
    def closed(self) -> bool:
        """A primary that takes no more writes: it is releasing the segment, or has stepped down."""
        return self.releasing or self.stepped_down
