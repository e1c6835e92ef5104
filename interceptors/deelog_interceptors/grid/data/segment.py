"""One segment on one node: its role in the view, its entries, and its pending replies and streams."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class Segment:
    """Plain data; `Store`, `Replicator` and `Backup` change it. A primary's `data` is an evicting cache."""

    number: int
    role: Role = Role.NONE
    epoch: int = 0
    primary: str | None = None
    in_sync: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    """All other members that hold it or shall hold it."""
    data: EvictingCache | dict[bytes, Value] = field(default_factory=dict)
    # As primary.
    last: int = 0
    """Highest sequence assigned."""
    acked: int = 0
    """Every member in `waiting` holds the operations up to here."""
    begun: int = 0
    """The sequence at which this epoch began."""
    held: tuple[int, int] | None = None
    """Epoch and acknowledged sequence of an owner whose segment is Offline: it is not known yet who has it next."""
    waiting: set[str] = field(default_factory=set)
    admitting: set[str] = field(default_factory=set)
    """Members that the controller was asked to admit in the present view; the next view may name them in sync."""
    lagging: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By member in `waiting`: `(since, sequence)`, it has answered nothing above `sequence` since then."""
    sessions: dict[str, BackupStream] = field(default_factory=dict)
    outgoing: list[Operation] = field(default_factory=list)
    pendings: deque[tuple[int, Pending]] = field(default_factory=deque)
    releasing: bool = False
    release_begun: bool = False
    released: bool = False
    stepped_down: bool = False
    # As backup.
    source: object | None = None
    """The primary's connection that this segment was reported to; frames of others are refused."""
    staged: dict[bytes, Value] | None = None

    @property
    def closed(self) -> bool:
        """A primary that takes no more writes: it is releasing the segment, or has stepped down."""
        return self.releasing or self.stepped_down
