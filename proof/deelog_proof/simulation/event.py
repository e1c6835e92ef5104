"""Events of a script."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """Something that happens at `at` seconds: a verb of `verbs.VERBS` with its arguments."""

    at: float
    verb: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.at:.4f}", self.verb, *self.arguments))
