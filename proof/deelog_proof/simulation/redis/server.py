"""A server's process."""

from __future__ import annotations

from typing import Final

from deelog_proof.memory.port import START_NS
from deelog_proof.memory.redis_cluster import ClusterNode
from deelog_proof.memory.redis_server import RedisServer, Saved
from deelog_proof.simulation.hosted import Hosted, Surroundings

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 7000
DATA: Final = ("none", "same", "saved", "append-only")
"""What a server may have when it comes back: with `append-only` all keys, but nothing of its stream."""


class Server(Hosted):
    """Under `r<number>`. It loads `saved`, and follows the server of that node id, if there is one."""

    def __init__(
        self,
        around: Surroundings,
        node_id: str,
        member: str,
        backlog: int,
        saved: Saved | None,
        follows: str | None,
        cluster: ClusterNode | None = None,
    ) -> None:
        super().__init__(around, node_id)
        self.member = member
        port, chance = port_of(node_id), self.engine.stream(f"ids of {node_id}")
        self.redis = RedisServer(port, chance, self._wall_ms, backlog, cluster)
        if saved is not None:
            self.redis.load(saved, follows is not None)
        self.loop.within(self.loop.create_task, self.redis.serve())
        if follows is not None:
            self.follow(follows)

    def follow(self, node_id: str) -> None:
        """REPLICAOF, or CLUSTER REPLICATE."""
        if self.redis.cluster is None:
            self.loop.within(self.redis.follow, HOST, port_of(node_id))
        else:
            self.loop.within(self.redis.replicate, id_of(node_id))

    def lead(self) -> None:
        """REPLICAOF NO ONE."""
        self.loop.within(self.redis.lead)

    def _wall_ms(self) -> int:
        return (START_NS + int(self.engine.now * 1e9)) // 1_000_000


def port_of(node_id: str) -> int:
    """Where that server listens."""
    return FIRST_PORT + int(node_id[1:])


def server_at(port: int) -> str:
    """The node id of the one that listens there."""
    return f"r{port - FIRST_PORT}"


def id_of(node_id: str) -> str:
    """That of a server as a node of a cluster."""
    return f"{int(node_id[1:]):040x}"
