"""A connector beside a server that is written, and what others make of that server in the same run.

    python -m benchmarks.bench_redis_live [--json] [--number 100000] [--seconds 10]

A `redis-server` (or Valkey's, of the extra `demo`), a real Kafka, `deelog run` as a process. NUMBER SETs of 100 bytes,
of 100,000 keys in turn, are made while the connector stands still: `committed` is how fast it then brings them to
Kafka, beside `bare`, a reader of the same stream that hiredis parses and a transactional producer of the bare values.
`reset_rows` are those 100,000 keys in the reset of a new topic, without what the start takes of an empty database.
`images` are hashes of ten fields as they are read when they have changed, beside redis-py's pipelines (TYPE, then
HGETALL and PEXPIRETIME in MULTI). `latency` is from before a SET to its record, for a reader of what is committed, at
1,000 a second. `server_cpu` is what the server itself takes for the SETs with a connector, beside one more replica
instead.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import tempfile
import time
import urllib.request
import uuid
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import hiredis
import javaproperties
import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.bench_redis import VALUES
from benchmarks.common import Figure, Watcher, kafka, parser, quiet, show
from deelog_connector.devkafka.ports import HOST, free_ports
from deelog_interceptors.redis import reading
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.client import Client
from deelog_proof.harness.child import Child, deelog_command, until
from deelog_proof.harness.redis_cluster import server_program

ROWS, HASHES, SEGMENTS, PARTITIONS, BATCH = 100_000, 10_000, 256, 4, 8192
RATE = 1000
PATIENCE = 300.0
_FIRST = count(10_000_000, 10_000_000)
"""Of the SETs whose latency is measured: no two are the same."""
_NUMBER = re.compile(rb"n(\d+)n")


class Live:
    """A server. Its backlog holds all that is measured."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        (self.port,) = free_ports(1)
        options = ("--port", str(self.port), "--bind", HOST, "--save", "", "--repl-backlog-size", "512mb")
        limits = ("--client-output-buffer-limit", "replica 0 0 0", "--repl-diskless-sync-delay", "0")
        self.child = Child("server", [server_program(), *options, *limits], folder / f"server{self.port}.log")
        self.child.start()
        stack.callback(self.child.kill)
        self.client = Redis(host=HOST, port=self.port)
        stack.callback(self.client.close)
        until(self._answers, 10.0, "the server to answer")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    @property
    def offset(self) -> int:
        return int(self.client.info("replication")["master_repl_offset"])

    @property
    def cpu(self) -> float:
        """Seconds of the processor so far."""
        info = self.client.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    def write(self, number: int) -> None:
        """So many SETs."""
        for begin in range(0, number, 1000):
            pipeline: Any = self.client.pipeline(transaction=False)
            for at in range(begin, min(begin + 1000, number)):
                pipeline.set(f"key:{at % ROWS:08d}", f"n{at}n".ljust(100, "v"))
            pipeline.execute()


class Beside:
    """`deelog run` beside it, with a cache of its own."""

    def __init__(
        self, stack: ExitStack, live: Live, folder: Path, bootstrap: str, acks: str = "all", database: int = 0
    ) -> None:
        (self.port,) = free_ports(1)
        self.live, prefix = live, f"bench{uuid.uuid4().hex[:8]}"
        self.topic = f"{prefix}.live"
        fields = {
            "name": prefix,
            "connector.class": "deelog.RedisConnector",
            "bootstrap.servers": bootstrap,
            "topic.prefix": prefix,
            "cache.name": "live",
            "cache.value.format": "json",
            "cache.acks": acks,
            "node.id": "c1",
            "redis.url": f"redis://{HOST}:{live.port}/{database}",
            "segment.count": str(SEGMENTS),
            "topic.creation.default.partitions": str(PARTITIONS),
            "topic.creation.default.replication.factor": "1",
            "max.queue.size": "2000000",
            "max.queue.size.in.bytes": "2000000000",
            "metrics.port": str(self.port),
        }
        path = folder / f"{prefix}.properties"
        path.write_text(javaproperties.dumps(fields, timestamp=False))
        self.child = Child("connector", deelog_command("run", "--config", str(path)), folder / f"{prefix}.log")
        stack.callback(self.child.kill)

    def until_written(self) -> float:
        """The seconds until Kafka has all that the server has now."""
        offset = self.live.offset
        return until(
            lambda: self._has(offset), PATIENCE, f"the connector to write all; its log {self.child.tail()}", 0.2
        )

    def _has(self, offset: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=10.0) as answer:
                page = answer.read().decode()
        except OSError:
            return False
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        found = {sample.name: sample.value for sample in samples}
        writing = [s.value for s in samples if s.name == "deelog_segments" and s.labels["phase"] == "writing"]
        is_there = found["deelog_stream_attached"] and sum(writing) == SEGMENTS
        return bool(is_there and found["deelog_stream_offset"] >= offset and not found["deelog_stream_held_changes"])


def bare(live: Live, bootstrap: str, begin: int, number: int) -> float:
    """The seconds in which a bare reader brings the values of so many SETs behind an offset to Kafka."""
    topic = f"bare{uuid.uuid4().hex[:8]}"
    admin = AdminClient(quiet(bootstrap))
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    producer = Producer(
        {
            **quiet(bootstrap),
            "transactional.id": topic,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(60)
    id_ = live.client.info("replication")["master_replid"]
    with socket.create_connection((HOST, live.port)) as link:
        parser_, sent = hiredis.Reader(), 0
        began = time.perf_counter()
        link.sendall(f"PSYNC {id_} {begin + 1}\r\n".encode())
        producer.begin_transaction()
        while sent < number:
            parser_.feed(link.recv(1 << 18))
            while (words := parser_.gets()) is not False:
                if isinstance(words, list) and words[0] == b"SET":
                    producer.produce(topic, words[2], words[1])
                    sent += 1
                    if not sent % BATCH:
                        producer.commit_transaction(60)
                        producer.begin_transaction()
        producer.commit_transaction(60)
    return time.perf_counter() - began


async def images(live: Live) -> float:
    """The seconds in which a connector reads all hashes."""
    client = Client(Address(HOST, live.port))
    await client.connect()
    keys = [b"hash:%d" % number for number in range(HASHES)]
    began = time.perf_counter()
    for begin in range(0, HASHES, reading.MOST_KEYS):
        found = await reading.read(client, keys[begin : begin + reading.MOST_KEYS], VALUES)
        assert not found.changed
    took = time.perf_counter() - began
    await client.close()
    return took


def pipelines(live: Live) -> float:
    """The seconds in which redis-py does."""
    keys = [f"hash:{number}" for number in range(HASHES)]
    began = time.perf_counter()
    for begin in range(0, HASHES, reading.MOST_KEYS):
        some = keys[begin : begin + reading.MOST_KEYS]
        types: Any = live.client.pipeline(transaction=False)
        for key in some:
            types.type(key)
        types.execute()
        contents: Any = live.client.pipeline()
        for key in some:
            contents.hgetall(key).pexpiretime(key)
        contents.execute()
    return time.perf_counter() - began


def number_in(value: bytes) -> bytes | None:
    """That of a SET, in its record's value."""
    found = _NUMBER.search(value)
    return None if found is None else found[1]


def latencies(live: Live, beside: Beside, bootstrap: str, seconds: float) -> np.ndarray:
    """In ms."""
    watcher = Watcher(bootstrap, beside.topic, PARTITIONS, number_in)
    watcher.start()
    made: dict[bytes, float] = {}
    begun, first = time.perf_counter(), next(_FIRST)
    for number in range(int(seconds * RATE)):
        made[b"%d" % (first + number)] = time.perf_counter()
        live.client.set(f"key:{number % ROWS:08d}", f"n{first + number}n")
        left = begun + (number + 1) / RATE - time.perf_counter()
        if left > 0:
            time.sleep(left)
    until(lambda: made.keys() <= watcher.seen.keys(), PATIENCE, "every SET to stand in the topic")
    watcher.ending = True
    watcher.join()
    return np.array([watcher.seen[name] - at for name, at in made.items()]) * 1000


def measure(bootstrap: str, folder: Path, number: int, seconds: float) -> list[Figure]:
    """All figures."""
    with ExitStack() as stack:
        live, replica = Live(stack, folder), Live(stack, folder)
        live.write(ROWS)
        resets = {}
        for database in (1, 0):
            one = Beside(stack, live, folder, bootstrap, database=database)
            one.child.start()
            resets[database] = one.until_written()
            if database:
                one.child.stop()
        begin = live.offset
        one.child.send(signal.SIGSTOP)
        live.write(number)
        one.child.send(signal.SIGCONT)
        committed = one.until_written()
        peer = bare(live, bootstrap, begin, number)
        one.child.stop()
        pipeline: Any = live.client.pipeline(transaction=False)
        for hash_ in range(HASHES):
            pipeline.hset(f"hash:{hash_}", mapping={f"field{n}": "v" * 10 for n in range(10)})
        pipeline.execute()
        own, other = asyncio.run(images(live)), pipelines(live)
        live.client.delete(*(f"hash:{hash_}" for hash_ in range(HASHES)))
        spans = {}
        for acks in ("1", "all"):
            beside = Beside(stack, live, folder, bootstrap, acks)
            beside.child.start()
            beside.until_written()
            if acks == "1":
                cpu = live.cpu
                live.write(number)
                beside.until_written()
                with_connector = live.cpu - cpu
            spans[acks] = latencies(live, beside, bootstrap, seconds)
            beside.child.stop()
        replica.client.replicaof(HOST, str(live.port))
        until(
            lambda: replica.client.info("replication").get("master_link_status") == "up", 30.0, "the replica to follow"
        )
        cpu = live.cpu
        live.write(number)
        until(lambda: replica.offset >= live.offset, 30.0, "the replica to have all")
        with_replica = live.cpu - cpu
    p50 = {acks: float(np.percentile(span, 50)) for acks, span in spans.items()}
    return [
        ("redis_committed", number / committed, "SETs/s"),
        ("redis_bare", number / peer, "SETs/s"),
        ("redis_committed_ratio", peer / committed, "of a bare reader and producer"),
        ("redis_reset_rows", ROWS / (resets[0] - resets[1]), "rows/s"),
        ("redis_reset_ratio", committed / number * ROWS / (resets[0] - resets[1]), "of the SETs/s"),
        ("redis_images", HASHES / own, "hashes/s"),
        ("redis_images_ratio", other / own, "of redis-py's pipelines"),
        ("redis_latency_1_p50", p50["1"], "ms"),
        ("redis_latency_all_p50", p50["all"], "ms"),
        ("redis_latency_all_p99", float(np.percentile(spans["all"], 99)), "ms"),
        ("redis_latency_ratio", p50["all"] / p50["1"], "of that with cache.acks=1"),
        ("redis_server_cpu", with_connector / number * 1e6, "µs/SET"),
        ("redis_server_cpu_ratio", with_connector / with_replica, "of that with one more replica"),
    ]


def main() -> None:
    """See the module."""
    arguments = parser(__doc__)
    arguments.add_argument("--number", type=int, default=100_000, help="of SETs")
    arguments.add_argument("--seconds", type=float, default=10.0, help="of SETs at 1,000 a second, for each latency")
    given = arguments.parse_args()
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        show(measure(bootstrap, Path(folder), given.number, given.seconds), given.json)


if __name__ == "__main__":
    main()
