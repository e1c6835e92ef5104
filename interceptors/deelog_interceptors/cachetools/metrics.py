"""Metrics of a captured cache, beside those of its connector."""

from __future__ import annotations

import asyncio

from deelog_connector.metrics.families import COUNTER, GAUGE, MetricFamily, placed
from deelog_interceptors.cachetools.change_queue import ChangeQueue
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.telling import Skipped


class CaptureMetrics:
    """A captured cache as a `Source` of the metrics server."""

    def __init__(self, changes: ChangeQueue, mirror: Mirror, skipped: Skipped, prefix: str, cache: str) -> None:
        self._changes, self._mirror, self._skipped, self._where = changes, mirror, skipped, (prefix, cache)
        self.loop = asyncio.get_running_loop()

    def problems(self) -> list[str]:
        """None: what keeps the connector from being ready, that tells itself."""
        return []

    def figures(self) -> list[MetricFamily]:
        """All of them."""
        rows = (
            (
                "divergence",
                COUNTER,
                "Entries that a check found to differ from what was captured.",
                self._mirror.diverged,
            ),
            ("entries", GAUGE, "Entries of the cache, as far as they are captured.", len(self._mirror)),
            ("pending", GAUGE, "Changes without a position.", len(self._changes.queue)),
            ("skipped", COUNTER, "Entries that were not captured, since they cannot be.", self._skipped.number),
        )
        found = [
            MetricFamily(f"deelog_capture_{name}", help_, kind, (), [((), value)]) for name, kind, help_, value in rows
        ]
        return [*placed(found, *self._where)]
