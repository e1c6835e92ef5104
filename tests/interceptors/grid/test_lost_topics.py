"""The topics that a grid is held together by are deleted, or made again, under its nodes: none ends, nothing is lost.

In memory, and once with processes and a real Kafka.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from deelog_connector.kafka_port import OutRecord
from tests.interceptors.grid import in_memory
from tests.interceptors.grid.clients import Writer, assert_copies_equal, assert_nothing_lost
from tests.interceptors.grid.cluster import Grid, eventually
from tests.interceptors.grid.test_failures import nothing_is_lost
from tests.support.kafka import Broker
from tests.support.topics import derived

POSITIONS, TOPOLOGY, SIGNALS = "p.c.positions", "p.c.topology", "p-signal"


def delete(grid: in_memory.Grid, topic: str) -> None:
    grid.kafka.delete(topic)


def recreate(grid: in_memory.Grid, topic: str) -> None:
    grid.kafka.recreate(topic)


def cut(grid: in_memory.Grid, topic: str) -> None:
    """An unclean election that leaves nothing."""
    for partition in range(grid.kafka.topics[topic].partitions):
        grid.kafka.truncate(topic, partition, len(grid.kafka.logs[topic, partition].slots))


@pytest.mark.parametrize("topics", [(TOPOLOGY,), (POSITIONS,), (TOPOLOGY, POSITIONS)], ids=["one", "other", "both"])
@pytest.mark.parametrize("lose", [delete, recreate, cut])
def test_no_node_ends_and_later_ones_find_all(
    memory_grid: in_memory.Grid, lose: Callable[[in_memory.Grid, str], None], topics: tuple[str, ...]
) -> None:
    grid = memory_grid
    grid.start(3)
    writer = in_memory.Writer(grid, "w")
    grid.eventually(writer.has_written)
    for topic in topics:
        lose(grid, topic)
    before = sum(writer.acked.values())
    grid.eventually(lambda: sum(writer.acked.values()) > before + 500, what="writes that go on")
    grid.engine.run(None, 5.0)
    assert len(grid.live()) == 3
    grid.nodes["n1"].signal(signal.SIGKILL)
    grid.complete(2)
    grid.join("n4")
    grid.complete(3)
    writer.end()
    grid.written()
    nothing_is_lost(grid, writer)
    grid.equal_copies()
    content, _ = derived(grid.changes())
    assert content == grid.cached()
    assert grid.resets() == ({"initial", "positions_lost"} if POSITIONS in topics else {"initial"})


@pytest.mark.parametrize("lose", [delete, recreate, cut])
def test_signals_are_heard_after_their_topic_was_lost(
    memory_grid: in_memory.Grid, lose: Callable[[in_memory.Grid, str], None]
) -> None:
    grid = memory_grid
    grid.start(2)

    def ask(segment: int) -> None:
        data = {"cache": "c", "segments": [segment], "reason": "asked"}
        value = json.dumps({"id": "i", "type": "reset-segment", "data": data}).encode()
        grid.kafka.logs[SIGNALS, 0].append(OutRecord(SIGNALS, 0, b"p", value, []), None)

    def resets() -> int:
        return sum(node.stats()["resets"].get("signal", 0) for node in grid.live())

    for segment in range(5):
        ask(segment)
    grid.eventually(lambda: resets() == 5, what="resets")
    lose(grid, SIGNALS)
    grid.eventually(lambda: (SIGNALS, 0) in grid.kafka.logs, what="the topic")
    grid.engine.run(None, 1.0)
    ask(6)
    ask(7)
    grid.eventually(lambda: resets() == 7, what="resets")
    assert len(grid.live()) == 2


def test_deleted_under_processes_they_are_made_again(grid: Grid, kafka: Broker, prefix: str) -> None:
    grid.start(3)
    writer = Writer(grid, "w")
    writer.start()
    eventually(lambda: len(writer.acked) == 50)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    names = [f"{prefix}.c.topology", f"{prefix}.c.positions"]
    for future in admin.delete_topics(names).values():
        future.result()
    lost = "positions_lost"
    eventually(lambda: sum(node.stats()["resets"].get(lost, 0) for node in grid.live()) >= 32, 60, "the resets")
    grid.nodes["n1"].kill()
    grid.complete(2)
    node = grid.nodes["n4"] = grid.node("n4")
    node.start()
    node.wait()
    grid.complete(3)
    before = dict(writer.acked)
    eventually(lambda: all(writer.acked[key] > before[key] for key in before))
    writer.end()
    client = grid.client()
    assert_nothing_lost(client, writer)
    client.close()
    assert_copies_equal(grid)
    assert set(names) <= set(admin.list_topics(timeout=10).topics)
