"""Tests of docker-compose.yml: they need a Docker engine, minutes and gigabytes, so they run only where asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.compose.stack import Stack

_HERE = Path(__file__).parent
_REASON = "compose: builds and runs the images of docker-compose.yml with Docker; `make test-compose` runs them"


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and why these tests are left out without `-m compose`."""
    config.addinivalue_line("markers", _REASON)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Left out, not skipped: nobody who runs the tests without Docker is missing something."""
    if "compose" in config.getoption("markexpr"):
        return
    ours = [item for item in items if _HERE in item.path.parents]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The whole of docker-compose.yml, healthy; containers, volumes and network go afterwards."""
    running = Stack()
    try:
        running.up()
        yield running
    finally:
        running.down()
