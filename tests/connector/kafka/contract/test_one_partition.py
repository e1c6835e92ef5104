"""One partition without a leader, with one out of reach, or with too few replicas.

What becomes of transactions that have records for it?
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_connector.core.effects import Cause
from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka_port import BEGINNING, COMPACTED, HELD_UP_SECONDS, Brokers, OutRecord, WriteFailed
from deelog_proof.audit.topics import end_offsets
from deelog_schemas.kafka.names import Topics
from tests.connector.cache import Cache, cache, config_of, run, started
from tests.connector.kafka.contract.world import (
    IN_TIME,
    MAX_MESSAGE_BYTES,
    SECONDS,
    World,
    answered,
    eventually,
    read_up,
)
from tests.connector.runtime.test_outages import whole_and_never_reset, written_to
from tests.support.topics import read_topic
from tests.support.two_brokers import Gates, coordinator_of, two_brokers
from tests.support.waiting import waiting

pytestmark = [pytest.mark.needs("lose_broker", "lose_sight"), pytest.mark.slow]
"""Slow: a broker is killed and comes back in nearly each."""


def record(topic: str, value: bytes) -> OutRecord:
    return OutRecord(topic, 0, b"k", value, [])


def are_unwritable(brokers: Brokers, topics: dict[str, set[int]]) -> Callable[[], Awaitable[bool]]:
    """Whether these partitions of the topics take no records. A client may ask the lost broker first."""

    async def told() -> bool:
        try:
            return {topic: (await brokers.state(topic)).unwritable for topic in topics} == topics
        except KafkaUnavailable:
            return False

    return told


async def test_partitions_that_take_no_records_are_told(world: World) -> None:
    lone, shared, other = await world.lone_topic(), await world.lone_topic(replicated=True), await world.topic(2)
    brokers, nothing = world.brokers(), set[int]()
    await eventually(are_unwritable(brokers, {lone: nothing, shared: nothing, other: nothing}), "no partition")
    async with world.lose_broker():
        await eventually(are_unwritable(brokers, {lone: {0}, shared: {0}, other: nothing}), "two partitions")
        await answered(lambda: brokers.ends(shared, [0]), KafkaUnavailable)
        await answered(lambda: brokers.ends(other, [0, 1]), KafkaUnavailable)
        with pytest.raises(KafkaUnavailable):
            await brokers.ends(lone, [0])
    await eventually(are_unwritable(brokers, {lone: nothing, shared: nothing, other: nothing}), "no partition")


@pytest.mark.parametrize("held", [False, True])
async def test_leaders_that_are_out_of_reach_are_told_while_others_answer(world: World, held: bool) -> None:
    """The brokers know of no fault."""
    lone, mixed, other = await world.lone_topic(), await world.lone_topic(partition=1), await world.topic(2)
    brokers, nothing = world.brokers(), set[int]()
    await eventually(are_unwritable(brokers, {lone: nothing, mixed: nothing, other: nothing}), "no partition")
    session = await world.session()
    with world.lose_sight(held):
        await eventually(are_unwritable(brokers, {mixed: {1}, other: nothing}), "one partition")
        with pytest.raises(KafkaUnavailable):
            await brokers.state(lone)
        with pytest.raises(KafkaUnavailable):
            await brokers.ends(mixed, [0, 1])
        await answered(lambda: brokers.ends(mixed, [0]), KafkaUnavailable)
        with pytest.raises(WriteFailed):
            await session.commit([record(mixed, b"1"), OutRecord(mixed, 1, b"k", b"1", [])])
    await eventually(are_unwritable(brokers, {lone: nothing, mixed: nothing, other: nothing}), "no partition")

    async def written() -> None:
        await session.open()
        await session.commit([record(mixed, b"2"), OutRecord(mixed, 1, b"k", b"2", [])])

    await answered(written, WriteFailed)
    assert [await world.content(mixed, partition) for partition in (0, 1)] == [[b"2"], [b"2"]]


async def test_a_transaction_stays_open_without_a_leader_until_it_is_aborted_there(world: World) -> None:
    """The brokers say that the fence was done. No reader passes the transaction that it aborted."""
    lone, other = await world.lone_topic(), await world.topic()
    brokers, session = world.brokers(), await world.session()
    await session.commit([record(lone, b"1"), record(other, b"1")])
    stranger = world.stranger(world.identity("s"))
    for topic in (lone, other):
        stranger.write(topic, 0, b"ghost")
    async with world.lose_broker():
        await answered(lambda: brokers.fence(world.identity("s")), WriteFailed)
        assert await world.content(other) == [b"1"]
    await session.commit([record(lone, b"2"), record(other, b"2")])
    assert await world.content(other) == [b"1", b"2"]
    reader = await world.reader(lone, {0: BEGINNING})
    assert [found.value for found in await read_up(reader)] == [b"1"]
    await brokers.fence(world.identity("s"), [(lone, 0)])
    assert await world.content(lone) == [b"1", b"2"]


async def test_a_transaction_that_was_left_open_is_committed_by_the_next_one_of_its_id(world: World) -> None:
    """Though it was aborted. So whoever goes on with the id reads what is there before it writes."""
    lone, other = await world.lone_topic(), await world.topic()
    stranger = world.stranger(world.identity("s"))
    for topic in (lone, other):
        stranger.write(topic, 0, b"ghost")
    async with world.lose_broker():
        await answered(lambda: world.brokers().fence(world.identity("s")), WriteFailed)
    session = await world.session("s")
    await session.commit([record(lone, b"1"), record(other, b"1")])
    assert await world.content(other) == [b"1"]
    assert await world.content(lone) == [b"ghost", b"1"]


async def test_a_partition_with_too_few_replicas_holds_up_an_id_and_nobody_else(world: World) -> None:
    shared, other = await world.lone_topic(replicated=True), await world.topic()
    brokers, loop = world.brokers(), asyncio.get_running_loop()
    session = await world.session("other")
    stranger = world.stranger(world.identity("s"))
    for topic in (shared, other):
        stranger.write(topic, 0, b"ghost")
    held_up = await (await world.node()).session(world.config(), world.identity("s"), lambda: MAX_MESSAGE_BYTES)
    async with world.lose_broker():
        began = loop.time()
        with pytest.raises(WriteFailed) as failed:
            await held_up.open()
        assert (failed.value.cause, failed.value.held_up, failed.value.denied) == (Cause.LOST, True, False)
        assert loop.time() - began < HELD_UP_SECONDS + IN_TIME
        with pytest.raises(WriteFailed) as failed:
            await brokers.fence(world.identity("s"))
        assert failed.value.held_up
        # Its other partitions are as they will be, and another id writes to them.
        await session.commit([record(other, b"1")])
        assert await world.content(other) == [b"1"]

    async def written() -> None:
        await held_up.open()  # an earlier one of these may still reach a busy broker, and fence it
        await held_up.commit([record(shared, b"2"), record(other, b"2")])

    await answered(written, WriteFailed)
    assert await world.content(shared) == [b"2"]
    assert await world.content(other) == [b"1", b"2"]


@pytest.mark.kafka
@pytest.mark.parametrize("lacks", ["changes", "positions"])
@pytest.mark.parametrize("how", ["killed", "held", "refused"])
def test_a_connector_goes_on_without_it(
    pair: tuple[EmbeddedKafka, EmbeddedKafka], gates: Gates, prefix: str, lacks: str, how: str
) -> None:
    """Under load, with the real client library: nothing is lost, and what is well is written, without a reset.

    A partition of changes that is lost between a commit and its marker is reset: the next marker of the same id decides
    there, and aborts what Kafka has committed on the others.
    """
    first, second = pair
    config = config_of(first.bootstrap if how == "killed" else gates.bootstrap, prefix)
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    topics, sick = config.topics, getattr(config.topics, lacks)
    for topic, partitions, settings in (
        (topics.changes, 2, {}),
        (topics.positions, 2, COMPACTED),
        (topics.signal, 1, {}),
    ):
        place = [[1], [2]] if topic == sick else [[1]] * partitions
        new = NewTopic(topic, partitions, replica_assignment=place, config=dict(settings))
        admin.create_topics([new])[topic].result(SECONDS)

    async def work() -> None:
        async with cache(config) as found:
            await started(found)
            # Else the marker of the start's reset may be lost, and the reset with it, or its end on the other topic.
            await eventually(lambda: marked(first.bootstrap, topics), "the markers of the start")
            async with written_to(found):
                with lost(how):
                    await found.until(lambda: found.core.withheld == {1} and unwritten(found, 1) > 500)
                    await found.until(lambda: unwritten(found, 0) < 200)
                await found.until(lambda: not found.core.withheld)
            await found.drained()
            records = read_topic(first.bootstrap, config.topics.changes)
            whole_and_never_reset(found, records, 1 if (lacks, how) == ("changes", "killed") else None)

    @contextmanager
    def lost(how: str) -> Iterator[None]:
        if how == "killed":
            second.kill()
            yield
            second.start()
        else:
            with gates.without_second(how == "held"):
                yield

    run(work())


@pytest.mark.kafka
@pytest.mark.parametrize("held", [False, True])
def test_the_coordinator_of_its_producer_may_be_out_of_reach_with_it(tmp_path: Path, prefix: str, held: bool) -> None:
    """What the first producer has left open ends with its time, and the spare one goes on."""
    with Gates().serving() as gates, two_brokers(tmp_path, gates=gates, shares_transactions=True) as (first, _):
        config = next(
            config
            for config in (
                config_of(gates.bootstrap, prefix, node_id=f"n{n}", transaction_timeout_ms=5000) for n in range(100)
            )
            if coordinator_of(config.topics.transactional_id_node(config["node.id"])) == 2
            and coordinator_of(config.topics.transactional_id_spare(config["node.id"])) == 1
        )
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        for topic, place, settings in (
            (config.topics.changes, [[1], [2]], {}),
            (config.topics.positions, [[1]] * 2, COMPACTED),
            (config.topics.signal, [[1]], {}),
        ):
            new = NewTopic(topic, len(place), replica_assignment=place, config=dict(settings))
            admin.create_topics([new])[topic].result(SECONDS)

        async def work() -> None:
            async with cache(config) as found:
                await started(found)
                async with written_to(found):
                    with gates.without_second(held):
                        await found.until(lambda: found.core.withheld == {1} and unwritten(found, 1) > 500)
                        await found.until(lambda: unwritten(found, 0) < 200)
                    await found.until(lambda: not found.core.withheld)
                await found.drained()
                whole_and_never_reset(found, read_topic(first.bootstrap, config.topics.changes))

        run(work(), 200)


async def marked(bootstrap: str, topics: Topics) -> bool:
    """Whether all transactions have their markers."""
    ends = [
        [await asyncio.to_thread(end_offsets, bootstrap, topic, committed) for committed in (True, False)]
        for topic in (topics.changes, topics.positions)
    ]
    return all(stable == end for stable, end in ends)


def unwritten(found: Cache, partition: int) -> int:
    mine = (s for s in found.core.primaries() if s.partition == partition)
    return sum(s.last_sequence - (s.written or 0) for s in mine)


@pytest.mark.kafka
def test_a_request_that_waits_for_a_lost_broker_leaves_the_processor_alone(
    pair: tuple[EmbeddedKafka, EmbeddedKafka], prefix: str
) -> None:
    first, second = pair
    admin = KafkaAdmin(config_of(f"{first.bootstrap},{second.bootstrap}", prefix), seconds=3)
    new = NewTopic(prefix, 1, replica_assignment=[[2]])
    maker = AdminClient({"bootstrap.servers": first.bootstrap, "log_level": 0})
    maker.create_topics([new])[prefix].result(SECONDS)

    def answers() -> bool:
        try:
            return bool(admin.ends(prefix, [0]))
        except KafkaUnavailable:
            return False

    def waits() -> bool:
        waiting(answers, SECONDS, "the leader")
        second.kill()
        try:
            began, worked = time.monotonic(), time.process_time()
            assert not answers()
            waited, worked = time.monotonic() - began, time.process_time() - worked
        finally:
            second.start()
        assert worked < max(waited, 1) / 4
        return waited > 2  # else the controller had noticed: it does so late, as a rule

    waiting(waits, SECONDS, "a request that waits")
    waiting(answers, SECONDS, "the leader")
    del maker
