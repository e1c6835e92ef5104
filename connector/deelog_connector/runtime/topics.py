"""The topics of one cache: created and audited at start."""

from __future__ import annotations

import logging

from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka_port import COMPACTED, Brokers
from deelog_schemas.config import Config

log = logging.getLogger(__name__)


async def ensure_topics(brokers: Brokers, config: Config) -> None:
    """Creates missing topics. Raises `KafkaUnusable` where a topic has another number of partitions."""
    topics, partitions = config.topics, config["topic.creation.default.partitions"]
    lag = str(config["reader.max.lag.ms"])
    cleanup = ",".join(config["topic.creation.default.cleanup.policy"])
    keeping = {"min.compaction.lag.ms": lag, "delete.retention.ms": lag}
    changes = {**keeping, "cleanup.policy": cleanup} if "compact" in cleanup else {"cleanup.policy": cleanup}
    await brokers.ensure(topics.changes, partitions, changes)
    # Compacted at once: only the latest state of each key counts there.
    await brokers.ensure(topics.positions, partitions, COMPACTED)
    if topics.signal:
        # A signal is in force until the next one.
        await brokers.ensure(topics.signal, 1, {"cleanup.policy": "delete", "retention.ms": "-1"})
    await brokers.ensure(topics.heartbeat, None, COMPACTED)
    if config["notification.sink.topic.name"] is not None:
        await brokers.ensure(config["notification.sink.topic.name"], None, {})
    if config["event.processing.failure.handling.mode"] == "dead-letter":
        await brokers.ensure(config["errors.deadletterqueue.topic.name"], None, {})


async def audit(brokers: Brokers, config: Config) -> int:
    """Checks the change topic's settings by `topic.audit`; returns its `max.message.bytes`.

    `warn` logs what is unsafe, `strict` raises `KafkaUnusable` with all of it.
    """
    topics, findings = config.topics, []
    topic, lag = topics.changes, config["reader.max.lag.ms"]
    if int(await brokers.setting(topic, "min.insync.replicas")) < 2:
        findings.append("min.insync.replicas is 1: an acknowledged record may be on one broker only")
    if await brokers.setting(topic, "unclean.leader.election.enable") == "true":
        findings.append("unclean.leader.election.enable is true: a broker may throw committed records away")
    if "compact" in await brokers.setting(topic, "cleanup.policy"):
        for name in ("min.compaction.lag.ms", "delete.retention.ms"):
            if int(await brokers.setting(topic, name)) < lag:
                findings.append(f"{name} is below reader.max.lag.ms={lag}: a slow reader may miss deletes")
    limit = int(await brokers.setting(topic, "max.message.bytes"))
    if limit < config["max.entry.bytes"]:
        findings.append(
            f"max.message.bytes={limit} is below max.entry.bytes={config['max.entry.bytes']}: a large entry would "
            "stop its segment"
        )
    if findings and config["topic.audit"] == "strict":
        raise KafkaUnusable(f"topic {topic} is unsafe (topic.audit=strict): " + "; ".join(findings))
    for finding in findings:
        log.warning("topic %s: %s", topic, finding)
    return limit
