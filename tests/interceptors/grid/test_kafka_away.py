"""A grid while Kafka is away, and a node that gets SIGTERM while it writes a reset."""

from __future__ import annotations

from signal import SIGTERM

from deelog_schemas import canonical
from deelog_schemas.header import Kind
from tests.interceptors.grid.in_memory import SEGMENTS, Grid, Writer
from tests.interceptors.grid.test_failures import nothing_is_lost
from tests.support.topics import derived


def overflows(grid: Grid, policy: str) -> int:
    """How often all nodes together used the policy."""
    return sum(int(node.stats()["overflow"].get(policy, 0)) for node in grid.live())


def test_a_full_op_log_coalesces_under_load_while_kafka_is_away(memory_grid: Grid) -> None:
    """Readers end with the caches' entries, without a reset, and no write was refused."""
    grid = memory_grid
    grid.config |= {"max.queue.size": "400", "max.batch.size": "100", "oplog.overflow": "coalesce"}
    grid.start(2)
    writers = [Writer(grid, name, keys=25) for name in ("a", "b")]
    grid.eventually(lambda: all(writer.has_written() for writer in writers))
    refused = [writer.client.errors for writer in writers]
    grid.kafka.up = False
    grid.eventually(lambda: overflows(grid, "coalesce") > SEGMENTS, what="op logs that are full")
    before = [sum(writer.acked.values()) for writer in writers]
    grid.eventually(lambda: all(sum(w.acked.values()) > b for w, b in zip(writers, before, strict=True)))
    grid.kafka.up = True
    for writer in writers:
        writer.end()
    assert [writer.client.errors for writer in writers] == refused
    grid.complete(2)
    grid.written()
    for writer in writers:
        nothing_is_lost(grid, writer)
    grid.equal_copies()
    content, readers = derived(grid.changes())
    assert content == grid.cached()
    assert {reason for reader in readers.values() for reason in reader.resets} == {"initial"}
    assert sum(reader.repeats for reader in readers.values()) == 0
    assert overflows(grid, "reset") == 0


def test_sigterm_in_the_middle_of_a_reset_ends_it_and_gives_the_segments_away(memory_grid: Grid) -> None:
    """The stopping node first completes its open resets. Its successor continues without another one."""
    grid = memory_grid
    grid.config |= {"incremental.snapshot.chunk.size": "1", "max.batch.size": "2", "cache.backups": "1"}
    grid.start(2)
    client = grid.client()
    for number in range(640):
        client.set(f"k{number}", f"v{number}")
    grid.written()
    leaver, heir = grid.nodes["n1"], grid.nodes["n2"]
    mine = [segment for segment in range(SEGMENTS) if leaver.dump(segment)[0] == "primary"]
    data = {"cache": "c", "segments": mine, "reason": "test"}
    # A node that reads the signal after the reset, or as primary, resets again.
    grid.kafka.uncoordinated.add(leaver.config.topics.transactional_id_node("n1"))
    grid.produce("p-signal", b"p", canonical.dumps({"id": "1", "type": "reset-segment", "data": data}))
    grid.eventually(lambda: heir.stats()["signals"].get("reset-segment") == 1, what="the signal to be read by the heir")
    grid.kafka.uncoordinated.clear()
    begun = leaver.stats()["reset_rows"]
    grid.eventually(lambda: leaver.stats()["reset_rows"] > begun, what="rows of the reset")
    assert leaver.stats()["resets"].get("signal", 0) < len(mine), "the resets ended before the signal could be sent"
    leaver.signal(SIGTERM)
    assert leaver.ended() is None
    grid.complete(1)
    grid.written()
    records = grid.changes()
    content, readers = derived(records)
    assert content == grid.cached() == {b"k%d" % n: b"v%d" % n for n in range(640)}
    assert {s: (readers[s].open, readers[s].resets) for s in mine} == dict.fromkeys(mine, (None, ["initial", "signal"]))
    assert sum(reader.repeats for reader in readers.values()) == 0
    releases = {r.header.segment for r in records if r.header.kind is Kind.RELEASE}
    assert releases >= set(mine)
