"""Incremental snapshots and pauses of a grid of real nodes, by `deelog signal`, while nodes die and join."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from redis.cluster import RedisCluster

from deelog_schemas.envelope import JsonCodec
from deelog_schemas.header import Kind
from deelog_schemas.records import Record
from tests.interceptors.grid.clients import SEGMENTS, Writer
from tests.interceptors.grid.cluster import Grid, eventually
from tests.support.topics import derived, messages, read_topic

CODEC = JsonCodec("", "test", "", "")
KEYS = 1500


def signal(grid: Grid, *arguments: str) -> str:
    """Runs `deelog signal` as a user does. Returns the id of the signal."""
    file = grid.directory / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in (grid.config | {"node.id": "x"}).items()))
    command = [sys.executable, "-c", "from deelog_connector.cli import main; main()", "signal", *arguments]
    done = subprocess.run([*command, "--config", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


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


def notifications(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """All notifications on the topic."""
    found = [(json.loads(m.key()), json.loads(m.value())) for m in messages(bootstrap, topic)]
    assert all(key == {"id": value["id"]} for key, value in found)
    return [value for _, value in found]


def ends(records: list[Record]) -> dict[int, int]:
    """The offset after the last record, by partition."""
    return {record.partition: record.offset + 1 for record in records}


def put(client: RedisCluster, count: int, value: str) -> None:
    """Writes this many keys."""
    for number in range(count):
        client.set(f"k{number}", value)


def cached(grid: Grid) -> dict[bytes, bytes]:
    """The entries of the primaries."""
    found: dict[bytes, bytes] = {}
    for segment in range(int(grid.config["segment.count"])):
        found |= {key: value for key, (value, _) in grid.primary_of(segment).dump(segment)[2].items()}
    return found


def test_a_snapshot_under_writes_is_whole_though_an_owner_is_killed_in_the_middle(grid: Grid, prefix: str) -> None:
    told = f"{prefix}-told"
    grid.config |= {
        "incremental.snapshot.chunk.size": "5",
        "notification.sink.topic.name": told,
    }
    grid.start(3)
    client = grid.client()
    put(client, KEYS, "v")
    client.close()
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()))
    bootstrap, topic = grid.config["bootstrap.servers"], f"{prefix}.c"
    since = ends(read_topic(bootstrap, topic))
    writer = Writer(grid, "w")
    writer.start()
    identity = signal(grid, "execute-snapshot")
    victim = grid.nodes["n2"]
    eventually(lambda: victim.stats()["snapshot_rows"] > 20, what="the snapshot is under way on n2")
    assert victim.stats()["snapshots"] == [identity]
    victim.kill()
    grid.complete(2)
    eventually(lambda: all(node.stats()["snapshots"] == [] for node in grid.live()), 60, "the snapshot is complete")
    writer.end()
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()))

    records, held = read_topic(bootstrap, topic), cached(grid)
    assert len(held) >= KEYS
    content, readers = derived(records)
    assert content == held
    assert sum(reader.repeats for reader in readers.values()) == 0
    assert stock(records, {}) == held
    assert stock(records, since) == held  # a consumer that began at the signal has everything, from the snapshot
    rows = rows_outside(records)
    assert KEYS <= len(rows) < 2 * KEYS  # some segments began again, but not all of them
    assert {json.loads(row.value or b"")["source"]["snapshot"] for row in rows} == {"incremental"}

    found = [one for one in notifications(bootstrap, told) if one["id"] == identity]
    kinds = [one["type"] for one in found]
    assert kinds[0] == "STARTED"
    assert kinds[-2:] == ["TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert kinds.count("COMPLETED") == 1
    assert "IN_PROGRESS" in kinds
    assert {one["aggregate_type"] for one in found} == {"Incremental Snapshot"}
    last = found[-2]["additional_data"]
    assert (last["scanned_collection"], last["status"], last["connector_name"]) == ("c", "SUCCEEDED", prefix)
    assert int(last["total_rows_scanned"]) >= KEYS * 0.9  # keys written meanwhile came as changes
    others = {(one["aggregate_type"], one["type"]) for one in notifications(bootstrap, told)}
    assert {("Owner Change", "STARTED"), ("Owner Change", "COMPLETED"), ("Initial Snapshot", "COMPLETED")} <= others


@pytest.mark.slow
def test_a_pause_stands_for_a_node_that_joins_later(grid: Grid) -> None:
    grid.start(2)
    client = grid.client()
    signal(grid, "pause-writing")
    eventually(lambda: all(node.stats()["signals"].get("pause-writing") == 1 for node in grid.live()))
    put(client, 100, "v")
    joined = grid.nodes["n3"] = grid.node("n3")
    joined.start()
    joined.wait()
    grid.nodes["n1"].kill()
    # No segment is handed over while its release cannot be written.
    eventually(lambda: joined.stats()["grid"]["in_sync"] == SEGMENTS, 60, "n3 has a copy of everything")
    grid.nodes["n2"].kill()
    eventually(lambda: joined.stats()["grid"]["segments"].get("primary", 0) == SEGMENTS, 60, "n3 is primary")
    topic = f"{grid.config['topic.prefix']}.c"
    before = len(read_topic(grid.config["bootstrap.servers"], topic))
    client.close()
    client = grid.client()
    put(client, 100, "w")
    assert joined.stats()["transactions"] == 0
    assert len(read_topic(grid.config["bootstrap.servers"], topic)) == before
    signal(grid, "resume-writing")
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), 30)
    content, _ = derived(read_topic(grid.config["bootstrap.servers"], topic))
    assert content == {f"k{number}".encode(): b"w" for number in range(100)}
    client.close()
