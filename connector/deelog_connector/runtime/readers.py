"""Reads the positions topic, the signals, and the end offsets of the change topic while the connector runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from deelog_connector.core.segment import Phase
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, MapError
from deelog_connector.kafka_port import BEGINNING, InRecord, PartitionEnd, Reader
from deelog_connector.kept_topic import KeptTopic, state_of
from deelog_connector.runtime.clients import Clients, moving_log
from deelog_connector.runtime.context import Context
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_connector.runtime.topics import ensure_change_topic, ensure_others, ensure_signal_topic
from deelog_schemas.config import ConfigError
from deelog_schemas.errors import DeelogError
from deelog_schemas.keys import POSITION_KEYS
from deelog_schemas.positions import ClaimState, decode_state
from deelog_schemas.records import ON_POSITIONS, decode

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 1.0
"""Interval at which the end offsets of the change topic are read."""
OTHERS_SECONDS: Final = 5.0
"""Interval at which it is looked whether the topics beside those two are there."""
SHORT_LOOKS: Final = 5
"""Looks after which a log of positions that seems shorter than it was is."""
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
            clients.brokers, config.topics.positions, config["topic.creation.default.partitions"], context.positions
        )
        self._seen = context.positions
        self._unwritable = frozenset[int]()
        """Partitions of the change topic that took no records at the last look."""
        self._aborting: asyncio.Task[None] | None = None
        self._told = frozenset[int]()
        """Those of both topics, as the log has them."""
        self._left_open = set[int]()
        """Of them, and of those that take records again: where a transaction of this node may be open still."""
        self._offsets = dict.fromkeys(range(config["topic.creation.default.partitions"]), BEGINNING)
        """Of the positions topic: what to read next."""
        self._away = frozenset(self._seen.read)
        """Partitions of the positions topic that are not read, since they have no leader, or one that is behind.

        Whoever read them before this shell: until a look has found them as long as they were.
        """
        self._short_looks = 0
        self._unread = set(self._offsets)
        """Partitions of the positions topic that were not read to their end yet."""

    # -- topics that are followed ---------------------------------------------------------------------------------

    def follow_positions(self) -> asyncio.Event:
        """Reads the positions topic from its beginning; the event is set once its present records are read.

        A partition that takes no records is read once it does; until then its segments are withheld.
        """
        caught_up = asyncio.Event()
        self._tasks.spawn(self._follow(caught_up))
        return caught_up

    async def follow_signals(self) -> None:
        """Returns once the present signals are read, and reads on. Does nothing without their topic.

        In a restart they were read before: nothing waits for them.
        """
        if self._clients.config.topics.signal:
            reader = None if self._signals.caught_up else await self._retries.reading(self._signal_reader)
            self._tasks.spawn(self._follow_signals(reader))

    async def _follow_signals(self, reader: Reader | None) -> None:
        while True:
            if reader is not None:
                await self._signals.follow(reader)
                # At once: what comes behind the end that it finds is new, what stands before it is not.
                await self._retries.reading(self._signal_place)
                await asyncio.sleep(DENIED_SECONDS)
            reader = await self._retries.reading(self._signal_reader)

    async def watch_others(self) -> None:
        """Makes the topics beside those two again where they are gone."""
        config, brokers = self._clients.config, self._clients.brokers
        while True:
            try:
                if config.topics.signal:
                    await self._look_at_signals()
                await ensure_others(brokers, config)
            except (KafkaUnusable, ConfigError) as error:  # nothing else waits for it
                log.debug("topics of signals, heartbeats, notifications and dead letters: %s", error)
            await asyncio.sleep(OTHERS_SECONDS)

    async def _signal_place(self) -> dict[int, int]:
        """Where the signals are to be read on."""
        if self._retries.proven:  # a start has read nothing yet that another topic could lack
            await self._look_at_signals()
        (end,) = await self._clients.brokers.ends(self._clients.config.topics.signal, [0])
        return {0: self._signals.first_offset(end.offset)}

    async def _signal_reader(self) -> Reader:
        """Reads on where the signals were read to, and returns the reader."""
        place = await self._signal_place()
        reader = await self._clients.following(self._clients.config.topics.signal, place)
        try:
            with moving_log():
                await self._signals.catch_up(reader)
        except BaseException:
            await asyncio.shield(reader.close())
            raise
        return reader

    async def _look_at_signals(self) -> None:
        """Notices a signal topic that was made again; makes it where it is gone."""
        topic, brokers = self._clients.config.topics.signal, self._clients.brokers
        state = await state_of(brokers, topic, partial(ensure_signal_topic, brokers, topic))
        self._signals.topic_is(state.topic_id)

    async def _follow(self, caught_up: asyncio.Event) -> None:
        """Follows the positions topic, which prunes op logs and confirms claims."""
        topic = self._clients.config.topics.positions
        while True:
            self._offsets = dict.fromkeys(self._offsets, BEGINNING)
            readable = self._readable()
            reader = await self._retries.reading(self._clients.following, topic, readable)
            try:
                lost = await self._follow_with(reader, readable, caught_up)
            finally:
                await asyncio.shield(reader.close())
            if not lost:
                await asyncio.sleep(DENIED_SECONDS)
            await self._retries.reading(self.look_at_positions)
            if lost:
                # What was noticed so far counts once. A topic that is made again from here on has lost the new claims.
                self._seen.lost = ""
                self._seen.read.clear()
                log.error("%s: all segments are claimed anew and reset", lost)
                self._core.positions_lost()
                self._context.wake()

    def _readable(self) -> dict[int, int]:
        """What to read next of the positions topic, without partitions that may have no leader."""
        return {p: offset for p, offset in self._offsets.items() if p not in self._away}

    async def _follow_with(self, reader: Reader, reading: Mapping[int, int], caught_up: asyncio.Event) -> str:
        """Returns once the reader cannot go on: what the topic has lost, or nothing where it never came to its end."""
        has_read, whole = self._retries.proven or caught_up.is_set(), False
        while not self._seen.lost:
            try:
                readable = self._readable()
                if readable.keys() != reading.keys():
                    await reader.seek(readable)
                    reading = readable
                records = await reader.read(POLL_SECONDS)
            except KafkaUnauthorized as error:
                if not has_read:
                    raise
                log.warning("%s", error)
                await asyncio.sleep(DENIED_SECONDS)
                continue
            except KafkaUnavailable as error:  # of a seek
                log.warning("%s; trying again", error)
                await asyncio.sleep(WATCH_SECONDS)
                continue
            except KafkaUnusable as error:
                if not has_read:
                    await self._retries.reading(self.look_at_positions)
                    if not self._seen.lost:
                        raise
                log.warning("%s", error)
                return self._seen.lost or (str(error) if whole else "")
            for record in records if caught_up.is_set() else _latest(records):
                self._state_read(record)
            self._offsets |= {partition: reader.next_offset(partition) for partition in reading}
            self._seen.read |= {p: end for p, end in self._offsets.items() if end > self._seen.read.get(p, 0)}
            if reader.caught_up:
                has_read = whole = True
                if not self._unread.isdisjoint(reading):
                    self._unread.difference_update(reading)
                    self._withhold()
                caught_up.set()
        return self._seen.lost

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
        """Reads topic ids, end offsets and leader epochs every second, to detect lost records."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self._clients.close_idle()
            try:
                await self.look_at_changes()  # first: the ends of a topic made again look as if it had been truncated
                await self.read_ends()
                # Only then: a Kafka that comes back is one whose partitions have no leader yet, and to abort what a
                # transaction has left open on them would end what it is about to commit.
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

    async def look_at_changes(self) -> None:
        """Passes the id of the change topic to the core; makes the topic where it is gone."""
        config, brokers = self._clients.config, self._clients.brokers
        topic = config.topics.changes
        state = await state_of(brokers, topic, partial(ensure_change_topic, brokers, config))
        if self._core.topic_is(state.topic_id):
            log.error("%s was deleted and made again: all of its segments are reset", topic)
        self._unwritable = state.unwritable
        self._withhold()

    def begin(self) -> None:
        """Call it once before anything is written."""
        self._clients.session.begin(self._offsets)

    async def look_at_positions(self) -> None:
        """Notices a positions topic that was made again; makes it where it is gone."""
        if await self._positions.is_another():
            self._seen.lost = f"{self._clients.config.topics.positions} was deleted and made again"
        self._away = await self._still_away()
        self._withhold()
        recovered = self._left_open - self._told - self._away
        if recovered and not self._core.closed and (self._aborting is None or self._aborting.done()):
            # Beside the looks: it waits for a transaction under way, and that perhaps for a look that gives it up.
            self._aborting = self._tasks.spawn(self._abort(recovered))

    async def _still_away(self) -> frozenset[int]:
        """Partitions of the positions topic that are away, or are back and end before what was read.

        The log of a leader that has just been elected may seem shorter than it is, but not for long.
        """
        topic, unwritable = self._clients.config.topics.positions, self._positions.unwritable
        if not (back := self._away - unwritable):
            return unwritable
        ends = await self._clients.brokers.ends(topic, sorted(back))
        short = {end.partition for end in ends if end.offset < self._seen.read.get(end.partition, 0)}
        self._short_looks = self._short_looks + 1 if short else 0
        if self._short_looks > SHORT_LOOKS:
            self._seen.lost = f"partitions {sorted(short)} of {topic} end before what was read"
        return unwritable | short

    async def _abort(self, recovered: Collection[int]) -> None:
        """Ends what a transaction of this node may have left open on partitions that take records again."""
        goes_on = await self._clients.session.abort(self._clients.places, recovered)
        self._withhold()
        if goes_on:
            for partition in self._left_open.intersection(recovered):  # perhaps one of another node hides it
                self._core.waited_in_vain(partition)
        else:
            self._core.session_lost()
        self._context.wake()

    def _withhold(self) -> None:
        """Has the core leave out the partitions to which nothing can be written, and those whose claims are not known.

        A transaction that has records for one of them since the last look holds up all others: it is given up.
        """
        core, topics, session = self._core, self._clients.config.topics, self._clients.session
        if core.touches_withheld:
            self._clients.give_up()
        before, unwritable, withheld = self._told, self._positions.unwritable, core.withheld
        self._told = session.unwritable = self._unwritable | unwritable
        session.settled(self._settled())
        self._left_open = session.left_open_on(before | self._told | self._left_open)
        # Also one that may end before what was read: what is written there would hide that.
        core.withheld = self._told.union(self._unread, self._left_open, self._away)
        for topic, those in ((topics.changes, self._unwritable - before), (topics.positions, unwritable - before)):
            if those:
                log.warning("partitions %s of %s take no records: their segments wait", sorted(those), topic)
        if before - self._told:
            log.info("partitions %s take records", sorted(before - self._told))
        if withheld - core.withheld:
            self._context.wake()

    def _settled(self) -> set[int]:
        """The partitions of which all segments of this node are written, behind what was read there since the start."""
        primaries = list(self._core.primaries())
        unsettled = {s.partition for s in primaries if s.phase is not Phase.WRITING}
        return {s.partition for s in primaries} - unsettled

    async def read_ends(self) -> None:
        """Passes the end offsets to the core. Raises `KafkaUnavailable`."""
        topic, brokers = self._clients.config.topics.changes, self._clients.brokers
        writable = [p for p in range(self._core.settings.partitions) if p not in self._unwritable]
        stable = {end.partition: end.offset for end in await brokers.ends(topic, writable)}
        for end in await brokers.ends(topic, writable, False):
            offset, epoch = self._core.end_of(end.partition)
            intact: bool | None = None
            if self._core.doubts(end.partition, end.offset, end.leader_epoch):
                intact = await brokers.still_holds(topic, PartitionEnd(end.partition, offset, epoch))
            lost = self._core.end_read(end.partition, end.offset, end.leader_epoch, intact, stable[end.partition])
            if lost:
                log.error("%s[%d] was truncated to %d: segments %s are reset", topic, end.partition, end.offset, lost)


def _latest(records: Sequence[InRecord]) -> Iterable[InRecord]:
    """Without positions that others follow, as after compaction: a start has hours of them to read.

    All claims stay: one that was released may be of another cache.
    """
    latest: list[InRecord] = []
    passed: set[tuple[int, bytes]] = set()
    for record in reversed(records):
        if record.key is not None and record.key.startswith(POSITION_KEYS):
            if (record.partition, record.key) in passed:
                continue
            passed.add((record.partition, record.key))
        latest.append(record)
    return reversed(latest)
