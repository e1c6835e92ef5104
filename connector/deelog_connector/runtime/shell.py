"""A shell: the clients, coroutines and codecs of one configuration, around a core that outlives it.

A restart makes a new shell around the old core. Nothing that the old one began is waited for: as after a crash, the
next session ends what the last one left, and each segment looks at Kafka again. Weighed in docs/decisions.md, "A
restart is a new shell around the old core".
"""

from __future__ import annotations

import asyncio
from typing import Any

from deelog_connector.runtime.clients import Clients
from deelog_connector.runtime.configured import codecs_of
from deelog_connector.runtime.context import Context
from deelog_connector.runtime.executor import Executor
from deelog_connector.runtime.readers import Readers
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_connector.transforms.pipeline import Pipeline
from deelog_schemas.config import Config
from deelog_schemas.member import node_id_of


class Shell:
    """Call `open`, `start`, and at the end `close`, also after an error.

    The first shell of a process is not `proven`: what Kafka refuses it is an error of the configuration, and ends it.
    A later one retries, for the process holds a cache.
    """

    def __init__(self, context: Context, config: Config, pipeline: Pipeline | None, *, proven: bool) -> None:
        self.config, self.pipeline, self._context = config, pipeline, context
        self.tasks = tasks = Tasks(context.failure)
        self.clients = clients = Clients(config, node_id_of(context.core.member), context.port)
        self.retries = retries = Retries(config, context.port, proven=proven)
        self._readers = Readers(context, clients, tasks, retries)
        self.executor = Executor(context, clients, tasks, retries, pipeline)

    async def open(self) -> None:
        """Makes codecs and clients, and creates and audits the topics. Another shell may be running meanwhile.

        Raises `KafkaUnusable`, `ConfigError`, and `RegistryError` where a schema registry does not serve.
        """
        # First, so that nothing is written or created where records cannot be encoded.
        port, name = self._context.port, self._context.connector_name
        codecs = port.work(codecs_of, self.config, self._context.core.member, name, port)
        self.executor.encoder, self.executor.decoder = await codecs
        await self.clients.open()

    async def start(self) -> None:
        """Reads the positions topic to its end, as is due before anything is written, and follows the topics.

        Raises `KafkaUnusable`, `MapError`, `RecordError`.
        """
        await self.retries.reading(self._readers.look_at_changes)
        await self.retries.reading(self._readers.read_ends)
        await self.retries.reading(self._readers.look_at_positions)
        self._readers.begin()
        self._context.meter.kafka_answered(self._context.port.clock.monotonic())
        caught_up: asyncio.Future[Any] = asyncio.ensure_future(self._readers.follow_positions().wait())
        self.tasks.spawn(self.clients.audit.run())
        self.tasks.spawn(self._readers.watch())  # the positions may be made again meanwhile
        try:
            await asyncio.wait({caught_up, self.tasks.failure}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            caught_up.cancel()
        if self.tasks.failure.done():
            self.tasks.failure.result()
        await self._readers.follow_signals()
        self.tasks.spawn(self._readers.watch_others())
        self.retries.proven = True

    async def close(self) -> None:
        """Ends what is under way, without waiting for Kafka, and closes every client. Call it once, and shield it."""
        self.tasks.stopping = True
        self.clients.give_up()
        if self.pipeline:
            self.pipeline.closing.set()
        await self.tasks.cancel()
        await self.clients.close()
