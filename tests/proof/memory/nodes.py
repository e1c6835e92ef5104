"""Nodes of the tests of the port in memory."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from deelog_connector.kafka_port import BEGINNING, OutRecord, Reader, Session
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.port import MemoryPort
from deelog_schemas.config import Config, parse

T = "t"


def config(**fields: str) -> Config:
    """`fields` have `_` for `.`."""
    given = {
        "name": "test",
        "connector.class": "deelog.CachetoolsConnector",
        "topic.prefix": "p",
        "bootstrap.servers": "memory:9092",
        "node.id": "n",
        "cache.name": "c",
    }
    return parse({**given, **{name.replace("_", "."): value for name, value in fields.items()}})


def record(value: bytes, partition: int = 0, key: bytes = b"k") -> OutRecord:
    return OutRecord(T, partition, key, value, [])


class Node:
    """One node, with a transactional id of its name."""

    def __init__(self, engine: Engine, kafka: Kafka, name: str) -> None:
        self.name, self.kafka = name, kafka
        self.loop = NodeLoop(engine, name)
        self.port = MemoryPort(self.loop, kafka)

    def run(self, case: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(case)

    async def session(self, **fields: str) -> Session:
        session = await self.port.session(config(**fields), self.name, lambda: 1_000_000)
        await session.open()
        return session

    async def reader(self, *partitions: int) -> Reader:
        reader = await self.port.reader(config(), T)
        await reader.seek(dict.fromkeys(partitions, BEGINNING))
        return reader

    async def write(self, *values: bytes, partition: int = 0) -> None:
        await (await self.session()).commit([record(value, partition) for value in values])


def content(kafka: Kafka, partition: int = 0, topic: str = T) -> list[bytes | None]:
    return [r.value for r in kafka.logs[topic, partition].read(0, 10_000)[0]]
