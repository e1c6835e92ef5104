"""The world as verbs and checker see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.redis_server import Saved
from deelog_proof.simulation.hosted import Hosted
from deelog_proof.simulation.redis.beside import Beside
from deelog_proof.simulation.redis.moves import Moves
from deelog_proof.simulation.redis.server import Server


class RedisContext(Protocol):
    """One run's servers and connectors."""

    engine: Engine
    kafka: Kafka
    segments: int
    partitions: int
    shards: int
    moves: Moves
    primaries: list[str]
    """By shard the node id of the server that is primary."""
    counts: Counter[str]
    """What has happened, as the world counts it."""
    saved: dict[str, Saved]
    """By node id what a server has saved last."""

    @property
    def nodes(self) -> Mapping[str, Hosted]:
        """The newest process of each node id."""

    @property
    def everybody(self) -> Sequence[Hosted]:
        """Every process that was ever started."""

    def shard(self, node_id: str) -> int:
        """That of a server."""

    def leader(self, shard: int) -> Server:
        """The newest process of a primary."""

    def leaders(self) -> Sequence[Server]:
        """By shard."""

    def addressee(self, words: Sequence[str]) -> str:
        """The node id of the server to which clients send a command."""

    def disagree(self) -> str:
        """What is not settled in the cluster, or among Sentinels; empty where all is."""

    def servers(self) -> Sequence[Server]:
        """Those that live."""

    def connectors(self) -> Sequence[Beside]:
        """Those that live."""

    def start(self, node_id: str) -> Beside:
        """A new process of a connector."""

    def restart(self, node_id: str, data: str) -> None:
        """A new process in the place of one that has ended."""

    def write(self, server: Server, words: Sequence[str]) -> bool:
        """Commands of a client; False where the server has done none of them."""

    def may_lead(self, server: Server) -> bool:
        """Whether a replica may become primary."""

    def follow(self, server: Server) -> None:
        """It becomes a replica of the primary, unless it is that itself by now."""

    def promote(self, server: Server) -> None:
        """It is primary from now on."""
