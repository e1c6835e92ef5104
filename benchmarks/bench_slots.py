"""A cluster's primary is killed, and a connector is: how long until the last of its slots is written again.

    python -m benchmarks.bench_slots [--json] [--seconds 120]

Three shards of `redis-server` (or Valkey's, of the extra `demo`) with a connector beside each server, a real Kafka,
5,000 entries, no load. `takeover` begins when the replica says that it is primary, `restart` when the process of the
killed connector begins; both end when their connector writes all of its 5,461 slots. The ratio is `takeover` over the
time in which bare clients write the records that Kafka got meanwhile, in one transaction, and read them.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from redis.cluster import RedisCluster as Client

from benchmarks.common import Figure, kafka, parser, quiet, show
from deelog_connector.devkafka.ports import HOST
from deelog_proof.harness.child import until
from deelog_proof.harness.redis_cluster import Connector, RedisCluster

PREFIX, CACHE, PARTITIONS, ENTRIES = "bench", "slots", 4, 5_000
_BARE = "bench.bare"
TOPICS = (f"{PREFIX}.{CACHE}", f"{PREFIX}.{CACHE}.positions")
SETTINGS = {
    "topic.prefix": PREFIX,
    "cache.name": CACHE,
    "cache.value.format": "json",
    "topic.creation.default.replication.factor": "1",
}


def read(bootstrap: str, begins: dict[tuple[str, int], int]) -> tuple[list[Message], dict[tuple[str, int], int], float]:
    """All records from there on, the places behind them, and the seconds that a bare consumer takes."""
    settings = {**quiet(bootstrap), "group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(settings)
    places = dict(begins)
    consumer.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in places.items()])
    found, ended, begin = list[Message](), set[tuple[str, int]](), time.perf_counter()
    while len(ended) < len(places):
        for message in consumer.consume(2000, 1.0):
            place, error = (str(message.topic()), int(message.partition() or 0)), message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(place)
            places[place] = int(message.offset() or 0) + (error is None)
    took = time.perf_counter() - begin
    consumer.close()
    return found, places, took


def written(bootstrap: str, records: list[Message]) -> float:
    """The seconds in which a bare producer writes these in one transaction."""
    settings: dict[str, Any] = {**quiet(bootstrap), "transactional.id": "bench", "compression.type": "lz4"}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
    admin = AdminClient(quiet(bootstrap))
    admin.create_topics([NewTopic(_BARE, PARTITIONS)])[_BARE].result()
    producer.init_transactions(60)
    begin = time.perf_counter()
    producer.begin_transaction()
    for record in records:
        producer.produce(_BARE, record.value(), record.key(), headers=record.headers())
    producer.commit_transaction(60)
    return time.perf_counter() - begin


def until_written(connector: Connector, slots: int, seconds: float) -> float:
    """The seconds until it writes so many."""

    def writes() -> bool:
        stats = connector.stats()
        return stats is not None and stats["writing"] == slots

    return until(writes, seconds, f"{connector.name} to write {slots} slots", 0.05)


def measure(bootstrap: str, directory: Path, seconds: float) -> list[Figure]:
    """All figures."""
    with ExitStack() as stack:
        cluster = RedisCluster(3, directory, {**SETTINGS, "bootstrap.servers": bootstrap})
        for process in cluster.processes:
            stack.callback(process.kill)
        cluster.start()
        with Client(host=HOST, port=cluster.servers[0].port) as client:
            for number in range(ENTRIES):
                client.set(f"key{number}", "v" * 100)
        cluster.wait_whole()
        server = cluster.primaries()[0]
        slots = sum(map(len, cluster.slots_of(server)))
        _, places, _ = read(bootstrap, {(topic, p): 0 for topic in TOPICS for p in range(PARTITIONS)})
        connector = cluster.connector_of(cluster.replica_of(server))
        server.kill()
        cluster.wait_without(server)
        takeover = until_written(connector, slots, seconds)
        records, _, reading = read(bootstrap, places)
        bare = reading + written(bootstrap, records)
        server.start()
        cluster.wait_whole()
        connector.kill()
        connector.start()
        restart = until_written(connector, slots, seconds)
    return [
        ("slots", slots, "slots"),
        ("slots_takeover", takeover, "s"),
        ("slots_takeover_records", len(records), "records"),
        ("slots_bare", bare, "s"),
        ("slots_takeover_ratio", takeover / bare, "of bare clients that write and read as many records"),
        ("slots_restart", restart, "s"),
    ]


def main() -> None:
    """See the module."""
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=120.0, help="to wait for each at most")
    given = arguments.parse_args()
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        show(measure(bootstrap, Path(folder), given.seconds), given.json)


if __name__ == "__main__":
    main()
