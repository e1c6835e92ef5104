"""`deelog play` and `deelog demo`: options, output, exit codes. `test_demo.py` runs the demo itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from click.testing import CliRunner, Result

from deelog_proof.demo.cli import _addresses, demo, play
from deelog_proof.demo.settings import Settings
from tests.proof.load.cluster_double import FailingCluster

TRACE = (
    "1\t1\t1\tc\ta\t\tabc\t100\n"
    "2\t1\t1\tc\tb\t\txyz\t3\n"
    "3\t1\t1\td\ta\t\t\t\n"
)  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.tsv"
    path.write_text(TRACE)
    return path


# -- play ---------------------------------------------------------------------------------------------------------


def played(cluster: FailingCluster, *arguments: object) -> Result:
    nodes = ",".join(f"{host}:{port}" for host, port in cluster.nodes)
    return CliRunner().invoke(play, ["--cluster", nodes, *map(str, arguments)])


def test_a_trace_is_played_and_reported(trace: Path, tmp_path: Path) -> None:
    with FailingCluster(1) as cluster:
        result = played(cluster, trace, "--max-value", 20, "--report", tmp_path / "r.json")
    assert result.exit_code == 0, result.output
    assert "3 of 3 writes acknowledged, " in result.output
    values: dict[bytes, list[bytes | None]] = {}
    for key, value in cluster.applied:
        values.setdefault(key, []).append(value)
    assert values == {b"a": [b"abcabcabcabcabcabcab", None], b"b": [b"xyz"]}
    report = orjson.loads((tmp_path / "r.json").read_bytes())
    counts = {"operations": 3, "acked": 3, "refused": 0, "resent": 0, "last_error": ""}
    assert report.items() >= counts.items()
    assert report.keys() == {*counts, "longest_write_ms", "seconds"}
    assert 0 < report["seconds"] < 60


def test_a_refused_write_is_an_error_with_its_reason(trace: Path, tmp_path: Path) -> None:
    with FailingCluster(1, refused=b"a") as cluster:
        result = played(cluster, trace, "--report", tmp_path / "r.json")
    assert result.exit_code == 1
    assert "Error: 2 writes were refused: " in result.output
    assert "max.entry.bytes" in result.output
    report = orjson.loads((tmp_path / "r.json").read_bytes())
    assert (report["operations"], report["acked"], report["refused"]) == (3, 1, 2)


def test_a_report_that_could_not_be_written_is_refused_before_anything_is_played(trace: Path, tmp_path: Path) -> None:
    with FailingCluster(1) as cluster:
        result = played(cluster, trace, "--report", tmp_path / "none" / "r.json")
        assert cluster.applied == []
    assert result.exit_code == 2
    assert f"the folder {tmp_path / 'none'} does not exist" in result.output


def test_without_a_report_none_is_written(trace: Path, tmp_path: Path) -> None:
    with FailingCluster(1) as cluster:
        assert played(cluster, trace).exit_code == 0
    assert list(tmp_path.iterdir()) == [trace]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1", [("h", 1)]),
        ("h:1, i:2", [("h", 1), ("i", 2)]),
        ("[::1]:7001", [("::1", 7001)]),
    ],
)
def test_addresses_of_nodes(text: str, addresses: list[tuple[str, int]]) -> None:
    assert _addresses(text) == addresses


@pytest.mark.parametrize(
    ("text", "wrong"), [("", "''"), ("h", "'h'"), (":1", "':1'"), ("h:x", "'h:x'"), ("h:1,", "''")]
)
def test_what_is_no_address(text: str, wrong: str, trace: Path) -> None:
    with pytest.raises(click.BadParameter, match=f"{wrong} is not HOST:PORT"):
        _addresses(text)
    result = CliRunner().invoke(play, [str(trace), "--cluster", text])
    assert result.exit_code == 2
    assert "Invalid value for --cluster" in result.output


# -- demo ---------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "unacked": 0,
    "lost_acked": 0,
    "duplicates": 0,
    "diff_duplicates": 0,
    "phantoms": 0,
    "open_resets": 0,
    "differing_keys": 0,
    "final": None,
}


class Demo:
    """What the command asks of the demo, and in which order."""

    def __init__(self) -> None:
        self.outcome = dict(GOOD)
        self.settings: Settings | None = None
        self.calls: list[str] = []

    def run(self, settings: Settings, show: Any, present: Callable[[dict[str, Any], Any], None]) -> dict[str, Any]:
        self.settings = settings
        self.calls.append("run")
        present(self.outcome, "the environment")
        return self.outcome

    def stay(self, environment: Any) -> None:
        assert environment == "the environment"
        self.calls.append("stay")

    def show(self, report: dict[str, Any], console: Any) -> None:
        assert report is self.outcome
        self.calls.append("show")


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Demo:
    double = Demo()
    monkeypatch.setattr("deelog_proof.demo.run.run", double.run)
    monkeypatch.setattr("deelog_proof.demo.run.stay", double.stay)
    monkeypatch.setattr("deelog_proof.demo.report.show", double.show)
    return double


def demonstrated(*arguments: object) -> Result:
    return CliRunner().invoke(demo, [str(argument) for argument in arguments])


def test_options_are_those_of_the_demo(double: Demo, trace: Path, tmp_path: Path) -> None:
    assert demonstrated().exit_code == 0
    assert double.settings == Settings()
    given = ("--trace", trace, "--ops", 7, "--max-value", 16, "--nodes", 9, "--seed", -3, "--faults", "survivable")
    assert demonstrated(*given, "--files", tmp_path / "new").exit_code == 0
    assert double.settings == Settings(trace, 7, 16, 9, -3, "survivable", tmp_path / "new")
    assert demonstrated("--cache", "redis").exit_code == 0
    assert double.settings == Settings(cache="redis")


def test_it_says_what_is_next_unless_it_stays(double: Demo) -> None:
    result = demonstrated()
    assert double.calls == ["run", "show"]
    assert "ending all processes" in result.output
    assert "Next: `deelog demo --keep`" in result.output
    double.calls.clear()
    result = demonstrated("--keep")
    assert (result.exit_code, double.calls) == (0, ["run", "show", "stay"])
    assert "Next:" not in result.output


def test_a_report_in_a_folder_that_does_not_exist_is_refused_before_the_start(double: Demo, tmp_path: Path) -> None:
    result = demonstrated("--report", tmp_path / "none" / "r.json")
    assert (result.exit_code, double.settings) == (2, None)


def test_a_broken_promise_is_exit_code_1_and_in_the_report(double: Demo, tmp_path: Path) -> None:
    double.outcome["lost_acked"] = 1
    assert demonstrated("--report", tmp_path / "r.json").exit_code == 1
    assert orjson.loads((tmp_path / "r.json").read_bytes()) == double.outcome


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--nodes", "1"], "--faults all needs --nodes 2 at least, or use --faults none"),
        (["--nodes", "1", "--faults", "survivable"], "--faults survivable needs --nodes 2 at least"),
        (["--cache", "redis", "--nodes", "2"], "--cache redis needs --nodes 3 at least: fewer cannot elect a primary"),
        (["--files", "."], "--files . is not empty: name a new folder"),
        (["--trace", "none.tsv"], "'none.tsv' does not exist"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(double: Demo, arguments: list[str], problem: str) -> None:
    result = demonstrated(*arguments)
    assert (result.exit_code, double.calls) == (2, [])
    assert problem in " ".join(result.output.split())


def test_a_node_alone_needs_no_faults_and_a_folder_may_be_there(double: Demo, tmp_path: Path) -> None:
    assert demonstrated("--nodes", 1, "--faults", "none", "--files", tmp_path).exit_code == 0
    assert double.settings == Settings(nodes=1, faults="none", files=tmp_path)
    assert demonstrated("--nodes", 2).exit_code == 0
