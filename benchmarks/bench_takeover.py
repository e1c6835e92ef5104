"""From `kill -9` of a primary to the first record of its successor, and how much of that is detection.

    python -m benchmarks.bench_takeover [--json] [--rounds 3]

Three grid nodes, a real Kafka, a client that writes all the time. Times are Kafka's own record timestamps on the same
machine's clock: `detection` ends with the first CLAIM of a successor (the death was noticed, fenced, and a new view
committed), `takeover` with the first ACTIVE after it, `first_record` with the first change written under a new epoch.
The ratio is detection over the whole: what a shorter `cache.failure.timeout.ms` could save.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError

from benchmarks.common import Figure, kafka, parser, show
from deelog_proof.audit.topics import read_topic
from deelog_proof.harness.cluster import Cluster
from deelog_schemas.header import Kind

PREFIX, CACHE = "bench", "c"
SETTINGS = {
    "topic.prefix": PREFIX,
    "cache.name": CACHE,
    "segment.count": "256",
    "cache.backups": "1",
    "cache.max.entries": "1000000",
    "cache.failure.timeout.ms": "1000",
    "topic.creation.default.replication.factor": "1",
}


def write_until(stop: threading.Event, addresses: list[tuple[str, int]]) -> None:
    """One client that never gives up."""
    client: RedisCluster | None = None
    number = 0
    while not stop.is_set():
        try:
            if client is None:
                nodes = [ClusterNode(host, port) for host, port in addresses]  # type: ignore[no-untyped-call]
                client = RedisCluster(startup_nodes=nodes, socket_timeout=1, socket_connect_timeout=1)
            number += 1
            client.set(f"k{number % 5000}", "v" * 100)
        except (RedisError, OSError):
            stop.wait(0.02)  # while a takeover is under way; the next turn sends the next write


def one_round(bootstrap: str, directory: Path) -> tuple[float, float, float]:
    """Milliseconds from the kill to the first CLAIM, the first ACTIVE and the first change of a new epoch."""
    cluster = Cluster(["n1", "n2", "n3"], directory, {**SETTINGS, "bootstrap.servers": bootstrap})
    stop = threading.Event()
    try:
        cluster.start()
        client = threading.Thread(target=write_until, args=(stop, cluster.addresses()))
        client.start()
        stop.wait(3.0)
        busiest = cluster.primaries().most_common(1)[0][0]
        victim = next(n for n in cluster.nodes if n.node_id == busiest)
        # The controller may be any of them; killing it as well would measure an election on top.
        killed = time.time() * 1000
        victim.kill()
        cluster.wait_without([victim])
        stop.wait(3.0)
        stop.set()
        client.join(10)
        claims, actives, changes = [], [], []
        taken: set[tuple[int, int]] = set()
        for record, timestamp in read_topic(bootstrap, f"{PREFIX}.{CACHE}"):
            header = record.header
            if timestamp < killed:
                continue
            if header.kind is Kind.CLAIM:
                claims.append(timestamp)
            elif header.kind is Kind.ACTIVE:
                actives.append(timestamp)
                taken.add((header.segment, header.epoch))
            elif header.kind is Kind.CHANGE and (header.segment, header.epoch) in taken:
                changes.append(timestamp)
        return min(claims) - killed, min(actives) - killed, min(changes) - killed
    finally:
        stop.set()
        for node in cluster.nodes:
            node.kill()


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    found = []
    for _ in range(given.rounds):
        with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
            found.append(one_round(bootstrap, Path(folder)))
    detection, takeover, first = (statistics.median(column) for column in zip(*found, strict=True))
    figures: list[Figure] = [
        ("takeover_detection", detection, "ms"),
        ("takeover_active", takeover, "ms"),
        ("takeover_first_record", first, "ms"),
        ("takeover_first_record_max", max(f for _, _, f in found), "ms"),
        ("takeover_detection_share", detection / first, "of the whole"),
    ]
    show(figures, given.json)


if __name__ == "__main__":
    main()
