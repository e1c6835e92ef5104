"""Servers in memory, in virtual time."""

from __future__ import annotations

from typing import Final

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.network import Network
from deelog_proof.memory.port import START_NS
from deelog_proof.memory.redis_server import RedisServer

FIRST_PORT: Final = 7000


class Servers:
    """Servers by number, each on a loop `r<number>`, and others' loops. End it with `end`."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.network = engine, Network(engine)
        self.loops: dict[str, NodeLoop] = {}
        """The newest of each name."""
        self._made: list[NodeLoop] = []
        self._servers: dict[int, RedisServer] = {}

    def __getitem__(self, number: int) -> RedisServer:
        return self._servers[number]

    def loop(self, name: str) -> NodeLoop:
        """A new process's."""
        loop = self.loops[name] = NodeLoop(self.engine, name, self.network)
        self._made.append(loop)
        return loop

    def serve(self, number: int) -> int:
        """A new server, without data; its port."""
        loop = self.loop(f"r{number}")
        server = RedisServer(FIRST_PORT + number, self.engine.stream(f"ids of {number}"), self._wall_ms)
        self._servers[number] = server
        loop.within(loop.create_task, server.serve())
        return server.port

    def _wall_ms(self) -> int:
        return (START_NS + int(self.engine.now * 1e9)) // 1_000_000

    def follow(self, number: int, port: int) -> None:
        """REPLICAOF."""
        self.loops[f"r{number}"].within(self[number].follow, "127.0.0.1", port)

    def lead(self, number: int) -> None:
        """REPLICAOF NO ONE."""
        self.loops[f"r{number}"].within(self[number].lead)

    def end(self) -> None:
        """Ends all processes."""
        for loop in self._made:
            loop.bury()
