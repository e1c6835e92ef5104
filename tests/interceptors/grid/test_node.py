"""What a node logs when it ends. It has no peers, and Kafka is not asked."""

from __future__ import annotations

import asyncio
import socket

import pytest

from deelog_interceptors.grid.node import Node
from deelog_schemas.config import Config, ConfigError, parse


def config_of(**fields: str) -> Config:
    given = {"node.id": "n1", "bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p", "cache.name": "c"}
    return parse(given | {name.replace("_", "."): value for name, value in fields.items()})


def test_a_node_that_had_no_time_to_hand_over_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_time(self: Node) -> bool:
        raise TimeoutError

    monkeypatch.setattr(Node, "_has_left", no_time)

    async def work() -> None:
        await Node(config_of()).stop()

    asyncio.run(work())
    (line,) = [line for line in caplog.messages if "could not hand over" in line]
    assert line.endswith("could not hand over all of its segments: no time left")


@pytest.mark.parametrize("field", ["cache.listen", "cache.peer.listen"])
def test_an_address_that_is_taken_is_an_error_of_its_field(field: str) -> None:
    async def work(taken: str) -> None:
        free = {"cache.listen": "127.0.0.1:0", "cache.peer.listen": "127.0.0.1:0"}
        node = Node(config_of(**free | {field: taken}))
        try:
            await node.start()
        finally:
            await node.abort()

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError) as refused:
            asyncio.run(work(taken))
    assert f"{field} = {taken}: cannot be listened on (" in str(refused.value)
    assert str(refused.value).endswith("): name another port or host")
