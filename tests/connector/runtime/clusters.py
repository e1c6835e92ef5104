"""Nodes on memory that have written all, and what is asked of them at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.connector.seeds.cluster import SEGMENTS, Cluster

Clusters = Callable[..., Cluster]


def until(cluster: Cluster, condition: Callable[[], bool]) -> None:
    """Lets time pass until it holds, at most two minutes."""
    cluster.engine.run(condition, 120.0)
    assert condition(), [node.core.phase(segment) for segment, node in cluster.primary.items()]


def write(cluster: Cluster, count: int = 40) -> None:
    """Captures as many writes; Kafka has them later."""

    def captured() -> int:
        return sum(node.core.last_sequence(segment) for segment, node in cluster.primary.items())

    before = captured()
    for number in range(count):
        assert cluster.put(b"k%d" % number, b"%d" % cluster.writes)
    until(cluster, lambda: captured() == before + count)


def sound(cluster: Cluster, **resets: int) -> None:
    """The topic is the cache, no position is there twice, and only these resets came."""
    until(cluster, lambda: cluster.at_rest)
    assert cluster.differences() == []
    reasons: Counter[str] = Counter()
    for node in cluster.everybody:
        reasons.update(node.core.counts.resets)
        assert node.loop.errors == []
    assert reasons == {"start": SEGMENTS, **resets}, reasons
