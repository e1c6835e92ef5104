"""Grids with an API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interceptors.grid.cluster import Grid
from tests.support.kafka import Broker

# None of these tests depends on how soon a dead node is detected.
_PATIENT = {"cache_failure_timeout_ms": "3000"}


@pytest.fixture
def grid(kafka: Broker, prefix: str, tmp_path: Path) -> Iterator[Grid]:
    """A grid without nodes yet."""
    found = Grid(tmp_path, kafka.bootstrap, prefix, **_PATIENT)
    try:
        yield found
    finally:
        found.end()
