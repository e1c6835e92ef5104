"""One run: a script on a cluster, first with faults, then without, until it is at rest.

First safety, then liveness, as in TigerBeetle's simulator: while faults happen nothing wrong may be written; after
they end, caches and topic must become equal within `PEACE` seconds of simulated time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import msgspec

from deelog_connector.core.effects import Effect
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.kafka_port import COMPACTED
from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.replication import frames
from deelog_interceptors.grid.topology.view import View
from deelog_proof.memory.broker import DEFAULTS, Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.network import Network
from deelog_proof.simulation.checker import Checker, Violation
from deelog_proof.simulation.clients import Clients
from deelog_proof.simulation.context import CHANGES, NOTIFICATIONS, POSITIONS
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.failpoints import Failpoints
from deelog_proof.simulation.filtering import fields_of
from deelog_proof.simulation.node import Node
from deelog_proof.simulation.process import Gone, Process
from deelog_proof.simulation.script import Script
from deelog_proof.simulation.verbs import happen, is_fault, send, skew
from deelog_schemas import keys
from deelog_schemas.config import parse

PEACE: Final = 60.0
"""Simulated seconds until everything must be equal after the last fault."""
START: Final = 60.0
"""Simulated seconds until the cluster has started."""
PACE: Final = 2.0
"""Simulated seconds of one second of a script: timeouts are those that a configuration allows."""
SAMPLE: Final = 0.1
LOOK: Final = 0.05
MAX_STEPS: Final = 2_000_000
MOST_AHEAD: Final = int(DEFAULTS["message.timestamp.after.max.ms"]) // 1000
"""Seconds by which a node's clock may be ahead of the brokers', who refuse what it writes beyond that."""


@dataclass(slots=True)
class Verdict:
    """The result of a run."""

    violation: Violation | None
    digest: str
    steps: int
    seconds: float
    """In simulated time."""
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)


class World:
    """Call `run()` once."""

    def __init__(self, script: Script, checker: type[Checker] = Checker) -> None:
        settings = script.settings
        self.script = script
        self.engine = Engine(settings["seed"])
        self.node_count, self.copies = settings["nodes"], settings["copies"]
        self.segments, self.partitions = settings["segments"], settings["partitions"]
        self.acks_all, self.skips, self.size = bool(settings["acks_all"]), settings["skips"], settings["size"]
        self.interval, self.cost = settings["interval"], settings["cost"] / 1e6
        self.strategy = Strategy(_fields(settings)["reset.strategy"])
        self._fields = _fields(settings)
        self.config = parse({**self._fields, "node.id": "n0"})
        self.counts: Counter[str] = Counter()
        self.skews: dict[str, float] = {}
        self.no_kafka: set[str] = set()
        self.blind: set[str] = set()
        """Node ids that get no views at the moment."""
        self.unreached: dict[str, set[tuple[str, int]]] = {}
        self.hanging: set[str] = set()
        self.kafka = Kafka(self.engine)
        self.kafka.create(CHANGES, self.partitions)
        self.kafka.create(POSITIONS, self.partitions, COMPACTED)
        self.network = Network(self.engine)
        self.network.sends = self._sends
        self.failpoints = Failpoints(self._happen)
        self.names: dict[str, str] = {}
        """Node ids by the names that `let` gave them."""
        self.checker = checker(self)
        self.kafka.on_stable = self.checker.stable
        self.kafka.on_loss = self.checker.lose_part
        self.clients = Clients(self)
        self.nodes: dict[str, Node] = {}
        """The newest process of each node id."""
        self.everybody: list[Node] = []
        self._peace = False
        for number in range(self.node_count):
            self.start(f"n{number}")

    # -- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Runs to the end, or to the first violation."""
        try:
            return self._run()
        finally:
            for node in self.everybody:
                node.loop.bury()

    def _run(self) -> Verdict:
        self.engine.after(SAMPLE, self._sample)
        self._until(START, lambda: self.checker.settled() is None)
        begin = self.engine.now
        for event in self.script.events:
            self.engine.at(begin + event.at * PACE, self._happen, event)
        last = max((event.at for event in self.script.events), default=0.0) * PACE
        self.engine.at(begin + last + 0.1, self._make_peace)
        self._until(last + 0.1 + PEACE, lambda: self._peace and self.checker.settled() is None)
        if self.checker.violation is None:
            self.checker.final()
        counts = self._counted()
        for name, low, high in self.script.expects:
            if counts[name] < low or (high is not None and counts[name] > high):
                self.checker.fail("expected", f"{name} is {counts[name]}, not {low}..{high or ''}")
        return Verdict(
            self.checker.violation,
            self.checker.digest,
            self.engine.steps,
            self.engine.now,
            counts,
            self.checker.trace,
        )

    def _until(self, seconds: float, condition: Callable[[], bool]) -> None:
        """Runs until it is true, looking now and then, or to a violation."""
        end, last = self.engine.now + seconds, self.engine.steps + MAX_STEPS
        looked = self.engine.now
        while self.checker.violation is None:
            if self.engine.now - looked >= LOOK:
                looked = self.engine.now
                if condition():
                    return
            if self.engine.now > end or self.engine.steps > last:
                self.checker.fail("alive", f"not at rest at {self.engine.now:.1f} s: {self.checker.settled()}")
            self.engine.step()

    def _sample(self) -> None:
        self.checker.sample()
        for node in self.everybody:
            errors, node.loop.errors = node.loop.errors, []
            for context in errors:
                error = context.get("exception")
                if not isinstance(error, Gone) and node.alive:
                    self.checker.broken(f"{node.member}: {context['message']}", error or RuntimeError())
        self.engine.after(SAMPLE, self._sample)

    def _sends(self, loop: NodeLoop, data: bytes) -> None:
        if self.failpoints.waits:
            node = next(n for n in self.everybody if n.loop is loop)
            name, *_ = msgspec.msgpack.decode(data[frames.LENGTH_BYTES :])
            self.moment_comes(node, "sends", name.lower())

    def _counted(self) -> Counter[str]:
        counts = self.counts + self.checker.counts
        counts.update({f"kafka {name}": n for name, n in self.kafka.counts.items()})
        for node in self.everybody:
            c = node.core.counts
            counts["controllers"] += node.grid.controller_service.terms
            counts.update({f"commit_{cause}": n for cause, n in node.grid.connector.failed_transactions.items()})
            counts["takeovers"] += c.takeovers
            counts["pruned"] += c.pruned
            counts["refused"] += c.refused
            counts["corrections"] += c.corrections
            counts["written"] += c.written
            counts["truncations"] += c.truncations
            counts["caught up by operations"] += node.grid.replicator.catch_up.operations
            counts["caught up by state"] += node.grid.replicator.catch_up.states
            counts["stale answers"] += node.grid.replicator.stale_answers
            counts["frames refused"] += node.grid.backup.refused
            counts.update({f"overflow {name}": n for name, n in c.overflow.items()})
        return counts

    # -- nodes ------------------------------------------------------------------------------------------------------

    def start(self, node_id: str) -> Node:
        """A new process under a node id."""
        node = self.nodes[node_id] = Node(self, node_id, parse({**self._fields, "node.id": node_id}))
        self.everybody.append(node)
        return node

    def find(self, member: str) -> Node | None:
        """The live process of a member."""
        return next((n for n in self.everybody if n.alive and n.member == member), None)

    def ended(self, node: Process) -> None:
        """A process ended: its memory and connections are gone."""
        if node.alive:
            self.checker.say(f"{node.member} ends")
            node.loop.kill()

    def living(self) -> list[Node]:
        """Live processes, including paused ones."""
        return [n for n in self.everybody if n.alive]

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

    def transaction_comes(self, node: Process, name: str) -> None:
        """The open transaction of a node is `appended`, or `committed`."""
        if self.failpoints.transaction(node, name):
            raise Gone
        if name == "appended" and node.node_id in self.hanging:
            self.hanging.discard(node.node_id)
            self.counts["hanging transactions"] += 1
            node.pause()

    # -- failpoints: a node that ends at one does nothing more, not even the rest of its turn --------------------------

    def effect_comes(self, node: Process, effect: Effect) -> None:
        """An effect of a core is about to be executed."""
        if self.failpoints.effect(node, effect):
            raise Gone

    def moment_comes(self, node: Process, name: str, kind: str) -> None:
        """See `failpoints.FAILPOINTS`."""
        if self.failpoints.come(node, name, frozenset({kind})):
            raise Gone

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
        if self.failpoints.come(node, "view", frozenset(kinds)):
            raise Gone

    # -- events -----------------------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if happen(self, event):
            self.counts[f"did {event.verb}"] += 1
            self.counts[f"fault {event.verb}"] += is_fault(event)
            self.checker.say(f"--- {' '.join((event.verb, *event.arguments))}")
            self.checker.causes.happened(event, self.names)

    # -- peace ------------------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        """Ends all faults: brokers and network recover, paused nodes resume, dead ones restart."""
        self.checker.say("--- peace")
        self.checker.looks_from_now_on()
        self.failpoints.clear()
        self.kafka.up = True
        self.kafka.recover_all()
        self.kafka.refused.clear()
        self.no_kafka.clear()
        self.blind.clear()
        self.unreached.clear()
        self.hanging.clear()
        self.kafka.lost.clear()
        self.network.slow.clear()
        for node_id in [node_id for node_id, seconds in self.skews.items() if seconds > MOST_AHEAD]:
            skew(self, node_id, "0")  # brokers take nothing from it
        for a, b in combinations(sorted(self.nodes), 2):
            self.network.heal(a, b)
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
    fields = {
        "topic.prefix": "p",
        "cache.name": "c",
        "bootstrap.servers": "memory:9092",
        "cache.listen": "127.0.0.1:0",
        "segment.count": str(settings["segments"]),
        "topic.creation.default.partitions": str(settings["partitions"]),
        "cache.backups": str(settings["copies"] - 1),
        "cache.max.entries": str(settings["capacity"] * settings["segments"]),
        "cache.acks": "all" if settings["acks_all"] else "1",
        "cache.failure.timeout.ms": "250",
        "transaction.timeout.ms": "1000",
        "heartbeat.interval.ms": "1000",
        "max.batch.size": str(settings["batch"]),
        "incremental.snapshot.chunk.size": str(settings["chunk"]),
        "max.queue.size": str(settings["max_operations"]),
        "tombstones.on.delete": str(bool(settings["tombstones"])).lower(),
        "reset.strategy": list(Strategy)[settings["strategy"]].value,
        "reset.interval.ms": str(settings["interval"]),
    }
    if settings["notifications"]:
        fields["notification.sink.topic.name"] = NOTIFICATIONS
    return fields | fields_of(settings["skips"])
