"""A Sentinel's process."""

from __future__ import annotations

from typing import Final

from deelog_interceptors.redis.address import Address
from deelog_proof.memory.redis_sentinel import RedisSentinel
from deelog_proof.simulation.hosted import Hosted, Surroundings
from deelog_proof.simulation.redis.server import HOST, port_of

MASTER: Final = "m"
"""The name by which Sentinels know the primary."""
_FIRST_PORT: Final = 7100


class Watcher(Hosted):
    """Under `s<number>`. It names the server of that node id at first."""

    def __init__(self, around: Surroundings, node_id: str, member: str, primary: str) -> None:
        super().__init__(around, node_id)
        self.member = member
        self.redis = RedisSentinel(watched_at(node_id), MASTER, _at(primary))
        self.loop.within(self.loop.create_task, self.redis.serve())

    def hear(self, primary: str) -> None:
        """Another server is primary, as it hears once it runs."""
        self.now(self.redis.name, _at(primary))


def watched_at(node_id: str) -> int:
    """Where that Sentinel listens."""
    return _FIRST_PORT + int(node_id[1:])


def _at(server: str) -> Address:
    return Address(HOST, port_of(server))
