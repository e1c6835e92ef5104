"""The captured databases of a server as one process: each is a cache with a connector, and a link, of its own.

One link for all is weighed in docs/decisions.md, "Redis: a link for each database".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import KafkaPort
from deelog_connector.metrics.shared_server import MetricsShare
from deelog_connector.runtime import Lifecycle
from deelog_interceptors.redis.node import RedisNode
from deelog_schemas.config import Config
from deelog_schemas.config.shapes import databases_by_name


class Databases:
    """`await start()`, watch `failure`, `await stop()`."""

    def __init__(self, config: Config, new_port: Callable[[], KafkaPort] = Librdkafka, *, after: str = "") -> None:
        """See `RedisNode`. Without `redis.databases` it is one."""
        names = databases_by_name(config["redis.databases"])
        configs = [config] if config["cache.name"] is not None else [config.of_cache(name) for name in names]
        self.nodes = [RedisNode(each, new_port, after=after) for each in configs]
        connectors = {node.cache: node.connector for node in self.nodes}
        self.lifecycle = Lifecycle(config, connectors)
        self.clock = self.nodes[0].clock
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.finished = asyncio.gather(*(connector.finished for connector in connectors.values()))
        self.serves = False
        """Whether all have read of the server."""
        self.sources = [node.metrics for node in self.nodes]
        self._served: MetricsShare | None = None
        for node in self.nodes:
            node.failure.add_done_callback(self._node_failed)

    async def start(self) -> None:
        """Returns once the server's stream is read for each. Raises `DeelogError`."""
        self._served = MetricsShare(self.lifecycle.config, self.lifecycle.connectors, self.sources)
        starts = [asyncio.ensure_future(node.start()) for node in self.nodes]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise
        self.serves = True

    async def stop(self) -> None:
        """Writes what was read, and releases the segments."""
        await self._each(RedisNode.stop)

    async def abort(self) -> None:
        await self._each(RedisNode.abort)

    def failed(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    def _node_failed(self, failure: asyncio.Future[None]) -> None:
        if not failure.cancelled() and (error := failure.exception()) is not None:
            self.failed(error)

    async def _each(self, call: Callable[[RedisNode], Coroutine[Any, Any, None]]) -> None:
        """Each is called, whatever becomes of the others."""
        outcomes = await asyncio.gather(*map(call, self.nodes), return_exceptions=True)
        if self._served is not None:
            self._served.close()
        for error in outcomes:
            if error is not None:
                raise error
