"""Grids for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interceptors.grid import in_memory
from tests.interceptors.grid.cluster import Grid
from tests.support.kafka import Broker


@pytest.fixture
def grid(kafka: Broker, prefix: str, tmp_path: Path) -> Iterator[Grid]:
    """A grid without nodes yet: call `start(count)`."""
    found = Grid(tmp_path, kafka.bootstrap, prefix)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def memory_grid() -> Iterator[in_memory.Grid]:
    """A grid in memory, without nodes yet."""
    found = in_memory.Grid()
    try:
        yield found
    finally:
        found.end()
