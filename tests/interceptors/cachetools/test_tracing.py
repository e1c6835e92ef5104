"""The trace context of a write in its record's headers, with the real OpenTelemetry SDK.

Bad input: the API is not installed, a grid node with tracing, an invalid incoming `traceparent`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import cachetools
import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import deelog_interceptors.cachetools as deelog
from deelog_connector.core.oplog import Budget, OpLog
from deelog_interceptors.cachetools.tracing import Traces
from deelog_interceptors.grid.settings import Settings
from deelog_schemas.config import ConfigError, parse
from deelog_schemas.header import HEADER_NAME, Kind, unpack
from deelog_schemas.operation import Operation, Trace, TracedOperation
from tests.interceptors.cachetools.support import CLEARS, Attached
from tests.interceptors.cachetools.test_capture import SECONDS, config, ready
from tests.support.memory import LiveMemory
from tests.support.waiting import waiting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PROPAGATOR = TraceContextTextMapPropagator()


@pytest.fixture(scope="module")
def provider() -> Iterator[TracerProvider]:
    """An application's tracer provider. It keeps the spans."""
    made = TracerProvider()
    yield made
    made.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def tracer(provider: TracerProvider) -> trace.Tracer:
    return provider.get_tracer("shop")


def headers_of(live: LiveMemory, topic: str) -> list[tuple[Kind, str, dict[str, str]]]:
    """Kind, key and the headers besides ours, of changes, tombstones and rows."""
    found: list[tuple[Kind, str, dict[str, str]]] = []
    for message in live.messages(topic):
        headers = {name: value or b"" for name, value in message.headers or ()}
        kind = unpack(headers.pop(HEADER_NAME)).kind
        if kind in (Kind.CHANGE, Kind.TOMBSTONE, Kind.READ):
            found.append((kind, (message.key or b"").decode(), {k: v.decode() for k, v in headers.items()}))
    return found


def headers_for(span: ReadableSpan, **more: str) -> dict[str, str]:
    """The headers of a span by W3C's Trace Context."""
    own = span.context
    assert own is not None
    ids = trace.format_trace_id(own.trace_id), trace.format_span_id(own.span_id)
    return {"traceparent": f"00-{ids[0]}-{ids[1]}-{own.trace_flags:02x}", **more}


def test_a_consumer_goes_on_with_the_trace_of_the_write(
    live: LiveMemory, prefix: str, tracer: trace.Tracer, spans: InMemorySpanExporter
) -> None:
    cache: Any = cachetools.LRUCache(2)
    cache["early"] = "there before"
    settings = config(live, prefix, tracing_headers_enabled="true")
    incoming = PROPAGATOR.extract({"traceparent": PARENT, "tracestate": "shop=7,other=x"})
    with deelog.capture(cache, settings) as capture:
        ready(capture)
        cache["outside"] = "0"
        with tracer.start_as_current_span("put"):
            cache["k"] = "1"  # this evicts "early"
            cache["k"] = "2"
        with tracer.start_as_current_span("delete", context=incoming):
            del cache["k"]
        with tracer.start_as_current_span("clear"):
            cache.clear()
        waiting(lambda: capture.stats.unwritten == 0, SECONDS, "everything written")
    told = headers_of(live, f"{prefix}.sessions")
    put, delete, clear = spans.get_finished_spans()
    cleared: Any = [("TOMBSTONE", {})] * 2  # by the clear's reset
    if not CLEARS:
        cleared = [("CHANGE", headers_for(clear)), ("TOMBSTONE", headers_for(clear))]
    by_key: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for kind, key, headers in told:
        by_key.setdefault(key, []).append((kind.name, headers))
    parent, handed = headers_for(put), headers_for(delete, tracestate="shop=7,other=x")
    assert handed["traceparent"].split("-")[1] == PARENT.split("-")[1]
    assert by_key == {
        '{"key":"early"}': [("READ", {}), ("CHANGE", parent), ("TOMBSTONE", parent)],
        '{"key":"outside"}': [("CHANGE", {}), *cleared],
        '{"key":"k"}': [("CHANGE", parent), ("CHANGE", parent), ("CHANGE", handed), ("TOMBSTONE", handed)],
    }
    with tracer.start_as_current_span("consume", context=PROPAGATOR.extract(handed)):
        pass
    consume = spans.get_finished_spans()[-1]
    assert consume.parent is not None
    assert (consume.parent.trace_id, consume.parent.span_id) == (delete.context.trace_id, delete.context.span_id)


def test_it_survives_a_transaction_that_was_fenced(live: LiveMemory, prefix: str, tracer: trace.Tracer) -> None:
    cache: Any = cachetools.LRUCache(100)
    settings = parse(config(live, prefix, tracing_headers_enabled="true"))
    keys = [f"k{number}" for number in range(20)]
    with deelog.capture(cache, settings) as capture:
        ready(capture)
        live.fence(settings.topics.transactional_id_node("n1"))
        with tracer.start_as_current_span("put"):
            cache.update(dict.fromkeys(keys, "v"))
        waiting(lambda: capture.stats.zombie_commits_refused, SECONDS, "a transaction of the fenced session")
    changes = [headers for kind, _, headers in headers_of(live, f"{prefix}.sessions") if kind is Kind.CHANGE]
    assert len(changes) == len(keys)
    assert len({headers["traceparent"] for headers in changes}) == 1


def test_off_there_is_no_header_and_no_span_is_asked_for(
    live: LiveMemory, prefix: str, tracer: trace.Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(_: Any) -> None:
        raise AssertionError("nobody wants a trace")

    monkeypatch.setattr(Traces, "__call__", asked)
    cache: Any = cachetools.LRUCache(100)
    with deelog.capture(cache, config(live, prefix)) as capture:
        ready(capture)
        with tracer.start_as_current_span("put"):
            cache["k"] = "v"
            del cache["k"]
        waiting(lambda: capture.stats.unwritten == 0, SECONDS, "everything written")
    told = headers_of(live, f"{prefix}.sessions")
    assert [(kind, headers) for kind, _, headers in told] == [
        (Kind.CHANGE, {}),
        (Kind.CHANGE, {}),
        (Kind.TOMBSTONE, {}),
    ]


def test_writes_of_a_span_share_its_headers(tracer: trace.Tracer) -> None:
    traces = Traces()
    assert traces() is None
    with tracer.start_as_current_span("outer") as outer:
        first = traces()
        assert traces() is first
        assert dict(first or ())["traceparent"].decode().split("-")[2] == trace.format_span_id(
            outer.get_span_context().span_id
        )
        with tracer.start_as_current_span("inner"):
            assert traces() != first
        assert traces() == first
    assert traces() is None
    token = context.attach(PROPAGATOR.extract({"traceparent": "00-garbage-x-01"}))
    try:
        assert traces() is None
    finally:
        context.detach(token)


def test_the_budget_counts_a_trace_on_the_tape_and_in_the_op_log(tracer: trace.Tracer) -> None:
    captured = Attached(cachetools.LRUCache(100), trace=Traces())
    with tracer.start_as_current_span("put"):
        captured.cache["k"] = "value"
        del captured.cache["k"]
    captured.drain()
    operations = [operation for _, operation in captured.core.operations]
    assert all(isinstance(operation, TracedOperation) for operation in operations)
    sizes = [operation.size for operation in operations]
    plain = [Operation(*operation).size for operation in operations]
    assert [size - bare > 55 for size, bare in zip(sizes, plain, strict=True)] == [True, True]
    assert captured.changes.taken == captured.mirror.drained == sum(sizes)


def test_a_coalesced_operation_keeps_the_newest_trace() -> None:
    def traced(sequence: int, trace: Trace) -> Operation:
        plain = Operation(1, sequence, "put", b"k", b"v%d" % sequence, None, 0, sequence > 1)
        return TracedOperation.of(plain, trace) if trace else plain

    budget = Budget(100, 10_000)
    log = OpLog(budget)
    for sequence in (1, 2, 3):
        log.append(traced(sequence, (("traceparent", b"%d" % sequence),)))
    assert log.coalesce(0, 3) == 2
    (left,) = log
    assert (left.trace, left.existed, left.value) == ((("traceparent", b"3"),), False, b"v3")
    assert budget.bytes == left.size
    log.prune(3)
    assert budget.bytes == 0


def test_without_the_api_the_error_names_field_and_extra(
    live: LiveMemory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "deelog_interceptors.cachetools.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    problem = (
        r"tracing\.headers\.enabled = true: needs OpenTelemetry's API, .* pip install 'deelog\[otel\]', or set false"
    )
    with pytest.raises(ConfigError, match=problem):
        deelog.capture(cachetools.LRUCache(5), config(live, prefix, tracing_headers_enabled="true"))


def test_a_grid_node_says_that_it_cannot(live: LiveMemory, prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.headers\.enabled = true: must be false on a grid node"):
        Settings.of(parse(config(live, prefix, tracing_headers_enabled="true")))
