"""The core alone: its log is cut where nobody has looked, and owners change before anybody looks again.

One segment, three nodes. What the simulation leaves to its network is drawn here: which looks at the log's end are
late, which operations are in flight, who writes on though another one owns the segment. In the end a reader has what
the cache has. The log answers as Kafka's does (KIP-320).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from deelog_connector.core import history as past
from deelog_connector.core.effects import Scan, SteppedDown
from deelog_connector.core.reset_strategy import Strategy
from deelog_proof.simulation.filtering import BY_KEY, content_of, fields_of
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from tests.connector.world import (
    CHANGES,
    PARTITIONS,
    POSITIONS,
    Node,
    World,
    entry_of,
    key_of,
    partition_log,
    transforming,
)

KEYS: Final = 5
_REST: Final = 60
"""Steps of the last owner, between which it looks now and then."""


class Look(NamedTuple):
    """What a broker has answered of the end of a partition."""

    partition: int
    end: int
    leader_epoch: int
    stable: int


class Cut(Node):
    """A node whose looks are asked for, and whose log says itself what it holds."""

    def __init__(self, world: World, member: str) -> None:
        super().__init__(world, member)
        if world.pipeline is not None:
            self.pipeline = transforming(fields_of(BY_KEY))  # one counts what it drops of a reset

    def look(self, partition: int) -> Look:
        log = self.world.broker.logs[CHANGES, partition]
        return Look(partition, log.end, log.epoch, log.stable)

    def hear(self, look: Look) -> None:
        log = self.world.broker.logs[CHANGES, look.partition]
        offset, epoch = self.core.end_of(look.partition)
        doubts = self.core.doubts(look.partition, look.end, look.leader_epoch)
        intact = log.holds(offset, epoch) if doubts else None
        self.core.end_read(look.partition, look.end, look.leader_epoch, intact, look.stable)

    def look_everywhere(self) -> None:
        for partition in range(PARTITIONS):
            self.hear(self.look(partition))

    def _scan(self, effect: Scan) -> bool:
        """A scan reads from the beginning where the log ends below its start, as consumers do, and never waits."""
        log = self.world.broker.logs[CHANGES, effect.partition]
        for place in effect.places:
            if not log.holds(place.offset, place.leader_epoch):
                self.core.log_was_cut(effect.partition, place)
        start = effect.from_offset if effect.from_offset <= log.end else 0
        records = self.decoder.scanned(log.read(start, len(log.slots))[0], effect.keys)
        found = effect.until <= {record.key for record in records}
        self.core.scanned(effect.partition, records)
        self.core.scan_ended(effect.partition, found, not log.open)
        return found


class CutWorld(World):
    """Its nodes look when they are told to."""

    def new(self, member: str) -> Node:
        return Cut(self, member)


class Cuts:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(f"cuts {seed}")
        self.acks_all = self.chance.random() < 0.7
        strategy = self.chance.choice((Strategy.MARKER, Strategy.MARKER, Strategy.TOMBSTONES))
        self.skips = self.chance.choice((0, 0, BY_KEY))
        pipeline = transforming(fields_of(self.skips)) if self.skips else None
        self.world = CutWorld(3, self.chance.choice((2, 3, 50)), strategy, pipeline=pipeline)
        self.world.watching = False
        self.happened: Counter[str] = Counter()
        self._late: dict[Cut, Look] = {}
        """Looks whose answer is on its way: the next one comes after it."""
        self._values = 0
        for node in self._nodes():
            node.look_everywhere()
        owner, *backups = self._nodes()
        self.world.own(0, owner, *backups)
        self.world.settle()

    def _nodes(self) -> list[Cut]:
        return [node for node in self.world.nodes.values() if isinstance(node, Cut)]

    @property
    def owner(self) -> Cut:
        node = self.world.primary[0]
        assert isinstance(node, Cut)
        return node

    def run(self) -> str:
        """What is wrong in the end; empty where nothing is."""
        acts: dict[Callable[[], bool], int] = {
            self.put: 22,
            self.step: 24,
            self.steps: 6,
            self.phase: 8,
            self.look: 14,
            self.look_late: 5,
            self.hear_late: 6,
            self.cut: 2,
            self.cut_positions: 1,
            self.go_on_and_die: 2,
            self.elect: 1,
            self.coalesce: 6,
            self.pause: 3,
            self.lose_session: 3,
            self.reset: 3,
            self.snapshot: 2,
            self.clear: 1,
            self.own: 5,
            self.write_on: 2,
            self.hang: 1,
        }
        # Swarm testing (Groce et al., 2012): each seed does some of it often, and some of it never.
        weights = [weight * self.chance.choice((0, 1, 1, 4)) for weight in acts.values()]
        for act in self.chance.choices(
            list(acts), [weight + 0.01 for weight in weights], k=self.chance.randrange(30, 120)
        ):
            self.world.now += 0.1
            self.happened[act.__name__] += act()
            self._elect_who_stepped_down()
        return self._end()

    # -- what may happen; whether it did ------------------------------------------------------------------------------

    def put(self) -> bool:
        """With `cache.acks=1` an operation is acknowledged before anybody else has it."""
        self._values += 1
        value = b"v%d" % self._values if self.chance.random() < 0.85 else None
        self.world.put(key_of(0, self.chance.randrange(KEYS)), value, acked=self.chance.random() < 0.8)
        if not self.acks_all:
            self.world.ack(0)
        return True

    def clear(self) -> bool:
        self.world.clear(0)
        return True

    def step(self) -> bool:
        node = self.owner if self.chance.random() < 0.7 else self.chance.choice(self._nodes())
        return node.hanging is None and node.step()

    def steps(self) -> bool:
        for _ in range(self.chance.randrange(2, 5)):
            self.world.now += 0.1
            self.step()
        return True

    def phase(self) -> bool:
        """The owner comes to another phase."""
        owner, before = self.owner, self.owner.core.phase(0)
        for _ in range(5):
            self.world.now += 0.1
            if owner.hanging is None:
                owner.step()
            if owner.core.phase(0) != before:
                return True
        return False

    def look(self) -> bool:
        node = self.owner if self.chance.random() < 0.8 else self.chance.choice(self._nodes())
        if node not in self._late:
            node.hear(node.look(0))
        return node not in self._late

    def look_late(self) -> bool:
        self._late.setdefault(self.owner, self.owner.look(0))
        return True

    def hear_late(self) -> bool:
        if self._late:
            node, look = self._late.popitem()
            node.hear(look)
            return node.alive
        return False

    def cut(self) -> bool:
        """Of what is behind its owner's last look, seldom of more."""
        log = partition_log(self.world, 0)
        unseen = log.end - self.owner.core.end_of(0)[0] + self.chance.choice((0, 0, 0, 4))
        return unseen > 0 and bool(self.world.broker.truncate(CHANGES, 0, self.chance.randrange(1, unseen + 1)))

    def cut_positions(self) -> bool:
        """What nobody has read: whoever reads behind the end of a topic notices that."""
        log, read = self.world.broker.logs[POSITIONS, 0], max(node.tails[0] for node in self._nodes())
        unread = [offset for offset, slot in enumerate(log.slots, log.first) if slot.record and offset >= read]
        if unread:
            self.world.broker.truncate(POSITIONS, 0, log.end - self.chance.choice(unread))
        return bool(unread)

    def go_on_and_die(self) -> bool:
        """The owner goes on for a while without a look, and dies."""
        self.cut()
        for _ in range(self.chance.randrange(5)):
            if self.chance.random() < 0.3:
                self.put()
            self.phase()
        return self._elect("dies")

    def elect(self) -> bool:
        partition_log(self.world, 0).elect()
        return True

    def coalesce(self) -> bool:
        """Behind writes that Kafka has not got yet."""
        for _ in range(self.chance.randrange(5)):
            self.put()
        return bool(self.owner.core.coalesce(0))

    def pause(self) -> bool:
        self.owner.core.paused = not self.owner.core.paused
        return True

    def lose_session(self) -> bool:
        self.owner.core.session_lost()
        return True

    def reset(self) -> bool:
        self.owner.core.ask_reset(0, "signal")
        return True

    def snapshot(self) -> bool:
        """An incremental one."""
        core = self.owner.core
        may = core.phase(0) != "idle" and core.may_snapshot(0)
        if may:
            core.snapshot(0)
        return may

    def hang(self) -> bool:
        """A transaction stays open for a while."""
        node = self.owner
        if node.hanging is None:
            node.step(hang=True)
        else:
            node.finish()
        return True

    def write_on(self) -> bool:
        """Who has not heard of another owner takes writes, and sends them to nobody."""
        for node in self._nodes():
            if node is not self.owner and node.alive and node.core.phase(0) != "idle":
                self._values += 1
                self.world.put(key_of(0, self.chance.randrange(KEYS)), b"w%d" % self._values, at=node)
                return True
        return False

    def own(self) -> bool:
        """Another one that is in sync is elected. The old one has died, or hears of it, or does not."""
        return self._elect(self.chance.choice(("dies", "dies", "hears", "does not hear")))

    def _elect(self, way: str) -> bool:
        old, backups = self.owner, [node for node in self.world.backups[0] if node.alive]
        if not backups:
            return False
        new = self.chance.choice(backups)
        if way == "dies":
            self.world.crash(old)
            fresh = self.world.restart(old)
            assert isinstance(fresh, Cut)
            fresh.look_everywhere()
            fresh.follow()
        others = [node for node in self._nodes() if node is not new and (node is not old or way != "does not hear")]
        self._own(new, self.chance.sample(others, self.chance.randrange(1, len(others) + 1)))
        self.happened[f"old owner {way}"] += 1
        if self.chance.random() < 0.5:
            for _ in range(4):
                self.phase()
        return True

    def _own(self, new: Node, backups: list[Cut]) -> None:
        for node in self._nodes():
            node.core.paused = False
            if node in backups and node.core.phase(0) != "idle":
                node.core.demote(0)
        self.world.own(0, new, *backups)

    def _elect_who_stepped_down(self) -> None:
        if self.owner.core.phase(0) == "idle" and self.owner.announced(SteppedDown):
            self.happened["stepped down"] += 1
            self._own(self.owner, [node for node in self.world.backups[0] if isinstance(node, Cut)])

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self) -> str:
        self._rest()
        if self.chance.random() < 0.5 and self.world.backups[0]:
            new = self.chance.choice(self.world.backups[0])
            self.world.crash(self.owner)
            self.world.own(0, new)
            self._rest()
        self.world.settle(self.owner)
        owner, reader = self.owner, self._reader()
        if owner.core.phase(0) != "writing":
            return f"{owner.member} is in {owner.core.phase(0)}"
        self.happened.update(f"reset {reason}" for reason in reader.resets)
        derived = {key: entry.value for key, entry in reader.entries.items()}
        content = content_of({entry.key: (entry.value, None) for entry in owner.entries(0)}, self.skips)
        held = {key: value for key, (value, _) in content.items()}
        if derived != held or reader.open:
            return f"derived {derived}, held {held}, {reader.resets}"
        if missing := self._missing(owner):
            return f"{sorted(missing)} of {owner.core.history(0)} are not in the topic, {reader.resets}"
        stock = self.world.stock(0) if self.world.strategy.takes_back else held
        return "" if stock == held else f"who knows no resets has {stock}, held {held}, {reader.resets}"

    def _missing(self, owner: Cut) -> set[int]:
        """The sequences behind the last reset that the topic has not; where operations gave way that says nothing."""
        if self.happened["coalesce"]:
            return set()
        found, covered, history = set[int](), 0, owner.core.history(0)
        for record in self.world.records(0):
            kind, (epoch, sequence) = record.header.kind, record.header.position
            end = past.end_of(history, epoch)
            if kind is Kind.SKIPPED:  # a part of them may be in the history
                found.update(range(record.control["first"], min(sequence, end) + 1))
            elif kind is Kind.CHANGE and sequence <= end:
                found.add(sequence)
            elif kind is Kind.RESET_END:  # one beyond the history is followed by another
                covered = sequence
        return set(range(covered + 1, owner.core.last_sequence(0) + 1)) - found

    def _rest(self) -> None:
        """The owner writes on, and looks now and then."""
        self.owner.core.paused = False
        if self.owner.hanging is not None:
            self.owner.finish()
        self.world.put(key_of(0, KEYS), b"last %d" % self.world.epoch)
        for step in range(_REST):
            self.world.now += 0.1
            self.owner.step()
            self._elect_who_stepped_down()
            if step % 10 == 5:
                self.owner.hear(self.owner.look(0))

    def _reader(self) -> SegmentReader:
        """One that waits for the next reset where the digest of one is wrong, as readers do whose log was cut."""
        reader, codec = SegmentReader(0), self.owner.encoder._codec
        for record in self.world.records(0):
            try:
                reader.apply(record, lambda r: entry_of(codec, r))
            except RecordError:
                self.happened["digests that did not match"] += 1
                reader = SegmentReader(0)
        return reader


def problems_of(seed: int) -> tuple[list[str], Counter[str]]:
    """What is wrong after a seed, and what has happened in it."""
    cuts = Cuts(seed)
    problem = cuts.run()
    return [problem] * bool(problem), cuts.happened
