"""A grid of the nodes that ship, in one process: Kafka, TCP and time are in memory. `cluster.Grid` has real ones.

A test runs as if beside the nodes: time passes for them only while it waits for something.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, TypeVar, cast

import hiredis

from deelog_connector.metrics.shared_server import page
from deelog_interceptors.grid.node import Node
from deelog_interceptors.hosting.process import run, signalled
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.network import Network
from deelog_proof.memory.port import MemoryPort
from deelog_schemas.config import parse
from deelog_schemas.errors import DeelogError
from deelog_schemas.records import Record
from tests.interceptors.grid.cluster import is_complete
from tests.support.memory import Memory

SEGMENTS = 32
LOOK_SECONDS = 0.05
START_SECONDS = 180.0
"""A node serves once there is a controller: that may be one that is dead, for three times the failure timeout."""

T = TypeVar("T")


class _ProcessLoop(NodeLoop):
    """The loop of a process that may be sent signals."""

    def __init__(self, engine: Engine, name: str, network: Network) -> None:
        super().__init__(engine, name, network)
        self.signals: dict[int, Callable[[], object]] = {}

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.signals[sig] = callback

    def set_exception_handler(self, handler: Any) -> None:
        self.call_exception_handler = lambda context: handler(self, context)  # type: ignore[method-assign]


class GridNode:
    """One `deelog node`. Each start is another process."""

    def __init__(self, grid: Grid, node_id: str, config: dict[str, str]) -> None:
        self._grid, self.node_id = grid, node_id
        self.config = parse(config | {"node.id": node_id})
        self.loop: _ProcessLoop
        self.node: Node
        self._running: asyncio.Task[None]

    def start(self) -> None:
        """Starts it."""
        grid = self._grid
        self.loop = _ProcessLoop(grid.engine, self.node_id, grid.network)
        grid.loops.append(self.loop)
        self.node = self.loop.within(Node, self.config, self._port)
        self.serves = False
        metrics = page(self.node.lifecycle.connectors, self.node.sources)
        work = run(self.config, self.node, metrics, self._serves, self.loop.within(signalled))
        self._running = self.loop.within(self.loop.create_task, work)

    def _port(self) -> MemoryPort:
        return self._grid.port_on(self.loop)

    def _serves(self) -> None:
        self.serves = True

    @property
    def member(self) -> str:
        return self.node.member

    @property
    def port(self) -> int:
        """Where it serves clients."""
        return self.node.client_port

    @property
    def alive(self) -> bool:
        return self.loop.alive and not self._running.done()

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL, SIGSTOP, SIGCONT or SIGTERM."""
        if number is signal.SIGKILL:
            self.loop.kill()
        elif number is signal.SIGSTOP:
            self.loop.pause()
        elif number is signal.SIGCONT:
            self.loop.resume()
        else:
            self.loop.call_soon(self.loop.signals[number])

    def ended(self) -> DeelogError | None:
        """Waits for its end. Returns why it ended by itself."""
        self._grid.eventually(self._running.done, what=f"the end of {self.node_id}")
        self.loop.kill()
        error = self._running.exception()
        assert error is None or isinstance(error, DeelogError), repr(error)
        return error

    def stats(self) -> dict[str, Any]:
        return self.node.stats()

    def dump(self, segment: int) -> tuple[str, tuple[int, int], dict[bytes, bytes]]:
        """`role, (epoch, sequence), entries` of a segment on this node."""
        store = self.node.store
        held = store.segments[segment]
        history = store.core.history(segment)
        entries = {key: value for key, value, _ in store.entries(held)}
        return str(held.role), history[-1] if history else (0, 0), entries


class Client:
    """Follows MOVED as a cluster client does, and sends again what was not answered: `errors` counts that."""

    def __init__(self, grid: Grid, name: str) -> None:
        self._grid = grid
        self.loop = NodeLoop(grid.engine, name, grid.network)
        grid.loops.append(self.loop)
        grid.clients.append(self)
        self.errors = 0
        self._at = 0
        self._connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    def __call__(self, *arguments: str | int) -> Any:
        """The reply to a command, once there is one."""
        return self.loop.run_until_complete(self.command(*arguments))

    def set(self, key: str, value: str | int) -> None:
        assert self("SET", key, value) == b"OK"

    def send(self, node: GridNode, *arguments: str | int) -> asyncio.Task[Any]:
        """Sends a command to this node alone. The task has its reply, or the error."""
        return self.loop.within(self.loop.create_task, self._ask(node.port, *arguments))

    async def command(self, *arguments: str | int) -> Any:
        """See `__call__`."""
        while True:
            try:
                reply = await asyncio.wait_for(self._ask(self._at, *arguments), 10)
            except (OSError, EOFError, TimeoutError):
                reply = None
            else:
                if not isinstance(reply, hiredis.ReplyError):
                    return reply
            if str(reply).startswith("MOVED"):
                self._at = int(str(reply).rpartition(":")[2])
                continue
            self.errors += 1
            if self._at in self._connections:
                _, writer = self._connections.pop(self._at)  # kept: a writer that is freed open warns
                writer.transport.abort()
            await asyncio.sleep(LOOK_SECONDS)
            self._at = next((node.port for node in self._grid.live() if node.serves and not node.loop.paused), 0)

    def close(self) -> None:
        """Ends its connections."""
        for _, writer in self._connections.values():
            self.loop.within(writer.transport.abort)

    async def connected(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection to this port."""
        if port not in self._connections:
            self._connections[port] = await asyncio.open_connection("127.0.0.1", port)
        return self._connections[port]

    async def _ask(self, port: int, *arguments: str | int) -> Any:
        reader, writer = await self.connected(port)
        writer.write(hiredis.pack_command(cast("Any", arguments)))
        parser = hiredis.Reader()
        while (reply := parser.gets()) is False:
            data = await reader.read(1 << 16)
            if not data:
                raise EOFError
            parser.feed(data)
        return reply


class Writer:
    """Counts up in its own keys from now on, and remembers what was acknowledged."""

    def __init__(self, grid: Grid, name: str, keys: int = 50) -> None:
        self.acked: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self._grid, self._keys = grid, keys
        self.name, self.client = name, Client(grid, name)
        self._ends = False
        self._writing = self.client.loop.within(self.client.loop.create_task, self._write())

    async def _write(self) -> None:
        number = 0
        while not self._ends:
            number += 1
            key = f"{self.name}:{number % self._keys}"
            self.sent[key] = number
            assert await self.client.command("SET", key, number) == b"OK"
            self.acked[key] = number
            await asyncio.sleep(0.005)

    def has_written(self) -> bool:
        """Whether each key has a value."""
        return len(self.acked) == self._keys

    def end(self) -> None:
        """Returns once the last write is acknowledged."""
        self._ends = True
        self._grid.eventually(self._writing.done, what="the last write")
        self._writing.result()


class Grid(Memory):
    """Nodes of one cache: set `config`, call `start(count)`."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.kafka.engine
        self.network = Network(self.engine)
        self.config = {
            "topic.prefix": "p",
            "cache.name": "c",
            "bootstrap.servers": self.bootstrap,
            "cache.listen": "127.0.0.1:0",
            "cache.peer.listen": "127.0.0.1:0",
            "cache.failure.timeout.ms": "1000",
            "segment.count": str(SEGMENTS),
            "topic.creation.default.partitions": "2",
            "topic.creation.default.replication.factor": "1",
        }
        self.nodes: dict[str, GridNode] = {}
        self.loops: list[NodeLoop] = []
        self.clients: list[Client] = []

    def node(self, node_id: str, **config: str) -> GridNode:
        """A new node, not started yet."""
        return GridNode(self, node_id, self.config | {name.replace("_", "."): value for name, value in config.items()})

    def join(self, node_id: str, **config: str) -> GridNode:
        """A new node of the grid, which serves."""
        node = self.nodes[node_id] = self.node(node_id, **config)
        node.start()
        self.eventually(lambda: node.serves, START_SECONDS, f"{node_id} to serve")
        return node

    def again(self, *names: str) -> None:
        """Starts nodes again that have died."""
        for name in names:
            self.nodes[name].start()
        self.eventually(lambda: all(self.nodes[name].serves for name in names), START_SECONDS, f"{names} to serve")

    def start(self, count: int) -> None:
        """Starts `n1` … together. Returns once all serve, and all copies are in sync and written."""
        self.nodes = {f"n{number}": self.node(f"n{number}") for number in range(1, count + 1)}
        for node in self.nodes.values():
            node.start()
        self.eventually(lambda: all(node.serves for node in self.nodes.values()), what="nodes that serve")
        self.complete(count)
        self.written()

    def eventually(
        self, condition: Callable[[], T | None], seconds: float = 60.0, what: str = "what was asked of the nodes"
    ) -> T:
        """Lets time pass until this holds; returns what it gave."""
        end = self.engine.now + seconds
        while not (answer := condition()):
            if self.engine.now > end:
                raise TimeoutError(f"waited {seconds:g} s in vain for {what}; the last answer was {answer!r}")
            self.engine.run(None, LOOK_SECONDS)
        return answer

    def reply(self, task: asyncio.Task[T]) -> T:
        """The reply to a command that was sent."""
        self.eventually(task.done, what="the reply")
        return task.result()

    def complete(self, count: int) -> None:
        """Waits until `count` nodes share the segments and all copies are in sync."""
        self.eventually(lambda: self._is_complete(count), 90, f"{count} nodes with all copies")

    def _is_complete(self, count: int) -> bool:
        return is_complete([node.stats()["grid"] for node in self.live()], self.config, count)

    def written(self) -> None:
        """Waits until all acknowledged writes are in Kafka and every reset has ended."""
        self.eventually(lambda: all(node.stats()["unwritten"] == 0 for node in self.live()), what="everything written")

    def live(self) -> list[GridNode]:
        return [node for node in self.nodes.values() if node.alive]

    def client(self) -> Client:
        return Client(self, f"client {len(self.clients)}")

    def put(self, count: int, value: str) -> None:
        """Writes the first keys, and waits until all are in Kafka."""
        client = self.client()
        for number in range(count):
            client.set(f"k{number}", value)
        self.written()

    def primary_of(self, segment: int) -> GridNode:
        """The node that is primary of the segment."""
        return self.eventually(lambda: [n for n in self.live() if n.dump(segment)[0] == "primary"])[0]

    def cached(self) -> dict[bytes, bytes]:
        """The entries of the primaries."""
        return {
            key: value
            for segment in range(SEGMENTS)
            for key, value in self.primary_of(segment).dump(segment)[2].items()
        }

    def resets(self) -> set[str]:
        """The reasons of the resets of all nodes that live."""
        return {reason for node in self.live() for reason in node.stats()["resets"]}

    def changes(self) -> list[Record]:
        """The committed records of the change topic."""
        return self.records("p.c")

    def equal_copies(self) -> None:
        """Waits until every segment has one primary, whose backups hold the same entries at the same position."""
        self.eventually(lambda: not self._different(), what="equal copies")

    def _different(self) -> list[int]:
        found = []
        for segment in range(SEGMENTS):
            held = [dump for node in self.live() if (dump := node.dump(segment))[0] != "none"]
            primaries = sum(dump[0] == "primary" for dump in held)
            if primaries != 1 or any(dump[1:] != held[0][1:] for dump in held):
                found.append(segment)
        return found

    def end(self) -> None:
        """Frees what is left."""
        for client in self.clients:
            client.close()
        for loop in self.loops:
            loop.bury()
