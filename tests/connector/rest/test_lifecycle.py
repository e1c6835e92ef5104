"""REST requests to a running node under writes. Afterwards the topic's fold equals the cache, and no write is lost.

Bad input: offsets of a running connector, of another node's segment, or other than the current ones; fields that cannot
change while the process runs; a second connector; an existing one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deelog_connector.devkafka.ports import free_ports
from deelog_schemas.keys import segment_of
from tests.connector.rest.client import Api, start_with_rest
from tests.interceptors.grid.clients import SEGMENTS, Writer, assert_copies_equal, assert_nothing_lost
from tests.interceptors.grid.cluster import Grid, GridNode, eventually
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic

ME = "/connectors/deelog"


@contextmanager
def written_to(grid: Grid) -> Iterator[list[Writer]]:
    """Two clients that write all the time."""
    writers = [Writer(grid, f"w{n}") for n in range(2)]
    for writer in writers:
        writer.start()
    eventually(lambda: all(len(w.acked) == 50 for w in writers))
    try:
        yield writers
    finally:
        for writer in writers:
            writer.end()


def go_on(writers: list[Writer]) -> None:
    """Waits until every key was written again."""
    before = [dict(writer.acked) for writer in writers]
    eventually(lambda: all(w.acked[k] > b[k] for w, b in zip(writers, before, strict=True) for k in b))


def assert_topic_is_cache(grid: Grid, kafka: Broker, writers: list[Writer]) -> dict[str, int]:
    """Nothing is lost in the cache, and the topic's fold equals it. Returns all resets, by reason."""
    with grid.client() as client:
        for writer in writers:
            assert_nothing_lost(client, writer)
    assert_copies_equal(grid)
    eventually(lambda: all(node.stats()["unwritten"] == 0 for node in grid.live()), 30, "everything written")
    content, readers = derived(read_topic(kafka.bootstrap, f"{grid.config['topic.prefix']}.c"))
    held: dict[bytes, bytes] = {}
    for segment in range(SEGMENTS):
        held |= {key: value for key, (value, _) in grid.primary_of(segment).dump(segment)[2].items()}
    assert content == held
    reasons: dict[str, int] = {}
    for reader in readers.values():
        for reason in reader.resets:
            reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def mine(node: GridNode, writers: list[Writer]) -> dict[bytes, int]:
    """The writers' keys of which this node is primary, with their acknowledged values."""
    keys = {key.encode(): number for writer in writers for key, number in dict(writer.acked).items()}
    owned = {s for s in range(SEGMENTS) if node.dump(s)[0] == "primary"}
    return {key: number for key, number in keys.items() if segment_of(key, SEGMENTS) in owned}


def test_pause_stop_and_restart_lose_nothing_and_reset_nothing(grid: Grid, kafka: Broker) -> None:
    api, other = start_with_rest(grid, free_ports(2))
    node = grid.nodes["n1"]
    with written_to(grid) as writers:
        assert api.do("PUT", f"{ME}/pause").status == 202
        assert api.state() == "PAUSED"
        assert other.state() == "RUNNING"
        before = node.stats()["transactions"]
        for _ in range(3):
            go_on(writers)
        assert node.stats()["transactions"] - before <= 1  # the one that was under way
        before = node.stats()["transactions"]
        api.do("PUT", f"{ME}/resume")
        assert api.state() == "RUNNING"
        eventually(lambda: node.stats()["transactions"] > before)

        promised = mine(node, writers)
        assert len(promised) > 10
        assert api.do("PUT", f"{ME}/stop").status == 204
        assert api.state() == "STOPPED"
        content, _ = derived(read_topic(kafka.bootstrap, f"{grid.config['topic.prefix']}.c"))
        assert {key: n for key, n in promised.items() if int(content[key]) < n} == {}
        before = node.stats()["transactions"]
        go_on(writers)
        assert node.stats()["transactions"] == before
        assert api.do("POST", f"{ME}/restart").status == 204
        assert api.state() == "STOPPED"
        api.do("PUT", f"{ME}/pause")
        assert api.state() == "PAUSED"
        go_on(writers)
        assert node.stats()["transactions"] == before
        api.do("PUT", f"{ME}/resume")
        eventually(lambda: node.stats()["transactions"] > before)

        assert api.do("POST", f"{ME}/restart").status == 204
        assert api.state() == "RUNNING"
        go_on(writers)
        reply = api.do("POST", f"{ME}/restart?includeTasks=true")
        assert (reply.status, reply.json["connector"]["state"]) == (202, "RESTARTING")
        eventually(lambda: api.state() == "RUNNING")
        go_on(writers)
    assert assert_topic_is_cache(grid, kafka, writers) == {"initial": SEGMENTS}


def test_offsets_and_configuration(grid: Grid, kafka: Broker) -> None:
    api, other = start_with_rest(grid, free_ports(2))
    node = grid.nodes["n1"]
    with written_to(grid) as writers:
        owned = {s for s in range(SEGMENTS) if node.dump(s)[0] == "primary"}
        # A segment has an offset once what was written is read back.
        eventually(lambda: len(api.get(f"{ME}/offsets")["offsets"]) == len(owned))
        offsets = api.get(f"{ME}/offsets")["offsets"]
        assert owned == {entry["partition"]["segment"] for entry in offsets}
        assert owned.isdisjoint(e["partition"]["segment"] for e in other.get(f"{ME}/offsets")["offsets"])
        one = offsets[0]["partition"]
        reset = {"offsets": [{"partition": one, "offset": None}]}
        assert api.ask("PATCH", f"{ME}/offsets", reset).status == 400
        assert api.ask("DELETE", f"{ME}/offsets").status == 400
        api.do("PUT", f"{ME}/stop")
        _refused_offsets(api, one, next(iter(set(range(SEGMENTS)) - owned)))
        api.do("PATCH", f"{ME}/offsets", reset)
        assert {e["partition"]["segment"] for e in api.get(f"{ME}/offsets")["offsets"]} == owned - {one["segment"]}
        go_on(writers)
        api.do("PUT", f"{ME}/resume")
        eventually(lambda: node.stats()["resets"].get("offsets") == 1)

        _configures(api, node)
    assert assert_topic_is_cache(grid, kafka, writers) == {"initial": SEGMENTS, "offsets": 1}


def _refused_offsets(api: Api, one: dict[str, object], foreign: int) -> None:
    present = next(e["offset"] for e in api.get(f"{ME}/offsets")["offsets"] if e["partition"] == one)
    for partition, offset, words in (
        (one, {**present, "seq": present["seq"] + 1}, "cannot be set to another"),
        (one, {**present, "epoch": present["epoch"] + 1}, "cannot be set to another"),
        ({"cache": "c", "segment": foreign}, None, "none that this node writes"),
        ({"cache": "other", "segment": 0}, None, "none that this node writes"),
        ({"cache": "c", "segment": SEGMENTS}, None, "none that this node writes"),
    ):
        # The first of the two is valid: nothing is done if any of them is wrong.
        entries = [{"partition": one, "offset": None}, {"partition": partition, "offset": offset}]
        reply = api.ask("PATCH", f"{ME}/offsets", {"offsets": entries})
        assert reply.status == 400
        assert words in reply.json["message"]
    api.do("PATCH", f"{ME}/offsets", {"offsets": [{"partition": one, "offset": present}]})
    assert one in [e["partition"] for e in api.get(f"{ME}/offsets")["offsets"]]


def _configures(api: Api, node: GridNode) -> None:
    fixed = {"topic.prefix": "x", "segment.count": "64", "node.id": "n9", "cache.name": "d", "rest.port": "1"}
    reply = api.ask("PATCH", f"{ME}/config", fixed)
    assert reply.status == 400
    assert all(f"\n{name} = " in reply.json["message"] for name in fixed)
    odd = {"transforms": "f", "transforms.f.type": "deelog_connector.transforms.Filter"}
    reply = api.ask("PATCH", f"{ME}/config", odd)
    assert reply.status == 400
    assert "transforms.f.predicate: is required" in reply.json["message"]
    predicate = {"transforms.f.predicate": "p", "predicates": "p"}
    of_nothing = {"predicates.p.type": "deelog_connector.transforms.KeyMatches", "predicates.p.pattern": "x"}
    assert "transforms" in api.do("PATCH", f"{ME}/config", odd | predicate | of_nothing).json["config"]
    reply = api.do("PATCH", f"{ME}/config", {"max.batch.size": 3, "commit.interval.ms": "20"})
    assert reply.json["config"]["max.batch.size"] == "3"
    before = node.stats()
    eventually(lambda: node.stats()["transactions"] > before["transactions"] + 10)
    after = node.stats()
    # A batch of three has at most three operations.
    assert after["written"] - before["written"] <= 3 * (after["transactions"] - before["transactions"] + 1)
    given = api.get(f"{ME}/config")
    del given["max.batch.size"]
    assert "max.batch.size" not in api.do("PUT", f"{ME}/config", given).json["config"]
    assert (
        api.do("PATCH", f"{ME}/config", {"commit.interval.ms": None}).json["config"].get("commit.interval.ms") is None
    )


@pytest.mark.slow
def test_a_stopped_node_that_dies_loses_nothing(grid: Grid, kafka: Broker) -> None:
    """The operations that it captured while stopped are in its backup's op log."""
    api, _ = start_with_rest(grid, free_ports(2))
    with written_to(grid) as writers:
        api.do("PUT", f"{ME}/stop")
        go_on(writers)
        grid.nodes["n1"].kill()
        grid.complete(1)
        go_on(writers)
    assert assert_topic_is_cache(grid, kafka, writers) == {"initial": SEGMENTS}


def test_a_paused_node_that_ends_in_order_writes_first(grid: Grid, kafka: Broker) -> None:
    (api,) = start_with_rest(grid, free_ports(1), cache_backups="0")
    with written_to(grid) as writers:
        api.do("PUT", f"{ME}/pause")
        go_on(writers)
    node = grid.nodes["n1"]
    held: dict[bytes, bytes] = {}
    for segment in range(SEGMENTS):
        held |= {key: value for key, (value, _) in node.dump(segment)[2].items()}
    node.signal(signal.SIGTERM)
    assert node.ended() == 0
    content, readers = derived(read_topic(kafka.bootstrap, f"{grid.config['topic.prefix']}.c"))
    assert content == held
    assert all(reader.resets == ["initial"] for reader in readers.values())


def test_a_node_that_joins_while_another_is_paused_holds_up_no_write(grid: Grid, kafka: Broker) -> None:
    """A paused connector writes no release: segments that move wait, and accept writes meanwhile."""
    (api,) = start_with_rest(grid, free_ports(1))
    with written_to(grid) as writers:
        api.do("PUT", f"{ME}/pause")
        joining = grid.nodes["n2"] = grid.node("n2")
        joining.start()
        joining.wait()
        # Both copies of everything, and still no move: it would need a release.
        eventually(lambda: all(node.stats()["grid"]["in_sync"] == SEGMENTS for node in grid.live()), 30)
        eventually(lambda: grid.nodes["n1"].stats()["grid"]["moving"] > 0)
        go_on(writers)
        assert joining.stats()["grid"]["segments"].get("primary", 0) == 0
        api.do("PUT", f"{ME}/resume")
        grid.complete(2)
        go_on(writers)
    assert assert_topic_is_cache(grid, kafka, writers) == {"initial": SEGMENTS}
