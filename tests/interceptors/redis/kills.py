"""`kill -9` of servers and connectors of a cluster under load, at random instants: the topic ends as the servers are.

    python -m tests.interceptors.redis.kills --kills 50 --seed 1

Real Kafka, three shards of a primary and a replica, a connector beside each, and clients that go on all the while. Each
round draws what is killed (a primary, a replica, a connector, a server with its connector, any two), for how long it is
away, and whether the next round waits until all is well. Servers come back empty: a primary that is back before its
replica was promoted takes all of its shard with it, and the topic has to follow. Exit code 1 where anything differs.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import click
import redis

from deelog_proof.harness.child import Child
from deelog_proof.harness.cluster import ClusterError
from deelog_proof.harness.redis_cluster import RedisCluster
from deelog_schemas.header import Kind
from tests.interceptors.redis.clusters import Cluster, load
from tests.interceptors.redis.servers import Server
from tests.interceptors.redis.test_node import content
from tests.support.kafka import running_broker
from tests.support.topics import derived, read_topic
from tests.support.waiting import waiting

log = logging.getLogger("tests.kills")

KINDS: Final = ("primary", "replica", "connector", "server and connector", "two")
_CLIENTS: Final = 2
_COMMANDS: Final = 50
_AWAY_SECONDS: Final = 5.0
_BETWEEN_SECONDS: Final = 3.0
_SETTLE_SECONDS: Final = 300.0


@dataclass
class Report:
    """What was done, and what came of it."""

    kinds: Counter[str] = field(default_factory=Counter)
    records: int = 0
    resets: Counter[str] = field(default_factory=Counter)
    corrections: int = 0
    repeats: int = 0
    entries: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        kinds, resets = (", ".join(f"{n} {name}" for name, n in c.most_common()) for c in (self.kinds, self.resets))
        return [
            f"{self.kinds.total()} kills in {self.seconds:.0f} s: {kinds}",
            f"{self.records} records, {self.entries} entries, {self.corrections} corrections, {self.repeats} repeats",
            f"resets: {resets}",
        ]


class Load:
    """Clients that write until `stop`."""

    def __init__(self, cluster: RedisCluster, seed: int) -> None:
        self._cluster, self._stop = cluster, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed * 1000 + n,)) for n in range(_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        client: Any = None
        while not self._stop.is_set():
            seed += _CLIENTS
            try:
                if client is None:
                    node: Any = redis.cluster.ClusterNode
                    nodes = [node(host, port) for host, port in self._cluster.addresses()]
                    client = redis.RedisCluster(startup_nodes=nodes, require_full_coverage=False)
                load(cast("Cluster", SimpleNamespace(client=client)), seed, _COMMANDS)
            except (redis.RedisError, OSError):  # of no node; a client that has lost all of them stays so
                client = None
                self._stop.wait(0.1)


class Kills:
    """One run. `play` it; what is wrong raises AssertionError."""

    def __init__(self, cluster: RedisCluster, bootstrap: str, topic: str, seed: int) -> None:
        self._cluster, self._bootstrap, self._topic, self._seed = cluster, bootstrap, topic, seed
        self._chance = random.Random(seed)
        self.report = Report()

    def play(self, kills: int) -> Report:
        """Kills so often, then waits until all is well, and compares."""
        begun, load_ = time.monotonic(), Load(self._cluster, self._seed)
        try:
            for number in range(kills):
                self._round(number + 1)
            self._cluster.wait_whole(_SETTLE_SECONDS)
        finally:
            load_.stop()
        self.report.seconds = time.monotonic() - begun
        waiting(self._cluster.is_written, _SETTLE_SECONDS, "all of it in Kafka")
        self._compare()
        return self.report

    def _round(self, number: int) -> None:
        kind = self._chance.choice(KINDS)
        victims = self._victims(kind)
        away = self._chance.choice((0.0, self._chance.uniform(0.0, _AWAY_SECONDS)))
        log.info("kill %d: %s, for %.1f s: %s", number, kind, away, ", ".join(victim.name for victim in victims))
        self.report.kinds[kind] += 1
        time.sleep(self._chance.uniform(0.0, _BETWEEN_SECONDS))  # any instant will do
        for victim in victims:
            victim.kill()
        time.sleep(away)  # the fault itself
        for victim in victims:
            victim.start()
        if self._chance.random() < 0.5:
            self._cluster.wait_whole(_SETTLE_SECONDS)

    def _victims(self, kind: str) -> list[Child]:
        cluster, chance = self._cluster, self._chance
        server = chance.choice(cluster.servers)
        match kind:
            case "primary" | "replica":
                wanted = [each for each in cluster.servers if self._is_primary(each) is (kind == "primary")]
                return [chance.choice(wanted or cluster.servers)]
            case "connector":
                return [chance.choice(cluster.nodes)]
            case "server and connector":
                return [server, cluster.connector_of(server)]
        return chance.sample(cluster.processes, 2)

    def _is_primary(self, server: Any) -> bool:
        with suppress(ClusterError):  # it is away
            return bool(server.is_primary)
        return False

    def _compare(self) -> None:
        report, records = self.report, read_topic(self._bootstrap, self._topic)
        expected: dict[str, str] = {}
        for server in self._cluster.primaries():
            expected.update(asyncio.run(content(cast("Server", server))))
        entries, readers = derived(records)
        found = {key.decode(): value.decode() for key, value in entries.items()}
        report.records, report.entries = len(records), len(found)
        for reader in readers.values():
            report.resets.update(reader.resets)
            report.repeats += reader.repeats
        report.corrections = sum(
            b'"reason":"correct"' in (r.value or b"") for r in records if r.header.kind is Kind.CHANGE
        )
        differing = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
        assert not differing, {key: (found.get(key), expected.get(key)) for key in differing[:10]}
        assert not [number for number, reader in readers.items() if reader.open], "a reset without its end"
        assert not report.repeats


def run(kills: int, seed: int, folder: Path) -> Report:
    """One run, with a Kafka and a cluster of its own."""
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(folder / "kafka"))
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "topic.prefix": "kills",
            "cache.name": "sessions",
            "cache.value.format": "json",
            "topic.creation.default.replication.factor": "1",
        }
        (folder / "cluster").mkdir()
        cluster = RedisCluster(3, folder / "cluster", settings)
        for process in cluster.processes:
            stack.callback(process.kill)
        cluster.start()
        return Kills(cluster, broker.bootstrap, "kills.sessions", seed).play(kills)


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(kills: int, seed: int) -> None:
    """Kill servers and connectors of a cluster under load, and compare the topic with the servers."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    with tempfile.TemporaryDirectory() as folder:
        for line in run(kills, seed, Path(folder)).lines():
            click.echo(line)


if __name__ == "__main__":
    main()
