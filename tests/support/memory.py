"""A Kafka in memory: for tests of what runs over the port to Kafka."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from deelog_connector.kafka.threads import Threads
from deelog_connector.kafka_port import REQUEST_SECONDS, InRecord, OutRecord
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.port import MemoryPort, SimulatedClock
from deelog_schemas.header import Kind
from deelog_schemas.records import ON_CHANGES, Record, decode

T = TypeVar("T")


class Memory:
    """The brokers, and the loop of virtual time on which all connectors of a test run."""

    bootstrap = "memory:9092"

    def __init__(self, seed: int = 1) -> None:
        self.kafka = Kafka(engine := Engine(seed))
        self.loop = NodeLoop(engine, "test")
        self._ports = 0

    def port(self, seconds: float = REQUEST_SECONDS) -> MemoryPort:
        """Another process's. `seconds` is how long one request may take."""
        return self.port_on(self.loop, seconds)

    def port_on(self, loop: NodeLoop, seconds: float = REQUEST_SECONDS) -> MemoryPort:
        """A port on another loop."""
        self._ports += 1
        return MemoryPort(loop, self.kafka, seconds, f"port {self._ports}")

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a test's coroutine."""
        self.loop.run_until_complete(work)
        assert not self.loop.errors, "what nobody heard"

    def produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """A record outside of any transaction, as others may write it."""
        self.kafka.logs[topic, 0].append(OutRecord(topic, 0, cast("bytes", key), value, []), None)

    def messages(self, topic: str) -> list[InRecord]:
        """All that is committed, in order within each partition."""
        partitions = range(self.kafka.described(topic).partitions)
        logs = [self.kafka.logs[topic, partition] for partition in partitions]
        return [record for log in logs for record in log.read(log.first, len(log.slots))[0]]

    def records(self, topic: str, allowed: frozenset[Kind] = ON_CHANGES) -> list[Record]:
        """`messages`, decoded."""
        return [decode(*message, allowed) for message in self.messages(topic)]


class LiveMemory(Memory):
    """The brokers in real time, for connectors in threads: a port belongs to the loop on which it was made."""

    def __init__(self) -> None:
        self._engine = _RealTime()
        self.kafka = Kafka(self._engine)
        self._ports = 0

    def port(self, seconds: float = REQUEST_SECONDS) -> MemoryPort:
        self._ports += 1
        loop = cast("NodeLoop", _RunningLoop(self._engine))
        port = _LivePort(loop, self.kafka, seconds, f"port {self._ports}")
        port.clock = cast("SimulatedClock", time)
        return port

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def fence(self, transactional_id: str) -> None:
        """Ends the session of a connector, and its transaction."""
        with self._engine.lock:
            self.kafka.init(transactional_id, "test")

    def messages(self, topic: str) -> list[InRecord]:
        with self._engine.lock:
            return super().messages(topic)


class _LivePort(MemoryPort):
    def __init__(self, loop: NodeLoop, kafka: Kafka, seconds: float, name: str) -> None:
        super().__init__(loop, kafka, seconds, name)
        self._threads = Threads(seconds)

    async def work(self, call: Callable[..., T], *args: object) -> T:
        return await self._threads.work(call, *args)

    async def close(self) -> None:
        await super().close()
        await self._threads.close()


class _RealTime(Engine):
    """An event comes on the loop that adds it, and one at a time: there may be loops in several threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self.lock = threading.Lock()

    def after(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay, self._come, call, args)

    def _come(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        with self.lock:
            call(*args)


class _RunningLoop:
    """What a port needs of its loop."""

    name = "live"

    def __init__(self, engine: _RealTime) -> None:
        self.engine = engine
        loop = asyncio.get_running_loop()
        self.time, self.call_later = loop.time, loop.call_later
        self.create_task, self.create_future = loop.create_task, loop.create_future

    def outside(self, call: Callable[[], T]) -> T:
        """See `NodeLoop`."""
        return call()
