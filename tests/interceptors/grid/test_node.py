"""What a node logs when it ends. It has no peers, and Kafka is not asked."""

from __future__ import annotations

import asyncio

import pytest

from deelog_interceptors.grid.node import Node
from deelog_schemas.config import parse


def test_a_node_that_had_no_time_to_hand_over_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_time(self: Node) -> bool:
        raise TimeoutError

    monkeypatch.setattr(Node, "_has_left", no_time)

    async def work() -> None:
        config = {"node.id": "n1", "bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p", "cache.name": "c"}
        await Node(parse(config)).stop()

    asyncio.run(work())
    (line,) = [line for line in caplog.messages if "could not hand over" in line]
    assert line.endswith("could not hand over all of its segments: no time left")
