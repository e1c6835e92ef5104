"""What a diff job tells of a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch's log line says. The counts are of all batches so far, by reason or by op."""

    topic: str
    """The change topic."""
    batch: int
    """-1: the start."""
    seconds: float
    records: int
    """Of the change topic."""
    repeats: int
    """Of them, those that came again."""
    resets: dict[str, int]
    """Those that ended."""
    changes: dict[str, int]
    """Differences that a change caused."""
    resets_rows: dict[str, int]
    """Those that a reset caused."""
    dead_letters: int
    lag: int | None
    """Offsets up to the topic's end; None: unknown."""
    behind: float | None
    """The age of the newest record, in seconds; None: unknown."""
    open_resets: int
    """Segments whose reset has not ended."""
