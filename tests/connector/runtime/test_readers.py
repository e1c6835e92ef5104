"""What a connector reads while it runs: states, signals, and the ends of the change topic. Kafka is doubles here."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from deelog_connector.core.effects import StateItem
from deelog_connector.errors import KafkaUnavailable, MapError, RecordError
from deelog_connector.kafka_port import PartitionEnd
from deelog_connector.kafka_port import InRecord
from deelog_connector.runtime import readers as module
from deelog_connector.runtime.encode import Encoder
from deelog_connector.runtime.meters import EventMeter
from deelog_connector.runtime.readers import Readers
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.header import Kind
from deelog_schemas.keys import claim_key, position_key
from deelog_schemas.positions import ClaimState, PositionState, State
from tests.connector.cache import config_of, run

CONFIG = config_of("h:1", "p", **{"retriable.restart.connector.wait.ms": "1"})
ENCODER = Encoder(JsonCodec("p.c", "test", "p", "c"), "p.c", CONFIG.topics.positions, "n1@1", True)
CLAIM = ClaimState(2, "n2@1", 8, 2, 1)


def record(kind: Kind, key: bytes, state: State | None) -> InRecord:
    (made,) = ENCODER.records([StateItem(kind, 3, 1, (2, 0), key, state)])
    return InRecord(made.topic, 1, 42, made.key, made.value, cast("Any", made.headers))


def claim(state: ClaimState | None = CLAIM) -> InRecord:
    return record(Kind.CLAIM_STATE, claim_key(3, "n2@1"), state)


POSITION = record(Kind.POSITION, position_key(3), PositionState(2, 5, 40, 5, 0, 10, 8, "id", "n2@1"))


class Tail:
    """Gives what is put into `batches`, and has caught up with the first `behind` of them."""

    made: list[Tail]

    def __init__(self, config: object, topic: str, partitions: int, serves: bool = False) -> None:
        self.arguments = (config, topic, partitions, serves)
        self.batches: queue.Queue[list[InRecord]] = queue.Queue()
        self.behind, self.closed = 1, 0
        Tail.made.append(self)

    @property
    def caught_up(self) -> bool:
        return self.behind <= 0

    def read(self, seconds: float) -> list[InRecord]:
        try:
            batch = self.batches.get(timeout=seconds)
        except queue.Empty:
            return []
        self.behind -= 1
        return batch

    def close(self) -> None:
        self.closed += 1


class Core:
    """Remembers what it hears, and doubts what it is told to."""

    def __init__(self) -> None:
        self.settings = cast("Any", type("Settings", (), {"segments": 8, "partitions": 2}))
        self.states: list[Any] = []
        self.ends: list[tuple[int, int, int, bool | None]] = []
        self.ids: list[str] = []
        self.doubted: set[int] = set()
        self.lost: list[int] = []

    def state_read(self, read: Any) -> None:
        self.states.append(read.state)

    def topic_is(self, topic_id: str) -> None:
        self.ids.append(topic_id)

    def end_of(self, partition: int) -> tuple[int, int]:
        return 100 + partition, 7

    def doubts(self, partition: int, offset: int, epoch: int) -> bool:
        return partition in self.doubted

    def end_read(self, partition: int, offset: int, epoch: int, intact: bool | None) -> list[int]:
        self.ends.append((partition, offset, epoch, intact))
        return self.lost


class Admin:
    """Answers with the ends of two partitions, unless there is a problem."""

    problem: Exception | None = None

    def topic_id(self, topic: str) -> str:
        assert topic == "p.c"
        return "id"

    def ends(self, topic: str, partitions: range) -> list[PartitionEnd]:
        if self.problem is not None:
            raise self.problem
        return [PartitionEnd(partition, 50 + partition, 8) for partition in partitions]


class Signals:
    """Those of a topic: they are read, then followed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def catch_up(self, blocking: Callable[..., Awaitable[Any]]) -> None:
        self.calls.append(await blocking(lambda: "caught up"))

    async def follow(self, blocking: Callable[..., Awaitable[Any]], stopping: Any) -> None:
        self.calls.append("followed")
        await blocking(stopping.wait, 10)
        self.calls.append("ended" if stopping.is_set() else "held up")


class World:
    """Readers among doubles."""

    def __init__(self, config: Any) -> None:
        Tail.made = []
        self.core, self.admin, self.signals, self.meter = Core(), Admin(), Signals(), EventMeter()
        self.tasks, self.retries = Tasks(4), Retries(lambda: config)
        self.wakes = self.pruned = 0
        clients = type("Clients", (), {"config": config, "admin": self.admin})()
        self.readers = Readers(
            cast("Any", self.core),
            cast("Any", clients),
            self.tasks,
            self.retries,
            cast("Any", self.signals),
            self.meter,
            wake=self.wake,
            pruned=self.prune,
        )

    def wake(self) -> None:
        self.wakes += 1

    def prune(self) -> None:
        self.pruned += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for it; the caller's time is bounded."""
        while not condition():
            if self.tasks.failure.done():
                self.tasks.failure.result()
            await asyncio.sleep(0.001)

    async def tail(self) -> Tail:
        await self.until(lambda: bool(Tail.made))
        return Tail.made[-1]


def of_a(monkeypatch: pytest.MonkeyPatch, test: Callable[[World], Awaitable[None]], config: Any = CONFIG) -> None:
    monkeypatch.setattr(module, "Tail", Tail)

    async def work() -> None:
        world = World(config)
        try:
            await test(world)
        finally:
            world.tasks.stopping.set()
            world.readers.stop()
            await world.tasks.cancel()
            world.tasks.shutdown()
            if not world.tasks.failure.done():
                world.tasks.failure.cancel()

    run(work(), 20)


# -- the positions topic --------------------------------------------------------------------------------------------


def test_states_go_to_the_core_and_only_claims_wake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        caught_up = world.readers.follow_positions()
        tail = await world.tail()
        assert tail.arguments == (CONFIG, CONFIG.topics.positions, 2, False)
        tail.batches.put([POSITION])
        await caught_up.wait()
        assert (len(world.core.states), world.pruned, world.wakes) == (1, 1, 0)
        tail.batches.put([claim(), claim(None)])
        await world.until(lambda: world.pruned == 3)
        assert world.core.states[1:] == [CLAIM, None]
        assert world.wakes == 2

    of_a(monkeypatch, test)


def test_it_has_caught_up_only_with_all_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        caught_up = world.readers.follow_positions()
        tail = await world.tail()
        tail.behind = 2
        tail.batches.put([POSITION])
        await world.until(lambda: world.pruned == 1)
        await asyncio.sleep(0)
        assert not caught_up.is_set()
        tail.batches.put([POSITION])
        await caught_up.wait()

    of_a(monkeypatch, test)


@pytest.mark.parametrize("other", [CLAIM._replace(segments=16), CLAIM._replace(partitions=3)])
def test_another_map_of_segments_ends_it(monkeypatch: pytest.MonkeyPatch, other: ClaimState) -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        (await world.tail()).batches.put([claim(other)])
        with pytest.raises(MapError, match=rf"\[1\]@42: n2@1 claims with segment.count={other.segments} on "):
            await world.until(lambda: False)
        assert world.core.states == []

    of_a(monkeypatch, test)


def test_a_foreign_record_ends_it_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        (await world.tail()).batches.put([claim()._replace(value=b"{}")])
        with pytest.raises(RecordError, match=r"^p\.c\S*\[1\]@42: "):
            await world.until(lambda: False)

    of_a(monkeypatch, test)


def test_a_restart_ends_the_tail_before_another_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        first = await world.tail()
        await world.readers.end()
        assert first.closed == 1
        world.retries.started = True
        world.readers.follow_positions()
        await world.until(lambda: len(Tail.made) == 2)
        second = Tail.made[-1]
        assert second.arguments[-1] is True, "a missing right is no reason to end any more"
        second.batches.put([POSITION])
        await world.until(lambda: world.pruned == 1)
        assert (first.closed, second.closed) == (1, 0)

    of_a(monkeypatch, test)


# -- signals --------------------------------------------------------------------------------------------------------


def test_signals_are_read_before_they_are_followed_and_end_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        await world.tail()
        await world.readers.follow_signals()
        assert world.signals.calls[0] == "caught up"
        await world.until(lambda: len(world.signals.calls) == 2)
        await world.readers.end()
        assert world.signals.calls == ["caught up", "followed", "ended"]

    of_a(monkeypatch, test, config_of("h:1", "p", **{"signal.enabled.channels": "kafka"}))


def test_without_the_channel_no_signal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        await world.readers.follow_signals()
        assert world.signals.calls == []

    of_a(monkeypatch, test, config_of("h:1", "p", **{"signal.enabled.channels": "file"}))


# -- the change topic -----------------------------------------------------------------------------------------------


def test_ends_go_to_the_core_and_only_a_doubt_is_looked_into(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def still_holds(*arguments: Any) -> bool:
        asked.append(arguments)
        return False

    monkeypatch.setattr(module, "still_holds", still_holds)

    async def test(world: World) -> None:
        await world.readers.read_ends()
        assert (world.core.ends, asked) == ([(0, 50, 8, None), (1, 51, 8, None)], [])
        world.core.ends.clear()
        world.core.doubted, world.core.lost = {1}, [3]
        await world.readers.read_ends()
        assert world.core.ends == [(0, 50, 8, None), (1, 51, 8, False)]
        assert asked == [(CONFIG, "p.c", 1, 101, 7)]

    of_a(monkeypatch, test)
    assert "p.c[1] was truncated to 51: segments [3] are reset" in caplog.messages


def test_the_ends_are_watched_though_kafka_is_away_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.0)

    async def test(world: World) -> None:
        world.admin.problem = KafkaUnavailable("no broker answers")
        watching = world.tasks.spawn(world.readers.watch())
        await world.until(lambda: world.meter.kafka_problem(0.0) == "Kafka does not answer: no broker answers")
        assert (world.core.ids, world.wakes) == ([], 0)
        world.admin.problem = None
        await world.until(lambda: world.wakes >= 2)
        assert set(world.core.ids) == {"id"}
        assert not world.meter.kafka_away
        world.tasks.stopping.set()
        await watching

    of_a(monkeypatch, test)
