"""A small world for the core: several nodes and one Kafka in memory, with explicit steps.

Its Kafka is the one of `deelog_proof.memory`. Records go through the real encoder, decoder and reading rule.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from deelog_connector.core import ConnectorCore, Settings
from deelog_connector.core import history as past
from deelog_connector.core.effects import (
    Cause,
    Commit,
    Corrected,
    Effect,
    EndHanging,
    Fence,
    FindHanging,
    OpenProducer,
    Released,
    Scan,
    SteppedDown,
    Superseded,
)
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.core.settings import CacheState, StreamState
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_connector.runtime.encode import Decoder, Encoder
from deelog_connector.transforms.pipeline import Pipeline
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.log import Log
from deelog_proof.simulation.stock_consumer import StockConsumer
from deelog_schemas.config import parse
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.keys import partition_of, segment_of
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.positions import decode_state
from deelog_schemas.records import ON_POSITIONS, Record, decode

T = TypeVar("T", bound=Effect)

SEGMENTS, PARTITIONS = 4, 2
CHANGES, POSITIONS = "p.c", "p.c.positions"


class Node:
    """One process: a core, a cache, a producer session, a tail."""

    def __init__(self, world: World, member: str) -> None:
        self.world, self.member = world, member
        self.node_id = member.rpartition("@")[0]
        self.cache: dict[bytes, bytes] = {}
        settings = Settings(
            SEGMENTS,
            PARTITIONS,
            max_batch_size=world.batch,
            chunk_size=2,
            commit_interval=0.0,
            patience=1.0,
            reset_strategy=world.strategy,
            reset_interval=world.reset_interval,
            snapshot_mode=world.snapshot_mode,
            may_skip=world.pipeline is not None,
        )
        self.core = ConnectorCore(member, settings, self.cache_state())
        self.core.topic_is("t1")
        self.session = 0
        self.tails = dict.fromkeys(range(PARTITIONS), 0)
        codec = JsonCodec(CHANGES, "test", "p", "c")
        self.pipeline = world.pipeline
        self.encoder = Encoder(codec, CHANGES, POSITIONS, member, True, clock=time)
        self.decoder = Decoder(codec)
        self.hanging: Commit | None = None
        self.unanswered: list[Effect] = []
        self.announcements: list[Effect] = []
        """Effects that need no answer."""
        self.alive = True
        self.waits = 0

    def cache_state(self) -> CacheState | StreamState:
        """What its core sees of the cache."""
        return self

    def entries(self, segment: int) -> list[Entry]:
        """CacheState."""
        return [Entry(k, v, None) for k, v in sorted(self.cache.items()) if segment_of(k, SEGMENTS) == segment]

    def get(self, segment: int, key: bytes) -> Entry | None:
        """CacheState."""
        value = self.cache.get(key)
        return None if value is None else Entry(key, value, None)

    def announced(self, kind: type[T]) -> list[T]:
        """The announcements of one kind, in order."""
        return [effect for effect in self.announcements if isinstance(effect, kind)]

    def take(self, operation: Operation) -> None:
        """Applies an operation to the cache."""
        if operation.reason == Reason.CLEAR:
            raise NotImplementedError
        if operation.value is None:
            self.cache.pop(operation.key, None)
        else:
            self.cache[operation.key] = operation.value

    def step(self, hang: bool = False) -> bool:
        """Tails, polls, and carries out every effect. Returns whether it worked. `hang` leaves a transaction open."""
        worked = self.follow()
        effects, self.unanswered = self.unanswered + self.core.poll(self.world.now, int(self.world.now * 1e6)), []
        for effect in effects:
            worked |= self.carry_out(effect, hang)
        return worked

    def waiting(self) -> bool:
        """Whether it waits for records that an open transaction hides."""
        return bool(self.unanswered) or any(s.awaited for s in self.core.primaries())

    def follow(self) -> bool:
        """Reads new records of the positions topic, and the ends."""
        worked = False
        for partition, start in self.tails.items():
            log = self.world.broker.logs[POSITIONS, partition]
            for raw in log.read(start, len(log.slots))[0]:
                record = decode(*raw, ON_POSITIONS)
                self.core.state_read(decode_state(record.key, record.value, record.header.kind))
                self.tails[partition] = raw.offset + 1
                worked = True
            if self.world.watching:
                changes, epoch = self.world.broker.logs[CHANGES, partition], self.world.leader_epoch
                end = changes.end
                seen, before = self.core.end_of(partition)
                # Another leader, and a log that is complete up to the last seen end: later records may be lost.
                intact = True if before not in (-1, epoch) and end >= seen else None
                self.core.end_read(partition, end, epoch, intact, changes.stable)
        return worked

    def carry_out(self, effect: Effect, hang: bool) -> bool:
        """Carries out one effect."""
        core, broker = self.core, self.world.broker
        if isinstance(effect, OpenProducer):
            self.session = broker.init(self.node_id)
            core.producer_opened()
        elif isinstance(effect, Commit):
            items = effect.items if self.pipeline is None else self.pipeline(effect.items)
            cause = broker.append(self.node_id, self.session, list(self.encoder.records(items)))
            if cause is None and hang:
                self.hanging = effect
                return True
            self._answer(effect, cause or broker.commit(self.node_id, self.session))
        elif isinstance(effect, Fence):
            broker.init(effect.producer.node_id)
            self.world.fences.append((self.node_id, effect.producer.node_id))
            core.fenced(effect.producer, effect.takeovers)
        elif isinstance(effect, FindHanging):
            firsts = [broker.logs[topic, effect.partition].hanging for topic in (CHANGES, POSITIONS)]
            found = [self.decoder.hanging(raw, raw.topic == POSITIONS) for raw in firsts if raw is not None]
            core.hanging_found(effect.partition, found, bool(found))  # all that is open here stays so
        elif isinstance(effect, EndHanging):
            broker.init(effect.producer.node_id)
            self.world.fences.append((self.node_id, effect.producer.node_id))
            core.hanging_ended(effect)
        elif isinstance(effect, Scan):
            return self._scan(effect)
        else:
            self.announcements.append(effect)
            # Nobody takes what an owner sends that has been succeeded.
            if isinstance(effect, Corrected) and self.world.primary.get(effect.segment) is self:
                for operation in effect.operations:
                    self.world.replicate(self, effect.segment, operation)
        return True

    def _answer(self, effect: Commit, cause: Cause | None) -> None:
        if cause is None:
            self.core.committed(effect.token)
        else:
            self.world.refused.append((self.node_id, cause))
            self.core.commit_failed(effect.token, cause)

    def finish(self) -> None:
        """Commits the transaction that was left open, or learns that it was fenced."""
        effect, self.hanging = self.hanging, None
        assert effect is not None
        self._answer(effect, self.world.broker.commit(self.node_id, self.session))

    def _scan(self, effect: Scan) -> bool:
        log = self.world.broker.logs[CHANGES, effect.partition]
        for place in effect.places:
            if place.offset > log.end:
                self.core.log_was_cut(effect.partition, place)
        records = self.decoder.scanned(log.read(effect.from_offset, len(log.slots))[0], effect.keys)
        if not effect.until <= {r.key for r in records}:
            self.waits += 1
            if self.waits % 5:
                self.unanswered.append(effect)  # an open transaction hides it
                return False
            self.core.scan_ended(effect.partition, False)
            return False
        self.core.scanned(effect.partition, records)
        self.core.scan_ended(effect.partition, True)
        return True


class World:
    """Nodes, the broker, and the work of a grid's controller and replication, step by step."""

    def __init__(
        self,
        nodes: int = 2,
        batch: int = 50,
        strategy: Strategy = Strategy.MARKER,
        interval: float = 0.0,
        mode: SnapshotMode = SnapshotMode.INITIAL,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.batch, self.strategy, self.pipeline = batch, strategy, pipeline
        self.reset_interval, self.snapshot_mode = interval, mode
        self.now = 1000.0
        self.broker = Kafka(Engine(1))
        for topic in (CHANGES, POSITIONS):
            self.broker.create(topic, PARTITIONS)
        self.fences: list[tuple[str, str]] = []
        self.refused: list[tuple[str, Cause]] = []
        self.epoch = self.leader_epoch = 0
        self.watching = True
        """Whether nodes ask for the ends of partitions, as they do once a second."""
        self.incarnation = 0
        self.members: list[Node] = []
        """All processes, also those that have died."""
        self.nodes = {f"n{i}": self.start(f"n{i}") for i in range(nodes)}
        self.primary: dict[int, Node] = {}
        self.backups: dict[int, list[Node]] = {s: [] for s in range(SEGMENTS)}

    def start(self, node_id: str) -> Node:
        """A new process under a node id."""
        self.incarnation += 1
        self.members.append(self.new(f"{node_id}@{self.incarnation}"))
        return self.members[-1]

    def new(self, member: str) -> Node:
        """A process."""
        return Node(self, member)

    def crash(self, node: Node) -> None:
        """kill -9: memory is lost; an open transaction stays until it is fenced or times out."""
        node.alive = False
        for segment in range(SEGMENTS):
            self.backups[segment] = [b for b in self.backups[segment] if b is not node]

    def restart(self, node: Node) -> Node:
        """The crashed node restarts, empty, as another member."""
        fresh = self.nodes[node.node_id] = self.start(node.node_id)
        return fresh

    def fail_over(self, dead: Node, primary: Node, *backups: Node) -> None:
        """The node dies, and another one is primary of everything."""
        self.crash(dead)
        self.own_all(primary, *backups)

    def own_all(self, primary: Node, *backups: Node, must_reset: str | None = None) -> None:
        """A view of all segments."""
        for segment in range(SEGMENTS):
            self.own(segment, primary, *backups, must_reset=must_reset)

    def compact_control(self) -> None:
        """Removes the control records of the change topic, as compaction may do."""
        for partition in range(PARTITIONS):
            for slot in self.broker.logs[CHANGES, partition].slots:
                committed = slot.transaction is not None and slot.transaction.state == "committed"
                if committed and slot.record is not None and slot.record.value is None:
                    slot.record = None

    def own(self, segment: int, primary: Node, *backups: Node, must_reset: str | None = None) -> None:
        """A view with a new epoch. All members in it learn of it; an old primary that is not in it does not."""
        self.epoch = max(self.epoch, primary.core.highest_claim()) + 1
        old = self.primary.get(segment)
        self.primary[segment], self.backups[segment] = primary, list(backups)
        if old is not None and old is not primary and old in backups:
            old.core.demote(segment)
        primary.core.promote(segment, self.epoch, must_reset)
        for backup in backups:
            self.catch_up(segment, backup)
        self.ack(segment)

    def catch_up(self, segment: int, backup: Node) -> str:
        """Lets a backup catch up, by operations if possible, else by state transfer; returns how."""
        primary, history = self.primary[segment], self.primary[segment].core.history(segment)
        common = past.common_point(history, backup.core.history(segment))
        lacking = primary.core.operations_after(segment, common)
        keys = backup.core.truncate(segment, common)
        if lacking is None or keys is None:
            mine = {k for k in backup.cache if segment_of(k, SEGMENTS) == segment}
            for key in mine:
                del backup.cache[key]
            backup.cache.update((e.key, e.value) for e in primary.entries(segment))
            backup.core.install(segment, history, primary.core.last_sequence(segment))
            return "state"
        for key in keys:
            entry = primary.get(segment, key)
            backup.cache.pop(key, None)
            if entry:
                backup.cache[key] = entry.value
        backup.core.adopt(segment, history)
        for operation in lacking:
            backup.core.apply(segment, operation)
            if operation.reason == Reason.CLEAR:
                self._clear(backup, segment)
            else:
                backup.take(operation)
        return "operations"

    def put(self, key: bytes, value: bytes | None, at: Node | None = None, acked: bool = True) -> Operation:
        """A client's write at the primary (or at `at`, which considers itself primary), replicated and `acked`."""
        segment = segment_of(key, SEGMENTS)
        node = at or self.primary[segment]
        existed = key in node.cache
        reason = Reason.PUT if value is not None else Reason.REMOVE
        operation = node.core.append(segment, reason, key, value, None, int(self.now * 1e6), existed)
        node.take(operation)
        if acked and node is self.primary[segment]:
            self.replicate(node, segment, operation)
        return operation

    def clear(self, segment: int, acked: bool = True) -> Operation:
        """Clears one segment, as FLUSHALL does. Backups get it if `acked`."""
        node = self.primary[segment]
        operation = node.core.append(segment, Reason.CLEAR, b"", None, None, int(self.now * 1e6), True)
        for owner in (node, *(self.backups[segment] if acked else ())):
            self._clear(owner, segment)
            if owner is not node:
                owner.core.apply(segment, operation)
        if acked:
            self.ack(segment)
        return operation

    def _clear(self, node: Node, segment: int) -> None:
        for entry in node.entries(segment):
            del node.cache[entry.key]

    def replicate(self, node: Node, segment: int, operation: Operation) -> None:
        """Sends an operation to every backup, after those that it lacks, and acknowledges it."""
        for backup in self.backups[segment]:
            if backup.core.last_sequence(segment) == operation.sequence - 1:
                backup.core.apply(segment, operation)
                backup.take(operation)
            else:
                self.catch_up(segment, backup)
        self.ack(segment)

    def ack(self, segment: int) -> None:
        """Acknowledges everything: every in-sync owner has it."""
        core = self.primary[segment].core
        core.acked(segment, core.last_sequence(segment))

    def settle(self, *nodes: Node, steps: int = 400) -> None:
        """Lets the given nodes (default: all that live) work until none has anything to do."""
        for _ in range(steps):
            self.now += 0.1
            working = [n for n in nodes or self.nodes.values() if n.alive and n.hanging is None]
            worked = [n.step() for n in working]
            if not any(worked) and not any(n.waiting() for n in working):
                return
        raise AssertionError("the world does not come to rest")

    # -- readers --------------------------------------------------------------------------------------------------

    def records(self, segment: int | None = None) -> list[Record]:
        """The committed records of the change topic, of one segment or all."""
        found = []
        for partition in range(PARTITIONS):
            log = self.broker.logs[CHANGES, partition]
            for raw in log.read(0, len(log.slots))[0]:
                record = decode(*raw)
                if segment is None or record.header.segment == segment:
                    found.append(record)
        return found

    def reader(self, segment: int) -> SegmentReader:
        """The segment as a consumer derives it. Repeated positions fail."""
        reader = SegmentReader(segment)
        codec = self.primary[segment].encoder._codec
        row = (0, 0)
        for record in self.records(segment):
            position = record.header.position
            if record.header.kind is Kind.READ and reader.open is None:
                # A row of an incremental snapshot repeats the key's state, and hides nothing that follows.
                key, entry = entry_of(codec, record)
                assert reader.entries.get(key) == entry, f"segment {segment}: {key!r} at {position}"
                assert position >= reader.mark, f"segment {segment}: row at {position} behind {reader.mark}"
                row = position
            assert record.header.kind is not Kind.CHANGE or reader.open or position > row, f"{position} behind {row}"
            reader.apply(record, lambda r: entry_of(codec, r))
        assert reader.repeats == 0, f"segment {segment}: {reader.repeats} positions were written twice"
        return reader

    def stock(self, segment: int) -> dict[bytes, bytes]:
        """The segment as derived by a consumer that does not know resets."""
        consumer = StockConsumer()
        for record in self.records(segment):
            consumer.apply(record.key, record.value)
        return {key: value for key, (value, _) in consumer.content.items()}

    def check(self) -> None:
        """All derived entries equal those of the primaries, and no reset is open."""
        for segment, node in self.primary.items():
            reader = self.reader(segment)
            assert reader.open is None, f"segment {segment}: reset {reader.open} is left open"
            derived = {k: e.value for k, e in reader.entries.items()}
            cached = {e.key: e.value for e in node.entries(segment)}
            assert derived == cached, f"segment {segment}"
            if self.strategy.takes_back:
                assert self.stock(segment) == cached, f"segment {segment}: as a stock consumer holds it"

    def kinds(self, segment: int) -> list[str]:
        """The kinds of the segment's records, in order."""
        return [r.header.kind.name for r in self.records(segment)]


def entry_of(codec: object, record: Record) -> tuple[bytes, Entry | None]:
    assert isinstance(codec, JsonCodec)
    key = codec.decode_key(record.key)
    return key, None if record.value is None else codec.decode_value(record.value).after


def started(nodes: int = 2, batch: int = 50, pipeline: Pipeline | None = None) -> tuple[World, tuple[Node, Node]]:
    """A world with the first node as primary of everything, the second as backup, and all segments written."""
    world = World(nodes, batch, pipeline=pipeline)
    first, second = list(world.nodes.values())[:2]
    world.own_all(first, second)
    world.settle()
    return world, (first, second)


def skipping(operations: str) -> Pipeline:
    """A pipeline with `skipped.operations`."""
    return transforming({"skipped.operations": operations})


def transforming(fields: Mapping[str, str]) -> Pipeline:
    """A pipeline with these fields."""
    needed = {"topic.prefix": "p", "cache.name": "c", "node.id": "n", "bootstrap.servers": "h:1"}
    pipeline = Pipeline.of(parse({**needed, **fields}), time, Counter())
    assert pipeline is not None
    return pipeline


def lose_unseen(world: World, keys: int) -> None:
    """Changes of segment 0. The first is truncated before any node looked, and the log has grown again since."""
    world.watching = False
    for i in range(keys):
        world.put(key_of(0, i), b"late %d" % i)
        world.settle()
    log = partition_log(world, 0)
    next(slot for slot in log.slots if slot.record and b"late 0" in (slot.record.value or b"")).record = None
    world.watching, world.leader_epoch = True, 1


def key_of(segment: int, number: int = 0) -> bytes:
    """The `number`-th key of a segment."""
    found = (k for k in (b"k%d" % i for i in range(100_000)) if segment_of(k, SEGMENTS) == segment)
    for _ in range(number):
        next(found)
    return next(found)


def partition_log(world: World, segment: int) -> Log:
    """The change topic's partition of a segment."""
    return world.broker.logs[CHANGES, partition_of(segment, PARTITIONS, SEGMENTS)]


__all__ = ["PARTITIONS", "SEGMENTS", "Node", "Released", "SteppedDown", "Superseded", "World", "key_of"]
