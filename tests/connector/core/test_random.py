"""Random histories of several nodes: crashes, zombies, hanging transactions, overflows, handovers, resets.

Once faults stop, what a reader derives must equal what the primaries hold, no position may stand there twice, and no
reset may stay open. A failing seed is a script: run it again by its number.
"""

from __future__ import annotations

import random

from deelog_connector.core.reset_strategy import Strategy
from tests.connector.world import SEGMENTS, Node, World, key_of

SEEDS = 300
STEPS = 150


class Script:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(nodes=3, batch=self.random.choice((2, 5, 50)), strategy=list(Strategy)[seed % 3])
        nodes = list(self.world.nodes.values())
        self.values = 0
        for segment in range(SEGMENTS):
            self.world.own(segment, nodes[segment % 3], nodes[(segment + 1) % 3])

    def run(self) -> World:
        """All steps, then peace, then the comparison."""
        steps = (
            [self.put] * 8
            + [self.work] * 24
            + [self.unacked, self.unacked_written] * 2
            + [self.phantom, self.ghost, self.failover, self.failover, self.crash, self.handover, self.overflow]
            + [self.clear, self.coalesce, self.signal, self.hang, self.hang, self.finish, self.fence, self.rejoin]
            + [self.rejoin] * 3
            + [self.snapshot] * 2
        )
        for _ in range(STEPS):
            self.world.now += 0.05
            self.random.choice(steps)()
        self.peace()
        return self.world

    def put(self) -> None:
        """A client's write or delete."""
        self.values += 1
        value = None if self.random.random() < 0.2 else b"%d" % self.values
        self.world.put(key_of(self.segment(), self.random.randrange(3)), value)

    def unacked(self) -> None:
        """A write that reached the primary alone; replicated with the next one, or lost with it."""
        self.values += 1
        self.world.put(key_of(self.segment(), self.random.randrange(3)), b"%d" % self.values, acked=False)

    def unacked_written(self) -> None:
        """At a lower level of acknowledgement: released to the writer before any backup has it."""
        segment = self.segment()
        primary = self.world.primary[segment]
        self.unacked()
        if primary.core.phase(segment) != "idle":
            primary.core._segments[segment].acked = primary.core.last_sequence(segment)

    def phantom(self) -> None:
        """What one node alone holds gets to Kafka, and then another becomes primary."""
        primary = self.world.primary[0]
        self.values += 1
        self.world.put(key_of(0, self.random.randrange(3)), b"phantom%d" % self.values, acked=False)
        if primary.core.phase(0) == "writing" and primary.hanging is None and primary.alive:
            primary.core._segments[0].acked = primary.core.last_sequence(0)
            for _ in range(self.random.randrange(3)):
                primary.step()
        self.failover()

    def ghost(self) -> None:
        """A write at a node that still believes it is primary."""
        segment = self.segment()
        believers = [
            n for n in self.alive() if n.core.phase(segment) != "idle" and n is not self.world.primary[segment]
        ]
        if believers:
            self.values += 1
            self.world.put(key_of(segment), b"ghost%d" % self.values, at=self.random.choice(believers), acked=False)

    def work(self) -> None:
        """A node works a little."""
        node = self.random.choice(self.alive())
        if node.hanging is None:
            node.step()

    def hang(self) -> None:
        """A node stops with its transaction open."""
        node = self.random.choice(self.alive())
        if node.hanging is None:
            node.step(hang=True)

    def finish(self) -> None:
        """A node goes on with its transaction."""
        for node in self.alive():
            if node.hanging is not None:
                node.finish()
                return

    def failover(self) -> None:
        """A backup becomes primary; the old one does not hear of it."""
        segment = self.segment()
        backups = self.world.backups[segment]
        if backups:
            self.world.own(segment, self.random.choice(backups))

    def rejoin(self) -> None:
        """Any node becomes backup of a segment, and hears of it."""
        segment, node = self.segment(), self.random.choice(self.alive())
        if node is not self.world.primary[segment] and node.hanging is None and node not in self.world.backups[segment]:
            node.core.demote(segment)
            self.world.catch_up(segment, node)
            self.world.backups[segment].append(node)
            self.world.ack(segment)

    def crash(self) -> None:
        """kill -9; its segments go to a backup, or, with a reset, to anybody; it comes back empty."""
        node = self.random.choice(self.alive())
        self.world.crash(node)
        self.world.restart(node)
        for segment, primary in list(self.world.primary.items()):
            if primary is not node:
                self.world.ack(segment)
                continue
            backups = self.world.backups[segment]
            if backups:
                self.world.own(segment, backups[0], *backups[1:])
            else:
                heir = self.random.choice([n for n in self.alive() if n.core.phase(segment) == "idle"])
                self.world.own(segment, heir, must_reset="owners_lost")

    def handover(self) -> None:
        """The primary releases; somebody takes it, or nobody does."""
        segment = self.segment()
        primary = self.world.primary[segment]
        primary.core.release(segment)
        if primary.core.phase(segment) == "released" and self.world.backups[segment]:
            self.world.own(segment, self.world.backups[segment][0], primary)

    def overflow(self) -> None:
        """The op log of a segment is full, here or there."""
        segment = self.segment()
        owner = self.random.choice([self.world.primary[segment], *self.world.backups[segment]])
        owner.core.overflow(segment)

    def clear(self) -> None:
        """FLUSHALL of a segment."""
        segment = self.segment()
        self.level(segment)
        self.world.clear(segment)

    def coalesce(self) -> None:
        """The op logs are full and the policy is coalesce."""
        self.random.choice(self.alive()).core.coalesce_all()

    def signal(self) -> None:
        """Somebody asks for a reset."""
        segment = self.segment()
        if self.world.primary[segment].core.phase(segment) != "idle":
            self.world.primary[segment].core.request_reset(segment, "signal")

    def snapshot(self) -> None:
        """Somebody asks for an incremental snapshot of a segment, or for its end."""
        segment = self.segment()
        core = self.world.primary[segment].core
        if self.random.random() < 0.1:
            core.stop_snapshot(segment)
        elif core.phase(segment) == "writing":
            core.snapshot(segment)

    def fence(self) -> None:
        """A node is fenced, for whatever reason."""
        self.world.broker.init(self.random.choice(self.alive()).node_id)

    def level(self, segment: int) -> None:
        """Every backup holds what its primary holds."""
        for backup in self.world.backups[segment]:
            self.world.catch_up(segment, backup)
        self.world.ack(segment)

    def peace(self) -> None:
        """Faults stop: hanging ones go on, everybody hears of the present view."""
        for node in self.alive():
            if node.hanging is not None:
                node.finish()
        for segment, primary in list(self.world.primary.items()):
            for node in self.alive():
                if node is not primary and node.core.phase(segment) != "idle":
                    node.core.demote(segment)
            if primary.core.phase(segment) in ("idle", "released"):
                self.world.own(segment, primary)
            self.level(segment)
        self.world.settle()
        for segment, primary in list(self.world.primary.items()):
            if primary.core.phase(segment) in ("idle", "released"):
                self.world.own(segment, primary)
        self.world.settle()
        self.world.check()

    def segment(self) -> int:
        """A segment; low ones more often."""
        return min(self.random.randrange(SEGMENTS), self.random.randrange(SEGMENTS))

    def alive(self) -> list[Node]:
        """The nodes that live."""
        return list(self.world.nodes.values())


def test_derived_equals_cache_once_faults_stop() -> None:
    names = ("takeovers", "pruned", "refused", "corrections", "resets", "written", "rows", "taken back")
    totals = dict.fromkeys(names, 0)
    for seed in range(SEEDS):
        try:
            world = Script(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for node in world.members:
            counts = node.core.counts
            totals["takeovers"] += counts.takeovers
            totals["pruned"] += counts.pruned
            totals["refused"] += counts.refused
            totals["corrections"] += counts.corrections
            totals["resets"] += sum(counts.resets.values())
            totals["written"] += counts.written
            totals["rows"] += counts.snapshot_rows
            totals["taken back"] += counts.reset_deletes
    assert min(totals.values()) > 0, f"a fault was never met: {totals}"
