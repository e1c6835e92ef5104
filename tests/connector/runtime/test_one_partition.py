"""A partition that takes no records holds up its own segments, and nobody else.

Tried here: either topic, without a leader, with one out of reach, or with too few replicas in sync, known at once or
late; a coordinator that is out of reach as well; at a start, under load, in a takeover, in a transaction that is
decided and one that is not; a process that dies and one that is paused while a partition is away. What Kafka does in
each case is seen by `tests/connector/kafka/contract/test_one_partition.py`.
"""

from __future__ import annotations

import pytest

from deelog_connector.core.effects import Cause
from deelog_connector.runtime.lifecycle import State
from deelog_schemas.keys import segment_of
from tests.connector.runtime.clusters import Clusters, sound, until, write
from tests.connector.seeds.cluster import CHANGES, SEGMENTS, Cluster, Node

POSITIONS = "p.c.positions"
KEYS = [b"k%d" % number for number in range(40)]
SICK = 1
SECONDS = 15.0
"""Within which those that are well go on: three look at an id that is held up, two at the partitions."""

sick = pytest.mark.parametrize(
    ("topic", "leader"), [(CHANGES, True), (CHANGES, False), (POSITIONS, True), (POSITIONS, False)]
)


told_late = pytest.mark.parametrize("topic", [CHANGES, POSITIONS])


def segments(cluster: Cluster, partition: int) -> set[int]:
    return {s.number for node in cluster.nodes.values() for s in node.core.primaries() if s.partition == partition}


def unwritten(node: Node, partition: int) -> int:
    """Operations on a partition that Kafka is not known to hold, of segments that are settled or not."""
    return sum(s.last_sequence - (s.written or 0) for s in node.core.primaries() if s.partition == partition)


def goes_on(cluster: Cluster) -> None:
    """What is well is written, and what is not waits."""
    write(cluster)
    began = cluster.engine.now
    nodes = [node for node in cluster.nodes.values() if node.loop.alive]
    until(cluster, lambda: all(unwritten(node, 1 - SICK) == 0 for node in nodes))
    assert cluster.engine.now - began < SECONDS
    assert sum(unwritten(node, SICK) for node in nodes) > 0


@sick
def test_its_segments_wait_and_all_others_go_on(cluster_of: Clusters, topic: str, leader: bool) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    cluster.kafka.lose(topic, SICK, leader)
    goes_on(cluster)
    goes_on(cluster)
    well, waiting = sorted(node.lifecycle.tasks(), key=lambda task: task.partition == SICK)
    assert (well.state, well.trace) == (State.RUNNING, None)
    assert waiting.state is State.FAILED
    assert waiting.trace == "partition 1 takes no records, or did so lately: see the log"
    cluster.kafka.recover(topic, SICK)
    sound(cluster)
    assert {task.state for task in node.lifecycle.tasks()} == {State.RUNNING}


@pytest.mark.parametrize("topic", [CHANGES, POSITIONS])
def test_one_that_a_node_does_not_reach_waits_there_alone(cluster_of: Clusters, topic: str) -> None:
    """The brokers reach its leader, and so does the other node, which takes over."""
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    write(cluster)
    first.port.way.unreached = {(topic, SICK)}
    goes_on(cluster)
    assert first.core.withheld == {SICK}
    assert not second.core.withheld
    for segment in segments(cluster, SICK):
        cluster.own(segment, second, first)
    write(cluster)
    until(cluster, lambda: unwritten(second, SICK) == 0)
    assert {second.core.phase(s) for s in segments(cluster, SICK)} == {"writing"}
    first.port.way.unreached = set()
    until(cluster, lambda: not first.core.withheld)
    write(cluster)
    sound(cluster)


@pytest.mark.parametrize("unreached", [set(), {(CHANGES, SICK)}, {(CHANGES, SICK), (POSITIONS, SICK)}], ids=len)
@pytest.mark.parametrize("silent", [True, False])
def test_the_coordinator_of_its_producer_may_be_away_with_it(
    cluster_of: Clusters, silent: bool, unreached: set[tuple[str, int]]
) -> None:
    """Or it alone; before a transaction ends, or after it has ended and nobody was told. The spare producer goes on."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    until(cluster, lambda: unwritten(node, SICK) == unwritten(node, 1 - SICK) == 0)
    mine = node.config.topics.transactional_id_node("n0")
    if silent:
        cluster.kafka.silent.add(mine)
        well = {s.number for s in node.core.primaries() if s.partition != SICK}
        assert cluster.put(next(key for key in KEYS if segment_of(key, SEGMENTS) in well), b"last")
        until(cluster, lambda: mine not in cluster.kafka.silent)
    cluster.kafka.uncoordinated.add(mine)
    node.port.way.unreached = unreached
    cluster.run(60.0)  # what it has left open ends with its time
    assert node.connector._shell.clients.session.spare
    if unreached:
        goes_on(cluster)
    node.port.way.unreached = set()
    write(cluster)
    until(cluster, lambda: unwritten(node, SICK) == unwritten(node, 1 - SICK) == 0)
    assert not node.core.withheld
    cluster.kafka.uncoordinated.clear()
    sound(cluster)


@pytest.mark.parametrize("pause", [True, False])
def test_a_stop_waits_for_no_reading_of_it_and_names_it_where_it_waits(cluster_of: Clusters, pause: bool) -> None:
    """It is lost while a reset's begin is read back."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    sound(cluster)
    segment = min(segments(cluster, SICK))
    node.core.request_reset(segment, "signal")
    node.connector.wake()
    until(cluster, lambda: node.core.phase(segment) == "begun")
    cluster.kafka.lose(CHANGES, SICK, leader=True)
    until(cluster, lambda: bool(node.core.withheld))
    if pause:
        paused = node.ask(node.lifecycle.pause())
        until(cluster, paused.done)
    stopped = node.ask(node.lifecycle.stop())
    until(cluster, stopped.done)
    if pause:
        assert stopped.exception() is None
        resumed = node.ask(node.lifecycle.resume())
        until(cluster, resumed.done)
    else:
        told = "in time: no records go to partitions 1; pause the connector first, to stop with what is not written"
        assert told in str(stopped.exception())
    cluster.kafka.recover(CHANGES, SICK)
    sound(cluster, signal=1)


@sick
def test_one_that_is_away_again_and_again_loses_nothing(cluster_of: Clusters, topic: str, leader: bool) -> None:
    cluster = cluster_of()
    for turn in range(6):
        write(cluster, 10)
        cluster.kafka.lose(topic, SICK, leader)
        write(cluster, 10)
        cluster.run(0.7 * turn)
        cluster.kafka.recover(topic, SICK)
    write(cluster)
    sound(cluster)


@told_late
def test_a_transaction_that_failed_before_kafka_knew_why_is_aborted_there_as_well(
    cluster_of: Clusters, topic: str
) -> None:
    """The next one of its id would commit what it has left open, and READ would find what nobody has written."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    log = cluster.kafka.logs[topic, SICK]
    for number in range(2500):  # more than one request has: the rest waits for the partition
        assert cluster.put(b"k%d" % number, b"last")
    until(cluster, lambda: bool(log.open))
    cluster.kafka.lose(topic, SICK, told_after=9.0)
    until(cluster, lambda: bool(node.core.withheld))
    assert node.connector.observed.failed[Cause.LOST]
    assert log.open
    goes_on(cluster)
    cluster.kafka.recover(topic, SICK)
    sound(cluster)


def test_with_one_after_the_other_both_ids_are_held_up_and_go_on(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    for topic in (CHANGES, POSITIONS):
        cluster.kafka.lose(topic, SICK, leader=False)
        goes_on(cluster)
    assert node.connector._shell.clients.session.spare
    cluster.kafka.lose(CHANGES, 1 - SICK, leader=False)
    write(cluster)
    cluster.run(30.0)
    for topic, partition in ((CHANGES, 1 - SICK), (POSITIONS, SICK), (CHANGES, SICK)):
        cluster.kafka.recover(topic, partition)
    write(cluster)
    sound(cluster)


@sick
def test_a_process_starts_without_it_and_a_takeover_of_the_others_ends(
    cluster_of: Clusters, topic: str, leader: bool
) -> None:
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    write(cluster)
    cluster.kafka.lose(topic, SICK, leader)
    goes_on(cluster)
    second.loop.kill()
    cluster.restart(second)
    second = cluster.nodes["n1"]
    until(cluster, lambda: second.serves)
    for segment in range(SEGMENTS):
        cluster.own(segment, first, second)  # which catches up
        cluster.own(segment, second, first)
    goes_on(cluster)
    assert {second.core.phase(s) for s in segments(cluster, 1 - SICK)} == {"writing"}
    cluster.kafka.recover(topic, SICK)
    sound(cluster)


@sick
def test_who_dies_meanwhile_is_taken_over_and_who_was_paused_writes_nothing_more(
    cluster_of: Clusters, topic: str, leader: bool
) -> None:
    """With the spare producer, where the first one is held up: that is the one that is fenced."""
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    write(cluster)
    cluster.kafka.lose(topic, SICK, leader)
    goes_on(cluster)
    write(cluster)
    first.loop.pause()
    for segment in range(SEGMENTS):
        cluster.own(segment, second, first)
    goes_on(cluster)
    first.loop.resume()
    goes_on(cluster)
    cluster.kafka.recover(topic, SICK)
    write(cluster)
    sound(cluster)


@pytest.mark.parametrize("topic", [CHANGES, POSITIONS])
def test_what_a_node_that_died_has_left_open_there_is_aborted_by_its_successor(
    cluster_of: Clusters, topic: str
) -> None:
    """No reader would pass it, and nobody else writes with that id."""
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    write(cluster)
    log = cluster.kafka.logs[topic, SICK]
    for number in range(40):
        assert cluster.put(b"k%d" % number, b"last")
    until(cluster, lambda: bool(log.open))
    cluster.kafka.lose(topic, SICK)
    first.loop.kill()
    del cluster.nodes["n0"]
    for segment in range(SEGMENTS):
        cluster.own(segment, second)
    until(cluster, lambda: {second.core.phase(s) for s in segments(cluster, 1 - SICK)} == {"writing"})
    assert log.open  # the fence has left it
    cluster.kafka.recover(topic, SICK)
    sound(cluster)


@told_late
def test_a_claim_that_its_own_transaction_hides_does_not_keep_back_whoever_claims_next(
    cluster_of: Clusters, topic: str
) -> None:
    """Nobody knows of it, and its node does not come back."""
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    write(cluster)
    before = cluster.kafka.logs[topic, SICK].end
    for segment in range(SEGMENTS):
        cluster.own(segment, second, first)
    until(cluster, lambda: (hidden := cluster.kafka.logs[topic, SICK].hanging) is not None and hidden.offset >= before)
    cluster.kafka.lose(topic, SICK)
    second.loop.kill()
    del cluster.nodes["n1"]
    for segment in range(SEGMENTS):
        cluster.own(segment, first)
    goes_on(cluster)
    assert cluster.kafka.logs[topic, SICK].open
    cluster.kafka.recover(topic, SICK)
    sound(cluster)
