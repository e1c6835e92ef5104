"""The demo's nodes from outside: config files, processes, and their replies over RESP.

`CLUSTER SLOTS` gives the primaries, `DEELOG.STATS` a node's counters, `DEELOG.DUMP <segment>` a segment's entries.
Counters end with their process, so they are polled and the last reply of every process is kept.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import javaproperties
import orjson
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_proof.harness.child import Child, deelog_command, until
from deelog_schemas.errors import DeelogError
from deelog_schemas.operation import Entry

START_SECONDS = 90.0
SETTLE_SECONDS = 120.0
_ANSWER_SECONDS = 2.0
DUMP_SECONDS = 30.0
_SLOTS = 16384
_POLL_EVERY = 0.5
_READY_LINE: Final = "deelog node "


class Slots(NamedTuple):
    """A range of hash slots, both ends included, and the port of its primary."""

    first: int
    last: int
    port: int


class Held(NamedTuple):
    """A segment on a node: its role, the last position, and the entries."""

    role: str
    epoch: int
    sequence: int
    entries: list[Entry]


class ClusterError(DeelogError):
    """The cluster does not work as it should; the message says what was expected."""


class MovedError(ClusterError):
    """A segment moved: the view that was read names another primary."""


class Node(Child):
    """One `deelog node` process with its config file; keeps its address over restarts."""

    def __init__(self, node_id: str, directory: Path, settings: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.port = free_port()
        config = directory / f"{node_id}.properties"
        own = {"node.id": node_id, "cache.listen": f"{HOST}:{self.port}"}
        config.write_text(javaproperties.dumps({**settings, **own}, timestamp=False))
        command = deelog_command("node", "--config", str(config))
        super().__init__(f"node {node_id}", command, directory / f"{node_id}.log")

    def client(self, seconds: float = _ANSWER_SECONDS) -> Redis:
        """A connection to this node; a reply that takes longer than `seconds` is an error."""
        return Redis(
            host=HOST,
            port=self.port,
            socket_timeout=seconds,
            socket_connect_timeout=_ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def stats(self) -> dict[str, Any] | None:
        """Its counters and its member, None where it does not reply."""
        if self.pid is None:
            return None
        try:
            with self.client() as client:
                answer: Any = client.execute_command("DEELOG.STATS")
        except RedisError:
            return None
        stats: dict[str, Any] = orjson.loads(answer)
        return {**stats, "member": stats["grid"]["member"]}

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Returns once it has printed its addresses. Raises `ProcessError` if it ended instead."""

        def serves() -> bool:
            self.must_run()
            return self.line(_READY_LINE) is not None

        until(serves, seconds, f"{self.name} to serve; its log {self.tail()}")

    def slots(self) -> list[Slots] | None:
        """The primaries in its view, None where it does not reply."""
        try:
            with self.client() as client:
                answer: Any = client.execute_command("CLUSTER SLOTS")
        except RedisError:
            return None
        return [Slots(first, last, primary[1]) for first, last, primary, *_ in answer]

    def held(self, client: Redis, segment: int) -> Held:
        """Its entries of a segment, as primary or as backup. `ClusterError` where it does not reply."""
        try:
            answer: Any = client.execute_command("DEELOG.DUMP", segment)  # type: ignore[no-untyped-call]
        except RedisError as error:
            raise ClusterError(f"{self.name} does not dump segment {segment}: {error}") from error
        role, epoch, sequence, *rows = answer
        entries = [Entry(key, value, None if expires_at < 0 else expires_at) for key, value, expires_at in rows]
        return Held(role.decode(), epoch, sequence, entries)


class Cluster:
    """All nodes of the demo. `settings` are their shared config fields, `own` those of one node, by name."""

    def __init__(
        self,
        names: Iterable[str],
        directory: Path,
        settings: Mapping[str, str],
        own: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.nodes = [Node(name, directory, {**settings, **(own or {}).get(name, {})}) for name in names]
        self.segments = int(settings["segment.count"])

    def __str__(self) -> str:
        return f"{len(self.nodes)} nodes serve {self.segments} segments, each with a primary and its backups"

    @property
    def processes(self) -> Sequence[Child]:
        return self.nodes

    @property
    def servers(self) -> Sequence[Node]:
        return self.nodes

    def a_primary(self) -> Node:
        """The last node, which as a rule is one of some segments."""
        return self.nodes[-1]

    def start(self) -> None:
        """Starts every node and returns once each segment has its primary and all its backups."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready()
        self.wait_whole()

    def by_port(self, port: int) -> Node:
        """The node that listens at this port."""
        return next(node for node in self.nodes if node.port == port)

    def addresses(self) -> list[tuple[str, int]]:
        """Where clients connect."""
        return [(HOST, node.port) for node in self.nodes]

    def slots(self) -> list[Slots]:
        """The view of the first node that replies; empty where none does."""
        return next((view for node in self.nodes if node.pid and (view := node.slots())), [])

    def primaries(self) -> Counter[str]:
        """How many segments each node is primary of."""
        segments: Counter[str] = Counter()
        for part in self.slots():
            segments[self.by_port(part.port).node_id] += (part.last - part.first + 1) * self.segments // _SLOTS
        return segments

    def wait_whole(self, seconds: float = SETTLE_SECONDS) -> float:
        """Waits until all nodes run and report the same view, in which every segment has a primary and all its
        backups in sync and none is moving (a move needs Kafka). Returns the seconds taken."""

        def whole() -> bool:
            for node in self.nodes:
                node.must_run()
            answers = [node.stats() for node in self.nodes]
            # Each node reports on its own view only: they must have the same.
            views = {stats["grid"]["topology_id"] if stats else None for stats in answers}
            owing = ("offline", "under_replicated", "moving")
            return len(views) == 1 and all(stats and not any(stats["grid"][o] for o in owing) for stats in answers)

        return until(whole, seconds, "every segment to have a primary and all its backups in sync", 0.1)

    def wait_without(self, gone: Iterable[Node]) -> float:
        """Waits until other nodes are primaries of all segments of `gone`. Returns the seconds taken."""
        ports = {node.port for node in gone}
        others = [node for node in self.nodes if node.port not in ports and node.pid]

        def taken_over() -> bool:
            views = [node.slots() for node in others]
            return all(
                view is not None
                and sum(part.last - part.first + 1 for part in view) == _SLOTS
                and not any(part.port in ports for part in view)
                for view in views
            )

        return until(taken_over, SETTLE_SECONDS, "the other nodes to take over", 0.05)

    def dump(self) -> dict[bytes, Entry]:
        """All entries of all segments, each from its primary. Raises `ClusterError` where one does not answer.

        Segments may still move to their preferred primaries: then all is read again, by the next view.
        """
        return self._dump()

    @retry(
        retry=retry_if_exception_type(MovedError),
        wait=wait_fixed(0.5),
        stop=stop_after_delay(SETTLE_SECONDS),
        reraise=True,
    )
    def _dump(self) -> dict[bytes, Entry]:
        entries: dict[bytes, Entry] = {}
        view = self.slots()
        with ExitStack() as stack:
            clients = {n.port: stack.enter_context(n.client(DUMP_SECONDS)) for n in self.nodes}
            for segment in range(self.segments):
                slot = -(-segment * _SLOTS // self.segments)
                part = next((part for part in view if part.first <= slot <= part.last), None)
                if part is None:
                    raise MovedError(f"segment {segment} has no primary")
                node = self.by_port(part.port)
                held = node.held(clients[part.port], segment)
                if held.role != "primary":
                    raise MovedError(f"{node.name} is {held.role} of segment {segment}, not primary")
                entries.update((entry.key, entry) for entry in held.entries)
        return entries


class Polled(Protocol):
    """A process with a connector."""

    node_id: str

    def stats(self) -> dict[str, Any] | None:
        """Its counters and its member, None where it does not reply."""


class Monitor:
    """Polls the counters of all nodes and keeps the last reply of every process."""

    def __init__(self, nodes: Sequence[Polled]) -> None:
        self._nodes = nodes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._last: dict[str, dict[str, Any]] = {}
        """By member; a restarted process is another member."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def poll(self, node: Polled) -> dict[str, Any] | None:
        """A node's counters; None where it does not reply."""
        stats = node.stats()
        if stats is not None:
            self._last[stats["member"]] = stats
        return stats

    def total(self, *path: str) -> int:
        """A counter, or all counters below a name, summed over all processes that ever replied."""
        return sum(_sum(stats, path) for stats in list(self._last.values()))

    def members(self, node: Polled) -> list[dict[str, Any]]:
        """The last replies of all processes of a node."""
        return [stats for member, stats in list(self._last.items()) if member.startswith(f"{node.node_id}@")]

    def _run(self) -> None:
        while not self._stopped.is_set():
            begin = time.monotonic()
            for node in self._nodes:
                self.poll(node)
            self._stopped.wait(max(0.0, begin + _POLL_EVERY - time.monotonic()))


def _sum(stats: Mapping[str, Any], path: Iterable[str]) -> int:
    value: Any = stats
    for name in path:
        value = value.get(name, 0)
    return sum(value.values()) if isinstance(value, Mapping) else int(value)


def is_stopped(node: Child) -> bool:
    """Whether a process is stopped by SIGSTOP, from `/proc`."""
    if node.pid is None:
        return False
    stat = Path(f"/proc/{node.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"
