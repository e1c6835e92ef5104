"""The demo's environment: directory, Kafka, nodes and Spark job, all started here and ended by one exit stack."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import javaproperties
import orjson

from deelog_connector.devkafka import jars
from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_proof.demo.display import Display
from deelog_proof.demo.faults import Happened, planned
from deelog_proof.harness.child import Child, ProcessError, deelog_command, until
from deelog_proof.harness.cluster import Cluster, Monitor
from deelog_proof.load.sessions import session_store
from deelog_proof.load.traces import MAX_VALUE, Write, read_trace
from deelog_schemas.errors import DeelogError
from deelog_schemas.java import find_java
from deelog_schemas.kafka.names import Topics

SEGMENTS: Final = 256
PREFIX: Final = "demo"
CACHE: Final = "sessions"
GAP_SECONDS: Final = (1.0, 3.0)
"""Seconds between two faults, drawn from this range."""
LEAD_SECONDS: Final = 3.0
"""Seconds of load before the first fault and after the last."""
_OVERFLOW_AFTER_SECONDS = 6.0
_LEAST_QUEUE = 10
_DIFF_RESTARTS = 3
_DIFF_START_SECONDS = 180.0
_DIFF_LINE: Final = "deelog diff: "


class DemoError(DeelogError):
    """The demo could not run to its end; the message ends with the logs of processes that ended."""


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


@dataclass(slots=True)
class Environment:
    """All running parts, and the faults so far. `seconds` are by phase."""

    settings: Settings
    show: Display
    directory: Path
    operations: int
    topics: Topics
    kafka: EmbeddedKafka
    cluster: Cluster
    monitor: Monitor
    diff: Child
    seconds: dict[str, float] = field(default_factory=dict)
    happened: list[Happened] = field(default_factory=list)
    diff_restarts: int = 0
    most_diff_restarts: int = _DIFF_RESTARTS

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def supervise(self) -> None:
        """Restarts the Spark job from its checkpoint if it ended; an error after a few restarts."""
        if self.diff.pid is not None:
            return
        self.diff_restarts += 1
        if self.diff_restarts > self.most_diff_restarts:
            self.diff.must_run()
        # A killed job's log does not say why.
        why = f"; its log {self.diff.tail()}" if (self.diff.exit_code or 0) > 0 else ""
        self.show.say(f"the Spark job ended with exit code {self.diff.exit_code}; starting it again{why}")
        self.diff.start()


def writes_of(settings: Settings) -> Iterator[Write]:
    """The writes; the same for the same settings."""
    if settings.trace is not None:
        return read_trace(settings.trace, settings.max_value)
    return session_store(settings.operations, settings.seed, settings.max_value)


def set_up(settings: Settings, show: Display, stack: ExitStack) -> Environment:
    """Starts Kafka, the nodes and the Spark job; `stack` ends them and removes their files.

    Raises `JavaError`, `SetupError` (no network) and `DemoError`.
    """
    begin = time.monotonic()
    operations = settings.operations if settings.trace is None else sum(1 for _ in writes_of(settings))
    show.say(f"{operations:,} writes, {settings.nodes} nodes, faults: {settings.faults}, seed {settings.seed}")
    java = find_java()
    jars.fetch("kafka")
    spark_jars = jars.fetch("spark-kafka")
    directory = _directory(settings, stack)
    show.say(f"files are in {directory}{'' if settings.files else ' for as long as this runs'}")
    show.say(f"starting Kafka, with {java}")
    kafka = EmbeddedKafka(directory / "kafka")
    stack.callback(kafka.kill)
    kafka.start()
    show.say(f"Kafka serves at {kafka.bootstrap}")
    shared = {
        "bootstrap.servers": kafka.bootstrap,
        "topic.prefix": PREFIX,
        "cache.name": CACHE,
        "segment.count": str(SEGMENTS),
    }
    names = [f"n{number + 1}" for number in range(settings.nodes)]
    cluster = Cluster(names, directory, {**shared, **_node_settings(settings, operations)})
    diff = diff_job(directory, shared, spark_jars, stack)
    for child in (*cluster.nodes, diff):
        stack.callback(child.kill)
    monitor = Monitor(cluster)
    environment = Environment(
        settings, show, directory, operations, Topics(PREFIX, CACHE), kafka, cluster, monitor, diff
    )
    try:
        cluster.start()
        show.say(f"{settings.nodes} nodes serve {SEGMENTS} segments, each with a primary and its backups")
        show.say("starting the Spark job, which takes up to a minute")
        start_diff(diff)
        show.say("the Spark job runs")
    except (TimeoutError, DeelogError) as error:
        raise DemoError(explained(environment, error)) from error
    monitor.start()
    stack.callback(monitor.stop)
    environment.seconds["setup"] = time.monotonic() - begin
    return environment


def start_diff(diff: Child) -> float:
    """Starts the Spark job and waits until it reads. Returns the seconds taken."""

    def reads() -> bool:
        diff.must_run()
        return diff.line(_DIFF_LINE) is not None

    diff.start()
    return until(reads, _DIFF_START_SECONDS, "the Spark job to start")


def _directory(settings: Settings, stack: ExitStack) -> Path:
    if settings.files is None:
        directory = Path(tempfile.mkdtemp(prefix="deelog-demo-"))
        stack.callback(shutil.rmtree, directory)
        return directory
    directory = settings.files.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _node_settings(settings: Settings, operations: int) -> dict[str, str]:
    generated = settings.trace is None
    rate = operations / planned_seconds(settings)
    own = {
        "cache.backups": str(min(1, settings.nodes - 1)),
        # The generated load shows evictions too; entries of a trace must not be evicted.
        "cache.max.entries": str(max(4 * SEGMENTS, operations // 12) if generated else 100_000_000),
        "topic.creation.default.partitions": "4",
        "cache.failure.timeout.ms": "2000",
        "cache.controller.session.timeout.ms": "2000",
    }
    if settings.faults == "all":
        # Small op logs, full after some seconds without Kafka. Backups' make room first, so the primaries' count.
        own["max.queue.size"] = str(max(_LEAST_QUEUE, int(rate / settings.nodes * _OVERFLOW_AFTER_SECONDS)))
        own["oplog.overflow"] = "reset"
    return own


def diff_job(directory: Path, shared: dict[str, str], spark_jars: list[Path], stack: ExitStack) -> Child:
    """The Spark job, not started yet; its checkpoint is `directory / "checkpoint"`, `stack` removes its other files."""
    config = directory / "diff.properties"
    own = {"diff.checkpoint.location": str(directory / "checkpoint"), "diff.trigger.interval.ms": "500"}
    config.write_text(javaproperties.dumps({**shared, **own}, timestamp=False))
    # Not below `directory`: Spark puts its sockets here, whose paths have at most 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix=f"deelog-spark-{os.getpid()}-", dir="/tmp"))
    stack.callback(shutil.rmtree, temporary, ignore_errors=True)
    env = {
        "DEELOG_SPARK_JARS": ",".join(map(str, spark_jars)),
        "SPARK_LOCAL_DIRS": str(temporary),
        # Java ignores TMPDIR, and writes its counters into /tmp.
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData",
    }
    return Child("Spark job", deelog_command("diff", "--config", str(config)), directory / "diff.log", env)


def planned_seconds(settings: Settings, done: int = 0) -> float:
    """Seconds that the rest of the load shall take, after `done` faults."""
    faults = planned(settings.faults)[done:]
    return LEAD_SECONDS + sum(fault.seconds + sum(GAP_SECONDS) / 2 for fault in faults)


def progress_of(checkpoint: Path) -> dict[str, Any] | None:
    """The Spark job's last progress, None before its first batch."""
    try:
        progress: dict[str, Any] = orjson.loads((checkpoint / "progress.json").read_bytes())
    except FileNotFoundError:
        return None
    return progress


def explained(environment: Environment, error: BaseException) -> str:
    """The error, with the logs of all processes that ended."""
    lines = [str(error)]
    for child in (*environment.cluster.nodes, environment.diff):
        if child.exit_code is not None and not isinstance(error, ProcessError):
            lines.append(f"{child.name} ended with exit code {child.exit_code}; its log {child.tail()}")
    if environment.settings.files is None:
        lines.append("`--files DIR` keeps all logs for a look")
    return os.linesep.join(lines)
