"""How a scrape reads its sources on their loops, and what Prometheus is given of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.core.durations import Durations
from deelog_connector.metrics.families import COUNTER, GAUGE, HISTOGRAM, MetricFamily
from deelog_connector.metrics.health import Health
from deelog_connector.metrics.prometheus import LoopStuck, PrometheusCollector
from deelog_connector.runtime import Connector
from tests.connector.cache import Cache, config_of, run

SECONDS = 60.0


class Source:
    """Metrics and problems, read on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *families: MetricFamily) -> None:
        self.loop, self.families = loop, families
        self.said: list[str] = []
        self.threads: list[threading.Thread] = []

    def figures(self) -> tuple[MetricFamily, ...]:
        self.threads.append(threading.current_thread())
        return self.families

    def problems(self) -> list[str]:
        self.threads.append(threading.current_thread())
        return self.said


def collector(*sources: Source, seconds: float = SECONDS, **connectors: Any) -> PrometheusCollector:
    return PrometheusCollector(cast("dict[str, Connector]", connectors), sources, seconds)


def on_loop(test: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    """Runs a test in another thread, while the loop turns."""

    async def work() -> None:
        await asyncio.to_thread(test, asyncio.get_running_loop())

    run(work(), SECONDS)


def ended() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


def test_families_become_prometheus_own_and_those_of_a_name_one() -> None:
    spent = Durations()
    for seconds in (0.0005, 0.002, 100.0):
        spent.add(seconds)
    first = Source(
        ended(),
        MetricFamily("c_total", "A counter.", COUNTER, ("a",), [(("x",), 3)]),
        MetricFamily("g", "A gauge.", GAUGE, (), [((), True)]),
        MetricFamily("h", "A histogram.", HISTOGRAM, ("a",), [(("x",), spent)]),
    )
    second = Source(ended(), MetricFamily("c_total", "A counter.", COUNTER, ("a",), [(("y",), 4)]))
    body, kind = collector(first, second).render()
    lines = body.decode().splitlines()
    assert kind.startswith("text/plain")
    for line in (
        "# HELP c_total A counter.",
        "# TYPE c_total counter",
        'c_total{a="x"} 3.0',
        'c_total{a="y"} 4.0',
        "# TYPE g gauge",
        "g 1.0",
        "# TYPE h histogram",
        'h_bucket{a="x",le="0.001"} 1.0',
        'h_bucket{a="x",le="0.0025"} 2.0',
        'h_bucket{a="x",le="60.0"} 2.0',
        'h_bucket{a="x",le="+Inf"} 3.0',
        'h_count{a="x"} 3.0',
    ):
        assert lines.count(line) == 1, line
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)


def test_a_client_may_ask_for_openmetrics() -> None:
    body, kind = collector().render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_a_source_is_read_on_its_loop() -> None:
    def test(loop: asyncio.AbstractEventLoop) -> None:
        source = Source(loop, MetricFamily("g", "A gauge.", GAUGE, (), [((), 7)]))
        made = collector(source)
        assert b"g 7.0" in made.render()[0]
        assert made.health() == Health(True, True)
        assert source.threads == [threading.main_thread()] * 2

    on_loop(test)


def test_on_its_own_loop_it_is_read_at_once() -> None:
    async def work() -> None:
        source = Source(asyncio.get_running_loop(), MetricFamily("g", "A gauge.", GAUGE, (), [((), 7)]))
        assert b"g 7.0" in collector(source, seconds=0.0).render()[0]

    run(work(), SECONDS)


def test_what_a_source_raises_is_raised() -> None:
    def test(loop: asyncio.AbstractEventLoop) -> None:
        source = Source(loop)

        def figures() -> tuple[MetricFamily, ...]:
            raise ValueError("a defect")

        source.figures = figures  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="a defect"):
            collector(source).render()

    on_loop(test)


def test_a_loop_that_does_not_answer_is_stuck() -> None:
    source = Source(asyncio.new_event_loop())  # it does not turn
    with pytest.raises(LoopStuck, match=r"the event loop has not answered for 0\.05 s"):
        collector(source, seconds=0.05).render()
    first = Source(ended())
    first.loop = source.loop
    told = collector(source, seconds=0.05).health()
    assert told == Health(False, True, ("the event loop has not answered for 0.05 s",))
    source.loop.run_until_complete(asyncio.sleep(0))
    assert source.threads == []  # an answer that nobody waits for is not made
    source.loop.close()


def test_health_has_the_problems_of_all_and_ends_with_a_loop_that_has() -> None:
    def test(loop: asyncio.AbstractEventLoop) -> None:
        one, other, last = Source(loop), Source(ended()), Source(loop)
        one.said, other.said, last.said = ["a"], ["b"], ["c"]
        assert collector(one, last).health() == Health(True, True, ("a", "c"))
        assert collector(one, other, last).health() == Health(False, True, ("a", "b"))

    on_loop(test)


@pytest.mark.parametrize(
    ("started", "failed", "health"),
    [(True, False, (True, True)), (False, False, (True, False)), (True, True, (False, True))],
)
def test_a_connector_is_alive_until_it_fails_and_ready_once_it_has_started(
    started: bool, failed: bool, health: tuple[bool, bool]
) -> None:
    async def work() -> None:
        cache = Cache(config_of("h:1", "p"), 1)
        cache.connector.started = started
        cache.connector.observed.kafka_answered(10.0**9)
        if failed:
            cache.connector.failure.set_exception(ValueError("why"))
            assert cache.connector.failure.exception() is not None
        made = collector(c=cache.connector)
        told = made.health()
        assert (told.alive, told.started) == health
        assert all(reason.startswith("cache c: ") for reason in told.reasons)
        assert (told.reasons == ()) is (started and not failed)
        assert b'deelog_kafka_up{cache="c",name="p"} 1.0' in made.render()[0]
        await cache.connector.stop(release=False)

    run(work(), SECONDS)


def test_a_connector_that_was_cancelled_has_not_failed() -> None:
    async def work() -> None:
        failure = asyncio.get_running_loop().create_future()
        failure.cancel()
        connector = SimpleNamespace(failure=failure, started=True)
        (source,) = collector(c=connector)._sources()
        assert source.failed is False  # type: ignore[attr-defined]

    run(work(), SECONDS)


def test_the_registry_asks_for_no_names() -> None:
    assert list(collector().describe()) == []
