"""Tests with stock consumers: they take minutes, and some fetch environments and jars of their own on first use."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.kafka import Broker
from tests.system.consumers import history
from tests.system.consumers.history import History, Short
from tests.system.consumers.readers import Place

_REASON = (
    "consumers: starts Flink, Spark, Pathway and Kafka Connect's classes again and again, for minutes, and fetches "
    "half a gigabyte of their packages once; `make test-consumers` runs them"
)


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and why these tests are left out without `-m consumers`."""
    config.addinivalue_line("markers", _REASON)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Left out, not skipped: whoever runs the tests without them has asked for what is quick."""
    if "consumers" in config.getoption("markexpr"):
        return
    ours = [item for item in items if item.get_closest_marker("consumers")]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def histories(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], History]:
    """The topic of a cache with a hard life, by `reset.strategy`; made when it is first asked for."""

    @cache
    def made(strategy: str) -> History:
        return history.make(tmp_path_factory.mktemp(strategy), kafka.bootstrap, f"t{uuid.uuid4().hex[:12]}", strategy)

    return made


@pytest.fixture(scope="session")
def shorts(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Short]:
    """The topic of a cache with these entries and this configuration; made when it is first asked for."""

    @cache
    def made(entries: tuple[tuple[bytes, bytes], ...], config: tuple[tuple[str, str], ...]) -> Short:
        prefix = f"t{uuid.uuid4().hex[:12]}"
        return history.short(tmp_path_factory.mktemp("short"), kafka.bootstrap, prefix, dict(entries), dict(config))

    return made


@pytest.fixture
def place(kafka: Broker, tmp_path: Path) -> Callable[[str], Place]:
    """Where to read a topic; the folder is the test's own."""
    return lambda topic: Place(kafka.bootstrap, topic, tmp_path)
