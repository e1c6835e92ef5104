"""The faults while the load runs: kills, pauses and restarts, one after the other.

Each fault waits for its effect (a takeover, an overflow) and for full recovery, both with a deadline: a demo whose
faults had no effect would show nothing. They run in the main thread, which starts processes.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from deelog_proof.audit.topics import end_offsets
from deelog_proof.harness.child import until
from deelog_proof.harness.cluster import SETTLE_SECONDS, Cluster, Monitor, Node, is_stopped
from deelog_proof.harness.environment import Environment

PAUSE_SECONDS = 3.0
_SEARCHES = 25
_ZOMBIES = 3
_REFUSAL_SECONDS = 30.0
_OVERFLOW_SECONDS = 60.0
_OUTCOME_EVERY = 0.05


@dataclass(slots=True)
class Happened:
    """One fault that happened: its start in Unix milliseconds, the affected nodes, and the observed effect."""

    fault: str
    at_ms: int
    nodes: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and about how many seconds it takes, from which the load's rate is planned."""

    name: str
    seconds: float
    run: Callable[[Environment[Any], random.Random], Happened]
    """The draw chooses the nodes."""


def kill_one(environment: Environment[Cluster], draw: random.Random) -> Happened:
    """`kill -9` of a primary; the backups take over; it comes back empty and is given the state."""
    node = _victim(environment, draw)
    segments = environment.cluster.primaries()[node.node_id]
    environment.show.say(f"kill -9 of node {node.node_id}, primary of {segments} segments")
    happened = _kill(environment, "kill", [node])
    _restart(environment, [node])
    return happened


def zombie(environment: Environment[Cluster], draw: random.Random) -> Happened:
    """SIGSTOP of a primary with a transaction open, takeover, SIGCONT: its commit has to be refused.

    A node that had nothing left to commit, or that gave up its transaction itself, learns of the takeover without
    a refusal: then it is stopped again.
    """
    node = _victim(environment, draw)
    happened = Happened("zombie", now_ms(), [node.node_id])
    before = _refused(environment, node)
    awaited = f"the commit of zombie {node.node_id} to be refused"

    def seen() -> bool:
        environment.monitor.poll(node)
        return node.pid is None or _refused(environment, node) > before

    for left in reversed(range(_ZOMBIES)):
        _pause_for_takeover(environment, draw, node, happened)
        try:
            seconds = until(seen, _REFUSAL_SECONDS, awaited, _OUTCOME_EVERY)
            break
        except TimeoutError:
            if not left:
                raise
            environment.show.say(f"no commit of the zombie was refused in {_REFUSAL_SECONDS:g} s; once more")
            environment.cluster.wait_whole()
    happened.notes["refused_commits"] = _refused(environment, node) - before
    happened.notes["exit_code"] = node.exit_code
    environment.show.say(f"the zombie's commit was refused after {seconds:.1f} s")
    _restart(environment, [node] if node.pid is None else [])
    return happened


def _pause_for_takeover(environment: Environment[Cluster], draw: random.Random, node: Node, happened: Happened) -> None:
    happened.notes["transaction_open"] = opened = _stop_in_transaction(environment, draw, node)
    happened.at_ms = now_ms()
    environment.show.say(
        f"SIGSTOP of node {node.node_id} {'with a transaction open' if opened else 'between transactions'}"
    )
    _takeover(environment, happened, [node])
    environment.show.say(f"SIGCONT of node {node.node_id}: a zombie")
    node.send(signal.SIGCONT)


def kill_owners(environment: Environment[Cluster], draw: random.Random) -> Happened:
    """`kill -9` of two nodes at once: the segments that they shared are lost, come back empty, and are reset."""
    nodes = draw.sample(environment.cluster.nodes, 2)
    names = " and ".join(node.node_id for node in nodes)
    before = _lost_and_reset(environment.monitor)
    environment.show.say(f"kill -9 of nodes {names} at once, both owners of some segments")
    happened = _kill(environment, "kill-owners", nodes)
    if _are_others(environment, nodes):
        # A node that came back first would take segments amid their resets, which then are due to another reason.
        awaited = "a lost segment to be reset"
        seconds = until(lambda: _lost_and_reset(environment.monitor) > before, SETTLE_SECONDS, awaited)
        environment.show.say(f"lost segments are reset after {seconds:.1f} s more")
    _restart(environment, nodes)
    return happened


def pause_kafka(environment: Environment[Cluster], draw: random.Random) -> Happened:
    """Kafka stops answering for less than the op logs hold: the caches go on, nothing is lost."""
    happened = Happened("pause-kafka", now_ms())
    environment.show.say(f"Kafka paused for {PAUSE_SECONDS:g} s; the caches go on")
    environment.kafka.pause()
    try:
        time.sleep(PAUSE_SECONDS)  # the fault itself
    finally:
        environment.kafka.resume()
    environment.show.say("Kafka goes on")
    environment.cluster.wait_whole()
    return happened


def overflow(environment: Environment[Cluster], draw: random.Random) -> Happened:
    """Kafka paused until op logs overflow: the segments concerned are reset with their live entries."""
    happened = Happened("overflow", now_ms())
    before = overflows(environment.monitor)
    environment.show.say("Kafka paused until op logs overflow")
    environment.kafka.pause()
    try:
        seconds = until(
            lambda: overflows(environment.monitor) > before,
            _OVERFLOW_SECONDS,
            "an op log to overflow while Kafka is paused",
        )
    finally:
        environment.kafka.resume()
    happened.notes["overflow_after_s"] = round(seconds, 1)
    environment.show.say(f"op logs overflowed after {seconds:.1f} s; Kafka goes on")
    environment.cluster.wait_whole()
    return happened


def restart_kafka(environment: Environment[Cluster], draw: random.Random) -> Happened:
    """`kill -9` of Kafka and a start on the same data."""
    happened = Happened("restart-kafka", now_ms())
    environment.show.say("kill -9 of Kafka; the caches go on")
    environment.kafka.kill()
    environment.kafka.start()
    environment.show.say("Kafka serves again")
    environment.cluster.wait_whole()
    return happened


# Kafka's restart comes early: the later faults show that controller and fences work after it.
SURVIVABLE: Final = (
    Fault("kill", 9, kill_one),
    Fault("restart-kafka", 12, restart_kafka),
    Fault("zombie", 11, zombie),
    Fault("pause-kafka", 5, pause_kafka),
)
ALL: Final = (
    Fault("kill", 9, kill_one),
    Fault("restart-kafka", 12, restart_kafka),
    Fault("zombie", 11, zombie),
    Fault("kill-owners", 10, kill_owners),
    Fault("overflow", 10, overflow),
)


def overflows(monitor: Monitor) -> int:
    """The number of segments that an overflow made due for a reset, on all nodes so far."""
    return monitor.total("overflow", "reset")


def _lost_and_reset(monitor: Monitor) -> int:
    return monitor.total("resets", "owners_lost")


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def _victim(environment: Environment[Cluster], draw: random.Random) -> Node:
    """A random node that is primary of some segment."""
    primaries = environment.cluster.primaries()
    return draw.choice([node for node in environment.cluster.nodes if primaries[node.node_id]])


def _are_others(environment: Environment[Cluster], nodes: list[Node]) -> bool:
    return len(environment.cluster.nodes) > len(nodes)


def _kill(environment: Environment[Cluster], fault: str, nodes: list[Node]) -> Happened:
    """`kill -9`; returns once the others have taken over."""
    for node in nodes:
        environment.monitor.poll(node)
    happened = Happened(fault, now_ms(), [node.node_id for node in nodes])
    for node in nodes:
        node.kill()
    if _are_others(environment, nodes):
        _takeover(environment, happened, nodes)
    return happened


def _refused(environment: Environment[Cluster], node: Node) -> int:
    return sum(int(stats["zombie_commits_refused"]) for stats in environment.monitor.members(node))


def _takeover(environment: Environment[Cluster], happened: Happened, gone: list[Node]) -> None:
    seconds = environment.cluster.wait_without(gone)
    happened.notes["clients_moved_after_s"] = round(seconds, 2)
    environment.show.say(f"the others took over after {seconds:.1f} s")


def _restart(environment: Environment[Cluster], nodes: list[Node]) -> None:
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait_ready()
    seconds = environment.cluster.wait_whole()
    names = " and ".join(node.node_id for node in nodes) or "all nodes"
    environment.show.say(f"{names} back, everything has its backups again after {seconds:.1f} s")


def _stop_in_transaction(environment: Environment[Cluster], draw: random.Random, node: Node) -> bool:
    """Stops `node`, within a few attempts in the middle of a transaction. Returns whether one is open.

    An open transaction shows as records after the last stable offset. Those of running nodes end soon, so what stays
    is the stopped node's.
    """
    for attempt in range(_SEARCHES):
        node.send(signal.SIGSTOP)
        until(lambda: is_stopped(node), 2.0, f"{node.name} to stop")
        hidden = _hidden(environment)
        if hidden:
            time.sleep(0.15)  # what is still open after this is checked below
            hidden &= _hidden(environment)
        if hidden or attempt + 1 == _SEARCHES:
            return bool(hidden)
        node.send(signal.SIGCONT)
        time.sleep(draw.uniform(0.01, 0.1))
    raise AssertionError("the last attempt returned")


def _hidden(environment: Environment[Cluster]) -> set[tuple[int, int]]:
    """`(partition, last stable offset)` of partitions with records after it."""
    stable = end_offsets(environment.kafka.bootstrap, environment.topics.changes)
    high = end_offsets(environment.kafka.bootstrap, environment.topics.changes, committed=False)
    return {(partition, offset) for partition, offset in stable.items() if offset < high[partition]}
