"""One run on servers of Redis, each with the connector that ships beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from deelog_connector.runtime import Connector
from deelog_proof.memory.redis_keyspace import Refused
from deelog_proof.memory.redis_server import Saved
from deelog_proof.simulation.hosted import Hosted
from deelog_proof.simulation.language import Settings
from deelog_proof.simulation.redis.beside import Beside
from deelog_proof.simulation.redis.checker import RedisChecker
from deelog_proof.simulation.redis.server import HOST, Server, port_of
from deelog_proof.simulation.run import Run, connector_fields
from deelog_proof.simulation.script import Script
from deelog_schemas.config import parse

_APART: Final = "/"
"""Between the commands of a transaction."""


class RedisWorld(Run[Hosted]):
    """Call `run()` once."""

    checker: RedisChecker

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._fields = _fields(script.settings)
        self.config = parse({**self._fields, "node.id": "c1"})
        self._backlog = script.settings["backlog"]
        self._starts = Counter[str]()
        self.saved: dict[str, Saved] = {}
        self.primary = "r1"
        self.checker = RedisChecker(self)
        self.kafka.on_stable = self.checker.stable
        numbers = range(1, script.settings["servers"] + 1)
        for number in numbers:
            self._serve(f"r{number}", None)
        self.checker.leads(self.leader, "", 0)
        for number in numbers:
            self.start(f"c{number}")

    # -- processes ----------------------------------------------------------------------------------------------------

    def servers(self) -> list[Server]:
        """Those that live."""
        return [node for node in self.nodes.values() if isinstance(node, Server) and node.alive]

    def connectors(self) -> list[Beside]:
        """Those that live."""
        return [node for node in self.living() if isinstance(node, Beside)]

    @property
    def leader(self) -> Server:
        """The newest process of the primary."""
        node = self.nodes[self.primary]
        assert isinstance(node, Server)
        return node

    def start(self, node_id: str) -> Beside:
        """A new process of a connector."""
        url = f"redis://{HOST}:{port_of(node_id)}/0"
        config = parse({**self._fields, "node.id": node_id, "redis.url": url})
        node = Beside(self, node_id, config, self.checker)
        self.nodes[node_id] = node
        self.everybody.append(node)
        return node

    def restart(self, node_id: str, data: str) -> None:
        """A new process in the place of one that has ended."""
        before = self.nodes[node_id]
        if not isinstance(before, Server):
            self.start(node_id)
            return
        id_, same = before.redis.stream.id, before.redis.saved()
        if data == "saved" and node_id in self.saved:
            saved: Saved | None = self.saved[node_id]
        else:
            saved = {"none": None, "same": same, "saved": None, "append-only": same._replace(id="")}[data]
        server = self._serve(node_id, saved)
        if saved is not None and node_id == self.primary:
            self.checker.leads(server, saved.id or id_, saved.offset)
        elif node_id == self.primary:
            self.checker.leads(server, "", 0)

    def _serve(self, node_id: str, saved: Saved | None) -> Server:
        self._starts[node_id] += 1
        follows = None if node_id == self.primary else self.primary
        node = Server(self, node_id, f"{node_id}@{self._starts[node_id]}", self._backlog, saved, follows)
        self.nodes[node_id] = node
        self.everybody.append(node)
        self._name()
        return node

    # -- what verbs do ------------------------------------------------------------------------------------------------

    def write(self, server: Server, words: Sequence[str]) -> bool:
        """Commands of a client; False where the server has done none of them."""
        commands: list[list[bytes]] = [[]]
        for word in words:
            if word == _APART:
                commands.append([])
            else:
                commands[-1].append(word.encode())
        replies = server.loop.within(server.redis.execute_all, commands)
        done = [
            (words, reply)
            for words, reply in zip(commands, replies, strict=True)
            if reply is not None and not isinstance(reply, Refused)
        ]
        if done:
            self.checker.written(server, done)
        return bool(done)

    def promote(self, server: Server) -> None:
        """It is primary from now on."""
        stream = server.redis.stream
        id_, offset = stream.id, stream.offset
        self.primary = server.node_id
        server.lead()
        self.checker.leads(server, id_, offset)
        self._name()

    def ended(self, node: Any) -> None:
        super().ended(node)
        self._name()

    def _name(self) -> None:
        others = [server.node_id for server in self.servers() if server.node_id != self.primary]
        self.names = {"primary": self.primary, "writer": _beside(self.primary)}
        if others:
            self.names |= {"replica": others[0], "reader": _beside(others[0])}

    # -- the end ------------------------------------------------------------------------------------------------------

    def _connectors(self) -> list[Connector]:
        return [node.redis.connector for node in self.everybody if isinstance(node, Beside)]

    def _make_peace(self) -> None:
        """Ends all faults: brokers and network recover, paused processes resume, dead ones start, twins are alone."""
        self.checker.say("--- peace")
        self.checker.looks_from_now_on()
        self._end_faults(self.nodes)
        for node in self.living():
            if node is not self.nodes[node.node_id]:
                self.ended(node)
            node.resume()
            node.reach()
        self.engine.after(0.5, self._restart_all)

    def _restart_all(self) -> None:
        for node_id, node in self.nodes.items():
            if not node.alive:
                self.restart(node_id, "same")
        for server in self.servers():
            if server.node_id != self.primary and server.redis.primary != (HOST, port_of(self.primary)):
                server.follow(self.primary)
        self._peace = all(node.alive and not node.leaving for node in self.nodes.values())
        self.engine.after(0.5, self._restart_all)


def _beside(server: str) -> str:
    return f"c{server[1:]}"


def _fields(settings: Settings) -> dict[str, str]:
    """The configuration of all connectors."""
    return connector_fields(settings) | {
        "connector.class": "deelog.RedisConnector",
        "cache.value.format": "json",
        "topic.creation.default.replication.factor": "1",
        "commit.interval.ms": "10",
    }
