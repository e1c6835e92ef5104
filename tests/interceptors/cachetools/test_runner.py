"""The connector of a captured cache: how it begins, what it drains, and each way to its end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import operator
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import cachetools
import pytest

import deelog_interceptors.cachetools as deelog
from deelog_connector.devkafka.ports import free_port
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.threads import READERS
from deelog_connector.runtime import Connector, Stats
from deelog_interceptors.cachetools import runner
from deelog_interceptors.cachetools.change_queue import ChangeQueue
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.runner import MirrorCacheSide, Runner
from deelog_interceptors.cachetools.telling import Skipped
from deelog_interceptors.hosting.connector_thread import ConnectorThread
from deelog_schemas.config import Config, parse
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import OVERHEAD, Entry, Operation, Reason
from tests.connector.rest.client import Api
from tests.connector.transforms.transforms_for_tests import BOMB, Slow
from tests.interceptors.cachetools.support import SEGMENTS, Attached, Written
from tests.interceptors.cachetools.test_capture import SECONDS, config, our_threads, ready, told
from tests.interceptors.cachetools.test_refused import refused_of
from tests.support.memory import LiveMemory, Memory
from tests.support.waiting import awaiting, waiting

BUDGET = 1000 * OVERHEAD
CONTEXT = Attached(cachetools.LRUCache(1)).context


class Sink(Written):
    """A core that also keeps what the runner did with the segments."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = SimpleNamespace(max_bytes=BUDGET, bytes=0, max_operations=1000, operations=0)
        self.promoted: list[tuple[int, int, str]] = []
        self.phases = ["idle"] * SEGMENTS
        self.claim = 7
        self.left = 0

    def highest_claim(self) -> int:
        return self.claim

    def promote(self, segment: int, epoch: int, reason: str) -> None:
        self.promoted.append((segment, epoch, reason))
        self.phases[segment] = "writing"
        self.claim = max(self.claim, epoch)

    def acked(self, segment: int, sequence: int) -> None:
        self.acks[segment] = sequence

    def last_sequence(self, segment: int) -> int:
        return self.last[segment]

    def phase(self, segment: int) -> str:
        return self.phases[segment]

    def unwritten(self) -> int:
        return self.left

    def withholds(self, segment: int) -> bool:
        return False


class FakeConnector:
    """A connector of the `Sink`. `start` waits for `may_start`, and raises the next of `start_errors`."""

    def __init__(self, config: Config, member: str, side: MirrorCacheSide, run: Run) -> None:
        self._run = run
        loop = asyncio.get_running_loop()
        self.member, self.side, self.sink = member, side, Sink()
        self.failure: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        self.halted: Exception | None = None
        self.stats, self.max_message_bytes = SimpleNamespace(stopped={}, withheld=[]), 1_048_588
        self.calls: list[str] = []
        self.keeps: set[int] = set()
        """Segments that no stop releases."""

    async def start(self) -> None:
        self.calls.append("start")
        await self._run.may_start.wait()
        if self._run.start_errors:
            raise self._run.start_errors.pop(0)

    def wake(self) -> None:
        self.calls.append("wake")

    async def stop(self, release: bool, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.calls.append(f"stop {release}")
        if release:
            self.sink.phases = ["writing" if s in self.keeps else "released" for s in range(SEGMENTS)]


class Run:
    """A runner of one cache with a connector that is none, and a clock that is the loop's."""

    def __init__(self, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = parse({**config(memory, "p"), "commit.interval.ms": "100"})
        self.mirror = Mirror(SEGMENTS, False, lambda moment: None)
        self.queue = ChangeQueue()
        self.failures: list[BaseException] = []
        self.finished = 0
        self.connector: FakeConnector
        self.joined: list[str] = []
        self.join_error: Exception | None = None
        self.start_errors: list[Exception] = []
        self.may_join, self.may_start = asyncio.Event(), asyncio.Event()
        self.may_join.set()
        self.may_start.set()
        host = cast(ConnectorThread, self)
        self.runner = Runner(
            self.config, self.mirror, self.queue, Skipped(), self.failures.append, self._finished, host
        )
        clock = SimpleNamespace(monotonic=memory.loop.time, time_ns=lambda: 5_000_000_000)
        monkeypatch.setattr(runner, "time", clock)
        monkeypatch.setattr(runner, "Connector", self._connector)

    def _connector(self, config: Config, member: str, side: MirrorCacheSide, connector_name: str) -> FakeConnector:
        assert connector_name == "cachetools"
        self.connector = FakeConnector(config, member, side, self)
        return self.connector

    def _finished(self) -> None:
        self.finished += 1

    async def join(self, cache: str, make: Callable[[Config], Any]) -> Any:
        self.joined.append(cache)
        await self.may_join.wait()
        if self.join_error is not None:
            raise self.join_error
        return make(self.config)

    async def end(self, connector: Any) -> None:
        self.connector.calls.append("end")

    @property
    def stop_message(self) -> str:
        return str(self.runner.stop_error)

    def put(self, key: str, value: str) -> None:
        self.queue.queue.append((Reason.PUT, key, value, None, 1.0, None))

    async def joined_host(self) -> asyncio.Task[None]:
        """The runner's connector is made, and begins to start."""
        work = asyncio.ensure_future(self.runner._run())
        await awaiting(self.runner._joined.done, 10, "the connector")
        return work

    async def begun(self) -> asyncio.Task[None]:
        """The runner owns all segments."""
        work = await self.joined_host()
        self.runner.begin(CONTEXT)
        await awaiting(lambda: self.runner._sink, 10, "the segments")
        return work

    async def stopped(self, work: asyncio.Task[None], seconds: float = 5.0) -> None:
        """The runner was told to stop, and has."""
        self.runner.ask_to_stop(seconds)
        await work


@pytest.fixture
def begin(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(memory, monkeypatch)


def test_it_streams_once_each_segment_has_been_written_though_never_all_at_once(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        begin.may_start.clear()
        work = await begin.joined_host()
        assert begin.runner.why_not_streaming == "Kafka has not answered yet"
        begin.connector.sink.promote = lambda *given: None  # type: ignore[method-assign]
        begin.runner.begin(CONTEXT)
        begin.may_start.set()
        await awaiting(lambda: begin.runner._sink, 10, "the segments")
        assert begin.runner.why_not_streaming == "16 of 16 segments wait for their first reset"
        for resets in range(2):
            assert not begin.runner.streaming.done()
            begin.connector.sink.phases = ["rows" if s % 2 == resets else "writing" for s in range(SEGMENTS)]
            await asyncio.sleep(1)
        assert begin.runner.streaming.done()
        await begin.stopped(work)

    memory.run(run())


def test_a_later_stop_may_have_less_time(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        work = await begin.begun()
        begin.connector.sink.left = 1
        before = memory.loop.time()
        begin.runner.ask_to_stop(50)
        begin.runner.ask_to_stop(2)
        begin.runner.ask_to_stop(90)
        assert 0.9 < begin.runner.grace() <= 1.0
        await work
        assert memory.loop.time() - before == pytest.approx(2, abs=0.1)

    memory.run(run())


def test_it_owns_all_segments_in_a_new_epoch_once_it_is_told_to_begin(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        begin.put("early", "1")
        work = await begin.joined_host()
        connector = begin.connector
        assert (connector.member, begin.joined, connector.calls) == ("n1@5000", ["sessions"], ["start"])
        await asyncio.sleep(1)
        assert (connector.sink.promoted, len(begin.queue.queue)) == ([], 1)
        connector.sink.last[3] = 9
        begin.runner.begin(CONTEXT)
        await awaiting(lambda: begin.runner._sink, 10, "the segments")
        assert connector.sink.promoted == [(segment, 8, "start") for segment in range(SEGMENTS)]
        assert (connector.sink.acks[3], connector.calls) == (9, ["start", "wake"])
        assert begin.runner.stats is cast(Any, connector.stats)
        begin.put("late", "1")
        await begin.stopped(work)
        assert [operation.key for _, operation in connector.sink.operations if operation.key != b"early"] == [b"late"]
        assert connector.calls == ["start", "wake", "end", "stop True"]
        assert (begin.failures, begin.runner.stop_error) == ([], None)

    memory.run(run())


@pytest.mark.parametrize(
    ("taken_bytes", "taken_operations", "free"),
    [(0, 0, BUDGET), (BUDGET - 5, 0, 5), (0, 999, OVERHEAD), (BUDGET + 1, 0, 0), (0, 1001, 0)],
)
def test_writers_may_append_what_the_op_log_has_free(
    memory: Memory, begin: Run, taken_bytes: int, taken_operations: int, free: int
) -> None:
    async def run() -> None:
        work = await begin.begun()
        budget = begin.connector.sink.budget
        budget.bytes, budget.operations = taken_bytes, taken_operations
        begin.put("k", "v")
        await awaiting(lambda: begin.mirror.drained, 10, "the change")
        await asyncio.sleep(0.1)
        assert begin.queue.limit == begin.mirror.drained + free
        await begin.stopped(work)

    memory.run(run())


def test_segments_that_another_process_claimed_are_taken_back_and_at_last_given_up(
    memory: Memory, begin: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        work = await begin.begun()
        connector, sink = begin.connector, begin.connector.sink
        sink.promoted.clear()
        for seconds in (0.2, 0.4, 0.8):
            connector.side.stepped_down(5, "a claim of n2@1")
            connector.side.stepped_down(2, "a claim of n2@1")
            begun = memory.loop.time()
            await awaiting(lambda: not connector.side.lost, 10, "the segments")
            assert memory.loop.time() - begun == pytest.approx(seconds, abs=0.05)
        assert sink.promoted == [(s, epoch, "superseded") for epoch in (9, 10, 11) for s in (2, 5)]
        assert caplog.messages[0] == "taking back 2 segments that another process claimed: a claim of n2@1"
        await asyncio.sleep(61)
        connector.side.stepped_down(5, "later")
        await awaiting(lambda: len(sink.promoted) == 7, 10, "the segment")
        for _ in range(2):
            connector.side.stepped_down(5, "again")
            await awaiting(lambda: not connector.side.lost, 10, "the segment")
            await asyncio.sleep(1)
        connector.side.stepped_down(5, "a claim of n2@2")
        await work
        (failure,) = begin.failures
        assert isinstance(failure, deelog.CaptureFailed)
        assert str(failure) == (
            "another process captures cache 'sessions' into the same topic and takes its segments again and again (a "
            "claim of n2@2): give one of them another cache.name or topic.prefix"
        )
        assert connector.failure.exception() is failure
        assert connector.calls[-1] == "stop False"

    memory.run(run())


@pytest.mark.parametrize("halted", [True, False])
def test_a_connector_that_cannot_go_on_ends_the_capture(memory: Memory, begin: Run, halted: bool) -> None:
    async def run() -> None:
        work = await begin.begun()
        error = RuntimeError("it cannot go on")
        if halted:
            begin.connector.halted = error
        else:
            begin.connector.failure.set_exception(error)
        await work
        assert begin.failures == [error]
        assert begin.connector.failure.exception() is error
        assert begin.connector.calls == ["start", "wake", "stop False"]
        with pytest.raises(RuntimeError) as raised:
            begin.runner.begin(CONTEXT)
        assert raised.value is error

    memory.run(run())


def test_what_fails_before_it_begins_is_reported_too(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        work = await begin.joined_host()
        error = RuntimeError("it cannot go on")
        begin.connector.failure.set_exception(error)
        await work
        assert (begin.failures, begin.connector.sink.promoted) == ([error], [])

    memory.run(run())


def test_what_is_wrong_here_is_raised_by_the_start(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        begin.join_error = RuntimeError("a port in use")
        await begin.runner._run()
        assert begin.runner._joined.exception() is begin.runner.streaming.exception() is begin.join_error
        assert begin.failures == []

    memory.run(run())


def test_a_stop_before_it_begins_writes_nothing_and_waits_for_nothing(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        begin.put("k", "v")
        begin.may_start.clear()
        work = await begin.joined_host()
        before = memory.loop.time()
        await begin.stopped(work)
        assert memory.loop.time() - before < 0.1
        assert begin.connector.calls == ["start", "stop False"]
        assert begin.connector.sink.operations == []

    memory.run(run())


def test_a_stop_waits_for_the_start_while_there_is_time(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        begin.may_start.clear()
        work = await begin.joined_host()
        begin.runner.begin(CONTEXT)
        begin.put("k", "v")
        stopping = asyncio.ensure_future(begin.stopped(work, 5.0))
        await asyncio.sleep(3)
        begin.may_start.set()
        await stopping
        assert (begin.connector.calls[-1], begin.runner.stop_error) == ("stop True", None)
        assert begin.connector.seconds == pytest.approx(2.0, abs=0.2)
        assert begin.runner.streaming.result(0) is None
        assert [entry.key for segment in range(SEGMENTS) for entry in begin.mirror.entries(segment)] == [b"k"]

    memory.run(run())


def test_a_stop_without_kafka_ends_in_time_and_says_so(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        begin.start_errors = [KafkaUnavailable("127.0.0.1:1 refuses connections")] * 99
        work = await begin.joined_host()
        begin.runner.begin(CONTEXT)
        await asyncio.sleep(10)
        before = memory.loop.time()
        await begin.stopped(work, 5.0)
        assert memory.loop.time() - before == pytest.approx(5.0, abs=0.1)
        assert begin.stop_message == (
            "Kafka has nothing of it, the next start sends it whole: 127.0.0.1:1 refuses connections"
        )
        assert (begin.failures, begin.runner.streaming.exception()) == ([], begin.runner.stop_error)

    memory.run(run())


def test_kafka_is_tried_again_and_what_changes_meanwhile_is_in_the_mirror(
    memory: Memory, begin: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        begin.start_errors = [KafkaUnavailable("nobody answers")] * 3
        begun = memory.loop.time()
        work = await begin.joined_host()
        begin.runner.begin(CONTEXT)
        for number in range(200):
            begin.put(f"k{number % 50}", f"{number}")
        await awaiting(lambda: begin.mirror.drained, 10, "the changes")
        await asyncio.sleep(0.1)
        assert (len(begin.mirror), len(begin.queue.queue)) == (50, 0)
        assert begin.queue.limit == begin.mirror.drained + BUDGET
        await begin.runner._make_room(3, 100)
        begin.queue.queue.append((Reason.CLEAR, "", None, None, 1.0, None))
        begin.put("last", "1")
        assert not begin.runner.streaming.done()
        await awaiting(lambda: begin.runner._sink, 10, "the segments")
        assert memory.loop.time() - begun == pytest.approx(0.5 + 1 + 2, abs=0.2)
        assert begin.joined == ["sessions"] * 4
        await awaiting(begin.runner.streaming.done, 10, "the reset")
        assert begin.connector.sink.operations == []
        assert [entry.key for segment in range(SEGMENTS) for entry in begin.mirror.entries(segment)] == [b"last"]
        assert caplog.messages == ["cache sessions: nobody answers; its changes wait, and Kafka is tried again"] * 3
        await begin.stopped(work)
        assert (begin.failures, begin.runner.stop_error) == ([], None)

    memory.run(run())


@pytest.mark.parametrize("error", [KafkaUnauthorized("not this user"), KafkaUnusable("not compacted")])
def test_what_no_later_try_mends_is_a_failure(memory: Memory, begin: Run, error: Exception) -> None:
    async def run() -> None:
        begin.may_start.clear()
        begin.start_errors = [error]
        work = await begin.joined_host()
        begin.runner.begin(CONTEXT)
        begin.may_start.set()
        await work
        assert (begin.failures, begin.runner.streaming.exception()) == ([error], error)
        assert begin.connector.calls == ["start", "stop False"]

    memory.run(run())


def test_who_does_not_wait_for_the_connector_hears_of_its_error_as_a_failure(
    memory: Memory, begin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        begin.may_join.clear()
        begin.join_error = RuntimeError("a port in use")
        work = asyncio.ensure_future(begin.runner._run())
        await awaiting(lambda: begin.joined, 10, "the start")
        assert begin.runner._joined.cancel()
        begin.runner.begin(CONTEXT)
        assert begin.runner.stats == Stats()
        begin.may_join.set()
        await work
        assert begin.failures == [begin.join_error]

    memory.run(run())


def test_the_end_of_the_snapshot_ends_the_capture(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        work = await begin.begun()
        begin.connector.finished.set_result(None)
        await work
        assert (begin.finished, begin.failures) == (1, [])
        assert (begin.connector.calls[-1], begin.runner._stop_seconds) == ("stop True", 60.0)

    memory.run(run())


def test_a_stop_waits_until_all_is_written(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        work = await begin.begun()
        sink = begin.connector.sink
        sink.left, sink.phases[2] = 1, "rows"
        stopping = asyncio.ensure_future(begin.stopped(work, 5.0))
        await asyncio.sleep(1)
        assert begin.connector.calls[-1] == "end"
        sink.left = 0
        await asyncio.sleep(1)
        assert begin.connector.calls[-1] == "end"
        sink.phases[2] = "writing"
        await stopping
        assert (begin.connector.calls[-1], begin.runner.stop_error) == ("stop True", None)

    memory.run(run())


def test_a_stop_that_is_late_releases_nothing(memory: Memory, begin: Run) -> None:
    async def run() -> None:
        work = await begin.begun()
        begin.connector.sink.left = 1
        begun = memory.loop.time()
        await begin.stopped(work, 3.0)
        assert memory.loop.time() - begun == pytest.approx(3.0, abs=0.1)
        assert begin.connector.calls[-1] == "stop False"
        assert begin.stop_message == (
            "16 of 16 segments could not be written to their end within 3 s; the next start repairs them by a reset"
        )
        assert begin.failures == []

    memory.run(run())


@pytest.mark.parametrize(
    ("stopped", "halted", "why"),
    [
        ({7: "later", 4: "a record was refused"}, None, "; segment 4 was stopped: a record was refused"),
        ({}, RuntimeError("a transform failed"), "; a transform failed"),
    ],
)
def test_what_cannot_be_written_is_not_waited_for(
    memory: Memory, begin: Run, stopped: dict[int, str], halted: Exception | None, why: str
) -> None:
    async def run() -> None:
        work = await begin.begun()
        connector = begin.connector
        connector.sink.left, connector.keeps, connector.stats.stopped = 1, {4, 7}, stopped
        begun = memory.loop.time()
        stopping = asyncio.ensure_future(begin.stopped(work, 50.0))
        await awaiting(lambda: "end" in connector.calls, 10, "the end")
        connector.halted = halted
        await stopping
        assert memory.loop.time() - begun < 1
        assert connector.calls[-1] == "stop True"
        assert begin.stop_message == (
            "2 of 16 segments could not be written to their end within 50 s; the next start repairs them by a reset"
            + why
        )

    memory.run(run())


def test_corrections_are_acknowledged_at_once_and_entries_are_the_mirrors() -> None:
    mirror = Mirror(SEGMENTS, False, lambda moment: None)
    mirror.load("k", "v", None)
    side, acked = MirrorCacheSide(mirror, refused_of(mirror)), list[tuple[int, int]]()
    side.acked = lambda segment, sequence: acked.append((segment, sequence))
    one = Operation(1, 6, "correct", b"k", b"v", None, 0, True)
    side.corrected(3, [one, one._replace(sequence=7)])
    assert acked == [(3, 7)]
    segment = segment_of(b"k", SEGMENTS)
    assert side.entries(segment) == [side.get(segment, b"k")] == [Entry(b"k", b"v", None)]


def test_without_a_loop_or_after_its_end_no_writer_waits(memory: Memory, begin: Run) -> None:
    begin.runner.make_room("k", 1)
    begin.runner._loop = memory.loop
    begin.runner.make_room("k", 1)
    begin.runner._work = concurrent.futures.Future()
    begin.runner._work.set_result(None)
    begin.runner.make_room("k", 1)
    assert memory.loop.turns == 0


@pytest.mark.parametrize("policy", ["block", "reset"])
def test_a_full_op_log_waits_or_resets_and_the_topic_is_right_in_the_end(
    live: LiveMemory, prefix: str, policy: str
) -> None:
    cache: Any = cachetools.FIFOCache(100)
    wait_ms = 300 if policy == "block" else 600_000  # `reset` never waits
    small = config(live, prefix, max_queue_size=200, oplog_overflow=policy, max_block_ms=wait_ms)
    with deelog.capture(cache, small) as capture:
        cache["first"] = "1"
        ready(capture)
        live.kafka.up = False
        longest = 0.0
        for turn in range(260):
            before = time.monotonic()
            cache[f"k{turn % 120}"] = str(turn)
            longest = max(longest, time.monotonic() - before)
            # In this order: a change that moves from one to the other in between must not count twice.
            assert capture.stats.unwritten + capture.pending <= 220
        assert longest > 0.25 or policy == "reset"
        assert capture.stats.overflow["reset"] > 0
        live.kafka.up = True
    topic = told(live, prefix)
    assert topic.entries == dict(cache)
    assert topic.resets["overflow"] > 0
    assert topic.repeats == 0


def test_a_write_waits_no_longer_than_it_takes_to_make_room(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.FIFOCache(1000)
    small = config(live, prefix, max_queue_size=200, max_block_ms=60_000)
    with deelog.capture(cache, small) as capture:
        ready(capture)
        live.kafka.up = False
        resumed = threading.Timer(0.7, setattr, (live.kafka, "up", True))
        before = time.monotonic()
        resumed.start()
        for turn in range(600):
            cache[f"k{turn}"] = str(turn)
        assert time.monotonic() - before > 0.5
        resumed.join()
        assert capture.stats.overflow.get("reset", 0) == 0
    topic = told(live, prefix)
    assert len(topic.entries) == 600
    assert topic.resets == {"start": SEGMENTS}


def test_a_partition_that_is_away_holds_up_the_release_of_its_own_segments_alone(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(1000)
    settings = config(live, prefix, transaction_timeout_ms=1000, commit_interval_ms=100)
    capture = deelog.capture(cache, settings)
    ready(capture)
    cache.update((f"k{number}", "v") for number in range(100))
    waiting(lambda: capture.stats.unwritten == 0, SECONDS, "all of it")
    live.kafka.lose(f"{prefix}.sessions", 1)
    waiting(lambda: capture.stats.withheld == [1], SECONDS, "the look at it")
    cache.update((f"k{number}", "w") for number in range(100))
    half = SEGMENTS // 2
    with pytest.raises(
        deelog.CaptureFailed, match=rf"{half} of {SEGMENTS} segments .*; partitions \[1\] take no records"
    ):
        capture.close(timeout=1)
    live.kafka.recover_all()
    kinds = told(live, prefix).last_kinds
    assert [kind is Kind.RELEASE for _, kind in sorted(kinds.items())] == [True] * half + [False] * half


def test_a_write_that_waits_for_room_is_done_when_the_capture_is_closed(live: LiveMemory, prefix: str) -> None:
    cache: Any = cachetools.LRUCache(1000)
    capture = deelog.capture(cache, config(live, prefix, max_queue_size=100, max_block_ms=60_000))
    ready(capture)
    live.kafka.up = False
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [operator.setitem(cache, f"k{turn}", "v") for turn in range(300)])
        waiting(lambda: capture.stats.overflow.get("block"), SECONDS, "a full op log")
        with pytest.raises(deelog.CaptureFailed, match="could not be written"):
            capture.close(timeout=0.1)
        writing.result(SECONDS)
    assert len(cache) == 300


def test_a_transform_that_hangs_holds_up_neither_restarts_nor_the_close(
    live: LiveMemory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging: list[float | None] = []

    class GoesOn(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            hanging.append(timeout)
            return super().wait(timeout)

    goes_on = GoesOn()
    monkeypatch.setattr(Slow, "goes_on", goes_on)
    monkeypatch.setattr(runner, "Connector", lambda *given, **named: Connector(*given, **named, port=live.port(1.0)))
    port = free_port()
    fields = config(live, prefix, name="shop", rest_port=port, transforms="s") | {
        "transforms.s.type": f"{Slow.__module__}.Slow"
    }
    cache: Any = cachetools.LRUCache(10)
    capture = deelog.capture(cache, fields)
    ready(capture)
    cache["k"] = BOMB
    for _ in range(READERS + 1):
        waiting(lambda: hanging, SECONDS, "a transform that hangs")
        hanging.clear()
        assert Api(port).ask("POST", "/connectors/shop/restart").status == 204
    before = time.monotonic()
    with pytest.raises(deelog.CaptureFailed, match="could not be written"):
        capture.close(timeout=1)
    assert time.monotonic() - before < 20.0
    assert our_threads() == []
    assert type(cache) is cachetools.LRUCache
    goes_on.set()


@pytest.mark.slow
def test_of_two_processes_on_one_cache_name_one_gives_up(live: LiveMemory, prefix: str) -> None:
    caches: list[Any] = [cachetools.LRUCache(10), cachetools.LRUCache(10)]
    captures = []
    for number, cache in enumerate(caches):
        captures.append(deelog.capture(cache, config(live, prefix, node_id=f"n{number}")))
        cache["k"] = f"of {number}"
    waiting(lambda: any(capture.failure for capture in captures), SECONDS, "one to give up")
    (loser,) = [capture for capture in captures if capture.failure is not None]
    (winner,) = [capture for capture in captures if capture.failure is None]
    assert isinstance(loser.failure, deelog.CaptureFailed)
    assert "another process captures cache 'sessions'" in str(loser.failure)
    winner.cache["more"] = "1"
    loser.close()
    winner.close()
    assert told(live, prefix).entries == dict(winner.cache)
