"""Replies that wait until their writes are acknowledged."""

from __future__ import annotations

from typing import Protocol


class ReplyTo(Protocol):
    """Where replies go."""

    def flush(self) -> None:
        """Writes every reply that is complete, in order."""


class Pending:
    """A reply that waits for `left` acknowledgements. `reply` is what the client gets, an error if one fails."""

    __slots__ = ("deadline", "left", "reply", "to")

    def __init__(self, to: ReplyTo, reply: bytes, deadline: float) -> None:
        self.to, self.reply, self.deadline = to, reply, deadline
        self.left = 0
