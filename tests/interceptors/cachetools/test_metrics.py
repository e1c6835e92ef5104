"""What is measured of a captured cache."""

from __future__ import annotations

import asyncio
from typing import Any

from deelog_interceptors.cachetools.change_queue import CHECKED, ChangeQueue
from deelog_interceptors.cachetools.metrics import CaptureMetrics
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.telling import Skipped
from deelog_schemas.operation import Reason


def test_its_figures() -> None:
    async def measured() -> CaptureMetrics:
        return CaptureMetrics(changes, mirror, skipped, "shop", "sessions")

    changes, mirror, skipped = ChangeQueue(), Mirror(4, False, lambda moment: None), Skipped(3)
    metrics = asyncio.run(measured())

    def figures() -> dict[str, Any]:
        return {family.name: value for family in metrics.figures() for _, value in family.samples}

    assert {labels for family in metrics.figures() for labels, _ in family.samples} == {("shop", "sessions")}
    changes.queue.extend([(Reason.PUT, "a", "1", None, 1.0, None), (CHECKED, "a", "2", None, 1.0, None)])
    names = [f"deelog_capture_{name}" for name in ("divergence", "entries", "pending", "skipped")]
    assert figures() == dict(zip(names, (0, 0, 2, 3), strict=True))
    mirror.drain(changes, None, 9)
    skipped.number += 1
    assert figures() == dict(zip(names, (1, 1, 0, 4), strict=True))
    assert metrics.problems() == []
