"""A shell: the clients, coroutines and codecs of one configuration, around a core that outlives it.

A restart makes a new shell around the old core. Nothing that the old one began is waited for: as after a crash, the
next session ends what the last one left, and each segment looks at Kafka again. Weighed in docs/decisions.md, "A
restart is a new shell around the old core".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from deelog_connector.cache_side import CacheSide
from deelog_connector.core import ConnectorCore
from deelog_connector.kafka_port import KafkaPort
from deelog_connector.runtime.clients import Clients
from deelog_connector.runtime.configured import codecs_of
from deelog_connector.runtime.executor import Executor
from deelog_connector.runtime.meters import EventMeter
from deelog_connector.runtime.readers import Readers
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_connector.signals.incremental_snapshots import Snapshots
from deelog_connector.signals.processor import Signals
from deelog_connector.transforms.pipeline import Pipeline
from deelog_schemas.config import Config
from deelog_schemas.errors import DeelogError
from deelog_schemas.member import node_id_of


class Shell:
    """Call `open`, `start`, and at the end `close`, also after an error. All but `config` is the connector's.

    The first shell of a process is not `proven`: what Kafka refuses it is an error of the configuration, and ends it.
    A later one retries, for the process holds a cache. `wake` polls the core soon, `pruned` tells of every state read,
    `halt` stops writing, and `opening` says whether a session is wanted.
    """

    def __init__(
        self,
        config: Config,
        pipeline: Pipeline | None,
        core: ConnectorCore,
        cache_side: CacheSide,
        signals: Signals,
        snapshots: Snapshots,
        meter: EventMeter,
        port: KafkaPort,
        failure: asyncio.Future[None],
        *,
        connector_name: str,
        proven: bool,
        wake: Callable[[], None],
        pruned: Callable[[], None],
        halt: Callable[[DeelogError], None],
        opening: Callable[[], bool],
    ) -> None:
        self.config, self.pipeline, self._connector_name = config, pipeline, connector_name
        self._core, self._meter, self._port, self._proven = core, meter, port, proven
        self.tasks = tasks = Tasks(failure)
        self.clients = clients = Clients(config, node_id_of(core.member), port)
        self.retries = retries = Retries(config, port)
        self._readers = Readers(core, clients, tasks, retries, signals, meter, port, wake=wake, pruned=pruned)
        self.executor = Executor(
            core,
            cache_side,
            clients,
            tasks,
            retries,
            pipeline,
            snapshots,
            meter,
            port,
            proven=proven,
            wake=wake,
            halt=halt,
            opening=opening,
        )

    async def open(self) -> None:
        """Makes codecs and clients, and creates and audits the topics. Another shell may be running meanwhile.

        Raises `KafkaUnusable`, `ConfigError`, and `RegistryError` where a schema registry does not serve.
        """
        # First, so that nothing is written or created where records cannot be encoded.
        self.executor.encoder, self.executor.decoder = await self._port.work(
            codecs_of, self.config, self._core.member, self._connector_name, self._port
        )
        await self.clients.open()

    async def start(self) -> None:
        """Reads the positions topic to its end, as is due before anything is written, and follows the topics.

        Raises `KafkaUnusable`, `MapError`, `RecordError`.
        """
        self.retries.started = self._proven
        await self.retries.reading(self._readers.read_topic_id)
        await self.retries.reading(self._readers.read_ends)
        self._meter.kafka_answered(self._port.clock.monotonic())
        caught_up: asyncio.Future[Any] = asyncio.ensure_future(self._readers.follow_positions().wait())
        try:
            await asyncio.wait({caught_up, self.tasks.failure}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            caught_up.cancel()
        if self.tasks.failure.done():
            self.tasks.failure.result()
        await self._readers.follow_signals()
        self.retries.started = True
        self.tasks.spawn(self._readers.watch())

    async def close(self) -> None:
        """Ends what is under way, without waiting for Kafka, and closes every client. Call it once, and shield it."""
        self.tasks.stopping = True
        self.clients.give_up()
        if self.pipeline:
            self.pipeline.closing.set()
        await self.tasks.cancel()
        await self.clients.close()
