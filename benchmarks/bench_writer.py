"""The writer: operations per second from op log to committed in Kafka, and its ceiling in the same run.

    python benchmarks/bench_writer.py [--json] [--operations 200000] [--rounds 3]

The ceiling is a loop that commits the same ready-made records in transactions of the same size: no op log, no
encoding, no positions. `writer_ratio` is writer over ceiling, of the medians of interleaved rounds. `writer_encoding`
is the part of one core's time that the encoding of a record (key, envelope, header) takes by itself.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid

from benchmarks.common import Figure, kafka, parser, show
from deelog_connector.core.effects import OperationsItem
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import OutRecord, Session
from deelog_connector.runtime import Connector
from deelog_connector.runtime.encode import Encoder
from deelog_schemas.config import Config, parse
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.keys import partition_of, segment_of
from deelog_schemas.operation import Entry, Operation, Reason

VALUE = b"v" * 100
KEYS = 20_000
BATCH = 8192


class Nothing:
    """A cache side without a cache: its segments begin empty and nothing is ever corrected."""

    def entries(self, segment: int) -> list[Entry]:
        return []

    def get(self, segment: int, key: bytes) -> Entry | None:
        return None

    def corrected(self, segment: int, operations: list[Operation]) -> None:
        raise AssertionError("nothing to correct")

    def released(self, segment: int) -> None:
        pass

    def stepped_down(self, segment: int, reason: str) -> None:
        raise AssertionError(reason)


def config_of(bootstrap: str) -> Config:
    """The defaults, with an op log that holds a whole round."""
    fields = {
        "connector.class": "deelog.CachetoolsConnector",
        "topic.prefix": f"bench{uuid.uuid4().hex[:8]}",
        "bootstrap.servers": bootstrap,
        "node.id": "n1",
        "cache.name": "c",
        "max.queue.size": "2000000",
        "max.queue.size.in.bytes": "2000000000",
        "topic.creation.default.replication.factor": "1",
        "max.batch.size": str(BATCH),
    }
    return parse(fields)


async def writer_round(connector: Connector, operations: int) -> float:
    """Seconds from a full op log to all of it read back as committed."""
    core, keys = connector.core, [b"session:%06d" % i for i in range(KEYS)]
    places = [(key, segment_of(key, core.segments)) for key in keys]
    last = {}
    for i in range(operations):
        key, segment = places[i % KEYS]
        last[segment] = core.append(segment, Reason.PUT, key, VALUE, None, 1_700_000_000_000_000, i >= KEYS).sequence
    began = time.perf_counter()
    for segment, sequence in last.items():
        core.acked(segment, sequence)
    connector.wake()
    while core.unwritten():
        await asyncio.sleep(0.001)
    return time.perf_counter() - began


def ready_made(config: Config, operations: int) -> tuple[list[OutRecord], float]:
    """The records that the writer would write, encoded, and the seconds that took."""
    topic, segments = config.topics.changes, config["segment.count"]
    partitions = config["topic.creation.default.partitions"]
    encoder = Encoder(JsonCodec(topic, "bench", "p", "c"), topic, config.topics.positions, "n1@1", True, clock=time)
    runs: dict[int, list[Operation]] = {}  # by segment, as the writer sends them
    for i in range(operations):
        key = b"session:%06d" % (i % KEYS)
        segment = segment_of(key, segments)
        operation = Operation(1, i, Reason.PUT, key, VALUE, None, 1_700_000_000_000_000, i >= KEYS)
        runs.setdefault(segment, []).append(operation)
    items = [OperationsItem(s, partition_of(s, partitions, segments), run) for s, run in runs.items()]
    began = time.perf_counter()
    records = list(encoder.records(items))
    return records, time.perf_counter() - began


async def ceiling_round(session: Session, records: list[OutRecord]) -> float:
    """Seconds to commit ready-made records in transactions of `BATCH`."""
    began = time.perf_counter()
    for start in range(0, len(records), BATCH):
        await session.commit(records[start : start + BATCH])
    return time.perf_counter() - began


async def measure(bootstrap: str, operations: int, rounds: int) -> list[Figure]:
    """All figures."""
    config = config_of(bootstrap)
    connector = Connector(config, "n1@1", Nothing(), connector_name="bench")
    await connector.start()
    for segment in range(connector.core.segments):
        connector.core.promote(segment, 1)
    while connector.core.unwritten():
        await asyncio.sleep(0.01)
    records, encoding = ready_made(config, operations)
    port = Librdkafka()
    session = await port.session(config, f"{config['topic.prefix']}/ceiling", lambda: 1_048_588)
    await session.open()
    ours, ceilings = [], []
    for _ in range(rounds + 1):
        ours.append(await writer_round(connector, operations))
        ceilings.append(await ceiling_round(session, records))
    await session.discard()
    await port.close()
    await connector.stop()
    own, top = statistics.median(ours[1:]), statistics.median(ceilings[1:])  # the first one warms up
    return [
        ("writer_operations", operations / own, "operations/s"),
        ("writer_ceiling", operations / top, "records/s"),
        ("writer_ratio", top / own, "of the ceiling"),
        ("writer_encoding", encoding / operations * 1e6, "µs/record"),
    ]


def main() -> None:
    """Measures and prints."""
    arguments = parser(__doc__)
    arguments.add_argument("--operations", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with kafka() as bootstrap:
        show(asyncio.run(measure(bootstrap, given.operations, given.rounds)), given.json)


if __name__ == "__main__":
    main()
