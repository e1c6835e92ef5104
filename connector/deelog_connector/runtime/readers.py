"""Reads the positions topic, the signals, and the end offsets of the change topic while the connector runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from deelog_connector.errors import KafkaUnauthorized, KafkaUnusable, MapError
from deelog_connector.kafka_port import BEGINNING, InRecord, PartitionEnd, Reader
from deelog_connector.kept_topic import KeptTopic
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
        config = clients.config
        self._positions = KeptTopic(
            clients.brokers, config.topics.positions, config["topic.creation.default.partitions"]
        )
        self._recreated = ""

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
        topic = self._clients.config.topics.positions
        beginnings = dict.fromkeys(range(self._core.settings.partitions), BEGINNING)
        while True:
            reader = await self._retries.reading(self._clients.following, topic, beginnings)
            try:
                lost = await self._follow_with(reader, caught_up)
            finally:
                await asyncio.shield(reader.close())
            if lost:
                log.error("%s: all segments are claimed anew and reset", lost)
                self._core.positions_lost()
                self._context.wake()
            else:
                await asyncio.sleep(DENIED_SECONDS)
            await self._retries.reading(self.look_at_positions)  # what the reader has noticed counts once

    async def _follow_with(self, reader: Reader, caught_up: asyncio.Event) -> str:
        """Returns once the reader cannot go on: what the topic has lost, or nothing where it never came to its end."""
        has_read, whole = self._retries.proven or caught_up.is_set(), False
        self._recreated = ""
        while not self._recreated:
            try:
                records = await reader.read(POLL_SECONDS)
            except KafkaUnauthorized as error:
                if not has_read:
                    raise
                log.warning("%s", error)
                await asyncio.sleep(DENIED_SECONDS)
                continue
            except KafkaUnusable as error:
                if not has_read:
                    raise
                log.warning("%s", error)
                return self._recreated or (str(error) if whole else "")
            for record in records:
                self._state_read(record)
            if reader.caught_up:
                has_read = whole = True
                caught_up.set()
        return self._recreated

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

    async def read_epochs(self) -> None:
        """Where the positions topic knows of no claim, passes the core the epochs of the change topic.

        Without them a cache that comes back after its positions were lost would write in epoch 1, and readers drop what
        is below a position that they know.
        """
        if self._core.highest_claim():
            return
        topic = self._clients.config.topics.changes
        ends = await self._clients.brokers.ends(topic, range(self._core.settings.partitions))
        if not any(end.offset for end in ends):
            return
        log.warning("no claim is known, and %s has records: they are read once for their epochs", topic)
        epochs = await self._clients.scanning(self._epochs)
        self._core.epoch_seen(max(epochs, default=0))

    async def _epochs(self, reader: Reader) -> set[int]:
        await reader.seek(dict.fromkeys(range(self._core.settings.partitions), BEGINNING))
        epochs = set[int]()
        while not reader.caught_up:
            epochs.update(decode(*raw).header.epoch for raw in await reader.read(POLL_SECONDS))
        return epochs

    async def watch(self) -> None:
        """Reads topic ids, end offsets and leader epochs every second, to detect lost records."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self.read_topic_id()  # first: the ends of a topic made again look as if it had been truncated
                await self.read_ends()
                await self.look_at_positions()
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

    async def look_at_positions(self) -> None:
        """Notices a positions topic that was made again; makes it where it is gone."""
        if await self._positions.is_another():
            self._recreated = f"{self._clients.config.topics.positions} was deleted and made again"

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
