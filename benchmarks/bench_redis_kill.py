"""What `kill -9` leaves wrong, beside readers that people build themselves, of the same servers at the same time.

    python -m benchmarks.bench_redis_kill [--json] [--seconds 5]

Three shards of `redis-server` (or Valkey's, of the extra `demo`), a connector beside each server, a real Kafka, and the
two readers of `benchmarks/redis_peers.py`, of replication streams and of keyspace notifications. While a client SETs
and DELs, 1,000 times a second, one thing is killed: `reader`, all connectors and both readers, away for three seconds;
`replica`, a server that comes back empty; `primary`, with writes that its replica has not, which Redis loses. Then
topics and servers are compared. `wrong`: keys of which a topic's records do not come to what the servers have.
`missing`: versions that the client was told are stored, and that Redis has not lost, without a record. `repeated`:
records of a version that had one. `deelog_rows`: those of resets; `deelog_corrections`: those that take back what
Redis lost.
"""

from __future__ import annotations

import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from redis.cluster import ClusterNode
from redis.cluster import RedisCluster as Client
from redis.exceptions import RedisError

from benchmarks.common import Figure, kafka, parser, quiet, show
from deelog_connector.devkafka.ports import HOST
from deelog_proof.harness.child import Child, until
from deelog_proof.harness.cluster import is_stopped
from deelog_proof.harness.redis_cluster import RedisCluster, Server
from deelog_schemas.header import Kind
from deelog_schemas.keys import slot_of
from tests.support.topics import derived, messages, read_topic

PREFIX, CACHE = "bench", "kill"
TOPIC = f"{PREFIX}.{CACHE}"
SETTINGS = {
    "topic.prefix": PREFIX,
    "cache.name": CACHE,
    "cache.value.format": "json",
    "topic.creation.default.replication.factor": "1",
}
KINDS, PARTITIONS = ("stream", "notifications"), 4
KEYS, BATCH, DELETED = 10_000, 20, 10
"""Keys of each kill; commands of a pipeline; of so many commands one is a DEL."""
RATE = 1000
AWAY, ALONE = 3.0, 1.0
QUIET = 3.0
PATIENCE = 120.0
_VERSION = re.compile(rb"([a-z]+):n(\d+)n")


class Load(threading.Thread):
    """Writes keys that begin with `of`, until `stopped`. `stored`: by version the key, of what a client was told."""

    def __init__(self, cluster: RedisCluster, of: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._of = cluster, of
        self.stored: dict[bytes, bytes] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        client: Any = None
        made, begun, chance = 0, time.monotonic(), random.Random(self._of)
        while not self.stopped.wait(max(0.0, begun + made / RATE - time.monotonic())):
            try:
                if client is None:
                    node: Any = ClusterNode
                    nodes = [node(host, port) for host, port in self._cluster.addresses()]
                    client = Client(startup_nodes=nodes, require_full_coverage=False)
                for number in range(made, made := made + BATCH):
                    key, version = f"{self._of}:{chance.randrange(KEYS):05d}".encode(), b"%d" % number
                    if number % DELETED:
                        client.set(key, b"%s:n%sn" % (self._of.encode(), version))
                        self.stored[version] = key
                    else:
                        client.delete(key)
            except (RedisError, OSError):
                client = None


class Readers:
    """The readers of `redis_peers`."""

    def __init__(self, stack: ExitStack, cluster: RedisCluster, bootstrap: str, folder: Path) -> None:
        self._bootstrap, ports = bootstrap, [str(server.port) for server in cluster.servers]
        admin = AdminClient(quiet(bootstrap))
        for created in admin.create_topics([NewTopic(kind, PARTITIONS) for kind in KINDS]).values():
            created.result()
        self.children = {}
        for kind in KINDS:
            home = folder / kind
            home.mkdir()
            command = [sys.executable, "-m", "benchmarks.redis_peers", kind, bootstrap, kind, str(home), *ports]
            env = {"PYTHONPATH": str(Path(__file__).parents[1])}
            self.children[kind] = child = Child(kind, command, folder / f"{kind}.log", env)
            stack.callback(child.kill)

    def records(self, kind: str, name: str) -> list[tuple[bytes, bytes | None]]:
        """Key and value of those whose key begins with `name`."""
        found = [(m.key(), m.value()) for m in messages(self._bootstrap, kind)]
        return [(key, value) for key, value in found if key.startswith(name.encode())]


@dataclass
class Found:
    """What one reader's topic tells of one kill."""

    wrong: int
    missing: int
    repeated: int


def compared(
    entries: dict[bytes, bytes], versions: Counter[bytes], expected: dict[bytes, bytes], load: Load, lost: set[bytes]
) -> Found:
    """`entries`: what the topic's records come to; `versions`: how many records each one has; `lost`: by Redis."""
    keys = entries.keys() | expected.keys()
    return Found(
        sum(entries.get(key) != expected.get(key) for key in keys),
        len(load.stored.keys() - versions.keys() - lost),
        sum(versions.values()) - len(versions),
    )


def counted(name: str, values: list[bytes | None]) -> Counter[bytes]:
    """How many there are of each version of this kill."""
    found = (_VERSION.search(value or b"") for value in values)
    return Counter(each[2] for each in found if each is not None and each[1] == name.encode())


class Bench:
    """Everything that runs."""

    def __init__(self, stack: ExitStack, bootstrap: str, folder: Path, seconds: float) -> None:
        self._bootstrap, self._seconds = bootstrap, seconds
        self.cluster = RedisCluster(3, folder, {**SETTINGS, "bootstrap.servers": bootstrap})
        for process in self.cluster.processes:
            stack.callback(process.kill)
        self.cluster.start()
        self.readers = Readers(stack, self.cluster, bootstrap, folder)
        for child in self.readers.children.values():
            child.start()

    def figures(self) -> list[Figure]:
        """Of all kills."""
        kills: dict[str, Callable[[Load], set[bytes]]] = {
            "reader": self._readers,
            "replica": self._replica,
            "primary": self._primary,
        }
        return [figure for name, kill in kills.items() for figure in self._figures(name, kill)]

    def _figures(self, name: str, kill: Callable[[Load], set[bytes]]) -> list[Figure]:
        load = Load(self.cluster, name)
        load.start()
        time.sleep(self._seconds)
        lost = kill(load)
        self.cluster.wait_whole()
        time.sleep(self._seconds)
        load.stopped.set()
        load.join()
        until(self.cluster.is_written, PATIENCE, "the connectors to have written all")
        self._until_quiet()
        begins = name.encode()
        expected = {key: entry.value for key, entry in self.cluster.dump().items() if key.startswith(begins)}
        topic = read_topic(self._bootstrap, TOPIC)
        changes, rows = ([r.value for r in topic if r.header.kind is kind] for kind in (Kind.CHANGE, Kind.READ))
        entries = {key: _string(value) for key, value in derived(topic)[0].items() if key.startswith(begins)}
        corrected = sum(b'"reason":"correct"' in (value or b"") and begins in (value or b"") for value in changes)
        found = {"deelog": compared(entries, counted(name, changes), expected, load, lost)}
        for kind in KINDS:
            pairs = self.readers.records(kind, name)
            last = {key: value for key, value in dict(pairs).items() if value is not None}
            found[kind] = compared(last, counted(name, [value for _, value in pairs]), expected, load, lost)
        figures: list[Figure] = []
        for who, each in found.items():
            figures += [
                (f"{name}_{who}_wrong", each.wrong, "keys"),
                (f"{name}_{who}_missing", each.missing, "versions"),
                (f"{name}_{who}_repeated", each.repeated, "records"),
            ]
        figures += [
            (f"{name}_deelog_rows", counted(name, rows).total(), "records"),
            (f"{name}_deelog_corrections", corrected, "records"),
        ]
        return [*figures, (f"{name}_stored", len(load.stored), "versions"), (f"{name}_lost", len(lost), "versions")]

    def _until_quiet(self) -> None:
        """Until the readers have nothing more to tell."""
        sizes: list[int] = []

        def is_quiet() -> bool:
            for child in self.readers.children.values():
                child.must_run()
            sizes.append(sum(len(messages(self._bootstrap, kind)) for kind in KINDS))
            return len(sizes) > 1 and sizes[-1] == sizes[-2]

        until(is_quiet, PATIENCE, "the readers to rest", QUIET)

    def _readers(self, _: Load) -> set[bytes]:
        victims = [*self.cluster.nodes, *self.readers.children.values()]
        for victim in victims:
            victim.kill()
        time.sleep(AWAY)
        for victim in victims:
            victim.start()
        return set()

    def _replica(self, _: Load) -> set[bytes]:
        replica = self.cluster.replica_of(self.cluster.primaries()[0])
        replica.kill()
        time.sleep(AWAY)
        replica.start()
        return set()

    def _primary(self, load: Load) -> set[bytes]:
        server = self.cluster.primaries()[0]
        replica = self.cluster.replica_of(server)
        slots = self.cluster.slots_of(server)
        replica.send(signal.SIGSTOP)
        until(lambda: is_stopped(replica), 2.0, f"{replica.name} to stop")
        try:
            _cut_off(server, replica)
            before = set(load.stored)
            time.sleep(ALONE)  # so long the readers have what the replica has not
            server.kill()
            lost = load.stored.keys() - before
        finally:
            replica.send(signal.SIGCONT)
        self.cluster.wait_without(server)
        server.start()
        return {version for version in lost if any(slot_of(load.stored[version]) in some for some in slots)}


def _cut_off(server: Server, replica: Server) -> None:
    """Ends the link of that replica alone: what is in its socket would not be lost."""
    assert replica.pid is not None
    ports = [
        c.laddr.port for c in psutil.Process(replica.pid).net_connections() if c.raddr and c.raddr.port == server.port
    ]
    for port in ports:
        server.ask("CLIENT", "KILL", "ADDR", f"{HOST}:{port}")


def _string(value: bytes) -> bytes:
    """Of an entry's value, which has its type beside it."""
    return str(orjson.loads(value)["value"]).encode()


def main() -> None:
    """See the module."""
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=5.0, help="of writes before and after each kill")
    given = arguments.parse_args()
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        show(Bench(stack, bootstrap, Path(folder), given.seconds).figures(), given.json)


if __name__ == "__main__":
    main()
