"""The grid's topology topic: creates, follows and writes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from deelog_connector import topic_audit
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, TopologyError
from deelog_connector.kafka_port import BEGINNING, InRecord, KafkaPort, Reader
from deelog_connector.kept_topic import KeptTopic
from deelog_connector.topic_audit import TopicAudit
from deelog_schemas.config import Config, ConfigError

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
        self._kept = KeptTopic(self._brokers, self._topic, None)  # one; where it has more, the first
        self._audit = TopicAudit(self._findings, config)
        self._recreated = self._has_read = False

    async def create(self) -> None:
        """Creates the topic (one partition, compacted) if it is missing. Raises `KafkaUnusable`."""
        self._audit.begin(topic_audit.of_kept(self._topic, await self._kept.make()))

    async def publish(self, key: str, value: bytes) -> None:
        """Writes one record outside any transaction; returns once Kafka has acknowledged it."""
        try:
            await self._brokers.publish(self._topic, key, value)
        except KafkaUnavailable as error:
            raise TopologyError(str(error)) from error

    async def follow(
        self, on_records: Callable[[list[TopologyRecord]], None], on_lost: Callable[[], None] = lambda: None
    ) -> None:
        """Passes on all records in order, from the beginning, until it is cancelled.

        Calls `on_lost` where the topic was made again or has lost records, and passes on what is there then.
        """
        beside = [asyncio.ensure_future(work) for work in (self._look(), self._audit.run())]
        try:
            while True:
                why = await self._follow_with(await self._port.reader(self._config, self._topic), on_records)
                await self._look_once()
                self._recreated = False  # what was noticed so far counts once, and what is made again from here on anew
                log.error("topic %s: %s: its last view and all members are written anew", self._topic, why)
                on_lost()
        except KafkaUnavailable as error:
            raise TopologyError(str(error)) from error
        except KafkaUnusable as error:
            raise TopologyError(f"topic {self._topic}: {error}") from error
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _follow_with(self, reader: Reader, on_records: Callable[[list[TopologyRecord]], None]) -> str:
        """Returns why the reader cannot go on."""
        try:
            await self._begin(reader)
            while not self._recreated:
                try:
                    records = await reader.read(_POLL_SECONDS)
                except KafkaUnauthorized as error:
                    if not self._has_read:
                        raise
                    log.warning("%s", error)  # it reads on once the ACL is back
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if records:
                    self._has_read = True
                    on_records([_decoded(record) for record in records])
        except KafkaUnusable as error:
            if isinstance(error, KafkaUnavailable) or not self._has_read:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
            return str(error)
        finally:
            await asyncio.shield(reader.close())
        return "it was deleted and made again"

    async def _findings(self) -> list[str]:
        return topic_audit.of_kept(self._topic, await self._brokers.settings(self._topic))

    async def _look(self) -> None:
        """Looks once a second whether it is the same topic; makes it where it is gone."""
        while True:
            await self._look_once()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _look_once(self) -> None:
        try:
            if await self._kept.is_another():
                self._recreated = True
        except (KafkaUnusable, ConfigError) as error:  # as it is said where the connector looks at its own topics
            log.debug("topic %s: %s", self._topic, error)

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
