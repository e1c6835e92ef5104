"""Captures on a Kafka in memory."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.runtime import Connector
from deelog_interceptors.cachetools import runner
from tests.support.memory import LiveMemory


@pytest.fixture
def live(live: LiveMemory, monkeypatch: pytest.MonkeyPatch) -> LiveMemory:
    """A Kafka in memory, in real time. All captures of the test write to it."""

    def connector(*given: Any, **named: Any) -> Connector:
        return Connector(*given, **named, port=live.port())

    monkeypatch.setattr(runner, "Connector", connector)
    return live
