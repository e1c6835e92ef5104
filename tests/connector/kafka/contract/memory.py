"""The port over Kafka in memory, on a loop of virtual time."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, cast

from deelog_connector.kafka_port import REQUEST_SECONDS, KafkaPort, OutRecord
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.log import Transaction
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.port import MemoryPort
from tests.connector.kafka.contract.world import World, eventually

SOON = 0.0001
"""Seconds, less than any request takes."""


class MemoryKafka(World):
    """`seed` decides how long everything takes."""

    lacks: ClassVar = {
        "threads": "its calls run on the loop's thread, where no loop runs meanwhile",
        "lose_clients": "no library stands between it and the brokers",
    }

    def __init__(self, prefix: str, seed: int = 1) -> None:
        self._engine = Engine(seed)
        self._kafka = Kafka(self._engine)
        self._loop = NodeLoop(self._engine, "case")
        self._ports = self._topics = 0
        self._lone: dict[tuple[str, int], bool] = {}
        """Lone partitions, and whether they are replicated."""
        self._made_ports: list[MemoryPort] = []
        super().__init__(prefix)

    def another_port(self, seconds: float = REQUEST_SECONDS) -> KafkaPort:
        self._ports += 1
        port = MemoryPort(self._loop, self._kafka, seconds, f"port {self._ports}")
        self._made_ports.append(port)
        return port

    @property
    def bootstrap(self) -> str:
        return "memory:9092"

    async def topic(self, partitions: int = 1, **settings: str) -> str:
        self._topics += 1
        topic = f"{self.prefix}-{self._topics}"
        self._kafka.create(topic, partitions, {name.replace("_", "."): value for name, value in settings.items()})
        return topic

    async def delete_topic(self, topic: str) -> None:
        self._kafka.delete(topic)

    async def recreate_topic(self, topic: str, partitions: int = 1) -> None:
        self._kafka.delete(topic)
        self._kafka.create(topic, partitions)

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._kafka.delete_records(topic, partition, before)

    def produce(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        self._kafka.logs[topic, partition].append(OutRecord(topic, partition, cast(bytes, key), value, []), None)

    def stranger(self, transactional_id: str) -> Stranger:
        return Stranger(self._kafka, transactional_id)

    def expire(self, topic: str) -> None:
        """The iterable goes on, and the transaction that it belongs to times out as soon as the brokers know of it."""
        found = next((t for t in self._kafka.transactions.values() if self._writes(t, topic)), None)
        if found is None:
            self._engine.after(SOON, self.expire, topic)
        else:
            self._kafka.expire(found)

    def _writes(self, transaction: Transaction, topic: str) -> bool:
        return any(log.topic == topic for log in transaction.first)

    async def settled(self, topic: str) -> None:
        def stable() -> bool:
            return not any(self._writes(transaction, topic) for transaction in self._kafka.transactions.values())

        await eventually(stable, f"no open transaction on {topic}")

    def wait(self, event: threading.Event) -> None:
        """The iterable goes on, but the brokers do not answer until then."""
        self._kafka.up = event.is_set()
        if not self._kafka.up:
            self._engine.after(SOON, self.wait, event)

    def away(self) -> AbstractAsyncContextManager[None]:
        return self._away()

    @asynccontextmanager
    async def _away(self) -> AsyncIterator[None]:
        self._kafka.up = False
        try:
            yield
        finally:
            self._kafka.up = True

    def lose_clients(self) -> None:
        raise NotImplementedError

    def lose_answer(self) -> Callable[[], bool]:
        silent = self._kafka.silent = set(self._kafka.sessions)
        before = len(silent)
        return lambda: len(silent) < before

    async def unclean_election(self, topic: str, partition: int, end: int) -> None:
        self._kafka.truncate(topic, partition, self._kafka.logs[topic, partition].end - end)

    async def lone_topic(self, replicated: bool = False, partition: int = 0) -> str:
        topic = await self.topic(partition + 1)
        self._lone[topic, partition] = replicated
        return topic

    def lose_broker(self) -> AbstractAsyncContextManager[None]:
        return self._lose_broker()

    @asynccontextmanager
    async def _lose_broker(self) -> AsyncIterator[None]:
        for place, replicated in self._lone.items():
            self._kafka.lose(*place, leader=not replicated)
        yield
        for place in self._lone:
            self._kafka.recover(*place)

    @contextmanager
    def lose_sight(self, held: bool = False) -> Iterator[None]:
        for port in self._made_ports:
            port.way.unreached = set(self._lone)
        yield
        for port in self._made_ports:
            port.way.unreached = set()

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        try:
            self._loop.run_until_complete(self.whole(case))
            assert not self._loop.errors
        finally:
            self._loop.bury()


class Stranger:
    """See `world.Stranger`."""

    def __init__(self, kafka: Kafka, transactional_id: str) -> None:
        self._kafka, self._id = kafka, transactional_id
        self._session = kafka.init(transactional_id, "stranger")

    def write(self, topic: str, partition: int, value: bytes) -> None:
        assert self._kafka.append(self._id, self._session, [OutRecord(topic, partition, b"k", value, [])]) is None

    def commit(self) -> None:
        assert self._kafka.commit(self._id, self._session) is None

    def abort(self) -> None:
        self._kafka.abort(self._id, self._session)
