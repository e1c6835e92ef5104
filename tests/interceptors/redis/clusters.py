"""Real clusters: shards of a primary and a replica each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from deelog_connector.devkafka.ports import HOST, free_ports
from deelog_interceptors.redis.view import of_cluster
from deelog_schemas.keys import SLOTS, slot_of
from tests.interceptors.redis.servers import Server, running
from tests.support.waiting import waiting

TAGS = [f"{{{tag}}}" for tag in ("a", "b", "c", "d", "e", "f")]
SOME = sorted({slot_of(tag.encode()) for tag in TAGS} | set(range(0, SLOTS, 512)))
"""The slots of the keys that `load` writes, and others."""


class Cluster:
    """`servers`: the primaries, then as many replicas of them, in the same order."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.names = [_name(server) for server in servers]
        self.client = redis.RedisCluster(HOST, servers[0].port, require_full_coverage=False)

    def name_of(self, server: Server) -> str:
        """The node's id."""
        return self.names[self.servers.index(server)]

    def owner(self, slot: int) -> Server:
        """The primary of a slot, as it sees itself."""
        return next(each for each in self.primaries() if slot in of_cluster(each.ask("CLUSTER", "NODES")).writes)

    def living(self) -> list[Server]:
        return [server for server in self.servers if server.process.poll() is None]

    def primaries(self) -> list[Server]:
        return [server for server in self.living() if server.ask("ROLE")[0] in (b"master", "master")]

    def is_settled(self) -> bool:
        """Whether all that live serve, and see the same primaries, which live."""
        servers = self.living()
        if any(b"cluster_state:ok" not in server.ask("CLUSTER", "INFO") for server in servers):
            return False
        views, living = [_slots_of(server) for server in servers], {server.port for server in servers}
        return all(view == views[0] for view in views) and set(views[0].values()) <= living

    def move(self, slot: int, target: Server, *, most: int | None = None) -> None:
        """Moves a slot key by key, as `redis-cli` does, or `most` keys of it and no more."""
        source = self.owner(slot)
        one, other = self.name_of(source), self.name_of(target)
        target.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", one)
        source.ask("CLUSTER", "SETSLOT", str(slot), "MIGRATING", other)
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "10000")[:most]
        for key in keys:
            source.ask("MIGRATE", HOST, str(target.port), key, "0", "5000")
        if most is None:
            others = [each for each in self.primaries() if each not in (target, source)]
            for server in (target, source, *others):
                server.ask("CLUSTER", "SETSLOT", str(slot), "NODE", other)

    def move_at_once(self, slot: int, target: Server) -> None:
        """Moves a slot as a whole, as Valkey 9 does."""
        name = self.name_of(target)
        self.owner(slot).ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", str(slot), str(slot), "NODE", name)
        waiting(lambda: self.owner(slot) is target, 20, "the move")

    def other(self, slot: int) -> Server:
        """A primary that has not that slot."""
        owner = self.owner(slot)
        return next(each for each in self.primaries() if each is not owner)

    def abort(self, slot: int, source: Server, target: Server) -> None:
        """Takes a move back that has begun: what has gone comes back."""
        one = self.name_of(source)
        source.ask("CLUSTER", "SETSLOT", str(slot), "STABLE")
        for key in target.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "10000"):
            target.ask("MIGRATE", HOST, str(source.port), key, "0", "5000")
        for server in (source, target):
            server.ask("CLUSTER", "SETSLOT", str(slot), "NODE", one)

    def close(self) -> None:
        self.client.close()


@contextmanager
def cluster_of(name: str, folder: Path, shards: int, slots: Sequence[int] = range(SLOTS)) -> Iterator[Cluster]:
    """With these slots only, which take less time than all."""
    with ExitStack() as stack:
        servers = []
        for number in range(2 * shards):
            (bus,) = free_ports(1)
            more = ["--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "1500"]
            more += ["--cluster-replica-validity-factor", "0", "--repl-backlog-size", "64mb"]
            more += ["--cluster-require-full-coverage", "no"]
            servers.append((stack.enter_context(running(name, folder / str(number), *more)), bus))
        first, first_bus = servers[0]
        for number, (server, _) in enumerate(servers):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            if number < shards:
                server.ask("CLUSTER", "ADDSLOTS", *(str(slot) for slot in slots if slot * shards // SLOTS == number))
            if number:
                server.ask("CLUSTER", "MEET", HOST, str(first.port), str(first_bus))
        everyone = [server for server, _ in servers]
        waiting(lambda: all(_knows(server, 2 * shards) for server in everyone), 30, "all nodes know of all")
        for primary, replica in zip(everyone[:shards], everyone[shards:], strict=True):
            replica.ask("CLUSTER", "REPLICATE", _name(primary))
        waiting(lambda: all(is_up(server) for server in everyone), 30, "the cluster")
        found = Cluster(everyone)
        stack.callback(found.close)
        yield found


def _slots_of(server: Server) -> dict[int, int]:
    """The port of the primary, by the first slot of each range, as a server sees it."""
    return {first: port for first, _, (_, port, *_), *_ in server.ask("CLUSTER", "SLOTS")}


def _name(server: Server) -> str:
    return str(server.ask("CLUSTER", "MYID").decode())


def _knows(server: Server, number: int) -> bool:
    nodes = server.ask("CLUSTER", "NODES").decode()
    return len(nodes.splitlines()) == number and "handshake" not in nodes


def is_up(server: Server) -> bool:
    """Whether it serves, and follows or is followed."""
    info = server.client.info("replication")
    follows = info["connected_slaves"] if info["role"] == "master" else info["master_link_status"] == "up"
    return b"cluster_state:ok" in server.ask("CLUSTER", "INFO") and bool(follows)


_PASSING = (
    redis.exceptions.ConnectionError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterError,
    redis.exceptions.RedisClusterException,
)
"""What a client says where a server is away, some keys of a command have moved, or nodes do not agree yet."""


def load(cluster: Cluster, seed: int, number: int = 200) -> None:
    """Commands of many kinds on a few keys of a few slots."""
    chance = random.Random(seed)
    ask: Any = cluster.client.execute_command
    for turn in range(number):
        tag, value = chance.choice(TAGS), f"v{turn}"
        key, other = (f"{tag}{chance.choice('abc')}" for _ in range(2))
        commands: list[tuple[str, ...]] = [
            ("SET", f"{key}:s", value),
            ("SET", f"{key}:s", value, "PX", "900000"),
            ("INCR", f"{key}:n"),
            ("DEL", f"{key}:s", f"{other}:h"),
            ("HSET", f"{key}:h", other, value),
            ("RPUSH", f"{key}:l", value),
            ("APPEND", f"{key}:s", "+"),
            ("MSET", f"{key}:s", value, f"{other}:s", value),
            ("COPY", f"{key}:s", f"{other}:c", "REPLACE"),
        ]
        with suppress(*_PASSING):
            ask(*chance.choice(commands))
