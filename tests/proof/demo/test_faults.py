"""The faults: what each does to which part, in which order, and what it waits for."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from deelog_proof.demo import faults as module
from deelog_proof.demo.faults import (
    ALL,
    PAUSE_SECONDS,
    SURVIVABLE,
    kill_one,
    kill_owners,
    overflow,
    overflows,
    pause_kafka,
    restart_kafka,
    zombie,
)
from tests.proof.harness.doubles import Parts

NOW_NS = 1_700_000_000_123_456_789
STOP, GO_ON = int(signal.SIGSTOP), int(signal.SIGCONT)


class Log:
    """The topic's offsets: one partition. `hidden` says whether records are after the last stable one, look by look,
    the last answer for ever."""

    def __init__(self) -> None:
        self.hidden = [True]

    def ends(self, bootstrap: str, topic: str, committed: bool = True) -> dict[int, int]:
        assert (bootstrap, topic) == ("127.0.0.1:9", "p.c")
        if committed:
            return {0: 7, 1: 4}
        hidden = self.hidden.pop(0) if len(self.hidden) > 1 else self.hidden[0]
        return {0: 9 if hidden else 7, 1: 4}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(module, "end_offsets", log.ends)
    return log


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept, which takes no time."""
    slept: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=slept.append, time_ns=lambda: NOW_NS))
    return slept


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Log, slept: list[float]) -> Parts:
    """Three nodes. Waits poll ten times at once."""

    def until(condition: Callable[[], bool], seconds: float, what: str, every: float = 0.0) -> float:
        for turn in range(10):
            if condition():
                return turn / 4
        raise TimeoutError(what)

    monkeypatch.setattr(module, "until", until)
    monkeypatch.setattr(module, "is_stopped", lambda node: True)
    return Parts(tmp_path)


def draw() -> random.Random:
    return random.Random(1)


@pytest.mark.parametrize("fault", {fault.name: fault for fault in (*SURVIVABLE, *ALL)}.values(), ids=lambda f: f.name)
def test_what_happened_is_told_under_its_name_with_its_time(parts: Parts, fault: module.Fault) -> None:
    parts.monitor.totals, parts.monitor.refused = [0, 1], [0, 0, 1]
    happened = fault.run(parts.environment, draw())
    assert (happened.fault, happened.at_ms) == (fault.name, NOW_NS // 1_000_000)


def test_a_primary_is_killed_and_comes_back(parts: Parts) -> None:
    parts.cluster.owned = type(parts.cluster.owned)({"n2": 8})
    happened = kill_one(parts.environment, draw())
    assert parts.calls == [
        *("poll n2", "kill node n2", "wait without n2"),
        *("start node n2", "wait for node n2", "wait until whole"),
    ]
    assert (happened.nodes, happened.notes) == (["n2"], {"clients_moved_after_s": 1.25})
    assert parts.show.said == [
        "kill -9 of node n2, primary of 8 segments",
        "the others took over after 1.2 s",
        "n2 back, everything has its backups again after 2.0 s",
    ]


def test_victims_are_drawn(parts: Parts) -> None:
    victims = [kill_one(parts.environment, random.Random(seed)).nodes for seed in range(20)]
    assert {node for (node,) in victims} == {"n1", "n2", "n3"}
    assert kill_one(parts.environment, random.Random(7)).nodes == victims[7]


def test_both_owners_are_killed_at_once_and_come_back_once_a_lost_segment_is_reset(parts: Parts) -> None:
    parts.monitor.totals = [2, 2, 2, 3]
    happened = kill_owners(parts.environment, draw())
    one, other = happened.nodes
    assert parts.calls == [
        "total resets.owners_lost",
        *(f"poll {one}", f"poll {other}", f"kill node {one}", f"kill node {other}", f"wait without {one}, {other}"),
        *["total resets.owners_lost"] * 3,
        *(f"start node {one}", f"start node {other}", f"wait for node {one}", f"wait for node {other}"),
        "wait until whole",
    ]
    assert parts.show.said == [
        f"kill -9 of nodes {one} and {other} at once, both owners of some segments",
        "the others took over after 1.2 s",
        "lost segments are reset after 0.5 s more",
        f"{one} and {other} back, everything has its backups again after 2.0 s",
    ]


def test_lost_segments_that_are_not_reset_end_the_demo(parts: Parts) -> None:
    parts.monitor.totals = [2]
    with pytest.raises(TimeoutError, match="a lost segment to be reset"):
        kill_owners(parts.environment, draw())


def test_of_two_nodes_nobody_is_left_to_take_over(tmp_path: Path, parts: Parts) -> None:
    del parts.cluster.nodes[2]
    happened = kill_owners(parts.environment, draw())
    assert happened.notes == {}
    assert not any(call.startswith("wait without") for call in parts.calls)
    assert parts.calls[-1] == "wait until whole"


def test_a_zombie_is_stopped_in_a_transaction_and_goes_on_after_the_takeover(parts: Parts) -> None:
    parts.monitor.refused = [4, 4, 4, 5]
    happened = zombie(parts.environment, draw())
    (name,) = happened.nodes
    assert parts.calls == [
        *(f"signal {STOP} to node {name}", f"wait without {name}", f"signal {GO_ON} to node {name}"),
        *[f"poll {name}"] * 3,
        "wait until whole",
    ]
    assert happened.notes == {
        "transaction_open": True,
        "clients_moved_after_s": 1.25,
        "refused_commits": 1,
        "exit_code": None,
    }
    assert parts.show.said == [
        f"SIGSTOP of node {name} with a transaction open",
        "the others took over after 1.2 s",
        f"SIGCONT of node {name}: a zombie",
        "the zombie's commit was refused after 0.5 s",
        "all nodes back, everything has its backups again after 2.0 s",
    ]


def test_a_zombie_that_ends_at_the_refusal_is_started_again(parts: Parts) -> None:
    parts.cluster.owned = type(parts.cluster.owned)({"n1": 8})
    node = parts.cluster.nodes[0]
    send = node.send

    def ends(number: int) -> None:
        send(number)
        if number == GO_ON:
            node.pid, node.exit_code = None, 3

    node.send = ends  # type: ignore[method-assign]
    happened = zombie(parts.environment, draw())
    assert (happened.notes["exit_code"], happened.notes["refused_commits"]) == (3, 0)
    assert parts.calls[-3:] == ["start node n1", "wait for node n1", "wait until whole"]


def test_a_zombie_that_has_nothing_to_commit_is_stopped_again(parts: Parts) -> None:
    parts.cluster.owned = type(parts.cluster.owned)({"n1": 8})
    node = parts.cluster.nodes[0]
    send, awake = node.send, []

    def refused_the_second_time(number: int) -> None:
        send(number)
        awake.extend([number] if number == GO_ON else [])
        parts.monitor.refused = [len(awake) // 2]

    node.send = refused_the_second_time  # type: ignore[method-assign]
    happened = zombie(parts.environment, draw())
    signals = [call for call in parts.calls if call.startswith("signal")]
    assert signals == [f"signal {number} to node n1" for number in (STOP, GO_ON)] * 2
    assert happened.notes["refused_commits"] == 1
    assert "no commit of the zombie was refused in 30 s; once more" in parts.show.said
    assert parts.show.said[-3] == "SIGCONT of node n1: a zombie"


def test_a_zombie_whose_commit_is_never_refused_fails_the_demo(parts: Parts) -> None:
    with pytest.raises(TimeoutError, match=r"the commit of zombie n\d to be refused"):
        zombie(parts.environment, draw())
    assert sum(call.startswith(f"signal {GO_ON}") for call in parts.calls) == 3


@pytest.mark.parametrize(
    ("hidden", "stops", "opened"),
    [
        ([True], 1, True),
        ([False, True], 2, True),
        ([True, False, True, True], 2, True),  # somebody else's transaction, which ended
        ([False], 25, False),
    ],
)
def test_it_is_stopped_until_its_transaction_is_open(
    parts: Parts, log: Log, slept: list[float], hidden: list[bool], stops: int, opened: bool
) -> None:
    log.hidden, parts.monitor.refused = hidden, [0, 1]
    happened = zombie(parts.environment, draw())
    (name,) = happened.nodes
    signals = [call for call in parts.calls if call.startswith("signal")]
    assert signals == [f"signal {number} to node {name}" for _ in range(stops) for number in (STOP, GO_ON)]
    assert happened.notes["transaction_open"] is opened
    assert len([seconds for seconds in slept if seconds != 0.15]) == stops - 1
    assert all(0.01 <= seconds <= 0.15 for seconds in slept)
    assert (0.15 in slept) is any(hidden)
    told = "with a transaction open" if opened else "between transactions"
    assert parts.show.said[0].endswith(told)


def test_a_zombie_is_timed_from_its_last_stop(parts: Parts, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 10**9, 1_000_000))
    clock = SimpleNamespace(sleep=lambda seconds: None, time_ns=lambda: next(moments))
    monkeypatch.setattr(module, "time", clock)
    parts.monitor.refused = [0, 1]
    assert zombie(parts.environment, draw()).at_ms == 1


def test_a_node_is_looked_at_once_it_is_stopped(parts: Parts, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    answers = iter([False, False, True])

    def is_stopped(node: object) -> bool:
        looks.append("stopped?")
        return next(answers)

    def ends(bootstrap: str, topic: str, committed: bool = True) -> dict[int, int]:
        looks.append("offsets")
        return log.ends(bootstrap, topic, committed)

    monkeypatch.setattr(module, "is_stopped", is_stopped)
    monkeypatch.setattr(module, "end_offsets", ends)
    parts.monitor.refused = [0, 1]
    zombie(parts.environment, draw())
    assert looks == ["stopped?"] * 3 + ["offsets"] * 4  # two looks of two kinds of offsets


def test_kafka_is_paused_for_some_seconds(parts: Parts, slept: list[float]) -> None:
    pause_kafka(parts.environment, draw())
    assert parts.calls == ["pause Kafka", "resume Kafka", "wait until whole"]
    assert slept == [PAUSE_SECONDS]
    assert parts.show.said == ["Kafka paused for 3 s; the caches go on", "Kafka goes on"]


def test_kafka_goes_on_though_the_pause_is_interrupted(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=interrupted, time_ns=lambda: NOW_NS))
    with pytest.raises(KeyboardInterrupt):
        pause_kafka(parts.environment, draw())
    assert parts.calls == ["pause Kafka", "resume Kafka"]


def test_kafka_is_paused_until_an_op_log_overflows(parts: Parts) -> None:
    parts.monitor.totals = [3, 3, 3, 5]
    happened = overflow(parts.environment, draw())
    total = "total overflow.reset"
    assert parts.calls == [total, "pause Kafka", total, total, total, "resume Kafka", "wait until whole"]
    assert happened.notes == {"overflow_after_s": 0.5}
    assert parts.show.said == [
        "Kafka paused until op logs overflow",
        "op logs overflowed after 0.5 s; Kafka goes on",
    ]


def test_kafka_goes_on_though_nothing_overflows(parts: Parts) -> None:
    with pytest.raises(TimeoutError, match="an op log to overflow while Kafka is paused"):
        overflow(parts.environment, draw())
    assert parts.calls[-1] == "resume Kafka"
    parts.monitor.totals = [6]
    assert overflows(parts.environment.monitor) == 6


def test_kafka_is_killed_and_started_on_the_same_data(parts: Parts) -> None:
    restart_kafka(parts.environment, draw())
    assert parts.calls == ["kill Kafka", "start Kafka", "wait until whole"]
    assert parts.show.said == ["kill -9 of Kafka; the caches go on", "Kafka serves again"]
