"""All parts together: how they are made, started, watched, and explained where they fail."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import javaproperties
import pytest

from deelog_proof.harness.child import ProcessError
from deelog_proof.harness.cluster import Node
from deelog_proof.harness.environment import Environment, RunError, assembled, directory_of, ticking
from deelog_schemas.errors import DeelogError
from tests.proof.harness.doubles import Parts, Process, Show
from tests.support.waiting import waiting


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_nodes_start_before_the_spark_job_and_the_monitor_ends_with_the_stack(parts: Parts) -> None:
    parts.diff.lines["deelog diff: "] = "reads"
    with ExitStack() as stack:
        parts.environment.start(stack)
        assert parts.calls == ["start cluster", "start Spark job", "start monitor"]
        assert parts.show.said == [
            "nodes serve",
            "starting the Spark job, which takes up to a minute",
            "the Spark job runs",
        ]
    assert parts.calls[-1] == "stop monitor"


def test_a_spark_job_that_ends_at_its_start_is_explained(parts: Parts) -> None:
    def must_run() -> None:
        raise ProcessError("Spark job ended with exit code 1")

    parts.diff.must_run = must_run  # type: ignore[method-assign]
    with ExitStack() as stack, pytest.raises(RunError, match="Spark job ended with exit code 1"):
        parts.environment.start(stack)


@pytest.mark.parametrize("exit_code", [-9, 0, 1])
def test_a_spark_job_that_ended_is_started_again(parts: Parts, exit_code: int) -> None:
    parts.environment.supervise()
    assert (parts.calls, parts.environment.diff_restarts) == ([], 0)
    parts.diff.pid, parts.diff.exit_code = None, exit_code
    parts.environment.supervise()
    assert (parts.calls, parts.environment.diff_restarts) == (["start Spark job"], 1)
    why = "; its log ends with: Spark job's last words" if exit_code == 1 else ""  # a killed job's does not say it
    assert parts.show.said == [f"the Spark job ended with exit code {exit_code}; starting it again{why}"]


def test_after_a_few_restarts_it_is_an_error(parts: Parts) -> None:
    for _ in range(3):
        parts.diff.kill()
        parts.environment.supervise()
    parts.diff.kill()
    with pytest.raises(RuntimeError, match="Spark job does not run"):
        parts.environment.supervise()
    assert parts.calls.count("start Spark job") == 3


def test_how_far_the_spark_job_is(parts: Parts) -> None:
    environment = parts.environment
    assert environment.progress() is None
    assert environment.has_read({})
    assert environment.has_read({0: 0})
    assert not environment.has_read({0: 1})
    (environment.directory / "checkpoint").mkdir()
    told = {"records": 12, "input_offsets": {"0": 5, "1": 7}}
    (environment.directory / "checkpoint" / "progress.json").write_text(json.dumps(told))
    assert environment.progress() == told
    for ends, read in (({0: 5, 1: 7}, True), ({0: 4}, True), ({0: 6, 1: 7}, False), ({0: 5, 2: 1}, False)):
        assert environment.has_read(ends) is read, ends
    assert environment.has_read({0: 5, 2: 0}), "nothing is in the third partition"


def test_a_phase_is_timed_though_it_fails(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.34, 20.0, 21.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    with parts.environment.timed("run"):
        pass
    with pytest.raises(ValueError, match="broken"), parts.environment.timed("drain"):
        raise ValueError("broken")
    monkeypatch.undo()
    assert parts.environment.seconds == {"run": 2.3, "drain": 1.0}


def explained(environment: Environment[Any], error: Exception) -> str:
    with pytest.raises(RunError) as caught, environment.explained():
        raise error
    assert caught.value.__cause__ is error
    return str(caught.value)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("error", [TimeoutError("in vain"), DeelogError("in vain")])
def test_an_error_comes_with_the_logs_of_what_ended(parts: Parts, error: Exception, kept: bool) -> None:
    parts.environment.kept = kept
    hint = [] if kept else ["`--files DIR` keeps all logs for a look"]
    assert explained(parts.environment, error).split(os.linesep) == ["in vain", *hint]
    parts.cluster.nodes[1].kill()
    parts.diff.pid, parts.diff.exit_code = None, 0
    assert explained(parts.environment, error).split(os.linesep) == [
        "in vain",
        "node n2 ended with exit code -9; its log ends with: node n2's last words",
        "Spark job ended with exit code 0; its log ends with: Spark job's last words",
        *hint,
    ]


def test_an_error_of_a_process_has_its_log_already_and_others_pass(parts: Parts) -> None:
    parts.environment.kept = True
    parts.diff.kill()
    assert explained(parts.environment, ProcessError("node n1 ended")) == "node n1 ended"
    with pytest.raises(ValueError, match="a bug"), parts.environment.explained():
        raise ValueError("a bug")


def test_files_are_kept_where_they_shall_be_or_removed(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        directory = directory_of(None, stack)
        (directory / "a").write_text("x")
        assert directory.parent == temporary
        assert directory.name.startswith("deelog-run-")
        monkeypatch.chdir(tmp_path)
        kept = directory_of(Path("some/where"), stack)
        assert directory_of(Path("some/where"), stack) == kept
    assert not directory.exists()
    assert (kept, kept.is_dir()) == (tmp_path / "some" / "where", True)


def read(path: Path) -> dict[str, str]:
    return dict(javaproperties.loads(path.read_text()))


def test_parts_are_made_around_a_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Da=b")
    killed: list[str] = []
    monkeypatch.setattr("deelog_proof.harness.child.Child.kill", lambda child: killed.append(child.name))
    common = {"topic.prefix": "p", "cache.name": "c", "segment.count": "16"}
    kafka: Any = Process("Kafka", [])
    show: Any = Show()
    with ExitStack() as stack:
        jars = [Path("/a.jar"), Path("/b.jar")]
        nodes, own = {"cache.backups": "0", "cache.failure.timeout.ms": "900"}, {"n2": {"cache.acks": "1"}}
        made = assembled(show, stack, tmp_path, True, kafka, jars, ["n1", "n2"], common, nodes, own)
        assert (made.kept, made.directory, made.kafka, made.show) == (True, tmp_path, kafka, show)
        assert (made.topics.changes, made.cluster.segments) == ("p.c", 16)
        assert [type(node) for node in made.cluster.nodes] == [Node, Node]
        shared = {"bootstrap.servers": "127.0.0.1:9", **common}
        first, second = (read(tmp_path / f"{name}.properties") for name in ("n1", "n2"))
        assert first.items() >= {**shared, **nodes, "topic.creation.default.partitions": "4"}.items()
        assert (first.get("cache.acks"), second["cache.acks"]) == (None, "1")
        assert read(tmp_path / "diff.properties") == {
            **shared,
            "diff.checkpoint.location": str(tmp_path / "checkpoint"),
            "diff.trigger.interval.ms": "500",
        }
        environ = made.diff._env
        assert environ["DEELOG_SPARK_JARS"] == "/a.jar,/b.jar"
        folder = Path(environ["SPARK_LOCAL_DIRS"])
        assert (folder.parent, folder.is_dir()) == (Path("/tmp"), True)
        assert environ["SPARK_SUBMIT_OPTS"] == f"-Da=b -Djava.io.tmpdir={folder} -XX:-UsePerfData"
        assert made.diff._command[-3:] == ["diff", "--config", str(tmp_path / "diff.properties")]
        assert made.diff.log == tmp_path / "diff.log"
        assert killed == []
    assert killed == ["Spark job", "node n2", "node n1"]
    assert not folder.exists()


def test_a_load_is_shown_while_it_lasts() -> None:
    show: Any = Show()
    ticks: list[str] = []

    def load() -> None:
        with ticking(show, 7, lambda: ticks.append("tick")):
            assert show.loads == [("writes", 7)]
            waiting(lambda: len(ticks) > 1, 60, "two ticks")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        load()
    assert show.loads == [("writes", 7), "end"]
    assert "ticker" not in {thread.name for thread in threading.enumerate()}
