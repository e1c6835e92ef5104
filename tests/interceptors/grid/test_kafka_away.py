"""Real nodes while Kafka hangs, and nodes that get SIGTERM while they write a reset."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deelog_connector.kafka.publish import publish
from deelog_schemas import canonical
from deelog_schemas.config import parse
from deelog_schemas.header import Kind
from tests.interceptors.grid.clients import SEGMENTS, Writer, assert_copies_equal, assert_nothing_lost
from tests.interceptors.grid.cluster import Grid, eventually
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic


@pytest.fixture
def own_grid(own_kafka: Broker, prefix: str, tmp_path: Path) -> Iterator[Grid]:
    """A grid with a Kafka for this test alone: set `config`, call `start(count)`."""
    found = Grid(tmp_path, own_kafka.bootstrap, prefix)
    try:
        yield found
    finally:
        found.end()


def held(grid: Grid) -> dict[bytes, bytes]:
    """The entries of the primaries."""
    dumps = [grid.primary_of(segment).dump(segment)[2] for segment in range(SEGMENTS)]
    return {key: value for dump in dumps for key, (value, _) in dump.items()}


def overflows(grid: Grid, policy: str) -> int:
    """How often all nodes together used the policy."""
    return sum(int(node.stats()["overflow"].get(policy, 0)) for node in grid.live())


@pytest.mark.slow
def test_a_full_op_log_coalesces_under_load_while_kafka_hangs(own_grid: Grid, own_kafka: Broker) -> None:
    """Readers end with the caches' entries, without a reset, and no write was refused."""
    grid = own_grid
    grid.config |= {"max.queue.size": "400", "max.batch.size": "100", "oplog.overflow": "coalesce"}
    grid.start(2)
    writers = [Writer(grid, name, keys=25) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    eventually(lambda: all(len(writer.acked) == 25 for writer in writers))
    own_kafka.pause()
    eventually(lambda: overflows(grid, "coalesce") > SEGMENTS, 60, "op logs that are full")
    before = {writer.name: sum(writer.acked.values()) for writer in writers}
    eventually(lambda: all(sum(w.acked.values()) > before[w.name] for w in writers), 60, "writes that go on")
    own_kafka.resume()
    for writer in writers:
        writer.end()
        assert writer.errors == 0
    grid.complete(2)
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), 60, "everything written")
    client = grid.client()
    for writer in writers:
        assert_nothing_lost(client, writer)
    client.close()
    assert_copies_equal(grid)
    content, readers = derived(read_topic(own_kafka.bootstrap, f"{grid.config['topic.prefix']}.c"))
    assert content == held(grid)
    assert {reason for reader in readers.values() for reason in reader.resets} == {"initial"}
    assert sum(reader.repeats for reader in readers.values()) == 0
    assert overflows(grid, "reset") == 0


def test_sigterm_in_the_middle_of_a_reset_ends_it_and_gives_the_segments_away(grid: Grid, kafka: Broker) -> None:
    """The stopping node first completes its open resets. Its successor continues without another one."""
    grid.config |= {"incremental.snapshot.chunk.size": "1", "max.batch.size": "2", "cache.backups": "1"}
    grid.start(2)
    client = grid.client()
    for number in range(640):
        client.set(f"k{number}", f"v{number}")
    leaver, heir = grid.nodes["n1"], grid.nodes["n2"]
    eventually(lambda: leaver.stats()["unwritten"] == 0 and heir.stats()["unwritten"] == 0, 60, "everything written")
    mine = [segment for segment in range(SEGMENTS) if leaver.dump(segment)[0] == "primary"]
    signal_reset(grid, mine)
    begun = leaver.stats()["reset_rows"]
    eventually(lambda: leaver.stats()["reset_rows"] > begun, 60, "rows of the reset")
    # A node that reads the signal as primary resets them again.
    eventually(lambda: heir.stats()["signals"].get("reset-segment") == 1, 60, "the signal is read by the heir")
    assert leaver.stats()["resets"].get("signal", 0) < len(mine), "the resets ended before the signal could be sent"
    leaver.signal(signal.SIGTERM)
    assert leaver.ended(60) == 0
    grid.complete(1)
    eventually(lambda: heir.stats()["unwritten"] == 0, 60, "everything written")
    records = read_topic(kafka.bootstrap, f"{grid.config['topic.prefix']}.c")
    content, readers = derived(records)
    assert content == held(grid) == {b"k%d" % n: b"v%d" % n for n in range(640)}
    assert {s: (readers[s].open, readers[s].resets) for s in mine} == dict.fromkeys(mine, (None, ["initial", "signal"]))
    assert sum(reader.repeats for reader in readers.values()) == 0
    releases = {r.header.segment for r in records if r.header.kind is Kind.RELEASE}
    assert releases >= set(mine)
    client.close()


def signal_reset(grid: Grid, segments: list[int]) -> None:
    """Sends the signal that `deelog signal` sends."""
    config = parse({"node.id": "x", **grid.config})
    data = {"cache": "c", "segments": segments, "reason": "test"}
    signal = canonical.dumps({"id": "1", "type": "reset-segment", "data": data})
    publish(config, config.topics.signal, config["topic.prefix"], signal)
