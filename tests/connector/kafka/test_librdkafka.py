"""The port on librdkafka: in which thread each of its calls runs, and with what. Clients are doubles here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deelog_connector.kafka import librdkafka as module
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import PartitionEnd
from tests.connector.cache import config_of, run

CONFIG = config_of("h:1", "p")


def test_its_clock_goes_on_while_the_machine_sleeps() -> None:
    """A lease of before must not hold when it wakes. `time.monotonic` of Linux stands meanwhile."""
    (clock_id,) = Librdkafka.clock.monotonic.args  # type: ignore[attr-defined]
    assert clock_id == getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before = time.clock_gettime(clock_id)
    assert before <= Librdkafka.clock.monotonic() <= time.clock_gettime(clock_id)


class Threads:
    """Notes who runs what, and runs it at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ran: list[str] = []
        self.closed = False

    async def _run(self, by: str, call: Callable[..., Any], *args: Any) -> Any:
        self.ran.append(by)
        return call(*args)

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self._run("run", call, *args)

    async def write(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self._run("write", call, *args)

    async def work(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self._run("work", call, *args)

    def in_turn(self) -> str:
        return "in turn"

    async def close(self) -> None:
        self.closed = True


class Port(Librdkafka):
    """A port whose threads and clients only note what they are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Any, ...]] = []
        monkeypatch.setattr(module, "Threads", Threads)
        for name in ("Session", "Reader", "Notes", "Election", "publish", "fence", "still_holds", "first_behind"):
            monkeypatch.setattr(module, name, self._noted(name))
        monkeypatch.setattr(module, "KafkaAdmin", self._admin)
        super().__init__(7.0)

    def _noted(self, name: str) -> Callable[..., str]:
        def made(*given: Any) -> str:
            self.made.append((name, *given))
            return f"made {name}"

        return made

    def _admin(self, *given: Any) -> Any:
        self.made.append(("KafkaAdmin", *given))
        port = self

        class Admin:
            def __getattr__(self, name: str) -> Callable[..., str]:
                return port._noted(name)

        return Admin()

    @property
    def threads(self) -> Any:
        return self._threads

    def of(self, call: Awaitable[Any]) -> Any:
        """What a call returns; what was made meanwhile, and by whom it was run."""
        found: list[Any] = []
        self.made.clear()
        self.threads.ran.clear()

        async def work() -> None:
            found.append(await call)

        run(work(), 20)
        return found[0], self.made, self.threads.ran


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Port:
    return Port(monkeypatch)


def test_producers_share_a_thread_and_a_reader_is_made_in_one(port: Port) -> None:
    threads, size = port.threads, lambda: 5
    assert threads.seconds == 7.0
    assert port.of(port.session(CONFIG, "id", size)) == (
        "made Session",
        [("Session", threads.write, CONFIG, "id", size, 7.0)],
        [],
    )
    assert port.of(port.reader(CONFIG, "t")) == ("made Reader", [("Reader", "in turn", CONFIG, "t", 7.0)], ["run"])


def test_notes_and_elections_have_threads_of_all(port: Port) -> None:
    def elected(is_elected: bool) -> None: ...

    def refused(error: Exception) -> None: ...

    made: tuple[Any, ...] = (port.notes(CONFIG), port.election(CONFIG, "n1", elected, refused))
    assert made == ("made Notes", "made Election")
    run_ = port.threads.run
    assert port.made == [("Notes", run_, CONFIG), ("Election", run_, CONFIG, "n1", elected, refused, 7.0)]


def test_work_and_the_end_are_those_of_the_threads(port: Port) -> None:
    assert port.of(port.work(lambda text: text * 2, "ab")) == ("abab", [], ["work"])
    assert not port.threads.closed
    port.of(port.close())
    assert port.threads.closed


def test_ids_differ_and_the_clock_of_the_day_is_that_of_the_machine(port: Port) -> None:
    first, second = port.new_id(), port.new_id()
    assert first != second
    assert str(uuid.UUID(first)) == first
    assert abs(port.clock.time_ns() - time.time_ns()) < 1e9
    assert 0.0 <= port.random.random() < 1.0


END = PartitionEnd(0, 5, 1)


@pytest.mark.parametrize(
    ("name", "given", "asked"),
    [
        ("ensure", ("t", 3, {"a": "b"}), ("ensure", "t", 3, {"a": "b"})),
        ("settings", ("t",), ("settings", "t")),
        ("state", ("t",), ("state", "t")),
        ("ends", ("t", [1]), ("ends", "t", [1], True)),
        ("ends", ("t", [1], False), ("ends", "t", [1], False)),
        ("still_holds", ("t", END), ("still_holds", CONFIG, "t", END, 7.0)),
        ("publish", ("t", "k", b"v"), ("publish", CONFIG, "t", "k", b"v", 7.0)),
        ("fence", ("id",), ("fence", CONFIG, "id", (), 7.0)),
        ("fence", ("id", [("t", 1)]), ("fence", CONFIG, "id", [("t", 1)], 7.0)),
        ("close", (), ("close",)),
    ],
)
def test_each_request_runs_in_a_thread(port: Port, name: str, given: tuple[Any, ...], asked: tuple[Any, ...]) -> None:
    brokers = port.brokers(CONFIG)
    assert port.made == [("KafkaAdmin", CONFIG, 7.0)]
    answer, made, ran = port.of(getattr(brokers, name)(*given))
    assert (made, ran) == ([asked], ["run"])
    returns = name in ("settings", "state", "ends", "still_holds")
    assert answer == (f"made {name}" if returns else None)
