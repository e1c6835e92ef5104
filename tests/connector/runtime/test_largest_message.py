"""The change topic takes less in one message than before: batches become smaller, and no segment is stopped."""

from __future__ import annotations

from tests.connector.runtime.clusters import Clusters, sound, until, write
from tests.connector.seeds.cluster import CHANGES


def test_small_records_are_written_in_smaller_batches(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    write(cluster)
    until(cluster, lambda: cluster.at_rest)
    cluster.kafka.topics[CHANGES].settings["max.message.bytes"] = "3000"
    for _ in range(5):
        write(cluster, 200)
    sound(cluster)
    (node,) = cluster.nodes.values()
    assert node.connector.max_message_bytes == 3000
    assert node.core.counts.refused > 0
