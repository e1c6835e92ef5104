"""A topic that goes away under the nodes, or between two runs: they go on, and the change topic is the cache again.

Tried here: the positions topic deleted; made again, by somebody, also with other settings; cut to nothing; each of it
while a takeover is under way, while a reset is, with backups, and while no node runs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deelog_connector.errors import KafkaUnusable
from deelog_connector.topic_audit import AUDIT_SECONDS
from tests.connector.runtime.clusters import Clusters, sound, until, write
from tests.connector.seeds.cluster import CHANGES, PARTITIONS, SEGMENTS, Cluster, Node

POSITIONS = f"{CHANGES}.positions"


def written_anew(cluster: Cluster) -> bool:
    """Whether the positions topic names a claim and a position of each segment."""
    logs = [cluster.kafka.logs.get((POSITIONS, partition)) for partition in range(PARTITIONS)]
    keys = {raw.key for log in logs if log is not None for raw in log.read(0, len(log.slots))[0]}
    return len(keys) >= 2 * SEGMENTS


Lose = Callable[[Cluster], None]


def cut(cluster: Cluster) -> None:
    """An unclean election that leaves nothing."""
    for partition in range(PARTITIONS):
        cluster.kafka.truncate(POSITIONS, partition, len(cluster.kafka.logs[POSITIONS, partition].slots))


def delete(cluster: Cluster) -> None:
    cluster.kafka.delete(POSITIONS)


def recreate(cluster: Cluster) -> None:
    cluster.kafka.recreate(POSITIONS)


LOSSES = [cut, delete, recreate]


@pytest.mark.parametrize("backups", [0, 1])
@pytest.mark.parametrize("lose", LOSSES)
def test_positions_that_are_lost_are_written_anew(cluster_of: Clusters, lose: Lose, backups: int) -> None:
    cluster = cluster_of(1 + backups)
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    lose(cluster)
    write(cluster)
    until(cluster, lambda: written_anew(cluster))
    write(cluster)
    sound(cluster, positions_lost=SEGMENTS)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("lose", LOSSES)
def test_a_takeover_under_way_ends(cluster_of: Clusters, lose: Lose, seconds: float) -> None:
    cluster = cluster_of(2)
    first, second = cluster.nodes.values()
    write(cluster)
    for segment in range(SEGMENTS):
        cluster.own(segment, second, first)
    cluster.run(seconds)
    lose(cluster)
    write(cluster)
    until(cluster, lambda: written_anew(cluster))
    sound(cluster, positions_lost=SEGMENTS)
    cluster.run(2.0)  # the other one has noticed it, too
    for segment in range(SEGMENTS):
        cluster.own(segment, first)
    write(cluster)
    sound(cluster, positions_lost=SEGMENTS)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.68, 0.72, 0.76, 0.9])
@pytest.mark.parametrize("lose", LOSSES)
def test_positions_that_are_lost_just_before_a_restart_are_missed(
    cluster_of: Clusters, lose: Lose, seconds: float
) -> None:
    """Also where the shell that ends has seen it, and has not told the core yet."""
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    lose(cluster)
    cluster.run(seconds)
    restarted(cluster, node)
    write(cluster)
    sound(cluster, positions_lost=SEGMENTS)


def test_positions_that_are_lost_while_they_are_away_are_missed_across_a_restart(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    for partition in range(PARTITIONS):
        cluster.kafka.lose(POSITIONS, partition)
    cluster.run(5.0)
    restarted(cluster, node)
    cluster.run(3.0)
    cut(cluster)
    for partition in range(PARTITIONS):
        cluster.kafka.recover(POSITIONS, partition)
    write(cluster)
    sound(cluster, positions_lost=SEGMENTS)


def restarted(cluster: Cluster, node: Node) -> None:
    """Its connector is, by request."""
    asked = node.ask(node.lifecycle.restart())
    until(cluster, asked.done)
    asked.result()


def test_a_change_topic_that_is_gone_is_made_again(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    cluster.kafka.delete(CHANGES)
    write(cluster)
    sound(cluster, topic_recreated=SEGMENTS)


def test_topics_of_heartbeats_and_notifications_that_are_gone_are_made_again(cluster_of: Clusters) -> None:
    cluster = cluster_of(**{"heartbeat.interval.ms": "1000", "notification.sink.topic.name": "notes"})
    (node,) = cluster.nodes.values()
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    heartbeats = node.lifecycle.config.topics.heartbeat
    for topic in (heartbeats, "notes"):
        cluster.kafka.delete(topic)
    until(cluster, lambda: (heartbeats, 0) in cluster.kafka.logs and ("notes", 0) in cluster.kafka.logs)
    until(cluster, lambda: any(slot.record is not None for slot in cluster.kafka.logs[heartbeats, 0].slots))


def test_a_dead_letter_topic_that_is_gone_holds_nothing_up_for_long(cluster_of: Clusters) -> None:
    letters = {"event.processing.failure.handling.mode": "dead-letter", "errors.deadletterqueue.topic.name": "dlq"}
    mask = {"transforms": "m", "transforms.m.type": "deelog_connector.transforms.builtin.MaskField"}
    cluster = cluster_of(1, **letters, **mask, **{"transforms.m.fields": "x", "cache.value.format": "json"})
    cluster.kafka.delete("dlq")
    assert cluster.put(b"bad", b"[1]")
    assert cluster.put(b"good", b'{"x":1}')
    until(cluster, lambda: ("dlq", 0) in cluster.kafka.logs and cluster.at_rest)
    until(cluster, lambda: any(slot.record is not None for slot in cluster.kafka.logs["dlq", 0].slots))
    until(cluster, lambda: not any(node.core.unwritten() for node in cluster.nodes.values()))


@pytest.mark.parametrize("lose", LOSSES)
def test_who_starts_without_positions_writes_above_what_the_change_topic_holds(
    cluster_of: Clusters, lose: Lose
) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    for _ in range(3):
        for segment in range(SEGMENTS):
            cluster.own(segment, node)
        write(cluster)
        until(cluster, lambda: cluster.at_rest)
    node.loop.kill()
    lose(cluster)
    cluster._epoch = 0  # no controller remembers it
    cluster.restart(node)
    (node,) = cluster.nodes.values()
    until(cluster, node.starting.done)
    assert node.core.highest_claim() == 0
    steps = 0
    while idle := [segment for segment in range(SEGMENTS) if node.core.phase(segment) == "idle"]:
        for segment in idle:
            cluster.own(segment, node, must_reset="start")
        until(cluster, lambda: {node.core.phase(segment) for segment in range(SEGMENTS)} <= {"idle", "writing"})
        steps += 1
    assert steps > 1
    write(cluster)
    sound(cluster, start=2 * SEGMENTS)


def test_positions_that_are_not_compacted_are_refused(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    (node,) = cluster.nodes.values()
    cluster.kafka.topics[POSITIONS].settings["cleanup.policy"] = "compact,delete"
    asked = node.ask(node.lifecycle.restart())
    until(cluster, asked.done)
    with pytest.raises(KafkaUnusable, match=r"cleanup\.policy=compact,delete: .* set it to compact"):
        asked.result()
    write(cluster)
    sound(cluster)


def test_positions_that_are_not_compacted_any_more_are_told_while_a_node_runs(
    cluster_of: Clusters, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = cluster_of()
    cluster.kafka.topics[POSITIONS].settings["cleanup.policy"] = "delete"
    for _ in range(3):
        cluster.run(AUDIT_SECONDS)
        write(cluster)
    told = [message for message in caplog.messages if "cleanup.policy" in message]
    assert told == [
        f"topic {POSITIONS}: cleanup.policy is delete: what was written long ago will be forgotten; set it to compact"
    ]
    sound(cluster)
