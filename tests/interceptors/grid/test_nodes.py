"""Real node processes, real Kafka, redis-py's RedisCluster: one journey each. `test_failures` has what else happens."""

from __future__ import annotations

import signal
import time

import pytest
from redis.cluster import RedisCluster

from deelog_schemas.keys import segment_of
from deelog_schemas.member import Member
from tests.interceptors.grid.clients import SEGMENTS, Writer, assert_copies_equal, assert_nothing_lost, size
from tests.interceptors.grid.cluster import Grid, eventually


def test_a_redis_cluster_client_is_served(grid: Grid) -> None:
    grid.start(3)
    for node_id, node in grid.nodes.items():
        shown, _, incarnation = node.member.partition("@")
        assert shown == node_id
        assert abs(int(incarnation) / 1000 - time.time()) < 180
        assert node.stats()["grid"]["member"] == node.member
    client = grid.client()
    for number in range(300):
        assert client.set(f"k{number}", f"v{number}")
    assert size(client) == 300
    assert client.mget_nonatomic([f"k{n}" for n in range(300)]) == [f"v{n}".encode() for n in range(300)]
    assert sorted(client.scan_iter(count=7)) == sorted(f"k{n}".encode() for n in range(300))
    assert client.delete("k0", "k1", "k2") == 3
    assert client.get("k0") is None
    assert client.set("t", "x", px=200)
    assert 0 < client.pttl("t") <= 200
    segment = segment_of(b"t", SEGMENTS)
    # Expired in time, on primary and backup, though nobody asks for the key.
    eventually(lambda: all(b"t" not in n.dump(segment)[2] for n in grid.live()), 5)
    assert sum(n.stats()["grid"]["expired"] for n in grid.live()) == 1
    assert_copies_equal(grid)
    assert client.flushall(target_nodes=RedisCluster.PRIMARIES)
    assert size(client) == 0
    client.close()


def test_kill_9_of_a_primary_loses_no_acknowledged_write(grid: Grid) -> None:
    grid.start(3)
    writers = [Writer(grid, f"w{n}") for n in range(2)]
    for writer in writers:
        writer.start()
    eventually(lambda: all(len(w.acked) == 50 for w in writers))
    victim = grid.primary_of(segment_of(b"w0:1", SEGMENTS))
    victim.kill()
    grid.complete(2)
    before = [dict(writer.acked) for writer in writers]
    eventually(lambda: all(w.acked[k] > b[k] for w, b in zip(writers, before, strict=True) for k in b))
    for writer in writers:
        writer.end()
    client = grid.client()
    for writer in writers:
        assert_nothing_lost(client, writer)
    client.close()
    assert_copies_equal(grid)
    # One owner survived every segment: nothing had to be reset.
    assert {reason for n in grid.live() for reason in n.stats()["resets"]} == {"initial"}


def test_sigterm_gives_the_segments_away_without_a_reset(grid: Grid) -> None:
    grid.config["cache.failure.timeout.ms"] = "20000"  # on a busy machine nobody is taken for dead, and fenced
    grid.start(3)
    writer = Writer(grid, "w")
    writer.start()
    eventually(lambda: len(writer.acked) == 50)
    leaver = grid.nodes["n2"]
    leaver.signal(signal.SIGTERM)
    assert leaver.ended() == 0
    grid.complete(2)
    writer.end()
    client = grid.client()
    assert_nothing_lost(client, writer)
    client.close()
    assert_copies_equal(grid)
    # Nobody is fenced, neither who has left nor those that stay, wherever a segment went on to. A node that came late
    # was given its segments, and has reset none.
    told = [n.stats() for n in grid.live()]
    assert {reason for each in told for reason in each["resets"]} == {"initial"}
    assert [(each["fenced"], each["zombie_commits_refused"]) for each in told] == [(0, 0)] * 2


def test_a_clock_that_was_set_back_keeps_no_node_out(grid: Grid) -> None:
    ahead = grid.node("n1")
    ahead.clock_ahead = 1800
    again = grid.node("n1")
    for node in (ahead, again):
        node.start()
        node.wait()
        grid.nodes["n1"] = node
        grid.written()
        node.kill()
    before, after = Member.parse(ahead.member), Member.parse(again.member)
    assert before.incarnation / 1000 > time.time() + 1500
    assert after == Member("n1", before.incarnation + 1)
    assert f"{before} was started by a clock that is ahead of this one: this process starts behind it" in again.log


@pytest.mark.slow
def test_a_node_without_kafka_ends_with_one_line(grid: Grid) -> None:
    grid.config["bootstrap.servers"] = "127.0.0.1:1"
    node = grid.node("n1")
    node.start()
    assert node.ended(60) != 0
    assert node.log.splitlines()[-1].startswith("deelog node: ")
