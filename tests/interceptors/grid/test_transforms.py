"""Filters and transforms on a grid: dropped operations do not look lost to the next owner.

Bad input: a transform that raises on one node, which is then killed; a missing class; a cache that is excluded from
capture.
"""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL

import pytest
from click.testing import CliRunner

from deelog_interceptors.grid.cli import node
from deelog_schemas.header import Kind
from deelog_schemas.keys import segment_of
from tests.connector.transforms.transforms_for_tests import BOMB
from tests.interceptors.grid.in_memory import SEGMENTS, Grid
from tests.support.topics import derived

MINE = "tests.connector.transforms.transforms_for_tests"
FILTER = {
    "skip.messages.without.change": "true",
    "transforms": "f,s",
    "transforms.f.type": "deelog_connector.transforms.Filter",
    "transforms.f.predicate": "private",
    "transforms.s.type": f"{MINE}.Suffix",
    "predicates": "private",
    "predicates.private.type": "deelog_connector.transforms.KeyMatches",
    "predicates.private.pattern": "private:.*",
}


def test_kill_9_behind_what_was_left_out_resets_nothing(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.config |= FILTER
    grid.start(2)
    client = grid.client()
    for number in range(200):
        client.set(f"k{number}", number)
        client.set(f"private:{number}", number)  # the last operation of many segments
    operations = sum(n.stats()["grid"]["operations"] for n in grid.live())
    for number in range(200):
        client.set(f"k{number}", number)
    assert sum(n.stats()["grid"]["operations"] for n in grid.live()) == operations == 400
    grid.written()
    grid.primary_of(0).signal(SIGKILL)
    grid.complete(1)
    grid.written()
    for number in range(100):
        client.set(f"k{number}", "again")
        client("DEL", f"private:{number}")
    grid.written()
    assert grid.resets() == {"initial"}
    records = grid.changes()
    content, readers = derived(records)
    assert content == {b"k%d" % n: b"again!" if n < 100 else b"%d!" % n for n in range(200)}
    assert {reason for reader in readers.values() for reason in reader.resets} == {"initial"}
    assert any(record.header.kind is Kind.SKIPPED for record in records)


def test_the_successor_of_a_halted_node_writes_from_where_it_stopped(memory_grid: Grid) -> None:
    grid = memory_grid
    grid.config |= {"transforms": "b", "transforms.b.type": f"{MINE}.Bomb"}
    first = grid.join("n1")
    second = grid.join("n2", event_processing_failure_handling_mode="skip")  # skips it: a fixed node
    grid.complete(2)
    grid.written()
    client = grid.client()
    mine = [k for k in map("k{}".format, range(200)) if first.dump(segment_of(k.encode(), SEGMENTS))[0] == "primary"]
    client.set(mine[0], "good")
    grid.written()
    client.set(mine[0], BOMB)
    halted = grid.eventually(lambda: first.stats()["halted"])
    assert f"transform b ({MINE}.Bomb) failed on cache c, segment {segment_of(mine[0].encode(), SEGMENTS)}" in halted
    for key in mine:  # the cache still works, on this node, too
        client.set(f"{{{key}}}", "behind")
    grid.equal_copies()
    assert first.stats()["unwritten"]
    first.signal(SIGKILL)
    grid.complete(1)
    grid.written()
    assert second.stats()["erroneous"] >= 1
    assert grid.resets() == {"initial"}
    content, _ = derived(grid.changes())
    assert content == {f"{{{key}}}".encode(): b"behind" for key in mine} | {mine[0].encode(): b"good"}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"transforms": "t", "transforms.t.type": "not.There"}, "transforms.t.type = 'not.There': cannot be imported"),
    ],
)
def test_a_node_that_may_not_or_cannot_capture_does_not_start(
    tmp_path: Path, fields: dict[str, str], told: str
) -> None:
    given = {"topic.prefix": "p", "cache.name": "c", "node.id": "n1", "bootstrap.servers": "127.0.0.1:1", **fields}
    path = tmp_path / "node.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    result = CliRunner().invoke(node, ["--config", str(path)])
    assert result.exit_code == 2
    assert told in result.output
