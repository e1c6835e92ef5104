"""A record outside of any transaction, as the grid's nodes register by it."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest

from deelog_connector.errors import KafkaUnavailable
from tests.connector.kafka.contract.world import IN_TIME, World, answered, read

REQUEST = 1.0
"""Seconds of a request here."""


async def test_what_is_published_is_read_in_its_order(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    for i in range(3):
        await brokers.publish(topic, f"k{i}", b"%d" % i)
    found = await read(await world.reader(topic), 3)
    assert [(entry.key, entry.value) for entry in found] == [(b"k0", b"0"), (b"k1", b"1"), (b"k2", b"2")]
    (end,) = await brokers.ends(topic, [0])
    assert end.offset == 3  # no marker follows


async def test_it_goes_to_the_first_partition(world: World) -> None:
    topic, brokers = await world.topic(3), world.brokers()
    for i in range(5):
        await brokers.publish(topic, f"k{i}", b"v")
    ends = await brokers.ends(topic, range(3))
    assert sorted((end.partition, end.offset) for end in ends) == [(0, 5), (1, 0), (2, 0)]


async def test_nothing_is_published_to_a_topic_that_does_not_exist(world: World) -> None:
    brokers = world.brokers(await world.node(REQUEST))
    with pytest.raises(KafkaUnavailable):
        await brokers.publish(f"{world.prefix}-none", "k", b"v")


async def test_a_record_that_is_too_large_is_not_published(world: World) -> None:
    topic, brokers = await world.topic(max_message_bytes="1000"), world.brokers()
    with pytest.raises(KafkaUnavailable):
        await brokers.publish(topic, "k", bytes(10_000))
    await brokers.publish(topic, "k", b"v")
    assert [entry.value for entry in await read(await world.reader(topic), 1)] == [b"v"]


@pytest.mark.needs("away")
async def test_it_fails_in_time_while_brokers_are_away(world: World) -> None:
    loop, topic = asyncio.get_running_loop(), await world.topic()
    brokers = world.brokers(await world.node(REQUEST))
    await answered(lambda: brokers.publish(topic, "k", b"1"), KafkaUnavailable)
    async with world.away():
        begin = loop.time()
        with pytest.raises(KafkaUnavailable):
            await brokers.publish(topic, "k", b"perhaps")
        assert loop.time() - begin < REQUEST + IN_TIME
    await answered(lambda: brokers.publish(topic, "k", b"2"), KafkaUnavailable)
    # One that was not answered in time may have been taken all the same, and was asked for again.
    content = [value for value, _ in groupby(await world.content(topic))]
    assert content in ([b"1", b"2"], [b"1", b"perhaps", b"2"])
