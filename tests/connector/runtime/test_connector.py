"""The connector with a real Kafka: writing, zombies, and bad input that it must survive.

Bad input: a foreign record on the positions topic and on the change topic, a topic with another number of partitions,
another segment.count, a change or positions topic that was deleted and created again, an entry above the broker's
limit among good ones, malformed and unknown signals, an unsafe topic under topic.audit=strict, a node id used twice, a
stop within a reset.
Outages of Kafka are in `test_outages.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from deelog_connector.errors import KafkaUnavailable, KafkaUnusable, MapError, NodeSuperseded
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.client import begin_session
from deelog_connector.kafka.reader import still_holds
from deelog_connector.kafka_port import COMPACTED
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind
from deelog_schemas.records import ON_POSITIONS
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.support.kafka import Broker
from tests.support.memory import Memory
from tests.support.topics import derived, read_topic
from tests.support.waiting import waiting


def produce(bootstrap: str, topic: str, key: bytes | None, value: bytes | None) -> None:
    """Writes a plain record, which is not deelog's."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, key, partition=0)
    assert producer.flush(10) == 0


def test_topic_equals_cache_and_a_restart_resets(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        async with cache(config, 1, release=True) as found:
            await started(found)
            for i in range(3000):
                await found.put(b"k%d" % (i % 200), None if i % 7 == 0 else b"v%d" % i)
            await found.drained()
            first = dict(found.entries_of)
            assert found.connector.stats.written == 3000
        records = read_topic(kafka.bootstrap, config.topics.changes)
        content, readers = derived(records)
        assert content == first
        assert {r.mark[1] for r in readers.values()} != {0}
        assert sum(r.repeats for r in readers.values()) == 0
        assert sum(r.header.kind is Kind.RELEASE for r in records) == 8
        async with cache(config, 2) as again:
            await started(again)  # it restarted empty: the cache has changed
        content, readers = derived(read_topic(kafka.bootstrap, config.topics.changes))
        assert content == {}
        assert [r.resets for r in readers.values()] == [["start", "start"]] * 8

    run(work())


def test_a_stop_in_the_middle_of_a_reset_ends_it_and_releases(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix, **{"incremental.snapshot.chunk.size": "1", "max.batch.size": "8"})
        async with cache(config, release=True) as found:
            await started(found)
            for i in range(300):
                await found.put(b"k%d" % i, b"v%d" % i)
            await found.drained()
            for segment in range(8):
                found.core.request_reset(segment, "signal")
            await found.until(lambda: any(found.core.phase(s) == "rows" for s in range(8)))
        records = read_topic(kafka.bootstrap, config.topics.changes)
        content, readers = derived(records)
        assert content == found.entries_of
        assert all(r.open is None and r.resets == ["start", "signal"] for r in readers.values())
        last = {r.header.segment: r.header.kind for r in records}
        assert set(last.values()) == {Kind.RELEASE}

    run(work())


def test_a_zombie_writes_nothing_behind_its_successor(kafka: Broker, prefix: str) -> None:
    """Another node claims. The first one reads that, or its next commit is refused; it looks again and steps down."""

    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        other = config_of(kafka.bootstrap, prefix, **{"node.id": "n2"})
        async with cache(config) as first, cache(other) as second:
            await started(first)
            await first.put(b"a", b"1")
            await first.drained()
            second.own_all("owners_lost")
            await second.drained()
            await first.put(b"a", b"ghost")
            await first.until(lambda: len(first.stepped) == 8)
            content, _ = derived(read_topic(kafka.bootstrap, config.topics.changes))
            assert content == second.entries_of == {}

    run(work())


def test_a_node_id_used_twice_ends_the_older(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        async with cache(config, 1) as older:
            await started(older)
            async with cache(config, 2) as newer:
                await started(newer)
                await older.put(b"a", b"ghost")
                with pytest.raises(NodeSuperseded, match=r"n1@2 has the node\.id of n1@1 and is newer"):
                    await older.until(lambda: False, 20)

    run(work())


@pytest.mark.parametrize("later", [0.0, 0.02, 2.0])
def test_of_two_processes_of_the_same_millisecond_one_stays(memory: Memory, prefix: str, later: float) -> None:
    """They have one name: each would take the other's claims for its own, and they would fence each other for ever."""

    async def work() -> None:
        config = config_of(memory.bootstrap, prefix)
        async with cache(config, 1, port=memory.port()) as one, cache(config, 1, port=memory.port()) as other:
            one.own_all()
            await one.put(b"one", b"1")
            await asyncio.sleep(later)
            other.own_all()
            await other.put(b"other", b"1")
            both = [one, other]
            failures = [each.connector.failure for each in both]
            await asyncio.wait(failures, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            (ended,) = (number for number, failure in enumerate(failures) if failure.done())
            with pytest.raises(NodeSuperseded, match=r"n1@1 has the node\.id of n1@1 and has started in the same mill"):
                failures[ended].result()
            stays = both[1 - ended]
            await stays.drained()
            await stays.put(b"more", b"2")
            await stays.drained()
            content, readers = derived(memory.records(config.topics.changes))
            assert content == stays.entries_of
            assert not any(reader.repeats for reader in readers.values())

    memory.run(work())


def test_a_process_that_finds_a_claim_of_its_own_name_does_not_start(memory: Memory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(memory.bootstrap, prefix)
        async with cache(config, 1, port=memory.port()) as one:
            await started(one)
            await one.drained()
            with pytest.raises(NodeSuperseded, match="in the same millisecond"):
                async with cache(config, 1, port=memory.port()):
                    pass

    memory.run(work())


def test_a_process_older_than_one_that_has_claimed_does_not_start(memory: Memory, prefix: str) -> None:
    async def work() -> None:
        config = config_of(memory.bootstrap, prefix)
        for started_at, release in ((7, False), (8, True)):
            async with cache(config, started_at, release=release, port=memory.port()) as newer:
                await started(newer)
                await newer.drained()
            with pytest.raises(NodeSuperseded, match=rf"n1@{started_at} has the node\.id of n1@6") as refused:
                async with cache(config, 6, port=memory.port()):
                    pass
            assert refused.value.by == f"n1@{started_at}"

    memory.run(work())


def test_a_signal_resets_a_segment_and_bad_ones_do_nothing(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        async with cache(config) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
            topic, key = config.topics.signal, prefix.encode()
            data = {"cache": "c", "segments": [3], "reason": "test"}
            for value in (
                b"{",
                b"[]",
                b'{"type":"log"}',
                json.dumps({"type": "execute-snapshot", "data": {}}).encode(),
                json.dumps({"type": "reset-segment", "data": {"cache": "c", "segments": ["x"]}}).encode(),
                json.dumps({"type": "reset-segment", "data": {**data, "cache": "other"}}).encode(),
            ):
                produce(kafka.bootstrap, topic, key, value)
            produce(kafka.bootstrap, topic, b"somebody", json.dumps({"type": "reset-segment", "data": data}).encode())
            produce(kafka.bootstrap, topic, key, json.dumps({"type": "reset-segment", "data": data}).encode())
            await found.until(lambda: found.connector.stats.resets.get("signal") == 1)
            counts = found.connector.stats.signals
            assert counts == {"malformed": 5, "other": 2, "reset-segment": 1}
            _, readers = derived(read_topic(kafka.bootstrap, config.topics.changes))
            assert readers[3].resets == ["start", "signal"]

    run(work())


def test_a_foreign_record_on_the_positions_topic_stops_the_connector(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        async with cache(config) as found:
            await started(found)
            produce(kafka.bootstrap, config.topics.positions, b"position/1", b"{}")
            with pytest.raises(RecordError, match=rf"{prefix}\.c\.positions\[0\]@\d+: .*no header"):
                await found.until(lambda: False, 20)

    run(work())


def test_a_foreign_record_on_the_change_topic_stops_the_takeover(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        async with cache(config, 1) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
            produce(kafka.bootstrap, config.topics.changes, b"k", b"v")
            found.core._transactions.reopen()  # READ begins at the last known offset, before the foreign record
            found.connector.wake()
            with pytest.raises(RecordError, match=rf"{prefix}\.c\[0\]@\d+: .*not written by deelog"):
                await found.until(lambda: False, 20)

    run(work())


def test_another_number_of_partitions_or_segments_is_refused(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        async with cache(config) as found:
            await started(found)
        for partitions in (1, 4):
            other = config_of(kafka.bootstrap, prefix, **{"topic.creation.default.partitions": partitions})
            with pytest.raises(
                KafkaUnusable, match=r"has 2 partitions, and must have .* topic\.creation\.default\.partitions"
            ):
                async with cache(other, 2):
                    pass
        other = config_of(kafka.bootstrap, prefix, **{"segment.count": "16"})
        with pytest.raises(MapError, match=r"claims with segment.count=8 on 2 partitions, this node has 16"):
            async with cache(other, 2):
                pass

    run(work())


def test_another_cache_whose_names_give_the_same_topic_is_refused(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        one = config_of(kafka.bootstrap, prefix, **{"cache.name": "a.b"})
        other = config_of(kafka.bootstrap, f"{prefix}.a", **{"cache.name": "b"})
        assert one.topics.changes == other.topics.changes
        async with cache(one) as found:
            await started(found)
            with pytest.raises(
                MapError, match=r"claims with topic\.prefix=\S+ and cache\.name=a\.b, this node has \S+ and b"
            ):
                async with cache(other, 2):
                    pass
            await started(found)

    run(work())


def test_a_topic_deleted_and_made_again_is_noticed_and_repaired(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topic = config.topics.changes
        async with cache(config) as found:
            await started(found)
            for i in range(20):
                await found.put(b"k%d" % i, b"v")
            await found.drained()
            admin.delete_topics([topic])[topic].result()
            await found.until(lambda: topic not in admin.list_topics(timeout=5).topics)
            admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
            resets = found.connector.stats
            await found.until(lambda: found.connector.stats.resets.get("topic_recreated", 0) >= 8, 60)
            await found.put(b"k0", b"later")
            await found.drained()
            content, _ = derived(read_topic(kafka.bootstrap, topic))
            assert content == found.entries_of
            assert resets.resets.get("topic_recreated", 0) < 8

    run(work())


@pytest.mark.parametrize("again", [True, False])
def test_a_signal_topic_that_is_deleted_is_read_from_its_beginning(kafka: Broker, prefix: str, again: bool) -> None:
    """Deleted, or deleted and made again by somebody at once; it becomes as long as it was."""
    config = config_of(kafka.bootstrap, prefix)
    topic, admin = config.topics.signal, AdminClient({"bootstrap.servers": kafka.bootstrap})

    def delete() -> None:
        admin.delete_topics([topic])[topic].result()
        if again:
            waiting(lambda: topic not in admin.list_topics(timeout=5).topics, 20, "the end of the topic")
            KafkaAdmin(config).ensure(topic, 1, {})

    def send(count: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(count):
            value = json.dumps({"id": str(number), "type": "log", "data": {"message": "here"}})
            producer.produce(topic, value, prefix, partition=0)
        assert producer.flush(30) == 0

    async def work() -> None:
        async with cache(config) as found:
            await started(found)
            await asyncio.to_thread(send, 3)
            await found.until(lambda: found.connector.stats.signals.get("log") == 3)
            await asyncio.to_thread(delete)
            await found.until(lambda: topic in admin.list_topics(timeout=5).topics)
            await asyncio.to_thread(send, 2)
            await found.until(lambda: found.connector.stats.signals.get("log") == 5, 60)
            await asyncio.to_thread(send, 5)
            await found.until(lambda: found.connector.stats.signals.get("log") == 10)
        assert KafkaAdmin(config).settings(topic)["retention.ms"] == ("604800000" if again else "-1")

    run(work())


@pytest.mark.parametrize("again", [True, False])
def test_positions_that_are_deleted_are_written_anew_and_nobody_ends(kafka: Broker, prefix: str, again: bool) -> None:
    """Deleted, or deleted and made again by somebody at once."""
    config = config_of(kafka.bootstrap, prefix)
    topic, admin = config.topics.positions, AdminClient({"bootstrap.servers": kafka.bootstrap})

    def delete() -> None:
        admin.delete_topics([topic])[topic].result()
        if again:
            waiting(lambda: topic not in admin.list_topics(timeout=5).topics, 20, "the end of the topic")
            KafkaAdmin(config).ensure(topic, 2, COMPACTED)

    async def work() -> None:
        async with cache(config) as found:
            await started(found)
            for i in range(20):
                await found.put(b"k%d" % i, b"v")
            await found.drained()
            await asyncio.to_thread(delete)
            await found.put(b"k0", b"meanwhile")
            await found.until(lambda: found.connector.stats.resets.get("positions_lost", 0) >= 8, 60)
            await found.put(b"k1", b"later")
            await found.drained()
            content, _ = derived(read_topic(kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of
            assert found.connector.stats.resets["positions_lost"] == 8
            states = read_topic(kafka.bootstrap, topic, ON_POSITIONS)
            assert {record.header.segment for record in states if record.header.kind is Kind.POSITION} == set(range(8))
        assert KafkaAdmin(config).settings(topic)["cleanup.policy"] == "compact"

    run(work())


def test_an_entry_above_the_brokers_limit_stops_its_segment_alone(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix, **{"max.entry.bytes": "200000"})
        # Not later: a broker says that a topic has another limit before its log goes by it.
        topic, limits = config.topics.changes, {"max.message.bytes": "20000", "retention.ms": "-1"}
        limited = NewTopic(topic, config["topic.creation.default.partitions"], 1, config=limits)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([limited])[topic].result()
        async with cache(config) as found:
            await started(found)
            for i in range(20):
                await found.put(b"k%d" % i, b"v")
            await found.put(b"big", os.urandom(60_000).hex().encode())  # no codec compresses this below the limit
            await found.until(lambda: bool(found.connector.stats.stopped))
            stopped = next(iter(found.connector.stats.stopped))
            assert found.core.phase(stopped) == "stopped"
            others = [s for s in range(8) if s != stopped]
            await found.until(lambda: all(found.core.written(s) == found.core.last_sequence(s) for s in others))
            content, _ = derived(read_topic(kafka.bootstrap, config.topics.changes))
            assert b"big" not in content
            assert content.items() <= found.entries_of.items()
            assert len(content) >= 10

            found.core.request_reset(stopped, "signal")  # which Kafka refuses, too
            found.connector.wake()
            await found.until(lambda: found.core.counts.resets_aborted == 1)
            await found.until(lambda: list(found.connector.stats.stopped) == [stopped])
            await found.put(b"big", b"small now")
            found.core.request_reset(stopped, "signal")
            found.connector.wake()
            await found.drained()
            assert found.connector.stats.stopped == {}
            content, _ = derived(read_topic(kafka.bootstrap, config.topics.changes))
            assert content == found.entries_of

    run(work())


def test_a_clock_that_is_not_the_brokers_is_said_and_loses_nothing(
    kafka: Broker, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker takes records of the last millisecond alone: to it every clock is wrong."""

    async def work() -> None:
        config = config_of(kafka.bootstrap, prefix)
        topic, limit = config.topics.changes, "message.timestamp.before.max.ms"
        async with cache(config) as found:
            await started(found)
            alter(kafka.bootstrap, topic, limit, "1")
            await found.put(b"k", b"v")
            await found.until(lambda: any("this machine's clock" in message for message in caplog.messages))
            assert found.core.unwritten() == 1
            alter(kafka.bootstrap, topic, limit, str(1 << 62))
            await found.drained()
            content, readers = derived(read_topic(kafka.bootstrap, topic))
            assert content == found.entries_of
            assert sum(reader.repeats for reader in readers.values()) == 0

    run(work())


def alter(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Changes a setting of a topic that is in use."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()


def test_a_log_tells_whether_it_still_holds_an_offset(kafka: Broker, prefix: str) -> None:
    config = config_of(kafka.bootstrap, prefix)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(prefix, 1, 1)])[prefix].result()
    for _ in range(3):
        produce(kafka.bootstrap, prefix, b"k", b"v")
    end = KafkaAdmin(config).ends(prefix, [0])[0]
    assert end.offset == 3
    assert still_holds(config, prefix, end._replace(offset=2), 10)
    assert still_holds(config, prefix, end._replace(offset=3), 10)
    assert not still_holds(config, prefix, end._replace(offset=4), 10)


def test_an_end_that_the_client_makes_up_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka returns -1001 without an error if the brokers are too slow: as an end it would reset everything."""

    class Slow:
        def list_offsets(self, asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
            found: dict[TopicPartition, Future[Any]] = {}
            for where in asked:
                found[where] = Future()
                found[where].set_result(SimpleNamespace(offset=OFFSET_INVALID, leader_epoch=None))
            return found

    brokers = KafkaAdmin(config_of("127.0.0.1:1", "p"))
    monkeypatch.setattr(brokers, "_client", Slow())
    with pytest.raises(KafkaUnavailable, match=r"no end of p\.c\[0\]: the brokers did not answer in time"):
        brokers.ends("p.c", [0])


def test_a_question_is_answered_though_another_thread_lets_go_of_the_client() -> None:
    """As a restart does. The futures of a client that is garbage collected stay open for ever."""
    with socket.create_server(("127.0.0.1", 0)) as mute, ThreadPoolExecutor(1) as threads:
        brokers = KafkaAdmin(config_of(f"127.0.0.1:{mute.getsockname()[1]}", "p"), 1.0)
        asked = threads.submit(brokers.ends, "p.c", [0])
        with mute.accept()[0]:  # the request is under way
            brokers.close()
            with pytest.raises(KafkaUnavailable):
                asked.result(20)


def test_an_unsafe_topic_is_refused_by_a_strict_audit(kafka: Broker, prefix: str) -> None:
    async def work() -> None:
        with pytest.raises(KafkaUnusable, match=r"unsafe.*min\.insync\.replicas is 1"):
            async with cache(config_of(kafka.bootstrap, prefix, **{"topic.audit": "strict"})):
                pass

    run(work())


def test_no_broker_is_one_clear_sentence(prefix: str) -> None:
    async def work() -> None:
        with pytest.raises(KafkaUnusable, match=r"no broker answers at bootstrap\.servers=127\.0\.0\.1:1"):
            async with cache(config_of("127.0.0.1:1", prefix)):
                pass

    run(work())


def test_a_session_begins_on_a_connection_of_its_own(kafka: Broker, prefix: str) -> None:
    """On the connection to the bootstrap address, which is dropped, half of the sessions would wait for 0.5 s."""

    class Noted:
        """A producer that notes which broker had answered when its session began."""

        def __init__(self, number: int) -> None:
            settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{prefix}-{number}"}
            self._producer = Producer(settings)
            self.poll, self.answered, self.began = self._producer.poll, -1, -1

        def list_topics(self, topic: str, timeout: float) -> Any:
            found = self._producer.list_topics(topic, timeout)
            self.answered = found.orig_broker_id
            return found

        def init_transactions(self, timeout: float) -> None:
            self.began = self.answered
            self._producer.init_transactions(timeout)

    def begun(number: int) -> int:
        producer = Noted(number)
        begin_session(producer, 10.0)
        return producer.began

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(begun, range(24))) == {1}


class AwaySession:
    """A session that no broker answers."""

    async def open(self) -> None:
        await asyncio.Event().wait()

    def give_up(self) -> None:
        pass

    async def discard(self) -> None:
        pass


@pytest.mark.parametrize("turns", range(4))
def test_the_end_is_not_missed_when_there_is_something_to_do_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """`asyncio.wait_for` of Python 3.11 swallows a cancellation that comes with its result."""

    async def work() -> None:
        connector = Cache(config_of("nowhere:1", "p"), 1).connector
        connector._shell.clients._session = cast("Any", AwaySession())
        monkeypatch.setattr(connector.core, "next_poll", lambda now: 60.0)
        connector._shell.tasks.spawn(connector._drive())
        await asyncio.sleep(0.01)
        connector.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(connector.stop(release=False), 20)

    run(work())


def test_a_stop_closes_the_producer_only_while_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover may begin to read Kafka while a stop waits for what it has written to be read back."""

    async def work() -> None:
        connector = Cache(config_of("nowhere:1", "p"), 1).connector
        connector._shell.clients._session = cast("Any", AwaySession())
        states = [(True, False), (False, True), (True, True)]  # idle, has read back
        monkeypatch.setattr(type(connector.core), "idle", property(lambda _: states[0][0]))
        monkeypatch.setattr(connector, "_has_read_back", lambda: states[0][1])
        for number in (1, 2):
            asyncio.get_running_loop().call_later(0.05 * number, states.pop, 0)
        await connector.suspend(10)
        assert states == [(True, True)]
        await connector.stop(release=False)

    run(work())
