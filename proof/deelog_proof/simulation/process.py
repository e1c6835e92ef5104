"""A process as network, clients, faults and checker see it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from deelog_connector.core import ConnectorCore
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication.frames import AnyFrame
from deelog_interceptors.grid.replication.peers import Incoming, Link
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.topology.registry import Registry
from deelog_proof.memory.engine import Engine
from deelog_proof.simulation.kafka import Kafka
from deelog_schemas.operation import Entry


class Process(Protocol):
    """One process of a node. All calls come through `now` and `after`, which hold them back during a pause."""

    node_id: str
    member: str
    engine: Engine
    kafka: Kafka
    random: random.Random
    alive: bool
    paused: bool
    leaving: bool
    skew: float
    """The error of its wall clock, in seconds."""
    core: ConnectorCore
    store: Store
    replicator: Replicator
    registry: Registry

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Calls later, unless the process has ended by then; a pause puts it off."""

    def now(self, call: Callable[..., None], *args: Any) -> None:
        """Calls now, or when the pause is over."""

    def request(self, call: Callable[[], None]) -> None:
        """A request to the brokers: it arrives after a delay, and is retried while they are unavailable."""

    def resume(self) -> None:
        """Ends a pause."""

    def leave(self) -> None:
        """SIGTERM."""

    def wake(self) -> None:
        """Has the core polled soon."""

    def leased(self) -> bool:
        """Whether it may acknowledge writes."""

    def clock_us(self) -> int:
        """Its wall clock, in Unix microseconds."""

    def entries(self, segment: int) -> list[Entry]: ...
    def link_up(self, link: Link) -> None: ...
    def link_frame(self, link: Link, frame: AnyFrame) -> None: ...
    def link_down(self, link: Link) -> None: ...
    def link_refused(self, member: str) -> None: ...
    def incoming_up(self, connection: Any) -> None: ...
    def incoming_frame(self, connection: Incoming, frame: AnyFrame) -> None: ...
    def incoming_down(self, connection: Any) -> None: ...
