"""The Kafka clients of one configuration."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from deelog_connector.core.effects import Producer
from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import KafkaPort, Reader
from deelog_connector.runtime.producers import Places, Producers
from deelog_connector.runtime.topics import ensure_topics, look_at_topics
from deelog_connector.topic_audit import TopicAudit
from deelog_schemas.config import Config, ConfigError

log = logging.getLogger(__name__)

SCANS: Final = 4
"""The most scans at the same time."""
ENDING_SECONDS: Final = 1.0
"""Seconds after which a transaction that was aborted, and is open still, counts as open. Markers take milliseconds."""
ENDING_POLL_SECONDS: Final = 0.05

T = TypeVar("T")


@contextmanager
def moving_log() -> Iterator[None]:
    """A log that is made again, truncated or shortened while it is read is no error of a topic: it is sought again."""
    try:
        yield
    except KafkaUnavailable:
        raise
    except KafkaUnusable as error:
        raise KafkaUnavailable(str(error)) from error


class Clients:
    """The clients of one node, made by `config`.

    Call `open` before anything else, `close` at the end.
    """

    def __init__(self, config: Config, node_id: str, port: KafkaPort) -> None:
        self.config = config
        self.brokers = port.brokers(config)
        self.audit = TopicAudit(self._look, config)
        self.max_message_bytes: int | None = None
        """Of the change topic, as it was seen last."""
        self._opened_for = 0
        """What it was when a session was opened last."""
        self._notes = port.notes(config)
        self._node_id, self._port = node_id, port
        self._session: Producers | None = None
        self._free = asyncio.Semaphore(SCANS)
        self._idle: list[Reader] = []
        """Readers between two scans."""

    async def open(self) -> None:
        """Creates and audits the topics, and makes the clients. Raises `KafkaUnusable`, `ConfigError`."""
        self.max_message_bytes, findings = await ensure_topics(self.brokers, self.config)
        self.audit.begin(findings)
        ids = (self.transactional_id(Producer(self._node_id, spare)) for spare in (False, True))
        first, second = [await self._port.session(self.config, name, self._largest) for name in ids]
        self._session = Producers(first, second, self._fence, self._hidden)
        self._idle.append(await self._port.reader(self.config, self.config.topics.changes))

    def _largest(self) -> int:
        assert self.max_message_bytes is not None
        self._opened_for = self.max_message_bytes
        return self._opened_for

    async def batches_are_too_large(self) -> bool:
        """Whether the change topic takes less in one message than when the session was opened; False if unknown.

        Then it refuses small records as well, since they come many in one.
        """
        try:
            await self._look()
        except (KafkaUnusable, ConfigError) as error:
            log.warning("%s", error)
        return self.max_message_bytes is not None and self.max_message_bytes < self._opened_for

    async def _look(self) -> list[str]:
        self.max_message_bytes, findings = await look_at_topics(self.brokers, self.config)
        return findings

    async def _fence(self, spare: bool, left_open: Places) -> None:
        await self.fence(Producer(self._node_id, spare), left_open)

    async def _hidden(self, places: Places) -> set[int]:
        """The partitions of these places on which a transaction that is open now does not end in time."""
        clock = self._port.clock
        until = clock.monotonic() + ENDING_SECONDS
        try:
            left = await self._ends(places, committed=False)
            while True:
                stable = await self._ends(left, committed=True)
                left = {place: end for place, end in left.items() if stable[place] < end}
                if not left or clock.monotonic() > until:
                    return {partition for _, partition in left}
                await asyncio.sleep(ENDING_POLL_SECONDS)
        except (KafkaUnusable, ConfigError) as error:
            log.warning("%s", error)
            return {partition for _, partition in places}

    async def _ends(self, places: Iterable[tuple[str, int]], committed: bool) -> dict[tuple[str, int], int]:
        by_topic = defaultdict[str, list[int]](list)
        for topic, partition in places:
            by_topic[topic].append(partition)
        found = [(t, await self.brokers.ends(t, partitions, committed)) for t, partitions in by_topic.items()]
        return {(topic, end.partition): end.offset for topic, ends in found for end in ends}

    def transactional_id(self, producer: Producer) -> str:
        """The id of a node's producer."""
        topics = self.config.topics
        name = topics.transactional_id_spare if producer.spare else topics.transactional_id_node
        return name(producer.node_id)

    def places(self, partition: int) -> Places:
        """This partition of both topics."""
        return [(self.config.topics.changes, partition), (self.config.topics.positions, partition)]

    async def fence(self, producer: Producer, left_open: Places = ()) -> None:
        """As `kafka_port.Brokers.fence`."""
        await self.brokers.fence(self.transactional_id(producer), left_open)

    async def end_hanging(self, producer: Producer, partition: int) -> bool:
        """Aborts what a producer has left open on this partition. Returns whether this node's session goes on.

        Another node's producer is fenced by that. Raises `WriteFailed`, `ConfigError`.
        """
        if producer.node_id == self._node_id:
            return await self.session.end_hanging(producer.spare, self.places, partition)
        await self.fence(producer, self.places(partition))
        return True

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
        """Calls it with a reader of the change topic, once few others run.

        Raises `KafkaUnavailable` where the log has moved under the reader.
        """
        async with self._free:
            topic = self.config.topics.changes
            reader = self._idle.pop() if self._idle else await self._port.reader(self.config, topic)
            try:
                with moving_log():
                    result = await scan(reader)
                await reader.seek({})
            except BaseException:
                await asyncio.shield(reader.close())
                raise
            self._idle.append(reader)
            return result

    async def close_idle(self) -> None:
        """Closes readers of earlier scans but one, which waits for the next: each has five threads, and connections."""
        while len(self._idle) > 1:
            await asyncio.shield(self._idle.pop().close())

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
