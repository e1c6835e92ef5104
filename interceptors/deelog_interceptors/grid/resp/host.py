"""What the handlers of commands need of the node that runs them."""

from __future__ import annotations

from typing import Any, Protocol

from deelog_interceptors.grid.data.segment import Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.replication.primary import Replicator
from deelog_interceptors.grid.resp.connection import Clients
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.view import View


class Host(Protocol):
    """A node as its clients' commands see it."""

    settings: Settings
    member: str
    client_port: int
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
        """Returns at the next view, or after a moment."""

    def stats(self) -> dict[str, Any]:
        """Counters of the connector, and under `grid` of the node; all of it is JSON."""
