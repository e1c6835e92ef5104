"""One run: a script on a cluster, first with faults, then without, until it is at rest.

First safety, then liveness, as in TigerBeetle's simulator: while faults happen nothing wrong may be written; after
they end, caches and topic must become equal within `PEACE` seconds of simulated time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from deelog_connector.core.effects import Effect
from deelog_connector.core.reset_strategy import Strategy
from deelog_interceptors.grid.data.segment import Role
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.lease import lease_expiry_of, lease_of
from deelog_interceptors.grid.topology.view import View
from deelog_proof.memory.engine import Engine
from deelog_proof.simulation.checker import Checker, Violation
from deelog_proof.simulation.clients import Clients
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.failpoints import Failpoints
from deelog_proof.simulation.group import Group
from deelog_proof.simulation.kafka import Kafka
from deelog_proof.simulation.network import Network
from deelog_proof.simulation.node import Gone, Node
from deelog_proof.simulation.process import Process
from deelog_proof.simulation.script import Script
from deelog_proof.simulation.verbs import happen, is_fault
from deelog_schemas import keys
from deelog_schemas.config import parse

PEACE: Final = 60.0
"""Simulated seconds until everything must be equal after the last fault."""
SAMPLE: Final = 0.05
MAX_STEPS: Final = 2_000_000


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
        self.batch, self.chunk = settings["batch"], settings["chunk"]
        self.max_operations = settings["max_operations"]
        self.acks_all, self.tombstones = bool(settings["acks_all"]), bool(settings["tombstones"])
        self.strategy, self.reset_interval = list(Strategy)[settings["strategy"]], settings["interval"] / 1000
        self.skips = settings["skips"]
        self.failure_timeout, self.session_timeout = 0.15, 0.3
        timeouts = (self.session_timeout, self.failure_timeout)
        self.lease, self.lease_expiry = lease_of(*timeouts), lease_expiry_of(*timeouts)
        self.grid_settings = _settings(settings)
        self.counts: Counter[str] = Counter()
        self.skews: dict[str, float] = {}
        self.no_kafka: set[str] = set()
        self.blind: set[str] = set()
        """Node ids that get no views at the moment."""
        self.hanging: set[str] = set()
        self.losing: set[str] = set()
        self.kafka = Kafka(self.engine, self.partitions, 0.6)
        self.network = Network(self.engine, self.find)
        self.network.sends = lambda node, frame: self.moment_comes(node, "sends", type(frame).__name__.lower(), False)
        self.failpoints = Failpoints(self._happen)
        self.snapshots: set[int] = set()
        """Segments with a requested incremental snapshot that is not complete."""
        self.names: dict[str, str] = {}
        """Node ids by the names that `let` gave them."""
        self.group = Group(self.session_timeout)
        self.checker = checker(self)
        self.kafka.on_stable = self.checker.stable
        self.kafka.on_loss = self.checker.lose_part
        self.clients = Clients(self)
        self._incarnations = 0
        self.nodes: dict[str, Node] = {}
        """The newest process of each node id."""
        self.everybody: list[Node] = []
        self._peace = False
        for number in range(self.node_count):
            self.start(f"n{number}")

    # -- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Runs to the end, or to the first violation."""
        for event in self.script.events:
            self.engine.at(event.at, self._happen, event)
        last = max((event.at for event in self.script.events), default=0.0)
        self.engine.at(max(last, 0.5) + 0.1, self._make_peace)
        self.engine.after(SAMPLE, self._sample)
        until = max(last, 0.5) + 0.1 + PEACE
        while self.checker.violation is None and self.engine.step():
            if self._peace and self.checker.settled() is None:
                self.checker.final()
                break
            if self.engine.now > until:
                self.checker.fail("alive", f"not at rest {PEACE:g} s after the last fault: {self.checker.settled()}")
            elif self.engine.steps > MAX_STEPS:
                self.checker.fail("alive", f"not at rest after {MAX_STEPS} steps: {self.checker.settled()}")
        counts = self._counted()
        for name, low, high in self.script.expects:
            if counts[name] < low or (high is not None and counts[name] > high):
                self.checker.fail("expected", f"{name} is {counts[name]}, not {low}..{high or ''}")
        verdict = Verdict(
            self.checker.violation,
            self.checker.digest,
            self.engine.steps,
            self.engine.now,
            counts,
            self.checker.trace,
        )
        self._close()
        return verdict

    def _close(self) -> None:
        """Ends the nodes' pending coroutines, which Python would warn of."""
        for session in (s for n in self.everybody for g in n.store.segments for s in g.sessions.values()):
            if session.task is not None:
                session.task.cancel()

    def _sample(self) -> None:
        self.checker.sample()
        self.engine.after(SAMPLE, self._sample)

    def _counted(self) -> Counter[str]:
        counts = self.counts + self.checker.counts
        counts.update({f"kafka {name}": n for name, n in self.kafka.counts.items()})
        counts["controllers"] += self.group.changes
        for node in self.everybody:
            c = node.core.counts
            counts["takeovers"] += c.takeovers
            counts["pruned"] += c.pruned
            counts["refused"] += c.refused
            counts["corrections"] += c.corrections
            counts["written"] += c.written
            counts["truncations"] += c.truncations
            counts["caught up by operations"] += node.replicator.catch_up.operations
            counts["caught up by state"] += node.replicator.catch_up.states
            counts["stale answers"] += node.replicator.stale_answers
            counts["frames refused"] += node.backup.refused
            counts.update({f"overflow {name}": n for name, n in c.overflow.items()})
        return counts

    # -- nodes ------------------------------------------------------------------------------------------------------

    def start(self, node_id: str) -> Node:
        """A new process under a node id."""
        self._incarnations += 1
        node = self.nodes[node_id] = Node(self, node_id, 1000 + self._incarnations)
        self.everybody.append(node)
        return node

    def find(self, member: str) -> Node | None:
        """The live process of a member."""
        return next((n for n in self.everybody if n.alive and n.member == member), None)

    def ended(self, node: Process) -> None:
        """A process ended: its memory and connections are gone."""
        if node.alive:
            node.alive = False
            self.checker.say(f"{node.member} ends")
            self.network.end_of(node.member)

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

    def parts(self, node: Process, count: int) -> list[int]:
        """The sizes of the steps in which a transaction's records reach the brokers."""
        if count > 1 and node.random.random() < 0.3:
            first = node.random.randrange(1, count)
            return [first, count - first]
        return [count]

    def hangs(self, node: Process) -> bool:
        """Whether the node pauses here, with its transaction open."""
        self.failpoints.transaction(node, "appended")
        if node.node_id not in self.hanging:
            return False
        self.hanging.discard(node.node_id)
        self.counts["hanging transactions"] += 1
        node.paused = True
        return True

    def loses_answer(self, node: Process) -> bool:
        """Whether the response to a successful commit is lost."""
        if self.failpoints.transaction(node, "committed"):
            raise Gone
        if node.node_id not in self.losing:
            return False
        self.losing.discard(node.node_id)
        return True

    # -- failpoints: a node that ends at one does nothing more, not even the rest of its turn --------------------------

    def effect_comes(self, node: Process, effect: Effect) -> None:
        """An effect of a core is about to be executed."""
        if self.failpoints.effect(node, effect):
            raise Gone

    def moment_comes(self, node: Process, name: str, kind: str, at_once: bool = True) -> None:
        """See `failpoints.FAILPOINTS`. `at_once`: the turn ends if the node ends; else the rest of it has no effect."""
        if self.failpoints.come(node, name, frozenset({kind})) and at_once:
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

    # -- peace ------------------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        """Ends all faults: brokers and network recover, paused nodes resume, dead ones restart."""
        self.checker.say("--- peace")
        self.failpoints.clear()
        self.kafka.up = True
        self.kafka.refused.clear()
        self.no_kafka.clear()
        self.blind.clear()
        self.hanging.clear()
        self.losing.clear()
        self.network.slow.clear()
        for a, b in sorted(self.network.cut):
            self.network.heal(a, b)
        for node in self.living():
            if node.paused:
                node.resume()
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
        self._peace = True
        self.engine.after(0.5, self._restart_all)


def _settings(settings: dict[str, int]) -> Settings:
    fields = {
        "topic.prefix": "p",
        "cache.name": "c",
        "node.id": "n",
        "bootstrap.servers": "h:1",
        "segment.count": str(settings["segments"]),
        "topic.creation.default.partitions": str(settings["partitions"]),
        "cache.backups": str(settings["copies"] - 1),
        "cache.max.entries": str(settings["capacity"] * settings["segments"]),
        "cache.acks": "all" if settings["acks_all"] else "1",
    }
    return Settings.of(parse(fields))
