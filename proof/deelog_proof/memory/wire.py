"""What the clients of one node in memory have in common: its way to the brokers, and its calls under way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import HELD_UP_SECONDS, OutRecord, WriteFailed
from deelog_proof.memory.broker import BrokerError, Denied, Failed, HeldUp, Kafka, Unanswered
from deelog_proof.memory.log import Log
from deelog_proof.memory.loop import NodeLoop
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.acls import missing_acl
from deelog_schemas.kafka.names import abort_key

T = TypeVar("T")

RETRY_SECONDS: Final = 0.1
"""Between two attempts of a request, as librdkafka's `retry.backoff.ms`."""


def _unheard(task: asyncio.Task[Any]) -> None:
    """The error of a call that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


class Turn(asyncio.Lock):
    """The calls of one object: one begins when those before it have ended."""

    calls = 0


@dataclass(slots=True)
class Way:
    """What the clients of one port share."""

    seconds: float
    """How long one request may take."""
    moment: Callable[[str], None]
    connected: bool = True
    """Whether it reaches the brokers."""
    deaf: set[str] = field(default_factory=set)
    """Topics of which nothing is heard."""
    unreached: set[tuple[str, int]] = field(default_factory=set)
    """Partitions whose leader is not reached, though other clients reach it."""
    skew: float = 0.0
    """The error of the wall clock, in seconds."""
    under_way: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    waiting: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    """Calls that `close` cancels: those of sessions whose turn has not come."""
    closed: bool = False


class Wire:
    """One client's way to the brokers. Its chance is that of its name, so that clients do not change one another's."""

    def __init__(self, loop: NodeLoop, kafka: Kafka, name: str, way: Way) -> None:
        self.loop, self.kafka, self.way = loop, kafka, way
        self.random = loop.engine.stream(name)
        self._name = name

    @property
    def stamp(self) -> float:
        """The time of a record that is made now: the brokers', with the error of this node's clock."""
        return self.kafka.engine.now + self.way.skew

    def of(self, client: str) -> Wire:
        """The wire of another client of the port."""
        return Wire(self.loop, self.kafka, f"{self._name} {client}", self.way)

    def delay(self) -> float:
        """How long something takes, in seconds."""
        return self.random.expovariate(1600.0) + 0.00025

    async def run(
        self, turn: Turn | None, call: Callable[..., Awaitable[T]], *args: Any, of_session: bool = False
    ) -> T:
        """Runs a call to its end, when its turn comes. One that is cancelled before it has begun does not begin."""
        if self.way.closed:
            raise RuntimeError("the port is closed")
        turn = turn or Turn()
        begun = not turn.calls
        turn.calls += 1

        async def called() -> T:
            nonlocal begun
            async with turn:
                begun = True
                self.way.waiting.pop(task, None)
                return await call(*args)

        def ended(_: asyncio.Task[T]) -> None:
            turn.calls -= 1
            del self.way.under_way[task]

        task = self.loop.create_task(called())
        self.way.under_way[task] = None
        if of_session and not begun:
            self.way.waiting[task] = None
        task.add_done_callback(ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_unheard)
            if not begun:
                self.way.waiting.pop(task, None)
                task.cancel()
            raise

    async def close(self) -> None:
        self.way.closed = True
        for task in list(self.way.waiting):
            task.cancel()
        if self.way.under_way:
            await asyncio.wait(list(self.way.under_way))

    async def ask(self, call: Callable[..., T], *args: Any, until: float | None = None) -> T:
        """What the brokers answer to `call`. Raises `Unanswered` where they do not by then, and what `call` raises."""
        until = self.loop.time() + self.way.seconds if until is None else until
        while True:
            answer: asyncio.Future[T] = self.loop.create_future()
            self.loop.engine.after(self.delay(), self._arrive, answer, partial(call, *args))
            try:
                return await answer
            except Unanswered:
                if self.loop.time() >= until:
                    raise
            await asyncio.sleep(min(RETRY_SECONDS, max(0.0, until - self.loop.time())))

    @property
    def answers(self) -> bool:
        """Whether any broker answers."""
        return self.way.connected and self.kafka.up

    def led(self, topic: str, partition: int) -> Log:
        """The log of a partition, from its leader. Raises `Unanswered`, and what `Kafka.led` raises."""
        if (topic, partition) in self.way.unreached:
            raise Unanswered
        return self.kafka.led(topic, partition)

    def held_up_until(self, late: float, call: Callable[..., T], *args: Any) -> T:
        """What `call` returns. Raises `Failed` where it is still held up by then."""
        try:
            return call(*args)
        except HeldUp:
            if self.loop.time() < late:
                raise
            raise Failed(Cause.LOST) from None

    def _arrive(self, answer: asyncio.Future[T], call: Callable[[], T]) -> None:
        try:
            if not self.way.connected:
                raise Unanswered
            result = call()
        except BrokerError as error:
            self.loop.call_later(self.delay(), _fail, answer, error)
        else:
            self.loop.call_later(self.delay(), self._answer, answer, result)

    def _answer(self, answer: asyncio.Future[T], result: T) -> None:
        if not answer.done():
            if self.way.connected and self.kafka.up:
                answer.set_result(result)
            else:
                answer.set_exception(Unanswered())  # the connection broke on the way back


def _fail(answer: asyncio.Future[T], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


class _Refusal(NamedTuple):
    """An error as the client has it."""

    code: str

    def name(self) -> str:
        return self.code


def denial(error: Denied, client: str) -> str:
    """The sentence that the user reads."""
    refusal = _Refusal(f"{error.kind.upper()}_AUTHORIZATION_FAILED")
    return missing_acl(refusal, client, **{error.kind: (error.operation, error.name)}) or str(error)


async def abort_on(
    wire: Wire, transactional_id: str, session: int, number: int, left_open: Iterable[tuple[str, int]]
) -> None:
    """As `deelog_connector.kafka.client.abort_on`. Raises `BrokerError`."""
    key = abort_key(transactional_id)
    records = [OutRecord(topic, partition, key, b"", []) for topic, partition in left_open]
    if await wire.ask(wire.kafka.produce, transactional_id, session, number, records, math.nan, wire.way.unreached):
        raise Unanswered("a partition takes no records")
    await wire.ask(wire.kafka.abort, transactional_id, session)


async def open_session(wire: Wire, config: Config, transactional_id: str, by: str) -> int:
    """A new session of the transactional id. Raises `WriteFailed(LOST)`."""
    try:
        config.overrides("producer")
    except ConfigError as error:
        raise WriteFailed(Cause.LOST, str(error), denied=True) from error
    timeout = config["transaction.timeout.ms"] / 1000
    late = wire.loop.time() + HELD_UP_SECONDS
    try:
        return await wire.ask(wire.held_up_until, late, wire.kafka.open_session, transactional_id, by, timeout)
    except Failed as error:
        raise WriteFailed(Cause.LOST, "the last transaction does not end", held_up=True) from error
    except Unanswered as error:
        raise WriteFailed(Cause.LOST, "the brokers do not answer", uncoordinated=wire.answers) from error
    except Denied as error:
        raise WriteFailed(Cause.LOST, denial(error, "producer"), denied=True) from error
