"""What a reset costs under each `reset.strategy`: `marker` is what the other is measured against.

    python -m benchmarks.bench_resets [--json] [--keys 100000] [--changes 0]

One process, a real Kafka, one partition of 32 segments, values of 100 bytes. All segments are reset at once: first with
every key alive, then with half of the keys lost without a delete. `--changes` writes so many changes per key before,
all of which a strategy that takes back must read. `cpu` is the process's own, of all its threads, which a busy machine
changes little. `held` is the most memory that the keys took which Kafka holds.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.common import Figure, kafka, parser, show
from deelog_connector.core.reset_strategy import Strategy
from deelog_connector.core.segment import Segment
from deelog_connector.runtime import Connector
from deelog_schemas.config import parse
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry, Operation, Reason

SEGMENTS = 32
PATIENCE = 600.0


class Side:
    """A cache in a dict per segment."""

    def __init__(self) -> None:
        self.data: list[dict[bytes, bytes]] = [{} for _ in range(SEGMENTS)]

    def entries(self, segment: int) -> list[Entry]:
        return [Entry(key, value, None) for key, value in self.data[segment].items()]

    def get(self, segment: int, key: bytes) -> Entry | None:
        value = self.data[segment].get(key)
        return None if value is None else Entry(key, value, None)

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        raise AssertionError("nobody else writes here")

    def released(self, segment: int) -> None:
        raise AssertionError("nothing is released")

    def stepped_down(self, segment: int, reason: str) -> None:
        raise AssertionError(reason)


class Held:
    """Looks now and then how much the keys take that Kafka holds."""

    def __init__(self, connector: Connector) -> None:
        self._core = connector.core
        self.most = 0

    async def drained(self) -> tuple[float, float]:
        """Seconds until everything is written, and of the processor."""
        begin, cpu = time.monotonic(), time.process_time()
        while self._core.unwritten():
            if time.monotonic() > begin + PATIENCE:
                raise TimeoutError(f"{self._core.unwritten()} are not written after {PATIENCE:g} s")
            self.most = max(self.most, sum(map(_size, self._core.primaries())))
            await asyncio.sleep(0.005)
        return time.monotonic() - begin, time.process_time() - cpu


def _size(segment: Segment) -> int:
    held = segment.reset.keys_in_kafka if segment.reset is not None else None
    return 0 if held is None else sys.getsizeof(held.keys) + len(held.keys) * 45  # of a key of 12 bytes


async def measured(bootstrap: str, strategy: Strategy, keys: int, changes: int) -> list[Figure]:
    """One strategy, on topics of its own."""
    config = parse(
        {
            "topic.prefix": f"bench-{strategy}",
            "cache.name": "c",
            "node.id": "n1",
            "bootstrap.servers": bootstrap,
            "segment.count": str(SEGMENTS),
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
            "reset.strategy": str(strategy),
            "signal.kafka.topic": "",
        }
    )
    side = Side()
    for number in range(keys):
        key = b"key-%08d" % number
        side.data[segment_of(key, SEGMENTS)][key] = b"v" * 100
    connector = Connector(config, "n1@1", side, connector_name="bench")
    await connector.start()
    try:
        core, held = connector.core, Held(connector)
        for segment in range(SEGMENTS):
            core.promote(segment, 1, "start")
        connector.wake()
        await held.drained()
        for _ in range(changes):
            for segment, data in enumerate(side.data):
                for key, value in data.items():
                    core.append(segment, Reason.PUT, key, value, None, time.time_ns() // 1000, True)
                core.acked(segment, core.last_sequence(segment))
                await held.drained()
        alive = await reset(connector, held)
        for data in side.data:
            for key in list(data)[::2]:
                del data[key]
        half = await reset(connector, held)
        deleted = connector.stats.reset_deletes
    finally:
        await connector.stop(release=False)
    scale = 100_000 / keys
    return [
        (f"reset_{strategy}", alive[0] * scale, "s per 100,000 live keys"),
        (f"reset_{strategy}_cpu", alive[1] * scale, "s of CPU"),
        (f"reset_{strategy}_half_lost", half[0] * scale, "s per 100,000 keys that Kafka holds"),
        (f"reset_{strategy}_half_lost_cpu", half[1] * scale, "s of CPU"),
        (f"reset_{strategy}_deletes", deleted, "keys"),
        (f"reset_{strategy}_held", held.most / 1e6 * scale, "MB per 100,000 keys"),
    ]


async def reset(connector: Connector, held: Held) -> tuple[float, float]:
    """Seconds, and of the processor, for a reset of every segment."""
    for segment in range(SEGMENTS):
        connector.core.request_reset(segment, "signal")
    connector.wake()
    return await held.drained()


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--keys", type=int, default=100_000)
    arguments.add_argument("--changes", type=int, default=0)
    given = arguments.parse_args()
    figures: list[Figure] = []
    with kafka() as bootstrap:
        for strategy in (Strategy.MARKER, Strategy.TOMBSTONES):
            figures += asyncio.run(measured(bootstrap, strategy, given.keys, given.changes))
    found = {name: value for name, value, _ in figures}
    ratio = found["reset_tombstones_cpu"] / found["reset_marker_cpu"]
    figures.append(("reset_tombstones_cpu_ratio", ratio, "of marker"))
    show(figures, given.json)


if __name__ == "__main__":
    main()
