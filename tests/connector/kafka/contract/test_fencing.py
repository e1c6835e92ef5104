"""Several sessions of one transactional id: only the newest one writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import OutRecord, Session, WriteFailed
from tests.connector.kafka.contract.world import World, eventually


def record(topic: str, value: bytes) -> OutRecord:
    return OutRecord(topic, 0, b"k", value, [])


async def refused(session: Session, topic: str) -> Cause:
    """Why a commit fails."""
    with pytest.raises(WriteFailed) as failed:
        await session.commit([record(topic, b"ghost")])
    assert not failed.value.denied
    return failed.value.cause


async def test_the_older_of_two_sessions_is_fenced_at_its_next_commit(world: World) -> None:
    topic = await world.topic()
    older = await world.session()
    await older.commit([record(topic, b"1")])
    newer = await world.session(port=await world.node())
    assert await refused(older, topic) is Cause.FENCED
    await newer.commit([record(topic, b"2")])
    assert await world.content(topic) == [b"1", b"2"]


async def test_a_session_that_never_wrote_is_fenced_too(world: World) -> None:
    topic = await world.topic()
    older, newer = await world.session(), await world.session(port=await world.node())
    assert await refused(older, topic) is Cause.FENCED
    await newer.commit([record(topic, b"1")])
    assert await world.content(topic) == [b"1"]


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_a_session_is_fenced_in_the_middle_of_a_commit(world: World, taken: int) -> None:
    topic = await world.topic()
    session = await world.session()
    await session.commit([record(topic, b"1")])

    def fenced() -> Iterator[OutRecord]:
        for i in range(4):
            if i == taken:
                world.stranger(world.identity())
            yield record(topic, b"ghost")

    with pytest.raises(WriteFailed) as failed:
        await session.commit(fenced())
    assert failed.value.cause is Cause.FENCED
    assert await world.content(topic) == [b"1"]


async def test_a_fenced_session_is_over_until_it_is_opened_which_fences_the_other(world: World) -> None:
    topic = await world.topic()
    first, second = await world.session(), await world.session(port=await world.node())
    assert await refused(first, topic) is Cause.FENCED
    assert await refused(first, topic) is Cause.LOST  # no session is open
    await first.open()
    assert await refused(second, topic) is Cause.FENCED
    await first.commit([record(topic, b"1")])
    await second.open()
    await second.commit([record(topic, b"2")])
    assert await refused(first, topic) is Cause.FENCED
    assert await world.content(topic) == [b"1", b"2"]


async def test_a_session_that_is_opened_again_is_a_new_one(world: World) -> None:
    topic = await world.topic()
    session, other = await world.session(), await world.session(port=await world.node())
    for value in (b"1", b"2"):
        await session.open()
        assert await refused(other, topic) is Cause.FENCED
        await session.commit([record(topic, value)])
        await other.open()
    await other.commit([record(topic, b"3")])
    assert await world.content(topic) == [b"1", b"2", b"3"]


async def test_opening_aborts_the_open_transaction_of_the_id(world: World) -> None:
    topic = await world.topic()
    stranger = world.stranger(world.identity())
    stranger.write(topic, 0, b"ghost")
    session = await world.session()
    await session.commit([record(topic, b"1")])
    assert await world.content(topic) == [b"1"]


async def test_fence_aborts_the_open_transaction_and_fences_its_owner(world: World) -> None:
    topic = await world.topic()
    session, brokers = await world.session(), world.brokers()
    await session.commit([record(topic, b"1")])
    await world.settled(topic)
    other = world.stranger(world.identity("other"))
    other.write(topic, 0, b"ghost")
    assert [end.offset for end in await brokers.ends(topic, [0])] == [2]
    await brokers.fence(world.identity("other"))

    async def aborted() -> bool:
        return [end.offset for end in await brokers.ends(topic, [0])] == [4]

    await eventually(aborted, "the marker of the abort")
    await session.commit([record(topic, b"2")])
    await brokers.fence(world.identity())
    assert await refused(session, topic) is Cause.FENCED
    assert await world.content(topic) == [b"1", b"2"]


async def test_a_fenced_session_opens_again(world: World) -> None:
    topic = await world.topic()
    session, brokers = await world.session(), world.brokers()
    for value in (b"1", b"2"):
        await brokers.fence(world.identity())
        assert await refused(session, topic) is Cause.FENCED
        await session.open()
        await session.commit([record(topic, value)])
    assert await world.content(topic) == [b"1", b"2"]


async def test_an_id_that_nobody_ever_had_can_be_fenced(world: World) -> None:
    topic = await world.topic()
    brokers = world.brokers()
    await brokers.fence(world.identity())
    await brokers.fence(world.identity())
    session = await world.session()
    await session.commit([record(topic, b"1")])
    assert await world.content(topic) == [b"1"]


async def test_sessions_of_other_ids_are_left_alone(world: World) -> None:
    topic = await world.topic()
    one, other = await world.session("a"), await world.session("ab")
    await world.brokers().fence(world.identity("abc"))
    await one.commit([record(topic, b"1")])
    await other.commit([record(topic, b"2")])
    await one.commit([record(topic, b"3")])
    assert await world.content(topic) == [b"1", b"2", b"3"]


@pytest.mark.needs("expire")
async def test_a_transaction_that_takes_too_long_is_aborted_and_its_session_fenced(world: World) -> None:
    topic = await world.topic()
    session = await world.session(transaction_timeout_ms=1000)

    def slow() -> Iterator[OutRecord]:
        yield record(topic, b"ghost")
        world.expire(topic)
        yield record(topic, b"ghost")

    with pytest.raises(WriteFailed) as failed:
        await session.commit(slow())
    assert failed.value.cause is Cause.FENCED
    other = await world.session("other")
    await other.commit([record(topic, b"1")])
    await session.open()
    await session.commit([record(topic, b"2")])
    assert await world.content(topic) == [b"1", b"2"]
