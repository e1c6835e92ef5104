"""A topic that must not forget: made where it is missing or gone, refused where it forgets, noticed when made again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import pytest

from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import COMPACTED, Brokers, TopicState
from deelog_connector.kept_topic import KeptTopic
from tests.connector.cache import run


class Broker:
    """Has one topic, or none; `policy` is what a new one gets, whatever was asked for."""

    def __init__(self, topic_id: str, policy: str = "compact") -> None:
        self.id, self.policy, self.calls = topic_id, policy, list[str]()
        self.unwritable = frozenset[int]()

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        assert (topic, partitions, settings) == ("t", 3, COMPACTED)
        self.calls.append("ensure")
        self.id = self.id or "made"

    async def settings(self, topic: str) -> Mapping[str, str]:
        assert topic == "t"
        return {"cleanup.policy": self.policy, "x": "1"}

    async def state(self, topic: str) -> TopicState:
        assert topic == "t"
        if not self.id:
            raise KafkaUnavailable("topic t: it does not exist")
        return TopicState(self.id, self.unwritable)


def with_topic(broker: Broker, test: Callable[[KeptTopic], Awaitable[None]]) -> None:
    async def work() -> None:
        await test(KeptTopic(cast("Brokers", broker), "t", 3))

    run(work(), 20)


def test_it_is_made_and_its_settings_are_those_that_it_has() -> None:
    async def test(topic: KeptTopic) -> None:
        assert await topic.make() == {"cleanup.policy": "compact", "x": "1"}

    broker = Broker("")
    with_topic(broker, test)
    assert broker.calls == ["ensure"]


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete,compact", ""])
def test_one_that_forgets_is_refused(policy: str) -> None:
    async def test(topic: KeptTopic) -> None:
        with pytest.raises(KafkaUnusable, match=rf"^topic t has cleanup\.policy={policy}: .* set it to compact$"):
            await topic.make()

    with_topic(Broker("1", policy), test)


def test_its_partitions_that_take_no_records_are_those_of_the_last_look() -> None:
    broker = Broker("1")

    async def test(topic: KeptTopic) -> None:
        looks = [topic.unwritable]
        for broker.unwritable in frozenset({2}), frozenset():
            await topic.is_another()
            looks.append(topic.unwritable)
        assert looks == [frozenset(), {2}, frozenset()]

    with_topic(broker, test)


def test_another_id_is_told_once() -> None:
    broker = Broker("1")

    async def test(topic: KeptTopic) -> None:
        looks = [await topic.is_another(), await topic.is_another()]
        broker.id = "2"
        looks += [await topic.is_another(), await topic.is_another()]
        for broker.id in "1", "2", "3":  # the first of these from a broker whose metadata are behind
            looks.append(await topic.is_another())
        assert looks == [False, False, True, False, False, False, True]

    with_topic(broker, test)
    assert broker.calls == []


def test_one_that_is_gone_is_made_and_is_another() -> None:
    broker = Broker("1")

    async def test(topic: KeptTopic) -> None:
        await topic.is_another()
        broker.id = ""
        assert await topic.is_another()
        assert not await topic.is_another()

    with_topic(broker, test)
    assert broker.calls == ["ensure"]


def test_one_that_somebody_made_with_another_policy_meanwhile_is_refused() -> None:
    broker = Broker("", "delete")

    async def test(topic: KeptTopic) -> None:
        with pytest.raises(KafkaUnusable, match="set it to compact"):
            await topic.is_another()

    with_topic(broker, test)
