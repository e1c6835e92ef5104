"""Kafka's group protocol, as much as the controller's election needs."""

from __future__ import annotations


class Group:
    """Elects one of the polling members. `timeout` is the session timeout in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.heard: dict[str, float] = {}
        self.holder: str | None = None
        self.changes = 0

    def poll(self, member: str, now: float) -> bool:
        """A poll of a member; returns whether it is elected. A member that polls too late loses the election."""
        away = now - self.heard.get(member, now) > self.timeout
        self.heard[member] = now
        if away:
            return False
        live = [m for m, at in self.heard.items() if now - at <= self.timeout]
        if self.holder not in live:
            self.holder = min(live)
            self.changes += 1
        return self.holder == member
