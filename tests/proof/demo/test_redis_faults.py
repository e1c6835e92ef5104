"""The faults of a cluster of Redis: what each does to real servers. Their connectors are doubles."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deelog_proof.demo import redis_faults as module
from deelog_proof.demo.redis_faults import UNREPLICATED, cut_link, flush, kill_connector, kill_primary, reshard
from deelog_proof.harness.redis_cluster import RedisCluster
from deelog_proof.load.player import Player
from deelog_proof.load.traces import Write
from tests.proof.harness.doubles import FakeMonitor, FakeNode, Parts
from tests.support.waiting import waiting

WRITES = [Write(f"k{number}".encode(), f"v{number}".encode(), None) for number in range(400)]


class Cluster(RedisCluster):
    """Whole once its servers are."""

    def wait_whole(self, seconds: float = 60.0) -> float:
        waiting(self.is_settled, seconds, "the cluster is whole")
        return 1.0


class Parts3:
    """A real cluster, with doubles around it."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(3, directory, {})
        self.real = self.cluster.processes
        calls: list[str] = []
        nodes: Any = [FakeNode(node.node_id, calls) for node in self.cluster.nodes]
        self.cluster.nodes, self.calls = nodes, calls
        parts = Parts(directory)
        self.said = parts.show.said
        monitor: Any = FakeMonitor(calls)
        self.environment: Any = parts.environment
        self.environment.cluster, self.environment.monitor = self.cluster, monitor

    def play(self, writes: list[Write]) -> None:
        Player(self.cluster.addresses(), replicas=1).run(writes)

    def keys(self) -> set[bytes]:
        return set(self.cluster.dump())


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts3]:
    made = Parts3(tmp_path)
    monkeypatch.setattr(module, "_AWAY_SECONDS", 0)
    try:
        made.cluster.start_servers()
        made.play(WRITES)
        yield made
    finally:
        for process in made.real:
            process.kill()


def draw() -> random.Random:
    return random.Random(1)


def test_a_primary_dies_with_what_it_alone_has(parts: Parts3) -> None:
    before = parts.cluster.primaries()
    happened = kill_primary(parts.environment, draw())
    assert (happened.fault, happened.notes["unreplicated"]) == ("kill-primary", 20)
    (killed,) = set(before) - set(parts.cluster.primaries())
    (promoted,) = set(parts.cluster.primaries()) - set(before)
    assert happened.nodes == [parts.cluster.connector_of(killed).node_id]
    assert parts.cluster.replica_of(promoted) is killed
    assert parts.keys() == {write.key for write in WRITES}, "what it alone had is lost, and nothing else"
    assert f"kill -9 of {killed.name}, a primary, with 20 writes that its replica has not" in parts.said


def test_what_the_primary_alone_has_is_written_to_it(parts: Parts3) -> None:
    (server, *_) = parts.cluster.primaries()
    assert module._write_unreplicated(server) == 20
    assert sum(entry.key.startswith(UNREPLICATED) for entry in server.entries()) == 20


def test_slots_with_keys_move(parts: Parts3) -> None:
    before = parts.cluster.dump()
    counts = {server.name: server.ask("DBSIZE") for server in parts.cluster.primaries()}
    happened = reshard(parts.environment, draw())
    assert happened.notes["slots"] == 20
    assert happened.notes["keys"] >= 20
    after = {server.name: server.ask("DBSIZE") for server in parts.cluster.primaries()}
    assert sorted(after[name] - counts[name] for name in counts) == [-happened.notes["keys"], 0, happened.notes["keys"]]
    assert parts.cluster.dump() == before


def test_a_connector_is_killed_and_comes_back(parts: Parts3) -> None:
    happened = kill_connector(parts.environment, draw())
    (name,) = happened.nodes
    assert parts.calls == [f"poll {name}", f"kill node {name}", f"start node {name}", f"wait for node {name}"]
    assert parts.keys() == {write.key for write in WRITES}


def test_a_link_is_cut_until_the_server_has_forgotten(parts: Parts3) -> None:
    process = subprocess.Popen(["/bin/sleep", "60"])
    sent: list[int] = []

    def send(number: int) -> None:
        sent.append(number)
        process.send_signal(number)

    for node in parts.cluster.nodes:
        node.pid, node.send = process.pid, send  # type: ignore[misc,method-assign]
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            parts.play([Write(write.key, b"x" * 1000, None) for write in WRITES])

    thread = threading.Thread(target=load)
    thread.start()
    try:
        happened = cut_link(parts.environment, draw())
    finally:
        ended.set()
        thread.join(60)
        process.kill()
        process.wait(10)
    assert sent == [signal.SIGSTOP, signal.SIGCONT]
    assert happened.notes["forgotten_after_s"] >= 0
    begins = [int(server.info()["repl_backlog_first_byte_offset"]) for server in parts.cluster.primaries()]
    assert sorted(begin > 1 for begin in begins) == [False, False, True]
    assert {server.info()["repl_backlog_size"] for server in parts.cluster.primaries()} == {64 << 20}


def test_a_primary_is_cleared(parts: Parts3) -> None:
    counts = [server.ask("DBSIZE") for server in parts.cluster.primaries()]
    happened = flush(parts.environment, draw())
    assert happened.notes["keys"] in counts
    assert sorted(server.ask("DBSIZE") == 0 for server in parts.cluster.primaries()) == [False, False, True]
