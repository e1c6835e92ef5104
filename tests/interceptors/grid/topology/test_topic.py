"""The grid's topology topic: what ends the node that follows it, and what is waited for. Kafka is doubles here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import pytest

from deelog_connector import topic_audit
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, TopologyError
from deelog_connector.kafka_port import BEGINNING, COMPACTED, InRecord, KafkaPort, TopicState
from deelog_interceptors.grid.topology import topic as module
from deelog_interceptors.grid.topology.topic import TopologyRecord, TopologyTopic
from deelog_schemas.errors import DeelogError
from tests.connector.cache import config_of, run
from tests.connector.test_topic_audit import KEPT
from tests.support.waiting import awaiting

CONFIG = config_of("h:1", "p")
RECORD = InRecord(CONFIG.topics.topology, 0, 7, b"view", b"{}", [])
AWAY, DENIED = KafkaUnavailable("no broker answers"), KafkaUnauthorized("Read is missing")


class Kafka:
    """A port, its brokers and its reader, which raise the errors in turn and give the records that come between."""

    def __init__(self, *events: list[InRecord] | DeelogError) -> None:
        self.events = list(events)
        self.calls: list[str] = []
        self.id: str | DeelogError = "id"
        self.looks = 0
        self.kept = KEPT
        self.idle = 0.001
        self.opens_slowly = False

    def brokers(self, config: object) -> Kafka:
        return self

    async def reader(self, config: object, topic: str) -> Kafka:
        """Looks go on meanwhile."""
        looks = self.looks
        await awaiting(lambda: not self.opens_slowly or self.looks > looks + 1, 10.0, "looks")
        return self

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        self.calls.append(f"ensure {topic} {partitions} {dict(settings)}")

    async def settings(self, topic: str) -> Mapping[str, str]:
        return self.kept

    async def state(self, topic: str) -> TopicState:
        assert topic == CONFIG.topics.topology
        self.looks += 1
        if isinstance(self.id, DeelogError):
            raise self.id
        return TopicState(self.id, frozenset())

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        self._raise()
        self.calls.append(f"publish {key}")

    async def seek(self, offsets: Mapping[int, int]) -> None:
        assert offsets == {0: BEGINNING}
        self.calls.append("seek")
        self._raise()

    async def read(self, seconds: float) -> list[InRecord]:
        self._raise()
        if not self.events:
            await asyncio.sleep(self.idle)
            return []
        records = self.events.pop(0)
        assert isinstance(records, list)
        return records

    async def close(self) -> None:
        self.calls.append("close")

    def _raise(self) -> None:
        if self.events and isinstance(self.events[0], DeelogError):
            raise cast("DeelogError", self.events.pop(0))


def with_topic(kafka: Kafka, test: Callable[[TopologyTopic], Awaitable[object]]) -> None:
    async def work() -> None:
        await test(TopologyTopic(CONFIG, cast("KafkaPort", kafka)))

    run(work(), 20)


def follow(kafka: Kafka, expected: int, on_lost: Callable[[], None] = lambda: None) -> list[TopologyRecord]:
    """Follows until there are so many records."""
    seen: list[TopologyRecord] = []

    async def test(topic: TopologyTopic) -> None:
        enough = asyncio.Event()

        def on_records(records: list[TopologyRecord]) -> None:
            seen.extend(records)
            if len(seen) >= expected:
                enough.set()

        following = asyncio.ensure_future(topic.follow(on_records, on_lost))
        reached = asyncio.ensure_future(enough.wait())
        await asyncio.wait({following, reached}, return_when=asyncio.FIRST_COMPLETED)
        for task in (following, reached):
            task.cancel()
        await asyncio.wait({following, reached})
        if not following.cancelled():
            following.result()

    with_topic(kafka, test)
    return seen


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)


def test_it_is_created_compacted() -> None:
    kafka = Kafka()
    with_topic(kafka, TopologyTopic.create)
    assert kafka.calls == [f"ensure {CONFIG.topics.topology} None {COMPACTED}"]


def test_what_is_unsafe_is_told_at_the_start_and_once_it_changes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_audit, "AUDIT_SECONDS", 0.0)
    kafka = Kafka()
    kafka.kept = {**kafka.kept, "segment.ms": "600001"}

    async def test(topic: TopologyTopic) -> None:
        await topic.create()
        kafka.kept = {**kafka.kept, "cleanup.policy": "delete"}
        following = asyncio.ensure_future(topic.follow(lambda _: None))
        await awaiting(lambda: len(caplog.messages) > 1, 5, "the second finding")
        following.cancel()
        await asyncio.wait([following])

    with_topic(kafka, test)
    assert [message.split(": ")[1] for message in caplog.messages] == [
        "segment.ms is above 600000",
        "cleanup.policy is delete",
    ]


def test_records_come_in_order_from_the_beginning_and_the_reader_is_closed() -> None:
    kafka = Kafka([RECORD], [], [RECORD._replace(offset=8, key=b"k\xff", value=None)])
    assert follow(kafka, 2) == [TopologyRecord(7, "view", b"{}"), TopologyRecord(8, "k\ufffd", None)]
    assert kafka.calls == ["seek", "close"]


def test_brokers_that_are_away_at_the_beginning_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    kafka = Kafka(AWAY, AWAY, [RECORD])
    with caplog.at_level(logging.WARNING):
        assert len(follow(kafka, 1)) == 1
    assert kafka.calls == ["seek", "seek", "seek", "close"]
    assert caplog.messages == ["no broker answers; trying again"] * 2


def test_a_right_that_is_missing_ends_a_start_and_nothing_later(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TopologyError, match=r"^Read is missing$"):
        follow(Kafka([], DENIED), 1)
    assert len(follow(Kafka([RECORD], DENIED, [RECORD]), 2)) == 2
    assert "Read is missing" in caplog.messages


def test_a_topic_that_was_cut_is_told_and_read_again(caplog: pytest.LogCaptureFixture) -> None:
    losses: list[int] = []
    kafka = Kafka([RECORD], KafkaUnusable("cannot read on"), [RECORD, RECORD])
    assert len(follow(kafka, 3, lambda: losses.append(1))) == 3
    assert losses == [1]
    assert kafka.calls == ["seek", "close", "seek", "close"]
    assert "cannot read on: its last view and all members are written anew" in caplog.messages[0]


def test_one_that_cannot_be_read_at_all_ends_a_start() -> None:
    kafka = Kafka(KafkaUnusable("cannot read on"))
    with pytest.raises(TopologyError, match="cannot read on"):
        follow(kafka, 1)
    assert kafka.calls == ["seek", "close"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_topic_that_was_made_again_is_told_and_read_again(gone: bool) -> None:
    losses: list[int] = []
    kafka = Kafka([RECORD])

    async def test(topic: TopologyTopic) -> None:
        following = asyncio.ensure_future(topic.follow(lambda records: None, lambda: losses.append(1)))
        await awaiting(lambda: kafka.looks and not kafka.events, 10.0, "the record")
        if gone:
            kafka.id, looks = KafkaUnavailable("it does not exist"), kafka.looks
            await awaiting(lambda: kafka.looks >= looks + 3, 10.0, "looks")
        kafka.id = "another"
        await awaiting(lambda: kafka.calls.count("seek") == 2, 10.0, "another reader")
        following.cancel()
        await asyncio.wait({following})

    kafka.idle = 0.0
    with_topic(kafka, test)
    assert losses == [1]
    assert (f"ensure {CONFIG.topics.topology} None {COMPACTED}" in kafka.calls) is gone


def test_a_topic_that_is_made_again_while_its_loss_is_noticed_is_lost_twice() -> None:
    """What was written anew is in the one between."""
    losses: list[str] = []
    kafka = Kafka([RECORD], KafkaUnusable("cannot read on"))

    def lost() -> None:
        losses.append(str(kafka.id))
        kafka.id = "third"

    async def test(topic: TopologyTopic) -> None:
        following = asyncio.ensure_future(topic.follow(lambda records: setattr(kafka, "id", "second"), lost))
        await awaiting(lambda: kafka.calls.count("seek") == 3, 10.0, "a third reader")
        following.cancel()
        await asyncio.wait({following})

    kafka.opens_slowly = True
    with_topic(kafka, test)
    assert losses == ["second", "third"]


def test_what_kafka_does_not_take_is_tried_again_by_the_caller_and_a_wrong_client_is_not() -> None:
    for error, kind in ((AWAY, TopologyError), (DENIED, TopologyError), (KafkaUnusable("no client"), KafkaUnusable)):
        with pytest.raises(kind) as raised:
            with_topic(Kafka(error), lambda topic: topic.publish("k", b"v"))
        assert type(raised.value) is kind
