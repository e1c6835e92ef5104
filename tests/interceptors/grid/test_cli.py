"""`deelog node`: how many clients the process may have, what it prints, and how it ends."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from deelog_connector.errors import NodeSuperseded
from deelog_interceptors.grid import cli
from deelog_interceptors.grid import node as grid_node
from deelog_interceptors.grid.cli import RESERVED_FILES, most_connections, node
from deelog_schemas.config import Config

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "allowed"),
    [
        (1024, 1_048_576, 1000 + RESERVED_FILES, 1000),
        (1024, NO_LIMIT, 1000 + RESERVED_FILES, 1000),
        (1000 + RESERVED_FILES, 1_048_576, None, 1000),
        (NO_LIMIT, NO_LIMIT, None, 1000),
        (1024, 1024, 1024, 1024 - RESERVED_FILES),
        (64, 64, 64, 32),
    ],
)
def test_clients_get_what_open_files_are_left(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, allowed: int
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append((kind, limits)))
    assert most_connections(1000) == allowed
    assert asked == ([] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))])


class FakeNode:
    """A node that was not started."""

    member, addresses, sources = "n1@7", ("h:1", "h:2"), ()

    def __init__(self, config: Config, *, after: str = "") -> None:
        self.config, self.after = config, after
        self.serves = False
        self.clock = SimpleNamespace(time_ns=lambda: 9_999_999)
        self.clients = SimpleNamespace(max_connections=100)
        self.lifecycle = SimpleNamespace(connectors={})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[FakeNode]:
    """The nodes that were served: each announces itself and ends."""
    found: list[FakeNode] = []

    async def run(
        config: Config, hosted: FakeNode, metrics: Callable[..., Any], on_start: Callable[[], None], *stopped: Any
    ) -> None:
        assert hosted.config is config
        assert metrics()[1].startswith("text/plain")
        found.append(hosted)
        on_start()

    monkeypatch.setattr(grid_node, "Node", FakeNode)
    monkeypatch.setattr(cli, "run", run)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "node.properties"
    made.write_text("bootstrap.servers=h:1\ntopic.prefix=p\ncache.name=c\nnode.id=n1\n")
    return made


@pytest.mark.parametrize("allowed", [100, 99])
def test_a_node_is_run_and_says_where_it_serves(
    served: list[FakeNode], file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, allowed: int
) -> None:
    monkeypatch.setattr(cli, "most_connections", lambda wanted: min(wanted, allowed))
    shown = CliRunner().invoke(node, ["--config", str(file)])
    assert (shown.exit_code, shown.stdout) == (0, "deelog node n1@7 serves h:1 peers h:2\n")
    (one,) = served
    assert (one.config["node.id"], one.clients.max_connections) == ("n1", allowed)
    few = "the limit of open files (ulimit -n) is enough for 99 clients, not for 100"
    assert caplog.messages == ([few] if allowed < 100 else [])


@pytest.mark.parametrize(
    ("found", "serves", "after"),
    [
        (["n1@9"], False, [""]),  # it has started later, while this one was slow
        (["n1@10"], False, ["", "n1@10"]),
        (["n1@10", "n1@12"], False, ["", "n1@10", "n1@12"]),
        (["n1@10"], True, [""]),  # it has taken this one's place
    ],
)
def test_a_start_that_finds_a_process_of_the_future_goes_on_behind_it(
    served: list[FakeNode],
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: list[str],
    serves: bool,
    after: list[str],
) -> None:
    stopped: set[object] = set()

    async def run(config: Config, hosted: FakeNode, *rest: object) -> None:
        served.append(hosted)
        stopped.add(rest[-1])
        hosted.serves = serves
        if len(served) <= len(found):
            raise NodeSuperseded(found[len(served) - 1], hosted.member)

    monkeypatch.setattr(cli, "run", run)
    shown = CliRunner().invoke(node, ["--config", str(file)])
    assert [one.after for one in served] == after
    assert len(stopped) == 1  # a signal between two starts counts for the next
    assert shown.exit_code == (6 if len(after) == 1 else 0)
    assert ("has the node.id of n1@7 and is newer" in shown.stderr) == (len(after) == 1)


def test_an_error_of_ours_is_one_line_and_its_exit_code(
    served: list[FakeNode], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(file.read_text() + "cache.acks=7\n")
    shown = CliRunner().invoke(node, ["--config", str(file)])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("deelog node: ")
    assert "cache.acks = '7': must be one of" in shown.stderr
    assert served == []


def test_references_are_looked_up_before_anything_begins(served: list[FakeNode], file: Path) -> None:
    file.write_text(file.read_text() + "max.batch.size=${env:DEELOG_TEST_NOT_SET}\n")
    shown = CliRunner().invoke(node, ["--config", str(file)])
    assert (shown.exit_code, served) == (2, [])
    assert "${env:DEELOG_TEST_NOT_SET} cannot be resolved" in shown.stderr


def test_a_connector_beside_a_server_is_not_run_as_a_node(served: list[FakeNode], file: Path) -> None:
    file.write_text(file.read_text() + "connector.class=deelog.RedisConnector\ncache.value.format=json\n")
    shown = CliRunner().invoke(node, ["--config", str(file)])
    assert (shown.exit_code, served) == (2, [])
    assert "connector.class: a connector beside a server is run by `deelog run`" in shown.stderr


def test_an_unknown_log_level_is_refused(file: Path) -> None:
    shown = CliRunner().invoke(node, ["--config", str(file), "--log-level", "loud"])
    assert shown.exit_code == 2
    assert "--log-level" in shown.stderr
