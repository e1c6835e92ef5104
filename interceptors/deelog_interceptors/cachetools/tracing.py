"""The trace context of a write, taken where the write is made: `tracing.headers.enabled`.

The headers hold what W3C's Trace Context puts into those of HTTP, and what OpenTelemetry's
instrumentations of Kafka clients look for: a consumer continues the trace of the write. No span is made here: the
time from the cache to Kafka is measured by `source.ts_us` and the envelope's own `ts_us`.

Texts are made once per span, not per write. Weighed in docs/decisions.md, "Whose trace context".

The only module of the interceptors that imports `opentelemetry`; loaded only where tracing is on.
"""

from __future__ import annotations

import threading

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from deelog_schemas.operation import Trace


class Traces:
    """Returns the headers of the current span; all writes of a span share them. Any thread may call it."""

    def __init__(self) -> None:
        self._propagator = TraceContextTextMapPropagator()
        self._last = threading.local()

    def __call__(self) -> Trace | None:
        """None outside of any span."""
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        known: tuple[object, Trace] | None = getattr(self._last, "known", None)
        if known is not None and known[0] is context:
            return known[1]
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        made = tuple((name, value.encode()) for name, value in carrier.items())
        self._last.known = context, made
        return made
