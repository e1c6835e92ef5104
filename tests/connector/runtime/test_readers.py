"""What a connector reads while it runs: states, signals, and the ends of the change topic. Kafka is doubles here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.core.effects import Cause, StateItem
from deelog_connector.core.segment import Phase
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable, MapError
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import BEGINNING, COMPACTED, InRecord, PartitionEnd, TopicState, WriteFailed
from deelog_connector.kept_topic import ReadTopic
from deelog_connector.runtime import readers as module
from deelog_connector.runtime.encode import Encoder
from deelog_connector.runtime.meters import EventMeter
from deelog_connector.runtime.readers import Readers
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind
from deelog_schemas.keys import claim_key, position_key
from deelog_schemas.positions import ClaimState, PositionState, State
from tests.connector.cache import config_of, run

CONFIG = config_of("h:1", "p", **{"retriable.restart.connector.wait.ms": "1"})
ENCODER = Encoder(JsonCodec("p.c", "test", "p", "c"), "p.c", CONFIG.topics.positions, "n1@1", True, clock=time)
CLAIM = ClaimState(2, "n2@1", "p", "c", 8, 2, 1)


def record(kind: Kind, key: bytes, state: State | None) -> InRecord:
    (made,) = ENCODER.records([StateItem(kind, 3, 1, (2, 0), key, state)])
    return InRecord(made.topic, 1, 42, made.key, made.value, cast("Any", made.headers))


def claim(state: ClaimState | None = CLAIM) -> InRecord:
    return record(Kind.CLAIM_STATE, claim_key(3, "n2@1"), state)


POSITION = record(Kind.POSITION, position_key(3), PositionState(2, 5, 40, 5, 0, 0, 10, 8, "id", "n2@1"))


class Reader:
    """Gives what is put into `batches`, and has caught up with the first `behind` of them."""

    def __init__(self, topic: str, offsets: Mapping[int, int]) -> None:
        self.topic, self.offsets = topic, offsets
        self.batches: asyncio.Queue[list[InRecord] | Exception] = asyncio.Queue()
        self.behind, self.closed = 1, 0
        self.refuses: list[Exception] = []
        """What the next seeks raise."""

    @property
    def caught_up(self) -> bool:
        return self.behind <= 0

    async def read(self, seconds: float) -> list[InRecord]:
        try:
            batch = await asyncio.wait_for(self.batches.get(), seconds)
        except TimeoutError:
            return []
        if isinstance(batch, Exception):
            raise batch
        self.behind -= 1
        return batch

    async def seek(self, offsets: Mapping[int, int]) -> None:
        if self.refuses:
            raise self.refuses.pop()
        self.offsets = offsets

    def next_offset(self, partition: int) -> int:
        return self.offsets[partition] + 7

    async def close(self) -> None:
        self.closed += 1


class Session:
    """Has left something open on `left`, until it is aborted; `error` is what that raises once."""

    def __init__(self) -> None:
        self.left: set[int] = set()
        self.unwritable = frozenset[int]()
        self.all, self.read = set[int](), set[int]()
        self.aborted: list[list[tuple[str, int]]] = []
        self.error: WriteFailed | None = None
        self.hidden = frozenset[int]()
        """Where what was aborted stays open."""
        self.held, self.begun = asyncio.Event(), 0
        self.held.set()

    def begin(self, partitions: Iterable[int]) -> None:
        self.all = set(partitions)

    def settled(self, partitions: Collection[int]) -> None:
        self.read = set(partitions)

    def left_open_on(self, partitions: Collection[int]) -> set[int]:
        return self.left.intersection(partitions)

    async def abort(self, places: Callable[[int], Sequence[tuple[str, int]]], partitions: Collection[int]) -> bool:
        self.begun += 1
        error, self.error = self.error, None
        await self.held.wait()
        if error is not None:
            return False
        self.aborted += [list(places(partition)) for partition in sorted(partitions)]
        self.left.difference_update(set(partitions) - self.hidden)
        return True


class Clients:
    """Makes readers that can be told what they read."""

    def __init__(self, config: Any) -> None:
        self.config, self.brokers = config, Brokers()
        self.made: list[Reader] = []
        self.given_up = self.idle_closed = 0
        self.session = Session()

    def give_up(self) -> None:
        self.given_up += 1

    async def close_idle(self) -> None:
        self.idle_closed += 1

    def places(self, partition: int) -> list[tuple[str, int]]:
        return [("p.c", partition), (CONFIG.topics.positions, partition)]

    async def following(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        self.made.append(Reader(topic, offsets))
        return self.made[-1]


class Core:
    """Remembers what it hears, and doubts what it is told to."""

    def __init__(self) -> None:
        self.settings = cast("Any", type("Settings", (), {"segments": 8, "partitions": 2, "prefix": "p", "cache": "c"}))
        self.states: list[Any] = []
        self.ends: list[tuple[int, int, int, bool | None, int]] = []
        self.ids: list[str] = []
        self.calls: list[str] = []
        self.doubted: set[int] = set()
        self.lost: list[int] = []
        self.positions_losses = self.session_losses = self.epoch = 0
        self.withheld = frozenset[int]()
        self.touches_withheld = self.closed = False
        self.segments: list[Any] = []

    def primaries(self) -> list[Any]:
        return self.segments

    def highest_claim(self) -> int:
        return self.epoch

    def session_lost(self) -> None:
        self.session_losses += 1

    def positions_lost(self) -> None:
        self.positions_losses += 1

    def waited_in_vain(self, partition: int) -> None:
        self.calls.append(f"hidden {partition}")

    def state_read(self, read: Any) -> None:
        self.states.append(read.state)

    def topic_is(self, topic_id: str) -> bool:
        recreated = bool(self.ids) and self.ids[-1] != topic_id
        self.ids.append(topic_id)
        self.calls.append(topic_id)
        return recreated

    def end_of(self, partition: int) -> tuple[int, int]:
        return 100 + partition, 7

    def doubts(self, partition: int, offset: int, epoch: int) -> bool:
        return partition in self.doubted

    def end_read(self, partition: int, offset: int, epoch: int, intact: bool | None, stable: int) -> list[int]:
        self.ends.append((partition, offset, epoch, intact, stable))
        self.calls.append("end")
        return self.lost


class Brokers:
    """Answers with the ends of two partitions, unless there is a problem. No partition still holds what it held."""

    problem: Exception | None = None
    id = positions = signals = "id"

    def __init__(self) -> None:
        self.doubted: list[tuple[str, PartitionEnd]] = []
        self.asked, self.end, self.hidden, self.letters = 0, 50, 0, 0
        self.unwritable: dict[str, set[int]] = {}

    async def state(self, topic: str) -> TopicState:
        unwritable = frozenset(self.unwritable.get(topic, ()))
        if topic == CONFIG.topics.positions:
            if self.positions == "":
                raise KafkaUnavailable("topic p.c.positions: it does not exist")
            return TopicState(self.positions, unwritable)
        if topic == CONFIG.topics.signal:
            if self.signals == "":
                raise KafkaUnavailable("topic p-signal: it does not exist")
            return TopicState(self.signals, unwritable)
        assert topic == "p.c"
        return TopicState(self.id, unwritable)

    async def ensure(self, topic: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        if topic == "dlq":
            assert (partitions, settings) == (None, {})
            self.letters += 1
            return
        if topic == CONFIG.topics.heartbeat:
            assert (partitions, settings) == (None, COMPACTED)
            return
        if topic == CONFIG.topics.signal:
            assert (partitions, settings) == (1, {"cleanup.policy": "delete", "retention.ms": "-1"})
            self.signals = "made"
            return
        assert (topic, partitions, settings) == (CONFIG.topics.positions, 2, COMPACTED)
        if not self.positions:
            self.positions = "made"

    async def settings(self, topic: str) -> Mapping[str, str]:
        assert topic == CONFIG.topics.positions
        return {"cleanup.policy": "compact"}

    async def ends(self, topic: str, partitions: Iterable[int], committed: bool = True) -> list[PartitionEnd]:
        self.asked += committed
        if self.problem is not None:
            raise self.problem
        hidden = 0 if committed else self.hidden
        return [PartitionEnd(partition, self.end + partition + hidden, 8) for partition in partitions]

    async def still_holds(self, topic: str, end: PartitionEnd) -> bool:
        self.doubted.append((topic, end))
        return False


class Signals:
    """Those of a topic: they are read, then followed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: list[Exception] = []
        self.caught_up = False
        self.ended = asyncio.Event()

    def first_offset(self, end: int) -> int:
        return end - 7

    def topic_is(self, topic_id: str) -> None:
        self.calls.append(topic_id)

    async def catch_up(self, reader: Any) -> None:
        assert (reader.topic, reader.offsets) == (CONFIG.topics.signal, {0: 43})
        if self.errors:
            raise self.errors.pop()
        self.calls.append("caught up")

    async def follow(self, reader: Any) -> None:
        self.calls.append("followed")
        await self.ended.wait()
        self.ended.clear()


class World:
    """Readers among doubles."""

    def __init__(self, config: Any) -> None:
        self.port = Librdkafka()
        self.core, self.clients, self.signals, self.meter = Core(), Clients(config), Signals(), EventMeter()
        self.tasks = Tasks(asyncio.get_running_loop().create_future())
        self.retries = Retries(config, self.port)
        self.wakes = self.states = 0
        self.positions = ReadTopic()
        self.readers = Readers(cast("Any", self), cast("Any", self.clients), self.tasks, self.retries)

    def wake(self) -> None:
        self.wakes += 1

    def pruned(self) -> None:
        self.states += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for it; the caller's time is bounded."""
        while not condition():
            if self.tasks.failure.done():
                self.tasks.failure.result()
            await asyncio.sleep(0.001)

    async def tail(self) -> Reader:
        await self.until(lambda: bool(self.clients.made))
        return self.clients.made[-1]


def of_a(test: Callable[[World], Awaitable[None]], config: Any = CONFIG) -> None:
    async def work() -> None:
        world = World(config)
        try:
            await test(world)
        finally:
            world.tasks.stopping = True
            await world.tasks.cancel()
            await world.port.close()
            if not world.tasks.failure.done():
                world.tasks.failure.cancel()

    run(work(), 20)


# -- the positions topic --------------------------------------------------------------------------------------------


def test_states_go_to_the_core_and_only_claims_wake_it() -> None:
    async def test(world: World) -> None:
        caught_up = world.readers.follow_positions()
        tail = await world.tail()
        assert (tail.topic, tail.offsets) == (CONFIG.topics.positions, {0: BEGINNING, 1: BEGINNING})
        tail.batches.put_nowait([POSITION])
        await caught_up.wait()
        assert (len(world.core.states), world.states, world.wakes) == (1, 1, 0)
        tail.batches.put_nowait([claim(), claim(None)])
        await world.until(lambda: world.states == 3)
        assert world.core.states[1:] == [CLAIM, None]
        assert world.wakes == 2

    of_a(test)


def test_it_has_caught_up_only_with_all_that_was_there() -> None:
    async def test(world: World) -> None:
        caught_up = world.readers.follow_positions()
        tail = await world.tail()
        tail.behind = 2
        tail.batches.put_nowait([POSITION])
        await world.until(lambda: world.states == 1)
        await asyncio.sleep(0)
        assert not caught_up.is_set()
        tail.batches.put_nowait([POSITION])
        await caught_up.wait()

    of_a(test)


def test_until_it_has_caught_up_only_the_last_position_of_each_segment_counts() -> None:
    def position(sequence: int) -> InRecord:
        return record(Kind.POSITION, position_key(3), PositionState(2, sequence, 40, 5, 0, 0, 10, 8, "id", "n2@1"))

    async def test(world: World) -> None:
        caught_up = world.readers.follow_positions()
        tail = await world.tail()
        elsewhere = position(4)._replace(partition=0)
        batch = [position(1), claim(), position(2), claim(None), elsewhere, position(3)]
        tail.batches.put_nowait(batch)
        await caught_up.wait()
        assert world.states == 4
        tail.batches.put_nowait(batch)
        await world.until(lambda: world.states == 4 + len(batch))
        told = [state.sequence if isinstance(state, PositionState) else state for state in world.core.states]
        assert told == [CLAIM, None, 4, 3, 1, CLAIM, 2, None, 4, 3]

    of_a(test)


@pytest.mark.parametrize("other", [CLAIM._replace(prefix="p.c"), CLAIM._replace(cache="c.d")])
def test_a_claim_of_another_cache_ends_it(other: ClaimState) -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        (await world.tail()).batches.put_nowait([claim(other), claim(None)])  # released since
        claims = rf"n2@1 claims with topic.prefix={other.prefix} and cache.name={other.cache}, this node has p and c,"
        with pytest.raises(MapError, match=rf"\[1\]@42: {claims} which give the same topic: set names"):
            await world.until(lambda: False)
        assert world.core.states == []

    of_a(test)


@pytest.mark.parametrize("other", [CLAIM._replace(segments=16), CLAIM._replace(partitions=3)])
def test_another_map_of_segments_ends_it(other: ClaimState) -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        (await world.tail()).batches.put_nowait([claim(other), claim(None)])  # released since
        with pytest.raises(MapError, match=rf"\[1\]@42: n2@1 claims with segment.count={other.segments} on "):
            await world.until(lambda: False)
        assert world.core.states == []

    of_a(test)


def test_a_foreign_record_ends_it_and_is_named() -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        (await world.tail()).batches.put_nowait([claim()._replace(value=b"{}")])
        with pytest.raises(RecordError, match=r"^p\.c\S*\[1\]@42: "):
            await world.until(lambda: False)

    of_a(test)


def test_a_right_that_is_missing_ends_a_start_and_nothing_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "DENIED_SECONDS", 0.0)
    denied = KafkaUnauthorized("Read is missing")

    async def test(world: World) -> None:
        world.readers.follow_positions()
        tail = await world.tail()
        tail.batches.put_nowait([POSITION])
        tail.batches.put_nowait(denied)
        tail.batches.put_nowait([POSITION])
        await world.until(lambda: world.states == 2)
        assert not world.tasks.failure.done()

    of_a(test)
    assert "Read is missing" in caplog.messages

    async def first(world: World) -> None:
        world.readers.follow_positions()
        tail = await world.tail()
        tail.behind = 2
        tail.batches.put_nowait([POSITION])
        tail.batches.put_nowait(denied)
        with pytest.raises(KafkaUnauthorized, match="Read is missing"):
            await world.until(lambda: False)

    of_a(first)


async def caught_up(world: World) -> Reader:
    """The reader of the positions topic, which has come to its end."""
    world.readers.follow_positions()
    reader = await world.tail()
    reader.batches.put_nowait([POSITION])
    await world.until(lambda: reader.caught_up and world.states == 1)
    await asyncio.sleep(0)
    return reader


async def losses(world: World, *errors: KafkaUnusable) -> Reader:
    """Lets the reader of the positions topic fail; the one that reads on."""
    for error in errors:
        made = len(world.clients.made)
        world.clients.made[-1].batches.put_nowait(error)
        await world.until(lambda: len(world.clients.made) > made)  # noqa: B023 - it is awaited at once
    return world.clients.made[-1]


CUT = KafkaUnusable("cannot read p.c.positions[0] on: offset out of range")


def test_positions_that_were_cut_are_told_once_and_read_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        first = await caught_up(world)
        second = await losses(world, CUT)
        assert (first.closed, second.offsets, world.core.positions_losses) == (1, {0: BEGINNING, 1: BEGINNING}, 1)
        assert world.wakes == 1
        second.batches.put_nowait([POSITION])
        await world.until(lambda: world.states == 2)

    of_a(test)
    assert f"{CUT}: all segments are claimed anew and reset" in caplog.messages


def test_a_reader_that_never_gets_to_the_end_loses_nothing_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DENIED_SECONDS", 0.0)

    async def test(world: World) -> None:
        await caught_up(world)
        await losses(world, CUT, CUT, CUT)
        assert world.core.positions_losses == 1
        assert not world.tasks.failure.done()

    of_a(test)


def test_positions_that_cannot_be_read_end_a_start() -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        (await world.tail()).batches.put_nowait(CUT)
        with pytest.raises(KafkaUnusable, match="out of range"):
            await world.until(lambda: False)

    of_a(test)


def test_positions_that_are_made_again_during_a_start_are_read_from_their_beginning() -> None:
    async def test(world: World) -> None:
        await world.readers.look_at_positions()
        caught_up = world.readers.follow_positions()
        first = await world.tail()
        first.behind = 9
        first.batches.put_nowait([POSITION])
        await world.until(lambda: world.states == 1)
        world.clients.brokers.positions = "another"
        second = await losses(world, CUT)
        assert (first.closed, second.offsets, caught_up.is_set()) == (1, {0: BEGINNING, 1: BEGINNING}, False)
        second.behind = 0
        await caught_up.wait()

    of_a(test)


@pytest.mark.parametrize("now", ["another", ""])
def test_positions_that_were_made_again_or_are_gone_are_told_once(now: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.readers.look_at_positions()
        world.readers.follow_positions()
        first = await world.tail()
        first.behind = 0
        await world.readers.look_at_positions()
        assert len(world.clients.made) == 1
        world.clients.brokers.positions = now
        await world.readers.look_at_positions()
        await world.until(lambda: len(world.clients.made) == 2)
        await world.readers.look_at_positions()
        assert (first.closed, world.core.positions_losses) == (1, 1)

    of_a(test)
    text = "p.c.positions was deleted and made again: all segments are claimed anew and reset"
    assert caplog.messages.count(text) == 1


# -- signals --------------------------------------------------------------------------------------------------------


def test_signals_are_read_before_they_are_followed() -> None:
    async def test(world: World) -> None:
        world.readers.follow_positions()
        await world.tail()
        await world.readers.follow_signals()
        assert world.signals.calls[0] == "caught up"
        await world.until(lambda: len(world.signals.calls) == 2)
        assert world.signals.calls == ["caught up", "followed"]

    of_a(test)


def test_a_log_of_signals_that_moves_under_a_start_is_sought_again() -> None:
    async def test(world: World) -> None:
        world.signals.errors.append(KafkaUnusable("gone"))
        await world.readers.follow_signals()
        assert world.signals.calls[0] == "caught up"
        assert [reader.closed for reader in world.clients.made] == [1, 0]

    of_a(test)


def test_where_signals_do_not_go_on_another_reader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DENIED_SECONDS", 0.01)

    async def test(world: World) -> None:
        await world.readers.follow_signals()
        await world.until(lambda: "followed" in world.signals.calls)
        world.clients.brokers.signals, world.retries.proven = "", True
        world.signals.ended.set()
        await world.until(lambda: world.signals.calls.count("followed") == 2)
        assert world.signals.calls == ["caught up", "followed", "made", "made", "caught up", "followed"]
        assert len(world.clients.made) == 2

    of_a(test)


def test_a_restart_does_not_wait_for_signals() -> None:
    async def test(world: World) -> None:
        world.signals.caught_up = world.retries.proven = True
        world.clients.brokers.problem = KafkaUnavailable("no leader")
        await asyncio.wait_for(world.readers.follow_signals(), 1)
        world.clients.brokers.problem = None
        await world.until(lambda: "followed" in world.signals.calls)

    of_a(test)


def test_topics_of_signals_and_dead_letters_that_are_gone_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OTHERS_SECONDS", 0.01)
    mode = {"event.processing.failure.handling.mode": "dead-letter", "errors.deadletterqueue.topic.name": "dlq"}

    async def test(world: World) -> None:
        world.tasks.spawn(world.readers.watch_others())
        await world.until(lambda: world.clients.brokers.letters > 1)
        world.clients.brokers.signals = ""
        await world.until(lambda: "made" in world.signals.calls)

    of_a(test, config_of("h:1", "p", **mode))


def test_without_their_topic_no_signal_is_read() -> None:
    async def test(world: World) -> None:
        await world.readers.follow_signals()
        assert world.signals.calls == []

    of_a(test, config_of("h:1", "p", **{"signal.kafka.topic": ""}))


# -- the change topic -----------------------------------------------------------------------------------------------


def test_ends_go_to_the_core_and_only_a_doubt_is_looked_into(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(world: World) -> None:
        await world.readers.read_ends()
        assert world.core.ends == [(0, 50, 8, None, 50), (1, 51, 8, None, 51)]
        assert world.clients.brokers.doubted == []
        world.core.ends.clear()
        world.core.doubted, world.core.lost = {1}, [3]
        world.clients.brokers.hidden = 3
        await world.readers.read_ends()
        assert world.core.ends == [(0, 53, 8, None, 50), (1, 54, 8, False, 51)]
        assert world.clients.brokers.doubted == [("p.c", PartitionEnd(1, 101, 7))]

    of_a(test)
    assert "p.c[1] was truncated to 54: segments [3] are reset" in caplog.messages


def test_partitions_that_take_no_records_are_withheld_and_their_ends_not_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def test(world: World) -> None:
        brokers, readers = world.clients.brokers, world.readers
        await readers.look_at_positions()
        caught_up = readers.follow_positions()
        (await world.tail()).behind = 0
        await caught_up.wait()
        assert world.core.withheld == set()
        for changes, positions, withheld in (
            ({0}, set(), {0}),
            ({0}, {1}, {0, 1}),
            (set(), {1}, {1}),
            (set(), set(), set()),
        ):
            brokers.unwritable = {"p.c": changes, CONFIG.topics.positions: positions}
            await readers.look_at_changes()
            await readers.read_ends()
            await readers.look_at_positions()
            assert [end[0] for end in world.core.ends] == sorted({0, 1} - changes)
            assert world.core.withheld == withheld
            assert world.clients.session.unwritable == withheld
            world.core.ends.clear()

    of_a(test)
    assert caplog.messages == [
        "partitions [0] of p.c take no records: their segments wait",
        "partitions [1] of p.c.positions take no records: their segments wait",
        "partitions [0] take records",
        "partitions [1] take records",
    ]


def test_what_was_left_open_is_aborted_before_a_partition_is_written_again() -> None:
    async def test(world: World) -> None:
        brokers, readers, session = world.clients.brokers, world.readers, world.clients.session
        await readers.look_at_positions()
        caught_up = readers.follow_positions()
        (await world.tail()).behind = 0
        await caught_up.wait()
        session.left = {1}  # of a transaction that failed before anything was known
        brokers.unwritable = {"p.c": {0, 1}}
        await readers.look_at_changes()
        await readers.look_at_positions()
        brokers.unwritable = {"p.c": {1}}
        await readers.look_at_changes()
        await readers.look_at_positions()
        assert world.core.withheld == {1}  # it takes no records yet
        assert session.aborted == []
        brokers.unwritable, session.error = {}, WriteFailed(Cause.LOST, "no session is open")
        world.core.closed = True  # it was stopped: there is no session
        await readers.look_at_changes()
        await readers.look_at_positions()
        await asyncio.sleep(0)
        assert session.error is not None
        world.core.closed = False
        await readers.look_at_positions()
        await world.until(lambda: world.core.session_losses == 1)
        assert world.core.withheld == {1}
        session.held.clear()
        for _ in range(3):  # at a time once
            await readers.look_at_positions()
            await asyncio.sleep(0)
        assert (session.begun, world.core.withheld) == (2, frozenset({1}))
        session.held.set()
        await world.until(lambda: world.core.withheld == set())
        assert session.aborted == [[("p.c", 1), (CONFIG.topics.positions, 1)]]
        assert "hidden 1" not in world.core.calls

    of_a(test)


def test_where_what_was_aborted_stays_open_it_is_looked_for_what_hides_it() -> None:
    async def test(world: World) -> None:
        brokers, readers, session = world.clients.brokers, world.readers, world.clients.session
        await readers.look_at_positions()
        caught_up = readers.follow_positions()
        (await world.tail()).behind = 0
        await caught_up.wait()
        session.left, session.hidden, brokers.unwritable = {0, 1}, frozenset({1}), {"p.c": {0, 1}}
        await readers.look_at_changes()
        brokers.unwritable = {}
        await readers.look_at_changes()
        await readers.look_at_positions()
        await world.until(lambda: "hidden 1" in world.core.calls)
        assert (world.core.withheld, "hidden 0" in world.core.calls) == (frozenset({1}), False)
        assert world.core.session_losses == 0
        session.hidden = frozenset()
        await readers.look_at_positions()
        await world.until(lambda: world.core.withheld == set())
        assert world.core.calls.count("hidden 1") == 1

    of_a(test)


def test_what_was_left_open_is_known_of_every_partition_and_where_all_was_read() -> None:
    async def test(world: World) -> None:
        session = world.clients.session
        world.readers.begin()
        assert session.all == {0, 1}
        for phases, settled in (
            ([], set()),
            ([(0, Phase.WRITING), (1, Phase.WRITING), (1, Phase.ACTIVE)], {0}),
            ([(0, Phase.STOPPED), (1, Phase.WRITING)], {1}),
        ):
            world.core.segments = [SimpleNamespace(partition=p, phase=phase) for p, phase in phases]
            await world.readers.look_at_changes()
            assert session.read == settled

    of_a(test)


def test_a_transaction_that_a_withheld_partition_holds_up_is_given_up() -> None:
    async def test(world: World) -> None:
        await world.readers.look_at_positions()
        assert world.clients.given_up == 0
        world.core.touches_withheld = True
        await world.readers.look_at_positions()
        assert world.clients.given_up == 1

    of_a(test)


def test_a_start_does_not_wait_for_positions_of_a_partition_without_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.0)

    async def test(world: World) -> None:
        brokers, readers, core = world.clients.brokers, world.readers, world.core
        brokers.unwritable = {CONFIG.topics.positions: {1}}
        await readers.look_at_positions()
        assert core.withheld == {0, 1}  # nothing is known yet
        caught_up = readers.follow_positions()
        tail = await world.tail()
        assert tail.offsets == {0: BEGINNING}
        tail.behind = 0
        await caught_up.wait()
        assert core.withheld == {1}
        # It has a leader again: it is read from its beginning, the other from where it was, and is withheld until then.
        tail.behind, tail.refuses = 1, [KafkaUnavailable("cannot read p.c.positions[1]: no answer")]
        brokers.unwritable = {}
        await readers.look_at_positions()
        await world.until(lambda: len(tail.offsets) == 2)
        assert tail.offsets[1] == BEGINNING
        assert tail.offsets[0] > BEGINNING
        assert core.withheld == {1}
        tail.batches.put_nowait([POSITION])
        await world.until(lambda: core.withheld == set())
        # What was read once is not read again.
        brokers.unwritable = {CONFIG.topics.positions: {1}}
        await readers.look_at_positions()
        await world.until(lambda: len(tail.offsets) == 1)
        brokers.unwritable = {}
        await readers.look_at_positions()
        assert core.withheld == set()
        await world.until(lambda: len(tail.offsets) == 2)
        assert tail.offsets[1] > BEGINNING
        assert len(world.clients.made) == 1

    of_a(test)


def test_positions_that_end_before_what_was_read_once_their_partition_is_back_are_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(world: World) -> None:
        brokers, readers = world.clients.brokers, world.readers
        await readers.look_at_positions()
        caught_up = readers.follow_positions()
        tail = await world.tail()
        tail.behind = 0
        await caught_up.wait()

        async def is_away() -> None:
            brokers.unwritable = {CONFIG.topics.positions: {1}}
            await readers.look_at_positions()
            await world.until(lambda: len(tail.offsets) == 1)
            brokers.unwritable = {}

        await is_away()
        for brokers.end in 4, 4, 50:  # it seems so behind an election
            assert len(tail.offsets) == 1
            await readers.look_at_positions()
        await world.until(lambda: len(tail.offsets) == 2)
        await is_away()
        brokers.end = 4
        for _ in range(module.SHORT_LOOKS):
            await readers.look_at_positions()
        tail.batches.put_nowait([POSITION])
        await world.until(lambda: len(world.core.states) == 1)
        assert tail.closed == 0
        await readers.look_at_positions()
        await world.until(lambda: len(world.clients.made) == 2)
        assert (world.core.positions_losses, tail.closed) == (1, 1)

    of_a(test)
    assert "of p.c.positions end before what was read: all segments are claimed anew" in caplog.text


def test_the_ends_are_watched_though_kafka_is_away_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.0)

    async def test(world: World) -> None:
        world.clients.brokers.problem = KafkaUnavailable("no broker answers")
        watching = world.tasks.spawn(world.readers.watch())
        await world.until(lambda: world.meter.kafka_problem(0.0) == "Kafka cannot be used: no broker answers")
        assert (world.core.ends, world.wakes) == ([], 0)
        world.clients.brokers.problem = None
        await world.until(lambda: world.wakes >= 2)
        assert set(world.core.ids) == {"id"}
        assert not world.meter.kafka_away
        assert world.clients.idle_closed >= 3  # one reader at rest is enough
        watching.cancel()

    of_a(test)


def test_a_topic_made_again_is_named_as_that_before_its_ends_are_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By its ends alone it would be one that was truncated."""
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.0)

    async def test(world: World) -> None:
        await world.readers.look_at_changes()
        assert caplog.messages == []
        world.clients.brokers.id = "another"
        watching = world.tasks.spawn(world.readers.watch())
        await world.until(lambda: world.wakes > 1)
        assert world.core.calls[:4] == ["id", "another", "end", "end"]
        watching.cancel()

    of_a(test)
    assert caplog.messages == ["p.c was deleted and made again: all of its segments are reset"]


def test_that_kafka_is_away_is_logged_once_per_reason_and_so_is_its_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.0)
    caplog.set_level(logging.INFO, module.log.name)

    async def test(world: World) -> None:
        brokers = world.clients.brokers
        watching = world.tasks.spawn(world.readers.watch())
        await world.until(lambda: world.wakes > 1)
        for reason in ("no broker answers", "no broker answers", "Describe is missing"):
            brokers.problem, asked = KafkaUnavailable(reason), brokers.asked
            await world.until(lambda: brokers.asked > asked + 2)  # noqa: B023 - it is awaited at once
        brokers.problem, wakes = None, world.wakes
        await world.until(lambda: world.wakes > wakes + 1)
        watching.cancel()

    of_a(test)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, "Kafka cannot be used: no broker answers"),
        (logging.WARNING, "Kafka cannot be used: Describe is missing"),
        (logging.INFO, "Kafka can be used again"),
    ]
