"""What clients did, as they saw it: the oracle of a chaos run."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

OK: Final = "ok"
FAILED: Final = "failed"
"""Certainly not applied: refused with an error that says so, or a condition that did not hold."""
UNKNOWN: Final = "unknown"


def now_us() -> int:
    """Unix microseconds, the clock that operations are stamped with."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Write:
    """One write of one client; several attempts may have been needed. Times are Unix microseconds.

    `value` identifies a set: no two writes have the same one. `expires_at` (Unix milliseconds) identifies a change of
    the expiry alone. Both None is a delete.
    """

    client: str
    key: bytes
    value: bytes | None
    expires_at: int | None
    sent_us: int
    ended_us: int = 0
    outcome: str = UNKNOWN
    effect: bool = True
    """False where the acknowledgement said that nothing changed."""
    doubtful: bool = False
    """Whether any attempt ended without an answer that settles it: it may yet be applied, at any time."""
    answers: Counter[str] = field(default_factory=Counter)
    """Answers that were no acknowledgement."""

    @property
    def settled_us(self) -> float:
        """When it was applied at the latest; infinity where nobody knows."""
        return float("inf") if self.doubtful or self.outcome == UNKNOWN else self.ended_us

    @property
    def waited_ms(self) -> float:
        """How long the client was at it."""
        return (self.ended_us - self.sent_us) / 1000

    @property
    def is_delete(self) -> bool:
        return self.value is None and self.expires_at is None
