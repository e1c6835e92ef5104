"""The faults of a cluster of Redis or Valkey: kills, a resharding, a lost link and a clear.

Each waits for its effect and for full recovery, as those of the grid do.
"""

from __future__ import annotations

import random
import signal
import time
from typing import Final

from redis import Redis
from redis.exceptions import MovedError

from deelog_connector.devkafka.ports import HOST
from deelog_proof.demo.faults import Fault, Happened, now_ms
from deelog_proof.harness.child import until
from deelog_proof.harness.cluster import is_stopped
from deelog_proof.harness.environment import Environment
from deelog_proof.harness.redis_cluster import BACKLOG, RedisCluster, Server

UNREPLICATED: Final = b"unreplicated:"
"""What begins the keys that a primary alone has when it is killed: Redis loses them, so no topic may have them."""
_UNREPLICATED: Final = 20
_AWAY_SECONDS: Final = 2.0
_MOVED_SLOTS: Final = 20
_TRIES: Final = 1000
_LEAST_BACKLOG: Final = 16_384
_TURN_SECONDS: Final = 15.0
_FORGOTTEN_SECONDS: Final = 60.0


def kill_primary(environment: Environment[RedisCluster], draw: random.Random) -> Happened:
    """`kill -9` of a primary with writes that its replica has not; the replica is promoted, the killed one follows it.

    What reaches a stopped replica is in its socket, and so is not lost: hence its link is cut first.
    """
    cluster = environment.cluster
    server = draw.choice(cluster.primaries())
    replica = cluster.replica_of(server)
    replica.send(signal.SIGSTOP)
    until(lambda: is_stopped(replica), 2.0, f"{replica.name} to stop")
    try:
        server.ask("CLIENT", "KILL", "TYPE", "replica")
        written = _write_unreplicated(server)
        environment.show.say(f"kill -9 of {server.name}, a primary, with {written} writes that its replica has not")
        happened = Happened("kill-primary", now_ms(), [cluster.connector_of(server).node_id])
        server.kill()
    finally:
        replica.send(signal.SIGCONT)
    happened.notes["unreplicated"] = written
    seconds = cluster.wait_without(server)
    happened.notes["clients_moved_after_s"] = round(seconds, 2)
    environment.show.say(f"{replica.name} is primary after {seconds:.1f} s")
    server.start()
    _recovered(environment, f"{server.name} is back as a replica")
    return happened


def reshard(environment: Environment[RedisCluster], draw: random.Random) -> Happened:
    """Slots with keys move to another shard, one by one, while clients write to them."""
    cluster = environment.cluster
    source, target = draw.sample(cluster.primaries(), 2)
    happened = Happened("reshard", now_ms(), [cluster.connector_of(source).node_id])
    slots = [slot for some in cluster.slots_of(source) for slot in some]
    draw.shuffle(slots)
    chosen = [slot for slot in slots[:_TRIES] if source.ask("CLUSTER", "COUNTKEYSINSLOT", slot)][:_MOVED_SLOTS]
    environment.show.say(f"{len(chosen)} slots move from {source.name} to {target.name}, key by key")
    happened.notes["slots"] = len(chosen)
    happened.notes["keys"] = sum(cluster.move(slot, source, target) for slot in chosen)
    _recovered(environment, f"{happened.notes['keys']} keys moved")
    return happened


def kill_connector(environment: Environment[RedisCluster], draw: random.Random) -> Happened:
    """`kill -9` of the connector beside a primary, which goes on where Kafka's knowledge ends."""
    cluster = environment.cluster
    connector = cluster.connector_of(draw.choice(cluster.primaries()))
    environment.show.say(f"kill -9 of {connector.name}, beside a primary; the server goes on")
    happened = Happened("kill-connector", now_ms(), [connector.node_id])
    environment.monitor.poll(connector)
    connector.kill()
    time.sleep(_AWAY_SECONDS)  # the fault itself
    connector.start()
    connector.wait_ready()
    _recovered(environment, f"{connector.name} is back")
    return happened


def cut_link(environment: Environment[RedisCluster], draw: random.Random) -> Happened:
    """A primary's connector is stopped and its link cut until its shard has forgotten where it was: a reset."""
    cluster = environment.cluster
    server = draw.choice(cluster.primaries())
    connector, replica = cluster.connector_of(server), cluster.replica_of(server)
    happened = Happened("cut-link", now_ms(), [connector.node_id])
    both = server, replica
    names = " and ".join(one.name for one in both)
    environment.show.say(f"the link of {connector.name} is cut, until {names} have forgotten where it was")
    connector.send(signal.SIGSTOP)
    until(lambda: is_stopped(connector), 2.0, f"{connector.name} to stop")
    try:
        server.ask("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: replica.info()["master_link_status"] == "up", _TURN_SECONDS, f"{replica.name} to come back")
        end = server.offset
        for one in both:
            one.ask("CONFIG", "SET", "repl-backlog-size", _LEAST_BACKLOG)
        seconds = until(
            lambda: all(int(one.info()["repl_backlog_first_byte_offset"]) > end + 1 for one in both),
            _FORGOTTEN_SECONDS,
            f"{names} to forget their stream up to there",
        )
    finally:
        for one in both:
            one.ask("CONFIG", "SET", "repl-backlog-size", BACKLOG)
        connector.send(signal.SIGCONT)
    happened.notes["forgotten_after_s"] = round(seconds, 1)
    environment.show.say(f"they have after {seconds:.1f} s; {connector.name} goes on")
    _recovered(environment, "its slots are reset")
    return happened


def flush(environment: Environment[RedisCluster], draw: random.Random) -> Happened:
    """FLUSHALL of a primary: a clear of each of its slots."""
    server = draw.choice(environment.cluster.primaries())
    happened = Happened("flush", now_ms())
    happened.notes["keys"] = keys = server.ask("DBSIZE")
    environment.show.say(f"FLUSHALL of {server.name}, with {keys:,} keys")
    server.ask("FLUSHALL")
    _recovered(environment, "it is cleared")
    return happened


SURVIVABLE: Final = (
    Fault("kill-primary", 10, kill_primary),
    Fault("reshard", 6, reshard),
    Fault("kill-connector", 14, kill_connector),
)
ALL: Final = (*SURVIVABLE, Fault("cut-link", 16, cut_link), Fault("flush", 6, flush))


def _recovered(environment: Environment[RedisCluster], what: str) -> None:
    seconds = environment.cluster.wait_whole()
    environment.show.say(f"{what}; every slot is written again after {seconds:.1f} s")


def _write_unreplicated(server: Server) -> int:
    """Writes of a client that waits for no replica; how many the primary answered."""
    written = 0
    with Redis(host=HOST, port=server.port, socket_timeout=2.0) as client:
        for number in range(_TRIES):
            try:
                written += bool(client.set(UNREPLICATED + str(number).encode(), "lost"))
            except MovedError:
                continue
            if written == _UNREPLICATED:
                break
    return written
