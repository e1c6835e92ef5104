"""A report of a connector's counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deelog_connector.core import ConnectorCore


@dataclass(slots=True)
class Stats:
    """Counters of a connector, for reports. `takeover_ms`: from promotion to writing, one for each takeover."""

    takeovers: int = 0
    takeover_ms: list[float] = field(default_factory=list)
    resets: dict[str, int] = field(default_factory=dict)
    reset_rows: int = 0
    reset_deletes: int = 0
    written: int = 0
    pruned: int = 0
    transactions: int = 0
    fenced: int = 0
    zombie_commits_refused: int = 0
    corrections: int = 0
    overflow: dict[str, int] = field(default_factory=dict)
    unwritten: int = 0
    stopped: dict[int, str] = field(default_factory=dict)
    signals: dict[str, int] = field(default_factory=dict)
    snapshot_rows: int = 0
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
    def of(
        cls,
        core: ConnectorCore,
        *,
        zombie_commits_refused: int,
        signals: Mapping[str, int],
        snapshots: list[str],
        announcements_dropped: int,
        piped: Mapping[str, int],
        halted: str,
    ) -> Stats:
        """A copy of all counters; `piped` are the pipeline's."""
        counts = core.counts
        return cls(
            takeovers=counts.takeovers,
            takeover_ms=[round(s * 1000, 1) for s in counts.takeover_seconds],
            resets=dict(counts.resets),
            reset_rows=counts.reset_rows,
            reset_deletes=counts.reset_deletes,
            written=counts.written,
            pruned=counts.pruned,
            transactions=counts.transactions,
            fenced=counts.fenced,
            zombie_commits_refused=zombie_commits_refused,
            corrections=counts.corrections,
            overflow=dict(counts.overflows),
            unwritten=core.unwritten(),
            stopped={s.number: s.stopped_by for s in core.primaries() if s.stopped_by},
            signals=dict(signals),
            snapshot_rows=counts.snapshot_rows,
            snapshots=snapshots,
            announcements_dropped=announcements_dropped,
            filtered=piped.get("filtered", 0),
            erroneous=piped.get("erroneous", 0),
            halted=halted,
        )


__all__ = ["Stats"]
