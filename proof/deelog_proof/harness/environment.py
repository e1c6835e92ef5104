"""Kafka, the nodes and the Spark job as processes with one directory, ended by one exit stack."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import javaproperties
import orjson

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_proof.demo.display import Display
from deelog_proof.harness.child import Child, ProcessError, deelog_command, until
from deelog_proof.harness.cluster import Cluster, Monitor, Polled
from deelog_schemas.errors import DeelogError
from deelog_schemas.kafka.names import Topics
from deelog_schemas.operation import Entry

_NODES: Final = {"topic.creation.default.partitions": "4", "cache.failure.timeout.ms": "2000"}
_DIFF_RESTARTS = 3
_DIFF_START_SECONDS = 300.0
_DIFF_LINE: Final = "deelog diff: "
_TICK_SECONDS = 0.2


class RunError(DeelogError):
    """The run could not be played to its end; the message ends with the logs of processes that ended."""


class Listening(Protocol):
    """A process with an address on this machine."""

    name: str
    port: int


class CacheCluster(Protocol):
    """Caches as processes, with a connector in each or beside it. Its text says what it is."""

    @property
    def segments(self) -> int:
        """How many."""

    @property
    def nodes(self) -> Sequence[Polled]:
        """What has a connector."""

    @property
    def processes(self) -> Sequence[Child]:
        """All of them."""

    @property
    def servers(self) -> Sequence[Listening]:
        """Where clients connect."""

    def addresses(self) -> list[tuple[str, int]]:
        """Those of the servers."""

    def a_primary(self) -> Child:
        """A server that is one."""

    def start(self) -> None:
        """Returns once each segment is written."""

    def wait_whole(self) -> float:
        """Waits until nothing is being mended. Returns the seconds taken."""

    def dump(self) -> dict[bytes, Entry]:
        """All entries. Raises `ClusterError` where they cannot be had."""


C = TypeVar("C", bound=CacheCluster)


@dataclass(slots=True)
class Environment(Generic[C]):
    """All parts. `kept`: the files stay. `seconds` are by phase."""

    show: Display
    directory: Path
    kept: bool
    topics: Topics
    kafka: EmbeddedKafka
    cluster: C
    monitor: Monitor
    diff: Child
    seconds: dict[str, float] = field(default_factory=dict)
    diff_restarts: int = 0
    most_diff_restarts: int = _DIFF_RESTARTS

    def start(self, stack: ExitStack) -> None:
        """Starts the nodes and the Spark job, and waits until they work. Raises `RunError`."""
        with self.explained():
            self.cluster.start()
            self.show.say(str(self.cluster))
            self.show.say("starting the Spark job, which takes up to a minute")
            _start_diff(self.diff)
            self.show.say("the Spark job runs")
        self.monitor.start()
        stack.callback(self.monitor.stop)

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

    def progress(self) -> dict[str, Any] | None:
        """The Spark job's last progress, None before its first batch."""
        try:
            progress: dict[str, Any] = orjson.loads((self.directory / "checkpoint" / "progress.json").read_bytes())
        except FileNotFoundError:
            return None
        return progress

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether the Spark job has read the change topic to these offsets, by partition."""
        progress = self.progress()
        read = progress["input_offsets"] if progress else {}
        return all(int(read.get(str(partition), -1)) >= end for partition, end in ends.items() if end)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Notes how long the block takes."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = round(time.monotonic() - begin, 1)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """An error of the block becomes a `RunError` with the logs of all processes that ended."""
        try:
            yield
        except (TimeoutError, DeelogError) as error:
            lines = [str(error)]
            for child in (*self.cluster.processes, self.diff):
                if child.exit_code is not None and not isinstance(error, ProcessError):
                    lines.append(f"{child.name} ended with exit code {child.exit_code}; its log {child.tail()}")
            if not self.kept:
                lines.append("`--files DIR` keeps all logs for a look")
            raise RunError(os.linesep.join(lines)) from error


def directory_of(files: Path | None, stack: ExitStack) -> Path:
    """The folder to keep files in, or one that `stack` removes."""
    if files is None:
        directory = Path(tempfile.mkdtemp(prefix="deelog-run-"))
        stack.callback(shutil.rmtree, directory)
        return directory
    files.mkdir(parents=True, exist_ok=True)
    return files.absolute()


def assembled(
    show: Display,
    stack: ExitStack,
    directory: Path,
    kept: bool,
    kafka: EmbeddedKafka,
    spark_jars: Sequence[Path],
    names: Sequence[str],
    common: Mapping[str, str],
    nodes: Mapping[str, str],
    own: Mapping[str, Mapping[str, str]] | None = None,
) -> Environment[Cluster]:
    """Nodes, and the parts around them, not started yet; `stack` ends them.

    `common` are fields of the nodes and of the Spark job, `nodes` more of the nodes, `own` those of one node, by name.
    """
    common = {"bootstrap.servers": kafka.bootstrap, **common}
    cluster = Cluster(names, directory, {**common, **_NODES, **nodes}, own)
    return around(cluster, show, stack, directory, kept, kafka, spark_jars, common)


def around(
    cluster: C,
    show: Display,
    stack: ExitStack,
    directory: Path,
    kept: bool,
    kafka: EmbeddedKafka,
    spark_jars: Sequence[Path],
    common: Mapping[str, str],
) -> Environment[C]:
    """The parts around caches and a Kafka that runs, not started yet; `stack` ends them.

    `common` are fields of the connectors and of the Spark job.
    """
    diff = _diff_job(directory, common, spark_jars, stack)
    for child in (*cluster.processes, diff):
        stack.callback(child.kill)
    topics = Topics(common["topic.prefix"], common["cache.name"])
    return Environment(show, directory, kept, topics, kafka, cluster, Monitor(cluster.nodes), diff)


def _start_diff(diff: Child) -> None:

    def reads() -> bool:
        diff.must_run()
        return diff.line(_DIFF_LINE) is not None

    diff.start()
    until(reads, _DIFF_START_SECONDS, "the Spark job to start")


def _diff_job(directory: Path, shared: Mapping[str, str], spark_jars: Sequence[Path], stack: ExitStack) -> Child:
    """The Spark job, not started yet; `stack` removes its other files."""
    config = directory / "diff.properties"
    own = {"diff.checkpoint.location": str(directory / "checkpoint"), "diff.trigger.interval.ms": "500"}
    config.write_text(javaproperties.dumps({**shared, **own}, timestamp=False))
    # Not below `directory`: Spark puts its sockets here, whose paths have at most 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix=f"deelog-spark-{os.getpid()}-", dir="/tmp"))
    stack.callback(shutil.rmtree, temporary, ignore_errors=True)
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    env = {
        "DEELOG_SPARK_JARS": ",".join(map(str, spark_jars)),
        "SPARK_LOCAL_DIRS": str(temporary),
        # Java ignores TMPDIR, and writes its counters into /tmp.
        "SPARK_SUBMIT_OPTS": f"{given} -Djava.io.tmpdir={temporary} -XX:-UsePerfData".strip(),
    }
    return Child("Spark job", deelog_command("diff", "--config", str(config)), directory / "diff.log", env)


@contextmanager
def ticking(show: Display, total: int | None, tick: Callable[[], None]) -> Iterator[None]:
    """Shows a load of `total` writes (None: unknown) during the block: `tick` is called from a thread of its own."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_TICK_SECONDS):
            tick()

    thread = threading.Thread(target=run, name="ticker", daemon=True)
    show.begin("writes", total)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        show.end()
