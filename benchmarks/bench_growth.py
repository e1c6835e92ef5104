"""What the diff job keeps, batch after batch: its checkpoint on disk and the memory of its processes.

    python -m benchmarks.bench_growth [--json] [--batches 200] [--segments 256]

Small changes are committed until 100 batches are done, which is what Spark keeps of its own log, then until
`--batches` more are: `growth_disk_ratio` and `growth_memory_ratio` are the second over the first. Memory is that of the
driver's Python, its JVM and the Python workers; the heap of a JVM that nobody presses grows to its limit by itself.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

import psutil

from benchmarks.common import Figure, kafka, parser, show
from tests.spark.processes import WAIT, Job
from tests.support.changes import Cache, config_of
from tests.support.waiting import waiting

PARTITIONS = 4
KEPT_BY_SPARK = 100
LIVE = 5_000


def measure(bootstrap: str, folder: Path, batches: int, segments: int) -> list[Figure]:
    """Both sizes, before and after."""
    place = folder / "checkpoint"
    more = {"segment_count": segments, "diff_trigger_interval_ms": 0}
    config = config_of(bootstrap, f"bench{uuid.uuid4().hex[:8]}", str(place), **more)
    cache = Cache(config, PARTITIONS)
    job = Job(config, folder)
    written = 0

    def until_batch(number: int) -> tuple[float, float]:
        nonlocal written
        while job.told().get("batch", -1) < number:
            with cache.batch():
                for _ in range(100):
                    cache.put(b"key:%d" % (written % LIVE), b"%d" % written)
                    written += 1
            waiting(lambda: job.caught_up(cache), WAIT, "the job to catch up")
        return disk(place), memory(job)

    try:
        job.running()
        before = until_batch(KEPT_BY_SPARK)
        after = until_batch(KEPT_BY_SPARK + batches)
    finally:
        job.process.terminate()
        job.close()
    figures: list[Figure] = []
    for name, first, last in zip(("disk", "memory"), before, after, strict=True):
        figures += [
            (f"growth_{name}_before", first, "MB"),
            (f"growth_{name}_after", last, "MB"),
            (f"growth_{name}_ratio", last / first, "ratio"),
        ]
    return figures


def disk(place: Path) -> float:
    """MB of the files below a directory; one that goes meanwhile counts nothing."""
    total = 0
    for path in place.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total / 1e6


def memory(job: Job) -> float:
    """MB that the job's processes hold."""
    total = 0
    for process in (psutil.Process(job.process.pid), *job.children()):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # a worker that ended now
    return total / 1e6


def main() -> None:
    """See the module."""
    options = parser(__doc__)
    options.add_argument("--batches", type=int, default=200)
    options.add_argument("--segments", type=int, default=256)
    given = options.parse_args()
    with kafka() as bootstrap, tempfile.TemporaryDirectory() as folder:
        figures = measure(bootstrap, Path(folder), given.batches, given.segments)
    show(figures, given.json)


if __name__ == "__main__":
    main()
