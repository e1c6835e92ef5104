"""Real node processes of one grid, which tests kill, stop, continue and restart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.support.waiting import waiting

START_SECONDS = 90.0
_LINE = re.compile(r"deelog node (\S+) serves (\S+):(\d+) peers (\S+)")

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 60.0, what: str = "what was asked of the nodes") -> T:
    """Like `waiting`, but tries again after an error of Redis: nodes die and restart."""

    def answer() -> T | None:
        try:
            return condition()
        except RedisError:
            return None

    return waiting(answer, seconds, what)


def is_complete(stats: list[dict[str, Any]], config: dict[str, str], count: int) -> bool:
    """Whether, by what they tell of the grid, `count` nodes share the segments, and all copies are in sync."""
    segments = int(config["segment.count"])
    copies = min(count, int(config.get("cache.backups", "1")) + 1)
    return (
        len(stats) == count
        and len({s["topology_id"] for s in stats}) == 1
        and sum(s["in_sync"] for s in stats) == segments * copies
        and sum(s["segments"].get("primary", 0) for s in stats) == segments
        and all(s["segments"].get("primary", 0) <= segments // count + 2 for s in stats)
    )


class GridNode:
    """One `deelog node` process."""

    def __init__(self, directory: Path, node_id: str, config: dict[str, str]) -> None:
        self.node_id = node_id
        self.config = config | {"node.id": node_id}
        directory.mkdir(exist_ok=True)
        self._file = directory / f"{node_id}.properties"
        self._log = directory / f"{node_id}.log"
        self.member = ""
        self.port = 0
        self.clock_ahead = 0
        """Seconds by which its clock goes ahead of the machine's."""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it; `wait()` returns once it serves."""
        self._file.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        clock = f"import time; now = time.time_ns; time.time_ns = lambda: now() + {self.clock_ahead} * 10**9; "
        command = [sys.executable, "-c", f"{clock}from deelog_connector.cli import main; main()"]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "node", "--config", str(self._file), "--log-level", "INFO"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait(self) -> None:
        """Waits for the line that it prints once it serves."""
        assert self.process is not None
        assert self.process.stdout is not None
        process, stdout = self.process, self.process.stdout
        os.set_blocking(stdout.fileno(), False)
        line = ""

        def complete() -> bool:
            nonlocal line
            assert process.poll() is None, self.log
            line += stdout.readline()
            return line.endswith("\n")

        waiting(complete, START_SECONDS, f"{self.node_id} to serve, see {self._log}")
        match = _LINE.fullmatch(line.strip())
        assert match is not None, line
        self.member, self.port = match[1], int(match[3])

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Sends `number`; after SIGSTOP, returns once every thread of the node has stopped."""
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            assert os.waitid(os.P_PID, self.process.pid, os.WSTOPPED) is not None

    def kill(self) -> None:
        """`kill -9`."""
        self.signal(signal.SIGKILL)
        self.ended()

    def ended(self, seconds: float = 30.0) -> int:
        """The exit code, once it ended."""
        assert self.process is not None
        code = self.process.wait(seconds)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def redis(self) -> Redis:
        return Redis(port=self.port, socket_timeout=5, retry=Retry(ConstantBackoff(0), 0))

    def stats(self) -> dict[str, Any]:
        with self.redis as client:
            found: dict[str, Any] = json.loads(client.execute_command("DEELOG.STATS"))
        return found

    def dump(self, segment: int) -> tuple[str, tuple[int, int], dict[bytes, tuple[bytes, int]]]:
        """`role, (epoch, sequence), entries` of a segment on this node."""
        with self.redis as client:
            role, epoch, sequence, *entries = client.execute_command("DEELOG.DUMP", segment)
        return role.decode(), (epoch, sequence), {key: (value, expiry) for key, value, expiry in entries}


class Grid:
    """Nodes of one cache."""

    def __init__(self, directory: Path, bootstrap: str, prefix: str, **config: str) -> None:
        self.directory = directory
        self.config = {
            "topic.prefix": prefix,
            "cache.name": "c",
            "bootstrap.servers": bootstrap,
            "cache.listen": "127.0.0.1:0",
            "cache.failure.timeout.ms": "1000",
            "segment.count": "32",
            "topic.creation.default.partitions": "2",
        } | {name.replace("_", "."): value for name, value in config.items()}
        self.nodes: dict[str, GridNode] = {}
        self._made: list[GridNode] = []

    def node(self, node_id: str, **config: str) -> GridNode:
        """A new node, not started yet."""
        extra = {name.replace("_", "."): value for name, value in config.items()}
        made = GridNode(self.directory / str(len(self._made)), node_id, self.config | extra)
        self._made.append(made)
        return made

    def start(self, count: int) -> None:
        """Starts `n1` … together. Returns once all serve, and all copies are in sync and written."""
        for number in range(1, count + 1):
            node = self.nodes[f"n{number}"] = self.node(f"n{number}")
            node.start()
        for node in self.nodes.values():
            node.wait()
        self.complete(count)
        self.written()

    def written(self) -> None:
        """Waits until each segment's state is in Kafka: an owner that dies now leaves no incomplete reset."""
        eventually(lambda: all(node.stats()["unwritten"] == 0 for node in self.live()), 90, "everything written")

    def complete(self, count: int) -> None:
        """Waits until `count` nodes share the segments and all copies are in sync."""
        eventually(lambda: self._is_complete(count), 90, f"{count} nodes with all copies")

    def _is_complete(self, count: int) -> bool:
        return is_complete([node.stats()["grid"] for node in self.live()], self.config, count)

    def live(self) -> list[GridNode]:
        return [node for node in self.nodes.values() if node.alive]

    def client(self) -> RedisCluster:
        nodes = [ClusterNode("127.0.0.1", node.port) for node in self.live()]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, socket_timeout=10)

    def primary_of(self, segment: int) -> GridNode:
        """The node that is primary of the segment."""
        found = eventually(lambda: [n for n in self.live() if n.dump(segment)[0] == "primary"])
        return found[0]

    def end(self) -> None:
        """Kills the nodes that still run."""
        for node in self._made:
            if node.alive:
                node.signal(signal.SIGKILL)
            if node.process is not None:
                node.ended()
