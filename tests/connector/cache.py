"""A plain cache in one process with the real connector, on a real Kafka or on one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import REQUEST_SECONDS, KafkaPort
from deelog_connector.runtime import Connector
from deelog_schemas.config import Config, parse
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry, Operation, Reason
from tests.support.waiting import awaiting


def config_of(bootstrap: str, prefix: str, **fields: Any) -> Config:
    """A small configuration: 8 segments on 2 partitions."""
    given = {
        "name": "test",
        "connector.class": "deelog.CachetoolsConnector",
        "topic.prefix": prefix,
        "bootstrap.servers": bootstrap,
        "node.id": "n1",
        "cache.name": "c",
        "segment.count": "8",
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "1",
        "commit.interval.ms": "10",
        "max.block.ms": "200",
    }
    return parse({**given, **{k.replace("_", "."): str(v) for k, v in fields.items()}})


class Cache:
    """A captured dict. It owns all segments. Its port is by default one to a real Kafka, with requests of `seconds`."""

    def __init__(
        self, config: Config, incarnation: int, seconds: float = REQUEST_SECONDS, port: KafkaPort | None = None
    ) -> None:
        self.config = config
        self.entries_of: dict[bytes, bytes] = {}
        self.stepped: list[int] = []
        self.port: KafkaPort = port or Librdkafka(seconds)
        member = f"{config['node.id']}@{incarnation}"
        self.connector = Connector(config, member, self, connector_name="test", port=self.port)
        self.core = self.connector.core

    def entries(self, segment: int) -> list[Entry]:
        return [Entry(k, v, None) for k, v in self.entries_of.items() if segment_of(k, self.core.segments) == segment]

    def get(self, segment: int, key: bytes) -> Entry | None:
        value = self.entries_of.get(key)
        return None if value is None else Entry(key, value, None)

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        self.core.acked(segment, operations[-1].sequence)

    def released(self, segment: int) -> None:
        pass

    def stepped_down(self, segment: int, reason: str) -> None:
        self.stepped.append(segment)

    def own_all(self, must_reset: str | None = "start") -> None:
        """Becomes primary of all segments, in a new epoch."""
        epoch = self.core.highest_claim() + 1
        for segment in range(self.core.segments):
            self.core.promote(segment, epoch, must_reset)
        self.connector.wake()

    async def put(self, key: bytes, value: bytes | None) -> None:
        """A captured write, acknowledged at once."""
        segment = segment_of(key, self.core.segments)
        size = len(key) + len(value or b"") + 200
        if not self.core.has_room(size):
            await self.connector.make_room(segment, size)
        existed = key in self.entries_of
        if value is None:
            self.entries_of.pop(key, None)
        else:
            self.entries_of[key] = value
        reason = Reason.REMOVE if value is None else Reason.PUT
        operation = self.core.append(segment, reason, key, value, None, self.port.clock.time_ns() // 1000, existed)
        self.core.acked(segment, operation.sequence)

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """`awaiting` that also ends with the connector's failure, which it raises."""

        def holds() -> bool:
            if self.connector.failure.done():
                self.connector.failure.result()
            return condition()

        try:
            await awaiting(holds, seconds, "the condition of the test")
        except TimeoutError as error:
            phases = [self.core.phase(s) for s in range(self.core.segments)]
            error.add_note(f"phases {phases}, unwritten {self.core.unwritten()}")
            raise

    async def drained(self, seconds: float = 60.0) -> None:
        """Waits until all acknowledged operations are read back from Kafka."""
        await self.until(lambda: self.core.unwritten() == 0, seconds)


@asynccontextmanager
async def cache(
    config: Config,
    incarnation: int = 1,
    release: bool = False,
    seconds: float = REQUEST_SECONDS,
    port: KafkaPort | None = None,
) -> AsyncIterator[Cache]:
    """A started cache. At the end it is closed; with `release` its segments are released first."""
    found = Cache(config, incarnation, seconds, port)
    await found.connector.start()
    try:
        yield found
    finally:
        await found.connector.stop(release=release)


def run(work: Coroutine[Any, Any, None], seconds: float = 240.0) -> None:
    """Runs a test's coroutine, for at most `seconds`."""

    async def bounded() -> None:
        await asyncio.wait_for(work, seconds)

    asyncio.run(bounded())


async def started(found: Cache) -> None:
    """Makes the cache primary of all segments, and waits until it has written everything."""
    found.own_all()
    await found.drained()
