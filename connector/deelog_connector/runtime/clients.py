"""The Kafka clients of one configuration. A restart replaces all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.consumer import can_read
from deelog_connector.kafka.scanner import Scanner
from deelog_connector.kafka.topics import audit, ensure_topics
from deelog_connector.kafka.writer import Writer
from deelog_connector.runtime.tasks import Tasks
from deelog_schemas.config import Config

SCANNERS: Final = 4
"""The most scans at the same time."""


class Clients:
    """Admin client, writer and scanners of one node, made by `config`.

    Call `open` before anything else, `close` at the end.
    """

    def __init__(self, config: Config, node_id: str, tasks: Tasks) -> None:
        self.config = config
        self.admin = KafkaAdmin(config)
        self._transactional_id = config.topics.transactional_id_node(node_id)
        self._tasks = tasks
        self._writer: Writer | None = None
        self._free = asyncio.Semaphore(SCANNERS)
        self._scanners: list[Scanner] = []
        """Idle scanners."""

    async def open(self) -> None:
        """Creates and audits the topics, and makes the clients. Raises `KafkaUnusable`."""
        await self._tasks.blocking(ensure_topics, self.admin, self.config)
        limit = await self._tasks.blocking(audit, self.admin, self.config)
        self._writer = Writer(self.config, self._transactional_id, limit)
        self._scanners = self._new_scanners()

    @property
    def writer(self) -> Writer:
        """The node's producer."""
        assert self._writer is not None, "call `open` first"
        return self._writer

    def _new_scanners(self) -> list[Scanner]:
        return [Scanner(self.config, self.config.topics.changes) for _ in range(SCANNERS)]

    @asynccontextmanager
    async def scanner(self) -> AsyncIterator[Scanner]:
        """A scanner for one scan; waits for an idle one."""
        async with self._free:
            scanner = self._scanners.pop()
            try:
                yield scanner
            finally:
                self._scanners.append(scanner)

    async def prepared(self, config: Config) -> tuple[KafkaAdmin, Writer]:
        """The clients of another configuration with the same topics, for `replace`.

        Raises `KafkaUnusable` or `ConfigError` where it does not work; nothing has changed then.
        """
        admin = KafkaAdmin(config)
        limit = await self._tasks.blocking(audit, admin, config)
        writer = Writer(config, self._transactional_id, limit, self.writer.has_written)
        await self._tasks.blocking(writer.settings)
        await self._tasks.blocking(can_read, config)
        return admin, writer

    async def replace(self, config: Config, admin: KafkaAdmin, writer: Writer) -> None:
        """Closes the scanners, each once its scan has ended, and switches to the clients of `config`."""
        self.admin.close()
        for _ in range(SCANNERS):
            await self._free.acquire()
        for scanner in self._scanners:
            await self._tasks.blocking(scanner.close)
        self.config, self.admin, self._writer = config, admin, writer
        self._scanners = self._new_scanners()
        for _ in range(SCANNERS):
            self._free.release()

    def give_up(self) -> None:
        """Waiting for Kafka ends soon."""
        if self._writer is not None:
            self._writer.closing = True

    def close(self) -> None:
        """Closes every client, which must not be used any more. It blocks."""
        for scanner in self._scanners:
            scanner.close()
        if self._writer is not None:
            self._writer.discard()
        self.admin.close()


__all__ = ["SCANNERS", "Clients"]
