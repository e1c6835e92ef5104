"""Kafka's group protocol, as far as the controller's election needs it."""

from __future__ import annotations


class Group:
    """Gives the seat to one of the members that poll for it. `timeout` is the session's, in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.heard: dict[str, float] = {}
        self.holder: str | None = None
        self.changes = 0

    def poll(self, member: str, now: float) -> bool:
        """A member is there; whether the seat is its. Who was away for too long has lost what it had."""
        away = now - self.heard.get(member, now) > self.timeout
        self.heard[member] = now
        if away:
            return False
        live = [m for m, at in self.heard.items() if now - at <= self.timeout]
        if self.holder not in live:
            self.holder = min(live)
            self.changes += 1
        return self.holder == member
