"""Alive and ready, told apart.

*Alive*: the loop turns. Who is not alive should be started again. *Ready*: the positions topic was read, Kafka
answers, and every segment that this node owns is being written, or was handed over. Who is not ready needs time, or
Kafka; to start it again would only begin a takeover anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from deelog_connector.core.segment import Phase
from deelog_connector.runtime.connector import Connector

_SETTLED = (Phase.WRITING, Phase.RELEASING, Phase.RELEASED)
_SHOWN = 5


class Health(NamedTuple):
    """How a process stands. `reasons`: what keeps it from being ready, a line each."""

    alive: bool
    started: bool
    reasons: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether nothing is in the way."""
        return self.alive and self.started and not self.reasons

    @property
    def status(self) -> str:
        """`healthy`, `starting` or `unhealthy`: Kafka Connect's words."""
        if self.ready:
            return "healthy"
        return "starting" if self.alive and not self.started else "unhealthy"

    def body(self) -> dict[str, Any]:
        """For JSON."""
        return {"status": self.status, "alive": self.alive, "ready": self.ready, "reasons": list(self.reasons)}


def problems(connector: Connector, now: float) -> list[str]:
    """What keeps a connector from being ready. On the loop's thread; `now` as `EventMeter.kafka_problem` takes it."""
    failure = connector.failure
    if failure.done():
        error = None if failure.cancelled() else failure.exception()
        return [f"the connector cannot go on: {error}" if error is not None else "the connector was stopped"]
    found = []
    if not connector.started:
        found.append("the positions topic is not read to its end yet")
    kafka = connector.observed.kafka_problem(now)
    if kafka is not None:
        found.append(kafka)
    stopped = [s for s in connector.core.primaries() if s.phase is Phase.STOPPED]
    found += [f"segment {s.number} is stopped: {s.stopped_by}" for s in stopped[:_SHOWN]]
    if len(stopped) > _SHOWN:
        found.append(f"and {len(stopped) - _SHOWN} more segments are stopped")
    waiting = [s for s in connector.core.primaries() if s.phase not in (*_SETTLED, Phase.STOPPED)]
    if waiting:
        first = waiting[0]
        found.append(f"{len(waiting)} segments are not being written yet, segment {first.number} is in {first.phase}")
    return found
