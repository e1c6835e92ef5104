"""Incremental snapshots and pauses of a grid, by signals, while nodes die and join."""

from __future__ import annotations

import json
from signal import SIGKILL
from typing import Any

from deelog_schemas import canonical
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.header import Kind
from deelog_schemas.records import Record
from tests.interceptors.grid.in_memory import SEGMENTS, Grid, Writer
from tests.support.topics import derived

CODEC = JsonCodec("", "test", "", "")
KEYS, IDENTITY = 1500, "i"


def send(grid: Grid, kind: str, **data: Any) -> None:
    """Sends a signal as `deelog signal` does."""
    grid.produce("p-signal", b"p", canonical.dumps({"id": IDENTITY, "type": kind, "data": data}))


def stock(records: list[Record], since: dict[int, int]) -> dict[bytes, bytes]:
    """The entries of a stock consumer that read from these offsets on: upserts and deletes, in order."""
    held: dict[bytes, bytes] = {}
    for record in records:
        if record.offset < since.get(record.partition, 0) or record.header.kind not in (Kind.CHANGE, Kind.READ):
            continue
        assert record.value is not None
        envelope = CODEC.decode_value(record.value)
        key = CODEC.decode_key(record.key)
        if envelope.op == "d":
            held.pop(key, None)
        else:
            assert envelope.after is not None
            held[key] = envelope.after.value
    return held


def rows_outside(records: list[Record]) -> list[Record]:
    """Rows of incremental snapshots."""
    found, inside = [], set()
    for record in records:
        number, kind = record.header.segment, record.header.kind
        if kind is Kind.RESET_BEGIN:
            inside.add(number)
        elif kind is Kind.RESET_END:
            inside.discard(number)
        elif kind is Kind.READ and number not in inside:
            found.append(record)
    return found


def notifications(grid: Grid) -> list[dict[str, Any]]:
    """All notifications."""
    found = [(json.loads(m.key or b""), json.loads(m.value or b"")) for m in grid.messages("told")]
    assert all(key == {"id": value["id"]} for key, value in found)
    return [value for _, value in found]


def ends(records: list[Record]) -> dict[int, int]:
    """The offset after the last record, by partition."""
    return {record.partition: record.offset + 1 for record in records}


def test_a_snapshot_under_writes_is_whole_though_an_owner_is_killed_in_the_middle(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.config |= {"incremental.snapshot.chunk.size": "5", "notification.sink.topic.name": "told"}
    grid.start(3)
    grid.put(KEYS, "v")
    since = ends(grid.changes())
    writer = Writer(grid, "w")
    send(grid, "execute-snapshot", **{"data-collections": ["c"]})
    victim = grid.nodes["n2"]
    grid.eventually(lambda: victim.stats()["snapshot_rows"] > 20, what="the snapshot is under way on n2")
    assert victim.stats()["snapshots"] == [IDENTITY]
    victim.signal(SIGKILL)
    grid.complete(2)
    grid.eventually(
        lambda: all(node.stats()["snapshots"] == [] for node in grid.live()), 60, "the snapshot is complete"
    )
    writer.end()
    grid.written()

    records, held = grid.changes(), grid.cached()
    assert len(held) >= KEYS
    content, readers = derived(records)
    assert content == held
    assert sum(reader.repeats for reader in readers.values()) == 0
    assert stock(records, {}) == held
    assert stock(records, since) == held  # a consumer that began at the signal has everything, from the snapshot
    rows = rows_outside(records)
    assert KEYS <= len(rows) < 2 * KEYS  # some segments began again, but not all of them
    assert {json.loads(row.value or b"")["source"]["snapshot"] for row in rows} == {"incremental"}

    found = [one for one in notifications(grid) if one["id"] == IDENTITY]
    kinds = [one["type"] for one in found]
    assert kinds[0] == "STARTED"
    assert kinds[-2:] == ["TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert kinds.count("COMPLETED") == 1
    assert "IN_PROGRESS" in kinds
    assert {one["aggregate_type"] for one in found} == {"Incremental Snapshot"}
    last = found[-2]["additional_data"]
    assert (last["scanned_collection"], last["status"], last["connector_name"]) == ("c", "SUCCEEDED", "p")
    assert int(last["total_rows_scanned"]) >= KEYS * 0.9  # keys written meanwhile came as changes
    others = {(one["aggregate_type"], one["type"]) for one in notifications(grid)}
    assert {("Owner Change", "STARTED"), ("Owner Change", "COMPLETED"), ("Initial Snapshot", "COMPLETED")} <= others


def test_a_pause_stands_for_a_node_that_joins_later(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.start(2)
    send(grid, "pause-writing")
    grid.eventually(lambda: all(node.stats()["signals"].get("pause-writing") == 1 for node in grid.live()))
    client = grid.client()
    for number in range(100):
        client.set(f"k{number}", "v")
    joined = grid.join("n3")
    grid.nodes["n1"].signal(SIGKILL)
    # No segment is handed over while its release cannot be written.
    grid.eventually(lambda: joined.stats()["grid"]["in_sync"] == SEGMENTS, 60, "n3 has a copy of everything")
    grid.nodes["n2"].signal(SIGKILL)
    grid.eventually(lambda: joined.stats()["grid"]["segments"].get("primary", 0) == SEGMENTS, 60, "n3 is primary")
    before = len(grid.changes())
    for number in range(100):
        client.set(f"k{number}", "w")
    assert joined.stats()["transactions"] == 0
    assert len(grid.changes()) == before
    send(grid, "resume-writing")
    grid.written()
    content, _ = derived(grid.changes())
    assert content == {f"k{number}".encode(): b"w" for number in range(100)}
