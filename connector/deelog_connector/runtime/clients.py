"""The Kafka clients of one configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from deelog_connector.kafka_port import KafkaPort, Reader
from deelog_connector.runtime.producers import Places, Producers
from deelog_connector.runtime.topics import ensure_topics, look_at_topics
from deelog_connector.topic_audit import TopicAudit
from deelog_schemas.config import Config

SCANS: Final = 4
"""The most scans at the same time."""

T = TypeVar("T")


class Clients:
    """The clients of one node, made by `config`.

    Call `open` before anything else, `close` at the end.
    """

    def __init__(self, config: Config, node_id: str, port: KafkaPort) -> None:
        self.config = config
        self.brokers = port.brokers(config)
        self.audit = TopicAudit(partial(look_at_topics, self.brokers, config), config)
        self._notes = port.notes(config)
        topics = config.topics
        self._transactional_ids = topics.transactional_id_node(node_id), topics.transactional_id_spare(node_id)
        self._port = port
        self._session: Producers | None = None
        self._free = asyncio.Semaphore(SCANS)
        self._idle: list[Reader] = []
        """Readers between two scans."""

    async def open(self) -> None:
        """Creates and audits the topics, and makes the clients. Raises `KafkaUnusable`, `ConfigError`."""
        limit, findings = await ensure_topics(self.brokers, self.config)
        self.audit.begin(findings)
        first, second = [await self._port.session(self.config, name, limit) for name in self._transactional_ids]
        self._session = Producers(first, second, self._fence)
        self._idle.append(await self._port.reader(self.config, self.config.topics.changes))

    async def _fence(self, spare: bool, left_open: Places) -> None:
        await self.brokers.fence(self._transactional_ids[spare], left_open)

    @property
    def session(self) -> Producers:
        """The node's producers."""
        assert self._session is not None, "call `open` first"
        return self._session

    def send(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        """Sends a record that may be lost. See `kafka_port.Notes`."""
        self._notes.send(topic, key, value, partition)

    @property
    def dropped(self) -> int:
        """Records that `send` could not send."""
        return self._notes.dropped

    async def following(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        """A reader of a topic from these offsets on, which you must close. Errors: see `Reader.seek`."""
        reader = await self._port.reader(self.config, topic)
        try:
            await reader.seek(offsets)
        except BaseException:
            await asyncio.shield(reader.close())
            raise
        return reader

    async def scanning(self, scan: Callable[[Reader], Awaitable[T]]) -> T:
        """Calls it with a reader of the change topic, once few others run."""
        async with self._free:
            topic = self.config.topics.changes
            reader = self._idle.pop() if self._idle else await self._port.reader(self.config, topic)
            try:
                result = await scan(reader)
                await reader.seek({})
            except BaseException:
                await asyncio.shield(reader.close())
                raise
            self._idle.append(reader)
            return result

    def give_up(self) -> None:
        """Waiting for Kafka ends soon."""
        if self._session is not None:
            self._session.give_up()

    async def close(self) -> None:
        """Closes every client, which must not be used any more."""
        while self._idle:
            await self._idle.pop().close()
        if self._session is not None:
            await self._session.discard()
        await self._notes.close()
        await self.brokers.close()
