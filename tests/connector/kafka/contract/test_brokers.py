"""What is asked about topics."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka_port import BEGINNING, Brokers, OutRecord, PartitionEnd
from deelog_schemas.config import Config
from tests.connector.kafka.contract.world import IN_TIME, World, eventually, read


async def committed(world: World, topic: str, *partitions: int) -> None:
    """A transaction with a record in each."""
    session = await world.session("writer")
    await session.commit([OutRecord(topic, partition, b"k", b"v", []) for partition in partitions])
    await world.settled(topic)


async def test_ensure_creates_a_topic_with_its_partitions_and_settings(world: World) -> None:
    topic, brokers = f"{world.prefix}-new", world.brokers()
    await brokers.ensure(topic, 3, {"cleanup.policy": "compact", "retention.ms": "123456"})
    assert (await brokers.settings(topic))["cleanup.policy"] == "compact"
    assert (await brokers.settings(topic))["retention.ms"] == "123456"
    await committed(world, topic, 0, 1, 2)
    assert [(end.partition, end.offset) for end in await brokers.ends(topic, range(3))] == [(0, 2), (1, 2), (2, 2)]


async def test_ensure_leaves_a_topic_that_exists_as_it_is(world: World) -> None:
    topic, brokers = f"{world.prefix}-new", world.brokers()
    await brokers.ensure(topic, 2, {"retention.ms": "123456"})
    known = (await brokers.state(topic)).topic_id
    await committed(world, topic, 1)
    await brokers.ensure(topic, 2, {"retention.ms": "654321"})
    assert (await brokers.settings(topic))["retention.ms"] == "123456"
    assert (await brokers.state(topic)).topic_id == known
    assert len(await read(await world.reader(topic, {1: BEGINNING}), 1)) == 1


async def test_ensure_of_two_nodes_at_once_makes_one_topic(world: World) -> None:
    topic = f"{world.prefix}-new"
    ports = [await world.node() for _ in range(4)]
    several = [world.brokers(port) for port in ports]
    await asyncio.gather(*(brokers.ensure(topic, 2, {}) for brokers in several))
    assert len({(await brokers.state(topic)).topic_id for brokers in several}) == 1


@pytest.mark.parametrize("asked", [1, 3])
async def test_ensure_refuses_another_number_of_partitions(world: World, asked: int) -> None:
    topic, brokers = await world.topic(2), world.brokers()
    with pytest.raises(KafkaUnusable, match=f"{topic} has 2 partitions") as failed:
        await brokers.ensure(topic, asked, {})
    assert not isinstance(failed.value, KafkaUnavailable)


async def test_ensure_without_a_number_takes_any_and_makes_one_partition(world: World) -> None:
    old, new, brokers = await world.topic(3), f"{world.prefix}-new", world.brokers()
    await brokers.ensure(old, None, {})
    await brokers.ensure(new, None, {})
    await brokers.ensure(new, 1, {})


async def test_ensure_reports_settings_that_no_topic_can_have(world: World) -> None:
    brokers = world.brokers()
    with pytest.raises(KafkaUnusable) as failed:
        await brokers.ensure(f"{world.prefix}-new", 1, {"retention.ms": "soon"})
    assert not isinstance(failed.value, KafkaUnavailable)


async def are_members(brokers: Brokers, config: Config, *names: str) -> None:
    """Returns once these are in the controller's group. The first group of a broker takes a moment."""

    async def now() -> bool:
        try:
            return await brokers.members(config.topics.controller_group) == set(names)
        except KafkaUnavailable:
            return False

    await eventually(now, f"the members {names}")


async def test_the_members_of_a_group_are_those_that_have_joined_and_not_left(world: World) -> None:
    brokers, config = world.brokers(), world.config()
    await are_members(brokers, config)
    await brokers.ensure(config.topics.topology, 1, {})
    port = await world.node()
    elections = [port.election(config, member, lambda elected: None, lambda error: None) for member in ("a@1", "b@2")]
    for election in elections:
        election.start()
    await are_members(brokers, config, "a@1", "b@2")
    await elections[0].stop()
    await are_members(brokers, config, "b@2")
    await elections[1].stop()
    await are_members(brokers, config)


async def test_who_leaves_a_group_without_having_been_elected_is_gone(world: World) -> None:
    """With sessions of two minutes: a member that is gone must not be assigned the seat until its own is over."""
    brokers, config = world.brokers(), world.config(cache_failure_timeout_ms=40_000)
    await brokers.ensure(config.topics.topology, 1, {})
    port, told = await world.node(), dict[str, bool]()
    members = {name: port.election(config, name, partial(told.__setitem__, name), lambda error: None) for name in "ab"}
    for member in members.values():
        member.start()
    await are_members(brokers, config, "a", "b")
    await eventually(lambda: any(told.values()), "an election")
    (other,) = (name for name in members if not told.get(name))
    await members.pop(other).stop()
    await are_members(brokers, config, *members)
    for member in members.values():
        await member.stop()


async def test_who_leaves_a_group_while_another_joins_it_is_gone(world: World) -> None:
    brokers, config = world.brokers(), world.config(cache_failure_timeout_ms=40_000)
    await brokers.ensure(config.topics.topology, 1, {})
    port = await world.node()
    members = [port.election(config, member, lambda elected: None, lambda error: None) for member in "abc"]
    for member in members[:2]:
        member.start()
    await are_members(brokers, config, "a", "b")
    members[2].start()
    await are_members(brokers, config, "a", "b", "c")  # at once, while the others have not heard of it
    await members[0].stop()
    await are_members(brokers, config, "b", "c")
    for member in members[1:]:
        await member.stop()


async def test_who_stands_aside_stays_a_member_and_is_elected_later(world: World) -> None:
    brokers, config, loop = world.brokers(), world.config(), asyncio.get_running_loop()
    await brokers.ensure(config.topics.topology, 1, {})
    await brokers.ensure(config.topics.positions, 2, {})
    port = await world.node()
    told: dict[str, list[bool]] = {"a": [], "b": []}
    first, second = (port.election(config, name, told[name].append, lambda error: None) for name in "ab")
    first.start()
    await eventually(lambda: told["a"] == [True], "the first to be elected")
    second.start()
    await are_members(brokers, config, "a", "b")
    began = loop.time()
    first.rejoin(aside=8.0)
    await eventually(lambda: told["b"] == [True], "the second to be elected")
    await are_members(brokers, config, "a", "b")
    await second.stop()
    await eventually(lambda: told["a"].count(True) == 2, "the first to be elected again")
    assert loop.time() - began >= 8.0
    await first.stop()


async def test_a_setting_that_was_not_given_is_the_default(world: World) -> None:
    topic, brokers = await world.topic(max_message_bytes="20000"), world.brokers()
    settings = await brokers.settings(topic)
    assert (settings["max.message.bytes"], settings["cleanup.policy"]) == ("20000", "delete")
    assert (settings["unclean.leader.election.enable"], settings["min.insync.replicas"]) == ("false", "1")
    assert (settings["segment.bytes"], settings["segment.ms"]) == ("1073741824", "604800000")


async def test_a_topic_that_does_not_exist_has_no_setting(world: World) -> None:
    with pytest.raises(KafkaUnavailable):
        await world.brokers().settings(f"{world.prefix}-none")


async def test_a_topic_that_does_not_exist_has_no_id(world: World) -> None:
    with pytest.raises(KafkaUnavailable):
        await world.brokers().state(f"{world.prefix}-none")


async def test_a_topic_that_was_made_again_has_another_id(world: World) -> None:
    topic, other, brokers = await world.topic(), await world.topic(), world.brokers()
    before = (await brokers.state(topic)).topic_id
    assert (await brokers.state(topic)).topic_id == before
    assert (await brokers.state(other)).topic_id != before
    await world.recreate_topic(topic)
    assert (await brokers.state(topic)).topic_id != before


async def test_the_end_of_an_empty_partition_is_zero(world: World) -> None:
    topic = await world.topic(3)
    found = await world.brokers().ends(topic, [2, 0])
    assert sorted((end.partition, end.offset) for end in found) == [(0, 0), (2, 0)]


async def test_no_partitions_have_no_ends(world: World) -> None:
    assert await world.brokers().ends(await world.topic(), []) == []


async def test_the_end_moves_when_a_transaction_ends(world: World) -> None:
    topic, brokers = await world.topic(2), world.brokers()
    await committed(world, topic, 0)
    stranger = world.stranger(world.identity("other"))
    stranger.write(topic, 0, b"open")
    stranger.write(topic, 0, b"open")
    session = await world.session("writer")
    await session.commit([OutRecord(topic, partition, b"k", b"v", []) for partition in (0, 1)])

    async def of_the_other() -> bool:
        return [end.offset for end in await brokers.ends(topic, [1])] == [2]

    await eventually(of_the_other, "the end of a partition without open transaction")
    assert [end.offset for end in await brokers.ends(topic, [0, 1])] == [2, 2]
    hidden, _ = sorted(await brokers.ends(topic, [0, 1], committed=False))
    assert hidden.offset == 6
    assert await brokers.still_holds(topic, hidden), "what an open transaction hides is there"
    assert not await brokers.still_holds(topic, PartitionEnd(0, hidden.offset + 1, hidden.leader_epoch))
    stranger.commit()
    await world.settled(topic)
    for committed_alone in (True, False):
        assert [end.offset for end in await brokers.ends(topic, [0, 1], committed_alone)] == [7, 2]


async def test_ends_tell_a_leader_epoch_that_stays(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    await committed(world, topic, 0)
    (first,) = await brokers.ends(topic, [0])
    await committed(world, topic, 0)
    (second,) = await brokers.ends(topic, [0])
    assert second.leader_epoch == first.leader_epoch >= 0


async def test_a_topic_or_partition_that_does_not_exist_has_no_end(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers(await world.node(1.0))
    for asked, partitions in ((topic, [0, 1]), (f"{world.prefix}-none", [0])):
        with pytest.raises(KafkaUnavailable):
            await brokers.ends(asked, partitions)


async def test_a_log_holds_what_it_held(world: World) -> None:
    topic, brokers = await world.topic(2), world.brokers()
    (empty,) = await brokers.ends(topic, [1])
    await committed(world, topic, 0)
    (first,) = await brokers.ends(topic, [0])
    await committed(world, topic, 0)
    (second,) = await brokers.ends(topic, [0])
    for end in (empty, first, second):
        assert await brokers.still_holds(topic, end)


async def test_a_log_does_not_hold_what_is_beyond_its_end(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    await committed(world, topic, 0)
    (end,) = await brokers.ends(topic, [0])
    assert not await brokers.still_holds(topic, PartitionEnd(0, end.offset + 1, end.leader_epoch))


async def test_a_log_does_not_hold_what_was_deleted(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    await committed(world, topic, 0)
    (end,) = await brokers.ends(topic, [0])
    await committed(world, topic, 0)
    await world.delete_records(topic, 0, end.offset)
    assert await brokers.still_holds(topic, end)  # the record at this offset is the first
    await world.delete_records(topic, 0, end.offset + 1)
    assert not await brokers.still_holds(topic, end)


async def test_a_topic_that_was_made_again_does_not_hold_what_the_old_one_held(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    await committed(world, topic, 0)
    (end,) = await brokers.ends(topic, [0])
    await world.recreate_topic(topic)
    assert not await brokers.still_holds(topic, end)


@pytest.mark.needs("unclean_election")
@pytest.mark.parametrize("grown", [False, True])
async def test_an_unclean_election_loses_records_even_where_the_log_has_grown_again(world: World, grown: bool) -> None:
    topic, brokers = await world.topic(), world.brokers()
    await committed(world, topic, 0)
    (kept,) = await brokers.ends(topic, [0])
    await committed(world, topic, 0)
    (lost,) = await brokers.ends(topic, [0])
    await world.unclean_election(topic, 0, kept.offset)
    if grown:
        for _ in range(3):
            await committed(world, topic, 0)
    (end,) = await brokers.ends(topic, [0])
    assert end.leader_epoch > lost.leader_epoch
    assert await brokers.still_holds(topic, kept)
    assert not await brokers.still_holds(topic, lost)
    assert await brokers.still_holds(topic, end)


async def test_a_topic_that_does_not_exist_is_not_answered_about(world: World) -> None:
    loop, brokers = asyncio.get_running_loop(), world.brokers(await world.node(1.0))
    begin = loop.time()
    with pytest.raises(KafkaUnavailable):
        await brokers.still_holds(f"{world.prefix}-none", PartitionEnd(0, 1, 0))
    assert loop.time() - begin < 1.0 + IN_TIME


async def test_after_close_a_call_connects_again(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    before = (await brokers.state(topic)).topic_id
    await brokers.close()
    await brokers.close()
    assert (await brokers.state(topic)).topic_id == before


async def test_several_calls_may_be_under_way(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    asked = [brokers.ends(topic, [0]) for _ in range(20)]
    assert [[end.offset for end in found] for found in await asyncio.gather(*asked)] == [[0]] * 20


async def test_close_while_a_call_is_under_way_takes_nothing_from_it(world: World) -> None:
    topic, brokers = await world.topic(), world.brokers()
    answers = await asyncio.gather(*(brokers.ends(topic, [0]) for _ in range(5)), brokers.close())
    assert [end.offset for found in answers[:-1] if found is not None for end in found] == [0] * 5
