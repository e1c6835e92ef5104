"""The topics of a cache: which are made with which settings, and of which an audit is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka_port import COMPACTED
from deelog_connector.kafka_port import Brokers as BrokersPort
from deelog_connector.runtime.topics import ensure_topics, look_at_topics
from tests.connector.cache import config_of, run
from tests.connector.test_topic_audit import KEPT, LAG, SAFE


class Brokers:
    """Notes the topics to make, and has the settings that it is given."""

    def __init__(self, changes: Mapping[str, str] = SAFE, positions: Mapping[str, str] = KEPT) -> None:
        self.made: dict[str, tuple[int | None, Mapping[str, str]]] = {}
        self._settings = {"p.c": changes, "p.c.positions": positions}

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        self.made[topic] = partitions, settings

    async def settings(self, topic: str) -> Mapping[str, str]:
        return self._settings[topic]


def with_brokers(brokers: Brokers, fields: Mapping[str, Any]) -> None:
    async def work() -> None:
        await ensure_topics(cast("BrokersPort", brokers), config_of("h:1", "p", **fields))

    run(work(), 20)


def made(**fields: Any) -> dict[str, tuple[int | None, Mapping[str, str]]]:
    brokers = Brokers()
    with_brokers(brokers, fields)
    return brokers.made


def test_the_topics_of_a_plain_cache() -> None:
    assert made(**{"topic.creation.default.cleanup.policy": "delete", "signal.kafka.topic": ""}) == {
        "p.c": (2, {"cleanup.policy": "delete"}),
        "p.c.positions": (2, COMPACTED),
        "__debezium-heartbeat.p": (None, COMPACTED),
    }


def test_a_positions_topic_that_forgets_is_refused() -> None:
    with pytest.raises(
        KafkaUnusable, match=r"^topic p\.c\.positions has cleanup\.policy=delete: .* set it to compact$"
    ):
        with_brokers(Brokers(SAFE, {**KEPT, "cleanup.policy": "delete"}), {})


def test_a_compacted_topic_keeps_deletes_for_slow_readers() -> None:
    fields = {"topic.creation.default.cleanup.policy": "compact,delete", "reader.max.lag.ms": "1000"}
    assert made(**fields)["p.c"] == (2, {"cleanup.policy": "compact,delete", **LAG})


def test_signals_are_kept_for_ever_in_one_partition() -> None:
    assert made(**{"signal.kafka.topic": "calls"})["calls"] == (1, {"cleanup.policy": "delete", "retention.ms": "-1"})


def test_notifications_and_dead_letters_have_topics_of_their_own() -> None:
    topics = made(
        **{
            "notification.sink.topic.name": "notes",
            "event.processing.failure.handling.mode": "dead-letter",
            "errors.deadletterqueue.topic.name": "letters",
        }
    )
    assert topics["notes"] == (None, {})
    assert topics["letters"] == (None, {})


def test_what_is_unsafe_is_told_of_both_topics_at_the_start_and_while_they_are_in_use() -> None:
    brokers = cast("BrokersPort", Brokers({**SAFE, "min.insync.replicas": "1"}, {**KEPT, "segment.ms": "600001"}))

    async def work() -> None:
        config = config_of("h:1", "p", max_entry_bytes=100_000)
        limit, findings = await ensure_topics(brokers, config)
        assert limit == 100_000
        assert [finding.split(" is ")[0] for finding in findings] == [
            "topic p.c: min.insync.replicas",
            "topic p.c.positions: segment.ms",
        ]
        assert await look_at_topics(brokers, config) == (limit, findings)

    run(work(), 20)


def test_a_running_node_is_told_of_a_positions_topic_that_forgets() -> None:
    brokers = cast("BrokersPort", Brokers(SAFE, {**KEPT, "cleanup.policy": "delete"}))

    async def work() -> None:
        _, (finding,) = await look_at_topics(brokers, config_of("h:1", "p", max_entry_bytes=100_000))
        assert finding.startswith("topic p.c.positions: cleanup.policy is delete: ")

    run(work(), 20)
