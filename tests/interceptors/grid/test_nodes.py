"""Real node processes, real Kafka, redis-py's RedisCluster: what clients see while nodes die."""

from __future__ import annotations

import json
import signal
import time

import pytest
from redis import Connection
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from deelog_schemas.keys import segment_of
from tests.interceptors.grid.clients import SEGMENTS, Writer, assert_copies_equal, assert_nothing_lost, size
from tests.interceptors.grid.cluster import Grid, eventually


def test_a_redis_cluster_client_is_served(grid: Grid) -> None:
    grid.start(3)
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


def test_a_full_segment_evicts_on_the_primary_and_the_backup_follows(grid: Grid) -> None:
    grid.config["cache.max.entries"] = str(SEGMENTS * 4)
    grid.start(2)
    client = grid.client()
    for number in range(SEGMENTS * 20):
        client.set(f"k{number}", "v")
    assert size(client) <= SEGMENTS * 4
    assert sum(n.stats()["grid"]["evicted"] for n in grid.live()) == SEGMENTS * 20 - size(client)
    assert_copies_equal(grid)
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


def acknowledges(connection: Connection) -> bool:
    """Whether the write that was sent is acknowledged: by a node that was given the role anew meanwhile it may be."""
    try:
        return bool(connection.read_response() == b"OK")
    except ResponseError:
        return False


def key_in(segment: int) -> str:
    """A key of a segment."""
    return next(f"k{n}" for n in range(10_000) if segment_of(f"k{n}".encode(), SEGMENTS) == segment)


def test_a_stopped_primary_that_continues_acknowledges_nothing_and_catches_up(grid: Grid) -> None:
    grid.start(3)
    client = grid.client()
    keys = [f"k{n}" for n in range(200)]
    for key in keys:
        client.set(key, "before")
    zombie = grid.primary_of(0)
    mine = [k for k in keys if zombie.dump(segment_of(k.encode(), SEGMENTS))[0] == "primary"]
    late = zombie.redis
    late.ping()
    zombie.signal(signal.SIGSTOP)
    # Sent while it sleeps: it will read these before it reads the view that took its role.
    connection = late.connection_pool.get_connection()
    connection.send_command("SET", mine[0], "zombie")  # type: ignore[no-untyped-call]
    others = [n for n in grid.live() if n is not zombie]
    eventually(lambda: all(n.stats()["grid"]["members"] == 2 for n in others))
    survivor = RedisCluster(host="127.0.0.1", port=others[0].port, socket_timeout=10)
    for key in keys:
        survivor.set(key, "after")
    zombie.signal(signal.SIGCONT)
    acknowledged = acknowledges(connection)
    grid.complete(3)
    assert_copies_equal(grid)
    held = {key: survivor.get(key) for key in keys}
    assert held == dict.fromkeys(keys, b"after") | ({mine[0]: b"zombie"} if acknowledged else {})
    assert zombie.alive
    for each in (client, survivor, late):
        each.close()


@pytest.mark.slow
def test_owners_that_were_stopped_until_their_segments_were_given_away_acknowledge_nothing(grid: Grid) -> None:
    """Both owners continue at once, in the same old view: neither would refuse what the other one says."""
    grid.config["cache.failure.timeout.ms"] = "500"
    grid.start(3)
    *stopped, third = grid.live()
    roles = [[node.dump(segment)[0] for segment in range(SEGMENTS)] for node in stopped]
    lost = [segment for segment, found in enumerate(zip(*roles, strict=True)) if "none" not in found]
    mine = [next(s for s in lost if found[s] == "primary") for found in roles]
    late = [node.redis.connection_pool.get_connection() for node in stopped]
    for node in stopped:
        node.signal(signal.SIGSTOP)
    for connection, segment in zip(late, mine, strict=True):
        connection.send_command("SET", key_in(segment), "late")  # type: ignore[no-untyped-call]
    eventually(lambda: all(third.dump(segment)[0] == "primary" for segment in lost), 15)
    with third.redis as direct:
        for segment in mine:
            direct.set(key_in(segment), "after")
    for node in stopped:
        node.signal(signal.SIGCONT)
    assert [acknowledges(connection) for connection in late] == [False, False]
    for connection in late:
        connection.disconnect()  # type: ignore[no-untyped-call]
    grid.complete(3)
    assert_copies_equal(grid)
    client = grid.client()
    assert [client.get(key_in(segment)) for segment in mine] == [b"after", b"after"]
    client.close()


def test_a_killed_node_that_is_restarted_takes_the_state(grid: Grid) -> None:
    grid.start(2)
    client = grid.client()
    for number in range(500):
        client.set(f"k{number}", "v" * 100)
    first = grid.nodes["n1"]
    old = first.member
    first.kill()
    grid.complete(1)
    for number in range(0, 500, 2):
        client.set(f"k{number}", "w")
    # What Kafka holds is pruned, so that the newcomer cannot be served by operations alone.
    eventually(lambda: grid.nodes["n2"].stats()["unwritten"] == 0)
    first.start()
    first.wait()
    assert first.member != old
    grid.complete(2)
    assert_copies_equal(grid)
    assert first.stats()["grid"]["states_taken"] > 0
    client.close()
    client = grid.client()
    assert size(client) == 500
    client.close()


@pytest.mark.slow
def test_a_node_restarted_before_its_death_is_noticed_is_another_member(grid: Grid) -> None:
    grid.config["cache.failure.timeout.ms"] = "20000"
    grid.start(2)
    client = grid.client()
    for number in range(100):
        client.set(f"k{number}", "v")
    node = grid.nodes["n1"]
    node.kill()
    node.start()
    node.wait()
    grid.complete(2)
    assert size(client) == 100
    assert_copies_equal(grid)
    assert {reason for n in grid.live() for reason in n.stats()["resets"]} <= {"initial"}
    client.close()


def test_segments_whose_owners_are_all_killed_come_back_empty_and_are_reset(grid: Grid) -> None:
    grid.start(3)
    client = grid.client()
    for number in range(300):
        client.set(f"k{number}", "v")
    victims = [grid.nodes["n1"], grid.nodes["n2"]]
    lost = [s for s in range(SEGMENTS) if all(v.dump(s)[0] != "none" for v in victims)]
    assert lost
    for victim in victims:
        victim.signal(signal.SIGKILL)
    for victim in victims:
        victim.ended()
    grid.complete(1)
    survivor = grid.nodes["n3"]
    for segment in range(SEGMENTS):
        role, _, entries = survivor.dump(segment)
        assert role == "primary"
        assert bool(entries) == (segment not in lost)
    eventually(lambda: survivor.stats()["resets"].get("owners_lost") == len(lost))
    client.close()


def test_of_two_nodes_with_one_id_the_newer_stays(grid: Grid) -> None:
    grid.start(2)
    older = grid.nodes["n1"]
    newer = grid.node("n1")
    newer.start()
    newer.wait()
    assert older.ended() != 0
    assert "deelog node: node.id n1: " in older.log.splitlines()[-1]
    grid.nodes["n1"] = newer
    grid.complete(2)


def test_another_segment_count_is_refused(grid: Grid) -> None:
    grid.start(1)
    other = grid.node("n2", segment_count="64")
    other.start()
    assert other.ended() != 0
    assert "segment.count" in other.log.splitlines()[-1]
    assert grid.nodes["n1"].alive


def test_a_port_that_is_taken_is_one_clear_line(grid: Grid) -> None:
    grid.start(1)
    other = grid.node("n2", cache_listen=f"127.0.0.1:{grid.nodes['n1'].port}")
    other.start()
    assert other.ended() == 2
    assert "cache.listen = 127.0.0.1:" in other.log.splitlines()[-1]


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


def test_all_nodes_stop_at_once(grid: Grid) -> None:
    grid.start(3)
    client = grid.client()
    client.set("k", "v")
    client.close()
    nodes = grid.live()
    for node in nodes:
        node.signal(signal.SIGTERM)
    assert [node.ended() for node in nodes] == [0, 0, 0]


def test_the_controller_may_be_killed(grid: Grid) -> None:
    grid.start(3)
    holder = next(n for n in grid.live() if n.stats()["grid"]["office"]["holds"])
    writer = Writer(grid, "w")
    writer.start()
    eventually(lambda: len(writer.acked) == 50)
    holder.kill()
    grid.complete(2)
    assert any(n.stats()["grid"]["office"]["holds"] for n in grid.live())
    writer.end()
    client = grid.client()
    assert_nothing_lost(client, writer)
    client.close()
    assert_copies_equal(grid)


def test_the_line_names_member_and_addresses(grid: Grid) -> None:
    grid.start(1)
    node = grid.nodes["n1"]
    node_id, _, incarnation = node.member.partition("@")
    assert node_id == "n1"
    assert abs(int(incarnation) / 1000 - time.time()) < 120
    assert json.loads(json.dumps(node.stats()))["grid"]["member"] == node.member


@pytest.mark.slow
def test_a_lone_primary_that_was_stopped_reads_the_views_before_it_acknowledges(grid: Grid) -> None:
    grid.config["cache.backups"] = "0"
    grid.start(2)
    zombie = grid.primary_of(0)
    other = next(n for n in grid.live() if n is not zombie)
    key = key_in(0)
    late = zombie.redis
    late.set(key, "before")
    connection = late.connection_pool.get_connection()
    zombie.signal(signal.SIGSTOP)
    connection.send_command("SET", key, "zombie")  # type: ignore[no-untyped-call]
    eventually(lambda: other.dump(0)[0] == "primary")
    taken = other.stats()["grid"]["topology_id"]
    zombie.signal(signal.SIGCONT)
    acknowledged = acknowledges(connection)
    eventually(lambda: zombie.stats()["grid"]["topology_id"] >= taken)
    grid.complete(2)
    client = grid.client()
    assert client.get(key) == (b"zombie" if acknowledged else None)
    client.close()
    late.close()


@pytest.mark.slow
def test_a_node_without_kafka_ends_with_one_line(grid: Grid) -> None:
    grid.config["bootstrap.servers"] = "127.0.0.1:1"
    node = grid.node("n1")
    node.start()
    assert node.ended(60) != 0
    assert node.log.splitlines()[-1].startswith("deelog node: ")
