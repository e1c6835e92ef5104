from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.connector.runtime.clusters import Clusters, until
from tests.connector.seeds.cluster import SEGMENTS, Cluster


@pytest.fixture
def cluster_of() -> Iterator[Clusters]:
    """Nodes that have written all; the first is primary of all segments."""
    every: list[Cluster] = []

    def made(nodes: int = 1, **fields: Any) -> Cluster:
        cluster = Cluster(1, nodes, **fields)
        every.append(cluster)
        until(cluster, lambda: all(node.starting.done() for node in cluster.nodes.values()))
        first, *others = cluster.nodes.values()
        for segment in range(SEGMENTS):
            cluster.own(segment, first, *others, must_reset="start")
        until(cluster, lambda: cluster.at_rest)
        return cluster

    yield made
    for cluster in every:
        cluster.bury()
