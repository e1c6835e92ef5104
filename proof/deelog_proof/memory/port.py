"""The port to Kafka of one node, over `broker.Kafka`. See `deelog_connector.kafka_port` for what each call does.

A request takes time on its way and arrives at the brokers, whatever has become of its node; its answer takes time too.
A request that nobody answers is sent again until its time is over. A call is a task of its own: it goes on when its
caller is cancelled.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.notes import CLOSE_SECONDS, PATIENCE_MS, QUEUE
from deelog_connector.kafka_port import (
    MAX_READ,
    REQUEST_SECONDS,
    InRecord,
    OutRecord,
    PartitionEnd,
    TopicState,
    WriteFailed,
)
from deelog_proof.memory.broker import (
    DEFAULTS,
    BrokerError,
    Denied,
    Failed,
    Fetched,
    InvalidSetting,
    InvalidTimestamp,
    Kafka,
    OutOfRange,
    Topic,
    Unanswered,
    UnknownTopic,
    size_of,
)
from deelog_proof.memory.election import Election
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.wire import RETRY_SECONDS, Turn, Way, Wire, abort_on, denial, open_session
from deelog_schemas.config import Config, ConfigError
from deelog_schemas.kafka.progress import STALL_SECONDS

T = TypeVar("T")

LINGER_SECONDS: Final = 0.02
MAX_NOTE_BYTES: Final = 1_000_000
"""librdkafka's `message.max.bytes`, by default."""
START_NS: Final = 1_700_000_000_000_000_000
"""What the clocks of all nodes show at the beginning."""


class SimulatedClock:
    """The engine's time, and a wall clock with the error of its node's."""

    def __init__(self, loop: NodeLoop, way: Way) -> None:
        self._loop, self._way = loop, way

    def monotonic(self) -> float:
        return self._loop.time()

    def time_ns(self) -> int:
        return START_NS + int((self._loop.time() + self._way.skew) * 1e9)


class MemoryPort:
    """See `kafka_port.KafkaPort`. `seconds` is how long one request may take.

    Its chance is that of its name, by default the loop's. `moment` is called where a transaction is `appended` and not
    committed, and where it is `committed` and nobody knows it yet.
    """

    def __init__(
        self,
        loop: NodeLoop,
        kafka: Kafka,
        seconds: float = REQUEST_SECONDS,
        name: str = "",
        moment: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.way = Way(seconds, moment)
        self._wire = Wire(loop, kafka, f"port {name or loop.name}", self.way)
        self.clock = SimulatedClock(loop, self.way)
        self.random = self._wire.random

    async def session(self, config: Config, transactional_id: str, max_message_bytes: Callable[[], int]) -> Session:
        return Session(self._wire.of(transactional_id), config, transactional_id, max_message_bytes)

    async def reader(self, config: Config, topic: str) -> Reader:
        config.overrides("consumer")
        return Reader(self._wire.of(topic), topic)

    def brokers(self, config: Config) -> Brokers:
        return Brokers(self._wire.of("brokers"), config)

    def notes(self, config: Config) -> Notes:
        return Notes(self._wire.of("notes"), config)

    def election(
        self,
        config: Config,
        client_id: str,
        on_elected: Callable[[bool], None],
        on_refused: Callable[[Exception], None],
    ) -> Election:
        return Election(self._wire.of("election"), config, client_id, on_elected, on_refused, self.new_id)

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._wire.of("ids").random.getrandbits(128), version=4))

    async def work(self, call: Callable[..., T], *args: object) -> T:
        return await self._wire.run(None, self._work, call, args)

    async def _work(self, call: Callable[..., T], args: tuple[object, ...]) -> T:
        await asyncio.sleep(self._wire.delay())
        return self._wire.loop.outside(partial(call, *args))

    async def close(self) -> None:
        await self._wire.close()


class Session:
    """See `kafka_port.Session`."""

    def __init__(self, wire: Wire, config: Config, transactional_id: str, max_message_bytes: Callable[[], int]) -> None:
        self._wire, self._config = wire, config
        self._transactional_id, self._max_message_bytes = transactional_id, max_message_bytes
        self._turn = Turn()
        self._session: int | None = None
        self._number = self._largest = 0
        self._hurries = False
        config.overrides("producer")

    async def open(self) -> None:
        await self._wire.run(self._turn, self._ended, self._open, of_session=True)

    async def commit(self, records: Iterable[OutRecord]) -> None:
        await self._wire.run(self._turn, self._ended, self._commit, records, of_session=True)

    async def abort(self, left_open: Sequence[tuple[str, int]]) -> None:
        await self._wire.run(self._turn, self._ended, self._abort, left_open, of_session=True)

    async def discard(self) -> None:
        await self._wire.run(self._turn, self._discard, of_session=True)

    def give_up(self) -> None:
        self._hurries = True

    async def _ended(self, call: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await call(*args)
        finally:
            self._hurries = False

    async def _discard(self) -> None:
        self._session = None

    async def _open(self) -> None:
        self._session = None
        self._largest = self._max_message_bytes()
        self._session = await open_session(self._wire, self._config, self._transactional_id, self._transactional_id)

    async def _commit(self, records: Iterable[OutRecord]) -> None:
        session, self._session = self._session, None  # until it ends well
        if session is None:
            raise WriteFailed(Cause.LOST, "no session is open")
        try:
            await self._write(session, iter(records))
        except Failed as error:
            raise WriteFailed(error.cause, "simulated") from error
        except UnknownTopic as error:
            raise WriteFailed(Cause.LOST, f"{error} does not exist") from error
        except Denied as error:
            raise WriteFailed(Cause.LOST, denial(error, "producer"), denied=True) from error
        except InvalidTimestamp as error:
            raise WriteFailed(Cause.LOST, f"the clock is not the brokers': {error}", denied=True) from error
        self._session = session

    async def _abort(self, left_open: Sequence[tuple[str, int]]) -> None:
        session, self._session = self._session, None  # until it ends well
        if session is None:
            raise WriteFailed(Cause.LOST, "no session is open")
        self._number += 1
        try:
            await abort_on(self._wire, self._transactional_id, session, self._number, left_open)
        except Failed as error:
            raise WriteFailed(error.cause, "simulated") from error
        except BrokerError as error:
            raise WriteFailed(Cause.LOST, str(error) or "the brokers do not answer") from error
        self._session = session

    async def _write(self, session: int, records: Iterable[OutRecord]) -> None:
        kafka, empty = self._wire.kafka, True
        while left := self._next_of(records):
            if any(size_of(r) > self._largest for r in left):
                raise Failed(Cause.REFUSED)
            empty, late = False, self._wire.loop.time() + STALL_SECONDS
            produce = partial(self._wire.held_up_until, late, kafka.produce, self._transactional_id, session)
            sending = sum(map(size_of, left)) / kafka.bytes_per_second
            stamped = self._wire.stamp
            while left:
                self._number += 1
                unreached = self._wire.way.unreached
                left = await self._lasting(produce, self._number, left, stamped, unreached, self._largest)
                if left:  # their leaders are away
                    self._may_wait(late)
                    await asyncio.sleep(RETRY_SECONDS)
            if sending:
                await asyncio.sleep(sending)
                self._may_wait()
        if not empty:
            self._wire.way.moment("appended")
            await asyncio.sleep(0)  # a pause begins before the next turn
            await self._lasting(kafka.end_session, self._transactional_id, session)
            self._wire.way.moment("committed")

    def _next_of(self, records: Iterable[OutRecord]) -> list[OutRecord]:
        """The next part. More of them than one: other events happen in between, and a transaction stays open."""
        part = self._wire.random.choice((1, 10, 200, 2000))
        if self._wire.kafka.bytes_per_second < math.inf:
            part = 1  # so that it hears between two of them that its time is over
        return self._wire.loop.outside(lambda: list(islice(records, part)))

    async def _lasting(self, call: Callable[..., T], *args: Any) -> T:
        """Asks until there is an answer, or until somebody waits for the end: a request's time is over then."""
        while True:
            try:
                return await self._wire.ask(call, *args)
            except Unanswered:
                self._may_wait()
                if self._wire.answers:
                    raise WriteFailed(Cause.LOST, "the coordinator does not answer") from None

    def _may_wait(self, late: float = math.inf) -> None:
        if self._hurries or self._wire.loop.time() >= late:
            raise WriteFailed(Cause.LOST, "the brokers do not answer")


class Reader:
    """See `kafka_port.Reader`."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self._wire, self._topic = wire, topic
        self._turn = Turn()
        self._at: dict[int, int] = {}
        """What to fetch next: `_next`, or the offset after what is not returned: markers, and aborted records."""
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        """The leader epoch of the last record of each partition."""
        self._closed = False

    async def seek(self, offsets: Mapping[int, int]) -> None:
        await self._wire.run(self._turn, self._seek, dict(offsets))

    async def read(self, seconds: float) -> list[InRecord]:
        return await self._wire.run(self._turn, self._read, seconds)

    @property
    def caught_up(self) -> bool:
        return not self._ends

    def next_offset(self, partition: int) -> int:
        return self._next[partition]

    async def close(self) -> None:
        await self._wire.run(self._turn, self._close)

    async def _close(self) -> None:
        self._closed = True

    async def _seek(self, offsets: dict[int, int]) -> None:
        self._check()
        until = self._wire.loop.time() + self._wire.way.seconds
        ends, following = {}, {}
        for partition, offset in offsets.items():
            low, ends[partition] = await self._bounds(partition, until)
            following[partition] = offset if low <= offset <= ends[partition] else low
        self._ends, self._next, self._at = ends, following, dict(following)
        self._epochs = {}

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the reader is closed")

    async def _bounds(self, partition: int, until: float) -> tuple[int, int]:
        def look() -> tuple[int, int]:
            try:
                log = self._wire.led(self._topic, partition)
            except UnknownTopic as error:
                raise Unanswered from error  # it may be that not every broker has heard of it
            return log.first, log.stable

        try:
            return await self._wire.ask(look, until=until)
        except Unanswered as error:
            raise KafkaUnavailable(f"cannot read {self._topic}[{partition}]: no answer") from error
        except Denied as error:
            raise KafkaUnauthorized(denial(error, "consumer")) from error

    async def _read(self, seconds: float) -> list[InRecord]:
        self._check()
        # librdkafka's `consume` takes all of its time unless there are `MAX_READ` records; other orders are tried too.
        chance = self._wire.random
        await asyncio.sleep(seconds * chance.choice((1.0, chance.random())))
        return await self._fetched()

    async def _fetched(self) -> list[InRecord]:
        if self._topic in self._wire.way.deaf:
            return []
        try:
            found = await self._wire.ask(self._fetch, MAX_READ, until=self._wire.loop.time())
        except Unanswered:
            return []
        except OutOfRange as error:
            raise KafkaUnusable(f"cannot read on: {error} is gone") from error
        except Denied as error:
            raise KafkaUnauthorized(denial(error, "consumer")) from error
        for partition, fetched in found.items():
            self._at[partition], self._epochs[partition] = fetched.following, fetched.epoch
            if fetched.records:
                self._next[partition] = fetched.records[-1].offset + 1
            if fetched.at_end or fetched.following >= self._ends.get(partition, 0):
                self._ends.pop(partition, None)
        return [record for fetched in found.values() for record in fetched.records]

    def _fetch(self, limit: int) -> dict[int, Fetched]:
        """At the brokers: what there is of partitions that have a leader."""
        found: dict[int, Fetched] = {}
        partitions = list(self._at)
        self._wire.random.shuffle(partitions)
        for partition in partitions:
            at, epoch = self._at[partition], self._epochs.get(partition, -1)
            try:
                self._wire.led(self._topic, partition)
                found[partition] = self._wire.kafka.fetch(self._topic, partition, at, epoch, limit)
            except (Unanswered, UnknownTopic):
                continue  # a topic that is gone is waited for, as one that nobody leads
            limit -= len(found[partition].records)
        return found


class Brokers:
    """See `kafka_port.Brokers`."""

    def __init__(self, wire: Wire, config: Config) -> None:
        self._wire, self._config = wire, config
        self._known_silent: dict[str, set[int]] = {}

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        await self._wire.run(None, self._ensure, topic, partitions, settings)

    async def settings(self, topic: str) -> Mapping[str, str]:
        return {**DEFAULTS, **(await self._wire.run(None, self._described, topic)).settings}

    async def state(self, topic: str) -> TopicState:
        return await self._wire.run(None, self._state, topic)

    async def ends(self, topic: str, partitions: Iterable[int], committed: bool = True) -> list[PartitionEnd]:
        return await self._wire.run(None, self._ends, topic, list(partitions), committed)

    async def still_holds(self, topic: str, end: PartitionEnd) -> bool:
        return await self._wire.run(None, self._still_holds, topic, end)

    async def members(self, group: str) -> frozenset[str]:
        return await self._wire.run(None, self._members, group)

    async def hanging(self, topic: str, partition: int) -> InRecord | None:
        return await self._wire.run(None, self._hanging, topic, partition)

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        await self._wire.run(None, self._publish, OutRecord(topic, 0, key.encode(), value, []))

    async def fence(self, transactional_id: str, left_open: Sequence[tuple[str, int]] = ()) -> None:
        await self._wire.run(None, self._fence, transactional_id, left_open)

    async def close(self) -> None:
        await self._wire.run(None, self._nothing)

    async def _nothing(self) -> None:
        pass

    async def _asked(self, client: str, what: str, call: Callable[..., T], *args: Any) -> T:
        self._config.overrides(client)
        try:
            return await self._wire.of(what).ask(call, *args)  # a request has a chance of its own, as a client has
        except Unanswered as error:
            raise KafkaUnavailable(f"{what}: the brokers did not answer in time") from error
        except UnknownTopic as error:
            raise KafkaUnavailable(f"{what}: {error} does not exist") from error
        except Failed as error:
            raise KafkaUnavailable(f"{what}: {error}") from error
        except Denied as error:
            raise KafkaUnauthorized(f"{what}: {denial(error, client)}") from error

    async def _ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        kafka = self._wire.kafka

        def look() -> int:
            try:
                return kafka.described(topic).partitions
            except UnknownTopic:
                kafka.allow("Create", "topic", topic)
                kafka.create(topic, partitions or 1, settings)
                return partitions or 1

        try:
            count = await self._asked("admin", f"topic {topic}", look)
        except KafkaUnauthorized as error:
            if ("Create", topic) not in kafka.denied:
                raise
            raise KafkaUnusable(f"topic {topic} does not exist and cannot be created: {error}") from error
        except InvalidSetting as error:
            raise KafkaUnusable(f"topic {topic} does not exist and cannot be created: {error}") from error
        if partitions is not None and count != partitions:
            raise KafkaUnusable(f"topic {topic} has {count} partitions, and must have {partitions}")

    async def _described(self, topic: str) -> Topic:
        return await self._asked("admin", f"topic {topic}", self._wire.kafka.described, topic)

    async def _state(self, topic: str) -> TopicState:
        def look() -> tuple[TopicState, set[int], bool]:
            """With the partitions whose leader does not answer, and whether one of the others does."""
            described, unwritable = self._wire.kafka.described(topic), self._wire.kafka.unwritable(topic)
            unanswered = {p for p in range(described.partitions) if not self._answers(topic, p)}
            known = TopicState(described.id, unwritable)
            return known, unanswered - unwritable, len(unanswered) < described.partitions

        state, silent, answers = await self._asked("admin", f"topic {topic}", look)
        known = silent <= self._known_silent.get(topic, set())
        late = self._wire.loop.time() + STALL_SECONDS + (0.0 if known else self._wire.way.seconds)
        while silent and self._wire.loop.time() < late:
            await asyncio.sleep(RETRY_SECONDS)
            state, silent, answers = await self._asked("admin", f"topic {topic}", look)
        if silent and not answers:
            raise KafkaUnavailable(f"topic {topic}: the leaders of its partitions did not answer in time")
        self._known_silent[topic] = silent
        return state._replace(unwritable=state.unwritable | silent)

    def _answers(self, topic: str, partition: int) -> bool:
        try:
            self._wire.led(topic, partition)
        except Unanswered:
            return False
        return True

    async def _ends(self, topic: str, partitions: list[int], committed: bool) -> list[PartitionEnd]:
        def look() -> list[PartitionEnd]:
            logs = [self._wire.led(topic, p) for p in partitions]
            return [PartitionEnd(log.partition, log.stable if committed else log.end, log.epoch) for log in logs]

        return await self._asked("admin", f"no end of {topic}", look)

    async def _members(self, group: str) -> frozenset[str]:
        what = f"cannot read the members of group {group}"
        return await self._asked("admin", what, lambda: self._wire.kafka.group(group).clients)

    async def _still_holds(self, topic: str, end: PartitionEnd) -> bool:
        def look() -> bool:
            log = self._wire.led(topic, end.partition)
            self._wire.kafka.allow("Read", "topic", topic)
            return log.first <= end.offset and log.holds(end.offset, end.leader_epoch)

        return await self._asked("consumer", f"no answer about {topic}[{end.partition}]@{end.offset}", look)

    async def _hanging(self, topic: str, partition: int) -> InRecord | None:
        def look() -> InRecord | None:
            self._wire.kafka.allow("Read", "topic", topic)
            return self._wire.led(topic, partition).hanging

        return await self._asked("consumer", f"no answer about {topic}[{partition}]", look)

    async def _publish(self, record: OutRecord) -> None:
        written = False

        def write() -> None:
            nonlocal written
            if not written:  # or its answer was lost
                self._wire.kafka.write(record)
                written = True

        await self._asked("producer", f"topic {record.topic}: {record.key.decode()} cannot be written", write)

    async def _fence(self, transactional_id: str, left_open: Sequence[tuple[str, int]]) -> None:
        by = f"{self._wire.loop.name} fences"
        try:
            session = await open_session(self._wire, self._config, transactional_id, by)
        except WriteFailed as error:
            why = f"fencing {transactional_id}: {error.reason}"
            raise WriteFailed(error.cause, why, denied=error.denied, held_up=error.held_up) from error
        if left_open:
            try:
                await abort_on(self._wire, transactional_id, session, 1, left_open)
            except BrokerError as error:
                raise WriteFailed(Cause.LOST, f"fencing {transactional_id}: {error}") from error


class Notes:
    """See `kafka_port.Notes`."""

    def __init__(self, wire: Wire, config: Config) -> None:
        self._wire, self._config = wire, config
        self._queue: dict[int, tuple[float, OutRecord]] = {}
        """By number, with the time at which it is dropped."""
        self._sent = 0
        self._written: set[int] = set()
        """What the brokers remember of this producer: it writes each record once."""
        self._sending: asyncio.Task[None] | None = None
        self.dropped = 0

    def send(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        record = OutRecord(topic, -1 if partition is None else partition, key, value, [])
        try:
            self._config.overrides("producer")
        except ConfigError:
            self.dropped += 1
            return
        if len(self._queue) >= QUEUE or size_of(record) > MAX_NOTE_BYTES:
            self.dropped += 1
            return
        self._sent += 1
        self._queue[self._sent] = self._wire.loop.time() + PATIENCE_MS / 1000, record
        if self._sending is None:
            self._sending = self._wire.loop.create_task(self._send())

    async def _send(self) -> None:
        while self._queue:
            await asyncio.sleep(LINGER_SECONDS)
            batch = dict(self._queue)
            try:
                until = self._wire.loop.time()
                taken = await self._wire.ask(self._append, batch, until=until)
            except Unanswered:
                taken = dict[int, bool]()
            for number, written in taken.items():
                self._written.discard(number)
                if number in self._queue:
                    del self._queue[number]
                    self.dropped += not written
            for number, (end, _) in batch.items():
                if number in self._queue and end <= self._wire.loop.time():
                    del self._queue[number]
                    self.dropped += 1
            if not taken:
                await asyncio.sleep(RETRY_SECONDS)
        self._sending = None

    def _append(self, batch: Mapping[int, tuple[float, OutRecord]]) -> dict[int, bool]:
        """At the brokers. Returns whether each record was written, of those whose fate is known."""
        kafka, known = self._wire.kafka, dict[int, bool]()
        for number, (_, record) in batch.items():
            if number in self._written:
                known[number] = True
                continue
            try:
                if record.partition < 0:
                    partition = murmur2(record.key) % kafka.described(record.topic).partitions
                    record = record._replace(partition=partition)
                kafka.write(record)
            except (Denied, Failed):
                known[number] = False
            except (UnknownTopic, Unanswered):
                pass
            else:
                self._written.add(number)
                known[number] = True
        return known

    async def close(self) -> None:
        await self._wire.run(None, self._close)

    async def _close(self) -> None:
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=CLOSE_SECONDS)
        self.dropped += len(self._queue)
        self._queue.clear()


def murmur2(key: bytes) -> int:
    """The hash by which Java's producer chooses a partition, without its sign."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF
