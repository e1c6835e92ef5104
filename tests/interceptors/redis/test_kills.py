"""`make kills-redis`, briefly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interceptors.redis.kills import run


@pytest.mark.slow
@pytest.mark.kafka
def test_kills_at_random_instants(tmp_path: Path) -> None:
    """What is wrong raises."""
    report = run(5, 4, tmp_path)
    assert report.kinds.total() == 5
    assert report.entries > 20
    assert report.resets["initial"] == 16384
