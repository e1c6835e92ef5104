"""Reads the positions topic, the signals, and the end offsets of the change topic while the connector runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from deelog_connector.errors import KafkaUnauthorized, KafkaUnusable, MapError
from deelog_connector.kafka_port import BEGINNING, InRecord, PartitionEnd, Reader
from deelog_connector.runtime.clients import Clients
from deelog_connector.runtime.context import Context
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_schemas.config import ConfigError
from deelog_schemas.errors import DeelogError
from deelog_schemas.positions import ClaimState, decode_state
from deelog_schemas.records import ON_POSITIONS, decode

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 1.0
"""Interval at which the end offsets of the change topic are read."""
POLL_SECONDS: Final = 0.1
"""Seconds that one read of the positions topic may wait for records."""
DENIED_SECONDS: Final = 1.0
"""Seconds before the next read where the right to read was taken away."""


class Readers:
    """The readers of one shell."""

    def __init__(self, context: Context, clients: Clients, tasks: Tasks, retries: Retries) -> None:
        self._context, self._core, self._signals = context, context.core, context.signals
        self._clients, self._tasks, self._retries = clients, tasks, retries

    # -- topics that are followed ---------------------------------------------------------------------------------

    def follow_positions(self) -> asyncio.Event:
        """Reads the positions topic from its beginning; the event is set once its present records are read."""
        caught_up = asyncio.Event()
        self._tasks.spawn(self._follow(caught_up))
        return caught_up

    async def follow_signals(self) -> None:
        """Returns once the present signals are read, and reads on. Does nothing without their topic."""
        if self._clients.config.topics.signal:
            reading = self._retries.reading
            reader = await reading(self._signal_reader)
            await self._signals.catch_up(reader, reading)
            self._tasks.spawn(self._signals.follow(reader))

    async def _signal_reader(self) -> Reader:
        topic = self._clients.config.topics.signal
        (end,) = await self._clients.brokers.ends(topic, [0])
        return await self._clients.following(topic, {0: self._signals.first_offset(end.offset)})

    async def _follow(self, caught_up: asyncio.Event) -> None:
        """Follows the positions topic, which prunes op logs and confirms claims."""
        config = self._clients.config
        topic, partitions = config.topics.positions, self._core.settings.partitions
        reader = await self._retries.reading(
            self._clients.following, topic, dict.fromkeys(range(partitions), BEGINNING)
        )
        has_read = self._retries.proven
        try:
            while True:
                try:
                    records = await reader.read(POLL_SECONDS)
                except KafkaUnauthorized as error:
                    if not has_read:
                        raise
                    log.warning("%s", error)
                    await asyncio.sleep(DENIED_SECONDS)
                    continue
                for record in records:
                    self._state_read(record)
                if reader.caught_up:
                    has_read = True
                    caught_up.set()
        finally:
            await asyncio.shield(reader.close())

    def _state_read(self, raw: InRecord) -> None:
        record = decode(raw.topic, raw.partition, raw.offset, raw.key, raw.value, raw.headers, ON_POSITIONS)
        place = f"{raw.topic}[{raw.partition}]@{raw.offset}"
        try:
            read = decode_state(record.key, record.value, record.header.kind)
        except DeelogError as error:
            raise type(error)(f"{place}: {error}") from error
        state = read.state
        if isinstance(state, ClaimState):
            self._must_be_of_this_cache(state, place)
        self._core.state_read(read)
        self._context.pruned()
        if state is None or isinstance(state, ClaimState):
            self._context.wake()

    def _must_be_of_this_cache(self, claim: ClaimState, place: str) -> None:
        own = self._core.settings
        names, layout = (own.prefix, own.cache), (own.segments, own.partitions)
        if (claim.prefix, claim.cache) != names:
            raise MapError(
                f"{place}: {claim.member} claims with topic.prefix={claim.prefix} and cache.name={claim.cache}, this "
                f"node has {names[0]} and {names[1]}, which give the same topic: set names that give one of its own"
            )
        if (claim.segments, claim.partitions) != layout:
            raise MapError(
                f"{place}: {claim.member} claims with segment.count={claim.segments} on {claim.partitions} "
                f"partitions, this node has {layout[0]} on {layout[1]}: set segment.count and "
                "topic.creation.default.partitions to what the topic was made with"
            )

    # -- the change topic -----------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Reads the topic id, end offsets and leader epochs every second, to detect lost records."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self.read_topic_id()  # first: the ends of a topic made again look as if it had been truncated
                await self.read_ends()
            except (KafkaUnusable, ConfigError) as error:  # e.g. a file of secrets being written
                if str(error) != self._context.meter.kafka_away:  # once for each reason
                    log.warning("Kafka cannot be used: %s", error)
                self._context.meter.kafka_away = str(error)
                continue
            if self._context.meter.kafka_away:
                log.info("Kafka can be used again")
            self._context.meter.kafka_answered(self._context.port.clock.monotonic())
            self._context.wake()

    async def read_topic_id(self) -> None:
        """Passes the topic id to the core."""
        topic = self._clients.config.topics.changes
        if self._core.topic_is(await self._clients.brokers.topic_id(topic)):
            log.error("%s was deleted and made again: all of its segments are reset", topic)

    async def read_ends(self) -> None:
        """Passes the end offsets to the core. Raises `KafkaUnavailable`."""
        topic, brokers = self._clients.config.topics.changes, self._clients.brokers
        for end in await brokers.ends(topic, range(self._core.settings.partitions)):
            offset, epoch = self._core.end_of(end.partition)
            intact: bool | None = None
            if self._core.doubts(end.partition, end.offset, end.leader_epoch):
                intact = await brokers.still_holds(topic, PartitionEnd(end.partition, offset, epoch))
            lost = self._core.end_read(end.partition, end.offset, end.leader_epoch, intact)
            if lost:
                log.error("%s[%d] was truncated to %d: segments %s are reset", topic, end.partition, end.offset, lost)
