"""The controller at work: its term, whom it fences, and when it decides. Kafka is a double, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson
import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka_port import KafkaPort, NotController, WriteFailed
from deelog_interceptors.grid.replication.frames import Heard, Heartbeat
from deelog_interceptors.grid.settings import Settings
from deelog_interceptors.grid.topology.controller_service import MAX_FENCES, ControllerService
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.requests import RESET_DONE, SHRINK, Request
from deelog_interceptors.grid.topology.topic import TopologyRecord
from deelog_interceptors.grid.topology.view import Registration, State, View, decode_view, encode_view
from tests.connector.cache import config_of
from tests.support.memory import Memory
from tests.support.waiting import awaiting

A, B, C, D = "a@1", "b@1", "c@1", "d@1"
CONFIG = config_of("h:1", "p", cache_failure_timeout_ms=1000)


class Kafka:
    """The port, its brokers and its election. What is committed is read at once, unless `held`."""

    def __init__(self, memory: Memory) -> None:
        self.clock = self
        self._loop = memory.loop
        self.registry = Registry(CONFIG.topics.topology, 8, lambda view: None, lambda: None)
        self.calls: list[str] = []
        self.committed: list[tuple[str, bytes]] = []
        self.held = False
        self.hides = ""
        """The key of records that nobody gets to read."""
        self.fails: BaseException | None = None
        """Raised by the next commit."""
        self.cannot_fence: set[str] = set()
        self.held_up: set[str] = set()
        self.fencing = self.most_fencing = 0
        self.fences_end: asyncio.Event | None = None
        self.on_elected: Callable[[bool], None]
        self.on_refused: Callable[[Exception], None]
        self.group: set[str] | None = {A}
        """The members that Kafka hears; None while it does not answer."""
        self.asked = 0
        self.stopped = 0.0
        """How long the process was stopped."""
        self._ids = 0

    def monotonic(self) -> float:
        return self._loop.time() + self.stopped

    def brokers(self, config: object) -> Kafka:
        return self

    def election(
        self,
        config: object,
        client_id: str,
        on_elected: Callable[[bool], None],
        on_refused: Callable[[Exception], None],
    ) -> Kafka:
        self.on_elected, self.on_refused = on_elected, on_refused
        return self

    def new_id(self) -> str:
        self._ids += 1
        return f"id {self._ids}"

    def start(self) -> None:
        self.calls.append("start")

    async def take(self) -> None:
        self.calls.append("take")

    def rejoin(self, aside: float = 0.0) -> None:
        self.calls.append(f"rejoin, {aside} s aside" if aside else "rejoin")

    async def members(self, group: str) -> frozenset[str]:
        self.asked += 1
        if self.group is None:
            raise KafkaUnavailable("no answer about the group")
        return frozenset(self.group)

    async def stop(self) -> None:
        self.calls.append("stop")

    async def commit(self, records: Sequence[tuple[str, bytes]]) -> None:
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        self.committed += records
        if not self.held:
            self.read([record for record in records if record[0] != self.hides])

    def read(self, records: Sequence[tuple[str, bytes]]) -> None:
        """The node reads these records of the topic."""
        self.registry.read([TopologyRecord(len(self.committed), key, value) for key, value in records])

    async def fence(self, transactional_id: str) -> None:
        self.fencing += 1
        self.most_fencing = max(self.most_fencing, self.fencing)
        try:
            if self.fences_end is not None:
                await self.fences_end.wait()
            if transactional_id in self.cannot_fence:
                raise WriteFailed(Cause.LOST, "no coordinator")
            if transactional_id in self.held_up:
                raise WriteFailed(Cause.LOST, "the last transaction does not end", held_up=True)
        finally:
            self.fencing -= 1
        self.calls.append(f"fence {transactional_id}")


class Desk:
    """The service of `a@1`, and the heartbeats of members."""

    def __init__(self, memory: Memory, *members: str, floor: int = 0) -> None:
        self.kafka = Kafka(memory)
        self.errors: list[BaseException] = []
        self.service = ControllerService(
            CONFIG,
            cast(KafkaPort, self.kafka),
            A,
            self.kafka.registry,
            Settings.of(CONFIG),
            floor=lambda: floor,
            on_error=self.errors.append,
            on_refused=lambda error: None,
        )
        self.alive = set(members)
        self.requests: dict[str, list[Request]] = {}
        self.answers: dict[str, Heard | None] = {}
        self.number = 0
        for member in members:
            self.register(member)

    def register(self, member: str) -> None:
        """The record of a member's registration is read."""
        self.kafka.read([self.kafka.registry.registration(Registration(member, "h:1", "h:2"))])

    @property
    def view(self) -> View:
        return self.kafka.registry.view

    def beat(self) -> None:
        """A heartbeat of each that lives, and an answer to each."""
        self.number += 1
        for member in sorted(self.alive):
            requests = self.requests.get(member, [])
            beat = Heartbeat(self.number, self.view.topology_id, False, requests)
            self.answers[member] = self.service.heartbeat(member, beat)

    async def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        """Lets members beat five times in each timeout until this holds."""

        turns = itertools.count()

        def holds() -> Any:
            if next(turns) % 20 == 0:
                self.beat()
            return condition()

        await awaiting(holds, seconds, "the controller")

    async def hold(self) -> None:
        """It is elected, and publishes a view in which all segments have a primary."""
        self.kafka.on_elected(True)
        await self.until(lambda: self.view.rows[0].state is State.ONLINE and len(self.view.members) == len(self.alive))
        await self.until(lambda: all(self.answers.values()))

    def views(self) -> list[View]:
        """All views that were committed."""
        return [decode_view(value) for key, value in self.kafka.committed if key == "view"]


def fence_of(member: str) -> str:
    return f"fence {CONFIG.topics.transactional_id_node(member.partition('@')[0])}"


def test_a_term_begins_once_its_own_record_is_read(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, floor=40)
        desk.service.start()
        assert desk.kafka.calls == ["start"]
        desk.beat()
        assert desk.answers == {A: None, B: None}
        desk.kafka.held = True
        desk.kafka.on_elected(True)
        await awaiting(lambda: desk.kafka.committed, 10, "its record")
        for _ in range(10):
            await asyncio.sleep(0)
        assert (desk.kafka.calls, desk.service.holds, desk.service.terms) == (["start", "take"], False, 0)
        ((key, value),) = desk.kafka.committed
        assert (key, orjson.loads(value)) == ("controller", {"member": A, "nonce": "id 1"})
        desk.kafka.held = False
        desk.kafka.read([(key, value)])
        await awaiting(lambda: desk.service.holds, 10, "the term")
        assert desk.service.terms == 1
        began = desk.kafka.monotonic()
        await desk.until(lambda: desk.views())
        assert desk.views()[0].topology_id == 10_041  # there may have been views: their ids are passed over
        assert desk.kafka.monotonic() - began >= 5.0  # somebody may know the view under which others have claimed
        await desk.until(lambda: desk.view.rows[0].state is State.ONLINE)
        assert {row.primary for row in desk.view.rows} == {A, B}
        assert desk.service.views == len(desk.views())
        desk.beat()
        assert desk.answers[B] == Heard(desk.number, desk.view.topology_id)
        await desk.service.stop()

    memory.run(run())


def test_a_view_that_was_lost_is_written_anew_once(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        before = desk.views()
        assert len({view.topology_id for view in before}) == len(before)
        desk.service.lost()
        await desk.until(lambda: len(desk.views()) > len(before))
        await desk.until(lambda: desk.number > 20)
        assert desk.views() == [*before, before[-1]]
        desk.alive -= {B}  # later ones may have been lost: their ids are passed over
        await desk.until(lambda: B not in desk.view.members)
        assert desk.view.topology_id == before[-1].topology_id + 10_001
        await desk.service.stop()

    memory.run(run())


def test_a_controller_that_has_lost_views_waits_until_all_have_told_what_they_know(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        before = desk.views()
        desk.alive -= {B}
        desk.service.lost()
        began = desk.kafka.monotonic()
        await desk.until(lambda: len(desk.views()) > len(before))
        assert 5.0 <= desk.kafka.monotonic() - began < 6.0
        assert desk.views()[len(before)] == before[-1]
        await desk.service.stop()

    memory.run(run())


def test_a_topic_without_a_view_gets_the_one_that_a_member_knows(memory: Memory) -> None:
    async def run() -> None:
        old = Desk(memory, A, B)
        old.service.start()
        await old.hold()
        known, size = old.view, len(old.views())
        assert size > 0
        await old.service.stop()
        desk = Desk(memory, A, floor=known.topology_id)
        desk.service.start()
        desk.kafka.on_elected(True)
        await desk.until(lambda: desk.service.holds)
        await asyncio.sleep(1.0)
        desk.register(B)
        desk.kafka.read([("view", encode_view(known))])  # told by B, which has noticed that the topic was lost
        desk.alive.add(B)
        await desk.until(lambda: "rejoin" in desk.kafka.calls)
        assert desk.views() == []
        desk.kafka.on_elected(True)
        await desk.until(lambda: desk.service.holds)
        await desk.until(lambda: all(desk.answers.values()))
        assert desk.view == known
        await desk.service.stop()

    memory.run(run())


def test_a_cache_that_nobody_has_claimed_gets_its_first_view_at_once(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A)
        desk.service.start()
        began = desk.kafka.monotonic()
        await desk.hold()
        assert desk.kafka.monotonic() - began < 5.0
        await desk.service.stop()

    memory.run(run())


def test_with_an_older_view_than_a_member_it_decides_nothing_until_it_has_read_it(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        before, later = desk.views(), desk.view._replace(topology_id=desk.view.topology_id + 5)
        desk.alive -= {C}
        for _ in range(20):  # four timeouts: C is dead, and a view without it is due
            desk.service.heartbeat(B, Heartbeat(desk.number, later.topology_id, False, []))
            await asyncio.sleep(desk.service._settings.failure_timeout / 5)
        assert desk.views() == before
        desk.kafka.calls.clear()
        desk.kafka.read([("view", encode_view(later))])
        await awaiting(lambda: "rejoin" in desk.kafka.calls, 10, "the end of the term")
        assert "a member knows a later view" in caplog.text
        desk.kafka.on_elected(True)
        await desk.until(lambda: C not in desk.view.members)
        assert desk.view.topology_id > later.topology_id
        await desk.service.stop()

    memory.run(run())


def test_a_record_of_its_own_that_was_lost_is_written_again(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A)
        desk.kafka.held, desk.kafka.group = True, None
        desk.kafka.on_elected(True)
        await awaiting(lambda: desk.kafka.committed, 10, "its record")
        await asyncio.sleep(3.0)
        assert len(desk.kafka.committed) == 1
        desk.service.lost()
        await awaiting(lambda: len(desk.kafka.committed) > 1, 10, "its record once more")
        assert desk.kafka.committed[1] == desk.kafka.committed[0]
        desk.kafka.held = False
        desk.kafka.read([desk.kafka.committed[1]])
        await awaiting(lambda: desk.service.holds, 10, "the term")
        await desk.service.stop()

    memory.run(run())


def test_a_record_of_its_own_that_kafka_hides_is_written_again(memory: Memory) -> None:
    """The end of its transaction is lost where the topic has no leader: the next one of the id shows both."""

    async def run() -> None:
        desk = Desk(memory, A)
        desk.kafka.held = True
        desk.kafka.on_elected(True)
        await awaiting(lambda: len(desk.kafka.committed) == 3, 10, "its record, each second")
        assert desk.kafka.monotonic() >= 2.0
        assert len(set(desk.kafka.committed)) == 1
        desk.kafka.held = False
        desk.kafka.read(desk.kafka.committed[:1])
        await awaiting(lambda: desk.service.holds, 10, "the term")
        await desk.service.stop()

    memory.run(run())


def test_a_view_that_kafka_hides_is_written_again(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        before, views = desk.views(), desk.service.views
        desk.kafka.hides, desk.kafka.group = "view", None  # it may be Kafka that is away
        desk.alive -= {C}
        await desk.until(lambda: len(desk.views()) > len(before))
        began, hidden = desk.kafka.monotonic(), desk.views()[-1]
        await desk.until(lambda: desk.kafka.monotonic() - began > 5.0)
        assert desk.views() == [*before, hidden]
        desk.kafka.group = {A, B, C}
        await desk.until(lambda: len(desk.views()) == len(before) + 3)
        assert desk.kafka.monotonic() - began > 6.0  # a timeout after each
        assert desk.views() == [*before, hidden, hidden, hidden]
        desk.kafka.hides = ""
        desk.kafka.read([("view", encode_view(hidden))])
        await desk.until(lambda: desk.kafka.monotonic() - began > 12.0)
        assert desk.views() == [*before, hidden, hidden, hidden]
        assert desk.service.views == views + 1
        await desk.service.stop()

    memory.run(run())
    assert caplog.text.count("is committed and not read") == 2


def test_a_silent_member_is_fenced_before_a_view_leaves_it_out(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await asyncio.sleep(100)
        await desk.hold()
        silent_since = memory.loop.time()
        desk.alive -= {C}
        desk.kafka.calls.clear()
        views = desk.service.views
        desk.kafka.fences_end = asyncio.Event()
        await desk.until(lambda: desk.kafka.fencing)
        await asyncio.sleep(0.1)
        assert (desk.service.deaths, desk.service.views) == (0, views)
        desk.kafka.fences_end.set()
        await desk.until(lambda: C not in desk.view.members)
        assert 0.8 < memory.loop.time() - silent_since < 2.0
        assert (desk.service.deaths, desk.kafka.calls) == (1, [fence_of(C)])
        (detected,) = desk.service.detection_ms
        assert 1000 < detected < 1400
        assert desk.service.views > views
        assert "c@1 is dead, its producer is fenced" in caplog.messages
        await desk.service.stop()

    memory.run(run())


def test_one_that_cannot_be_fenced_stays_in_the_view_and_is_tried_again(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        desk.alive -= {C}
        desk.kafka.cannot_fence = {CONFIG.topics.transactional_id_node("c")}
        words = "the producer of c@1 cannot be fenced: "
        await desk.until(lambda: words in caplog.text)
        first = memory.loop.time()
        await desk.until(lambda: caplog.text.count(words) == 2)
        assert 1.0 <= memory.loop.time() - first < 1.5
        assert (C in desk.view.members, desk.service.deaths) == (True, 0)
        desk.kafka.cannot_fence = set()
        await desk.until(lambda: C not in desk.view.members)
        assert desk.service.deaths == 1
        await desk.service.stop()

    memory.run(run())


def test_one_whose_producer_is_held_up_leaves_the_view(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    """A partition has lost its replicas: whoever takes a segment over fences the producer that has claimed it."""

    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        desk.alive -= {C}
        desk.kafka.held_up = {CONFIG.topics.transactional_id_node("c")}
        await desk.until(lambda: C not in desk.view.members)
        assert "the last transaction does not end" in caplog.text
        await desk.service.stop()

    memory.run(run())


def test_a_controller_that_hears_less_than_half_gives_up_the_seat_if_kafka_hears_the_others(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    """It evicted both of two nodes that were well, and reset the segments that only they had."""

    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        before = desk.views()
        number = next(number for number, row in enumerate(desk.view.rows) if row.primary == A)
        desk.kafka.group, desk.alive, silent_since = {A, B, C}, {A}, memory.loop.time()
        desk.kafka.calls.clear()
        await desk.until(lambda: desk.kafka.asked)
        desk.requests = {A: [Request(SHRINK, number, desk.view.rows[number].epoch, B)]}  # A is cut off from B as well
        await desk.until(lambda: desk.kafka.calls)
        # By then Kafka would have dropped a dead one from the group.
        assert 4.0 < memory.loop.time() - silent_since < 4.5
        assert (desk.kafka.calls, desk.service.deaths) == (["rejoin, 16.0 s aside"], 0)
        assert desk.views() == before
        assert "Kafka hears b@1, c@1, this node does not, and hears less than half" in caplog.text
        desk.beat()
        assert desk.answers[A] is None
        await desk.service.stop()
        assert desk.errors == []

    memory.run(run())


def test_those_that_kafka_does_not_hear_either_are_dead_however_many(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, C, D)
        await desk.hold()
        desk.kafka.group, desk.alive = {A, B, C}, {A}
        await desk.until(lambda: D not in desk.view.members)  # it waits for no other
        asked = desk.kafka.asked
        await desk.until(lambda: desk.kafka.asked > asked + 3)
        assert (set(desk.view.members), desk.service.deaths) == ({A, B, C}, 1)
        desk.kafka.group = {A}
        await desk.until(lambda: desk.view.members.keys() == {A})
        assert desk.service.deaths == 3
        await desk.service.stop()

    memory.run(run())


def test_one_that_joins_again_is_not_dead_for_the_moment_in_which_it_is_in_no_group(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        desk.kafka.group, desk.alive = {A, B, C}, {A}
        await desk.until(lambda: desk.kafka.asked)
        for group in ({A}, {A, B, C}, {B, C}, {A, B, C}):  # nor if Kafka does not even hear the one that asks
            desk.kafka.group, asked = group, desk.kafka.asked
            await desk.until(lambda asked=asked: desk.kafka.asked > asked)  # type: ignore[misc]
        assert (set(desk.view.members), desk.service.deaths) == ({A, B, C}, 0)
        await desk.service.stop()

    memory.run(run())


def test_as_long_as_kafka_does_not_say_whom_it_hears_nobody_is_declared_dead(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        desk.kafka.group, desk.alive = None, {A}
        await desk.until(lambda: desk.kafka.asked > 30)
        assert (set(desk.view.members), desk.service.deaths) == ({A, B, C}, 0)
        assert "no answer about the group" in caplog.text
        desk.kafka.group = {A}
        await desk.until(lambda: desk.view.members.keys() == {A})
        await desk.service.stop()
        assert "rejoin" not in " ".join(desk.kafka.calls)

    memory.run(run())


@pytest.mark.parametrize("heard", [True, False])
def test_a_segment_is_not_given_away_as_long_as_kafka_hears_one_that_has_it(
    memory: Memory, caplog: pytest.LogCaptureFixture, heard: bool
) -> None:
    """With one of two gone this node hears half of the view, so the silent one is dead: that it lives, Kafka knows."""

    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        desk.kafka.group, desk.alive = ({A, B} if heard else {A}), {A}
        await desk.until(lambda: B not in desk.view.members)
        assert desk.kafka.asked == 0
        offline = [number for number, row in enumerate(desk.view.rows) if row.state is State.OFFLINE]
        assert offline
        await desk.until(lambda: desk.kafka.asked > 20 or (not heard and desk.view.rows[offline[0]].must_reset))
        assert [desk.view.rows[number].must_reset for number in offline] == [
            None if heard else "owners_lost" for _ in offline
        ]
        assert caplog.messages.count("segments wait for b@1: alive, but not heard here") == heard
        if heard:
            desk.alive |= {B}
            await desk.until(lambda: all(row.state is State.ONLINE for row in desk.view.rows))
            assert {desk.view.rows[number].primary for number in offline} == {B}
        await desk.service.stop()

    memory.run(run())


def test_only_so_many_are_fenced_at_a_time(memory: Memory) -> None:
    async def run() -> None:
        others = [f"n{number}@1" for number in range(MAX_FENCES + 2)]
        desk = Desk(memory, A, *others)
        await desk.hold()
        desk.kafka.fences_end = asyncio.Event()
        desk.alive = {A}
        await desk.until(lambda: desk.kafka.fencing)
        for _ in range(10):
            await asyncio.sleep(0)
        assert desk.kafka.fencing == MAX_FENCES
        desk.kafka.fences_end.set()
        await desk.until(lambda: desk.view.members.keys() == {A})
        assert (desk.kafka.most_fencing, desk.service.deaths) == (MAX_FENCES, len(others))
        await desk.service.stop()

    memory.run(run())


def test_a_controller_that_was_replaced_answers_nobody_and_stands_again(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        desk.kafka.fails = NotController("fenced")
        desk.alive -= {B}
        await desk.until(lambda: "rejoin" in desk.kafka.calls)
        assert "a@1 is not controller: fenced" in caplog.messages
        assert (desk.service.holds, desk.errors) == (False, [])
        desk.beat()
        assert desk.answers[A] is None
        taken = desk.kafka.calls.count("take")
        await desk.until(lambda: desk.number > 30)
        assert desk.kafka.calls.count("take") == taken
        desk.kafka.on_elected(True)
        await desk.until(lambda: desk.service.holds)
        assert (desk.service.terms, desk.kafka.calls.count("take")) == (2, taken + 1)
        await desk.service.stop()

    memory.run(run())


def test_one_that_is_deposed_decides_no_more_but_answers_until_it_knows_of_another(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        desk.kafka.on_elected(False)
        assert not desk.service.holds
        views = desk.service.views
        desk.beat()
        assert desk.answers[B] == Heard(desk.number, desk.view.topology_id)
        desk.register(C)
        desk.alive |= {C}
        desk.service.changed()
        await desk.until(lambda: desk.number > 30)
        assert desk.service.views == views
        desk.kafka.read([("controller", orjson.dumps({"member": B, "nonce": "n"}))])
        desk.beat()
        assert desk.answers[A] is None
        await desk.service.stop()
        assert desk.errors == []

    memory.run(run())


def test_what_is_no_loss_of_the_seat_ends_the_node(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A)
        defect = RuntimeError("a defect")
        desk.kafka.fails = defect
        desk.kafka.on_elected(True)
        await awaiting(lambda: desk.errors, 10, "the error")
        assert desk.errors == [defect]
        await desk.service.stop()

    memory.run(run())


def test_one_that_resigns_answers_nobody(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        await desk.service.stop()
        desk.beat()
        assert (desk.answers, desk.service.holds) == ({A: None, B: None}, False)
        assert desk.kafka.calls[-1] == "stop"
        desk.service.refused(B)
        desk.service.doubt()
        assert desk.errors == []

    memory.run(run())


def test_after_a_pause_it_answers_once_kafka_has_confirmed_it(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        records = len(desk.kafka.committed)
        desk.service.doubt()
        desk.beat()
        assert desk.answers == {A: None, B: None}
        await awaiting(lambda: len(desk.kafka.committed) > records, 0.2, "a record at once")
        assert desk.kafka.committed[-1][0] == "controller"
        await asyncio.sleep(0.01)
        desk.beat()
        assert all(desk.answers.values())
        await desk.service.stop()

    memory.run(run())


def test_a_pause_of_its_own_is_held_against_nobody(memory: Memory) -> None:
    async def run() -> None:
        desk = Desk(memory, A, B)
        await desk.hold()
        desk.kafka.stopped = 20.0
        await desk.until(lambda: desk.number % 5 == 0)
        assert (desk.service.deaths, set(desk.view.members)) == (0, {A, B})
        await desk.service.stop()

    memory.run(run())


@pytest.mark.parametrize("news", ["a request", "a refused connection", "a registration", "nothing"])
def test_news_are_decided_at_once_and_all_of_a_moment_together(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    """Otherwise a decision comes four times in the timeout."""

    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        await desk.until(lambda: desk.number % 5 == 0)
        decided: list[float] = []
        decide = desk.service._decide

        async def noted(*given: Any) -> None:
            decided.append(memory.loop.time())
            await decide(*given)

        monkeypatch.setattr(desk.service, "_decide", noted)
        await awaiting(lambda: decided, 1.0, "a decision")
        begun = decided[0]
        await asyncio.sleep(0)
        if news == "a request":
            row = desk.view.rows[0]
            desk.requests = {str(row.primary): [Request(RESET_DONE, 0, row.epoch)]}
            desk.beat()
        elif news == "a refused connection":
            desk.service.refused(C)
            desk.service.refused(C)
        elif news == "a registration":
            desk.service.changed()
        await awaiting(lambda: len(decided) == 2, 1.0, "the next decision")
        assert decided[1] - begun == pytest.approx(0.26 if news == "nothing" else 0.01, abs=0.015)
        await desk.service.stop()

    memory.run(run())


def test_one_whose_connections_are_refused_is_dead_once_its_next_heartbeat_does_not_come(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        desk = Desk(memory, A, B, C)
        await desk.hold()
        assert "a@1 is controller from view 0 on" in caplog.messages
        desk.service.refused(C)
        assert not desk.service._event.is_set()
        desk.alive -= {C}
        desk.service.refused(C)
        assert desk.service._event.is_set()
        await desk.until(lambda: C not in desk.view.members, 0.9)  # sooner than by its silence
        await desk.service.stop()

    memory.run(run())
