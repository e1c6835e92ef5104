"""What each call does while no broker answers, and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka_port import BEGINNING, Brokers, OutRecord, PartitionEnd, WriteFailed
from tests.connector.kafka.contract.world import IN_TIME, World, answered, opened, read, read_up, sought
from tests.support.waiting import awaiting

pytestmark = pytest.mark.needs("away")

REQUEST: Final = 0.5
"""Seconds of a request here."""


def record(topic: str, value: bytes) -> OutRecord:
    return OutRecord(topic, 0, b"k", value, [])


async def fails_in_time(call: Awaitable[object], seconds: float, error: type[Exception]) -> Exception:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(error) as failed:
        await call
    assert loop.time() - begin < seconds + IN_TIME
    return failed.value


async def lost(call: Awaitable[object], seconds: float) -> None:
    failed = await fails_in_time(call, seconds, WriteFailed)
    assert isinstance(failed, WriteFailed)
    assert (failed.cause, failed.denied) == (Cause.LOST, False)


async def test_a_commit_goes_on_until_brokers_are_back_and_takes_effect_once(world: World) -> None:
    topic = await world.topic()
    session = await world.session(port=await world.node(REQUEST))
    await session.commit([record(topic, b"0")])
    async with world.away():
        commit = asyncio.create_task(session.commit([record(topic, b"1"), record(topic, b"2")]))
        await asyncio.sleep(2.5 * REQUEST)
        assert not commit.done()
    await commit
    await session.commit([record(topic, b"3")])
    assert await world.content(topic) == [b"0", b"1", b"2", b"3"]


async def test_give_up_ends_the_commit_under_way(world: World) -> None:
    topic = await world.topic()
    session = await world.session(port=await world.node(REQUEST))
    async with world.away():
        commit = asyncio.create_task(session.commit([record(topic, b"perhaps")]))
        await asyncio.sleep(1.5 * REQUEST)
        assert not commit.done()
        session.give_up()
        await lost(commit, REQUEST)
        await lost(session.commit([record(topic, b"never")]), 0.0)
    await opened(session)
    await session.commit([record(topic, b"1")])
    assert await world.content(topic) in ([b"1"], [b"perhaps", b"1"])


async def test_give_up_before_a_commit_counts_for_it_and_for_no_other(world: World) -> None:
    topic = await world.topic()
    session = await world.session(port=await world.node(REQUEST))
    async with world.away():
        session.give_up()
        await lost(session.commit([record(topic, b"perhaps")]), REQUEST)
    await opened(session)
    async with world.away():
        commit = asyncio.create_task(session.commit([record(topic, b"1")]))
        await asyncio.sleep(2.5 * REQUEST)
        assert not commit.done()
    await commit
    assert await world.content(topic) in ([b"1"], [b"perhaps", b"1"])


async def test_give_up_means_nothing_while_brokers_answer(world: World) -> None:
    topic = await world.topic()
    session = await world.session()
    session.give_up()
    await session.commit([record(topic, b"1")])
    session.give_up()
    await session.discard()
    await opened(session)
    await session.commit([record(topic, b"2")])
    assert await world.content(topic) == [b"1", b"2"]


async def test_a_commit_without_records_asks_nobody(world: World) -> None:
    session = await world.session()
    loop = asyncio.get_running_loop()
    async with world.away():
        begin = loop.time()
        await session.commit([])
        assert loop.time() - begin < IN_TIME


async def test_a_session_is_not_opened(world: World) -> None:
    topic = await world.topic()
    port = await world.node(REQUEST)
    session = await world.session(port=port)
    async with world.away():
        fence = world.brokers(port).fence(world.identity("other"))
        await asyncio.gather(lost(session.open(), REQUEST + 1), lost(fence, REQUEST + 1))
        await lost(session.commit([record(topic, b"0")]), 0.0)

    async def written() -> None:
        # The request of the session that was given up may still be under way, and fences the next one when it comes.
        await session.open()
        await session.commit([record(topic, b"1")])

    await answered(written, WriteFailed)
    assert await world.content(topic) == [b"1"]


async def test_what_a_node_that_was_given_up_left_open_is_aborted_by_the_next(world: World) -> None:
    topic = await world.topic()
    stranger = world.stranger(world.identity())
    stranger.write(topic, 0, b"ghost")
    async with world.away():
        pass
    session = await world.session(port=await world.node(REQUEST))
    await session.commit([record(topic, b"1")])
    assert await world.content(topic) == [b"1"]


async def test_a_read_returns_nothing_and_goes_on_afterwards(world: World) -> None:
    loop, topic = asyncio.get_running_loop(), await world.topic()
    session = await world.session()
    await session.commit([record(topic, b"1")])
    reader = await world.reader(topic, port=await world.node(REQUEST))
    assert len(await read(reader, 1)) == 1
    async with world.away():
        begin = loop.time()
        for _ in range(3):
            assert await reader.read(REQUEST) == []
        assert loop.time() - begin < 3 * REQUEST + IN_TIME
    await session.commit([record(topic, b"2")])
    assert [found.value for found in await read(reader, 1)] == [b"2"]


async def test_a_reader_does_not_seek(world: World) -> None:
    topic = await world.topic()
    session = await world.session()
    await session.commit([record(topic, b"1")])
    reader = await world.reader(topic, port=await world.node(REQUEST))
    async with world.away():
        await fails_in_time(reader.seek({0: 0}), REQUEST + 1, KafkaUnavailable)
        await reader.seek({})
    await sought(reader, {0: BEGINNING})
    assert [found.value for found in await read_up(reader)] == [b"1"]


async def test_a_reader_closes(world: World) -> None:
    loop, topic = asyncio.get_running_loop(), await world.topic()
    reader = await world.reader(topic, port=await world.node(REQUEST))
    async with world.away():
        begin = loop.time()
        reading = asyncio.create_task(reader.read(REQUEST))
        await asyncio.sleep(0)  # in which it begins
        await reader.close()
        assert loop.time() - begin < REQUEST + IN_TIME
        assert await reading == []


ASKED: Final[dict[str, tuple[Callable[[Brokers, str], Awaitable[object]], float]]] = {
    "ensure": (lambda brokers, topic: brokers.ensure(topic, 1, {}), 2 * REQUEST),
    "ends": (lambda brokers, topic: brokers.ends(topic, [0]), 2 * REQUEST),
    "settings": (lambda brokers, topic: brokers.settings(topic), 2 * REQUEST),
    "still_holds": (lambda brokers, topic: brokers.still_holds(topic, PartitionEnd(0, 0, -1)), REQUEST),
    "hanging": (lambda brokers, topic: brokers.hanging(topic, 0), 2 * REQUEST),
    "state": (lambda brokers, topic: brokers.state(topic), 2 * REQUEST),
}


@pytest.mark.parametrize("call", ASKED)
async def test_a_request_fails_in_time_and_is_answered_afterwards(world: World, call: str) -> None:
    topic = await world.topic()
    brokers = world.brokers(await world.node(REQUEST))
    ask, seconds = ASKED[call]
    await answered(lambda: ask(brokers, topic), KafkaUnavailable)
    async with world.away():
        await fails_in_time(ask(brokers, topic), seconds, KafkaUnavailable)
    await answered(lambda: ask(brokers, topic), KafkaUnavailable)


async def test_close_of_brokers_does_not_wait_for_them(world: World) -> None:
    loop, topic = asyncio.get_running_loop(), await world.topic()
    brokers = world.brokers(await world.node(REQUEST))
    await answered(lambda: brokers.ends(topic, [0]), KafkaUnavailable)
    async with world.away():
        begin = loop.time()
        asked = asyncio.create_task(brokers.ends(topic, [0]))
        await asyncio.sleep(0)  # in which it begins
        await brokers.close()
        await fails_in_time(asked, 2 * REQUEST, KafkaUnavailable)
        assert loop.time() - begin < 2 * REQUEST + IN_TIME


async def test_the_port_closes_when_the_calls_under_way_have_ended(world: World) -> None:
    loop, port = asyncio.get_running_loop(), world.another_port(REQUEST)
    session = await port.session(world.config(), world.identity(), lambda: 1000)
    brokers, topic = port.brokers(world.config()), await world.topic()
    await opened(session)
    async with world.away():
        begin, begun = loop.time(), list[bool]()

        def records() -> Iterator[OutRecord]:
            begun.append(True)
            yield record(topic, b"perhaps")

        committed = asyncio.create_task(session.commit(records()))
        await awaiting(lambda: begun, IN_TIME, "the commit to begin")
        asked = asyncio.create_task(brokers.ends(topic, [0]))
        await asyncio.sleep(0)
        session.give_up()
        await port.close()
        assert loop.time() - begin < 2 * REQUEST + IN_TIME
        with pytest.raises(WriteFailed):
            await committed
        with pytest.raises((KafkaUnavailable, asyncio.CancelledError)):  # a thread has begun it, or it is cancelled
            await asked
