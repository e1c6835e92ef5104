"""What health says of a connector that has not started: Kafka is not asked."""

from __future__ import annotations

from collections.abc import Callable

from deelog_connector.errors import TransformFailed
from deelog_connector.metrics.families import figures
from deelog_connector.metrics.health import problems
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
