"""What a case of the contract suite needs besides the port: topics, other clients, things that happen to brokers."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, ClassVar, Protocol

from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka_port import (
    BEGINNING,
    REQUEST_SECONDS,
    Brokers,
    InRecord,
    KafkaPort,
    Notes,
    Reader,
    Session,
    WriteFailed,
)
from deelog_schemas.config import Config, parse

ID = "x"
"""The end of the transactional id of a session, unless the case says more."""
MAX_MESSAGE_BYTES = 1_000_000
SECONDS = 60.0
"""How long a case waits for what must happen: a busy machine is slow."""
IN_TIME = 8.0
"""How much longer than its bound a call may take: a busy machine is slow."""
UNRESOLVED = {"producer.override.sasl.password": "${env:DEELOG_NOT_SET}"}
"""Of a configuration whose secrets cannot be read now."""


class Stranger(Protocol):
    """A transactional producer that is not the port's. Its calls block."""

    def write(self, topic: str, partition: int, value: bytes) -> None:
        """Begins a transaction unless one is open. Returns once the brokers have the record."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class World(ABC):
    """One implementation of the port, and its Kafka. Closes what was made by it at the end of the case.

    `lacks` says why it cannot do what a case `needs`: one of the methods, or `threads` beside the loop's.
    """

    lacks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._made = AsyncExitStack()
        self._topics = 0
        self.port = self.another_port()

    @abstractmethod
    def another_port(self, seconds: float = REQUEST_SECONDS) -> KafkaPort:
        """Another node's."""

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """For `bootstrap.servers`."""

    @abstractmethod
    async def topic(self, partitions: int = 1, **settings: str) -> str:
        """A new topic. `settings` have `_` for `.`."""

    @abstractmethod
    async def delete_topic(self, topic: str) -> None:
        """Returns once it is gone."""

    @abstractmethod
    async def recreate_topic(self, topic: str, partitions: int = 1) -> None:
        """Deletes the topic, and makes another one of its name."""

    @abstractmethod
    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """The log starts at this offset then."""

    @abstractmethod
    def produce(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """A record outside of any transaction, as others may write it."""

    @abstractmethod
    def stranger(self, transactional_id: str) -> Stranger:
        """Opens a session with this id, which fences others of it. May be called while an iterable is consumed."""

    def begun(self, topic: str) -> None:  # noqa: B027
        """Returns once the brokers have a record of an open transaction, if that can be waited for in an iterable."""

    @abstractmethod
    def expire(self, topic: str) -> None:
        """Returns once the first transaction of this topic has timed out. For an iterable that is consumed."""

    @abstractmethod
    async def settled(self, topic: str) -> None:
        """Returns once no transaction is open on this topic.

        A commit has returned before the ends of its partitions move: readers may see it a moment later.
        """

    @abstractmethod
    def wait(self, event: threading.Event) -> None:
        """Holds up an iterable, if such a thing can be, until the case sets the event."""

    @abstractmethod
    def away(self) -> AbstractAsyncContextManager[None]:
        """No broker answers within this block; then they do again."""

    @abstractmethod
    def lose_answer(self) -> Callable[[], bool]:
        """The brokers carry out the next end of a transaction, and their answer to it is lost.

        Returns what tells whether that has happened.
        """

    @abstractmethod
    def lose_clients(self) -> None:
        """The clients of the port that are connected now write and read no records any more."""

    @abstractmethod
    async def unclean_election(self, topic: str, partition: int, end: int) -> None:
        """A replica that has the log up to `end` becomes the leader, in a new leader epoch."""

    @abstractmethod
    async def lone_topic(self, replicated: bool = False, partition: int = 0) -> str:
        """A new topic whose last partition is on a broker of its own; or also on one that stays, and needs both.

        `partition` is the number of that one.
        """

    @abstractmethod
    def lose_broker(self) -> AbstractAsyncContextManager[None]:
        """The broker of lone topics is away within this block, and all others know it."""

    @abstractmethod
    def lose_sight(self, held: bool = False) -> AbstractContextManager[None]:
        """The clients of the port do not reach the broker of lone topics within this block; all others do.

        `held`: what they send is not delivered; else they are refused.
        """

    @abstractmethod
    def run(self, case: Coroutine[Any, Any, None]) -> None:
        """Runs `whole(case)` on a loop."""

    async def whole(self, case: Coroutine[Any, Any, None]) -> None:
        """The case; at its end what it made is closed."""
        async with self._made:
            self._made.push_async_callback(self.port.close)
            await case

    def config(self, **fields: object) -> Config:
        """`fields` have `_` for `.`."""
        given = {
            "name": "test",
            "connector.class": "deelog.CachetoolsConnector",
            "topic.prefix": self.prefix,
            "bootstrap.servers": self.bootstrap,
            "node.id": "n1",
            "cache.name": "c",
            "topic.creation.default.replication.factor": "1",
            "transaction.timeout.ms": "30000",
        }
        return parse({**given, **{name.replace("_", "."): str(value) for name, value in fields.items()}})

    def identity(self, end: str = ID) -> str:
        """A transactional id of this case's."""
        return f"{self.prefix}-{end}"

    async def node(self, seconds: float = REQUEST_SECONDS) -> KafkaPort:
        """`another_port`, closed at the end of the case."""
        made = self.another_port(seconds)
        self._made.push_async_callback(made.close)
        return made

    async def session(
        self, end: str = ID, port: KafkaPort | None = None, size: int = MAX_MESSAGE_BYTES, **fields: object
    ) -> Session:
        """A session that is open."""
        made = await (port or self.port).session(self.config(**fields), self.identity(end), lambda: size)
        self._made.push_async_callback(made.discard)
        await opened(made)
        return made

    async def reader(
        self, topic: str, offsets: Mapping[int, int] | None = None, port: KafkaPort | None = None
    ) -> Reader:
        """A reader, by default of partition 0 from its beginning."""
        made = await (port or self.port).reader(self.config(), topic)
        self._made.push_async_callback(made.close)
        await sought(made, {0: BEGINNING} if offsets is None else offsets)
        return made

    async def content(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values that a reader finds now that all transactions have ended."""
        await self.settled(topic)
        return [found.value for found in await read_up(await self.reader(topic, {partition: BEGINNING}))]

    def brokers(self, port: KafkaPort | None = None) -> Brokers:
        made = (port or self.port).brokers(self.config())
        self._made.push_async_callback(made.close)
        return made

    def notes(self, port: KafkaPort | None = None) -> Notes:
        made = (port or self.port).notes(self.config())
        self._made.push_async_callback(made.close)
        return made


async def eventually(condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = SECONDS) -> None:
    """`tests.support.waiting.awaiting` by the clock of the loop, which may be a virtual one."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        if loop.time() > until:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(0.01)


async def answered(call: Callable[[], Awaitable[object]], error: type[Exception]) -> None:
    """Calls until there is no error: a busy machine's broker may not answer in the time of a short request."""

    async def done() -> bool:
        try:
            await call()
        except error:
            return False
        return True

    await eventually(done, "an answer")


async def opened(session: Session) -> None:
    await answered(session.open, WriteFailed)


async def sought(reader: Reader, offsets: Mapping[int, int]) -> None:
    await answered(lambda: reader.seek(offsets), KafkaUnavailable)


async def read(reader: Reader, count: int) -> list[InRecord]:
    """This many records, or a few more."""
    found: list[InRecord] = []

    async def enough() -> bool:
        found.extend(await reader.read(0.1))
        return len(found) >= count

    await eventually(enough, f"{count} records")
    return found


async def read_up(reader: Reader) -> list[InRecord]:
    """What is there until the reader has caught up."""
    found: list[InRecord] = []

    async def done() -> bool:
        if not reader.caught_up:
            found.extend(await reader.read(0.1))
        return reader.caught_up

    await eventually(done, "the end of the partitions")
    return found
