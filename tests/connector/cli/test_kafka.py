"""`deelog kafka`: what each command asks of the broker and prints. The broker is a double here."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from deelog_connector.cli.kafka import kafka
from deelog_connector.devkafka import broker, jars, running
from deelog_connector.devkafka.errors import BrokerFailed
from deelog_connector.devkafka.running import Running
from deelog_schemas import java


class Broker:
    """A broker that notes how it was made and used; `wait` returns `code`, or raises it."""

    bootstrap, pid, log = "127.0.0.1:9092", 42, Path("/data/broker.log")
    code: int | type[BaseException] = 0
    calls: list[Any]

    def __init__(self, data_dir: Path, port: int, heap: str, detached: bool) -> None:
        self.calls.append((data_dir, port, heap, detached))

    def start(self) -> None:
        self.calls.append("start")

    def __enter__(self) -> Broker:
        self.calls.append("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append("exit")

    def wait(self) -> int:
        if isinstance(self.code, int):
            return self.code
        raise self.code


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[Broker]:
    """The class of brokers that `start` makes."""
    monkeypatch.setattr(Broker, "calls", [], raising=False)
    monkeypatch.setattr(broker, "EmbeddedKafka", Broker)
    return Broker


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that is taken where none is named."""
    monkeypatch.setattr(java, "cache_dir", lambda: tmp_path)
    return tmp_path / "kafka"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kafka, arguments)


def test_a_broker_is_started_and_left_alone(made: type[Broker], cached: Path, tmp_path: Path) -> None:
    shown = run("start")
    assert made.calls == [(cached, 9092, "512m", True), "start"]
    assert (shown.exit_code, shown.stdout) == (0, "127.0.0.1:9092\n")
    assert shown.stderr == "process 42, log /data/broker.log; end it with `deelog kafka stop`\n"
    made.calls.clear()
    shown = run("start", "--port", "0", "--heap", "1g", "--data-dir", str(tmp_path / "mine"))
    assert made.calls == [(tmp_path / "mine", 0, "1g", True), "start"]
    assert shown.stderr.endswith(f"end it with `deelog kafka stop --data-dir {tmp_path / 'mine'}`\n")
    assert run("start", "--port", "65536").exit_code == 2


@pytest.mark.parametrize("code", [0, 128 + signal.SIGTERM, KeyboardInterrupt])
def test_one_in_the_foreground_ends_with_the_command(
    made: type[Broker], cached: Path, monkeypatch: pytest.MonkeyPatch, code: Any
) -> None:
    handlers: dict[int, Callable[..., Any]] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(made, "code", code)
    shown = run("start", "--foreground")
    assert (shown.exit_code, shown.stdout) == (0, "127.0.0.1:9092\n")
    assert shown.stderr == "process 42, log /data/broker.log; end it with Ctrl-C\n"
    assert made.calls == [(cached, 9092, "512m", False), "enter", "exit"]
    assert handlers == dict.fromkeys((signal.SIGTERM, signal.SIGINT), signal.default_int_handler)


def test_one_in_the_foreground_that_dies_is_an_error(
    made: type[Broker], cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(made, "code", -9)
    error = run("start", "--foreground").exception
    assert isinstance(error, BrokerFailed)
    assert str(error) == "Kafka ended with exit code -9: look at /data/broker.log"


def test_the_broker_of_a_folder_is_stopped(monkeypatch: pytest.MonkeyPatch, cached: Path) -> None:
    for runs, words in ((True, f"stopped the broker of {cached}"), (False, f"no broker runs on {cached}")):
        monkeypatch.setattr(running, "stop_running", lambda folder, runs=runs: runs and folder == cached)
        shown = run("stop")
        assert (shown.exit_code, shown.stdout) == (0, f"{words}\n")


def test_the_status_is_an_address_or_an_exit_code(monkeypatch: pytest.MonkeyPatch, cached: Path) -> None:
    monkeypatch.setattr(running, "running", lambda folder: Running(42, "127.0.0.1:9092") if folder == cached else None)
    shown = run("status")
    assert (shown.exit_code, shown.stdout) == (0, "127.0.0.1:9092\n")
    assert shown.stderr == f"process 42, data in {cached}\n"
    shown = run("status", "--data-dir", "/elsewhere")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (3, "", "no broker runs on /elsewhere\n")


def test_jars_are_paths_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "fetch", lambda name: [Path(f"/jars/{name}-{number}.jar") for number in (1, 2)])
    assert run("jars").stdout == "/jars/spark-kafka-1.jar,/jars/spark-kafka-2.jar\n"
    assert run("jars", "flink").stdout == "/jars/flink-1.jar,/jars/flink-2.jar\n"
    assert run("jars", "none").exit_code == 2
    (offered,) = [parameter.type for parameter in kafka.commands["jars"].params]
    assert isinstance(offered, click.Choice)
    assert set(offered.choices) <= set(jars.SETS)
