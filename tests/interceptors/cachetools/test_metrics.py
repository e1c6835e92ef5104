"""What is measured of a captured cache."""

from __future__ import annotations

import asyncio
from typing import Any

from deelog_interceptors.cachetools.change_queue import CHECKED, ChangeQueue
from deelog_interceptors.cachetools.metrics import CaptureMetrics
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_schemas.operation import Reason


def test_its_figures() -> None:
    async def measured() -> CaptureMetrics:
        return CaptureMetrics(changes, mirror, "shop", "sessions")

    changes, mirror = ChangeQueue(), Mirror(4, False, lambda moment: None)
    metrics = asyncio.run(measured())

    def figures() -> dict[str, Any]:
        return {family.name: value for family in metrics.figures() for _, value in family.samples}

    assert {labels for family in metrics.figures() for labels, _ in family.samples} == {("shop", "sessions")}
    changes.queue.extend([(Reason.PUT, "a", "1", None, 1.0, None), (CHECKED, "a", "2", None, 1.0, None)])
    assert figures() == {"deelog_capture_divergence": 0, "deelog_capture_entries": 0, "deelog_capture_pending": 2}
    mirror.drain(changes, None, 9)
    assert figures() == {"deelog_capture_divergence": 1, "deelog_capture_entries": 1, "deelog_capture_pending": 0}
    assert metrics.problems() == []
