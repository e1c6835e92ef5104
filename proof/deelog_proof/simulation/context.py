"""The world as processes, clients and checker see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from deelog_connector.core.effects import Effect
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.kafka_port import InRecord
from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.topology.view import View
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.network import Network
from deelog_proof.simulation.process import Process
from deelog_schemas.header import Position
from deelog_schemas.operation import Operation

CHANGES: Final = "p.c"
POSITIONS: Final = "p.c.positions"
TOPOLOGY: Final = "p.c.topology"
NOTIFICATIONS: Final = "p.notifications"
DEAD_LETTERS: Final = "p.dead-letters"


@dataclass(slots=True)
class Write:
    """A client's command. `status`: sent, acked, failed (it did not happen) or unknown."""

    key: bytes
    value: bytes | None
    status: str = "sent"
    segment: int = -1
    position: Position = (0, 0)
    acked_at: float = 0.0


class Observer(Protocol):
    """Called for all events: the checker."""

    writes: list[Write]

    def say(self, line: str) -> None: ...
    def answered(self, write: Write) -> None: ...
    def broken(self, text: str, error: BaseException) -> None: ...
    def effect(self, node: Process, effect: Effect) -> None: ...
    def status(self, node: Process) -> None: ...
    def captured(self, node: Process, segment: Segment, operation: Operation) -> None: ...
    def view_made(self, view: View) -> None: ...
    def topology_lost(self) -> None: ...
    def epochs_lost(self, partition: int) -> None: ...
    def view_applied(self, node: Process, view: View) -> None: ...
    def snapshot_asked(self, segment: int) -> None: ...
    def snapshot_begun(self, node: Process, segment: int) -> None: ...
    def snapshot_over(self, node: Process, segment: int, whole: bool) -> None: ...
    def lose(self, partition: int, records: list[InRecord] | None) -> None: ...
    def coalesced(self, segment: int) -> None: ...


class Context(Protocol):
    """One run's cluster, its brokers, its network and its clock."""

    engine: Engine
    kafka: Kafka
    network: Network
    counts: Counter[str]
    node_count: int
    copies: int
    segments: int
    partitions: int
    acks_all: bool
    strategy: Strategy
    skips: int
    size: int
    interval: int
    """`reset.interval.ms`."""
    cost: float
    """Seconds that a node takes to read an entry."""
    skews: dict[str, float]
    no_kafka: set[str]
    """Node ids that cannot reach the brokers."""
    blind: set[str]
    """Node ids that get no views at the moment."""
    unreached: dict[str, set[tuple[str, int]]]
    """By node id: partitions whose leader it does not reach, though others do."""

    @property
    def checker(self) -> Observer: ...

    @property
    def everybody(self) -> Sequence[Process]:
        """Every process that was ever started, in the order of starts."""

    def find(self, member: str) -> Process | None:
        """The live process of a member."""

    def living(self) -> Sequence[Process]:
        """Live processes, including paused ones."""

    def ended(self, node: Process) -> None:
        """A process ended."""

    def primary_of(self, segment: int) -> Process | None:
        """The primary with the highest epoch."""

    def holders(self, segment: int) -> Sequence[Process]:
        """The primary and its in-sync backups."""

    def partition_of(self, segment: int) -> int:
        """The Kafka partition of a segment."""

    def transaction_comes(self, node: Process, name: str) -> None:
        """The open transaction of a node is `appended`, or `committed`."""

    def effect_comes(self, node: Process, effect: Effect) -> None:
        """An effect of a core is about to be executed."""

    def moment_comes(self, node: Process, name: str, *kinds: str) -> None:
        """See `failpoints.FAILPOINTS`. Raises `Gone` where the node ends there."""

    def view_comes(self, node: Process, view: View) -> None:
        """A node is about to apply a view."""
