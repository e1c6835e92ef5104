"""Free ports, and waiting for a server. Brokers are doubles here, and the clock is one."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from deelog_connector.devkafka import ports
from deelog_connector.devkafka.ports import HOST, can_bind, free_port, free_ports, until, wait_until_it_serves


class Clock:
    """Time passes by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ports, "time", made)
    return made


def test_free_ports_are_different_and_can_be_bound() -> None:
    found = free_ports(5)
    assert len(set(found)) == 5
    assert all(can_bind(port) for port in [*found, free_port()])


def test_a_free_port_is_never_one_that_an_outgoing_connection_may_take() -> None:
    """A node that was killed found its port in use when it started again: a client's connection had it."""
    assert max(free_ports(50)) < 32_768


def test_a_taken_port_is_passed_over_and_too_few_free_ones_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as servers:
        taken, free, another = [servers.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        numbers = [server.getsockname()[1] for server in (taken, free, another)]
        free.close()
        another.close()
        monkeypatch.setattr(ports, "_BELOW_OUTGOING", numbers[:2])
        assert free_ports(1) == numbers[1:2]
        monkeypatch.setattr(ports, "_BELOW_OUTGOING", numbers[::2])
        with pytest.raises(OSError, match="fewer than 2 ports"):
            free_ports(2)


def test_a_port_is_not_returned_twice_and_stays_free_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server found its port in use: another process had drawn it in the moments before it was bound."""
    (port,) = free_ports(1)
    monkeypatch.setattr(ports, "_BELOW_OUTGOING", [port])
    with pytest.raises(OSError, match="fewer than 1 ports"):
        free_ports(1)
    socket.create_server((HOST, port)).close()


def test_a_port_with_a_listener_cannot_be_bound() -> None:
    with socket.create_server((HOST, 0)) as server:
        assert not can_bind(server.getsockname()[1])


def test_a_condition_is_asked_until_the_deadline_has_passed(clock: Clock) -> None:
    answers = iter([False, False, True])
    assert until(lambda: next(answers), 200.0)
    assert clock.sleeps == [0.05, 0.05]
    asked = 0

    def never() -> bool:
        nonlocal asked
        asked += 1
        return False

    clock.now = 100.0
    assert until(never, 103.0, every=1.0) is False
    assert asked == 5  # at 100, 101, 102, 103 and 104: once more after the deadline
    assert until(lambda: True, 0.0)


class Brokers:
    """What connects and answers after so many attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: int = 0, answers: list[Any] | None = None) -> None:
        self.refuses, self.answers = refuses, list(answers or [{1: "broker"}])
        self.clients: list[dict[str, Any]] = []
        self.dialled: list[tuple[str, int]] = []
        monkeypatch.setattr(ports, "AdminClient", self._client)
        monkeypatch.setattr(ports, "socket", SimpleNamespace(create_connection=self._connect))

    def _connect(self, address: tuple[str, int], timeout: float) -> Any:
        self.dialled.append(address)
        if self.refuses:
            self.refuses -= 1
            raise ConnectionRefusedError
        return SimpleNamespace(close=lambda: None)

    def _client(self, settings: dict[str, Any]) -> Any:
        self.clients.append(settings)
        return SimpleNamespace(list_topics=self._topics)

    def _topics(self, timeout: float) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(brokers=answer)


AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_broker_serves_once_its_metadata_names_one(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    brokers = Brokers(monkeypatch, refuses=3, answers=[AWAY, {}, {1: "broker"}])
    wait_until_it_serves("h.example:9092", 60.0)
    assert set(brokers.dialled) == {("h.example", 9092)}
    assert brokers.clients == [{"bootstrap.servers": "h.example:9092", "log_level": 0}]
    assert len(clock.sleeps) == 5
    assert brokers.answers == [{1: "broker"}]


@pytest.mark.parametrize(
    ("refuses", "answers", "words"),
    [(10_000, [{}], "did not open its port within 2 s"), (0, [{}], "did not answer within 2 s")],
)
def test_a_broker_that_does_not_serve_in_time_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, refuses: int, answers: list[Any], words: str
) -> None:
    brokers = Brokers(monkeypatch, refuses, answers)
    with pytest.raises(TimeoutError, match=f"^{words}$"):
        wait_until_it_serves("h:1", 2.0)
    assert 102.0 < clock.now < 102.2
    assert bool(brokers.clients) is (refuses == 0)


@pytest.mark.parametrize("refuses", [10_000, 0])
def test_the_wait_ends_with_what_its_check_raises(monkeypatch: pytest.MonkeyPatch, clock: Clock, refuses: int) -> None:
    Brokers(monkeypatch, refuses, [{}])

    def check() -> None:
        if clock.now > 101.0:
            raise RuntimeError("the process has ended")

    with pytest.raises(RuntimeError, match="the process has ended"):
        wait_until_it_serves("h:1", 60.0, check)
    assert clock.now < 101.2
