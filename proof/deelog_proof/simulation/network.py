"""Connections between nodes: redialled while wanted, in order while up, lost as a whole when they break.

As TCP: frames of one direction arrive in order and without gaps. A cut direction holds them back until it heals, and
a broken connection loses all frames in flight. Each side notices the end at its own time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from deelog_interceptors.grid.replication.frames import AnyFrame, Ask
from deelog_interceptors.grid.replication.peers import Incoming, Link
from deelog_proof.memory.engine import Engine
from deelog_proof.simulation.process import Process
from deelog_proof.simulation.tasks import Yield
from deelog_schemas.member import node_id_of

_DIAL_SECONDS = 0.02


class Network:
    """`cut` holds the directed pairs of node ids without connection; `slow` multiplies delays of a node."""

    def __init__(self, engine: Engine, find: Callable[[str], Process | None]) -> None:
        self.engine = engine
        self.find = find
        """The live process of a member."""
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[str, float] = {}
        self.connections: list[Connection] = []
        self.sends: Callable[[Process, AnyFrame], None] = lambda node, frame: None
        """Called with each frame before it is sent."""

    def delay(self, from_: str, to: str) -> float:
        """How long a frame takes."""
        drawn = self.engine.stream(f"net {from_} {to}").expovariate(1500.0) + 0.0002
        return drawn * max(self.slow.get(from_, 1.0), self.slow.get(to, 1.0))

    def carry(self, connection: Connection, back: bool, deliver: Callable[[], None]) -> None:
        """Delivers in order of the direction, or when the cut heals."""
        from_, to = connection.ends(back)
        moment = connection.last[back] = max(connection.last[back], self.engine.now + self.delay(from_, to))
        self.engine.at(moment, self._arrive, connection, back, deliver)

    def _arrive(self, connection: Connection, back: bool, deliver: Callable[[], None]) -> None:
        if connection.broken:
            return
        if connection.ends(back) in self.cut:
            connection.held[back].append(deliver)
        else:
            deliver()

    def heal(self, from_: str, to: str) -> None:
        """What was held back arrives, in order."""
        self.cut.discard((from_, to))
        for connection in list(self.connections):
            for back in (False, True):
                if connection.ends(back) == (from_, to) and not connection.broken:
                    held, connection.held[back] = connection.held[back], []
                    for deliver in held:
                        deliver()

    def break_(self, connection: Connection) -> None:
        """Ends a connection; each side notices it after a while."""
        if connection.broken:
            return
        connection.broken = True
        self.connections.remove(connection)
        for side, notify in (
            (connection.dialler, connection.dialler_down),
            (connection.dialled, connection.dialled_down),
        ):
            side.after(self.engine.stream("net end").expovariate(200.0), notify)

    def end_of(self, member: str) -> None:
        """A process ended: all of its connections break."""
        for connection in list(self.connections):
            if member in (connection.dialler.member, connection.dialled.member):
                self.break_(connection)


class Connection:
    """A connection from the dialling to the dialled process."""

    def __init__(self, network: Network, link: SimLink, dialler: Process, dialled: Process) -> None:
        self.network, self.link = network, link
        self.dialler, self.dialled = dialler, dialled
        self.incoming = SimIncoming(self)
        self.broken = False
        self.held: list[list[Callable[[], None]]] = [[], []]
        self.last = [0.0, 0.0]
        """When the last frame of each direction arrives."""

    def ends(self, back: bool) -> tuple[str, str]:
        """Process ids, from and to."""
        pair = self.dialler.node_id, self.dialled.node_id
        return pair[::-1] if back else pair

    def dialler_down(self) -> None:
        """The dialling side notices the end."""
        self.link.ended(self)

    def dialled_down(self) -> None:
        """The dialled side notices the end."""
        self.dialled.incoming_down(self.incoming)


class SimIncoming:
    """As `peers.Incoming`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number = connection.network.engine.steps
        self.member = connection.dialler.member
        self.asked: list[Ask] = []

    def __hash__(self) -> int:
        return self._number  # backups keep these in sets, whose order must not be that of addresses

    def send(self, frame: AnyFrame) -> None:
        """Sends a frame to the dialling side."""
        c = self._connection
        c.network.sends(c.dialled, frame)
        c.network.carry(c, True, lambda: c.dialler.now(c.link.frame, c, frame))

    def abort(self) -> None:
        """Closes the connection."""
        self._connection.network.break_(self._connection)


class SimLink:
    """As `peers.Link`: dialled again until `close()`."""

    queued = 0

    def __init__(self, network: Network, owner: Process, member: str) -> None:
        self.member = member
        self.ready = False
        self._network, self._owner = network, owner
        self._connection: Connection | None = None
        self._closed = False
        owner.after(self._wait(), self._dial)

    def _wait(self) -> float:
        return self._network.engine.stream(f"dial {self._owner.node_id}").uniform(0.5, 1.5) * _DIAL_SECONDS

    def _dial(self) -> None:
        if self._closed or self._connection is not None:
            return
        pair = self._owner.node_id, node_id_of(self.member)
        dialled = self._network.find(self.member)
        if pair in self._network.cut or pair[::-1] in self._network.cut or (dialled and dialled.paused):
            self._owner.after(10 * self._wait(), self._dial)
        elif dialled is None:
            self._owner.link_refused(self.member)
            self._owner.after(self._wait(), self._dial)
        else:
            connection = self._connection = Connection(self._network, self, self._owner, dialled)
            self._network.connections.append(connection)
            self._network.carry(connection, False, lambda: dialled.now(dialled.incoming_up, connection.incoming))
            self._network.carry(connection, True, lambda: self._owner.now(self._up, connection))

    def _up(self, connection: Connection) -> None:
        if connection is self._connection and not self._closed:
            self.ready = True
            self._owner.link_up(cast(Link, self))

    def send(self, frame: AnyFrame) -> None:
        """Lost where there is no connection."""
        c = self._connection
        if c is not None and self.ready and not c.broken:
            c.network.sends(self._owner, frame)
            incoming: Any = c.incoming
            c.network.carry(c, False, lambda: c.dialled.now(c.dialled.incoming_frame, cast(Incoming, incoming), frame))

    async def drain(self) -> None:
        """As `Link.drain`."""
        if self._connection is None or self._connection.broken:
            raise ConnectionResetError("the link is down")
        await Yield()

    def frame(self, connection: Connection, frame: AnyFrame) -> None:
        """A frame from the dialled side."""
        if connection is self._connection and self.ready:
            self._owner.link_frame(cast(Link, self), frame)

    def ended(self, connection: Connection) -> None:
        """The connection broke."""
        if connection is not self._connection:
            return
        self._connection = None
        if self.ready:
            self.ready = False
            self._owner.link_down(cast(Link, self))
        if not self._closed:
            self._owner.after(self._wait(), self._dial)

    def close(self) -> None:
        """Ends it for good."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            self._network.break_(connection)
        if self.ready:
            self.ready = False
            self._owner.link_down(cast(Link, self))
