"""What becomes of an effect: which call it makes, and what the core hears of it. Kafka is doubles here."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deelog_connector.core.effects import (
    Cause,
    Commit,
    Corrected,
    Effect,
    EndHanging,
    Fence,
    FindHanging,
    Hanging,
    HangingAbort,
    OpenProducer,
    OperationsItem,
    Place,
    Producer,
    Released,
    Scan,
    SnapshotRead,
    StateItem,
    SteppedDown,
    Superseded,
)
from deelog_connector.core.oplog import Budget, OpLog
from deelog_connector.core.segment import Phase, Segment
from deelog_connector.errors import (
    KafkaUnauthorized,
    KafkaUnavailable,
    NodeSuperseded,
    RetriesExhausted,
    TransformFailed,
)
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import InRecord, OutRecord, PartitionEnd, WriteFailed
from deelog_connector.runtime import executor as module
from deelog_connector.runtime.encode import Decoder, Encoder
from deelog_connector.runtime.executor import Executor
from deelog_connector.runtime.meters import EventMeter
from deelog_connector.runtime.tasks import Retries, Tasks
from deelog_connector.transforms.pipeline import Closing
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.errors import DeelogError
from deelog_schemas.header import Kind, node_number
from deelog_schemas.kafka.names import abort_key
from deelog_schemas.keys import claim_key
from deelog_schemas.operation import Operation
from deelog_schemas.positions import ClaimState
from tests.connector.cache import config_of, run
from tests.support.waiting import awaiting

CONFIG = config_of("h:1", "p", **{"retriable.restart.connector.wait.ms": "1", "errors.max.retries": "3"})
CODEC = JsonCodec("p.c", "test", "p", "c")
OPERATION = Operation(1, 1, "put", b"k", b"v", None, 1000, False)
COMMIT = Commit(7, [OperationsItem(0, 0, [OPERATION])])
RECORD = next(Encoder(CODEC, "p.c", "p.c.positions", "n1@1", True, clock=time).records(COMMIT.items))
SCANNED = InRecord("p.c", 0, 5, RECORD.key, RECORD.value, cast("Any", RECORD.headers))
KEY = CODEC.decode_key(RECORD.key)
CLAIM = ClaimState(9, "n2@1", "p", "c", 8, 2, 1)
LOST = WriteFailed(Cause.LOST, "gone")
DENIED = WriteFailed(Cause.LOST, "topic p.c: Write is missing", denied=True)


class Recorder:
    """Takes any call, and remembers it."""

    member = "n1@1"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.owned: list[Segment] = []
        self.withheld = frozenset[int]()

    def primaries(self) -> list[Segment]:
        return self.owned

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, *args))


@dataclass
class Session:
    """Fails with each of `errors` in turn, then takes everything."""

    errors: list[Exception] = field(default_factory=list)
    written: list[OutRecord] = field(default_factory=list)
    opened: int = 0
    spare: bool = False
    partitions: list[Collection[int]] = field(default_factory=list)

    async def open(self) -> None:
        self.opened += 1
        if self.errors:
            raise self.errors.pop(0)

    async def commit(self, records: Iterable[OutRecord], partitions: Collection[int]) -> None:
        self.partitions.append(partitions)
        if self.errors:
            raise self.errors.pop(0)
        self.written += records


@dataclass
class Reader:
    """Gives its batches, one of which may be an error, and then nothing until it is too late."""

    late: Callable[[], None]

    batches: list[list[InRecord] | Exception] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    seeking: Callable[[], None] = lambda: None
    caught_up = False

    def next_offset(self, partition: int) -> int:
        return 7

    async def seek(self, offsets: Mapping[int, int]) -> None:
        self.reads += offsets.items()
        self.seeking()

    async def read(self, seconds: float) -> list[InRecord]:
        if not self.batches:
            self.late()
            return []
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch


class Clients:
    config = CONFIG

    def __init__(self, late: Callable[[], None]) -> None:
        self.session, self.one, self.brokers = Session(), Reader(late), Brokers()
        self.too_large = False
        self.fenced: list[object] = []
        """The producers, with their partition where what they have left open is ended. The first time it fails."""

    def transactional_id(self, producer: Producer) -> str:
        return f"id of {producer.node_id}"

    async def batches_are_too_large(self) -> bool:
        return self.too_large

    async def fence(self, producer: Producer) -> None:
        self.fenced.append(producer)
        if len(self.fenced) == 1:
            raise LOST

    async def end_hanging(self, producer: Producer, partition: int) -> bool:
        self.fenced.append((producer, partition))
        if len(self.fenced) == 1:
            raise LOST
        return len(self.fenced) == 2

    def places(self, partition: int) -> list[tuple[str, int]]:
        return [("p.c", partition), ("p.c.positions", partition)]

    async def scanning(self, scan: Callable[[Reader], Awaitable[Any]]) -> Any:
        return await scan(self.one)


class Brokers:
    """Has these first records of open transactions, by topic: the last one for ever."""

    def __init__(self) -> None:
        self.firsts: dict[str, list[InRecord | Exception | None]] = {}
        self.end: int | None = 9
        self.asked: list[PartitionEnd] = []
        self.cut: list[PartitionEnd] = []

    async def still_holds(self, topic: str, end: PartitionEnd) -> bool:
        assert topic == "p.c"
        self.asked.append(end)
        return end not in self.cut

    async def ends(self, topic: str, partitions: Iterable[int], committed: bool) -> list[PartitionEnd]:
        assert not committed
        return [] if self.end is None else [PartitionEnd(partition, self.end, 0) for partition in partitions]

    async def hanging(self, topic: str, partition: int) -> InRecord | None:
        assert partition == 3
        known = self.firsts.get(topic, [None])
        found = known.pop(0) if len(known) > 1 else known[0]
        if isinstance(found, Exception):
            raise found
        return found


class Clock:
    """Runs as fast as a test wants."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    def time_ns(self) -> int:
        return time.time_ns()

    def skip(self) -> None:
        self.skipped += 5.0


class Port(Librdkafka):
    """That of librdkafka, with another clock; it makes no client here."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.fast = Clock()


class World:
    """An executor among doubles."""

    def __init__(self, pipeline: Any = None) -> None:
        self.core, self.cache, self.snapshots = Recorder(), Recorder(), Recorder()
        self.port = Port()
        self.clients, self.meter = Clients(self.port.fast.skip), EventMeter()
        self.tasks = Tasks(asyncio.get_running_loop().create_future())
        self.halts: list[DeelogError] = []
        self.wakes, self.closed = 0, False
        self.retries = Retries(CONFIG, self.port)
        context: Any = SimpleNamespace(
            core=self.core,
            cache_side=self.cache,
            snapshots=self.snapshots,
            meter=self.meter,
            port=self.port,
            wake=self.wake,
            halt=self.halts.append,
            closed=lambda: self.closed,
        )
        clients: Any = self.clients
        self.executor = Executor(context, clients, self.tasks, self.retries, pipeline)
        self.executor.encoder = Encoder(CODEC, "p.c", "p.c.positions", "n1@1", True, clock=time)
        self.executor.decoder = Decoder(CODEC)
        self.woken = asyncio.Event()

    def wake(self) -> None:
        self.wakes += 1
        self.woken.set()

    async def after(self, effect: Effect) -> list[tuple[Any, ...]]:
        """What the core heard by the time that it is woken, or that the connector has failed."""
        self.executor.carry_out(effect)
        woken: asyncio.Future[Any] = asyncio.ensure_future(self.woken.wait())
        await asyncio.wait({woken, self.tasks.failure}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert woken.done() or self.tasks.failure.done()
        woken.cancel()
        return self.core.calls


def of_a(test: Callable[[World], Any], pipeline: Any = None) -> None:
    async def work() -> None:
        world = World(pipeline)
        try:
            await test(world)
        finally:
            world.tasks.stopping = True
            await world.tasks.cancel()
            await world.port.close()
            if not world.tasks.failure.done():
                world.tasks.failure.cancel()

    run(work(), 20)


# -- what only tells ------------------------------------------------------------------------------------------------


def test_the_cache_and_the_snapshots_hear_what_is_theirs(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        read = SnapshotRead(3, 5, 1)
        effects = (Corrected(1, (OPERATION,)), Released(2), SteppedDown(4, "a higher claim"), read)
        world.executor.carry_out_all(effects)
        assert world.cache.calls == [
            ("corrected", 1, [OPERATION]),
            ("released", 2),
            ("stepped_down", 4, "a higher claim"),
        ]
        assert world.snapshots.calls == [("heard", read)]
        assert world.core.calls == []

    of_a(test)
    assert caplog.messages == ["segments 4: stepped down, a higher claim"]


def test_many_that_step_down_are_one_line_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        for _ in range(2):
            world.executor.carry_out_all([SteppedDown(s, f"a claim of n{s % 2}") for s in range(14)])
        assert len(world.cache.calls) == 28

    of_a(test)
    assert (
        caplog.messages
        == [
            "segments 0, 2, 4, 6, 8 and 2 more: stepped down, a claim of n0",
            "segments 1, 3, 5, 7, 9 and 2 more: stepped down, a claim of n1",
        ]
        * 2
    )


def test_a_newer_process_ends_this_one() -> None:
    async def test(world: World) -> None:
        why = r"^n1@2 has the node\.id of n1@1 and is newer: this process ends\. Give each"
        with pytest.raises(NodeSuperseded, match=why):
            world.executor.carry_out(Superseded("n1@2"))

    of_a(test)


# -- transactions ---------------------------------------------------------------------------------------------------


def test_a_transaction_is_written_counted_and_reported() -> None:
    async def test(world: World) -> None:
        assert await world.after(COMMIT) == [("committed", 7)]
        assert [record.key for record in world.clients.session.written] == [RECORD.key]
        assert world.clients.session.partitions == [{item.partition for item in COMMIT.items}]
        assert (world.meter.creates, sum(world.meter.failed.values())) == (1, 0)

    of_a(test)


@pytest.mark.parametrize("cause", list(Cause))
def test_a_transaction_that_failed_is_reported_with_its_cause(cause: Cause) -> None:
    async def test(world: World) -> None:
        world.clients.session.errors = [WriteFailed(cause, "no")]
        assert await world.after(COMMIT) == [("commit_failed", 7, cause)]
        assert world.meter.failed == {cause: 1}
        assert world.meter.creates == 0

    of_a(test)


def test_what_is_refused_since_batches_are_too_large_is_tried_again() -> None:
    async def test(world: World) -> None:
        world.clients.session.errors = [WriteFailed(Cause.REFUSED, "no")]
        world.clients.too_large = True
        assert await world.after(COMMIT) == [("commit_failed", 7, Cause.LOST)]
        assert world.meter.failed == {Cause.REFUSED: 1}

    of_a(test)


def test_a_segment_that_is_stopped_is_an_error_with_the_brokers_words_and_the_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    operations = [OPERATION, OPERATION._replace(sequence=2, value=b"v" * 50)]
    effect = Commit(7, [OperationsItem(0, 0, operations), OperationsItem(3, 1, [OPERATION])])

    async def test(world: World) -> None:
        for number, phase in ((0, Phase.STOPPED), (3, Phase.ACTIVE), (5, Phase.STOPPED)):  # 5 has been for long
            segment = Segment(number, 0, OpLog(Budget(10, 1000)), phase=phase, stopped_by="refused (too large?)")
            world.core.owned.append(segment)
        world.clients.session.errors = [WriteFailed(Cause.REFUSED, "Message size too large")]
        await world.after(effect)

    of_a(test)
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert line.message == (
        "segment 0 is stopped: refused (too large?): Message size too large; its largest value is 50 bytes. "
        "Mend it, then signal reset-segment"
    )


def test_errors_in_a_row_end_the_connector_and_a_commit_begins_the_row_anew() -> None:
    async def test(world: World) -> None:
        for errors in ([LOST], [LOST], [LOST], [], [LOST], [LOST], [LOST]):
            world.clients.session.errors = list(errors)
            world.woken.clear()
            await world.after(COMMIT)
        assert not world.tasks.failure.done()
        world.clients.session.errors = [LOST]
        world.woken.clear()
        await world.after(COMMIT)
        with pytest.raises(RetriesExhausted):
            world.tasks.failure.result()

    of_a(test)


def test_a_missing_right_hurries_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "DENIED_SECONDS", 0.0)

    async def test(world: World) -> None:
        await world.after(COMMIT)
        world.woken.clear()
        world.clients.session.errors = [DENIED]
        assert (await world.after(COMMIT))[1:] == [("commit_failed", 7, Cause.LOST)]

    of_a(test)
    (line,) = [one for one in caplog.records if "Write is missing" in one.message]
    assert line.levelno == logging.WARNING  # it is tried again


@pytest.mark.parametrize("effect", [COMMIT, OpenProducer()])
def test_a_node_that_is_refused_before_it_has_written_ends(effect: Effect) -> None:
    async def test(world: World) -> None:
        world.clients.session.errors = [DENIED]
        assert await world.after(effect) == []
        with pytest.raises(KafkaUnauthorized, match=r"^topic p\.c: Write is missing$"):
            world.tasks.failure.result()

    of_a(test)


def test_a_transform_that_fails_halts_and_counts_as_no_error_of_kafka() -> None:
    error = TransformFailed("transform t: ValueError: no")

    def pipeline(items: Any) -> Any:
        raise error

    async def test(world: World) -> None:
        assert await world.after(COMMIT) == [("commit_failed", 7, Cause.LOST)]
        assert world.halts == [error]
        assert world.meter.failed == {}
        assert world.clients.session.written == []

    of_a(test, pipeline)


def test_a_transform_that_ends_after_its_shell_is_heard_by_nobody() -> None:
    """A restart cancels the transaction, not the thread: an error that nobody retrieved would end the node."""
    go, heard = threading.Event(), list[Any]()

    def pipeline(items: Any) -> Any:
        go.wait(20)
        raise Closing("the shell is closed")

    async def test(world: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        world.executor.carry_out(COMMIT)
        before = len(asyncio.all_tasks())
        await awaiting(lambda: len(asyncio.all_tasks()) > before, 20, "the transform")
        await world.tasks.cancel()
        go.set()
        await awaiting(lambda: len(asyncio.all_tasks()) < before, 20, "its end")
        gc.collect()
        await asyncio.sleep(0)
        assert heard == []

    of_a(test, pipeline)


class Slow:
    """A pipeline that takes until somebody complains about it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.at, self.caplog = (0.0, "t"), caplog

    def __call__(self, items: Any) -> Any:
        while not any("on one record" in message for message in self.caplog.messages):
            time.sleep(0.001)
        return items


def test_a_slow_transform_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.01)

    async def test(world: World) -> None:
        assert await world.after(COMMIT) == [("committed", 7)]

    of_a(test, Slow(caplog))
    assert caplog.messages[0].startswith("transform t: ")


# -- sessions and fences --------------------------------------------------------------------------------------------


def test_a_session_is_opened_however_often_it_takes() -> None:
    async def test(world: World) -> None:
        world.clients.session.errors = [LOST, LOST]
        assert await world.after(OpenProducer()) == [("producer_opened", False)]
        assert world.clients.session.opened == 3
        world.clients.session.spare = True
        assert (await world.after(OpenProducer()))[1:] == [("producer_opened", True)]

    of_a(test)


def test_a_session_that_nobody_waits_for_is_given_up() -> None:
    async def test(world: World) -> None:
        world.clients.session.errors = [LOST, LOST]
        world.closed = True
        assert await world.after(OpenProducer()) == [("opening_given_up",)]
        assert world.clients.session.opened == 1

    of_a(test)


def test_a_node_is_fenced_before_the_core_hears_of_it() -> None:
    async def test(world: World) -> None:
        n2 = Producer("n2")
        assert await world.after(Fence(n2, ((4, 9), (5, 9)))) == [("fenced", n2, ((4, 9), (5, 9)))]
        assert world.clients.fenced == [n2, n2]

    of_a(test)


def test_what_hides_records_is_looked_for_on_both_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANGING_SECONDS", 0.01)

    async def test(world: World) -> None:
        claim = StateItem(Kind.CLAIM_STATE, 4, 3, (9, 0), claim_key(4, "n2@1"), CLAIM)
        (record,) = world.executor.encoder.records([claim])
        hidden = InRecord(record.topic, 3, 7, record.key, record.value, cast("Any", record.headers))
        abort = hidden._replace(topic="p.c", key=abort_key(CONFIG.topics.transactional_id_spare("n3")), headers=None)
        number, firsts = node_number("n1@1"), world.clients.brokers.firsts
        for of_changes, found in (
            ([SCANNED], [Hanging(0, 1, number, ""), Hanging(4, 9, number, "n2@1")]),
            ([abort], [HangingAbort("n3"), Hanging(4, 9, number, "n2@1")]),
            ([SCANNED, SCANNED._replace(offset=6)], [Hanging(4, 9, number, "n2@1")]),  # that one was under way
            ([SCANNED, None], [Hanging(4, 9, number, "n2@1")]),
        ):
            firsts |= {"p.c": list(of_changes), "p.c.positions": [hidden]}
            world.woken.clear()
            assert (await world.after(FindHanging(3)))[-1] == ("hanging_found", 3, found, True)

    of_a(test)


@pytest.mark.parametrize(
    ("later", "end", "hides"),
    [
        (SCANNED._replace(offset=6), 7, True),  # both were open at the first look
        (SCANNED._replace(offset=7), 7, False),  # what was written before it began can be read
        (SCANNED._replace(offset=6), None, True),  # where the log ended is not known
        (KafkaUnavailable("no answer"), 7, True),
    ],
)
def test_what_began_since_hides_nothing_that_was_written_before(
    later: InRecord | Exception, end: int | None, hides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANGING_SECONDS", 0.01)

    async def test(world: World) -> None:
        brokers = world.clients.brokers
        brokers.firsts, brokers.end = {"p.c": [SCANNED, later]}, end
        assert await world.after(FindHanging(3)) == [("hanging_found", 3, [], hides)]

    of_a(test)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (None, []),
        (KafkaUnavailable("no answer"), ["no answer"]),
        (SCANNED._replace(headers=None), ["a transaction of another client, which is open, holds readers back"]),
    ],
)
def test_where_nothing_is_found_or_it_is_nobodys_the_core_hears_so(
    first: InRecord | Exception | None,
    said: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HANGING_SECONDS", 0.01)

    async def test(world: World) -> None:
        world.clients.brokers.firsts = {"p.c": [first]}
        assert await world.after(FindHanging(3)) == [("hanging_found", 3, [], first is not None)]

    of_a(test)
    assert [message.split(": ")[0] for message in caplog.messages] == said


def test_what_a_producer_has_left_open_is_ended_or_that_is_tried_later(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        effect = EndHanging(Producer("n2"), 3)
        ended = ("hanging_ended", effect)
        for calls in ([ended], [ended] * 2, [ended] * 2 + [("session_lost",), ended]):
            world.woken.clear()
            assert await world.after(effect) == calls
        assert world.clients.fenced == [(effect.producer, 3)] * 3

    of_a(test)
    told = "partition 3: what id of n2 has left open is aborted"
    assert caplog.messages == [told, str(LOST), told, told]


# -- scans ----------------------------------------------------------------------------------------------------------


def heard(world: World) -> list[Any]:
    """The core's calls about scans: offsets of what was scanned, and the end."""
    return [([record.offset for record in call[2]] if call[0] == "scanned" else call[1:]) for call in world.core.calls]


def test_a_scan_ends_with_the_record_that_it_waits_for() -> None:
    async def test(world: World) -> None:
        other = encoded_key(b"other")
        world.clients.one.batches = [[other], [SCANNED], [SCANNED._replace(offset=9)]]
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert heard(world) == [[1], [5], (0, True, False)]
        assert world.clients.one.reads == [(0, 3)]

    of_a(test)


def encoded_key(key: bytes) -> InRecord:
    return SCANNED._replace(offset=1, key=CODEC.key(key))


def test_a_scan_that_waits_in_vain_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        world.clients.one.batches = [[encoded_key(b"other")]]
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert heard(world) == [[1], (0, False, False)]

    of_a(test)
    assert any("partition 0 of p.c: own record not readable" in message for message in caplog.messages)


def test_a_scan_in_vain_says_whether_it_came_to_the_end() -> None:
    async def test(world: World) -> None:
        world.clients.one.caught_up = True
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert heard(world) == [(0, False, True)]

    of_a(test)


def test_a_scan_that_waits_lets_others_have_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on where it was, and all of its turns have the time of one scan."""
    monkeypatch.setattr(module, "REST_SECONDS", 0.02)
    monkeypatch.setattr(module, "TURN_SECONDS", 4.0)

    async def test(world: World) -> None:
        reader = world.clients.one
        reader.caught_up, reader.batches = True, [[encoded_key(b"other")]]
        began = world.port.fast.monotonic()
        place = Place(1, 3)
        await world.after(Scan(0, 3, frozenset({KEY}), places=(place,)))
        assert heard(world) == [[1], (0, False, True)]
        assert world.clients.brokers.asked == [PartitionEnd(0, 3, 1)]
        assert reader.reads == [(0, 3), (0, 7), (0, 7)]
        assert 15.0 <= world.port.fast.monotonic() - began <= 20.0

    of_a(test)


def test_a_scan_that_others_keep_from_reading_waits_no_longer_than_one_that_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What hides its record is looked for then, however many partitions are hidden."""
    monkeypatch.setattr(module, "REST_SECONDS", 0.02)

    async def test(world: World) -> None:
        def slow() -> None:
            for _ in range(4):
                world.port.fast.skip()

        world.clients.one.caught_up, world.clients.one.seeking = True, slow
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert heard(world) == [(0, False, True)]
        assert world.clients.one.reads == [(0, 3), (0, 7)]

    of_a(test)


def test_a_scan_whose_partition_goes_away_between_two_turns_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST_SECONDS", 0.02)

    async def test(world: World) -> None:
        def away() -> None:
            world.core.withheld = frozenset({0})

        world.clients.one.caught_up, world.clients.one.seeking = True, away
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert heard(world) == [(0, True, False)]
        assert world.clients.one.reads == [(0, 3)]

    of_a(test)


def test_the_log_is_asked_what_it_holds_before_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        held, cut = Place(1, 7), Place(2, 5)
        world.clients.brokers.cut = [PartitionEnd(0, 5, 2)]
        world.clients.one.batches = [[SCANNED]]
        await world.after(Scan(0, 3, frozenset({KEY}), places=(held, cut)))
        assert world.clients.brokers.asked == [PartitionEnd(0, 7, 1), PartitionEnd(0, 5, 2)]
        assert world.core.calls[0] == ("log_was_cut", 0, cut)
        assert heard(world)[1:] == [[5], (0, True, False)]

    of_a(test)
    assert caplog.messages == ["p.c[0] was cut below offset 5"]


def test_the_time_of_a_scan_is_that_of_reading() -> None:
    async def test(world: World) -> None:
        def slow() -> None:
            for _ in range(4):
                world.port.fast.skip()

        world.clients.one.seeking = slow
        world.clients.one.batches = [[encoded_key(b"other")], [SCANNED]]
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert heard(world) == [[1], [5], (0, True, False)]

    of_a(test)


def test_a_scan_for_keys_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", -1.0)

    async def test(world: World) -> None:
        world.clients.one.batches = [[encoded_key(b"other")], [SCANNED]]
        await world.after(Scan(0, 3, frozenset({KEY}), frozenset({0})))
        assert heard(world) == [[1], (0, True, False)]
        world.woken.clear()
        world.core.calls.clear()
        world.clients.one.batches = [[encoded_key(b"other")], [SCANNED]]
        await world.after(Scan(0, 3, frozenset({KEY})))  # one that somebody waits for goes on
        assert heard(world) == [[1], [5], (0, True, False)]

    of_a(test)


def test_a_scan_is_tried_again_with_a_new_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)

    async def test(world: World) -> None:
        world.clients.one.batches = [KafkaUnavailable("no leader"), [SCANNED]]
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert heard(world) == [[5], (0, True, False)]
        assert world.clients.one.reads == [(0, 3), (0, 3)]

    of_a(test)


def test_a_missing_right_ends_the_first_scan_and_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)

    async def test(world: World) -> None:
        world.clients.one.batches = [[SCANNED]]
        await world.after(Scan(0, 3, frozenset({KEY})))
        world.woken.clear()
        world.clients.one.batches = [KafkaUnauthorized("Read is missing"), [SCANNED]]
        await world.after(Scan(0, 3, frozenset({KEY})))
        assert not world.tasks.failure.done()

    of_a(test)

    async def first(world: World) -> None:
        world.clients.one.batches = [[], KafkaUnauthorized("Read is missing")]  # the refusal takes a few reads
        await world.after(Scan(0, 3, frozenset({KEY})))
        with pytest.raises(KafkaUnauthorized, match="Read is missing"):
            world.tasks.failure.result()

    of_a(first)


def test_of_a_partition_that_is_withheld_nothing_is_read() -> None:
    """The core asks again once it is not."""

    async def test(world: World) -> None:
        world.core.withheld = frozenset({1})
        world.clients.one.batches = [[SCANNED]]
        await world.after(Scan(1, 0, frozenset({KEY})))
        assert world.clients.one.reads == []
        assert heard(world) == [(1, True, False)]
        world.core.withheld = frozenset()
        await world.after(Scan(1, 0, frozenset({KEY})))
        assert world.clients.one.reads == [(1, 0)]

    of_a(test)
