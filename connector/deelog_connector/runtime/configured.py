"""The core's settings and the codecs of a configuration."""

from __future__ import annotations

from deelog_connector.core import Settings
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.core.snapshot_mode import SnapshotMode
from deelog_connector.kafka_port import KafkaPort
from deelog_connector.runtime.encode import Decoder, Encoder
from deelog_connector.runtime.executor import SCAN_SECONDS
from deelog_connector.transforms.dead_letters import DeadLetterEncoder
from deelog_connector.transforms.pipeline import Pipeline
from deelog_schemas.config import Config
from deelog_schemas.formats import codec_of, connected


def settings_of(config: Config, pipeline: Pipeline | None) -> Settings:
    """The core's settings."""
    return Settings(
        segments=config["segment.count"],
        partitions=config["topic.creation.default.partitions"],
        prefix=config["topic.prefix"],
        cache=config["cache.name"],
        max_batch_size=config["max.batch.size"],
        chunk_size=config["incremental.snapshot.chunk.size"],
        commit_interval=config["commit.interval.ms"] / 1000,
        transaction_timeout=config["transaction.timeout.ms"] / 1000,
        heartbeat_interval=config["heartbeat.interval.ms"] / 1000,
        patience=SCAN_SECONDS,
        max_operations=config["max.queue.size"],
        max_bytes=config["max.queue.size.in.bytes"],
        reset_strategy=Strategy(config["reset.strategy"]),
        reset_interval=config["reset.interval.ms"] / 1000,
        snapshot_mode=SnapshotMode(config["snapshot.mode"]),
        may_skip=pipeline is not None,
    )


def codecs_of(config: Config, member: str, connector_name: str, port: KafkaPort) -> tuple[Encoder, Decoder]:
    """The encoder and decoder of records. It blocks: it reads a schema registry. Raises `RegistryError`."""
    topics, codec = config.topics, codec_of(connected(config, connector_name), connector_name)
    has_letters = config["event.processing.failure.handling.mode"] == "dead-letter"
    encoder = Encoder(
        codec,
        topics.changes,
        topics.positions,
        member,
        config["tombstones.on.delete"],
        config["tracing.headers.enabled"],
        DeadLetterEncoder(config) if has_letters else None,
        clock=port.clock,
    )
    return encoder, Decoder(codec)
