"""The lease: a node may acknowledge writes for a while after the controller answered one of its heartbeats.

A segment whose in-sync members are all lost is given to a member without its entries, and reset. An old primary that
was only cut off or paused would go on acknowledging writes that are lost. A backup in sync refuses the old primary's
frames, but here none is left. So a node acknowledges only under a lease, counted from the *sending* of a heartbeat that
was answered, and the controller gives such segments away only once every lease of their members has run out.
Weighed in docs/decisions.md, "Leases".

A lease has run out once either clock says so: the monotonic one, which goes on while a machine sleeps, or that of the
day, which is put forward when a virtual machine goes on after a pause.

A lease outlives a change of controller, so that no write waits for one. While Kafka is unavailable to all, writes go
on: the controller answers as long as it hears every registered node, for the next controller would be one of them and
send its heartbeats to itself. With Kafka unavailable and a node silent it cannot know, and no node acknowledges
(`cache.acks` below `all` needs no lease): then only Kafka can confirm the controller, which asks it again and again.
Not covered: a next controller that registered only after the last one and all other nodes were cut off from Kafka, or
while the topology topic hid its registration from them.

Source of the idea: Gray and Cheriton, Leases, 1989.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from deelog_interceptors.grid.replication.frames import Heard

_MAX_UNANSWERED: Final = 256


def lease_of(session_timeout: float, failure_timeout: float) -> float:
    """Seconds that a node may acknowledge after an answered heartbeat: the time that a new controller needs."""
    return session_timeout + 2 * failure_timeout


def lease_expiry_of(session_timeout: float, failure_timeout: float) -> float:
    """Seconds of silence after which no lease of a node can hold; 5 % for clocks that differ in pace.

    A paused controller may answer until it learns that it was replaced: hence the second summand.
    """
    return 1.05 * lease_of(session_timeout, failure_timeout) + failure_timeout


class Lease:
    """The lease of one node. `now` is in seconds of a monotonic clock, `wall` in those of the clock of the day."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since = self._since_wall = float("-inf")
        self._sent: deque[tuple[int, float, float]] = deque(maxlen=_MAX_UNANSWERED)

    def holds(self, now: float, wall: float) -> bool:
        """Whether this node may acknowledge."""
        return now - self._since < self.seconds and wall - self._since_wall < self.seconds

    def sent(self, number: int, now: float, wall: float) -> None:
        """Heartbeat `number` is about to be sent."""
        self._sent.append((number, now, wall))

    def heard(self, answer: Heard, topology_id: int) -> None:
        """The controller answered; `topology_id` is that of the view that this node follows."""
        if answer.topology_id > topology_id:
            return  # that view may have taken segments from this node: only an answer after reading it counts
        while self._sent and self._sent[0][0] <= answer.number:
            number, at, wall = self._sent.popleft()
            if number == answer.number:
                self._since, self._since_wall = at, wall
