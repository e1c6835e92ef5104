"""What the demo plays: its load, how long that shall take, and the parts it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from deelog_connector.devkafka import jars
from deelog_proof.demo import settings as module
from deelog_proof.demo.settings import SEGMENTS, Settings, planned, planned_seconds, set_up, writes_of
from deelog_proof.load.sessions import session_store
from deelog_proof.load.traces import Write


def test_the_load_is_generated_or_that_of_a_trace(tmp_path: Path) -> None:
    generated = list(writes_of(Settings(operations=50, seed=3, max_value=100)))
    assert generated == list(session_store(50, 3, 100))
    trace = tmp_path / "t.tsv"
    trace.write_text("1\t1\t1\tc\ta\t\tabc\t100\n")
    assert list(writes_of(Settings(trace=trace, max_value=5))) == [Write(b"a", b"abcab")]


def test_a_level_names_its_faults() -> None:
    def names(faults: str, cache: str = "grid") -> list[str]:
        assert all(fault.seconds > 0 for fault in planned(Settings(faults=faults, cache=cache)))
        return [fault.name for fault in planned(Settings(faults=faults, cache=cache))]

    assert names("none") == names("none", "redis") == []
    assert names("survivable") == ["kill", "restart-kafka", "zombie", "pause-kafka"]
    assert names("all") == ["kill", "restart-kafka", "zombie", "kill-owners", "overflow"]
    assert names("survivable", "redis") == ["kill-primary", "reshard", "kill-connector"]
    assert names("all", "redis") == ["kill-primary", "reshard", "kill-connector", "cut-link", "flush"]


@pytest.mark.parametrize(
    ("faults", "done", "seconds"),
    [
        ("none", 0, 3.0),
        ("survivable", 0, 3.0 + 9 + 12 + 11 + 5 + 4 * 2),
        ("survivable", 1, 3.0 + 12 + 11 + 5 + 3 * 2),
        ("survivable", 4, 3.0),
        ("all", 0, 3.0 + 9 + 12 + 11 + 10 + 10 + 5 * 2),
    ],
)
def test_the_load_lasts_as_long_as_the_faults_that_are_left(faults: str, done: int, seconds: float) -> None:
    assert planned_seconds(Settings(faults=faults), done) == seconds


class Kafka:
    """A broker that notes what is done to it."""

    made: ClassVar[list[Kafka]] = []
    bootstrap = "127.0.0.1:9"

    def __init__(self, directory: Path) -> None:
        self.directory, self.calls = directory, list[str]()
        self.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def kill(self) -> None:
        self.calls.append("kill")


class Show:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class Assembled:
    """What `assembled` was asked for; starts at once."""

    def __init__(self, *given: Any) -> None:
        (
            self.show, self.stack, self.directory, self.kept, self.kafka, self.jars, self.names, self.common, self.nodes
        ) = given  # fmt: skip
        self.started: list[Any] = []

    def start(self, stack: ExitStack) -> None:
        self.started.append(stack)


Make = Callable[[Settings, int], Assembled]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """The environment of some settings, and of a number of operations."""
    monkeypatch.setattr(Kafka, "made", [])
    monkeypatch.setattr(module, "find_java", lambda: "Java 17")
    monkeypatch.setattr(jars, "fetch", lambda name: [Path(f"{name}.jar")])
    monkeypatch.setattr(module, "EmbeddedKafka", Kafka)
    monkeypatch.setattr(module, "assembled", Assembled)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def make(settings: Settings, operations: int) -> Assembled:
        with ExitStack() as stack:
            environment: Any = set_up(settings, operations, Show(), stack)  # type: ignore[arg-type]
            assert environment.started == [stack]
            assert environment.directory.is_dir()
            return environment  # type: ignore[no-any-return]

    return make


def test_kafka_is_started_first_and_killed_in_the_end(made: Make, tmp_path: Path) -> None:
    found = made(Settings(nodes=2, faults="none", seed=9), 1000)
    (kafka,) = Kafka.made
    assert (kafka.calls, kafka.directory) == (["start", "kill"], found.directory / "kafka")
    assert found.kafka is kafka
    assert (found.names, found.jars, found.kept) == (["n1", "n2"], [Path("spark-kafka.jar")], False)
    assert found.common == {"topic.prefix": "demo", "cache.name": "sessions", "segment.count": "256"}
    assert found.show.said == [
        "1,000 writes, 2 nodes, faults: none, seed 9",
        f"files are in {found.directory} for as long as this runs",
        "starting Kafka, with Java 17",
        "Kafka serves at 127.0.0.1:9",
    ]
    assert not found.directory.exists()


def test_files_are_kept_where_they_shall_be(made: Make, tmp_path: Path) -> None:
    found = made(Settings(files=tmp_path / "files"), 1000)
    assert (found.directory, found.kept) == (tmp_path / "files", True)
    assert found.show.said[1] == f"files are in {tmp_path / 'files'}"
    assert found.directory.is_dir()


@pytest.mark.parametrize(
    ("settings", "operations", "fields"),
    [
        (Settings(faults="none", nodes=1), 1000, {"cache.backups": "0", "cache.max.entries": str(4 * SEGMENTS)}),
        (Settings(faults="none", nodes=2), 24_000, {"cache.backups": "1", "cache.max.entries": "2000"}),
        (Settings(faults="survivable", nodes=3), 24_000, {"cache.backups": "1", "cache.max.entries": "2000"}),
        (
            Settings(Path("t.tsv"), faults="none"),
            24_000,
            {"cache.backups": "1", "cache.max.entries": "100000000"},  # entries of a trace must not be evicted
        ),
        (
            Settings(faults="all", nodes=3),
            65_000,  # 1000 a second
            {
                "cache.backups": "1",
                "cache.max.entries": "5416",
                "max.queue.size": "2000",
                "oplog.overflow": "reset",
            },
        ),
        (
            Settings(faults="all", nodes=3),
            65,
            {
                "cache.backups": "1",
                "cache.max.entries": "1024",
                "max.queue.size": "10",
                "oplog.overflow": "reset",
            },
        ),
    ],
)
def test_nodes_have_room_for_what_is_to_be_shown(
    made: Make, settings: Settings, operations: int, fields: Mapping[str, str]
) -> None:
    assert made(settings, operations).nodes == fields


def test_a_cluster_of_redis_has_shards_and_all_slots(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Cluster:
        segments = 16384

        def __init__(self, *given: Any) -> None:
            asked.append(given)

    def around(cluster: Any, *given: Any) -> Assembled:
        assert isinstance(cluster, Cluster)
        *parts, common = given
        return Assembled(*parts, ["no names"], common, {})

    monkeypatch.setattr(module, "RedisCluster", Cluster)
    monkeypatch.setattr(module, "around", around)
    found = made(Settings(nodes=4, cache="redis"), 1000)
    assert found.common == {
        "bootstrap.servers": "127.0.0.1:9", "topic.prefix": "demo", "cache.name": "sessions",
        "segment.count": "16384", "cache.value.format": "json",
    }  # fmt: skip
    assert asked == [(4, found.directory, found.common)]
    assert found.show.said[0] == "1,000 writes, 4 shards of Redis, faults: all, seed 1"
