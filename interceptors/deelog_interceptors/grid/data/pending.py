"""Replies that wait until their writes are acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ReplyTo(Protocol):
    """Where replies go."""

    def flush(self) -> None:
        """Writes every reply that is complete, in order."""


@dataclass(slots=True, eq=False)
class Pending:
    """A reply that waits for `left` acknowledgements. `reply` is what the client gets, an error if one fails."""

    to: ReplyTo
    reply: bytes
    deadline: float
    left: int = 0
