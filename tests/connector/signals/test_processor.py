"""Signals and what is told of them, by one connector; grids of them are in the grid's tests.

Bad input tried here: records with another key, no JSON, unknown kinds, segments that there are not, a snapshot that
goes on already, notes that are none, an end of notifications for which there is no Kafka any more.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import InRecord
from deelog_connector.runtime.run_state import Event, RunState
from deelog_connector.signals.processor import HANDLERS, MAX_REPLAY, POLL_SECONDS, Signals
from deelog_schemas.signals import KINDS, Progress, encode_progress, progress_key
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.support.kafka import Broker
from tests.support.memory import Memory
from tests.support.topics import derived
from tests.support.waiting import awaiting


def send(kafka: Broker | Memory, prefix: str, kind: str, identity: str = "i", **data: Any) -> None:
    """A signal as Debezium's users send it."""
    raw(kafka, f"{prefix}-signal", prefix.encode(), json.dumps({"id": identity, "type": kind, "data": data}).encode())


def raw(kafka: Broker | Memory, topic: str, key: bytes | None, value: bytes | None) -> None:
    if isinstance(kafka, Memory):
        kafka.produce(topic, key, value)
        return
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, value, key, partition=0)
    assert producer.flush(30) == 0


def read(memory: Memory, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values, both JSON."""
    return [(json.loads(m.key or b""), json.loads(m.value or b"")) for m in memory.messages(topic)]


async def told(memory: Memory, topic: str, aggregate: str, kind: str, *identities: str) -> list[dict[str, Any]]:
    """The notifications of an aggregate, once one of a kind is there, for each of the identities if any are named."""

    def ours() -> list[dict[str, Any]]:
        values = [value for _, value in read(memory, topic) if value["aggregate_type"] == aggregate]
        there = {value["id"] for value in values if value["type"] == kind}
        return values if there and there.issuperset(identities) else []

    return await awaiting(ours, 60, f"{kind} of {aggregate}")


def test_every_signal_has_a_handler() -> None:
    assert {signal.kind for signal in HANDLERS} == set(KINDS)


def test_what_cannot_be_done_is_counted_and_what_can_is_done(memory: Memory, prefix: str) -> None:
    async def work() -> None:
        async with cache(config_of(memory.bootstrap, prefix), port=memory.port()) as found:
            await started(found)
            topic, key = f"{prefix}-signal", prefix.encode()
            everything: dict[str, Any] = {"data-collections": [".*"]}
            for bad_key, bad in (
                (b"somebody", b"{}"),
                (None, b"{}"),
                (key, None),
                (key, b"\xff"),
                (key, b"[" * 70_000),
            ):
                raw(memory, topic, bad_key, bad)
            raw(memory, topic, progress_key(prefix), b"{}")
            note = Progress("nobody's", "c", (1,), 1, "n9@9", False)
            for one in (note, note._replace(cache="another"), note._replace(id="i", segments=(99,))):
                raw(memory, topic, progress_key(prefix), encode_progress(one))
            send(memory, prefix, "schema-changes")
            send(memory, prefix, "reset-segment", cache="c", segments=[8])
            send(memory, prefix, "execute-snapshot", segments=[1, 8], **everything)
            elsewhere: dict[str, Any] = {"data-collections": ["another"]}
            send(memory, prefix, "execute-snapshot", **elsewhere)
            send(memory, prefix, "stop-snapshot", **everything)
            send(memory, prefix, "log", message="at {}\nforged")
            await found.until(lambda: found.connector.stats.signals.get("log") == 1)
            assert found.connector.stats.signals == {
                "other": 3,
                "malformed": 4,
                "unknown": 1,
                "refused": 2,
                "stop-snapshot": 1,
                "log": 1,
            }
            assert found.connector.stats.snapshots == []
            await found.put(b"a", b"1")
            await found.drained()

    memory.run(work())


def test_what_log_says_is_one_line_and_tells_where(
    memory: Memory, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cache(config_of(memory.bootstrap, prefix), port=memory.port()) as found:
            await started(found)
            with caplog.at_level("INFO"):
                send(memory, prefix, "log", message="at {}\nforged")
                await found.until(lambda: found.connector.stats.signals.get("log") == 1)

    memory.run(work())
    assert "at cache c, primary of segments 0-7 forged" in [record.getMessage() for record in caplog.records]


def test_a_snapshot_is_told_of_stopped_and_added_to(memory: Memory, prefix: str) -> None:
    topic = f"{prefix}.told"
    more = {"notification_sink_topic_name": topic}

    async def work() -> None:
        config = config_of(memory.bootstrap, prefix, **more, incremental_snapshot_chunk_size=3, commit_interval_ms=100)
        async with cache(config, port=memory.port()) as found:
            await started(found)
            for number in range(400):
                await found.put(b"k%d" % number, b"v")
            await found.drained()
            everything: dict[str, Any] = {"data-collections": ["c"]}
            send(memory, prefix, "execute-snapshot", "first", **everything)
            await found.until(lambda: found.connector.stats.snapshot_rows > 0)
            # Two signals at a time: a snapshot that ended before it is stopped would be no fault.
            send(memory, prefix, "execute-snapshot", "first", **everything)
            send(memory, prefix, "pause-writing")
            await found.until(lambda: found.connector.state.paused)
            assert found.connector.stats.signals.get("refused") == 1
            send(memory, prefix, "resume-writing")
            send(memory, prefix, "stop-snapshot", **everything)
            await found.until(lambda: found.connector.stats.snapshots == [])
            stopped_at = found.connector.stats.snapshot_rows
            assert stopped_at < 400
            aborted = await told(memory, topic, "Incremental Snapshot", "ABORTED")
            kinds = [value["type"] for value in aborted if value["type"] != "IN_PROGRESS"]
            assert kinds == ["STARTED", "PAUSED", "RESUMED", "ABORTED"]

            send(memory, prefix, "execute-snapshot", "second", **everything)
            send(memory, prefix, "execute-snapshot", "third", segments=[0, 7], **everything)
            await found.until(lambda: found.connector.stats.snapshots == ["second", "third"])
            await found.until(lambda: found.connector.stats.snapshots == [], 60)
            await told(memory, topic, "Incremental Snapshot", "COMPLETED", "second", "third")
            values = [value for _, value in read(memory, topic)]
            for identity in ("second", "third"):
                ours = [value["type"] for value in values if value["id"] == identity]
                assert (ours[0], ours[-2:]) == ("STARTED", ["TABLE_SCAN_COMPLETED", "COMPLETED"])
            done = {v["id"]: v["additional_data"] for v in values if v["type"] == "TABLE_SCAN_COMPLETED"}
            assert done["second"]["total_rows_scanned"] == "400"
            assert 0 < int(done["third"]["total_rows_scanned"]) < 400
            initial = [value for value in values if value["aggregate_type"] == "Initial Snapshot"]
            kinds = [value["type"] for value in initial if value["type"] != "IN_PROGRESS"]
            assert kinds == ["STARTED", "COMPLETED"]
            assert initial[-1]["additional_data"] == {
                "connector_name": prefix,
                "data_collections": "c",
                "member": "n1@1",
                "reason": "start",
                "segments": "0-7",
                "total_rows_scanned": "0",
            }

            send(memory, prefix, "reset-segment", cache="c", segments=[2, 3])
            reset = await told(memory, topic, "Segment Reset", "COMPLETED")
            assert [reset[n]["additional_data"]["segments"] for n in (0, -1)] == ["2-3", "2-3"]
            content, _ = derived(memory.records(config.topics.changes))
            assert content == found.entries_of

    memory.run(work())


def test_who_starts_again_goes_on_with_what_is_not_complete(memory: Memory, prefix: str) -> None:
    """A process that died: what it had not noted is done by the next one, and what is over is not done again."""

    async def work() -> None:
        config = config_of(memory.bootstrap, prefix, incremental_snapshot_chunk_size=2, commit_interval_ms=100)
        everything: dict[str, Any] = {"data-collections": ["c"]}
        async with cache(config, 1, port=memory.port()) as found:
            await started(found)
            for number in range(200):
                await found.put(b"k%d" % number, b"v")
            await found.drained()
            send(memory, prefix, "execute-snapshot", "over", segments=[1], **everything)
            await found.until(lambda: found.connector.stats.signals.get("execute-snapshot") == 1)
            await found.until(lambda: found.connector.stats.snapshots == [])
            send(memory, prefix, "execute-snapshot", "left", **everything)
            await found.until(lambda: found.connector.stats.snapshots == ["left"])
            await found.until(lambda: found.connector.stats.snapshot_rows > 40)
            entries = dict(found.entries_of)
        again = Cache(config, 2, port=memory.port())
        again.entries_of = entries
        await again.connector.start()
        try:
            assert again.connector.stats.snapshots == ["left"]
            await started(again)
            await again.until(lambda: again.connector.stats.snapshots == [], 60)
            assert 0 < again.connector.stats.snapshot_rows <= 200
        finally:
            await again.connector.stop(release=False)

    memory.run(work())


def test_what_was_stopped_over_rest_is_not_resumed_by_a_signal(memory: Memory, prefix: str) -> None:
    async def work() -> None:
        async with cache(config_of(memory.bootstrap, prefix), port=memory.port()) as found:
            await started(found)
            await found.connector.suspend(30)
            found.connector.apply(Event.STOP)
            send(memory, prefix, "resume-writing")
            await found.until(lambda: found.connector.stats.signals == {"refused": 1})
            assert found.connector.state.paused
            found.connector.resume()
            await found.put(b"a", b"1")
            await found.drained()

    memory.run(work())


async def beating(memory: Memory, topic: str, least: int) -> list[tuple[Any, Any]]:
    """The heartbeats, once there are that many."""

    def beats() -> list[tuple[Any, Any]]:
        there = read(memory, topic)
        return there if len(there) >= least else []

    return await awaiting(beats, 60, f"{least} heartbeats")


def test_heartbeats_are_debeziums_and_come_while_something_is_written(memory: Memory, prefix: str) -> None:
    async def work() -> None:
        async with cache(
            config_of(memory.bootstrap, prefix, heartbeat_interval_ms=60_000), port=memory.port()
        ) as found:
            topic = f"__debezium-heartbeat.{prefix}"
            begun = found.port.clock.time_ns() // 1_000_000
            await started(found)
            ((_, first),) = await beating(memory, topic, 1)
            assert first["ts_ms"] >= begun  # it owned nothing before
            faster = config_of(memory.bootstrap, prefix, heartbeat_interval_ms=100)
            await found.connector.replace(await found.connector.prepared(faster))
            beats = await beating(memory, topic, 3)
            assert {json.dumps(key) for key, _ in beats} == {json.dumps({"serverName": prefix})}
            assert all(list(value) == ["ts_ms"] for _, value in beats)
            assert abs(beats[-1][1]["ts_ms"] - begun) < 60_000

    memory.run(work())


def test_what_cannot_be_told_holds_nothing_up(prefix: str) -> None:
    """No Kafka at all: nothing waits, what finds the queue full is counted, and so is what is left at the end."""

    async def work() -> None:
        port = Librdkafka()
        notes = port.notes(config_of("127.0.0.1:1", prefix))
        for number in range(1500):
            notes.send("t", b"k", b"%d" % number)
        assert notes.dropped == 500
        await notes.close()  # by PATIENCE_MS it would be a minute
        assert notes.dropped == 1500
        await port.close()

    run(work())


def test_the_topic_is_read_on_from_where_it_was_read_to() -> None:
    signals = Signals(config_of("h:1", "p"), cast("Any", None))
    assert [signals.first_offset(end) for end in (5, MAX_REPLAY + 7)] == [0, 7]
    signals._next = 50
    assert signals.first_offset(60) == 50
    assert signals.first_offset(40) == 40  # another topic of that name
    assert signals.first_offset(60) == 40


def test_a_record_that_was_taken_is_not_taken_again() -> None:
    """A broker that has just restarted may show a shorter log: the reader begins at its beginning then."""

    class Again:
        """A reader that begins at its beginning once more."""

        reads = 0

        async def read(self, seconds: float) -> list[InRecord]:
            self.reads += 1
            if self.reads == 2:
                raise asyncio.CancelledError
            return [InRecord("p-signal", 0, offset, b"foreign", b"{}", []) for offset in (3, 4, 5)]

        async def close(self) -> None:
            pass

    signals = Signals(config_of("h:1", "p"), cast("Any", None))
    signals._next = 4
    with pytest.raises(asyncio.CancelledError):
        run(signals.follow(cast("Any", Again())), 20)
    assert (signals.counts, signals._next) == ({"other": 2}, 6)


class Target:
    """A connector that remembers what signals did to it."""

    def __init__(self) -> None:
        self.state, self.heard = RunState(), list[Any]()
        self.snapshots = SimpleNamespace(progressed=self.heard.append, paused=self.heard.append)

    def pause(self) -> None:
        self.state = self.state.after(Event.PAUSE)
        self.heard.append("pause")

    def resume(self) -> None:
        self.state = self.state.after(Event.RESUME)
        self.heard.append("resume")


@pytest.mark.parametrize("replayed", [False, True])
def test_of_the_signals_of_a_prefix_those_for_its_cache_are_obeyed(replayed: bool) -> None:
    """As signals that come, and as those of earlier that a start reads."""
    ours, other = {"data-collections": ["c"]}, {"data-collections": ["other"]}
    notes = [Progress("i", cache, (1,), 2, "n1@1", False) for cache in ("other", "c")]
    values: list[tuple[bytes, bytes]] = [(progress_key("p"), encode_progress(note)) for note in notes]
    for kind, data in (
        ("resume-writing", ours),
        ("pause-writing", other),
        ("pause-writing", ours),
        ("pause-writing", ours),
        ("resume-writing", other),
    ):
        values.append((b"p", json.dumps({"id": "i", "type": kind, "data": data}).encode()))
    records = [InRecord("p-signal", 0, offset, key, value, []) for offset, (key, value) in enumerate(values)]

    class Topic:
        caught_up = False

        async def read(self, seconds: float) -> list[InRecord]:
            self.caught_up = True
            return records

        def next_offset(self, partition: int) -> int:
            return len(records)

    target = Target()
    signals = Signals(config_of("h:1", "p"), cast("Any", target))
    if replayed:
        run(signals.catch_up(cast("Any", Topic())), 20)
        assert target.heard == [notes[1], "pause"]
    else:
        for record in records:
            signals.take(record)
        assert target.heard == [notes[1], "pause", True]  # notified of once, and of no resume without a pause
        assert signals.counts == {"other": 2, "pause-writing": 2, "resume-writing": 1}


class Topic:
    """A reader of these records, given at once; then it rests, after `errors`."""

    def __init__(self, *records: InRecord, errors: tuple[Exception, ...] = ()) -> None:
        self.records, self.errors = list(records), list(errors)
        self.caught_up = False
        self.closed = 0
        self.waits: list[float] = []

    async def read(self, seconds: float) -> list[InRecord]:
        self.waits.append(seconds)
        if self.errors:
            raise self.errors.pop(0)
        self.caught_up = True
        if not self.records:
            await asyncio.Event().wait()
        found, self.records = self.records, []
        return found

    def next_offset(self, partition: int) -> int:
        assert partition == 0
        return 77

    async def close(self) -> None:
        self.closed += 1


def signal(offset: int, kind: str, identity: str = "i", **data: Any) -> InRecord:
    return InRecord("p-signal", 0, offset, b"p", json.dumps({"id": identity, "type": kind, "data": data}).encode(), [])


class Snapshots:
    """Notes what is asked of it; whether that is while earlier signals are read."""

    def __init__(self) -> None:
        self.replaying = False
        self.asked: list[tuple[Any, ...]] = []

    def ask(self, identity: str, segments: Any) -> str | None:
        self.asked.append(("ask", identity, segments, self.replaying))
        return None if identity == "i" else "there are enough"

    def stop(self) -> None:
        self.asked.append(("stop", self.replaying))

    def progressed(self, note: Progress) -> None:
        self.asked.append(("progressed", note.id, self.replaying))


class OfSegments(Target):
    """A target that is primary of segments 1 and 2 of 8."""

    def __init__(self) -> None:
        super().__init__()
        primaries = [SimpleNamespace(number=number) for number in (1, 2)]
        ask = lambda segment, reason: self.heard.append((segment, reason))  # noqa: E731
        self.core = SimpleNamespace(segments=8, primaries=lambda: primaries, ask_reset=ask)
        self.snapshots: Any = Snapshots()


SNAPSHOT: dict[str, Any] = {"data-collections": ["c"], "type": "incremental"}


def test_a_start_goes_on_with_snapshots_and_the_last_pause_and_repeats_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    note = InRecord("p-signal", 0, 3, progress_key("p"), encode_progress(Progress("n", "c", (1,), 2, "m", False)), [])
    topic = Topic(
        signal(0, "execute-snapshot", **SNAPSHOT),
        signal(1, "stop-snapshot", **SNAPSHOT),
        signal(2, "reset-segment", cache="c", segments=[1]),
        note,
        signal(4, "resume-writing"),
        signal(5, "pause-writing"),
        signal(6, "log", message="x"),
        signal(7, "nonsense"),
        InRecord("p-signal", 0, 8, b"foreign", b"{}", []),
        InRecord("p-signal", 0, 9, progress_key("p"), b"{", []),
    )
    target = OfSegments()
    signals = Signals(config_of("h:1", "p"), cast("Any", target))
    run(signals.catch_up(cast("Any", topic)), 20)
    assert target.snapshots.asked == [("ask", "i", None, True), ("stop", True), ("progressed", "n", True)]
    assert (target.heard, target.snapshots.replaying, topic.closed) == (["pause"], False, 0)
    assert signals.counts == {"malformed": 1}
    assert caplog.messages[-1] == "cache c: pause-writing on p-signal is in force: nothing is written"
    assert signals.first_offset(100) == 77
    topic.caught_up = False
    run(signals.catch_up(cast("Any", topic)), 20)
    assert len(topic.waits) == 1


def test_a_pause_that_was_ended_is_not_in_force() -> None:
    target = OfSegments()
    signals = Signals(config_of("h:1", "p"), cast("Any", target))
    topic = Topic(signal(0, "pause-writing"), signal(1, "resume-writing"), signal(2, "log", message="x"))
    run(signals.catch_up(cast("Any", topic)), 20)
    assert target.heard == []


def test_another_topic_is_read_from_its_beginning() -> None:
    signals = Signals(config_of("h:1", "p"), cast("Any", OfSegments()))
    signals._next = 50
    signals.configured(config_of("h:1", "p"))
    assert signals.first_offset(60) == 50
    signals.configured(config_of("h:1", "p", signal_kafka_topic="another"))
    assert signals.first_offset(60) == 0


def test_the_topic_is_followed_through_errors_and_its_reader_closed(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        target = OfSegments()
        signals = Signals(config_of("h:1", "p"), cast("Any", target))
        others: dict[str, Any] = {"data-collections": ["none"]}
        topic = Topic(signal(7, "pause-writing", **others), errors=(KafkaUnavailable("away"),))
        following = asyncio.ensure_future(signals.follow(cast("Any", topic)))
        await awaiting(lambda: signals.counts, 10, "the signal")
        assert memory.loop.time() >= 1.0
        assert (signals._next, topic.waits) == (8, [POLL_SECONDS] * len(topic.waits))
        assert caplog.messages == ["signals: away"]
        following.cancel()
        await asyncio.wait([following])
        assert topic.closed == 1

    memory.run(work())


def test_where_the_log_does_not_go_on_its_following_ends(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        signals = Signals(config_of("h:1", "p"), cast("Any", OfSegments()))
        topic = Topic(errors=(KafkaUnusable("gone"),))
        await asyncio.wait_for(signals.follow(cast("Any", topic)), 10)
        assert (caplog.messages, topic.closed) == (["signals: gone"], 1)

    memory.run(work())


def test_a_topic_that_was_made_again_is_read_from_its_beginning(memory: Memory) -> None:
    others: dict[str, Any] = {"data-collections": ["none"]}

    async def work() -> None:
        signals = Signals(config_of("h:1", "p"), cast("Any", OfSegments()))
        signals.topic_is("1")
        signals.topic_is("2")  # before anything was read: nothing is missing
        await signals.catch_up(cast("Any", Topic(signal(0, "pause-writing", **others))))
        signals.topic_is("2")
        signals.topic_is("1")  # by a broker that is behind
        assert signals.first_offset(80) == 77
        topic = Topic(errors=tuple(KafkaUnavailable("away") for _ in range(9)))
        following = asyncio.ensure_future(signals.follow(cast("Any", topic)))
        await awaiting(lambda: len(topic.waits) > 3, 10, "reads")
        signals.topic_is("3")
        await asyncio.wait_for(following, 10)
        assert (signals.first_offset(80), topic.closed) == (0, 1)
        following = asyncio.ensure_future(signals.follow(cast("Any", Topic(signal(0, "pause-writing", **others)))))
        await awaiting(lambda: signals.counts == {"other": 1}, 10, "the first record")
        following.cancel()

    memory.run(work())


def test_what_is_read_while_the_topic_is_found_to_be_another_is_left(memory: Memory) -> None:
    others: dict[str, Any] = {"data-collections": ["none"]}

    async def work() -> None:
        signals = Signals(config_of("h:1", "p"), cast("Any", OfSegments()))
        signals.topic_is("1")
        signals._next = 0

        class Former(Topic):
            async def read(self, seconds: float) -> list[InRecord]:
                signals.topic_is("2")
                return [signal(1, "pause-writing", **others)]

        await signals.follow(cast("Any", Former()))
        assert (signals.counts, signals.first_offset(2)) == ({}, 0)

    memory.run(work())


def test_a_reset_is_asked_for_by_all_and_logged_by_the_primary(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    target = OfSegments()
    signals = Signals(config_of("h:1", "p"), cast("Any", target))
    signals.take(signal(5, "reset-segment", cache="c", segments=[0, 2], reason="why"))
    assert target.heard == [(0, "signal"), (2, "signal")]
    assert caplog.messages == [
        "segment 2: reset requested by signal i: why",
        "signal i (reset-segment, p-signal@5)",
    ]
    signals.take(signal(6, "reset-segment", identity="", cache="c", segments=[1, 8]))
    assert len(target.heard) == 2
    assert caplog.messages[-1] == (
        "signal without id (reset-segment, p-signal@6) is refused: segment 8 does not exist (segment.count=8)"
    )
    assert signals.counts == {"reset-segment": 1, "refused": 1}


def test_a_snapshot_is_asked_for_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    target = OfSegments()
    signals = Signals(config_of("h:1", "p"), cast("Any", target))
    signals.take(signal(5, "execute-snapshot", **SNAPSHOT, segments=[3]))
    signals.take(signal(6, "execute-snapshot", identity="j", **SNAPSHOT))
    signals.take(signal(7, "stop-snapshot", **SNAPSHOT))
    assert target.snapshots.asked == [("ask", "i", (3,), False), ("ask", "j", None, False), ("stop", False)]
    assert signals.counts == {"execute-snapshot": 1, "refused": 1, "stop-snapshot": 1}
    assert caplog.messages == ["signal j (execute-snapshot, p-signal@6) is refused: there are enough"]


def test_what_a_signal_says_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    signals = Signals(config_of("h:1", "p"), cast("Any", OfSegments()))
    signals.take(signal(5, "reset-segment", identity="a\nb", cache="c", segments=[2], reason="why\nERROR forged"))
    signals.take(signal(6, "reset-segment", identity="a\nb", cache="c", segments=[8]))
    assert [("\n" in line, "a b" in line) for line in caplog.messages] == [(False, True)] * 3
