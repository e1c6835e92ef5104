"""Parts of an environment that note what is done to them, and answer as a test wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deelog_proof.harness.cluster import Slots
from deelog_proof.harness.environment import Environment
from deelog_schemas.kafka.names import Topics
from deelog_schemas.operation import Entry


class Show:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.loads: list[tuple[str, int | None] | str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, what: str, total: int | None) -> None:
        self.loads.append((what, total))

    def end(self) -> None:
        self.loads.append("end")


class Process:
    """A child process, or Kafka. `calls` has what was done to it, in order with all that share the list."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls
        self.pid: int | None = 1
        self.exit_code: int | None = None
        self.lines: dict[str, str] = {}
        self.bootstrap = "127.0.0.1:9"

    def _note(self, what: str) -> None:
        self.calls.append(f"{what} {self.name}")

    def start(self) -> None:
        self._note("start")
        self.pid, self.exit_code = 1, None

    def kill(self) -> None:
        self._note("kill")
        self.pid, self.exit_code = None, -9

    def pause(self) -> None:
        self._note("pause")

    def resume(self) -> None:
        self._note("resume")

    def send(self, number: int) -> None:
        self._note(f"signal {number} to")

    def must_run(self) -> None:
        if self.pid is None:
            raise RuntimeError(f"{self.name} does not run")

    def line(self, prefix: str) -> str | None:
        return self.lines.get(prefix)

    def tail(self) -> str:
        return f"ends with: {self.name}'s last words"


class FakeNode(Process):
    """A node. `answers` are those to `stats`, the last one for ever."""

    def __init__(self, node_id: str, calls: list[str], port: int = 0) -> None:
        super().__init__(f"node {node_id}", calls)
        self.node_id, self.port = node_id, port
        self.answers: list[dict[str, Any] | None] = [{}]
        self.view: list[Slots] | None = None

    def stats(self) -> dict[str, Any] | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def slots(self) -> list[Slots] | None:
        return self.view

    def wait_ready(self) -> None:
        self._note("wait for")


class FakeCluster:
    """Nodes. `dumps` are the answers to `dump`, the last one for ever."""

    def __init__(self, names: Iterable[str], calls: list[str]) -> None:
        self.calls = calls
        self.nodes = [FakeNode(name, calls) for name in names]
        self.segments = 8
        self.owned: Counter[str] = Counter({node.node_id: 4 for node in self.nodes})
        self.dumps: list[Mapping[bytes, Entry]] = [{}]

    def __str__(self) -> str:
        return "nodes serve"

    @property
    def processes(self) -> list[FakeNode]:
        return self.nodes

    @property
    def servers(self) -> list[FakeNode]:
        return self.nodes

    def a_primary(self) -> FakeNode:
        return self.nodes[-1]

    def start(self) -> None:
        self.calls.append("start cluster")

    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", node.port) for node in self.nodes]

    def primaries(self) -> Counter[str]:
        return self.owned

    def wait_whole(self) -> float:
        self.calls.append("wait until whole")
        return 2.0

    def wait_without(self, gone: Iterable[FakeNode]) -> float:
        self.calls.append(f"wait without {', '.join(node.node_id for node in gone)}")
        return 1.25

    def dump(self) -> dict[bytes, Entry]:
        return dict(self.dumps.pop(0) if len(self.dumps) > 1 else self.dumps[0])


class FakeMonitor:
    """Counters by path: `totals` are the answers to `total`, the last one for ever."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.totals: list[int] = [0]
        self.refused: list[int] = [0]
        """The answers to `members`: commits of zombies that were refused."""

    def start(self) -> None:
        self.calls.append("start monitor")

    def stop(self) -> None:
        self.calls.append("stop monitor")

    def poll(self, node: FakeNode) -> dict[str, Any] | None:
        self.calls.append(f"poll {node.node_id}")
        return node.stats()

    def total(self, *path: str) -> int:
        self.calls.append(f"total {'.'.join(path)}")
        return self.totals.pop(0) if len(self.totals) > 1 else self.totals[0]

    def members(self, node: FakeNode) -> list[dict[str, Any]]:
        count = self.refused.pop(0) if len(self.refused) > 1 else self.refused[0]
        return [{"zombie_commits_refused": count}, {"zombie_commits_refused": 1}]


class Parts:
    """An environment of doubles."""

    def __init__(self, directory: Path, names: Iterable[str] = ("n1", "n2", "n3")) -> None:
        self.calls: list[str] = []
        self.show = Show()
        self.kafka = Process("Kafka", self.calls)
        self.diff = Process("Spark job", self.calls)
        self.cluster = FakeCluster(names, self.calls)
        self.monitor = FakeMonitor(self.calls)
        parts: tuple[Any, ...] = (self.kafka, self.cluster, self.monitor, self.diff)
        show: Any = self.show
        self.environment = Environment(show, directory, False, Topics("p", "c"), *parts)
