"""Kafka in memory with the topics of the simulation's cluster."""

from __future__ import annotations

from typing import Final

from deelog_interceptors.grid.topology.topic import TopologyRecord
from deelog_proof.memory import broker
from deelog_proof.memory.engine import Engine

CHANGES: Final = "p.c"
POSITIONS: Final = "p.c.positions"


class Kafka(broker.Kafka):
    """The topology topic is apart: each commit takes effect at once, by the controller's last session."""

    def __init__(self, engine: Engine, partitions: int, transaction_timeout: float) -> None:
        super().__init__(engine, transaction_timeout)
        self.create(CHANGES, partitions)
        self.create(POSITIONS, partitions)
        self.topology: list[TopologyRecord] = []

    def publish(self, key: str, value: bytes) -> None:
        """A record outside any transaction."""
        self.topology.append(TopologyRecord(len(self.topology), key, value))

    def publish_seated(self, session: int, key: str, value: bytes) -> bool:
        """A record of the controller; returns whether its session is still the last one."""
        if self.sessions.get("controller") != session:
            return False
        self.publish(key, value)
        return True
