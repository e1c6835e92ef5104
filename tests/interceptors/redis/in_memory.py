"""Servers in memory, in virtual time."""

from __future__ import annotations

from itertools import permutations
from typing import Final

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.network import Network
from deelog_proof.memory.port import START_NS
from deelog_proof.memory.redis_cluster import ClusterNode
from deelog_proof.memory.redis_keyspace import Reply, Words
from deelog_proof.memory.redis_server import RedisServer

FIRST_PORT: Final = 7000


class Servers:
    """Servers by number, each on a loop `r<number>`, and others' loops. End it with `end`."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.network = engine, Network(engine)
        self.loops: dict[str, NodeLoop] = {}
        """The newest of each name."""
        self._made: list[NodeLoop] = []
        self._servers: dict[int, RedisServer] = {}

    def __getitem__(self, number: int) -> RedisServer:
        return self._servers[number]

    def loop(self, name: str) -> NodeLoop:
        """A new process's."""
        loop = self.loops[name] = NodeLoop(self.engine, name, self.network)
        self._made.append(loop)
        return loop

    def serve(self, number: int, cluster: ClusterNode | None = None) -> int:
        """A new server, without data; its port."""
        loop, port = self.loop(f"r{number}"), FIRST_PORT + number
        server = RedisServer(port, self.engine.stream(f"ids of {number}"), self._wall_ms, cluster=cluster)
        self._servers[number] = server
        loop.within(loop.create_task, server.serve())
        return server.port

    def cluster(self, *shards: set[int]) -> list[int]:
        """New servers from 1 on, which are a cluster: a primary for each set of slots, then a replica of each.

        Returns their ports.
        """
        count = len(shards)
        nodes = [ClusterNode(f"{number:040x}", FIRST_PORT + number) for number in range(1, 2 * count + 1)]
        for epoch, (node, slots) in enumerate(zip(nodes, shards, strict=False), 1):
            node.me.slots, node.me.epoch, node.epoch = slots, epoch, count
        for node, other in permutations(nodes, 2):
            node.hear(other)
        ports = [self.serve(number, node) for number, node in enumerate(nodes, 1)]
        for number in range(1, 2 * count + 1):
            self[number].ask_other = self._ask_other
        for number in range(count + 1, 2 * count + 1):
            self.loops[f"r{number}"].within(self[number].replicate, nodes[number - count - 1].me.id)
        self._gossip(2 * count)
        return ports

    def _ask_other(self, port: int, words: Words) -> Reply | None:
        number = port - FIRST_PORT
        (reply,) = self.loops[f"r{number}"].within(self[number].execute_all, [words], True)
        return reply

    def _gossip(self, count: int) -> None:
        for one, other in permutations(range(1, count + 1), 2):
            known = self[other].cluster
            assert known is not None
            self.loops[f"r{one}"].within(self[one].hear, known)
        self.engine.after(0.1, self._gossip, count)

    def _wall_ms(self) -> int:
        return (START_NS + int(self.engine.now * 1e9)) // 1_000_000

    def follow(self, number: int, port: int) -> None:
        """REPLICAOF."""
        self.loops[f"r{number}"].within(self[number].follow, "127.0.0.1", port)

    def lead(self, number: int) -> None:
        """REPLICAOF NO ONE."""
        self.loops[f"r{number}"].within(self[number].lead)

    def end(self) -> None:
        """Ends all processes."""
        for loop in self._made:
            loop.bury()
