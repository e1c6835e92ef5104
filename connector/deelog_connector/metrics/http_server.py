"""`/metrics` and `/health` of the connectors of a process, at `metrics.port`."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from deelog_connector.metrics.health import Health
from deelog_connector.metrics.prometheus import ANSWER_SECONDS, LoopStuck, PrometheusCollector, Source
from deelog_connector.runtime.connector import Connector
from deelog_schemas.pages import FINE, UNAVAILABLE, Page, PageServer


class MetricsServer(PageServer):
    """Serves the connectors and sources given to `add`. Made by `MetricsShare`."""

    def __init__(self, host: str, port: int, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Raises `OSError` where it cannot listen on the port."""
        self._connectors: dict[str, Connector] = {}
        self._others: list[Source] = []
        self.monitor = PrometheusCollector(self._connectors, self._others, answer_seconds)
        pages = {"/metrics": self._metrics, "/health": self._health}
        pages |= {"/health/live": self._liveness, "/health/ready": self._health}
        super().__init__(host, port, pages)

    def add(self, connectors: dict[str, Connector], others: Iterable[Source] = ()) -> None:
        """Serves these too from now on."""
        self._connectors.update(connectors)
        self._others += others

    def remove(self, connectors: dict[str, Connector], others: Iterable[Source] = ()) -> bool:
        """No longer serves these; returns whether nothing is left."""
        for cache, connector in connectors.items():
            if self._connectors.get(cache) is connector:
                del self._connectors[cache]
        self._others[:] = [other for other in self._others if other not in others]
        return not self._connectors and not self._others

    def _metrics(self, accept: str) -> Page:
        try:
            return Page(*self.monitor.render(accept))
        except LoopStuck as error:
            return Page(f"{error}\n".encode(), status=UNAVAILABLE)

    def _health(self, accept: str) -> Page:
        health = self.monitor.health()
        return _page(health, health.ready)

    def _liveness(self, accept: str) -> Page:
        health = self.monitor.health()
        return _page(health, health.alive)


def _page(health: Health, good: bool) -> Page:
    return Page(orjson.dumps(health.body()), "application/json", FINE if good else UNAVAILABLE)
