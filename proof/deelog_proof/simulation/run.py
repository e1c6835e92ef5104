"""One run: a script on a cluster, first with faults, then without, until it is at rest.

First safety, then liveness, as in TigerBeetle's simulator: while faults happen nothing wrong may be written; after
they end, caches and topic must become equal within `PEACE` seconds of simulated time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, Generic, TypeVar

from deelog_connector.core.effects import Effect
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.kafka_port import COMPACTED
from deelog_connector.runtime import Connector
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.network import Network
from deelog_proof.simulation.context import CHANGES, POSITIONS
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.failpoints import Failpoints
from deelog_proof.simulation.hosted import Gone, Hosted
from deelog_proof.simulation.judge import Judge, Violation
from deelog_proof.simulation.language import Settings
from deelog_proof.simulation.script import Script

PEACE: Final = 60.0
"""Simulated seconds until everything must be equal after the last fault."""
START: Final = 60.0
"""Simulated seconds until the cluster has started."""
PACE: Final = 2.0
"""Simulated seconds of one second of a script: timeouts are those that a configuration allows."""
SAMPLE: Final = 0.1
LOOK: Final = 0.05
MAX_STEPS: Final = 2_000_000


P = TypeVar("P", bound=Hosted)


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


class Run(ABC, Generic[P]):
    """Brokers, a network, and what is wrong with them at the moment. Call `run()` once."""

    checker: Judge

    def __init__(self, script: Script) -> None:
        settings = script.settings
        self.script = script
        self.engine = Engine(settings["seed"])
        self.segments, self.partitions = settings["segments"], settings["partitions"]
        self.acks_all = bool(settings["acks_all"])
        self.counts: Counter[str] = Counter()
        self.names: dict[str, str] = {}
        """Node ids by the names that `let` gave them."""
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
        self.nodes: dict[str, P] = {}
        """The newest process of each node id."""
        self.everybody: list[P] = []
        """Every process that was ever started, in the order of starts."""
        self._peace = False

    def _counted(self) -> Counter[str]:
        """What has happened, by name."""
        counts = self.counts + self.checker.counts
        counts.update({f"kafka {name}": n for name, n in self.kafka.counts.items()})
        for connector in self._connectors():
            core = connector.core.counts
            for name in ("takeovers", "pruned", "refused", "corrections", "written", "truncations"):
                counts[name] += getattr(core, name)
            counts.update({f"commit_{cause}": n for cause, n in connector.failed_transactions.items()})
            counts.update({f"overflow {name}": n for name, n in core.overflow.items()})
        return counts

    @abstractmethod
    def _connectors(self) -> Iterable[Connector]:
        """Those of all processes that were ever started."""

    @abstractmethod
    def _make_peace(self) -> None:
        """Ends all faults; sets `_peace` once everything runs."""

    def run(self) -> Verdict:
        """Runs to the end, or to the first violation."""
        try:
            return self._run()
        finally:
            for process in self.everybody:
                process.loop.bury()

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
        for process in self.everybody:
            errors, process.loop.errors = process.loop.errors, []
            for context in errors:
                error = context.get("exception")
                if not isinstance(error, Gone) and process.alive:
                    self.checker.broken(f"{process.member}: {context['message']}", error or RuntimeError())
        self.engine.after(SAMPLE, self._sample)

    def _happen(self, event: Event) -> bool:
        """Whether it could."""
        verbs = self.script.language.verbs
        if not verbs.happen(self, event):
            return False
        self.counts[f"did {event.verb}"] += 1
        self.counts[f"fault {event.verb}"] += verbs.is_fault(event)
        self.checker.say(f"--- {' '.join((event.verb, *event.arguments))}")
        return True

    def living(self) -> list[P]:
        """Live processes, including paused ones."""
        return [n for n in self.everybody if n.alive]

    def ended(self, node: Any) -> None:
        """A process ended: its memory and connections are gone."""
        if node.alive:
            self.checker.say(f"{node.member} ends")
            node.loop.kill()

    # -- failpoints: a process that ends at one does nothing more, not even the rest of its turn ----------------------

    def effect_comes(self, node: Any, effect: Effect) -> None:
        """An effect of a core is about to be executed."""
        if self.failpoints.effect(node, effect):
            raise Gone

    @abstractmethod
    def _sent(self, node: P, data: bytes) -> str:
        """The name of what a process is about to send; empty where nobody waits for it."""

    def _sends(self, loop: NodeLoop, data: bytes) -> None:
        if self.failpoints.waits:
            node = next(node for node in self.everybody if node.loop is loop)
            if name := self._sent(node, data):
                self.moment_comes(node, "sends", name.lower())

    def moment_comes(self, node: Any, name: str, *kinds: str) -> None:
        """See `failpoints.FAILPOINTS`."""
        if self.failpoints.come(node, name, frozenset(kinds)):
            raise Gone

    def transaction_comes(self, node: Any, name: str) -> None:
        """The open transaction of a node is `appended`, or `committed`."""
        if self.failpoints.transaction(node, name):
            raise Gone
        if name == "appended" and node.node_id in self.hanging:
            self.hanging.discard(node.node_id)
            self.counts["hanging transactions"] += 1
            node.pause()

    def _end_faults(self, node_ids: Iterable[str]) -> None:
        """Those of the brokers and of the network between these nodes, and those that are still to come."""
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
        for a, b in combinations(sorted(node_ids), 2):
            self.network.heal(a, b)


def connector_fields(settings: Settings) -> dict[str, str]:
    """What all connectors of a run have in their configuration, whatever the cache is."""
    return {
        "topic.prefix": "p",
        "cache.name": "c",
        "bootstrap.servers": "memory:9092",
        "segment.count": str(settings["segments"]),
        "topic.creation.default.partitions": str(settings["partitions"]),
        "cache.acks": "all" if settings["acks_all"] else "1",
        "transaction.timeout.ms": "1000",
        "heartbeat.interval.ms": "1000",
        "max.batch.size": str(settings["batch"]),
        "incremental.snapshot.chunk.size": str(settings["chunk"]),
        "max.queue.size": str(settings["max_operations"]),
        "tombstones.on.delete": str(bool(settings["tombstones"])).lower(),
        "reset.strategy": list(Strategy)[settings["strategy"]].value,
    }
