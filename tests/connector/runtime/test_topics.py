"""The topics of a cache: which are made with which settings, and what an audit finds unsafe."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import pytest

from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka_port import COMPACTED
from deelog_connector.kafka_port import Brokers as BrokersPort
from deelog_connector.runtime.topics import ensure_topics
from tests.connector.cache import config_of, run

SAFE = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "max.message.bytes": "100000",
}
KEPT = {**SAFE, **COMPACTED}
LAG = {"min.compaction.lag.ms": "1000", "delete.retention.ms": "1000"}


class Brokers:
    """Notes the topics to make, and has the settings that it is given."""

    def __init__(self, changes: Mapping[str, str] = SAFE, positions: Mapping[str, str] = KEPT) -> None:
        self.made: dict[str, tuple[int | None, Mapping[str, str]]] = {}
        self._settings = {"p.c": changes, "p.c.positions": positions}

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        self.made[topic] = partitions, settings

    async def settings(self, topic: str) -> Mapping[str, str]:
        return self._settings[topic]


def with_brokers(brokers: Brokers, fields: Mapping[str, Any]) -> int:
    """`max.message.bytes` of the change topic."""
    limits: list[int] = []

    async def work() -> None:
        limits.append(await ensure_topics(cast("BrokersPort", brokers), config_of("h:1", "p", **fields)))

    run(work(), 20)
    return limits[0]


def made(**fields: Any) -> dict[str, tuple[int | None, Mapping[str, str]]]:
    brokers = Brokers()
    with_brokers(brokers, fields)
    return brokers.made


def audited(changes: Mapping[str, str], positions: Mapping[str, str] | None = None, **fields: Any) -> int:
    return with_brokers(Brokers(changes, positions or KEPT), fields)


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
        audited(SAFE, {**KEPT, "cleanup.policy": "delete"})


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


def test_a_safe_topic_has_no_finding(caplog: pytest.LogCaptureFixture) -> None:
    assert audited(SAFE, topic_audit="strict", max_entry_bytes=100_000) == 100_000
    compacted = {**SAFE, "cleanup.policy": "compact,delete", **LAG}
    assert audited(compacted, topic_audit="strict", reader_max_lag_ms=1000, max_entry_bytes=100_000) == 100_000
    assert not caplog.messages


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        ("min.insync.replicas", "1", "min.insync.replicas is 1"),
        ("unclean.leader.election.enable", "true", "unclean.leader.election.enable is true"),
        ("min.compaction.lag.ms", "999", r"min.compaction.lag.ms is below reader.max.lag.ms=1000"),
        ("delete.retention.ms", "999", r"delete.retention.ms is below reader.max.lag.ms=1000"),
        ("max.message.bytes", "99999", r"max.message.bytes=99999 is below max.entry.bytes=100000"),
    ],
)
def test_each_finding_is_logged_or_refused(
    name: str, value: str, finding: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SAFE, "cleanup.policy": "compact", **LAG, name: value}
    fields: dict[str, Any] = {"reader_max_lag_ms": 1000, "max_entry_bytes": 100_000}
    with caplog.at_level(logging.WARNING):
        assert audited(settings, None, **fields, topic_audit="warn") == int(settings["max.message.bytes"])
    assert [finding in message for message in caplog.messages] == [True]
    with pytest.raises(KafkaUnusable, match=rf"unsafe, and topic\.audit=strict: topic p\.c: {finding}"):
        audited(settings, None, **fields, topic_audit="strict")


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        ("min.insync.replicas", "1", "min.insync.replicas is 1"),
        ("unclean.leader.election.enable", "true", "unclean.leader.election.enable is true"),
        ("segment.bytes", "16777217", "segment.bytes is above 16777216: what is not compacted yet is read at every"),
        ("segment.ms", "600001", "segment.ms is above 600000: what is not compacted yet is read at every start"),
    ],
)
def test_positions_are_audited_too(name: str, value: str, finding: str, caplog: pytest.LogCaptureFixture) -> None:
    audited(SAFE, {**KEPT, name: value}, max_entry_bytes=100_000)
    assert [f"topic p.c.positions: {finding}" in message for message in caplog.messages] == [True]
