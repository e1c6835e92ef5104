"""The topics of one cache: created at the start, and looked at while they are in use."""

from __future__ import annotations

from collections.abc import Mapping

from deelog_connector import topic_audit
from deelog_connector.kafka_port import COMPACTED, Brokers
from deelog_connector.kept_topic import KeptTopic
from deelog_schemas.config import Config


async def ensure_topics(brokers: Brokers, config: Config) -> tuple[int, list[str]]:
    """Creates missing topics. Returns the change topic's `max.message.bytes`, and what is unsafe.

    Raises `KafkaUnusable` where a topic has another number of partitions, and where the positions topic is not
    compacted.
    """
    topics, partitions = config.topics, config["topic.creation.default.partitions"]
    await ensure_change_topic(brokers, config)
    kept = await KeptTopic(brokers, topics.positions, partitions).make()
    if topics.signal:
        await ensure_signal_topic(brokers, topics.signal)
    await ensure_others(brokers, config)
    found = await brokers.settings(topics.changes)
    return _found(found, kept, config)


async def ensure_change_topic(brokers: Brokers, config: Config) -> None:
    """Creates it unless it exists. Raises `KafkaUnusable` where it has another number of partitions."""
    lag = str(config["reader.max.lag.ms"])
    cleanup = ",".join(config["topic.creation.default.cleanup.policy"])
    keeping = {"min.compaction.lag.ms": lag, "delete.retention.ms": lag} if "compact" in cleanup else {}
    settings = {**keeping, "cleanup.policy": cleanup}
    await brokers.ensure(config.topics.changes, config["topic.creation.default.partitions"], settings)


async def ensure_others(brokers: Brokers, config: Config) -> None:
    """Creates the topics of heartbeats, notifications and dead letters unless they exist, or none is wanted."""
    await brokers.ensure(config.topics.heartbeat, None, COMPACTED)
    if config["notification.sink.topic.name"] is not None:
        await brokers.ensure(config["notification.sink.topic.name"], None, {})
    if config["event.processing.failure.handling.mode"] == "dead-letter":
        await brokers.ensure(config["errors.deadletterqueue.topic.name"], None, {})


async def ensure_signal_topic(brokers: Brokers, topic: str) -> None:
    """Creates it unless it exists."""
    # A signal is in force until the next one.
    await brokers.ensure(topic, 1, {"cleanup.policy": "delete", "retention.ms": "-1"})


async def look_at_topics(brokers: Brokers, config: Config) -> tuple[int, list[str]]:
    """The change topic's `max.message.bytes`, and what is unsafe in the topics of a cache that runs."""
    topics = config.topics
    return _found(await brokers.settings(topics.changes), await brokers.settings(topics.positions), config)


def _found(changes: Mapping[str, str], positions: Mapping[str, str], config: Config) -> tuple[int, list[str]]:
    findings = topic_audit.of_changes(changes, config) + topic_audit.of_kept(config.topics.positions, positions)
    return int(changes["max.message.bytes"]), findings
