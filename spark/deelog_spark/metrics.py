"""The diff job's metrics for Prometheus, at `/metrics` of `diff.metrics.port`.

A scrape gets the totals of the checkpoint, which are exact over restarts. Alternatives: docs/decisions.md, "Figures of
the job".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from deelog_schemas.config import Config
from deelog_schemas.pages import Page, PageServer
from deelog_spark.errors import DiffError
from deelog_spark.report import BatchReport

_BUCKETS: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    """Serves the last batch that `observe` got. Call `close()` at the end. Raises `DiffError` for a port in use."""

    def __init__(self, config: Config) -> None:
        self._topic = config.topics.changes
        self._last: tuple[BatchReport, float] | None = None
        self._lock = threading.Lock()
        registry = self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "deelog_diff_batch_seconds", "Seconds that a batch took.", ["topic"], buckets=_BUCKETS, registry=registry
        )
        registry.register(self)
        host, port = config["metrics.host"], config["diff.metrics.port"]
        try:
            self._server = PageServer(host, port, {"/metrics": self._page})
        except OSError as error:
            raise DiffError(
                f"diff.metrics.port {port} on metrics.host {host} cannot be listened on ({error.strerror}): name "
                "another port or host, or 0 for none"
            ) from error

    def observe(self, batch: BatchReport) -> None:
        """Takes the report of a finished batch."""
        with self._lock:
            self._last = batch, time.time()
        self._seconds.labels(self._topic).observe(batch.seconds)

    def close(self) -> None:
        """Stops serving."""
        self._server.close()

    def _page(self, accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(encode(self._registry), content_type)

    def collect(self) -> Iterable[Metric]:
        """The metrics of a scrape; none before the first batch is done."""
        with self._lock:
            observed = self._last
        if observed is None:
            return
        last, at = observed
        for name, help_, value in (
            ("records", "Records of the change topic that were read.", last.records),
            ("repeats", "Of them, those that came again and were dropped.", last.repeats),
            ("dead_letters", "Of them, those that could not be decoded and were put aside.", last.dead_letters),
        ):
            yield self._family(CounterMetricFamily, name, help_, [((), value)])
        resets = [((reason,), count) for reason, count in last.resets.items()]
        yield self._family(CounterMetricFamily, "resets", "Resets that were completed.", resets, "reason")
        ops = [
            ((op, cause), count)
            for cause, counts in (("change", last.changes), ("reset", last.resets_rows))
            for op, count in counts.items()
        ]
        yield self._family(CounterMetricFamily, "differences", "Records of the diff topic.", ops, "op", "cause")
        gauges: list[tuple[str, str, float | None]] = [
            ("batch", "Number of the last batch, -1 the start.", last.batch),
            ("last_batch_timestamp_seconds", "When it was done, Unix time.", at),
            ("open_resets", "Segments that are held back until their reset ends.", last.open_resets),
            ("lag_records", "Offsets between the last batch and the topic's end.", last.lag),
            ("behind_seconds", "How old its newest record was when it was done.", last.behind),
        ]
        for name, help_, gauge in gauges:
            if gauge is not None:
                yield self._family(GaugeMetricFamily, name, help_, [((), gauge)])

    def _family(
        self, kind: type[Any], name: str, help_: str, samples: Sequence[tuple[tuple[str, ...], float]], *labels: str
    ) -> Metric:
        family: Metric = kind(f"deelog_diff_{name}", help_, labels=["topic", *labels])
        for values, value in samples:
            family.add_metric([self._topic, *values], value)  # type: ignore[attr-defined]
        return family

    def describe(self) -> Iterable[Metric]:
        """No names: without this method the registry would collect to learn them."""
        return ()
