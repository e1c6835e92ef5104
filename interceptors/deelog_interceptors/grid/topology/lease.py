"""Until when a node may acknowledge: as long as the controller, not long ago, answered one of its heartbeats.

A segment whose in-sync owners are all lost is given to somebody who holds nothing of it, and reset. An owner that was
only cut off, or stopped for a while, would go on acknowledging writes that nobody will ever hear of; where a backup
in sync is left it refuses the old primary, here nobody would. So a node acknowledges only under a lease, counted from
the *sending* of a heartbeat that was answered, and the controller gives such segments away only once every lease of
their owners has run out. Weighed in docs/decisions.md, "Leases".

A lease outlives a change of controller, so that nobody waits for one. Kafka may be away for everybody, and writes go
on: the controller answers as long as it hears every node that is registered, for the next controller would be one of
them and turn to itself. With Kafka away and a node gone it cannot know, and nobody acknowledges (`cache.acks` below
`all` asks for no lease): then only Kafka can confirm the seat, and is asked to, again and again. What that does not
cover: a next controller that was never registered before the last one was cut off from Kafka with all the others.

Source of the idea: Gray and Cheriton, Leases, 1989.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from deelog_interceptors.grid.replication.frames import Heard

_MAX_UNANSWERED: Final = 256


def lease_of(session_timeout: float, failure_timeout: float) -> float:
    """How long a node may acknowledge after an answered heartbeat: the time that a new controller needs. Seconds."""
    return session_timeout + 2 * failure_timeout


def lease_expiry_of(session_timeout: float, failure_timeout: float) -> float:
    """After how long a silence no lease of a node can still hold, wherever it is; clocks may differ in pace. Seconds.

    A controller that was paused may have answered until it heard that it was deposed: hence the second part.
    """
    return 1.05 * lease_of(session_timeout, failure_timeout) + failure_timeout


class Lease:
    """One node's. Times are those of a clock that never goes back, in seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since = float("-inf")
        self._sent: deque[tuple[int, float]] = deque(maxlen=_MAX_UNANSWERED)

    def holds(self, now: float) -> bool:
        """Whether this node may acknowledge."""
        return now - self._since < self.seconds

    def sent(self, number: int, now: float) -> None:
        """A heartbeat is about to leave."""
        self._sent.append((number, now))

    def heard(self, answer: Heard, topology_id: int) -> None:
        """The controller answered; `topology_id` is that of the view that this node follows."""
        if answer.topology_id > topology_id:
            return  # it may have lost its segments in a view that it has not read yet: the next answer counts
        while self._sent and self._sent[0][0] <= answer.number:
            number, at = self._sent.popleft()
            if number == answer.number:
                self._since = max(self._since, at)
