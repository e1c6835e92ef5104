"""A restart is a new shell around the old core: what is under way ends unanswered, and nothing is lost by it.

Tried here: a commit whose answer never comes, a scan that somebody's open transaction holds up, a fence under way, an
end in the middle, a configuration that does not work. `tests/connector/seeds` draws the moments of many more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka_port import OutRecord
from deelog_connector.runtime.lifecycle import State
from deelog_schemas.config import Config, parse
from deelog_schemas.errors import RecordError
from deelog_schemas.header import Kind
from tests.connector.runtime.clusters import Clusters, sound, until, write
from tests.connector.seeds.cluster import CHANGES, PARTITIONS, SEGMENTS, Node


def changed(node: Node, **fields: str) -> Callable[[], Config]:
    config = parse({**node.config.raw, **{name.replace("_", "."): text for name, text in fields.items()}})
    return lambda: config


@pytest.mark.parametrize("before", [True, False])
def test_a_commit_that_is_not_answered_is_not_waited_for(cluster_of: Clusters, before: bool) -> None:
    """The coordinator of this node's transactions goes away, before or behind the commit."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    mine = node.config.topics.transactional_id_node("n0")
    (cluster.kafka.uncoordinated if before else cluster.kafka.silent).add(mine)
    commits = cluster.kafka.counts["commits"]
    write(cluster)
    until(cluster, lambda: bool(node.core._transactions.segments))
    if not before:
        until(cluster, lambda: cluster.kafka.counts["commits"] > commits)
        cluster.kafka.uncoordinated.add(mine)
    asked = node.ask(node.lifecycle.restart())
    until(cluster, asked.done)
    assert asked.exception() is None
    assert mine in cluster.kafka.uncoordinated
    assert node.core.unwritten() > 0
    cluster.kafka.uncoordinated.clear()
    write(cluster)
    sound(cluster)


def test_a_scan_that_a_strangers_transaction_holds_up_is_begun_anew(cluster_of: Clusters) -> None:
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    for partition in range(PARTITIONS):
        cluster.kafka.init(f"s{partition}")
        cluster.kafka.append(
            f"s{partition}", cluster.kafka.init(f"s{partition}"), [OutRecord(CHANGES, partition, b"x", None, [])]
        )
    for segment in range(SEGMENTS):
        cluster.own(segment, second, first)
    until(cluster, lambda: not second.core._scans.idle)
    asked = second.ask(second.lifecycle.restart())
    until(cluster, asked.done)
    assert second.lifecycle.state is State.RUNNING
    for partition in range(PARTITIONS):
        cluster.kafka.init(f"s{partition}")
    write(cluster)
    sound(cluster)


def test_what_hides_records_keeps_no_reader_from_other_partitions(cluster_of: Clusters) -> None:
    """A stranger holds up all partitions but one, whose segment is taken over last."""
    cluster = cluster_of(2, **{"topic.creation.default.partitions": str(SEGMENTS)})
    first, second = cluster.nodes.values()
    *held, well = first.core.primaries()
    stranger = cluster.kafka.init("s")
    cluster.kafka.append("s", stranger, [OutRecord(CHANGES, segment.partition, b"x", None, []) for segment in held])
    for segment in held:
        cluster.own(segment.number, second, first)
    cluster.run(5.0)
    began = cluster.engine.now
    cluster.own(well.number, second, first)
    until(cluster, lambda: second.core.phase(well.number) == "writing")
    assert cluster.engine.now - began < 3.0
    assert "writing" not in {second.core.phase(segment.number) for segment in held}
    until(cluster, lambda: cluster.at_rest)


def test_a_fence_under_way_is_carried_out_by_the_next_shell(cluster_of: Clusters) -> None:
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    first.loop.kill()
    cluster.kafka.uncoordinated.add(first.config.topics.transactional_id_node("n0"))
    for segment in range(SEGMENTS):
        cluster.own(segment, second)
    until(cluster, lambda: bool(second.core._fencing._under_way))
    asked = second.ask(second.lifecycle.restart())
    until(cluster, asked.done)
    assert second.core.unwritten() > 0
    cluster.kafka.uncoordinated.clear()
    cluster.restart(first)
    sound(cluster)


def test_a_restart_whose_kafka_goes_away_meanwhile_waits_for_it(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    shell = node.connector._shell
    asked = node.ask(node.lifecycle.restart())
    until(cluster, lambda: node.connector._shell is not shell)
    cluster.kafka.up = False
    write(cluster)
    cluster.run(60.0)
    assert (node.lifecycle.state, asked.done()) == (State.RESTARTING, False)
    cluster.kafka.up = True
    until(cluster, asked.done)
    assert asked.exception() is None
    sound(cluster)


@pytest.mark.parametrize("right", ["Write", "Read"])
def test_a_right_that_is_taken_away_before_a_restart_is_waited_for(cluster_of: Clusters, right: str) -> None:
    """It ends a process that has never had it: that holds no cache yet."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    asked = node.ask(node.lifecycle.restart())
    until(cluster, lambda: bool(node.core._transactions.segments) or asked.done())
    cluster.kafka.denied.add((right, CHANGES))
    write(cluster)
    cluster.run(20.0)
    assert asked.done()
    assert node.core.unwritten() > 0
    assert node.lifecycle.state is State.RUNNING
    cluster.kafka.denied.clear()
    sound(cluster)


def test_a_stop_while_a_session_is_being_opened_does_not_wait_for_it(cluster_of: Clusters) -> None:
    """It was paused before: there is nothing to write first."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    cluster.kafka.uncoordinated.add(node.config.topics.transactional_id_node("n0"))
    until(cluster, node.ask(node.lifecycle.restart()).done)
    until(cluster, node.ask(node.lifecycle.pause()).done)
    assert not node.core.idle
    stopping = node.ask(node.lifecycle.stop())
    until(cluster, stopping.done)
    assert stopping.exception() is None
    assert node.lifecycle.state is State.STOPPED
    cluster.kafka.uncoordinated.clear()
    until(cluster, node.ask(node.lifecycle.resume()).done)
    write(cluster)
    sound(cluster)


def test_a_writer_that_waits_for_room_goes_on_as_soon_as_there_is_some(cluster_of: Clusters) -> None:
    cluster = cluster_of(max_queue_size=1, max_block_ms=60_000)
    (node,) = cluster.nodes.values()
    write(cluster, 1)
    begun, waiting = cluster.engine.now, node.ask(node.connector.make_room(0, 1))
    until(cluster, waiting.done)
    assert cluster.engine.now < begun + 10
    assert node.core.counts.overflow["block"] > 0
    sound(cluster)


def test_writers_that_give_up_and_come_again_wait_once_for_room(cluster_of: Clusters) -> None:
    """A client's command is answered with an error after 5 s: it comes again, and the log is still full."""
    cluster = cluster_of(max_queue_size=1, max_block_ms=12_000)
    (node,) = cluster.nodes.values()
    cluster.kafka.up = False
    write(cluster, 1)
    begun, tries = cluster.engine.now, 0
    while not node.core.counts.overflow["reset"]:
        tries += 1

        async def asked() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await node.connector.make_room(0, 1)

        until(cluster, node.ask(asked()).done)
        assert tries < 9
    assert tries == 3
    assert cluster.engine.now - begun == pytest.approx(12, abs=0.5)
    for resets in (2, 3):
        write(cluster, 1)
        before = cluster.engine.now
        until(cluster, node.ask(node.connector.make_room(0, 1)).done)
        assert cluster.engine.now == pytest.approx(before, abs=0.1)  # once in an outage
        assert node.core.counts.overflow["reset"] == resets
    cluster.kafka.up = True
    until(cluster, lambda: cluster.at_rest)
    write(cluster)
    sound(cluster, overflow=1)
    cluster.kafka.up = False
    write(cluster, 1)
    before, again = cluster.engine.now, node.ask(node.connector.make_room(0, 1))
    until(cluster, again.done)
    assert cluster.engine.now - before == pytest.approx(12, abs=0.5)
    cluster.kafka.up = True
    until(cluster, lambda: cluster.at_rest)
    sound(cluster, overflow=2)


def test_what_does_not_work_changes_nothing(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    shell, sessions = node.connector._shell, node.core.counts.transactions
    cluster.kafka.up = False
    asked = node.ask(node.lifecycle.configure(changed(node, max_batch_size="7")))
    until(cluster, asked.done)
    assert isinstance(asked.exception(), KafkaUnavailable)
    cluster.kafka.up = True
    assert node.connector._shell is shell
    assert (node.lifecycle.state, node.core.settings.max_batch_size) == (State.RUNNING, 8192)
    write(cluster)
    sound(cluster)
    assert node.core.counts.transactions > sessions


@pytest.mark.parametrize("replaced", [True, False])
def test_an_end_while_a_restart_waits_for_kafka_does_not_wait(cluster_of: Clusters, replaced: bool) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    shell = node.connector._shell
    restarting = node.ask(node.lifecycle.restart())
    if replaced:
        until(cluster, lambda: node.connector._shell is not shell)
    cluster.kafka.up = False
    cluster.run(1.0)
    ending = node.ask(node.connector.stop(release=False))
    until(cluster, ending.done)
    assert ending.exception() is None
    until(cluster, restarting.done)
    assert [task for task in node.loop._tasks if not task.done()] == []


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_an_end_in_the_middle_of_a_restart_writes_what_was_captured(
    cluster_of: Clusters, turns: int, in_order: bool
) -> None:
    """At whatever turn of the loop: the segments are released, and the next process resets none."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    restarting = node.ask(node.lifecycle.restart())
    for _ in range(turns):
        cluster.engine.step()

    async def end() -> None:
        if in_order:
            await node.lifecycle.end()
        await node.connector.stop()

    ending = node.ask(end())
    until(cluster, ending.done)
    assert ending.exception() is None
    until(cluster, restarting.done)
    cluster.run(1.0)
    assert [task for task in node.loop._tasks if not task.done()] == [], "a client was left open"
    cluster.restart(node)
    (again,) = cluster.nodes.values()
    until(cluster, again.starting.done)
    assert again.core.highest_claim() == node.core.highest_claim(), "it has read the positions topic"
    again.cache = node.cache
    for segment in range(SEGMENTS):
        again.core.install(segment, node.core.history(segment), node.core.last_sequence(segment))
        cluster.own(segment, again)
    sound(cluster)


def test_formats_transforms_topics_and_limits_are_those_of_the_new_configuration(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    one = changed(
        node,
        value_converter_schemas_enable="true",
        skipped_operations="c",
        notification_sink_topic_name="notes",
        signal_kafka_topic="other",
        max_batch_size="7",
    )
    for _ in range(3):  # the other topic is not read on from where this one was
        cluster.kafka.logs["p-signal", 0].append(OutRecord("p-signal", 0, b"x", b"{}", []), None)
    until(cluster, lambda: node.connector.signals.counts["other"] == 3)
    asked = node.ask(node.lifecycle.configure(one))
    until(cluster, asked.done)
    assert asked.exception() is None
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    assert (node.core.settings.max_batch_size, node.core.settings.may_skip) == (7, True)
    assert node.connector.stats.filtered == 40
    assert all(record.header.kind is not Kind.CHANGE for record in cluster.records())
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    changes = [record for record in cluster.records() if record.header.kind is Kind.CHANGE]
    assert len(changes) == 40
    assert all(b'"schema"' in (record.value or b"") for record in changes)
    signal = b'{"id":"r","type":"reset-segment","data":{"cache":"c","segments":[0]}}'
    cluster.kafka.logs["other", 0].append(OutRecord("other", 0, b"p", signal, []), None)
    until(cluster, lambda: node.core.counts.resets["signal"] == 1)
    until(cluster, lambda: len(cluster.kafka.logs["notes", 0].slots) > 0)


def test_signals_on_another_topic_are_read_from_its_beginning(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    cluster.kafka.create("other", 1)
    for topic, value in (("other", b'{"id":"p","type":"pause-writing","data":{}}'), ("p-signal", b"{}")):
        cluster.kafka.logs[topic, 0].append(OutRecord(topic, 0, b"p", value, []), None)
    until(cluster, lambda: node.connector.signals.counts["malformed"] == 1)
    asked = node.ask(node.lifecycle.configure(changed(node, signal_kafka_topic="other")))
    until(cluster, asked.done)
    assert str(node.lifecycle.state) == "PAUSED"
    asked = node.ask(node.lifecycle.resume())
    until(cluster, asked.done)
    asked = node.ask(node.lifecycle.restart())
    until(cluster, asked.done)
    assert str(node.lifecycle.state) == "RUNNING", "what was read is not read again"


@pytest.mark.parametrize("restarted", [False, True])
def test_signals_are_read_on_when_the_right_is_back(cluster_of: Clusters, restarted: bool) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    if restarted:
        until(cluster, node.ask(node.lifecycle.restart()).done)
    cluster.kafka.denied.add(("Read", "p-signal"))
    cluster.run(30.0)
    assert not node.connector.failure.done()
    cluster.kafka.denied.clear()
    cluster.kafka.logs["p-signal", 0].append(OutRecord("p-signal", 0, b"foreign", b"{}", []), None)
    until(cluster, lambda: node.connector.signals.counts["other"] == 1)
    sound(cluster)


def test_a_start_knows_the_topic_and_its_ends_and_watches_them(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    cluster.restart(node)
    (again,) = cluster.nodes.values()
    until(cluster, again.starting.done)
    ends = [len(cluster.kafka.logs[CHANGES, partition].slots) for partition in range(PARTITIONS)]
    assert [again.core.end_of(partition)[0] for partition in range(PARTITIONS)] == ends
    assert again.connector.observed.kafka_problem(again.port.clock.monotonic()) is None
    cluster.kafka.recreate(CHANGES)
    for segment in range(SEGMENTS):
        cluster.own(segment, again)
    until(cluster, lambda: again.core.counts.resets["topic_recreated"] > 0)
    cluster.kafka.recreate(CHANGES)
    asked = again.ask(again.lifecycle.restart())
    until(cluster, asked.done)
    before = again.core.counts.resets["topic_recreated"]
    until(cluster, lambda: again.core.counts.resets["topic_recreated"] > before)
    until(cluster, lambda: cluster.at_rest)
    assert cluster.differences() == []


def test_a_first_start_that_fails_closes_everything(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    topic = f"{CHANGES}.positions"
    cluster.kafka.logs[topic, 0].append(OutRecord(topic, 0, b"position/1", b"{}", []), None)
    cluster.restart(node)
    (again,) = cluster.nodes.values()
    until(cluster, again.starting.done)
    assert isinstance(again.starting.exception(), RecordError)
    assert isinstance(again.connector.failure.exception(), RecordError)
    assert [task for task in again.loop._tasks if not task.done()] == []
    until(cluster, lambda: node.connector.failure.done())  # it reads that, too
    assert isinstance(node.connector.failure.exception(), RecordError)
