"""One seed: a cluster under load whose nodes are killed, paused, restarted and stopped at moments drawn from the seed.

Moments are turns of a node's loop, so each await of the connector can be the last one.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

import orjson

from deelog_connector.errors import KafkaTooSlowError, KafkaUnavailable, NodeSuperseded
from deelog_connector.kafka_port import OutRecord
from deelog_schemas.config import parse
from tests.connector.seeds.cluster import CHANGES, PARTITIONS, SEGMENTS, Cluster, Node

KEYS: Final = [b"k%d" % number for number in range(120)]
WRITES: Final = 300
RATE: Final = 200.0
"""Writes per second."""
FAULTS: Final = (
    *("kill", "kill", "pause", "cut", "cut", "move", "move", "fence", "lost", "away", "stranger", "compact"),
    *("denied", "recreate", "recreate_positions"),
)
OPERATIONS: Final = ("restart", "restart", "configure", "pause", "stop", "cancel", "leave", "snapshot", "reset")
CHANGES_OF_CONFIG: Final[tuple[dict[str, str], ...]] = (
    {"commit.interval.ms": "20"},
    {"value.converter.schemas.enable": "true"},
    {"tombstones.on.delete": "false"},
    {"reset.strategy": "tombstones", "reset.interval.ms": "60000"},
    # A pipeline that drops nothing: there is no such key.
    {
        "transforms": "f",
        "transforms.f.type": "deelog_connector.transforms.Filter",
        "transforms.f.predicate": "p",
        "predicates": "p",
        "predicates.p.type": "deelog_connector.transforms.KeyMatches",
        "predicates.p.pattern": "x",
    },
)
EXPECTED: Final = (KafkaTooSlowError, KafkaUnavailable)
"""What a request to a connector may end with while Kafka is away or refuses it."""
PATIENCE: Final = 120.0
"""Seconds of the engine in which all comes to rest once nothing happens any more."""


class Run:
    """Call `run`; then `problems` has what is wrong, and `happened` what there was."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(f"{seed}/settings")
        self.cluster = Cluster(
            seed,
            nodes=chance.choice((1, 2, 2, 3)),
            **{
                "oplog.overflow": chance.choice(("block", "coalesce", "reset")),
                "max.queue.size": chance.choice(("2000", "60")),
                "max.batch.size": chance.choice(("20", "200")),
                "incremental.snapshot.chunk.size": "4",
                "reset.strategy": chance.choice(("marker", "tombstones")),
                "transaction.timeout.ms": "60000",
                **chance.choice(({}, {"notification.sink.topic.name": "notes"})),
            },
        )
        self.happened: Counter[str] = Counter()
        self.problems: list[str] = []
        self._chance = self.cluster.engine.stream("faults")
        self._quiet = False
        self._asked: list[tuple[str, Node, Any]] = []

    def run(self) -> None:
        """Runs it to its end."""
        cluster, chance = self.cluster, self._chance
        cluster.engine.run(lambda: all(node.starting.done() for node in cluster.nodes.values()))
        nodes = list(cluster.nodes.values())
        for segment in range(SEGMENTS):
            turned = nodes[segment % len(nodes) :] + nodes[: segment % len(nodes)]
            cluster.own(segment, *turned[:2], must_reset="start")
        load, at = cluster.engine.stream("load"), 0.0
        for number in range(WRITES):
            at += load.expovariate(RATE)
            value = b"v%d" % number if load.random() < 0.9 else None
            cluster.engine.after(at, cluster.put, load.choice(KEYS), value)
        for _ in range(chance.randint(2, 8)):
            cluster.engine.after(chance.uniform(0.0, at), self._fault, chance.choice(FAULTS))
        for _ in range(chance.randint(0, 3)):
            cluster.engine.after(chance.uniform(0.0, at), self._operate, chance.choice(OPERATIONS))
        cluster.run(at + 3.0)
        self._settle()
        self._judge()

    # -- faults -------------------------------------------------------------------------------------------------------

    def _fault(self, what: str) -> None:
        cluster, chance = self.cluster, self._chance
        node = chance.choice(list(cluster.nodes.values()))
        self.happened[what] += 1
        if what in ("kill", "pause"):
            self._soon(node, what)
        elif what == "cut":
            self._elect(node, deaf=True)
        elif what == "move":
            self._move()
        elif what == "fence":
            cluster.kafka.init(node.config.topics.transactional_id_node(node.node_id), "an operator")
        elif what == "lost":
            transactional_id = node.config.topics.transactional_id_node(node.node_id)
            cluster.kafka.lost[transactional_id] = chance.random() < 0.5
        elif what == "away":
            cluster.kafka.up = False
            cluster.engine.after(chance.choice((0.3, 3.0, 14.0)) * chance.random(), self._back)
        elif what == "stranger":
            self._stranger()
        elif what == "denied":
            self._deny(node)
        elif what == "recreate":
            cluster.kafka.recreate(CHANGES)
        elif what == "recreate_positions":
            cluster.kafka.recreate(f"{CHANGES}.positions")
        else:
            cluster.kafka.compact(f"{CHANGES}.positions")

    def _back(self) -> None:
        self.cluster.kafka.up = True

    def _stranger(self) -> None:
        """Another client's transaction holds a partition's records back for a while."""
        kafka, name = self.cluster.kafka, f"stranger {self.cluster.engine.steps}"
        session = kafka.init(name, name)
        kafka.append(name, session, [OutRecord(CHANGES, self._chance.randrange(PARTITIONS), b"x", None, [])])
        held = self._chance.choice((0.3, 3.0, 30.0)) * self._chance.random()
        self.cluster.engine.after(held, kafka.init, name, name)

    def _deny(self, node: Node) -> None:
        """A right is taken away for a while."""
        kafka, topics = self.cluster.kafka, node.config.topics
        right = self._chance.choice(
            (
                ("Write", topics.transactional_id_node(node.node_id)),
                ("Write", topics.changes),
                ("Read", topics.changes),
                ("Read", topics.positions),
                ("Describe", topics.changes),
            )
        )
        kafka.denied.add(right)
        self.cluster.engine.after(self._chance.uniform(0.1, 2.0), kafka.denied.discard, right)

    def _soon(self, node: Node, what: str) -> None:
        """Kills or pauses it a few turns from now."""
        left = self._chance.randint(1, 60)

        def before() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                node.loop.before = None
                self._strike(node, what)

        node.loop.before = before

    def _strike(self, node: Node, what: str) -> None:
        engine, chance = self.cluster.engine, self._chance
        if what == "kill":
            node.loop.kill()
            engine.after(chance.uniform(0.2, 1.0), self._restart, node)
        else:
            node.loop.pause()
            engine.after(chance.uniform(0.05, 2.0), node.loop.resume)
        engine.after(chance.uniform(0.001, 0.1), self._elect, node)

    def _restart(self, node: Node) -> None:
        if self.cluster.nodes[node.node_id] is node and not node.loop.alive:
            self.cluster.restart(node)

    def _move(self) -> None:
        """Some segments get another primary; the old one becomes a backup."""
        cluster = self.cluster
        for segment in range(SEGMENTS):
            owners = [cluster.primary[segment], *cluster.backups[segment]]
            if all(node.serves for node in owners) and self._chance.random() < 0.5:
                cluster.own(segment, *reversed(owners))

    def _elect(self, gone: Node, deaf: bool = False) -> None:
        """A view without this node, for the segments that it is an owner of. Deaf, it hears of it later."""
        cluster = self.cluster
        for segment in range(SEGMENTS):
            owners = [cluster.primary[segment], *cluster.backups[segment]]
            if gone not in owners:
                continue
            others = [node for node in cluster.nodes.values() if node.serves and node is not gone]
            if not others:
                if not gone.serves:
                    cluster.engine.after(0.05, self._elect, gone)
                return
            left = [node for node in owners if node in others]
            first = left[0] if left else self._chance.choice(others)
            rest = [node for node in others if node is not first][:1]
            for node in owners:
                if node not in (first, *rest):
                    later = self._chance.uniform(0.05, 2.0) if deaf and node is gone else 0.0
                    cluster.engine.after(later, self._forget, node, segment)
            cluster.own(segment, first, *rest, must_reset=None if left else "owners_lost")

    def _forget(self, node: Node, segment: int) -> None:
        cluster = self.cluster
        owns = node is cluster.primary[segment] or node in cluster.backups[segment]
        if not owns and node.loop.alive and not node.loop.paused:
            node.loop.within(node.core.forget, segment)

    # -- operators ----------------------------------------------------------------------------------------------------

    def _operate(self, what: str) -> None:
        cluster, chance = self.cluster, self._chance
        nodes = [node for node in cluster.nodes.values() if node.serves]
        if not nodes:
            return
        self.happened[what] += 1
        node = chance.choice(nodes)
        lifecycle = node.lifecycle
        if what == "snapshot":
            self._signal("execute-snapshot", {"data-collections": ["c"], "type": "incremental"})
        elif what == "cancel":
            task = node.ask(chance.choice((lifecycle.restart, lifecycle.stop))())
            cluster.engine.after(chance.uniform(0.0, 0.1), self._cancel, node, task)
            cluster.engine.after(chance.uniform(0.1, 1.0), self._resume, node)
        elif what == "reset":
            data = b'{"id":"r","type":"reset-segment","data":{"cache":"c","segments":[%d]}}' % chance.randrange(
                SEGMENTS
            )
            cluster.kafka.logs["p-signal", 0].append(OutRecord("p-signal", 0, b"p", data, []), None)
        elif what == "configure":
            changed = parse({**node.config.raw, **chance.choice(CHANGES_OF_CONFIG)}, node.config.role)
            self._asked.append((what, node, node.ask(lifecycle.configure(lambda: changed))))
        elif what == "leave":
            self._asked.append((what, node, node.ask(self._leave(node))))
        else:
            self._asked.append((what, node, node.ask(getattr(lifecycle, what)())))
            if what != "restart":
                cluster.engine.after(chance.uniform(0.01, 1.0), self._resume, node)

    def _signal(self, kind: str, data: dict[str, Any]) -> None:
        value = orjson.dumps({"id": kind, "type": kind, "data": data})
        self.cluster.kafka.logs["p-signal", 0].append(OutRecord("p-signal", 0, b"p", value, []), None)

    @staticmethod
    def _cancel(node: Node, task: Any) -> None:
        if node.loop.alive:
            node.loop.within(task.cancel)

    def _resume(self, node: Node) -> None:
        if node.serves:
            self._asked.append(("resume", node, node.ask(node.lifecycle.resume())))

    async def _leave(self, node: Node) -> None:
        engine, chance = self.cluster.engine, self._chance
        await node.lifecycle.end()
        engine.after(chance.uniform(0.0, 0.05), self._elect, node)
        await node.connector.stop(release=chance.random() < 0.8)
        node.loop.kill()
        engine.after(chance.uniform(0.0, 0.5), self._restart, node)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing more happens: all comes to rest."""
        cluster = self.cluster
        cluster.kafka.up = True
        cluster.kafka.denied.clear()
        end = cluster.engine.now + PATIENCE
        while not self._at_rest() and cluster.engine.now < end:
            for node in list(cluster.nodes.values()):
                node.loop.before = None
                if node.loop.alive and node.failed is not None:
                    node.loop.kill()
                if not node.loop.alive:
                    self._restart(node)
                elif node.serves and (node.connector.state.paused or node.connector.state.stopped):
                    self._resume(node)
            for segment, node in cluster.primary.items():
                if not node.serves:
                    self._elect(node)
                elif node.core.phase(segment) in ("idle", "released"):
                    cluster.own(segment, node, *(b for b in cluster.backups[segment] if b.serves))
            cluster.run(0.5)

    def _at_rest(self) -> bool:
        """Nothing is under way."""
        under_way = any(node.loop.alive and not task.done() for _, node, task in self._asked)
        return not under_way and not self.cluster.kafka.transactions and self.cluster.at_rest

    def _judge(self) -> None:
        cluster = self.cluster
        if not self._at_rest():
            phases = [(segment, node.member, node.core.phase(segment)) for segment, node in cluster.primary.items()]
            self.problems.append(f"not at rest: {phases}")
        self.problems += cluster.differences()
        for node in cluster.everybody:
            unheard = [error for error in node.loop.errors if not isinstance(error.get("exception"), EXPECTED)]
            self.problems += [f"{node.member}: {error}" for error in unheard]
            error = node.failed
            if error is not None and not isinstance(error, NodeSuperseded | KafkaUnavailable):
                self.problems.append(f"{node.member} ended with {error!r}")
        for what, node, task in self._asked:
            if not node.loop.alive:
                continue
            if not task.done():
                self.problems.append(f"{what} of {node.member} has not ended")
            elif (error := task.exception()) is not None and not isinstance(error, EXPECTED):
                self.problems.append(f"{what} of {node.member}: {error!r}")


def problems_of(seed: int) -> tuple[list[str], Counter[str]]:
    """What is wrong after a seed, and what happened in it."""
    run = Run(seed)
    try:
        run.run()
    finally:
        run.cluster.bury()
    return run.problems, run.happened
