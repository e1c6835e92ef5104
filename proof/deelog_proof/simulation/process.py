"""A process as clients, faults and checker see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from deelog_connector.core import ConnectorCore
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.node import Node as GridNode
from deelog_interceptors.grid.topology.view import View
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_schemas.operation import Entry


class Process(Protocol):
    """One process of a node. `grid` is the node that ships."""

    node_id: str
    member: str
    engine: Engine
    loop: NodeLoop
    grid: GridNode
    core: ConnectorCore
    leaving: bool
    held: str
    """`paused` or `stopped` while its connector may write nothing, since it was asked not to."""
    requests: dict[asyncio.Task[None], str]
    """The operations of its connector that are under way."""
    skew: float
    """The error of its wall clock, in seconds."""

    @property
    def alive(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def store(self) -> Store: ...
    @property
    def view(self) -> View: ...
    @property
    def is_controller(self) -> bool: ...

    def now(self, call: Callable[..., object], *args: Any) -> None:
        """Calls in its next turn, or when its pause is over."""

    def reach(self) -> None:
        """Reaches the brokers and hears of views, as the world says."""

    def pause(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def leave(self) -> None:
        """SIGTERM."""

    def ask(self, operation: str) -> None:
        """REST asks the connector to pause, resume, stop, restart or configure."""

    def wake(self) -> None:
        """Has the core polled soon."""

    def entries(self, segment: int) -> list[Entry]: ...
