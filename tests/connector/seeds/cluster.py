"""Nodes with the connector that ships, over dictionaries, on Kafka in memory.

What a controller and replication do is done here at once: views come from the test, and a backup has a write before the
client does. So all of the asynchrony is the connector's and Kafka's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from deelog_connector.core.history import common_point
from deelog_connector.runtime import Connector, Lifecycle
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.port import MemoryPort
from deelog_schemas.config import Config
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry, Operation, Reason
from deelog_schemas.records import Record, decode
from tests.connector.cache import config_of

SEGMENTS, PARTITIONS = 8, 2
CHANGES = "p.c"


class Node:
    """One process. `starting` and `failure` are looked at by the test."""

    def __init__(self, cluster: Cluster, node_id: str, incarnation: int, **fields: Any) -> None:
        self.cluster, self.node_id, self.member = cluster, node_id, f"{node_id}@{incarnation}"
        self.loop = NodeLoop(cluster.engine, self.member)
        self.cache: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self.config: Config = config_of("memory:9092", "p", **{"node.id": node_id, **fields})
        self.loop.within(self._make)

    def _make(self) -> None:
        self.port = MemoryPort(self.loop, self.cluster.kafka)
        self.connector = Connector(self.config, self.member, self, connector_name="test", port=self.port)
        self.core = self.connector.core
        self.lifecycle = Lifecycle(self.config, {"c": self.connector})
        self.starting = self.loop.create_task(self.connector.start())

    @property
    def serves(self) -> bool:
        """Whether it takes writes."""
        alive = self.loop.alive and not self.loop.paused
        return alive and self.connector.started and not self.connector.failure.done()

    @property
    def failed(self) -> BaseException | None:
        """Why it ended by itself."""
        for future in (self.starting, self.connector.failure):
            if future.done() and not future.cancelled() and (error := future.exception()) is not None:
                return error
        return None

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Begins it on this node; returns the task."""
        return self.loop.within(self.loop.create_task, work)

    # -- CacheSide ----------------------------------------------------------------------------------------------------

    def entries(self, segment: int) -> list[Entry]:
        return [Entry(key, value, None) for key, value in self.cache[segment].items()]

    def get(self, segment: int, key: bytes) -> Entry | None:
        value = self.cache[segment].get(key)
        return None if value is None else Entry(key, value, None)

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        for operation in operations:
            self.cluster.replicate(self, segment, operation)

    def released(self, segment: int) -> None:
        pass

    def stepped_down(self, segment: int, reason: str) -> None:
        pass

    def take(self, segment: int, operation: Operation) -> None:
        """Applies an operation to the dictionary."""
        if operation.value is None:
            self.cache[segment].pop(operation.key, None)
        else:
            self.cache[segment][operation.key] = operation.value


class Cluster:
    """Up to three nodes and their Kafka."""

    def __init__(self, seed: int, nodes: int, **fields: Any) -> None:
        self.engine = Engine(seed)
        self.kafka = Kafka(self.engine, 10.0)
        self.fields = {"heartbeat.interval.ms": "500", **fields}
        self.everybody: list[Node] = []
        self.nodes = {f"n{number}": self.start(f"n{number}") for number in range(nodes)}
        self.primary: dict[int, Node] = {}
        self.backups: dict[int, list[Node]] = {segment: [] for segment in range(SEGMENTS)}
        self.writes = 0
        self._epoch = 0

    def start(self, node_id: str) -> Node:
        """A new process of this node."""
        node = Node(self, node_id, 1000 + len(self.everybody), **self.fields)
        self.everybody.append(node)
        return node

    def restart(self, node: Node) -> None:
        """The node begins again, empty."""
        self.nodes[node.node_id] = self.start(node.node_id)

    # -- views --------------------------------------------------------------------------------------------------------

    def own(self, segment: int, primary: Node, *backups: Node, must_reset: str | None = None) -> None:
        """A view of a segment in a new epoch, which all of its members read at once. Others never hear of it."""
        claims = [node.core.highest_claim() for node in self.everybody if node.loop.alive]
        self._epoch = max([self._epoch, *claims]) + 1
        old = self.primary.get(segment)
        self.primary[segment], self.backups[segment] = primary, list(backups)
        if old is not None and old is not primary and old in backups:
            old.loop.within(old.core.demote, segment)
        primary.loop.within(primary.core.promote, segment, self._epoch, must_reset)
        for backup in backups:
            self._catch_up(segment, backup)
        self._acknowledge(segment)
        primary.loop.within(primary.connector.wake)

    def _catch_up(self, segment: int, backup: Node) -> None:
        primary = self.primary[segment]
        history = primary.core.history(segment)
        common = common_point(history, backup.core.history(segment))
        lacking = primary.core.operations_after(segment, common)
        keys = backup.core.truncate(segment, common)
        if lacking is None or keys is None:
            backup.cache[segment] = dict(primary.cache[segment])
            backup.core.install(segment, history, primary.core.last_sequence(segment))
            return
        for key in keys:
            backup.cache[segment].pop(key, None)
            if (entry := primary.get(segment, key)) is not None and entry.value is not None:
                backup.cache[segment][key] = entry.value
        backup.core.adopt(segment, history)
        for operation in lacking:
            backup.core.apply(segment, operation)
            backup.take(segment, operation)

    # -- writes -------------------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes | None) -> bool:
        """A client's write, if its primary takes one now."""
        segment = segment_of(key, SEGMENTS)
        node = self.primary[segment]
        if not node.serves or node.core.phase(segment) in ("idle", "stopped", "released"):
            return False
        self.writes += 1
        node.ask(self._put(node, segment, key, value))
        return True

    async def _put(self, node: Node, segment: int, key: bytes, value: bytes | None) -> None:
        size = len(key) + len(value or b"") + 200
        if not node.core.has_room(size):
            await node.connector.make_room(segment, size)
        if self.primary[segment] is not node or node.core.phase(segment) in ("idle", "stopped", "released"):
            return
        reason, existed = Reason.REMOVE if value is None else Reason.PUT, key in node.cache[segment]
        now_us = node.port.clock.time_ns() // 1000
        operation = node.core.append(segment, reason, key, value, None, now_us, existed)
        node.take(segment, operation)
        self.replicate(node, segment, operation)

    def replicate(self, node: Node, segment: int, operation: Operation) -> None:
        """The backups that live take it; then it is acknowledged."""
        if self.primary[segment] is not node:
            return
        for backup in self.backups[segment]:
            if not backup.loop.alive:
                continue
            if backup.core.last_sequence(segment) == operation.sequence - 1:
                backup.core.apply(segment, operation)
                backup.take(segment, operation)
            else:
                self._catch_up(segment, backup)
        self._acknowledge(segment)

    def _acknowledge(self, segment: int) -> None:
        core = self.primary[segment].core
        core.acked(segment, core.last_sequence(segment))

    # -- what is seen -------------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether all that was written is in Kafka, and every node serves."""
        return all(node.serves for node in self.nodes.values()) and all(
            node in self.nodes.values() and node.core.phase(segment) == "writing" and node.core.unwritten() == 0
            for segment, node in self.primary.items()
        )

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        self.engine.run(None, seconds)

    def records(self) -> list[Record]:
        """The committed records of the change topic."""
        logs = [self.kafka.logs[CHANGES, partition] for partition in range(PARTITIONS)]
        return [decode(*raw) for log in logs for raw in log.read(0, len(log.slots))[0]]

    def differences(self) -> list[str]:
        """Where what a reader derives differs from the primaries' caches, and what was written twice."""
        codec = JsonCodec(CHANGES, "test", "p", "c")

        def entry_of(record: Record) -> tuple[bytes, Entry | None]:
            value = record.value
            return codec.decode_key(record.key), None if value is None else codec.decode_value(value).after

        readers = {segment: SegmentReader(segment) for segment in self.primary}
        positions: set[tuple[int, tuple[int, int]]] = set()
        wrong = []
        for record in self.records():
            segment, position = record.header.segment, record.header.position
            if record.header.kind is Kind.CHANGE:
                if (segment, position) in positions:
                    wrong.append(f"segment {segment}: {position} twice")
                positions.add((segment, position))
            readers[segment].apply(record, entry_of)
        for segment, node in self.primary.items():
            reader = readers[segment]
            derived = {key: entry.value for key, entry in reader.entries.items()}
            if reader.open is not None:
                wrong.append(f"segment {segment}: the reset {reader.open} is open")
            if derived != node.cache[segment]:
                wrong.append(f"segment {segment}: the topic has {derived}, {node.member} {node.cache[segment]}")
        return wrong

    def bury(self) -> None:
        """Frees what is left. Call it at the end."""
        for node in self.everybody:
            node.loop.bury()
