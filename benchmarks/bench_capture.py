"""What capture costs a write of a cachetools cache, beside what people do by hand: `produce()` in the write path.

    python -m benchmarks.bench_capture [--json] [--seconds 5]

Prints `name value unit` lines, or one JSON object. Needs Kafka: DEELOG_TEST_BOOTSTRAP, or the embedded one is started.

`setitem_*`: bursts of writes, so short that the connector's thread seldom runs inside one: the write path by itself.
`latency_*`: each write of a paced load timed by itself while the connector (or the peer's producer) works in the same
process; both threads share one interpreter lock, and that is where p99 and max come from.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cachetools
import orjson
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import deelog_interceptors.cachetools as deelog
from benchmarks.common import kafka, parser, quiet, show

KEYS = [f"session:{number:06d}" for number in range(20_000)]
VALUE = "v" * 100
BURST = 100
BURSTS = 1500
RATES = (10_000, 50_000)
Write = Callable[[str, str], None]


@contextmanager
def bare(cache: Any, bootstrap: str) -> Iterator[Write]:
    yield cache.__setitem__


@contextmanager
def with_deelog(cache: Any, bootstrap: str) -> Iterator[Write]:
    config = {
        "bootstrap.servers": bootstrap,
        "topic.prefix": f"bench{uuid.uuid4().hex[:8]}",
        "cache.name": "sessions",
        "node.id": "n1",
    }
    with deelog.capture(cache, config) as capture:
        capture.wait_until_streaming()
        yield cache.__setitem__
        assert capture.failure is None


@contextmanager
def with_produce(cache: Any, bootstrap: str, dumps: Callable[[Any], Any]) -> Iterator[Write]:
    """As it is done by hand: a record in the write, delivered when it is delivered."""
    producer = Producer({**quiet(bootstrap), "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    topic = f"bench{uuid.uuid4().hex[:8]}"
    admin = AdminClient(quiet(bootstrap))
    created: Any = admin.create_topics([NewTopic(topic, 8, 1)])
    created[topic].result(30)
    setitem, produce, poll = cache.__setitem__, producer.produce, producer.poll

    def write(key: str, value: str) -> None:
        setitem(key, value)
        produce(topic, key=key, value=dumps({"op": "u", "key": key, "value": value, "ts_ms": int(time.time() * 1000)}))
        poll(0)

    write("first", VALUE)
    assert producer.flush(30) == 0, "the peer's producer does not reach Kafka"
    yield write
    producer.flush(60)


WAYS: dict[str, Callable[[Any, str], Any]] = {
    "bare": bare,
    "deelog": with_deelog,
    "produce_orjson": lambda cache, bootstrap: with_produce(cache, bootstrap, orjson.dumps),
    "produce_json": lambda cache, bootstrap: with_produce(cache, bootstrap, json.dumps),
}


def burst_us(write: Write, keys: list[str]) -> float:
    """Time of one write in µs: the lowest tenth of the bursts ends here, so that other processes count little."""
    times = []
    for number in range(BURSTS):
        start = number * BURST % len(keys)
        some = keys[start : start + BURST]
        begin = time.perf_counter_ns()
        for key in some:
            write(key, VALUE)
        times.append((time.perf_counter_ns() - begin) / len(some) / 1000)
        time.sleep(0.001)
    return statistics.quantiles(times, n=10)[0]


def latencies_us(write: Write, rate: int, seconds: float) -> list[float]:
    """Time of every write, in µs, sorted; `rate` per second in steps of a millisecond."""
    per_step, times = rate // 1000, []
    clock = time.perf_counter_ns
    number, begin = 0, time.perf_counter()
    for step in range(int(seconds * 1000)):
        for _ in range(per_step):
            key = KEYS[number % len(KEYS)]
            number += 1
            at = clock()
            write(key, VALUE)
            times.append((clock() - at) / 1000)
        time.sleep(max(0.0, begin + (step + 1) / 1000 - time.perf_counter()))
    took = time.perf_counter() - begin
    if took > seconds * 1.2:
        print(f"# {rate} per second were not reached: {number / took:.0f}")
    return sorted(times)


def measure(bootstrap: str, seconds: float) -> dict[str, tuple[float, str]]:
    figures: dict[str, tuple[float, str]] = {}
    for name, way in WAYS.items():
        for kind, size in (("", 2 * len(KEYS)), ("_evicting", 1000)):
            with way(cachetools.LRUCache(size), bootstrap) as write:
                for key in KEYS:
                    write(key, VALUE)
                figures[f"setitem{kind}_{name}"] = burst_us(write, KEYS), "us"
    for kind in ("", "_evicting"):
        plain = figures[f"setitem{kind}_bare"][0]
        for name in list(WAYS)[1:]:
            figures[f"setitem{kind}_{name}_added"] = figures[f"setitem{kind}_{name}"][0] - plain, "us"
        added = figures[f"setitem{kind}_deelog_added"][0]
        figures[f"setitem{kind}_deelog_to_bare"] = figures[f"setitem{kind}_deelog"][0] / plain, "ratio"
        for peer in ("produce_orjson", "produce_json"):
            figures[f"setitem{kind}_{peer}_to_deelog_added"] = (
                figures[f"setitem{kind}_{peer}_added"][0] / added,
                "ratio",
            )
    for rate in RATES:
        for name, way in WAYS.items():
            with way(cachetools.LRUCache(2 * len(KEYS)), bootstrap) as write:
                gc.collect()
                times = latencies_us(write, rate, seconds)
            for label, value in (
                ("p50", times[len(times) // 2]),
                ("p99", times[len(times) * 99 // 100]),
                ("max", times[-1]),
            ):
                figures[f"latency_{rate}_{name}_{label}"] = value, "us"
    return figures


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=5.0, help="length of each paced load")
    options = arguments.parse_args()
    with kafka() as bootstrap:
        figures = measure(bootstrap, options.seconds)
    show([(name, value, unit) for name, (value, unit) in figures.items()], options.json)


if __name__ == "__main__":
    main()
