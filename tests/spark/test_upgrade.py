"""docs/howto/upgrading.md: a rolling restart of nodes while clients write, and of the diff job on its checkpoint."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interceptors.grid.clients import Writer, assert_nothing_lost
from tests.interceptors.grid.cluster import Grid, eventually
from tests.spark.reference import in_topic
from tests.spark.test_diff_job import run
from tests.support.changes import config_of
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODES = 3


def _more(writer: Writer, before: int) -> bool:
    return sum(writer.acked.values()) > before


@pytest.mark.slow
def test_a_rolling_restart_loses_nothing_resets_nothing_and_tells_nothing_twice(
    kafka: Broker, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = config_of(kafka.bootstrap, prefix, str(tmp_path / "cp"), segment_count=32)
    (tmp_path / "grid").mkdir()
    # On a busy machine nobody is taken for dead, and fenced.
    grid = Grid(tmp_path / "grid", kafka.bootstrap, prefix, cache_failure_timeout_ms="20000")
    writer = Writer(grid, "w", pause=0.02)
    batches = []
    try:
        grid.start(NODES)
        writer.start()
        for node in grid.nodes.values():
            eventually(lambda: len(writer.acked) == 50, 60, "writes")
            batches.append(run(config, spark)["batch"])  # the page's order: the job first
            before = sum(writer.acked.values())
            node.signal(signal.SIGTERM)
            assert node.ended() == 0, node.log
            node.start()
            node.wait()
            grid.complete(NODES)
            eventually(partial(_more, writer, before), 30, "writes that go on")
        writer.end()
        with grid.client() as client:
            assert_nothing_lost(client, writer)
            held = {key.encode(): client.get(key) for key in writer.acked}
        eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), 60, "everything written")
        batches.append(run(config, spark)["batch"])
        fenced = [(node.stats()["fenced"], node.stats()["zombie_commits_refused"]) for node in grid.live()]
    finally:
        writer.end()
        grid.end()
    assert fenced == [(0, 0)] * NODES
    assert batches == sorted(set(batches)), "the job went on from its checkpoint each time"
    content, readers = derived(read_topic(kafka.bootstrap, config.topics.changes))
    assert content == held
    assert all(reader.resets == ["initial"] for reader in readers.values())
    assert sum(reader.repeats for reader in readers.values()) == 0
    told = [t for rows in in_topic(config, 2).values() for t in rows]
    assert {t.key: t.after.value for t in told if t.after is not None} == held
    assert len({(t.key, t.position) for t in told}) == len(told), "a difference twice"
