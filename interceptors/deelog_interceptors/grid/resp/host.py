"""The node as command handlers use it."""

from __future__ import annotations

from typing import Any, Protocol

from deelog_connector.kafka_port import Clock
from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.resp.connection import Clients
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.view import View


class Host(Protocol):
    """The node as command handlers use it."""

    settings: Settings
    member: str
    client_port: int
    clock: Clock
    started: float
    """When the process started, on the monotonic clock, in seconds."""
    store: Store
    replicator: Replicator
    clients: Clients

    @property
    def view(self) -> View:
        """The last view."""

    def prepare(self, segment: Segment, size: int) -> None:
        """Raises `Blocked` unless `size` bytes may be captured and replicated now."""

    async def role_changed(self) -> None:
        """Returns at the next view."""

    async def role_changed_soon(self) -> None:
        """Returns at the next view, or after 50 ms."""

    def stats(self) -> dict[str, Any]:
        """Counters of the connector, and of the node under `grid`; JSON values only."""
