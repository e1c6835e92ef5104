"""The port to Kafka on librdkafka. Its clients block, so each call waits in a thread."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.election import Election
from deelog_connector.kafka.fencing import fence
from deelog_connector.kafka.notes import Notes
from deelog_connector.kafka.publish import publish
from deelog_connector.kafka.reader import Reader, first_behind, still_holds
from deelog_connector.kafka.session import Session
from deelog_connector.kafka.threads import Run, Threads
from deelog_connector.kafka_port import REQUEST_SECONDS, Clock, InRecord, PartitionEnd, TopicState
from deelog_schemas.config import Config

T = TypeVar("T")


class SystemClock:
    """The clocks of this machine. The first goes on while it sleeps, which Linux's CLOCK_MONOTONIC does not."""

    monotonic = staticmethod(partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)))
    time_ns = staticmethod(time.time_ns)


class Librdkafka:
    """See `kafka_port.KafkaPort`. `seconds` is how long one request may take."""

    clock: Clock = SystemClock()

    def __init__(self, seconds: float = REQUEST_SECONDS) -> None:
        self._seconds, self._threads = seconds, Threads(seconds)
        self.random = random.Random()

    async def session(self, config: Config, transactional_id: str, max_message_bytes: Callable[[], int]) -> Session:
        return Session(self._threads.write, config, transactional_id, max_message_bytes, self._seconds)

    async def reader(self, config: Config, topic: str) -> Reader:
        return await self._threads.run(Reader, self._threads.in_turn(), config, topic, self._seconds)

    def brokers(self, config: Config) -> Brokers:
        return Brokers(self._threads.run, config, self._seconds)

    def notes(self, config: Config) -> Notes:
        return Notes(self._threads.run, config)

    def election(
        self,
        config: Config,
        client_id: str,
        on_elected: Callable[[bool], None],
        on_refused: Callable[[Exception], None],
    ) -> Election:
        return Election(self._threads.run, config, client_id, on_elected, on_refused, self._seconds)

    def new_id(self) -> str:
        return str(uuid.uuid4())

    async def work(self, call: Callable[..., T], *args: object) -> T:
        return await self._threads.work(call, *args)

    async def close(self) -> None:
        await self._threads.close()


class Brokers:
    """See `kafka_port.Brokers`."""

    def __init__(self, run: Run, config: Config, seconds: float) -> None:
        self._run, self._config, self._seconds = run, config, seconds
        self._admin = KafkaAdmin(config, seconds)

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        await self._run(self._admin.ensure, topic, partitions, settings)

    async def settings(self, topic: str) -> Mapping[str, str]:
        return await self._run(self._admin.settings, topic)

    async def state(self, topic: str) -> TopicState:
        return await self._run(self._admin.state, topic)

    async def ends(self, topic: str, partitions: Iterable[int], committed: bool = True) -> list[PartitionEnd]:
        return await self._run(self._admin.ends, topic, partitions, committed)

    async def still_holds(self, topic: str, end: PartitionEnd) -> bool:
        return await self._run(still_holds, self._config, topic, end, self._seconds)

    async def members(self, group: str) -> frozenset[str]:
        return await self._run(self._admin.members, group)

    async def hanging(self, topic: str, partition: int) -> InRecord | None:
        (end,) = await self.ends(topic, [partition])
        return await self._run(first_behind, self._config, topic, end, self._seconds)

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        await self._run(publish, self._config, topic, key, value, self._seconds)

    async def fence(self, transactional_id: str, left_open: Sequence[tuple[str, int]] = ()) -> None:
        await self._run(fence, self._config, transactional_id, left_open, self._seconds)

    async def close(self) -> None:
        await self._run(self._admin.close)
