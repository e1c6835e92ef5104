"""The grid's topology topic: creates, follows and writes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, TopologyError
from deelog_connector.kafka_port import BEGINNING, COMPACTED, InRecord, KafkaPort, Reader
from deelog_schemas.config import Config

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 1.0


class TopologyRecord(NamedTuple):
    """A record of the topology topic; `value` is None where the key is removed."""

    offset: int
    key: str
    value: bytes | None


class TopologyTopic:
    """The topic of a grid. Its errors are `TopologyError`, but for those of the configuration."""

    def __init__(self, config: Config, port: KafkaPort) -> None:
        self._config, self._port, self._topic = config, port, config.topics.topology
        self._brokers = port.brokers(config)

    async def create(self) -> None:
        """Creates the topic (one partition, compacted) if it is missing. Raises `KafkaUnusable`."""
        await self._brokers.ensure(self._topic, 1, COMPACTED)
        await self._brokers.close()

    async def publish(self, key: str, value: bytes) -> None:
        """Writes one record outside any transaction; returns once Kafka has acknowledged it."""
        try:
            await self._brokers.publish(self._topic, key, value)
        except KafkaUnavailable as error:
            raise TopologyError(str(error)) from error

    async def follow(self, on_records: Callable[[list[TopologyRecord]], None]) -> None:
        """Passes on all records in order, from the beginning, until it is cancelled."""
        reader = await self._port.reader(self._config, self._topic)
        has_read = False
        try:
            await self._begin(reader)
            while True:
                try:
                    records = await reader.read(_POLL_SECONDS)
                except KafkaUnauthorized as error:
                    if not has_read:
                        raise
                    log.warning("%s", error)  # it reads on once the ACL is back
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if records:
                    has_read = True
                    on_records([_decoded(record) for record in records])
        except KafkaUnavailable as error:
            raise TopologyError(str(error)) from error
        except KafkaUnusable as error:
            raise TopologyError(f"topic {self._topic}: {error}; was it deleted? Restart the nodes") from error
        finally:
            await asyncio.shield(reader.close())

    async def _begin(self, reader: Reader) -> None:
        while True:
            try:
                await reader.seek({0: BEGINNING})
                return
            except KafkaUnavailable as error:
                if isinstance(error, KafkaUnauthorized):
                    raise
                log.warning("%s; trying again", error)
            await asyncio.sleep(_RETRY_SECONDS)


def _decoded(record: InRecord) -> TopologyRecord:
    return TopologyRecord(record.offset, (record.key or b"").decode(errors="replace"), record.value)
