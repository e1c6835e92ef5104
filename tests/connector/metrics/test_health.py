"""What health says of a connector that has not started: Kafka is not asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deelog_connector.core.segment import Phase
from deelog_connector.errors import TransformFailed
from deelog_connector.metrics.families import figures
from deelog_connector.metrics.health import Health, problems
from tests.connector.cache import Cache, config_of, run


def of_a(test: Callable[[Cache], None]) -> None:
    async def work() -> None:
        cache = Cache(config_of("h:1", "p"), 1)
        try:
            test(cache)
        finally:
            await cache.connector.stop(release=False)

    run(work(), 20)


def connected(cache: Cache) -> float:
    families = figures("c", cache.connector, 0.0, 0.0)
    ((_, value),) = next(f.samples for f in families if f.name == "debezium_metrics_Connected")
    assert isinstance(value, int | float)
    return value


def test_a_halted_connector_says_so_first_and_is_not_connected() -> None:
    def test(cache: Cache) -> None:
        connector = cache.connector
        connector.started = True
        connector.observed.kafka_answered(0.0)
        cache.own_all()
        waiting = problems(connector, 0.0)
        assert [line.partition(",")[0] for line in waiting] == ["8 segments are not being written yet"]
        assert connected(cache) == 1
        connector._halt(TransformFailed("transform b failed"))
        assert problems(connector, 0.0) == ["transform b failed", *waiting]
        assert connected(cache) == 0
        connector.resume()
        assert problems(connector, 0.0) == waiting

    of_a(test)


def test_a_connector_that_ended_says_only_that() -> None:
    def failed(cache: Cache) -> None:
        cache.connector.failure.set_exception(TransformFailed("fenced"))
        assert problems(cache.connector, 0.0) == ["the connector cannot go on: fenced"]
        assert cache.connector.failure.exception() is not None

    def stopped(cache: Cache) -> None:
        cache.connector.failure.cancel()
        assert problems(cache.connector, 0.0) == ["the connector was stopped"]

    def ended(cache: Cache) -> None:
        cache.connector.failure.set_result(None)
        assert problems(cache.connector, 0.0) == ["the connector was stopped"]

    for test in (failed, stopped, ended):
        of_a(test)


def test_segments_that_are_not_written() -> None:
    def test(cache: Cache) -> None:
        cache.connector.observed.kafka_answered(0.0)
        assert problems(cache.connector, 0.0) == ["the positions topic is not read to its end yet"]
        cache.connector.started = True
        assert problems(cache.connector, 0.0) == []
        cache.connector.observed.kafka_away = "down"
        assert problems(cache.connector, 0.0) == ["Kafka cannot be used: down"]
        cache.connector.observed.kafka_answered(0.0)
        cache.own_all()
        segments = list(cache.core.primaries())
        for segment, phase in zip(segments, [Phase.WRITING, Phase.RELEASING, Phase.RELEASED], strict=False):
            segment.phase = phase
        for segment in segments[3:]:
            segment.phase, segment.stopped_by = Phase.STOPPED, "why"
        assert problems(cache.connector, 0.0) == [f"segment {n} is stopped: why" for n in range(3, 8)]
        segments[2].phase, segments[2].stopped_by = Phase.STOPPED, "why"
        said = [f"segment {n} is stopped: why" for n in range(2, 7)]
        assert problems(cache.connector, 0.0) == [*said, "and 1 more segments are stopped"]
        segments[7].phase, segments[2].phase = Phase.LOOK, Phase.WRITING
        waiting = "1 segments are not being written yet, segment 7 is in look"
        assert problems(cache.connector, 0.0) == [*(f"segment {n} is stopped: why" for n in range(3, 7)), waiting]

    of_a(test)


@pytest.mark.parametrize(
    ("health", "status"),
    [
        (Health(True, True), "healthy"),
        (Health(True, True, ("why",)), "unhealthy"),
        (Health(True, False), "starting"),
        (Health(False, False), "unhealthy"),
        (Health(False, True), "unhealthy"),
    ],
)
def test_the_words(health: Health, status: str) -> None:
    shown = {"status": status, "alive": health.alive, "ready": status == "healthy", "reasons": list(health.reasons)}
    assert health.body() == shown
