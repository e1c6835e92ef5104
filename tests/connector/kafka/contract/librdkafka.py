"""The port on librdkafka, with a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import REQUEST_SECONDS, KafkaPort
from tests.connector.kafka.contract.gate import Gate
from tests.connector.kafka.contract.world import SECONDS, World
from tests.support.kafka import Broker
from tests.support.two_brokers import Gates
from tests.support.waiting import waiting

CASE_SECONDS = 240.0


class RealKafka(World):
    """`broker` is the case's alone where it is paused."""

    lacks: ClassVar = {"unclean_election": "one broker has no replica that could be elected"}

    def __init__(
        self,
        prefix: str,
        broker: Broker,
        gate: Gate | None = None,
        *,
        gated: bool = False,
        second: EmbeddedKafka | None = None,
        gates: Gates | None = None,
    ) -> None:
        self._broker, self._gate, self._gated, self._topics = broker, gate, gated, 0
        self._second, self._gates = second, gates
        self._lone: list[str] = []
        super().__init__(prefix)

    def another_port(self, seconds: float = REQUEST_SECONDS) -> KafkaPort:
        return Librdkafka(seconds)

    @property
    def bootstrap(self) -> str:
        if self._gates is not None:
            return self._gates.bootstrap
        return self._gate.bootstrap if self._gate is not None and self._gated else self._broker.bootstrap

    @property
    def _admin(self) -> AdminClient:
        """A new one: of a topic that was made again an old one has the old leader epoch."""
        return AdminClient({"bootstrap.servers": self._broker.bootstrap})

    async def topic(self, partitions: int = 1, **settings: str) -> str:
        self._topics += 1
        topic = f"{self.prefix}-{self._topics}"
        await asyncio.to_thread(self._create, topic, partitions, settings)
        return topic

    def _create(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        admin = self._admin
        place: dict[str, Any] = (
            {"replica_assignment": [[1]] * partitions} if self._second else {"replication_factor": 1}
        )
        admin.create_topics([NewTopic(topic, partitions, config=config, **place)])[topic].result(SECONDS)
        waiting(lambda: self._led(topic, partitions), SECONDS, topic)

    def _led(self, topic: str, partitions: int) -> bool:
        """Whether each partition answers: a new one has no leader for a moment."""
        try:
            for partition in range(partitions):
                self._end(topic, partition)
        except KafkaException:
            return False
        return True

    def _exists(self, topic: str) -> bool:
        try:
            admin = self._admin
            admin.describe_topics(TopicCollection([topic]))[topic].result(SECONDS)
        except KafkaException:
            return False
        return True

    async def delete_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._delete, topic)

    def _delete(self, topic: str) -> None:
        admin = self._admin
        admin.delete_topics([topic])[topic].result(SECONDS)
        waiting(lambda: not self._exists(topic), SECONDS, f"the end of {topic}")

    async def recreate_topic(self, topic: str, partitions: int = 1) -> None:
        await self.delete_topic(topic)
        await asyncio.to_thread(self._create, topic, partitions, {})

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        admin, place = self._admin, TopicPartition(topic, partition, before)
        await asyncio.to_thread(lambda: admin.delete_records([place])[place].result(SECONDS))

    def produce(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap})
        producer.produce(topic, value, key, partition)
        assert producer.flush(SECONDS) == 0

    def stranger(self, transactional_id: str) -> Stranger:
        return Stranger(self._broker.bootstrap, transactional_id)

    def begun(self, topic: str) -> None:
        waiting(lambda: self._end(topic, committed=True) < self._end(topic), SECONDS, "an open transaction")

    def expire(self, topic: str) -> None:
        # Not `begun`: it may be over before anybody has seen it open. Its record, and the marker behind it, stay.
        waiting(lambda: self._end(topic) > 0, SECONDS, "a record of a transaction")
        self._settle(topic)

    async def settled(self, topic: str) -> None:
        await asyncio.to_thread(self._settle, topic)

    def _settle(self, topic: str) -> None:
        for partition in self._admin.list_topics(topic, SECONDS).topics[topic].partitions:
            waiting(partial(self._is_stable, topic, partition), SECONDS, f"no open transaction on {topic}")

    def _is_stable(self, topic: str, partition: int) -> bool:
        with suppress(KafkaException):  # a broker that is just back
            return self._end(topic, partition, committed=True) == self._end(topic, partition)
        return False

    def wait(self, event: threading.Event) -> None:
        assert event.wait(SECONDS)

    def _end(self, topic: str, partition: int = 0, committed: bool = False) -> int:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(topic, partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        admin = self._admin  # has to live until the answer comes
        (answer,) = admin.list_offsets(asked, isolation_level=level).values()
        return int(answer.result(SECONDS).offset)

    def away(self) -> AbstractAsyncContextManager[None]:
        return self._paused()

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        self._broker.pause()
        try:
            assert isinstance(self._broker, EmbeddedKafka)
            await asyncio.to_thread(waiting, partial(_stands, self._broker.pid), SECONDS, "the broker's stop")
            yield
        finally:
            self._broker.resume()

    def lose_answer(self) -> Callable[[], bool]:
        assert self._gate is not None
        loses = self._gate.loses
        loses.set()
        return lambda: not loses.is_set()

    def lose_clients(self) -> None:
        assert self._gate is not None
        self._gate.mute = self._gate.connections

    async def unclean_election(self, topic: str, partition: int, end: int) -> None:
        raise NotImplementedError

    async def lone_topic(self, replicated: bool = False, partition: int = 0) -> str:
        self._topics += 1
        topic, admin = f"{self.prefix}-{self._topics}", self._admin
        place, settings = ([1, 2], {"min.insync.replicas": "2"}) if replicated else ([2], {})
        places = [[1]] * partition + [place]
        new = NewTopic(topic, len(places), replica_assignment=places, config=settings)
        await asyncio.to_thread(admin.create_topics([new])[topic].result, SECONDS)
        self._lone.append(topic)
        await asyncio.to_thread(self._replicated, True)
        return topic

    def _replicated(self, wanted: bool) -> None:
        """Returns once all replicas of lone topics are in sync, or all partitions have lost one."""

        def seen() -> bool:
            try:
                admin = self._admin  # a new one: one that takes the lost broker for the controller asks nobody else
                described = admin.describe_topics(TopicCollection(self._lone), request_timeout=SECONDS / 10)
                found = [future.result().partitions[-1] for future in described.values()]
            except KafkaException:
                return False
            return {p.leader is not None and len(p.isr) == len(p.replicas) for p in found} <= {wanted}

        waiting(seen, SECONDS, "the replicas")

    def lose_broker(self) -> AbstractAsyncContextManager[None]:
        return self._lose_broker()

    @asynccontextmanager
    async def _lose_broker(self) -> AsyncIterator[None]:
        assert self._second is not None
        self._second.kill()
        try:
            await asyncio.to_thread(self._replicated, False)
            yield
        finally:
            self._second.start()  # in this thread: the kernel ends the broker with it
            await asyncio.to_thread(self._replicated, True)

    @contextmanager
    def lose_sight(self, held: bool = False) -> Iterator[None]:
        assert self._gates is not None
        with self._gates.without_second(held):
            yield

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(self.whole(case), CASE_SECONDS))


def _stands(process: int | None) -> bool:
    """Whether each thread has stopped: the signal takes its time."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return set(states) == {"T"}


class Stranger:
    """See `world.Stranger`."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
        self._producer = Producer(settings)
        self._producer.init_transactions(SECONDS)
        self._began = False

    def write(self, topic: str, partition: int, value: bytes) -> None:
        if not self._began:
            self._began = True
            self._producer.begin_transaction()
        self._producer.produce(topic, value, b"k", partition)
        assert self._producer.flush(SECONDS) == 0

    def commit(self) -> None:
        self._began = False
        self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        self._began = False
        self._producer.abort_transaction(SECONDS)
