"""Liveness and readiness.

*Alive*: the event loop runs. A process that is not alive should be restarted. *Ready*: the positions topic was read,
Kafka answers, and every segment that this node owns is being written, or was handed over. A process that is not ready
needs time, or Kafka; a restart would only repeat the takeover.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from deelog_connector.core.segment import Phase
from deelog_connector.runtime.connector import Connector

_SETTLED = (Phase.WRITING, Phase.RELEASING, Phase.RELEASED)
_SHOWN = 5


class Health(NamedTuple):
    """The health of a process. `reasons` why it is not ready, a line each."""

    alive: bool
    started: bool
    reasons: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether there are no reasons against it."""
        return self.alive and self.started and not self.reasons

    @property
    def status(self) -> str:
        """`healthy`, `starting` or `unhealthy`: Kafka Connect's words."""
        if self.ready:
            return "healthy"
        return "starting" if self.alive and not self.started else "unhealthy"

    def body(self) -> dict[str, Any]:
        """The response as JSON values."""
        return {"status": self.status, "alive": self.alive, "ready": self.ready, "reasons": list(self.reasons)}


def problems(connector: Connector, now: float) -> list[str]:
    """Why a connector is not ready. On the loop's thread; `now` as `EventMeter.kafka_problem` takes it."""
    failure = connector.failure
    if failure.done():
        error = None if failure.cancelled() else failure.exception()
        return [f"the connector cannot go on: {error}" if error is not None else "the connector was stopped"]
    reasons = [] if connector.halted is None else [str(connector.halted)]
    if not connector.started:
        reasons.append("the positions topic is not read to its end yet")
    kafka = connector.observed.kafka_problem(now)
    if kafka is not None:
        reasons.append(kafka)
    stopped = [s for s in connector.core.primaries() if s.phase is Phase.STOPPED]
    reasons += [f"segment {s.number} is stopped: {s.stopped_by}" for s in stopped[:_SHOWN]]
    if len(stopped) > _SHOWN:
        reasons.append(f"and {len(stopped) - _SHOWN} more segments are stopped")
    waiting = [s for s in connector.core.primaries() if s.phase not in (*_SETTLED, Phase.STOPPED)]
    if waiting:
        first = waiting[0]
        reasons.append(f"{len(waiting)} segments are not being written yet, segment {first.number} is in {first.phase}")
    return reasons
