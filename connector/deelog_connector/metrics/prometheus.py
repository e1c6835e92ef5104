"""Collects metrics and health of a process: reads its connectors on their own loops.

A scrape runs in a thread of its own, while the loop changes the counters. So it reads them in a callback on the loop. A
loop that does not run it within `ANSWER_SECONDS` counts as stuck. Weighed in docs/decisions.md, "A scrape asks
the loop".

The only module of the connector that imports `prometheus_client`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from deelog_connector.core.durations import Durations
from deelog_connector.metrics import families, health
from deelog_connector.metrics.families import MetricFamily
from deelog_connector.metrics.health import Health
from deelog_connector.runtime.connector import Connector

ANSWER_SECONDS: Final = 5.0
"""A loop that does not answer for this long counts as stuck."""

T = TypeVar("T")


class LoopStuck(Exception):
    """A loop did not answer in time, or has ended."""


class Source(Protocol):
    """Further metrics, of a cache node beside its connector. Read on `loop`."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def figures(self) -> Iterable[MetricFamily]: ...

    def problems(self) -> Sequence[str]:
        """Why it is not ready."""


class _Captured:
    """A connector as a source."""

    def __init__(self, cache: str, connector: Connector) -> None:
        self._cache, self._connector = cache, connector
        self.loop = connector.failure.get_loop()
        self.started = connector.started
        failure = connector.failure
        self.failed = failure.done() and not failure.cancelled() and failure.exception() is not None

    def figures(self) -> Iterable[MetricFamily]:
        clock = self._connector.clock
        return list(families.figures(self._cache, self._connector, clock.monotonic(), clock.time_ns() / 1e9))

    def problems(self) -> Sequence[str]:
        found = health.problems(self._connector, self._connector.clock.monotonic())
        return [f"cache {self._cache}: {problem}" for problem in found]


class PrometheusCollector:
    """Collects from all `connectors`, by cache, and `others`. Both may change meanwhile. Call it from any thread."""

    def __init__(
        self, connectors: Mapping[str, Connector], others: Sequence[Source] = (), answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._connectors, self._others, self._answer_seconds = connectors, others, answer_seconds
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type of the response to Prometheus; `accept` is the request's header.

        Raises `LoopStuck`.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def health(self) -> Health:
        """The health of the process. Takes at most `answer_seconds` for each loop."""
        reasons: list[str] = []
        sources = self._sources()
        for source in sources:
            try:
                reasons += self._asked(source.loop, source.problems)
            except LoopStuck as error:
                return Health(False, True, (*reasons, str(error)))
            if source.loop.is_closed():
                return Health(False, True, tuple(reasons))
        captured = [source for source in sources if isinstance(source, _Captured)]
        alive = not any(source.failed for source in captured)
        return Health(alive, all(source.started for source in captured), tuple(reasons))

    def _sources(self) -> list[Source]:
        return [*(_Captured(*one) for one in list(self._connectors.items())), *self._others]

    def _asked(self, loop: asyncio.AbstractEventLoop, question: Callable[[], T]) -> T:
        """Calls `question` on the loop's thread, directly if this is that thread."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop or loop.is_closed():  # an ended loop changes nothing any more
            return question()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def ask() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001 - raised in the calling thread
                answer.set_exception(error)

        try:
            loop.call_soon_threadsafe(ask)
            return answer.result(self._answer_seconds)
        except (TimeoutError, RuntimeError) as error:
            answer.cancel()
            raise LoopStuck(f"the event loop has not answered for {self._answer_seconds:g} s") from error

    # -- for prometheus_client --------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """The metric families of a scrape."""
        figures = [figure for source in self._sources() for figure in self._asked(source.loop, source.figures)]
        for figure in families.merged(figures):
            yield _family(figure)

    def describe(self) -> Iterable[Metric]:
        """Empty: otherwise the registry would collect to get the names."""
        return ()


def _family(figure: MetricFamily) -> Metric:
    kinds: dict[str, Any] = {families.COUNTER: CounterMetricFamily, families.GAUGE: GaugeMetricFamily}
    if figure.kind in kinds:
        family = kinds[figure.kind](figure.name, figure.help, labels=figure.labels)
        for labels, value in figure.samples:
            family.add_metric(labels, float(value))  # type: ignore[arg-type]  # its kind says that it is a number
        return family  # type: ignore[no-any-return]
    histogram = HistogramMetricFamily(figure.name, figure.help, labels=figure.labels)
    for labels, value in figure.samples:
        assert isinstance(value, Durations)
        bounds = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in value.within()]
        histogram.add_metric(labels, bounds, value.total)
    return histogram
