"""What the port in memory does that a real broker cannot be asked to: failures one by one, and ends of nodes.

What every port does is tested by `tests/connector/kafka/contract`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnauthorized, KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.notes import QUEUE
from deelog_connector.kafka_port import BEGINNING, REQUEST_SECONDS, OutRecord, PartitionEnd, WriteFailed
from deelog_proof.memory.broker import Kafka, size_of
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.port import MAX_NOTE_BYTES, MemoryPort, murmur2
from deelog_schemas.errors import ConfigError
from deelog_schemas.kafka.progress import STALL_SECONDS
from tests.proof.memory.nodes import Node, T, config, content, record


@pytest.fixture
def kafka() -> Kafka:
    kafka = Kafka(Engine(1))
    kafka.create(T, 2)
    return kafka


@pytest.fixture
def nodes(kafka: Kafka) -> Iterator[list[Node]]:
    nodes = [Node(kafka.engine, kafka, name) for name in ("n1", "n2")]
    yield nodes
    for node in nodes:
        assert not node.loop.errors
        node.loop.bury()


@pytest.fixture
def node(nodes: list[Node]) -> Node:
    return nodes[0]


def stability(kafka: Kafka) -> asyncio.Event:
    """Set when the last stable offset of some partition moves: there, not where it is heard of."""
    event = asyncio.Event()
    kafka.on_stable = lambda log: event.set()
    return event


def cause_of(failed: pytest.ExceptionInfo[WriteFailed]) -> Cause:
    assert not failed.value.denied
    return failed.value.cause


# -- the end of a node ------------------------------------------------------------------------------------------------


def test_a_killed_node_s_last_request_arrives(kafka: Kafka, node: Node) -> None:
    session = node.run(node.session())
    commit = node.loop.create_task(session.commit([record(b"1")]))
    # Just before the answer: the brokers have committed.
    kafka.engine.run(lambda: kafka.counts["commits"])
    node.loop.kill()
    kafka.engine.run(seconds=10)
    assert content(kafka) == [b"1"]
    assert not commit.done()


def test_a_request_that_is_under_way_outlives_its_node(kafka: Kafka, node: Node) -> None:
    session = node.run(node.session())
    node.loop.create_task(session.commit([record(b"1")]))
    kafka.engine.run(lambda: kafka.transactions)
    # The answer to `produce` is one turn; the next request leaves in it.
    turns = node.loop.turns
    kafka.engine.run(lambda: node.loop.turns > turns + 1)
    node.loop.kill()
    assert content(kafka) == []
    kafka.engine.run(seconds=10)
    assert content(kafka) == [b"1"]


def test_a_killed_node_leaves_its_transaction_open(kafka: Kafka, nodes: list[Node]) -> None:
    node, other = nodes
    session = node.run(node.session())
    node.loop.create_task(session.commit([record(b"1")]))
    kafka.engine.run(lambda: kafka.transactions)
    node.loop.kill()
    other.run(other.write(b"2"))
    kafka.engine.run(seconds=1)
    assert content(kafka) == []
    other.run(other.port.brokers(config()).fence("n1"))
    assert content(kafka) == [b"2"]
    assert kafka.counts["fences"] == 1


def test_a_paused_node_is_fenced_meanwhile(kafka: Kafka, nodes: list[Node]) -> None:
    node, other = nodes
    session = node.run(node.session())
    commit = node.loop.create_task(session.commit([record(b"1")]))
    kafka.engine.run(lambda: kafka.transactions)
    node.loop.pause()
    other.run(other.port.brokers(config()).fence("n1"))
    assert not commit.done()
    node.loop.resume()
    kafka.engine.run(commit.done)
    error = commit.exception()
    assert isinstance(error, WriteFailed)
    assert error.cause is Cause.FENCED
    assert content(kafka) == []


def test_a_transaction_times_out(kafka: Kafka, node: Node) -> None:
    session = node.run(node.session(transaction_timeout_ms="5000"))
    commit = node.loop.create_task(session.commit([record(b"1")]))
    kafka.engine.run(lambda: kafka.transactions)
    node.loop.pause()
    kafka.engine.run(seconds=6)
    assert not kafka.transactions
    node.loop.resume()
    kafka.engine.run(commit.done)
    with pytest.raises(WriteFailed) as failed:
        commit.result()
    assert cause_of(failed) is Cause.FENCED


# -- brokers, in part -------------------------------------------------------------------------------------------------


def test_one_node_is_cut_off(kafka: Kafka, nodes: list[Node]) -> None:
    node, other = nodes

    async def case() -> None:
        session = await node.session()
        node.port.way.connected = False
        commit = asyncio.create_task(session.commit([record(b"1")]))
        with pytest.raises(KafkaUnavailable):
            await node.port.brokers(config()).ends(T, [0])
        assert writing.done()
        assert not commit.done()
        node.port.way.connected = True
        await commit

    writing = other.loop.create_task(other.write(b"2"))
    node.run(case())
    assert content(kafka) == [b"2", b"1"]


def test_a_partition_without_leader(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.session(transaction_timeout_ms="60000")
        brokers, reader = node.port.brokers(config()), await node.reader(0, 1)
        kafka.lose(T, 0)
        with pytest.raises(KafkaUnavailable):
            await brokers.ends(T, [0, 1])
        assert [end.offset for end in await brokers.ends(T, [1])] == [0]
        assert await reader.read(1.0) == []
        assert not reader.caught_up
        with pytest.raises(KafkaUnavailable):
            await (await node.port.reader(config(), T)).seek({0: 0})
        commit = asyncio.create_task(session.commit([record(b"0", 0), record(b"1", 1), record(b"00", 0)]))
        await asyncio.sleep(0.9 * STALL_SECONDS)
        assert not commit.done()
        kafka.recover(T, 0)
        await commit

    node.run(case())
    assert (content(kafka, 0), content(kafka, 1)) == ([b"0", b"00"], [b"1"])


def test_a_transaction_without_progress_is_given_up(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.session(transaction_timeout_ms="60000")
        kafka.lose(T, 0)
        with pytest.raises(WriteFailed) as failed:
            await asyncio.wait_for(session.commit([record(b"1"), record(b"1", 1)]), STALL_SECONDS + 1)
        assert failed.value.cause is Cause.LOST

    node.run(case())
    assert content(kafka, 1) == []


def test_a_transaction_behind_one_that_does_not_end_is_given_up(kafka: Kafka, node: Node) -> None:
    def appended(moment: str) -> None:
        if moment == "appended":
            kafka.lose(T, 0, leader=False)

    async def case() -> None:
        session = await node.session(transaction_timeout_ms="60000")
        await session.commit([record(b"1"), record(b"1", 1)])
        with pytest.raises(WriteFailed) as failed:
            await asyncio.wait_for(session.commit([record(b"2", 1)]), STALL_SECONDS + 1)
        assert failed.value.cause is Cause.LOST

    node.port = MemoryPort(node.loop, kafka, moment=appended)
    node.run(case())
    assert (content(kafka, 0), content(kafka, 1)) == ([], [b"1"])
    kafka.recover(T, 0)
    assert content(kafka, 0) == [b"1"]


def test_give_up_while_a_partition_has_no_leader(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.session(transaction_timeout_ms="60000")
        kafka.lose(T, 0)
        commit = asyncio.create_task(session.commit([record(b"1")]))
        await asyncio.sleep(0.5 * STALL_SECONDS)
        session.give_up()
        with pytest.raises(WriteFailed) as failed:
            await asyncio.wait_for(commit, REQUEST_SECONDS + 1)
        assert cause_of(failed) is Cause.LOST

    node.run(case())


def test_a_coordinator_that_is_away(kafka: Kafka, nodes: list[Node]) -> None:
    node, other = nodes

    async def case() -> None:
        session = await node.session()
        kafka.uncoordinated.add("n1")
        before = asyncio.get_running_loop().time()
        commit = asyncio.create_task(session.commit([record(b"1")]))
        with pytest.raises(WriteFailed) as failed:
            await node.port.brokers(config()).fence("n1")
        assert cause_of(failed) is Cause.LOST
        assert asyncio.get_running_loop().time() - before < REQUEST_SECONDS + 1
        with pytest.raises(WriteFailed, match="the coordinator does not answer") as failed:
            await commit
        assert asyncio.get_running_loop().time() - before > REQUEST_SECONDS
        assert not failed.value.uncoordinated  # the next session tells
        await node.port.brokers(config()).ends(T, [0])
        with pytest.raises(WriteFailed) as failed:
            await session.open()
        assert failed.value.uncoordinated
        kafka.uncoordinated.clear()

    node.run(case())
    other.run(other.write(b"2"))
    assert content(kafka) == [b"2"]


# -- answers that are lost --------------------------------------------------------------------------------------------


def test_a_commit_that_is_not_answered_is_repeated_and_takes_effect_once(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.session()
        kafka.silent.add("n1")
        await session.commit([record(b"1")])
        await session.commit([record(b"2")])

    node.run(case())
    assert content(kafka) == [b"1", b"2"]
    assert kafka.logs[T, 0].end == 4


def test_a_commit_that_is_not_answered_is_lost_to_who_gives_up_and_may_have_taken_effect(
    kafka: Kafka, node: Node
) -> None:
    async def case() -> None:
        session = await node.session()
        stable = stability(kafka)
        kafka.silent.add("n1")
        commit = asyncio.create_task(session.commit([record(b"1")]))
        await stable.wait()
        kafka.up = False
        session.give_up()
        with pytest.raises(WriteFailed) as failed:
            await commit
        assert cause_of(failed) is Cause.LOST

    node.run(case())
    assert content(kafka) == [b"1"]


def test_a_commit_that_is_not_answered_and_fenced_before_it_is_repeated(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.session()
        stable = stability(kafka)
        kafka.silent.add("n1")
        commit = asyncio.create_task(session.commit([record(b"1")]))
        await stable.wait()
        kafka.init("n1", "another")
        with pytest.raises(WriteFailed) as failed:
            await commit
        assert cause_of(failed) is Cause.FENCED

    node.run(case())
    assert content(kafka) == [b"1"]


def test_an_answer_on_its_way_is_lost_when_brokers_go_away(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session, stable = await node.session(), stability(kafka)
        commit = asyncio.create_task(session.commit([record(b"1")]))
        await stable.wait()
        kafka.up = False
        await asyncio.sleep(REQUEST_SECONDS)
        assert not commit.done()
        kafka.up = True
        await commit

    node.run(case())
    assert (content(kafka), kafka.counts["commits"]) == ([b"1"], 1)


@pytest.mark.parametrize("seed", range(5))
def test_brokers_that_go_away_take_their_answers_with_them(seed: int) -> None:
    """Whatever was on its way then, each record is written once, and read once."""
    kafka = Kafka(Engine(seed))
    kafka.create(T, 2)
    writer, reader = Node(kafka.engine, kafka, "writer"), Node(kafka.engine, kafka, "reader")
    chance = kafka.engine.stream("case")

    async def write() -> None:
        session = await writer.session()
        for number in range(30):
            await session.commit([record(b"%d.%d" % (number, i), i % 2) for i in range(20)])

    async def flap() -> None:
        while True:
            kafka.up = not kafka.up
            await asyncio.sleep(chance.uniform(0.0, 0.02))

    async def read() -> list[bytes | None]:
        found: list[bytes | None] = []
        partitions = await reader.reader(0, 1)
        while len(found) < 600:
            found += [r.value for r in await partitions.read(0.01)]
        return found

    writing, reading = writer.loop.create_task(write()), reader.loop.create_task(read())
    flapping = writer.loop.create_task(flap())
    kafka.engine.run(lambda: writing.done() and reading.done())
    flapping.cancel()
    kafka.up = True
    expected = [b"%d.%d" % (number, i) for number in range(30) for i in range(20)]
    for partition in (0, 1):
        assert content(kafka, partition) == expected[partition::2]
    assert sorted(reading.result(), key=str) == sorted(expected, key=str)
    writer.loop.bury()
    reader.loop.bury()


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_commit_that_the_client_gives_up(kafka: Kafka, node: Node, takes_effect: bool) -> None:
    async def case() -> None:
        session = await node.session()
        kafka.lost["n1"] = takes_effect
        with pytest.raises(WriteFailed) as failed:
            await session.commit([record(b"1")])
        assert cause_of(failed) is Cause.LOST
        await session.open()

    node.run(case())
    assert content(kafka) == ([b"1"] if takes_effect else [])


# -- rights -----------------------------------------------------------------------------------------------------------


def test_who_may_not_write_to_a_topic(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.session()
        kafka.denied.add(("Write", T))
        with pytest.raises(WriteFailed, match="Kafka refuses Write on topic t") as failed:
            await session.commit([record(b"1")])
        assert (failed.value.cause, failed.value.denied) == (Cause.LOST, True)
        kafka.denied.clear()
        await session.open()
        await session.commit([record(b"2")])

    node.run(case())
    assert content(kafka) == [b"2"]


def test_who_may_not_use_a_transactional_id(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        kafka.denied.add(("Write", "n1"))
        with pytest.raises(WriteFailed, match="Kafka refuses Write on transactional id n1") as failed:
            await node.session()
        assert failed.value.denied
        with pytest.raises(WriteFailed, match="fencing n1: Kafka refuses Write on transactional id n1") as failed:
            await node.port.brokers(config()).fence("n1")
        assert (failed.value.cause, failed.value.denied) == (Cause.LOST, True)

    node.run(case())


def test_who_may_not_read_a_topic(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        await node.write(b"1")
        reader = await node.reader(0)
        kafka.denied.add(("Read", T))
        for _ in range(2):
            with pytest.raises(KafkaUnauthorized, match="Kafka refuses Read on topic t"):
                await reader.read(0.1)
        kafka.denied.clear()
        assert [r.value for r in await reader.read(0.1)] == [b"1"]

    node.run(case())


def test_who_may_not_see_a_topic(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        brokers = node.port.brokers(config())
        kafka.denied.add(("Describe", T))
        for call in (
            brokers.ensure(T, 2, {}),
            brokers.settings(T),
            brokers.state(T),
            brokers.ends(T, [0]),
            node.reader(0),
        ):
            with pytest.raises(KafkaUnauthorized):
                await call

    node.run(case())


def test_what_is_published_is_written_once(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        brokers, stable = node.port.brokers(config()), stability(kafka)
        publishing = asyncio.create_task(brokers.publish(T, "k", b"1"))
        await stable.wait()
        kafka.up = False
        await asyncio.sleep(1)
        kafka.up = True
        await publishing
        kafka.up = False
        with pytest.raises(KafkaUnavailable):
            await brokers.publish(T, "k", b"2")
        kafka.up = True
        with pytest.raises(KafkaUnavailable):
            await brokers.publish("none", "k", b"3")
        kafka.topics[T].settings["max.message.bytes"] = "100"
        with pytest.raises(KafkaUnavailable):
            await brokers.publish(T, "k", bytes(1000))
        kafka.denied.add(("Write", T))
        with pytest.raises(KafkaUnauthorized, match="Kafka refuses Write on topic t"):
            await brokers.publish(T, "k", b"4")

    node.run(case())
    assert content(kafka) == [b"1"]


def test_who_may_not_create_a_topic(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        kafka.denied.add(("Create", "new"))
        with pytest.raises(KafkaUnusable, match=r"cannot be created: .*Create on topic new") as failed:
            await node.port.brokers(config()).ensure("new", 1, {})
        assert not isinstance(failed.value, KafkaUnavailable)

    node.run(case())


# -- readers ----------------------------------------------------------------------------------------------------------


def test_an_unclean_election_ends_the_reading(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        await node.write(b"1")
        await node.write(b"2")
        reader = await node.reader(0)
        while not reader.caught_up:
            await reader.read(0.1)
        kafka.truncate(T, 0, 1)
        await node.write(b"3")
        await node.write(b"4")
        with pytest.raises(KafkaUnusable):
            await reader.read(0.1)
        await reader.seek({0: BEGINNING})
        assert [r.value for r in await reader.read(0.1)] == [b"1", b"3", b"4"]

    node.run(case())


def test_a_clean_election_does_not(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        await node.write(b"1")
        reader = await node.reader(0)
        assert len(await reader.read(0.1)) == 1
        kafka.truncate(T, 0, 0)
        await node.write(b"2")
        assert [r.value for r in await reader.read(0.1)] == [b"2"]

    node.run(case())


def test_compacted_records_are_not_read(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        await node.write(b"1", b"2")
        kafka.compact(T)
        reader = await node.reader(0)
        assert [(r.offset, r.value) for r in await reader.read(0.1)] == [(1, b"2")]
        assert reader.caught_up

    node.run(case())


def test_a_read_takes_all_of_its_time_or_less(node: Node) -> None:
    async def case() -> list[float]:
        await node.write(b"1")
        reader, time, taken = await node.reader(0), asyncio.get_running_loop().time, []
        for _ in range(50):
            before = time()
            await reader.read(1.0)
            taken.append(time() - before)
        return taken

    taken = node.run(case())
    assert max(taken) < 1.1
    assert sum(seconds > 0.99 for seconds in taken) > 10
    assert sum(seconds < 0.5 for seconds in taken) > 5


# -- sessions, work, notes --------------------------------------------------------------------------------------------


def test_other_things_happen_while_an_iterable_is_consumed(kafka: Kafka, node: Node) -> None:
    seen: list[int] = []

    async def case() -> None:
        session = await node.session()

        def records() -> Iterator[OutRecord]:
            for number in range(5000):
                seen.append(kafka.logs[T, 0].end)
                yield record(b"%d" % number)

        await session.commit(records())

    node.run(case())
    assert len(set(seen)) > 2
    assert content(kafka) == [b"%d" % number for number in range(5000)]


def test_an_iterable_has_no_loop(node: Node) -> None:
    async def case() -> None:
        session = await node.session()

        def records() -> Iterator[OutRecord]:
            yield record(b"1")
            asyncio.get_running_loop()

        with pytest.raises(RuntimeError, match="no running event loop"):
            await session.commit(records())

    node.run(case())


def test_work_takes_time_and_has_no_loop(node: Node) -> None:
    async def case() -> None:
        time = asyncio.get_running_loop().time
        before = time()
        assert await node.port.work(sum, [1, 2]) == 3
        assert time() > before
        with pytest.raises(RuntimeError, match="no running event loop"):
            await node.port.work(asyncio.get_running_loop)

    node.run(case())


def test_work_goes_on_when_it_is_cancelled(node: Node) -> None:
    async def case() -> None:
        done: list[int] = []
        work = asyncio.create_task(node.port.work(done.append, 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.sleep(1)
        assert work.cancelled()
        assert done == [1]

    node.run(case())


def test_the_error_of_a_call_that_was_cancelled_is_nobody_s(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        kafka.up = False
        asking = asyncio.create_task(node.port.brokers(config()).ends(T, [0]))
        await asyncio.sleep(1)
        asking.cancel()
        await asyncio.sleep(2 * REQUEST_SECONDS)

    node.run(case())
    gc.collect()  # a task tells of an error that nobody heard when it is freed
    assert not node.loop.errors


def test_what_is_cancelled_before_it_has_begun_does_not_begin(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.session()
        first = asyncio.create_task(session.commit([record(b"1")]))
        second = asyncio.create_task(session.commit([record(b"2")]))
        await asyncio.sleep(0.0001)
        second.cancel()
        await first
        await session.commit([record(b"3")])

    node.run(case())
    assert content(kafka) == [b"1", b"3"]


def test_a_closed_port_takes_no_calls(node: Node) -> None:
    async def case() -> None:
        session = await node.session()
        await node.port.close()
        with pytest.raises(RuntimeError, match="the port is closed"):
            await session.commit([])

    node.run(case())


def test_close_cancels_the_calls_of_a_session_that_have_not_begun(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session, reader = await node.session(), await node.reader(0)
        commits = [asyncio.create_task(session.commit([record(value)])) for value in (b"1", b"2")]
        reading, closing = asyncio.create_task(reader.read(1.0)), asyncio.create_task(reader.close())
        await asyncio.sleep(0.0001)
        await node.port.close()
        assert (commits[0].done(), commits[1].cancelled()) == (True, True)
        await commits[0]
        await reading
        await closing

    node.run(case())
    kafka.engine.run(seconds=10)
    assert content(kafka) == [b"1"]


def test_notes_are_dropped_after_a_minute(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        notes = node.port.notes(config())
        notes.send("none", b"k", b"1")
        kafka.up = False
        notes.send(T, b"k", b"2", 0)
        await asyncio.sleep(59)
        assert notes.dropped == 0
        await asyncio.sleep(2)
        assert notes.dropped == 2
        kafka.up = True
        notes.send(T, b"k", b"3", 0)
        await notes.close()
        assert notes.dropped == 2

    node.run(case())
    assert content(kafka) == [b"3"]


def test_who_may_not_write_drops_notes(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        notes = node.port.notes(config())
        kafka.denied.add(("Write", T))
        notes.send(T, b"k", b"1", 0)
        await notes.close()
        assert notes.dropped == 1

    node.run(case())


def test_notes_whose_answer_is_lost_are_written_once(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        notes, stable = node.port.notes(config()), stability(kafka)
        for number in range(100):
            notes.send(T, b"k", b"%d" % number, 0)
        await stable.wait()
        kafka.up = False
        await asyncio.sleep(1)
        kafka.up = True
        await notes.close()
        assert notes.dropped == 0

    node.run(case())
    assert content(kafka) == [b"%d" % number for number in range(100)]


def test_a_note_without_a_partition_goes_to_that_of_its_key(kafka: Kafka, node: Node) -> None:
    """As Java's producer chooses it: the same key, the same partition."""
    keys = [b"%d" % number for number in range(20)]

    async def case() -> None:
        notes = node.port.notes(config())
        for key in keys:
            notes.send(T, key, b"v")
        await notes.close()
        assert notes.dropped == 0

    node.run(case())
    for partition in (0, 1):
        held = [r.key for r in kafka.logs[T, partition].read(0, 100)[0]]
        assert held == [key for key in keys if murmur2(key) % 2 == partition]
        assert held


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_is_hashed_as_kafkas_own_tests_say(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0x7FFFFFFF


def test_notes_that_cannot_be_sent_are_dropped_and_counted(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        notes = node.port.notes(config())
        room = MAX_NOTE_BYTES - size_of(OutRecord(T, 0, b"k", b"", []))
        notes.send(T, b"k", b"x" * (room + 1), 0)
        assert notes.dropped == 1
        notes.send(T, b"k", b"x" * room, 0)
        assert notes.dropped == 1
        await notes.close()
        kafka.up = False
        for number in range(QUEUE + 2):
            notes.send(T, b"k", b"%d" % number, 0)
        assert notes.dropped == 3
        await notes.close()
        assert notes.dropped == 3 + QUEUE

    node.run(case())
    assert len(content(kafka)) == 1
    secret = node.port.notes(config(producer_override_sasl_password="${env:NOT_SET}"))
    secret.send(T, b"k", b"v", 0)
    assert secret.dropped == 1


# -- what is asked of all brokers ------------------------------------------------------------------------------------


def test_a_topic_is_made_where_it_is_missing(kafka: Kafka, node: Node) -> None:
    brokers = node.port.brokers(config())

    def ensure(topic: str, partitions: int | None, **settings: str) -> None:
        node.run(brokers.ensure(topic, partitions, {name.replace("_", "."): v for name, v in settings.items()}))

    ensure("new", 3, cleanup_policy="compact")
    ensure("one", None)
    assert (kafka.topics["new"].partitions, kafka.topics["one"].partitions) == (3, 1)
    assert node.run(brokers.settings("new"))["cleanup.policy"] == "compact"
    assert node.run(brokers.settings("one"))["cleanup.policy"] == "delete"
    made = node.run(brokers.state("new"))
    ensure("new", 3)
    ensure("new", None)
    assert node.run(brokers.state("new")) == made
    with pytest.raises(KafkaUnusable, match=r"topic new has 3 partitions, and must have 4"):
        ensure("new", 4)
    with pytest.raises(KafkaUnusable, match=r"topic bad does not exist and cannot be created: retention.ms=x"):
        ensure("bad", 1, retention_ms="x")
    assert "bad" not in kafka.topics


def test_whether_a_log_still_holds_what_it_held(kafka: Kafka, node: Node) -> None:
    brokers = node.port.brokers(config())
    node.run(node.write(b"1"))
    node.run(node.write(b"2", partition=1))
    ends = node.run(brokers.ends(T, [1, 0]))
    assert ends == [PartitionEnd(1, 2, 0), PartitionEnd(0, 2, 0)]
    assert node.run(brokers.still_holds(T, ends[1])) is True
    kafka.truncate(T, 0, 1)
    assert node.run(brokers.still_holds(T, ends[1])) is False
    assert node.run(brokers.still_holds(T, ends[0])) is True
    kafka.delete_records(T, 1, 2)
    assert node.run(brokers.still_holds(T, ends[0])) is True
    assert node.run(brokers.still_holds(T, PartitionEnd(1, 1, 0))) is False, "retention has taken it"
    kafka.denied.add(("Read", T))
    with pytest.raises(KafkaUnauthorized, match="Kafka refuses Read on topic t to the user of consumer"):
        node.run(brokers.still_holds(T, ends[0]))


def test_what_is_hidden_is_found_by_whom_may_read(kafka: Kafka, node: Node) -> None:
    brokers = node.port.brokers(config())
    assert node.run(brokers.hanging(T, 1)) is None
    session = kafka.init("s", "s")
    kafka.append("s", session, [OutRecord(T, 1, b"k", b"1", [])])
    found = node.run(brokers.hanging(T, 1))
    assert found is not None
    assert (found.offset, found.value) == (0, b"1")
    kafka.denied.add(("Read", T))
    with pytest.raises(KafkaUnauthorized, match="Kafka refuses Read on topic t to the user of consumer"):
        node.run(brokers.hanging(T, 1))


# -- sessions and readers --------------------------------------------------------------------------------------------


def test_a_session_commits_once_it_is_open_and_after_an_error_once_it_is_opened_again(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        session = await node.port.session(config(), "n1", lambda: 1_000_000)
        with pytest.raises(WriteFailed, match="no session is open"):
            await session.commit([record(b"0")])
        await session.open()
        await session.commit([record(b"1")])
        await session.commit([])
        await session.commit([record(b"2")])
        await session.discard()
        with pytest.raises(WriteFailed, match="no session is open"):
            await session.commit([record(b"3")])
        await session.open()
        with pytest.raises(WriteFailed, match="none does not exist"):
            await session.commit([OutRecord("none", 0, b"k", b"v", [])])
        with pytest.raises(WriteFailed, match="no session is open"):
            await session.commit([record(b"4")])

    node.run(case())
    assert content(kafka) == [b"1", b"2"]
    assert kafka.counts["commits"] == 2


def test_a_record_that_is_too_large_for_the_client_is_refused(kafka: Kafka, node: Node) -> None:
    largest = size_of(record(b"x"))

    async def case() -> None:
        session = await node.port.session(config(), "n1", lambda: largest)
        await session.open()
        await session.commit([record(b"x")])
        with pytest.raises(WriteFailed) as failed:
            await session.commit([record(b"xy")])
        assert cause_of(failed) is Cause.REFUSED

    node.run(case())
    assert content(kafka) == [b"x"]


def test_a_session_whose_secret_is_missing_is_not_made(node: Node) -> None:
    with pytest.raises(ConfigError, match="NOT_SET is not set"):
        node.run(node.port.session(config(producer_override_sasl_password="${env:NOT_SET}"), "n1", lambda: 1000))


def test_the_moments_of_a_transaction_are_told(kafka: Kafka) -> None:
    moments: list[tuple[str, int]] = []
    node = Node(kafka.engine, kafka, "n1")
    port = MemoryPort(node.loop, kafka, moment=lambda name: moments.append((name, kafka.counts["commits"])))

    async def case() -> None:
        session = await port.session(config(), "n1", lambda: 1_000_000)
        await session.open()
        await session.commit([record(b"1")])
        await session.commit([])

    node.run(case())
    assert moments == [("appended", 0), ("committed", 1)]
    node.loop.bury()


def test_a_reader_starts_where_it_is_told_or_at_the_beginning(kafka: Kafka, node: Node) -> None:
    node.run(node.write(b"1", b"2", b"3"))
    kafka.delete_records(T, 0, 1)

    def starts(offset: int) -> int:
        async def case() -> int:
            reader = await node.port.reader(config(), T)
            await reader.seek({0: offset})
            return reader.next_offset(0)

        found: int = node.run(case())
        return found

    assert [starts(offset) for offset in (BEGINNING, 0, 1, 2, 4, 5)] == [1, 1, 1, 2, 4, 1]


def test_a_reader_has_caught_up_with_the_ends_of_its_start(kafka: Kafka, node: Node) -> None:
    node.run(node.write(b"1", b"2"))
    node.run(node.write(b"3", partition=1))

    async def case() -> None:
        reader = await node.reader(0, 1)
        assert not reader.caught_up
        kafka.lose(T, 1)
        assert [r.value for r in await reader.read(0.01)] == [b"1", b"2"]
        assert (reader.next_offset(0), reader.next_offset(1), reader.caught_up) == (2, 0, False)
        kafka.recover(T, 1)
        assert [r.value for r in await reader.read(0.01)] == [b"3"]
        assert (reader.next_offset(1), reader.caught_up) == (1, True)
        assert await reader.read(0.01) == []

    node.run(case())


def test_a_closed_reader_reads_no_more(kafka: Kafka, node: Node) -> None:
    async def case() -> None:
        reader = await node.reader(0)
        await reader.close()
        for call in (reader.read(0.01), reader.seek({0: BEGINNING})):
            with pytest.raises(RuntimeError, match="the reader is closed"):
                await call

    node.run(case())


def test_a_topic_of_which_nothing_is_heard(kafka: Kafka, node: Node) -> None:
    node.run(node.write(b"1"))

    async def case() -> None:
        reader = await node.reader(0)
        node.port.way.deaf = {T}
        assert await reader.read(0.01) == []
        node.port.way.deaf = set()
        assert [r.value for r in await reader.read(0.01)] == [b"1"]

    node.run(case())


# -- clock, chance ----------------------------------------------------------------------------------------------------


def test_a_wall_clock_may_be_wrong(nodes: list[Node]) -> None:
    node, other = nodes
    node.port.way.skew = -2.5
    assert other.port.clock.time_ns() - node.port.clock.time_ns() == 2_500_000_000
    assert other.port.clock.monotonic() == node.port.clock.monotonic()


def test_a_seed_gives_the_same_ids_and_times() -> None:
    def run(seed: int) -> tuple[str, float, int]:
        kafka = Kafka(Engine(seed))
        kafka.create(T, 2)
        node = Node(kafka.engine, kafka, "n1")
        node.run(node.write(b"1"))
        return node.port.new_id(), kafka.engine.now, kafka.engine.order

    assert run(1) == run(1) != run(2)
