"""Where a reader begins, what it holds back, and when it knows that it has caught up."""

from __future__ import annotations

import asyncio

import pytest

from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import BEGINNING, MAX_READ, InRecord, OutRecord
from deelog_schemas.kafka.progress import STALL_SECONDS
from tests.connector.kafka.contract.world import IN_TIME, World, eventually, read, read_up


async def written(world: World, topic: str, count: int, partitions: int = 1, first: int = 0) -> None:
    """Records with their numbers as values, in one transaction, in each partition."""
    session = await world.session("writer")
    await session.commit(
        OutRecord(topic, p, b"k", b"%d" % i, []) for i in range(first, first + count) for p in range(partitions)
    )
    await world.settled(topic)


def numbers(records: list[InRecord], partition: int = 0) -> list[int]:
    return [int(found.value or b"") for found in records if found.partition == partition]


@pytest.mark.parametrize("offset", [BEGINNING, 0])
async def test_it_reads_from_the_beginning(world: World, offset: int) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    reader = await world.reader(topic, {0: offset})
    assert reader.next_offset(0) == 0
    assert numbers(await read_up(reader)) == [0, 1, 2, 3, 4]


async def test_it_reads_from_an_offset_in_the_middle(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    reader = await world.reader(topic, {0: 3})
    assert reader.next_offset(0) == 3
    assert numbers(await read_up(reader)) == [3, 4]


async def test_it_reads_from_the_end(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    (end,) = await world.brokers().ends(topic, [0])
    reader = await world.reader(topic, {0: end.offset})
    assert await read_up(reader) == []
    await written(world, topic, 2, first=5)
    assert numbers(await read(reader, 2)) == [5, 6]


async def test_an_offset_beyond_the_end_means_the_beginning(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    reader = await world.reader(topic, {0: 7})  # the log ends at 6: a marker is its last
    assert reader.next_offset(0) == 0
    assert numbers(await read_up(reader)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("offset", [BEGINNING, 1])
async def test_an_offset_before_the_start_of_the_log_means_its_start(world: World, offset: int) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    await world.delete_records(topic, 0, 3)
    reader = await world.reader(topic, {0: offset})
    assert reader.next_offset(0) == 3
    assert numbers(await read_up(reader)) == [3, 4]


async def test_an_offset_inside_a_log_that_no_longer_starts_at_zero(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    await world.delete_records(topic, 0, 3)
    assert numbers(await read_up(await world.reader(topic, {0: 4}))) == [4]


async def test_without_partitions_it_rests(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    reader = await world.port.reader(world.config(), topic)
    assert await reader.read(0.2) == []
    assert reader.caught_up
    await reader.seek({0: BEGINNING})
    assert not reader.caught_up
    await reader.seek({})
    assert reader.caught_up
    assert await reader.read(0.2) == []
    await reader.seek({0: 2})
    assert numbers(await read_up(reader)) == [2, 3, 4]
    await reader.close()


async def test_seek_again_forgets_where_it_was(world: World) -> None:
    """What had come for the old place, and has not been returned yet, does not appear."""
    topic = await world.topic(2)
    await written(world, topic, MAX_READ + 500, partitions=2)
    reader = await world.reader(topic, {0: BEGINNING, 1: BEGINNING})
    assert len(await read(reader, 1)) <= MAX_READ
    for partition, offset in ((0, 10), (1, 20), (0, 0)):
        await reader.seek({partition: offset})
        found = await read_up(reader)
        assert {entry.partition for entry in found} == {partition}
        assert numbers(found, partition) == list(range(offset, MAX_READ + 500))


async def test_it_reads_several_partitions_each_from_its_place(world: World) -> None:
    topic = await world.topic(4)
    await written(world, topic, 50, partitions=4)
    reader = await world.reader(topic, {0: 10, 2: BEGINNING, 3: 45})
    found = await read_up(reader)
    assert {p: numbers(found, p) for p in range(4)} == {
        0: list(range(10, 50)),
        1: [],
        2: list(range(50)),
        3: list(range(45, 50)),
    }


async def test_one_read_returns_no_more_than_the_limit(world: World) -> None:
    topic, count = await world.topic(), 3 * MAX_READ
    await written(world, topic, count)
    reader = await world.reader(topic)
    sizes: list[int] = []
    found: list[InRecord] = []
    while len(found) < count:
        some = await reader.read(1.0)
        sizes.append(len(some))
        found += some
    assert max(sizes) <= MAX_READ
    assert numbers(found) == list(range(count))


async def test_an_empty_partition_is_caught_up_with(world: World) -> None:
    topic = await world.topic(2)
    reader = await world.reader(topic, {0: BEGINNING, 1: BEGINNING})
    assert await read_up(reader) == []


async def test_it_has_not_caught_up_before_it_has_read(world: World) -> None:
    topic = await world.topic(2)
    await written(world, topic, 5, partitions=2)
    reader = await world.reader(topic, {0: BEGINNING, 1: BEGINNING})
    assert not reader.caught_up
    assert len(await read_up(reader)) == 10
    await written(world, topic, 5)
    assert len(await read(reader, 5)) == 5
    assert reader.caught_up


async def test_it_catches_up_with_a_log_that_never_stops_growing(world: World) -> None:
    """What stood there at `seek` counts: it does not wait for a pause."""
    topic, session = await world.topic(), await world.session()
    written, ends = 0, False

    async def write() -> None:
        nonlocal written
        while not ends:
            await session.commit([OutRecord(topic, 0, b"k", b"%d" % written, [])])
            written += 1

    writing = asyncio.create_task(write())
    await eventually(lambda: written >= 20, "records")
    reader = await world.reader(topic)
    behind = written
    found: list[InRecord] = []
    while not reader.caught_up:
        found += await reader.read(0.1)
        assert len(found) < 20 * behind  # it waits for a pause
    ends = True
    await writing
    assert numbers(found) == list(range(len(found)))
    assert len(found) >= 20


async def test_the_next_offset_is_behind_what_was_read_and_not_behind_what_comes(world: World) -> None:
    topic = await world.topic()
    reader = await world.reader(topic)
    for number in range(3):
        before = reader.next_offset(0)
        world.produce(topic, 0, b"k", b"%d" % number)
        (found,) = await read(reader, 1)
        assert before <= found.offset < reader.next_offset(0)
        again = await world.reader(topic, {0: reader.next_offset(0)})
        assert await read_up(again) == []


async def test_a_read_of_nothing_ends_in_time(world: World) -> None:
    loop, topic = asyncio.get_running_loop(), await world.topic()
    reader = await world.reader(topic)
    await read_up(reader)
    begin = loop.time()
    assert await reader.read(0.5) == []
    assert loop.time() - begin < 0.5 + IN_TIME


async def test_two_readers_of_a_topic_do_not_share_it(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    one, other = await world.reader(topic), await world.reader(topic)
    assert numbers(await read_up(one)) == numbers(await read_up(other)) == [0, 1, 2, 3, 4]


async def test_close_waits_for_the_read_under_way(world: World) -> None:
    topic = await world.topic()
    reader = await world.reader(topic)
    await read_up(reader)
    reading = asyncio.create_task(reader.read(1.0))
    await asyncio.sleep(0)  # in which it begins
    await written(world, topic, 3)
    await reader.close()
    assert reading.done()
    assert numbers(await reading) in ([], [0, 1, 2])
    await reader.close()


async def test_calls_of_a_reader_run_in_the_order_in_which_they_were_begun(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 20)
    reader = await world.reader(topic)
    for begin in range(5):
        await asyncio.gather(*(reader.seek({0: begin + i}) for i in range(8)))
        assert reader.next_offset(0) == begin + 7
    assert numbers(await read_up(reader)) == list(range(11, 20))


async def cancelled(task: asyncio.Task[list[InRecord]]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_read_that_is_cancelled_does_not_disturb_what_is_sought_next(world: World) -> None:
    topic = await world.topic(2)
    await written(world, topic, 50, partitions=2)
    reader = await world.reader(topic, {0: BEGINNING})
    reading = asyncio.create_task(reader.read(1.0))
    await asyncio.sleep(0)  # in which it begins
    await cancelled(reading)
    await reader.seek({1: 20, 0: 10})
    assert (reader.next_offset(0), reader.next_offset(1)) == (10, 20)
    assert not reader.caught_up
    found = await read_up(reader)
    assert (numbers(found, 0), numbers(found, 1)) == (list(range(10, 50)), list(range(20, 50)))


async def test_after_a_read_that_was_cancelled_the_next_one_goes_on_without_a_gap(world: World) -> None:
    """What the cancelled one has taken may be lost."""
    topic = await world.topic()
    await written(world, topic, 50)
    reader = await world.reader(topic)
    reading = asyncio.create_task(reader.read(1.0))
    await asyncio.sleep(0)  # in which it begins
    await cancelled(reading)
    assert numbers(await reader.read(0)) in ([], list(range(50)))  # it has waited for the end of the other
    await written(world, topic, 5, first=50)
    found: list[int] = []

    async def whole() -> bool:
        found.extend(numbers(await reader.read(0.1)))
        return found[-1:] == [54]

    await eventually(whole, "the last record")
    assert found == list(range(found[0], 55))


async def test_a_topic_that_is_deleted_gives_no_more_records(world: World) -> None:
    """The id of the topic tells it from one that nobody writes to."""
    topic, brokers = await world.topic(), world.brokers()
    await written(world, topic, 5)
    reader = await world.reader(topic)
    await read_up(reader)
    await world.delete_topic(topic)
    for _ in range(3):
        assert await reader.read(0.2) == []
    with pytest.raises(KafkaUnavailable):
        await brokers.state(topic)


async def test_a_topic_that_is_made_again_and_is_shorter_ends_the_reading(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    reader = await world.reader(topic)
    await read_up(reader)
    await world.recreate_topic(topic)
    with pytest.raises(KafkaUnusable) as failed:
        await read(reader, 1)
    assert not isinstance(failed.value, KafkaUnavailable)
    await reader.seek({0: BEGINNING})
    await written(world, topic, 2)
    assert numbers(await read(reader, 2)) == [0, 1]


async def test_who_reads_a_topic_that_is_made_again_does_not_wait_for_what_was_there(world: World) -> None:
    """It has caught up with what stands there now, unless the reading ends."""
    topic = await world.topic()
    await written(world, topic, 5)
    reader = await world.reader(topic, {})
    await reader.seek({0: 0})
    await world.recreate_topic(topic)

    async def ended() -> bool:
        try:
            await reader.read(0.1)
        except KafkaUnusable:
            return True
        return reader.caught_up

    await eventually(ended, "the end")


async def test_records_that_are_deleted_before_they_were_read_are_not_skipped(world: World) -> None:
    """What had come before they were deleted is returned; or the reading ends."""
    topic = await world.topic()
    reader = await world.reader(topic, {})
    await written(world, topic, 5)
    await reader.seek({0: 0})
    await world.delete_records(topic, 0, 3)
    found: list[int] = []

    async def ended() -> bool:
        try:
            found.extend(numbers(await reader.read(0.1)))
        except KafkaUnusable:
            return True
        return len(found) > 0

    await eventually(ended, "records or the end")
    assert found in ([], [0, 1, 2, 3, 4])
    await reader.seek({0: BEGINNING})
    assert numbers(await read_up(reader)) == [3, 4]


async def test_a_topic_that_does_not_exist_cannot_be_sought(world: World) -> None:
    port = await world.node(1.0)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    reader = await port.reader(world.config(), f"{world.prefix}-none")
    with pytest.raises(KafkaUnavailable):
        await reader.seek({0: BEGINNING})
    assert loop.time() - begin < 2.0 + IN_TIME
    await reader.close()


async def test_after_a_seek_that_failed_another_works(world: World) -> None:
    topic = await world.topic()
    await written(world, topic, 5)
    reader = await world.reader(topic, {0: 1}, await world.node(1.0))
    with pytest.raises(KafkaUnavailable):
        await reader.seek({0: 4, 1: BEGINNING})
    assert numbers(await read(reader, 4)) == [1, 2, 3, 4]  # it is where it was
    await reader.seek({0: 2})
    assert numbers(await read_up(reader)) == [2, 3, 4]


@pytest.mark.needs("lose_clients")
async def test_a_reader_whose_client_reads_no_further_goes_on_with_a_new_one(world: World) -> None:
    topic = await world.topic(2)
    await written(world, topic, 3, 2)
    reader = await world.reader(topic, {0: BEGINNING, 1: BEGINNING})
    await read_up(reader)
    world.lose_clients()
    await written(world, topic, 2, 2, first=3)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    found = await read(reader, 4)
    assert loop.time() - begin < 2 * 2 + IN_TIME
    assert (numbers(found, 0), numbers(found, 1)) == ([3, 4], [3, 4])


async def test_the_looks_at_the_ends_of_many_partitions_hold_up_no_record(world: World) -> None:
    """Where nothing comes, a question waits behind the request for records; one for each partition added up."""
    topic = await world.topic(64)
    reader = await world.reader(topic, dict.fromkeys(range(64), BEGINNING))
    await read_up(reader)
    loop = asyncio.get_running_loop()
    until, longest = loop.time() + STALL_SECONDS, 0.0
    while (begin := loop.time()) < until:
        await reader.read(0.1)
        longest = max(longest, loop.time() - begin)
    assert longest < IN_TIME / 2
