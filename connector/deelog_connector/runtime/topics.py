"""The topics of one cache: created and audited at start."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka_port import COMPACTED, Brokers
from deelog_connector.kept_topic import KeptTopic
from deelog_schemas.config import Config

log = logging.getLogger(__name__)


async def ensure_topics(brokers: Brokers, config: Config) -> int:
    """Creates missing topics, and audits those of the cache; the change topic's `max.message.bytes`.

    Raises `KafkaUnusable` where a topic has another number of partitions, where the positions topic is not compacted,
    and with `topic.audit=strict` where something is unsafe.
    """
    topics, partitions = config.topics, config["topic.creation.default.partitions"]
    lag = str(config["reader.max.lag.ms"])
    cleanup = ",".join(config["topic.creation.default.cleanup.policy"])
    keeping = {"min.compaction.lag.ms": lag, "delete.retention.ms": lag}
    changes = {**keeping, "cleanup.policy": cleanup} if "compact" in cleanup else {"cleanup.policy": cleanup}
    await brokers.ensure(topics.changes, partitions, changes)
    kept = await KeptTopic(brokers, topics.positions, partitions).make()
    if topics.signal:
        # A signal is in force until the next one.
        await brokers.ensure(topics.signal, 1, {"cleanup.policy": "delete", "retention.ms": "-1"})
    await brokers.ensure(topics.heartbeat, None, COMPACTED)
    if config["notification.sink.topic.name"] is not None:
        await brokers.ensure(config["notification.sink.topic.name"], None, {})
    if config["event.processing.failure.handling.mode"] == "dead-letter":
        await brokers.ensure(config["errors.deadletterqueue.topic.name"], None, {})
    found = await brokers.settings(topics.changes)
    _audit(found, kept, config)
    return int(found["max.message.bytes"])


def _audit(changes: Mapping[str, str], positions: Mapping[str, str], config: Config) -> None:
    topics = config.topics
    findings = [f"topic {topics.changes}: {finding}" for finding in _of_changes(changes, config)]
    findings += [f"topic {topics.positions}: {finding}" for finding in _of_positions(positions)]
    if findings and config["topic.audit"] == "strict":
        raise KafkaUnusable("unsafe, and topic.audit=strict: " + "; ".join(findings))
    for finding in findings:
        log.warning("%s", finding)


def _of_any(settings: Mapping[str, str]) -> Iterator[str]:
    if int(settings["min.insync.replicas"]) < 2:
        yield "min.insync.replicas is 1: an acknowledged record may be on one broker only"
    if settings["unclean.leader.election.enable"] == "true":
        yield "unclean.leader.election.enable is true: a broker may throw committed records away"


def _of_changes(settings: Mapping[str, str], config: Config) -> Iterator[str]:
    yield from _of_any(settings)
    lag, largest, limit = config["reader.max.lag.ms"], config["max.entry.bytes"], settings["max.message.bytes"]
    if "compact" in settings["cleanup.policy"]:
        for name in ("min.compaction.lag.ms", "delete.retention.ms"):
            if int(settings[name]) < lag:
                yield f"{name} is below reader.max.lag.ms={lag}: a slow reader may miss deletes"
    if int(limit) < largest:
        yield f"max.message.bytes={limit} is below max.entry.bytes={largest}: a large entry would stop its segment"


def _of_positions(settings: Mapping[str, str]) -> Iterator[str]:
    yield from _of_any(settings)
    for name in ("segment.bytes", "segment.ms"):
        if int(settings[name]) > int(COMPACTED[name]):
            yield f"{name} is above {COMPACTED[name]}: what is not compacted yet is read at every start"
