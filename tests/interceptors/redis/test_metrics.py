"""What a connector beside a server tells of itself, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deelog_connector.devkafka.ports import free_ports
from deelog_connector.metrics.shared_server import MetricsShare
from deelog_interceptors.redis.node import RedisNode
from deelog_schemas.config import parse
from tests.interceptors.redis.servers import running
from tests.interceptors.redis.test_node import caught_up, load, run, started
from tests.support.memory import LiveMemory
from tests.support.waiting import awaiting


async def got(port: int, path: str) -> str:
    """The page, also where it says that all is not well."""

    def fetch() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    return await asyncio.to_thread(fetch)


@contextmanager
def shown(node: RedisNode) -> Iterator[int]:
    """The port at which its metrics are, as those of a process."""
    (port,) = free_ports(1)
    config = parse({**node.connector.config.raw, "metrics.port": str(port)})
    share = MetricsShare(config, {node.cache: node.connector}, [node.metrics])
    try:
        yield port
    finally:
        share.close()


async def figures(port: int) -> dict[str, float]:
    """Those of the stream, by name."""
    lines = [line for line in (await got(port, "/metrics")).splitlines() if line.startswith("deelog_stream_")]
    found: dict[str, float] = {}
    for line in lines:
        name, _, rest = line.partition("{")
        assert rest.startswith(('name="shop",cache="sessions"}', 'cache="sessions",name="shop"}')), line
        found[name.removeprefix("deelog_stream_")] = float(line.rpartition(" ")[2])
    return found


async def reasons(port: int) -> Any:
    return json.loads(await got(port, "/health"))["reasons"]


def test_a_connector_tells_what_it_reads(live: LiveMemory, tmp_path: Path) -> None:
    async def work() -> None:
        with running("valkey", tmp_path / "server") as server, ExitStack() as stack:
            node = await started(live, server, max_entry_bytes="1000")
            port = stack.enter_context(shown(node))
            load(server, 1, 50)
            server.ask("SET", b"\xff", "v")  # type: ignore[arg-type]
            server.ask("RPUSH", "long", *("v" * 100 for _ in range(20)))
            core, tape = node.connector.core, node.capture.tape
            await awaiting(lambda: core.unwritten() == 0 and tape.length() == 0, 20, "all of it")
            found = await figures(port)
            offset = server.client.info("replication")["master_repl_offset"]
            assert found.pop("offset") == found.pop("acknowledged_offset") == offset
            assert found.pop("held_changes") == 0
            assert found == {
                "attached": 1,
                "primary": 1,
                "segments": 8,
                "outranked_segments": 0,
                "shed_segments_total": 0,
                "named_total": 0,
                "passed_over_total": 1,
                "unavailable_total": 1,
            }
            assert await reasons(port) == []
            node.capture.outranked.add(3)
            assert await reasons(port) == [
                f"127.0.0.1:{server.port}: another connector has claimed 1 segments that this one is to write"
            ]
            node.capture.outranked.clear()
            server.process.kill()
            await awaiting(lambda: not node.is_attached, 10, "the end of the link")
            assert await reasons(port) == [f"127.0.0.1:{server.port} gives no stream"]
            assert (await figures(port))["attached"] == 0
            await node.abort()

    run(live, work)


def test_a_replica_s_connector_keeps_what_the_other_writes(live: LiveMemory, tmp_path: Path) -> None:
    async def work() -> None:
        with running("valkey", tmp_path / "a") as first, running("valkey", tmp_path / "b") as second, ExitStack() as s:
            second.ask("REPLICAOF", "127.0.0.1", str(first.port))
            await awaiting(lambda: second.client.info("replication")["master_link_status"] == "up", 20, "replica")
            nodes = [await started(live, second, node_id="redis-2")]
            port = s.enter_context(shown(nodes[0]))
            load(first, 1, 20)
            await awaiting(lambda: nodes[0].capture.tape.length() > 0, 10, "its stream")
            found = await figures(port)
            assert (found["primary"], found["segments"], found["attached"]) == (0, 0, 1)
            assert found["held_changes"] > 0
            nodes.append(await started(live, first, node_id="redis-1"))
            await caught_up(live, first)
            assert await reasons(port) == []
            for node in nodes:
                await node.stop()

    run(live, work)
