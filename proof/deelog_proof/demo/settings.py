"""What the demo plays: its options, the load and its pace, and the parts that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deelog_connector.devkafka import jars
from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_proof.demo import faults, redis_faults
from deelog_proof.demo.display import Display
from deelog_proof.demo.faults import Fault
from deelog_proof.harness.environment import Environment, around, assembled, directory_of
from deelog_proof.harness.redis_cluster import RedisCluster
from deelog_proof.load.sessions import session_store
from deelog_proof.load.traces import MAX_VALUE, Write, read_trace
from deelog_schemas.java import find_java

SEGMENTS: Final = 256
GAP_SECONDS: Final = (1.0, 3.0)
"""Seconds between two faults, drawn from this range."""
LEAD_SECONDS: Final = 3.0
"""Seconds of load before the first fault and after the last."""
_OVERFLOW_AFTER_SECONDS = 6.0
_LEAST_QUEUE = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """The demo's options. Without `trace`, `operations` writes are generated. `files` is a folder to keep files in."""

    trace: Path | None = None
    operations: int = 50_000
    max_value: int = MAX_VALUE
    nodes: int = 3
    seed: int = 1
    faults: str = "all"
    files: Path | None = None
    cache: str = "grid"
    """`redis`: a cluster of Redis, in which `nodes` are shards."""


def planned(settings: Settings) -> Sequence[Fault]:
    """The faults, in order."""
    redis = settings.cache == "redis"
    survivable, every = (redis_faults.SURVIVABLE, redis_faults.ALL) if redis else (faults.SURVIVABLE, faults.ALL)
    return {"none": (), "survivable": survivable, "all": every}[settings.faults]


def writes_of(settings: Settings) -> Iterator[Write]:
    """The writes; the same for the same settings."""
    if settings.trace is not None:
        return read_trace(settings.trace, settings.max_value)
    return session_store(settings.operations, settings.seed, settings.max_value)


def planned_seconds(settings: Settings, done: int = 0) -> float:
    """Seconds that the rest of the load shall take, after `done` faults."""
    return LEAD_SECONDS + sum(fault.seconds + sum(GAP_SECONDS) / 2 for fault in planned(settings)[done:])


def set_up(settings: Settings, operations: int, show: Display, stack: ExitStack) -> Environment[Any]:
    """Starts Kafka, the caches and the Spark job; `stack` ends them and removes their files.

    Raises `JavaError`, `SetupError` (no network) and `RunError`.
    """
    parts = "shards of Redis" if settings.cache == "redis" else "nodes"
    show.say(f"{operations:,} writes, {settings.nodes} {parts}, faults: {settings.faults}, seed {settings.seed}")
    java = find_java()
    jars.fetch("kafka")
    spark_jars = jars.fetch("spark-kafka")
    directory = directory_of(settings.files, stack)
    show.say(f"files are in {directory}{'' if settings.files else ' for as long as this runs'}")
    show.say(f"starting Kafka, with {java}")
    kafka = EmbeddedKafka(directory / "kafka")
    stack.callback(kafka.kill)
    kafka.start()
    show.say(f"Kafka serves at {kafka.bootstrap}")
    common, kept = {"topic.prefix": "demo", "cache.name": "sessions"}, settings.files is not None
    environment: Environment[Any]
    if settings.cache == "redis":
        common |= {
            "bootstrap.servers": kafka.bootstrap,
            "segment.count": str(RedisCluster.segments),
            "cache.value.format": "json",
        }
        cluster = RedisCluster(settings.nodes, directory, common)
        environment = around(cluster, show, stack, directory, kept, kafka, spark_jars, common)
    else:
        common["segment.count"] = str(SEGMENTS)
        names = [f"n{number + 1}" for number in range(settings.nodes)]
        nodes = _node_settings(settings, operations)
        environment = assembled(show, stack, directory, kept, kafka, spark_jars, names, common, nodes)
    environment.start(stack)
    return environment


def _node_settings(settings: Settings, operations: int) -> dict[str, str]:
    generated = settings.trace is None
    rate = operations / planned_seconds(settings)
    own = {
        "cache.backups": str(min(1, settings.nodes - 1)),
        # The generated load shows evictions too; entries of a trace must not be evicted.
        "cache.max.entries": str(max(4 * SEGMENTS, operations // 12) if generated else 100_000_000),
    }
    if settings.faults == "all":
        # Small op logs, full after some seconds without Kafka. Backups' make room first, so the primaries' count.
        own["max.queue.size"] = str(max(_LEAST_QUEUE, int(rate / settings.nodes * _OVERFLOW_AFTER_SECONDS)))
        own["oplog.overflow"] = "reset"
    return own
