"""Records that may be lost, and are not while all is well."""

from __future__ import annotations

import asyncio
import random

import pytest

from deelog_connector.kafka_port import BEGINNING
from tests.connector.kafka.contract.world import IN_TIME, UNRESOLVED, World, read, read_up

MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""What Kafka's own test of its hash says of these (`UtilsTest.testMurmur2`)."""
PARTITIONS = 8
EVERY = dict.fromkeys(range(PARTITIONS), BEGINNING)


async def test_a_note_is_sent(world: World) -> None:
    topic, notes = await world.topic(), world.notes()
    notes.send(topic, b"k", b"v")
    ((_, _, _, key, value, _),) = await read(await world.reader(topic), 1)
    assert (key, value) == (b"k", b"v")
    assert notes.dropped == 0


async def test_its_key_chooses_the_partition_as_it_does_in_java(world: World) -> None:
    topic, notes = await world.topic(PARTITIONS), world.notes()
    for key in MURMUR2:
        notes.send(topic, key, b"v")
    found = await read(await world.reader(topic, EVERY), len(MURMUR2))
    expected = {key: (number & 0x7FFFFFFF) % PARTITIONS for key, number in MURMUR2.items()}
    assert {entry.key: entry.partition for entry in found} == expected


async def test_a_partition_may_be_given(world: World) -> None:
    topic, notes = await world.topic(PARTITIONS), world.notes()
    for partition in range(PARTITIONS):
        notes.send(topic, b"k", b"%d" % partition, partition)
    found = await read(await world.reader(topic, EVERY), PARTITIONS)
    assert {entry.value: entry.partition for entry in found} == {b"%d" % p: p for p in range(PARTITIONS)}


async def test_notes_keep_their_order(world: World) -> None:
    topic, notes = await world.topic(), world.notes()
    for i in range(500):
        notes.send(topic, b"k", b"%d" % i)
    assert [int(entry.value or b"") for entry in await read(await world.reader(topic), 500)] == list(range(500))


async def test_close_sends_what_is_queued(world: World) -> None:
    topic, notes = await world.topic(), world.notes()
    for i in range(200):
        notes.send(topic, b"k", b"%d" % i)
    await notes.close()
    assert notes.dropped == 0
    assert len(await read_up(await world.reader(topic))) == 200


async def test_close_of_notes_that_sent_nothing(world: World) -> None:
    notes = world.notes()
    await notes.close()
    await notes.close()
    assert notes.dropped == 0


async def test_a_note_that_is_too_large_is_dropped_and_counted(world: World) -> None:
    topic, notes = await world.topic(), world.notes()
    notes.send(topic, b"k", bytes(5_000_000))
    notes.send(topic, b"k", b"v")
    await notes.close()
    assert notes.dropped == 1
    assert [entry.value for entry in await read_up(await world.reader(topic))] == [b"v"]


async def test_a_note_that_the_brokers_refuse_is_counted(world: World) -> None:
    topic, notes = await world.topic(max_message_bytes="1000"), world.notes()
    notes.send(topic, b"k", random.Random(1).randbytes(20_000))
    await notes.close()
    assert notes.dropped == 1
    assert await world.content(topic) == []


async def test_a_topic_that_does_not_exist_loses_its_notes_alone(world: World) -> None:
    topic, notes = await world.topic(), world.notes()
    notes.send(f"{world.prefix}-none", b"k", b"v")
    notes.send(topic, b"k", b"v")
    assert len(await read(await world.reader(topic), 1)) == 1
    await notes.close()
    assert notes.dropped == 1


async def test_a_configuration_that_makes_no_client_is_a_drop(world: World) -> None:
    notes = world.port.notes(world.config(**UNRESOLVED))
    notes.send("t", b"k", b"v")
    notes.send("t", b"k", b"v")
    assert notes.dropped == 2
    await notes.close()


@pytest.mark.needs("away")
async def test_notes_that_nobody_takes_are_dropped_and_counted_when_the_queue_is_full(world: World) -> None:
    topic, notes, sent = await world.topic(), world.notes(), 5000
    notes.send(topic, b"k", b"0")
    await read(await world.reader(topic), 1)
    async with world.away():
        for i in range(1, sent):
            notes.send(topic, b"k", b"%d" % i)
        dropped = notes.dropped
        assert 0 < dropped < sent - 1
    await notes.close()
    found = await read_up(await world.reader(topic))
    assert len(found) + notes.dropped == sent
    # The oldest are kept: the queue was full for those that came later.
    assert [int(entry.value or b"") for entry in found] == list(range(len(found)))


@pytest.mark.needs("away")
async def test_close_while_brokers_are_away_drops_what_is_queued_in_time(world: World) -> None:
    loop, topic, notes = asyncio.get_running_loop(), await world.topic(), world.notes()
    notes.send(topic, b"k", b"0")
    await read(await world.reader(topic), 1)
    async with world.away():
        for i in range(1, 11):
            notes.send(topic, b"k", b"%d" % i)
        begin = loop.time()
        await notes.close()
        assert loop.time() - begin < 2.0 + IN_TIME
        assert notes.dropped == 10
