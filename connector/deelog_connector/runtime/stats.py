"""A report of a connector's counters."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from typing import Any

from deelog_connector.core import ConnectorCore, Counts


@dataclass(slots=True)
class Stats(Counts):
    """A copy of the core's counters, and what the connector counts beside them."""

    zombie_commits_refused: int = 0
    unwritten: int = 0
    stopped: dict[int, str] = field(default_factory=dict)
    withheld: list[int] = field(default_factory=list)
    """Partitions that take no records."""
    signals: dict[str, int] = field(default_factory=dict)
    snapshots: list[str] = field(default_factory=list)
    """Ids of incomplete incremental snapshots."""
    announcements_dropped: int = 0
    filtered: int = 0
    """Changes and rows that `skipped.operations` or a transform left out, `erroneous` those that a transform failed on.
    Those of a retried transaction are counted again."""
    erroneous: int = 0
    halted: str = ""
    """Why nothing is written until `resume()`."""

    @classmethod
    def of(cls, core: ConnectorCore, **others: Any) -> Stats:
        """The counters of `core`, what is to be seen of its segments, and the `others`."""
        stopped = {s.number: s.stopped_by for s in core.primaries() if s.stopped_by}
        counted = {one.name: getattr(core.counts, one.name) for one in fields(core.counts)}
        copies = {name: copy.copy(value) for name, value in (counted | others).items()}
        return cls(**copies, unwritten=core.unwritten(), stopped=stopped, withheld=sorted(core.withheld))
