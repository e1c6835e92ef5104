"""Verbs for processes, their network and Kafka, whatever the cache is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.network import Network
from deelog_proof.simulation.context import CHANGES, POSITIONS, TOPOLOGY
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.failpoints import FAILPOINTS, Failpoints
from deelog_proof.simulation.language import EVENT, Settings, Verbs
from deelog_schemas.config import Config

TOPICS: Final = {"changes": CHANGES, "positions": POSITIONS, "topology": TOPOLOGY}
LACKS: Final = ("leader", "replicas", "broker")
"""What a partition may be without: its leader, enough replicas in sync, or a leader that is not known to be away."""
TOLD_SECONDS: Final = 4.0
"""After which the brokers know it: longer than a transaction waits without progress. By default Kafka takes 9."""

VERBS: Final = Verbs()
_verb = VERBS.verb


class Process(Protocol):
    """What faults do to a process."""

    node_id: str
    skew: float

    @property
    def alive(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def reach(self) -> None: ...


P = TypeVar("P", bound=Process)


class Cluster(Protocol):
    """What these verbs act on."""

    engine: Engine
    kafka: Kafka
    network: Network
    failpoints: Failpoints
    config: Config
    hanging: set[str]
    """Node ids that pause in their next transaction."""
    no_kafka: set[str]
    unreached: dict[str, set[tuple[str, int]]]
    skews: dict[str, float]

    @property
    def nodes(self) -> Mapping[str, Process]: ...
    def living(self) -> Sequence[Process]: ...
    def ended(self, node: Any) -> None: ...
    def start(self, node_id: str) -> object: ...


def live(nodes: Mapping[str, P], node_id: str) -> P | None:
    """The newest process of a node id, if it lives."""
    node = nodes.get(node_id)
    return node if node is not None and node.alive else None


def apply_reach(cluster: Cluster, node_id: str) -> None:
    for node in cluster.living():
        if node.node_id == node_id:
            node.reach()


def moment(argument: str, _: Settings, __: Sequence[str]) -> str:
    """What is wrong with the name of a failpoint."""
    known = argument.partition(":")[0] in FAILPOINTS
    return "" if known else f"{argument} is none of {', '.join(FAILPOINTS)}"


@_verb("", "moment", EVENT, fault=False)
def at(cluster: Cluster, node_id: str, moment: str, verb: str, *arguments: str) -> None:
    cluster.failpoints.arm(node_id, moment, Event(cluster.engine.now, verb, arguments))


@_verb()
def crash(cluster: Cluster, node_id: str) -> bool:
    node = live(cluster.nodes, node_id)
    if node is not None:
        cluster.ended(node)
    return node is not None


@_verb(fault=False)
def restart(cluster: Cluster, node_id: str) -> bool:
    node = live(cluster.nodes, node_id)
    if node is None and node_id in cluster.nodes:
        cluster.start(node_id)
    return node is None


@_verb()
def twin(cluster: Cluster, node_id: str) -> bool:
    """A second process under the node id of a live one."""
    if live(cluster.nodes, node_id) is None:
        return False
    cluster.start(node_id)
    return True


@_verb()
def pause(cluster: Cluster, node_id: str) -> bool:
    node = live(cluster.nodes, node_id)
    if node is None or node.paused:
        return False
    node.pause()
    return True


@_verb(fault=False)
def resume(cluster: Cluster, node_id: str) -> bool:
    stopped = [n for n in cluster.living() if n.node_id == node_id and n.paused]
    for node in stopped:
        node.resume()
    cluster.hanging.discard(node_id)
    return bool(stopped)


@_verb()
def hang(cluster: Cluster, node_id: str) -> None:
    cluster.hanging.add(node_id)


@_verb()
def lose(cluster: Cluster, node_id: str) -> None:
    cluster.kafka.lost[cluster.config.topics.transactional_id_node(node_id)] = True


@_verb()
def cut(cluster: Cluster, a: str, b: str) -> None:
    cluster.network.cut(a, b)


@_verb(fault=False)
def heal(cluster: Cluster, a: str, b: str) -> None:
    cluster.network.heal(a, b)


@_verb()
def break_(cluster: Cluster, a: str, b: str) -> None:
    cluster.network.break_between(a, b)


@_verb("", "number", ends="1")
def slow(cluster: Cluster, node_id: str, factor: str) -> None:
    cluster.network.slow[node_id] = float(factor)


@_verb("state", ends="on")
def kafka(cluster: Cluster, state: str) -> None:
    cluster.kafka.up = state == "on"


@_verb()
def nokafka(cluster: Cluster, node_id: str) -> None:
    cluster.no_kafka.add(node_id)
    apply_reach(cluster, node_id)


@_verb(fault=False)
def yeskafka(cluster: Cluster, node_id: str) -> None:
    cluster.no_kafka.discard(node_id)
    apply_reach(cluster, node_id)


@_verb()
def fence(cluster: Cluster, node_id: str) -> None:
    cluster.kafka.init(cluster.config.topics.transactional_id_node(node_id), "somebody")


@_verb("topic", "partition", "lack")
def away(cluster: Cluster, topic: str, partition: str, lack: str) -> None:
    """A partition has no leader, or too few replicas in sync."""
    told_after = TOLD_SECONDS if lack == "broker" else 0.0
    cluster.kafka.lose(TOPICS[topic], int(partition), lack != "replicas", told_after)


@_verb("topic", "partition", fault=False)
def back(cluster: Cluster, topic: str, partition: str) -> None:
    cluster.kafka.recover(TOPICS[topic], int(partition))


@_verb(fault=False)
def reach(cluster: Cluster, node_id: str) -> None:
    cluster.unreached.pop(node_id, None)
    apply_reach(cluster, node_id)


@_verb("number", ends="0")
def quota(cluster: Cluster, bytes_per_second: str) -> None:
    """It lasts: what there is must come through all the same."""
    cluster.kafka.bytes_per_second = float(bytes_per_second) or math.inf


@_verb()
def compact(cluster: Cluster) -> None:
    cluster.kafka.compact(POSITIONS)
    cluster.kafka.compact(TOPOLOGY)


@_verb("", "number", ends="0")
def skew(cluster: Cluster, node_id: str, seconds: str) -> None:
    cluster.skews[node_id] = float(seconds)
    node = live(cluster.nodes, node_id)
    if node is not None:
        node.skew = float(seconds)


@_verb("", "topic", "partition")
def unreach(cluster: Cluster, node_id: str, topic: str, partition: str) -> None:
    """The brokers reach the partition's leader, and so do the other nodes."""
    cluster.unreached.setdefault(node_id, set()).add((TOPICS[topic], int(partition)))
    apply_reach(cluster, node_id)
