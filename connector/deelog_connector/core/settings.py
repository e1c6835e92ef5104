"""What the core is given: its settings, and its view of the cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from deelog_connector.core.history import History
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_schemas.operation import Entry


class CacheState(Protocol):
    """The core's view of the cache: without waiting or I/O, consistent with the last sequence of the segment."""

    def entries(self, segment: int) -> list[Entry]:
        """All live entries of a segment."""

    def get(self, segment: int, key: bytes) -> Entry | None:
        """One live entry."""


class StreamState(ABC):
    """The core's view of a cache in another process, whose changes come as a stream that its replicas have, too.

    Its operations are numbered from a position in Kafka on, so that whoever reads the stream numbers them alike. Its
    entries are asked for by effects.
    """

    @abstractmethod
    def source(self, segment: int, sequence: int, past: History) -> str:
        """What a position of that sequence says of where in the stream it stands; `past`: the epochs before its own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the core needs of the configuration. Times in seconds."""

    segments: int
    partitions: int
    prefix: str = ""
    cache: str = ""
    max_batch_size: int = 8192
    chunk_size: int = 1024
    """Rows of one segment in one transaction, at most."""
    commit_interval: float = 0.05
    transaction_timeout: float = 5.0
    heartbeat_interval: float = 5.0
    patience: float = 10.0
    """How long to wait for one's own record on the positions topic before it is looked for what hides it."""
    max_operations: int = 500_000
    max_bytes: int = 268_435_456
    reset_strategy: Strategy = Strategy.MARKER
    reset_interval: float = 0.0
    """Each segment is reset again after this time; 0: never."""
    snapshot_mode: SnapshotMode = SnapshotMode.INITIAL
    may_skip: bool = False
    """Whether an operation may be written without its change: a filter drops it, or a transform fails on it."""
