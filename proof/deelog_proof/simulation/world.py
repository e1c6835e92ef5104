"""One run on nodes of the grid."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.runtime import Connector
from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.topology.view import View
from deelog_proof.memory.broker import DEFAULTS
from deelog_proof.simulation.checker import Checker
from deelog_proof.simulation.clients import Clients
from deelog_proof.simulation.common_verbs import skew
from deelog_proof.simulation.context import NOTIFICATIONS
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.filtering import fields_of
from deelog_proof.simulation.node import Node
from deelog_proof.simulation.process import Process
from deelog_proof.simulation.run import Run, connector_fields
from deelog_proof.simulation.script import Script
from deelog_proof.simulation.verbs import send
from deelog_schemas import keys
from deelog_schemas.config import parse

MOST_AHEAD: Final = int(DEFAULTS["message.timestamp.after.max.ms"]) // 1000
"""Seconds by which a node's clock may be ahead of the brokers', who refuse what it writes beyond that."""


class World(Run[Node]):
    """Call `run()` once."""

    checker: Checker

    def __init__(self, script: Script, checker: type[Checker] = Checker) -> None:
        settings = script.settings
        super().__init__(script)
        self.node_count, self.copies = settings["nodes"], settings["copies"]
        self.skips, self.size = settings["skips"], settings["size"]
        self.interval, self.cost = settings["interval"], settings["cost"] / 1e6
        self.strategy = Strategy(_fields(settings)["reset.strategy"])
        self._fields = _fields(settings)
        self.config = parse({**self._fields, "node.id": "n0"})
        self.checker = checker(self)
        self.kafka.on_stable = self.checker.stable
        self.kafka.on_loss = self.checker.lose_part
        self.clients = Clients(self)
        for number in range(self.node_count):
            self.start(f"n{number}")

    def _sent(self, node: Node, data: bytes) -> str:
        name, *_ = msgspec.msgpack.decode(data[frames.LENGTH_BYTES :])
        return str(name)

    def _counted(self) -> Counter[str]:
        counts = super()._counted()
        for node in self.everybody:
            counts["controllers"] += node.grid.controller_service.terms
            counts["caught up by operations"] += node.grid.replicator.catch_up.operations
            counts["caught up by state"] += node.grid.replicator.catch_up.states
            counts["stale answers"] += node.grid.replicator.stale_answers
            counts["frames refused"] += node.grid.backup.refused
        return counts

    def _connectors(self) -> list[Connector]:
        return [node.grid.connector for node in self.everybody]

    # -- nodes ------------------------------------------------------------------------------------------------------

    def start(self, node_id: str) -> Node:
        """A new process under a node id."""
        node = self.nodes[node_id] = Node(self, node_id, parse({**self._fields, "node.id": node_id}))
        self.everybody.append(node)
        return node

    def find(self, member: str) -> Node | None:
        """The live process of a member."""
        return next((n for n in self.everybody if n.alive and n.member == member), None)

    def primary_of(self, segment: int) -> Node | None:
        """The primary with the highest epoch."""
        primaries = [n for n in self.living() if n.store.segments[segment].role is Role.PRIMARY]
        return max(primaries, key=lambda n: n.store.segments[segment].epoch, default=None)

    def holders(self, segment: int) -> list[Node]:
        """The primary and its in-sync backups."""
        primary = self.primary_of(segment)
        if primary is None:
            return []
        backups = [self.find(member) for member in primary.store.segments[segment].in_sync]
        return [primary, *(n for n in backups if n is not None and n is not primary)]

    def partition_of(self, segment: int) -> int:
        """The Kafka partition of a segment."""
        return keys.partition_of(segment, self.partitions, self.segments)

    def view_comes(self, node: Process, view: View) -> None:
        """A node is about to apply a view."""
        kinds = set()
        for segment, row in zip(node.store.segments, view.rows, strict=True):
            if row.primary == node.member and (segment.role is not Role.PRIMARY or segment.epoch != row.epoch):
                kinds.add("primary")
            elif segment.role is Role.PRIMARY and row.primary != node.member:
                kinds.add("demoted")
            elif segment.role is Role.NONE and node.member in row.holders:
                kinds.add("backup")
        self.moment_comes(node, "view", *kinds)

    # -- events -----------------------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> bool:
        happened = super()._happen(event)
        if happened:
            self.checker.causes.happened(event, self.names)
        return happened

    # -- peace ------------------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        """Ends all faults: brokers and network recover, paused nodes resume, dead ones restart."""
        self.checker.say("--- peace")
        self.checker.looks_from_now_on()
        for node_id in [node_id for node_id, seconds in self.skews.items() if seconds > MOST_AHEAD]:
            skew(self, node_id, "0")  # brokers take nothing from it
        self._end_faults(self.nodes)
        for node in self.living():
            node.resume()
            node.reach()
            if self.counts["did connector"]:
                node.now(node.go_on)
        if self.counts["sent pause-writing"]:
            send(self, "resume-writing")
        self.engine.after(0.5, self._restart_all)

    def _restart_all(self) -> None:
        for node_id, node in self.nodes.items():
            if not node.alive:
                self.start(node_id)
        if any(not n.alive or n.leaving for n in self.nodes.values()):
            self.engine.after(0.5, self._restart_all)
            return
        for node in self.living():
            for segment in node.core.primaries():
                if segment.phase == "stopped":
                    node.core.request_reset(segment.number, "signal")
                    node.wake()
                    self.checker.causes.happened(Event(self.engine.now, "signal", (str(segment.number),)), self.names)
        self._peace = True
        self.engine.after(0.5, self._restart_all)


def _fields(settings: dict[str, int]) -> dict[str, str]:
    """The configuration of all nodes."""
    fields = connector_fields(settings) | {
        "cache.listen": "127.0.0.1:0",
        "cache.backups": str(settings["copies"] - 1),
        "cache.max.entries": str(settings["capacity"] * settings["segments"]),
        "cache.failure.timeout.ms": "250",
        "reset.interval.ms": str(settings["interval"]),
    }
    if settings["notifications"]:
        fields["notification.sink.topic.name"] = NOTIFICATIONS
    return fields | fields_of(settings["skips"])
