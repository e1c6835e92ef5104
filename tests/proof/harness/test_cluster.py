"""Nodes from outside: what they are asked over RESP, and what is made of their answers."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hiredis
import javaproperties
import pytest
import tenacity
from redis.exceptions import TimeoutError as RedisTimeout

from deelog_connector.devkafka.ports import HOST
from deelog_proof.harness import cluster as module
from deelog_proof.harness.child import ProcessError
from deelog_proof.harness.cluster import (
    Cluster,
    ClusterError,
    Held,
    Monitor,
    MovedError,
    Node,
    Slots,
    _sum,
    is_stopped,
)
from deelog_schemas.operation import Entry
from tests.proof.load.cluster_double import HELLO
from tests.support.waiting import waiting

SETTINGS = {"segment.count": "4", "topic.prefix": "p"}
Answers = dict[tuple[bytes, ...], bytes]


@contextmanager
def answering(answers: Answers) -> Iterator[int]:
    """A server of RESP: its port. Commands without an answer get `+OK`, with an empty one none at all."""

    def serve(connection: socket.socket) -> None:
        reader = hiredis.Reader()
        with connection:
            while data := connection.recv(65_536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    known = HELLO if command[0] == b"HELLO" else b"+OK\r\n"
                    connection.sendall(answers.get(tuple(command), known))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


class Lived(Node):
    """A node that may be told to run without a process."""

    alive = True

    @property
    def pid(self) -> int | None:
        return 1 if self.alive else None


def node_at(port: int, tmp_path: Path) -> Lived:
    node = Lived("n1", tmp_path, SETTINGS)
    node.port = port
    return node


# -- one node -----------------------------------------------------------------------------------------------------


def test_a_node_has_its_own_address_in_its_own_file(tmp_path: Path) -> None:
    node = Node("n7", tmp_path, {"cache.acks": "1", "node.id": "other"})
    config = dict(javaproperties.loads((tmp_path / "n7.properties").read_text()))
    assert config == {"cache.acks": "1", "node.id": "n7", "cache.listen": f"{HOST}:{node.port}"}
    assert (node.name, node.log) == ("node n7", tmp_path / "n7.log")
    assert node._command[-3:] == ["node", "--config", str(tmp_path / "n7.properties")]


def test_counters_are_those_of_its_answer(tmp_path: Path) -> None:
    answers: Answers = {(b"DEELOG.STATS",): bulk('{"unwritten": 3, "grid": {"member": "n1@5"}}')}
    with answering(answers) as port:
        node = node_at(port, tmp_path)
        assert node.stats() == {"unwritten": 3, "grid": {"member": "n1@5"}, "member": "n1@5"}
        answers[(b"DEELOG.STATS",)] = b"-ERR not now\r\n"
        assert node.stats() is None
        answers[(b"DEELOG.STATS",)] = bulk('{"grid": {"member": "n1@5"}}')
        node.alive = False
        assert node.stats() is None
    node.alive = True
    assert node.stats() is None, "nobody listens"


def test_an_answer_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    with answering({(b"DEELOG.STATS",): b""}) as port:
        node = node_at(port, tmp_path)
        with node.client(0.1) as client, pytest.raises(RedisTimeout):
            client.execute_command("DEELOG.STATS")


def test_primaries_are_those_of_its_view(tmp_path: Path) -> None:
    def row(first: int, last: int, port: int, backup: int) -> bytes:
        nodes = b"".join(b"*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$2\r\nid\r\n" % p for p in (port, backup))
        return b"*4\r\n:%d\r\n:%d\r\n%b" % (first, last, nodes)

    answers: Answers = {(b"CLUSTER", b"SLOTS"): b"*2\r\n" + row(0, 99, 7001, 7002) + row(100, 16383, 7002, 7001)}
    with answering(answers) as port:
        node = node_at(port, tmp_path)
        assert node.slots() == [Slots(0, 99, 7001), Slots(100, 16383, 7002)]
        answers[(b"CLUSTER", b"SLOTS")] = b"-ERR not now\r\n"
        assert node.slots() is None


def test_a_segment_is_dumped_with_its_role_and_position(tmp_path: Path) -> None:
    rows = b"*3\r\n$1\r\na\r\n$1\r\n1\r\n:-1\r\n*3\r\n$1\r\nb\r\n$1\r\n2\r\n:0\r\n*3\r\n$1\r\nc\r\n$1\r\n3\r\n:9\r\n"
    answers: Answers = {(b"DEELOG.DUMP", b"3"): b"*6\r\n$6\r\nbackup\r\n:7\r\n:42\r\n" + rows}
    with answering(answers) as port:
        node = node_at(port, tmp_path)
        with node.client() as client:
            entries = [Entry(b"a", b"1", None), Entry(b"b", b"2", 0), Entry(b"c", b"3", 9)]
            assert node.held(client, 3) == Held("backup", 7, 42, entries)
            answers[(b"DEELOG.DUMP", b"3")] = b"-ERR not now\r\n"
            with pytest.raises(ClusterError, match="node n1 does not dump segment 3: not now"):
                node.held(client, 3)


def printing(tmp_path: Path, code: str) -> Node:
    node = Node("n1", tmp_path, SETTINGS)
    node._command = [sys.executable, "-c", code]
    return node


def test_a_node_is_ready_once_it_has_printed_its_addresses(tmp_path: Path) -> None:
    node = printing(tmp_path, "import time; print('deelog node n1', flush=True); time.sleep(600)")
    node.start()
    try:
        node.wait_ready(60)
        assert node.line("deelog node ") == "n1"
    finally:
        node.kill()


def test_a_node_that_ends_or_says_nothing_is_not_ready(tmp_path: Path) -> None:
    node = printing(tmp_path, "raise SystemExit('no Kafka')")
    node.start()
    with pytest.raises(ProcessError, match="no Kafka"):
        node.wait_ready(60)
    node = printing(tmp_path, "import time; time.sleep(600)")
    node.start()
    try:
        with pytest.raises(TimeoutError, match="in vain for: node n1 to serve; its log"):
            node.wait_ready(0.2)
    finally:
        node.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_whether_a_node_is_stopped(tmp_path: Path) -> None:
    node = printing(tmp_path, "import time; print('deelog node n1', flush=True); time.sleep(600)")
    assert not is_stopped(node)
    node.start()
    try:
        node.wait_ready(60)
        assert not is_stopped(node)
        node.send(signal.SIGSTOP)
        waiting(lambda: is_stopped(node), 60, "the node to be stopped")
        node.send(signal.SIGCONT)
        waiting(lambda: not is_stopped(node), 60, "the node to go on")
    finally:
        node.kill()
    assert not is_stopped(node)


# -- all nodes ----------------------------------------------------------------------------------------------------


class Told:
    """A node of which a test tells all. Answers to `stats` and `slots`: the last one for ever."""

    def __init__(self, node_id: str, port: int) -> None:
        self.node_id, self.port, self.name = node_id, port, f"node {node_id}"
        self.pid: int | None = 1
        self.calls: list[str] = []
        self.answers: list[dict[str, Any] | None] = [grid()]
        self.views: list[list[Slots] | None] = [None]
        self.segments: dict[int, list[Held]] = {}

    def start(self) -> None:
        self.calls.append("start")

    def wait_ready(self) -> None:
        self.calls.append("ready")

    def must_run(self) -> None:
        if self.pid is None:
            raise ProcessError(f"{self.name} ended")

    def stats(self) -> dict[str, Any] | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def slots(self) -> list[Slots] | None:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    @contextmanager
    def client(self, seconds: float) -> Iterator[int]:
        assert seconds == module.DUMP_SECONDS
        yield self.port

    def held(self, client: int, segment: int) -> Held:
        assert client == self.port
        answers = self.segments[segment]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def grid(topology_id: int = 5, **told: Any) -> dict[str, Any]:
    owed = {"offline": 0, "under_replicated": 0, "moving": 0}
    return {"grid": {"topology_id": topology_id, **owed, **told}}


HALVES = [Slots(0, 8191, 7001), Slots(8192, 16383, 7002)]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Three nodes at 7001 to 7003; by their views, the first two have half of four segments each."""
    made = Cluster([], tmp_path, SETTINGS)
    nodes: Any = [Told(f"n{number}", 7000 + number) for number in (1, 2, 3)]
    made.nodes = nodes
    for node in nodes:
        node.views = [HALVES]
    return made


def told(cluster: Cluster, number: int) -> Told:
    node: Any = cluster.nodes[number]
    return node  # type: ignore[no-any-return]


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """Waits poll ten times at once; each is noted with its seconds."""
    waited: list[tuple[float, str]] = []

    def until(condition: Callable[[], bool], seconds: float, what: str, every: float) -> float:
        waited.append((seconds, what))
        for turn in range(10):
            if condition():
                return float(turn)
        raise TimeoutError(what)

    monkeypatch.setattr(module, "until", until)
    return waited


def test_nodes_have_the_shared_settings_and_their_own(tmp_path: Path) -> None:
    made = Cluster(["a", "b"], tmp_path, SETTINGS, {"b": {"topic.prefix": "q"}})
    read = {n.node_id: javaproperties.loads((tmp_path / f"{n.node_id}.properties").read_text()) for n in made.nodes}
    assert [read[name]["topic.prefix"] for name in ("a", "b")] == ["p", "q"]
    assert made.segments == 4
    assert made.addresses() == [(HOST, node.port) for node in made.nodes]
    assert made.by_port(made.nodes[1].port) is made.nodes[1]


def test_all_start_before_any_is_waited_for(cluster: Cluster, polls: list[tuple[float, str]]) -> None:
    calls: list[str] = []
    for number in range(3):
        told(cluster, number).calls = calls
    cluster.start()
    assert calls == ["start"] * 3 + ["ready"] * 3
    assert len(polls) == 1


def test_the_view_is_that_of_the_first_node_that_answers(cluster: Cluster) -> None:
    told(cluster, 0).views = [None]
    other = [Slots(0, 16383, 7003)]
    told(cluster, 1).views = [other]
    assert cluster.slots() == other
    told(cluster, 1).pid = None
    assert cluster.slots() == HALVES
    told(cluster, 2).views = [[]]
    assert cluster.slots() == []


def test_segments_are_counted_by_primary(cluster: Cluster) -> None:
    assert cluster.primaries() == {"n1": 2, "n2": 2}
    told(cluster, 0).views = [[Slots(0, 4095, 7001), Slots(4096, 12287, 7003), Slots(12288, 16383, 7001)]]
    assert cluster.primaries() == {"n1": 2, "n3": 2}


@pytest.mark.parametrize(
    "before",
    [
        None,
        grid(topology_id=4),
        grid(offline=1),
        grid(under_replicated=1),
        grid(moving=1),
    ],
)
def test_a_cluster_is_whole_once_all_nodes_agree_and_owe_nothing(
    cluster: Cluster, polls: list[tuple[float, str]], before: dict[str, Any] | None
) -> None:
    told(cluster, 1).answers = [before, before, grid()]
    assert cluster.wait_whole(17) == 2.0
    assert polls == [(17, "every segment to have a primary and all its backups in sync")]


def test_a_cluster_of_which_nobody_answers_or_one_ended_is_not_whole(
    cluster: Cluster, polls: list[tuple[float, str]]
) -> None:
    for number in range(3):
        told(cluster, number).answers = [None]
    with pytest.raises(TimeoutError):
        cluster.wait_whole()
    told(cluster, 2).pid = None
    with pytest.raises(ProcessError, match="node n3 ended"):
        cluster.wait_whole()


@pytest.mark.parametrize(
    "before",
    [
        None,
        [],
        HALVES,
        [Slots(0, 8191, 7003)],
        [Slots(0, 8191, 7003), Slots(8192, 16382, 7002)],
        [Slots(0, 16382, 7003), Slots(16383, 16383, 7001)],
    ],
)
def test_others_have_taken_over_once_they_have_all_slots(
    cluster: Cluster, polls: list[tuple[float, str]], before: list[Slots] | None
) -> None:
    after = [Slots(0, 8191, 7003), Slots(8192, 16383, 7002)]
    told(cluster, 1).views = [after]
    told(cluster, 2).views = [before, before, after]
    assert cluster.wait_without([cluster.nodes[0]]) == 2.0
    assert polls == [(module.SETTLE_SECONDS, "the other nodes to take over")]


def test_nodes_that_do_not_run_are_not_asked_who_took_over(cluster: Cluster, polls: list[tuple[float, str]]) -> None:
    told(cluster, 1).views = [None]
    told(cluster, 1).pid = None
    told(cluster, 2).views = [[Slots(0, 16383, 7003)]]
    assert cluster.wait_without([cluster.nodes[0]]) == 0.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading again takes no time, and is tried three times."""
    retrying: Any = Cluster._dump
    monkeypatch.setattr(retrying.retry, "sleep", lambda seconds: None)
    monkeypatch.setattr(retrying.retry, "stop", tenacity.stop_after_attempt(3))


def held(role: str, **entries: str) -> Held:
    return Held(role, 1, 1, [Entry(key.encode(), value.encode(), None) for key, value in entries.items()])


def values(entries: Mapping[bytes, Entry]) -> dict[bytes, bytes]:
    return {key: entry.value for key, entry in entries.items()}


@pytest.mark.usefixtures("patient")
def test_all_entries_are_those_of_the_primaries(cluster: Cluster) -> None:
    told(cluster, 0).segments = {0: [held("primary", a="1")], 1: [held("primary", b="2", c="3")]}
    told(cluster, 1).segments = {2: [held("primary")], 3: [held("primary", d="4")]}
    assert values(cluster.dump()) == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}


@pytest.mark.usefixtures("patient")
def test_the_segment_of_a_slot_is_that_of_its_first_one(cluster: Cluster) -> None:
    """Of three segments, the second begins at slot 5462, the third at 10923."""
    cluster.segments = 3
    told(cluster, 0).views = [[Slots(0, 5461, 7001), Slots(5462, 10922, 7002), Slots(10923, 16383, 7003)]]
    for number in range(3):
        told(cluster, number).segments = {number: [held("primary", **{f"k{number}": "v"})]}
    assert set(cluster.dump()) == {b"k0", b"k1", b"k2"}


@pytest.mark.usefixtures("patient")
def test_what_moves_is_read_again_by_the_next_view(cluster: Cluster) -> None:
    told(cluster, 0).views = [[Slots(0, 8191, 7001)], HALVES]
    told(cluster, 0).segments = {0: [held("primary", a="old"), held("primary", a="new")], 1: [held("primary")]}
    told(cluster, 1).segments = {2: [held("backup", b="x"), held("primary", b="1")], 3: [held("primary")]}
    told(cluster, 0).segments[0].append(held("primary", a="newest"))
    assert values(cluster.dump()) == {b"a": b"newest", b"b": b"1"}
    told(cluster, 1).segments[2] = [held("backup")]
    with pytest.raises(MovedError, match="node n2 is backup of segment 2, not primary"):
        cluster.dump()
    told(cluster, 0).views = [[Slots(0, 8191, 7001)]]
    with pytest.raises(MovedError, match="segment 2 has no primary"):
        cluster.dump()


# -- counters -----------------------------------------------------------------------------------------------------


def test_counters_of_all_processes_are_summed(cluster: Cluster) -> None:
    monitor = Monitor(cluster.nodes)
    first, second = told(cluster, 0), told(cluster, 1)
    for node, member, count in ((first, "n1@1", 1), (first, "n1@1", 2), (first, "n1@9", 10), (second, "n10@1", 100)):
        node.answers = [{"member": member, "fenced": count, "resets": {"overflow": count, "hole": 1}}]
        assert monitor.poll(node) == node.answers[0]
    first.answers = [None]
    assert monitor.poll(cluster.nodes[0]) is None
    assert monitor.total("fenced") == 112
    assert monitor.total("resets", "overflow") == 112
    assert monitor.total("resets") == 112 + 3
    assert [stats["fenced"] for stats in monitor.members(cluster.nodes[0])] == [2, 10]


def test_a_counter_that_is_not_there_counts_nothing() -> None:
    assert _sum({"a": {"b": 2}}, ("a", "c")) == 0
    assert _sum({}, ("a",)) == 0


def test_all_nodes_are_polled_until_it_is_stopped(cluster: Cluster) -> None:
    monitor = Monitor(cluster.nodes)
    for number in range(3):
        told(cluster, number).answers = [{"member": f"n{number + 1}@1", "fenced": 1}]
    monitor.start()
    waiting(lambda: monitor.total("fenced") == 3, 60, "a poll of all nodes")
    told(cluster, 0).answers = [{"member": "n1@1", "fenced": 5}]
    waiting(lambda: monitor.total("fenced") == 7, 60, "another poll")
    monitor.stop()
    assert "monitor" not in {thread.name for thread in threading.enumerate()}
