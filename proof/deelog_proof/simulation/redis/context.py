"""The world as verbs and checker see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.redis_server import Saved
from deelog_proof.simulation.hosted import Hosted
from deelog_proof.simulation.redis.beside import Beside
from deelog_proof.simulation.redis.server import Server


class RedisContext(Protocol):
    """One run's servers and connectors."""

    engine: Engine
    segments: int
    partitions: int
    primary: str
    """The node id of the server that is primary."""
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

    @property
    def leader(self) -> Server:
        """The newest process of the primary."""

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

    def promote(self, server: Server) -> None:
        """It is primary from now on."""
