"""When a controller answers heartbeats: an answer is a lease, so only while nobody else can be controller.

Without Kafka: the office is begun as it is once its own record was read. What it asks of Kafka itself (the seat, the
fence, the commit of a view) is tested with real brokers in test_nodes.py and test_kafka_away.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from deelog_connector.kafka import group
from deelog_interceptors.grid.frames import Heard, Heartbeat
from deelog_interceptors.grid.office import Office
from deelog_interceptors.grid.registry import Registry
from deelog_interceptors.grid.view import Member, Row, State, View
from deelog_schemas.config import parse

A, B, C = "a@1", "b@1", "c@1"
TIMEOUT, LAPSE = 1.0, 5.0


class Desk:
    """The office of A, controller of a view of A, B and C, and a clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        # In that module alone: the event loop keeps its own time.
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("deelog_interceptors.grid.office.time", clock)
        fields = {"topic.prefix": "p", "cache.name": "c", "node.id": "a", "bootstrap.servers": "127.0.0.1:1"}
        registry = Registry("p.c.topology", 1, lambda _: None, lambda: None)
        members = {m: Member(m, "h:1", "h:2") for m in (A, B, C)}
        registry.view = View(7, A, members, (Row(State.ONLINE, 3, B, (B, C), (B, C)),))
        registry.controller = A
        self.errors: list[BaseException] = []
        self.office = Office(
            parse(fields),
            A,
            registry,
            copies=2,
            unclean=False,
            timeout=TIMEOUT,
            lapse=LAPSE,
            floor=lambda: 0,
            on_error=self.errors.append,
        )
        self.office._begin()
        self._beats = 0

    def answers(self, member: str) -> bool:
        """Whether a heartbeat of `member` is answered, with its own number and the view's id."""
        self._beats += 1
        answer = self.office.heartbeat(member, Heartbeat(self._beats, 7, False, []))
        assert answer in (None, Heard(self._beats, 7))
        return answer is not None

    def all_beat(self) -> list[bool]:
        return [self.answers(member) for member in (A, B, C)]


def on_desk(monkeypatch: pytest.MonkeyPatch, test: Callable[[Desk], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Desk(monkeypatch))

    asyncio.run(run())


def test_who_has_just_taken_office_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        assert desk.answers(B)
        desk.now += 0.9
        assert desk.all_beat() == [True, True, True]

    on_desk(monkeypatch, test)


def test_nobody_is_answered_while_a_member_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be controller, of a view that this node has not read."""

    async def test(desk: Desk) -> None:
        desk.all_beat()
        desk.now += 1.1
        assert not desk.answers(A)
        assert not desk.answers(B)
        desk.answers(C)
        assert desk.all_beat() == [True, True, True]

    on_desk(monkeypatch, test)


def test_a_refused_connection_counts_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process of that node may be controller by now."""

    async def test(desk: Desk) -> None:
        desk.all_beat()
        desk.office.refused(C)
        desk.now += 1.1
        assert [desk.answers(A), desk.answers(B)] == [False, False]

    on_desk(monkeypatch, test)


def test_after_a_pause_nobody_is_answered_until_the_seat_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        assert desk.all_beat() == [True, True, True]
        desk.office.doubt()
        assert desk.all_beat() == [False, False, False]
        desk.office._begin()  # its own record was read, in another term
        assert desk.all_beat() == [True, True, True]

    on_desk(monkeypatch, test)


def test_who_is_not_controller_answers_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(desk: Desk) -> None:
        desk.office._registry.controller = B
        assert desk.all_beat() == [False, False, False]

    on_desk(monkeypatch, test)


def test_one_that_is_being_declared_dead_is_not_answered_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view that leaves it out is under way, and counts the lease from its silence."""
    fencing, go_on = threading.Event(), threading.Event()

    def fence(*_: object) -> None:
        fencing.set()
        assert go_on.wait(10)
        raise group.SeatLost("the test ends here")

    async def test(desk: Desk) -> None:
        monkeypatch.setattr(group, "fence", fence)
        desk.all_beat()
        desk.office.refused(C)
        tick = asyncio.create_task(desk.office._tick())
        try:
            assert await asyncio.to_thread(fencing.wait, 10)
            assert desk.all_beat() == [True, True, False]
        finally:
            go_on.set()
            tick.cancel()
            await asyncio.gather(tick, return_exceptions=True)

    on_desk(monkeypatch, test)
