"""The diff job's latency: from the commit of a change to the diff topic, at a steady rate of changes.

    python -m benchmarks.bench_latency [--json] [--seconds 30] [--rates 1000,10000] [--intervals 500,0]

A writer commits changes every 50 ms, `deelog diff` runs as a process of its own, and a read_committed consumer notes
when each change stands in the diff topic: `latency_<rate>_<trigger interval>_p50` and `_p99`, in ms. Another one
notes when it stands in the change topic, `latency_floor_<rate>_p50`: the ratio of the two is what the job adds.
"""

from __future__ import annotations

import math
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, Watcher, kafka, parser, show
from tests.spark.processes import WAIT, Job
from tests.support.changes import Cache, config_of
from tests.support.waiting import waiting

PARTITIONS, SEGMENTS = 4, 256
COMMITS_PER_SECOND = 20
WARM_SECONDS = 10
"""Left out: the JVM is cold."""
LIVE = 20_000
"""Keys in turn."""


def told_by(value: bytes) -> bytes:
    """The value of the entry, which no two changes have."""
    start = value.rindex(b'"value":"') + 9
    return value[start : value.index(b'"', start)]


def measure(bootstrap: str, folder: Path, rate: int, interval: int, seconds: int) -> Iterator[Figure]:
    """Latencies at one rate and trigger interval."""
    more = {"segment_count": SEGMENTS, "diff_trigger_interval_ms": interval}
    folder.mkdir()
    config = config_of(bootstrap, f"bench{uuid.uuid4().hex[:8]}", str(folder / "checkpoint"), **more)
    cache = Cache(config, PARTITIONS)
    job = Job(config, folder)
    try:
        job.running()
        topics = config.topics.changes, config.topics.diff
        watchers = [Watcher(bootstrap, topic, PARTITIONS, told_by) for topic in topics]
        for watcher in watchers:
            watcher.start()
        committed = _write(cache, rate, seconds + WARM_SECONDS)
        waiting(lambda: len(watchers[1].seen) == len(committed), WAIT, "every difference")
        for watcher in watchers:
            watcher.ending = True
            watcher.join()
    finally:
        job.process.terminate()
        job.close()
    first = min(committed.values()) + WARM_SECONDS
    counted = [value for value, at in committed.items() if at >= first]
    floor, told = (np.array([w.seen[v] - committed[v] for v in counted]) * 1000 for w in watchers)
    yield f"latency_floor_{rate}_p50", float(np.percentile(floor, 50)), "ms"
    name = f"latency_{rate}_{interval}"
    yield f"{name}_p50", float(np.percentile(told, 50)), "ms"
    yield f"{name}_p99", float(np.percentile(told, 99)), "ms"
    yield f"{name}_ratio", float(np.percentile(told, 50) / np.percentile(floor, 50)), "ratio"


def _write(cache: Cache, rate: int, seconds: int) -> dict[bytes, float]:
    """Commits changes at a rate; when each value was committed."""
    committed: dict[bytes, float] = {}
    each = math.ceil(rate / COMMITS_PER_SECOND)
    begun = time.perf_counter()
    for turn in range(seconds * COMMITS_PER_SECOND):
        values = [b"%d" % (turn * each + n) for n in range(each)]
        with cache.batch():
            for value in values:
                cache.put(b"key:%d" % (int(value) % LIVE), value)
        at = time.perf_counter()
        committed.update(dict.fromkeys(values, at))
        left = begun + (turn + 1) / COMMITS_PER_SECOND - time.perf_counter()
        if left > 0:
            time.sleep(left)
    return committed


def main() -> None:
    """See the module."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=int, default=30, help="of each measurement, after 10 s of warming up")
    options.add_argument("--rates", default="1000,10000", help="changes per second")
    options.add_argument("--intervals", default="500,0", help="diff.trigger.interval.ms")
    given = options.parse_args()
    figures: list[Figure] = []
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        for rate in map(int, given.rates.split(",")):
            for interval in map(int, given.intervals.split(",")):
                place = Path(folder) / f"{rate}-{interval}"
                figures += measure(bootstrap, place, rate, interval, given.seconds)
    show(figures, given.json)


if __name__ == "__main__":
    main()
