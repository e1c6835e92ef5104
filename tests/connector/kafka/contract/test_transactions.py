"""What readers see of transactions: all or nothing, in order, up to the first one that is open."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.kafka_port import BEGINNING, MAX_READ, OutRecord, WriteFailed
from tests.connector.kafka.contract.world import IN_TIME, MAX_MESSAGE_BYTES, World, eventually, read, read_up


def record(topic: str, value: bytes | None, partition: int = 0, key: bytes = b"k") -> OutRecord:
    return OutRecord(topic, partition, key, value, [])


async def test_what_is_committed_is_read_as_it_was_written(world: World) -> None:
    topic = await world.topic(2)
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("b", "ü"), ("a", None), ("c", b"")]
    session, reader = await world.session(), await world.reader(topic, {1: BEGINNING})
    await session.commit([OutRecord(topic, 1, b"k1", b"v", headers), OutRecord(topic, 1, b"k2", b"", [])])
    first, second = await read(reader, 2)
    assert first[:5] == (topic, 1, 0, b"k1", b"v")
    assert first.headers == [("a", b"1"), ("b", "ü".encode()), ("a", None), ("c", b"")]
    assert second[:5] == (topic, 1, 1, b"k2", b"")
    assert not second.headers


async def test_a_value_of_none_is_not_an_empty_one(world: World) -> None:
    topic = await world.topic()
    session, reader = await world.session(), await world.reader(topic)
    await session.commit([record(topic, None), record(topic, b"")])
    assert [found.value for found in await read(reader, 2)] == [None, b""]


async def test_a_foreign_record_without_key_is_read(world: World) -> None:
    topic = await world.topic()
    world.produce(topic, 0, None, b"v")
    (found,) = await read(await world.reader(topic), 1)
    assert found[3:5] == (None, b"v")


async def test_the_order_of_each_partition_is_that_of_the_records(world: World) -> None:
    topic, count = await world.topic(3), 2 * MAX_READ
    session = await world.session()
    reader = await world.reader(topic, dict.fromkeys(range(3), BEGINNING))
    for begin in (0, count):
        await session.commit(record(topic, b"%d" % i, i % 3) for i in range(begin, begin + count))
    found = await read(reader, 2 * count)
    for partition in range(3):
        of_it = [entry for entry in found if entry.partition == partition]
        assert [int(entry.value or b"") for entry in of_it] == list(range(partition, 2 * count, 3))
        assert [entry.offset for entry in of_it] == sorted({entry.offset for entry in of_it})


async def test_the_record_with_which_the_oldest_open_transaction_begins_is_found(world: World) -> None:
    topic, brokers, session = await world.topic(2), world.brokers(), await world.session()

    async def found(value: bytes | None) -> None:
        """A marker may arrive a moment after the answer to its commit."""

        async def is_it() -> bool:
            hidden = await brokers.hanging(topic, 1)
            return (hidden and hidden.value) == value

        await eventually(is_it, f"the transaction that begins with {value!r}")

    assert await brokers.hanging(topic, 1) is None
    await session.commit([record(topic, b"1", 1)])
    await found(None)
    first, second = world.stranger(world.identity("s")), world.stranger(world.identity("t"))
    first.write(topic, 1, b"2")
    first.write(topic, 1, b"3")
    second.write(topic, 1, b"4")
    await session.commit([record(topic, b"5", 1)])
    await found(b"2")
    hidden = await brokers.hanging(topic, 1)
    assert hidden is not None
    assert (hidden.topic, hidden.partition, hidden.key) == (topic, 1, b"k")
    assert await brokers.hanging(topic, 0) is None
    first.abort()
    await found(b"4")
    second.commit()
    await found(None)


async def test_what_is_aborted_is_never_read(world: World) -> None:
    topic = await world.topic()
    stranger = world.stranger(world.identity("other"))
    stranger.write(topic, 0, b"aborted")
    stranger.abort()
    session = await world.session()
    await session.commit([record(topic, b"committed")])
    assert await world.content(topic) == [b"committed"]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_reader_stops_before_an_open_transaction_and_goes_on_after_its_end(
    world: World, committed: bool
) -> None:
    topic = await world.topic()
    session, brokers = await world.session(), world.brokers()
    await session.commit([record(topic, b"before")])
    await world.settled(topic)
    stranger = world.stranger(world.identity("other"))
    stranger.write(topic, 0, b"open")
    await session.commit([record(topic, b"behind")])
    (end,) = await brokers.ends(topic, [0])
    assert end.offset == 2  # before it are a record and the marker of its transaction
    reader = await world.reader(topic)
    assert [found.value for found in await read_up(reader)] == [b"before"]
    if committed:
        stranger.commit()
    else:
        stranger.abort()
    behind = [b"open", b"behind"] if committed else [b"behind"]
    assert [found.value for found in await read(reader, len(behind))] == behind


async def test_an_open_transaction_holds_up_its_own_partitions_only(world: World) -> None:
    topic = await world.topic(2)
    session = await world.session()
    reader = await world.reader(topic, {0: BEGINNING, 1: BEGINNING})
    world.stranger(world.identity("other")).write(topic, 0, b"open")
    for value in (b"1", b"2"):
        await session.commit([record(topic, value, 0), record(topic, value, 1)])
    assert [(found.partition, found.value) for found in await read(reader, 2)] == [(1, b"1"), (1, b"2")]


async def test_the_end_of_a_transaction_takes_an_offset(world: World) -> None:
    topic = await world.topic()
    session, brokers = await world.session(), world.brokers()
    for _ in range(3):
        await session.commit([record(topic, b"v"), record(topic, b"v")])
    await world.settled(topic)
    assert [end.offset for end in await brokers.ends(topic, [0])] == [9]
    assert [found.offset for found in await read(await world.reader(topic), 6)] == [0, 1, 3, 4, 6, 7]


async def test_a_commit_without_records_writes_nothing(world: World) -> None:
    topic = await world.topic()
    session, brokers = await world.session(), world.brokers()
    await session.commit([])
    await session.commit([record(topic, b"v")])
    await session.commit(iter(()))
    await world.settled(topic)
    assert [end.offset for end in await brokers.ends(topic, [0])] == [2]


async def test_several_topics_are_written_to_together_or_not_at_all(world: World) -> None:
    topics = [await world.topic() for _ in range(3)]
    session = await world.session()

    def fenced() -> Iterator[OutRecord]:
        yield from (record(topic, b"lost") for topic in topics)
        world.stranger(world.identity())

    await session.commit([record(topic, b"kept") for topic in topics])
    with pytest.raises(WriteFailed):
        await session.commit(fenced())
    await session.open()
    await session.commit([record(topic, b"again") for topic in topics])
    for topic in topics:
        assert await world.content(topic) == [b"kept", b"again"]


async def test_a_commit_needs_a_session(world: World) -> None:
    topic = await world.topic()
    session = await world.port.session(world.config(), world.identity(), lambda: 1000)
    with pytest.raises(WriteFailed) as failed:
        await session.commit([record(topic, b"v")])
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, False)


async def test_a_session_that_was_discarded_commits_no_more(world: World) -> None:
    topic = await world.topic()
    session = await world.session()
    await session.discard()
    await session.discard()
    with pytest.raises(WriteFailed) as failed:
        await session.commit([record(topic, b"v")])
    assert failed.value.cause is Cause.LOST
    await session.open()
    await session.commit([record(topic, b"v")])
    assert len(await read(await world.reader(topic), 1)) == 1


async def test_what_discard_leaves_open_is_aborted_by_the_next_session(world: World) -> None:
    topic = await world.topic()
    session, other = await world.session(transaction_timeout_ms=900_000), await world.session("other")

    def torn() -> Iterator[OutRecord]:
        yield record(topic, b"ghost")
        world.begun(topic)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await session.commit(torn())
    await session.discard()
    await other.commit([record(topic, b"1")])
    await session.open()
    assert await world.content(topic) == [b"1"]


async def test_what_an_iterable_raises_ends_the_session(world: World) -> None:
    topic = await world.topic()
    session = await world.session()

    def torn() -> Iterator[OutRecord]:
        yield record(topic, b"lost")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await session.commit(torn())
    with pytest.raises(WriteFailed) as failed:
        await session.commit([record(topic, b"lost, too")])
    assert failed.value.cause is Cause.LOST
    await session.open()
    await session.commit([record(topic, b"v")])
    assert await world.content(topic) == [b"v"]


async def test_a_session_takes_the_size_that_is_in_force_when_it_is_opened(world: World) -> None:
    topic, size = await world.topic(), [1000]
    session = await world.port.session(world.config(), world.identity(), lambda: size[0])
    large = random.Random(1).randbytes(100_000)  # not to be compressed
    await session.open()
    with pytest.raises(WriteFailed) as failed:
        await session.commit([record(topic, large)])
    assert failed.value.cause is Cause.REFUSED
    size[0] = MAX_MESSAGE_BYTES
    await session.open()
    await session.commit([record(topic, large)])
    await session.discard()
    assert await world.content(topic) == [large]


@pytest.mark.parametrize("limit", ["client", "topic"])
async def test_a_record_that_is_too_large_is_refused_with_all_of_its_transaction(world: World, limit: str) -> None:
    topic = await world.topic(max_message_bytes="20000" if limit == "topic" else "1000000")
    session = await world.session(size=20_000 if limit == "client" else 1_000_000)
    large = random.Random(1).randbytes(100_000)  # not to be compressed
    for _ in range(2):
        with pytest.raises(WriteFailed) as failed:
            await session.commit([record(topic, b"small"), record(topic, large), record(topic, b"s")])
        assert (failed.value.cause, failed.value.denied) == (Cause.REFUSED, False)
        with pytest.raises(WriteFailed) as failed:
            await session.commit([record(topic, b"v")])
        assert failed.value.cause is Cause.LOST
        await session.open()
    await session.commit([record(topic, b"v")])
    assert await world.content(topic) == [b"v"]


async def test_small_records_are_refused_in_a_batch_that_is_larger_than_the_topic_takes(world: World) -> None:
    topic = await world.topic(max_message_bytes="20000")
    values = [random.Random(number).randbytes(1000) for number in range(600)]
    session = await world.session(size=1_000_000)
    with pytest.raises(WriteFailed) as failed:
        await session.commit([record(topic, value) for value in values])
    assert (failed.value.cause, failed.value.denied) == (Cause.REFUSED, False)
    session = await world.session(size=20_000)
    await session.commit([record(topic, value) for value in values])
    assert await world.content(topic) == values


async def test_records_of_another_time_are_refused_whatever_is_in_them(world: World) -> None:
    topic = await world.topic(message_timestamp_before_max_ms="0")
    session = await world.session()
    with pytest.raises(WriteFailed) as failed:
        await session.commit([record(topic, b"1")])
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, True)
    assert "clock" in failed.value.reason
    # To a real broker its own marker is too old for that topic: the id could not go on before it is gone.
    await world.delete_topic(topic)


async def test_a_commit_goes_on_when_its_task_is_cancelled_and_the_next_call_waits_for_it(world: World) -> None:
    topic, count = await world.topic(), 500
    session = await world.session()
    taken: list[int] = []
    go_on = threading.Event()

    def slow() -> Iterator[OutRecord]:
        for i in range(count):
            taken.append(i)
            world.wait(go_on)
            yield record(topic, b"%d" % i)

    commit = asyncio.create_task(session.commit(slow()))
    await eventually(lambda: len(taken) > 0, "the iterable")
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    following = asyncio.create_task(session.commit([record(topic, b"next")]))
    go_on.set()
    await following
    assert len(taken) == count
    assert await world.content(topic) == [*(b"%d" % i for i in range(count)), b"next"]


async def test_calls_of_a_session_run_in_the_order_in_which_they_were_begun(world: World) -> None:
    topic = await world.topic()
    session = await world.session()
    calls = [session.commit([record(topic, b"%d" % i)]) for i in range(5)]
    await asyncio.gather(*calls, session.discard(), session.open(), session.commit([record(topic, b"5")]))
    assert await world.content(topic) == [b"%d" % i for i in range(6)]


@pytest.mark.needs("lose_answer")
@pytest.mark.parametrize("hurried", [False, True])
async def test_a_commit_whose_answer_is_lost_takes_effect_once(world: World, hurried: bool) -> None:
    topic = await world.topic()
    session = await world.session()
    await session.commit([record(topic, b"1")])
    lost = world.lose_answer()
    if hurried:
        session.give_up()
    failed: Cause | None = None
    try:
        await session.commit([record(topic, b"2")])
    except WriteFailed as error:
        failed = error.cause
        await session.open()
    assert lost()
    assert failed in ((None, Cause.LOST) if hurried else (None,))
    await session.commit([record(topic, b"3")])
    assert await world.content(topic) == [b"1", b"2", b"3"]


@pytest.mark.needs("lose_clients")
async def test_a_session_that_never_sends_again_is_lost_and_the_next_one_goes_on(world: World) -> None:
    topic = await world.topic(2)
    session = await world.session()
    await session.commit([record(topic, b"1")])
    world.lose_clients()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(WriteFailed, match="none of 2 records") as failed:
        await session.commit([record(topic, b"lost"), record(topic, b"lost", 1)])
    assert (failed.value.cause, failed.value.denied) == (Cause.LOST, False)
    await session.open()
    await session.commit([record(topic, b"2")])
    assert loop.time() - begin < 6 + IN_TIME
    assert await world.content(topic) == [b"1", b"2"]
