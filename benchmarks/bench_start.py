"""What a start reads of the positions topic after hours of load, and how long that takes.

    python -m benchmarks.bench_start [--json] [--hours 0.25]

The load is that of 256 segments with 20 transactions a second: 18 million positions an hour, each as small a batch as
there. It is written as fast as Kafka takes it. Kafka's log cleaner then has as long as it likes, as it has in an hour.

`start_seconds` is a start of the connector beside that topic, less one beside an empty topic. The ratio is that over
the time in which a bare consumer reads the same records. `start_per_hour` has to stay below 1: it goes down with
`--hours`, since what is compacted is not read.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import cachetools
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

import deelog_interceptors.cachetools as deelog
from benchmarks.common import Figure, kafka, parser, quiet, show
from deelog_schemas.config import parse

SEGMENTS, PER_SECOND = 256, 20
REST_SECONDS = 20.0
"""Longer than the log cleaner of a broker sleeps."""


def config(bootstrap: str) -> dict[str, Any]:
    """Of a cache with a topic of its own."""
    prefix = f"bench{uuid.uuid4().hex[:8]}"
    return {"bootstrap.servers": bootstrap, "topic.prefix": prefix, "cache.name": "c", "node.id": "n1"}


def started(settings: dict[str, Any]) -> float:
    """The seconds of a start, until its segments are claimed and written."""
    begin = time.perf_counter()
    with deelog.capture(cachetools.LRUCache(1000), settings) as capture:
        capture.wait_until_streaming(None)
        return time.perf_counter() - begin


def read(bootstrap: str, topic: str, partitions: int) -> tuple[list[Message], float]:
    """All records of a topic, as a bare consumer gets them, and the seconds that it took."""
    settings = {**quiet(bootstrap), "group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, ended, begin = list[Message](), 0, time.perf_counter()
    while ended < partitions:
        for message in consumer.consume(2000, 1.0):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
    took = time.perf_counter() - begin
    consumer.close()
    return found, took


def load(bootstrap: str, topic: str, states: list[Message], partitions: int, seconds: float) -> None:
    """Writes each segment's state again, as a load of so many seconds does."""
    batch = {"linger.ms": 5, "batch.num.messages": SEGMENTS // partitions, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**quiet(bootstrap), **batch, "enable.idempotence": True, "compression.type": "lz4"})
    records: list[dict[str, Any]] = [
        {"key": m.key(), "value": m.value(), "headers": m.headers(), "partition": m.partition()} for m in states
    ]
    for _ in range(int(seconds * PER_SECOND)):
        for record in records:
            while True:
                try:
                    producer.produce(topic, **record)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(300) == 0, "Kafka does not take the load"


def measure(bootstrap: str, hours: float) -> list[Figure]:
    """The figures of one load."""
    settings = config(bootstrap)
    topic, partitions = parse(settings).topics.positions, parse(settings)["topic.creation.default.partitions"]
    started(settings)
    plain = started(settings)
    states = {m.key(): m for m in read(bootstrap, topic, partitions)[0] if (m.key() or b"").startswith(b"position/")}
    assert len(states) == SEGMENTS, "not every segment has a position"
    load(bootstrap, topic, list(states.values()), partitions, hours * 3600)
    left, raw = read(bootstrap, topic, partitions)
    while True:
        time.sleep(REST_SECONDS)
        before, (left, raw) = len(left), read(bootstrap, topic, partitions)
        if len(left) > 0.98 * before:
            break
    took = started(settings)
    return [
        ("start_written", hours * 3600 * SEGMENTS * PER_SECOND, "positions"),
        ("start_read", len(left), "records"),
        ("start_seconds", took - plain, "s"),
        ("start_raw_read", raw, "s"),
        ("start_to_raw_read", (took - plain) / raw, "ratio"),
        ("start_per_hour", (took - plain) / hours, "s"),
    ]


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--hours", type=float, default=0.25, help="of load")
    given = arguments.parse_args()
    with kafka() as bootstrap:
        show(measure(bootstrap, given.hours), given.json)


if __name__ == "__main__":
    main()
