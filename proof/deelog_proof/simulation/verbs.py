"""The verbs of scripts: the arguments and effect of each, and whether it is a fault.

A verb is a handler: a function of the cluster and the arguments, whose parameters give their number. It returns False
where the event cannot happen and is skipped.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, NamedTuple, Protocol

import orjson

from deelog_connector.kafka_port import OutRecord
from deelog_proof.simulation.clients import Clients
from deelog_proof.simulation.context import CHANGES, POSITIONS, TOPOLOGY, Context
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.failpoints import Failpoints
from deelog_proof.simulation.process import Process
from deelog_schemas import keys
from deelog_schemas.config import Config
from deelog_schemas.member import node_id_of
from deelog_schemas.records import decode

MOST_ARGUMENTS: Final = 40
"""Of `at`, whose arguments include another verb with its own."""
LET: Final = ("primary", "backup", "other", "controller", "it")
"""The node that `let NAME WHO SEGMENT` names: the primary, the in-sync backup that is elected next, a live node without
the segment, the controller; `it` is the node that reached a failpoint."""

TOPICS: Final = {"changes": CHANGES, "positions": POSITIONS, "topology": TOPOLOGY}
LACKS: Final = ("leader", "replicas", "broker")
"""What a partition may be without: its leader, enough replicas in sync, or a leader that is not known to be away."""
TOLD_SECONDS: Final = 4.0
"""After which the brokers know it: longer than a transaction waits without progress. By default Kafka takes 9."""
OPERATIONS: Final = ("pause", "resume", "stop", "restart", "configure")
"""Of a connector, as REST asks for them."""
SELDOM: Final = ("repair", "reset", "rename")
"""More of them: a restart with its tasks, a reset of the stopped connector's offsets, a configuration that is refused.
Generated scripts draw them from a stream of their own."""
SIGNALS: Final = (
    "reset-segment", "pause-writing", "resume-writing", "stop-snapshot", "log", "unknown", "malformed", "other-key",
)  # fmt: skip
"""Records of the signal topic that `send` knows; `snapshot` sends the other one."""


class Cluster(Context, Protocol):
    """What verbs act on."""

    clients: Clients
    failpoints: Failpoints
    names: dict[str, str]
    """Node ids by the names that `let` gave them."""
    hanging: set[str]
    """Node ids that pause in their next transaction."""
    config: Config

    @property
    def nodes(self) -> Mapping[str, Process]:
        """The newest process of each node id."""

    def start(self, node_id: str) -> Process:
        """A new process under a node id."""


class Verb(NamedTuple):
    """`shapes` are the kinds of its arguments that are neither node names nor free."""

    handler: Callable[..., bool | None]
    least: int
    most: int
    shapes: tuple[str, ...]
    fault: bool
    ends: str | None
    """The last argument with which it ends a fault instead."""


VERBS: Final[dict[str, Verb]] = {}

_Handler = Callable[..., bool | None]


def _verb(*shapes: str, fault: bool = True, ends: str | None = None) -> Callable[[_Handler], _Handler]:
    """Adds a handler to the table, by its name."""

    def register(handler: _Handler) -> _Handler:
        _, *parameters = inspect.signature(handler).parameters.values()
        least = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters)
        open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        most = MOST_ARGUMENTS if open_ended else len(parameters)
        VERBS[handler.__name__.strip("_")] = Verb(handler, least, most, shapes, fault, ends)
        return handler

    return register


def is_fault(event: Event) -> bool:
    """Whether an event is a fault: not a command, the end of a fault, a name, or a wait."""
    verb = VERBS[event.verb]
    return verb.fault and (verb.ends is None or event.arguments[-1:] != (verb.ends,))


def happen(cluster: Cluster, event: Event) -> bool:
    """Executes an event; False where it cannot happen now."""
    arguments = (cluster.names.get(argument, argument) for argument in event.arguments)
    return VERBS[event.verb].handler(cluster, *arguments) is not False


@_verb("key", "", "number", fault=False)
def put(cluster: Cluster, key: str, value: str, ttl: str = "") -> None:
    cluster.clients.write(real_key(key, cluster.segments), value.encode(), int(ttl) if ttl else None)


@_verb("key", fault=False)
def del_(cluster: Cluster, key: str) -> None:
    cluster.clients.write(real_key(key, cluster.segments), None, None)


@_verb("key", fault=False)
def get(cluster: Cluster, key: str) -> None:
    cluster.clients.read(real_key(key, cluster.segments))


@_verb("segment", fault=False)
def clear(cluster: Cluster, segment: str) -> None:
    cluster.clients.clear(int(segment))


@_verb()
def crash(cluster: Cluster, node_id: str) -> bool:
    node = _live(cluster, node_id)
    if node is not None:
        cluster.ended(node)
    return node is not None


@_verb(fault=False)
def restart(cluster: Cluster, node_id: str) -> bool:
    node = _live(cluster, node_id)
    if node is None and node_id in cluster.nodes:
        cluster.start(node_id)
    return node is None


@_verb()
def twin(cluster: Cluster, node_id: str) -> bool:
    """A second process under the node id of a live one."""
    if _live(cluster, node_id) is None:
        return False
    cluster.start(node_id)
    return True


@_verb()
def pause(cluster: Cluster, node_id: str) -> bool:
    node = _live(cluster, node_id)
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
def leave(cluster: Cluster, node_id: str) -> bool:
    node = _live(cluster, node_id)
    if node is None or node.leaving or node.paused or len(cluster.living()) < 2:
        return False
    node.leave()
    return True


@_verb("", "operation", ends="resume")
def connector(cluster: Cluster, node_id: str, operation: str) -> bool:
    """REST asks for an operation of its connector; a paused process reads that later."""
    node = _live(cluster, node_id)
    if node is None or node.leaving:
        return False
    node.now(node.ask, operation)
    return True


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
def isolate(cluster: Cluster, node_id: str) -> None:
    for other in cluster.nodes:
        if other != node_id:
            cluster.network.part(node_id, other)


@_verb(fault=False)
def rejoin(cluster: Cluster, node_id: str) -> None:
    for other in cluster.nodes:
        cluster.network.heal(node_id, other)
        cluster.network.heal(other, node_id)


@_verb()
def blind(cluster: Cluster, node_id: str) -> None:
    cluster.blind.add(node_id)
    _reach(cluster, node_id)


@_verb(fault=False)
def see(cluster: Cluster, node_id: str) -> None:
    cluster.blind.discard(node_id)
    _reach(cluster, node_id)


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
    _reach(cluster, node_id)


@_verb(fault=False)
def yeskafka(cluster: Cluster, node_id: str) -> None:
    cluster.no_kafka.discard(node_id)
    _reach(cluster, node_id)


@_verb()
def fence(cluster: Cluster, node_id: str) -> None:
    cluster.kafka.init(cluster.config.topics.transactional_id_node(node_id), "somebody")


@_verb("partition", "number")
def foreign(cluster: Cluster, partition: str, ms: str) -> bool:
    """A foreign transaction holds the last stable offset back; it is aborted later."""
    if not cluster.kafka.takes(CHANGES, int(partition)):
        return False
    name = f"stranger {cluster.engine.steps}"
    session = cluster.kafka.init(name, name)
    cluster.kafka.append(name, session, [OutRecord(CHANGES, int(partition), b"x", None, [])])
    cluster.engine.after(int(ms) / 1000, _stranger_ends, cluster, name, int(partition))
    return True


@_verb("partition", "number")
def truncate(cluster: Cluster, partition: str, count: str) -> bool:
    number = int(partition)
    lost = cluster.kafka.truncate(CHANGES, number, int(count))
    cluster.checker.lose(number, lost)
    return bool(lost)


@_verb("segment", "kind")
def cut_back(cluster: Cluster, segment: str, kind: str) -> bool | None:
    """The log loses its end, from the segment's last committed record of this kind on."""
    partition = cluster.partition_of(int(segment))
    for count, slot in enumerate(reversed(cluster.kafka.logs[CHANGES, partition].slots), 1):
        if slot.record is None or slot.transaction is None or slot.transaction.state != "committed":
            continue
        header = decode(*slot.record).header
        if header.segment == int(segment) and header.kind.name == kind:
            return truncate(cluster, str(partition), str(count))
    return False


@_verb("topic", "partition", "lack")
def away(cluster: Cluster, topic: str, partition: str, lack: str) -> None:
    """A partition has no leader, or too few replicas in sync."""
    told_after = TOLD_SECONDS if lack == "broker" else 0.0
    cluster.kafka.lose(TOPICS[topic], int(partition), lack != "replicas", told_after)


@_verb("topic", "partition", fault=False)
def back(cluster: Cluster, topic: str, partition: str) -> None:
    cluster.kafka.recover(TOPICS[topic], int(partition))


@_verb("", "topic", "partition")
def unreach(cluster: Cluster, node_id: str, topic: str, partition: str) -> None:
    """The brokers reach the partition's leader, and so do the other nodes."""
    cluster.unreached.setdefault(node_id, set()).add((TOPICS[topic], int(partition)))
    _reach(cluster, node_id)


@_verb(fault=False)
def reach(cluster: Cluster, node_id: str) -> None:
    cluster.unreached.pop(node_id, None)
    _reach(cluster, node_id)


@_verb("number", ends="0")
def quota(cluster: Cluster, bytes_per_second: str) -> None:
    """It lasts: what there is must come through all the same."""
    cluster.kafka.bytes_per_second = float(bytes_per_second) or math.inf


@_verb()
def recreate(cluster: Cluster) -> None:
    cluster.kafka.recreate(CHANGES)
    for partition in range(cluster.partitions):
        cluster.checker.lose(partition, None)


@_verb()
def recreate_positions(cluster: Cluster) -> None:
    cluster.kafka.recreate(POSITIONS)
    for partition in range(cluster.partitions):
        cluster.checker.epochs_lost(partition)


@_verb()
def recreate_topology(cluster: Cluster) -> None:
    cluster.kafka.recreate(TOPOLOGY)
    cluster.checker.topology_lost()


@_verb()
def compact(cluster: Cluster) -> None:
    cluster.kafka.compact(POSITIONS)


@_verb("", "segment")
def overflow(cluster: Cluster, node_id: str, segment: str) -> bool:
    """Fills an op log, on a primary or a backup."""
    node, number = _live(cluster, node_id), int(segment)
    if node is None or node.paused or not node.core.history(number):
        return False
    node.now(lambda: node.core.history(number) and node.core.overflow(number))  # it may lose the segment until then
    return True


@_verb()
def coalesce(cluster: Cluster, node_id: str) -> bool:
    node = _live(cluster, node_id)
    if node is None or node.paused:
        return False
    before = {segment.number: len(segment.log) for segment in node.core.primaries()}
    cluster.counts["coalesced"] += node.core.coalesce_all()
    for segment in node.core.primaries():
        if len(segment.log) < before[segment.number]:
            cluster.checker.coalesced(segment.number)
    return True


@_verb("segment")
def signal(cluster: Cluster, segment: str) -> bool:
    node = cluster.primary_of(int(segment))
    if node is None or node.paused or node.core.phase(int(segment)) == "idle":
        return False
    node.core.request_reset(int(segment), "signal")
    node.wake()
    return True


@_verb("segment", fault=False)
def snapshot(cluster: Cluster, segment: str) -> None:
    """Every node has read the signal for an incremental snapshot; the segment's owner acts on it."""
    _signal(
        cluster, "execute-snapshot", {"type": "INCREMENTAL", "data-collections": [".*"], "segments": [int(segment)]}
    )
    cluster.checker.snapshot_asked(int(segment))


@_verb("signal", "segment", ends="resume-writing")
def send(cluster: Cluster, kind: str, segment: str = "0") -> None:
    """An operator sends another signal, or somebody what is none."""
    data: dict[str, object] = {}
    if kind == "reset-segment":
        data = {"cache": cluster.config["cache.name"], "segments": [int(segment)]}
    elif kind == "log":
        data = {"message": "read by {}"}
    _signal(cluster, kind, data)


def _signal(cluster: Cluster, kind: str, data: Mapping[str, object]) -> None:
    """Appends it, whether or not the nodes reach the brokers."""
    cluster.counts[f"sent {kind}"] += 1
    topic = cluster.config.topics.signal
    log = cluster.kafka.logs[topic, 0]
    key = "another" if kind == "other-key" else cluster.config["topic.prefix"]
    value = orjson.dumps({"id": f"a{log.end}", "type": kind, "data": data})
    log.append(OutRecord(topic, 0, key.encode(), value[:-1] if kind == "malformed" else value, []), None)


@_verb("key")
def refuse(cluster: Cluster, key: str) -> None:
    cluster.kafka.refused.add(_record_key(real_key(key, cluster.segments)))


@_verb("key", fault=False)
def allow(cluster: Cluster, key: str) -> None:
    cluster.kafka.refused.discard(_record_key(real_key(key, cluster.segments)))


@_verb("", "number", ends="0")
def skew(cluster: Cluster, node_id: str, seconds: str) -> None:
    cluster.skews[node_id] = float(seconds)
    node = _live(cluster, node_id)
    if node is not None:
        node.skew = float(seconds)


@_verb("", "", "segment", fault=False)
def let(cluster: Cluster, name: str, who: str, segment: str) -> bool:
    """Names the node id that now has this role."""
    primary = cluster.primary_of(int(segment))
    candidates: list[str] = []
    if who in cluster.nodes:
        candidates = [who]
    elif who == "controller":
        candidates = [node.node_id for node in cluster.living() if node.is_controller][-1:]
    elif primary is not None:
        holders = [n.node_id for n in cluster.holders(int(segment))]
        others = [n for n in sorted(cluster.nodes) if n not in holders]
        line = [node_id_of(m) for m in primary.view.rows[int(segment)].owners]  # as the next is elected
        backups = sorted(holders[1:], key=lambda n: line.index(n) if n in line else len(line))
        candidates = {"primary": holders[:1], "backup": backups, "other": others}[who]
    if candidates:
        cluster.names[name] = candidates[0]
    return bool(candidates)


@_verb(fault=False)
def at(cluster: Cluster, node_id: str, moment: str, verb: str, *arguments: str) -> None:
    cluster.failpoints.arm(node_id, moment, Event(cluster.engine.now, verb, arguments))


def _live(cluster: Cluster, node_id: str) -> Process | None:
    node = cluster.nodes.get(node_id)
    return node if node is not None and node.alive else None


def _reach(cluster: Cluster, node_id: str) -> None:
    for node in cluster.living():
        if node.node_id == node_id:
            node.reach()


def _stranger_ends(cluster: Cluster, name: str, partition: int) -> None:
    """Also where its transaction is left open: that is a stranger's to mend."""
    session = cluster.kafka.init(name, name)
    if name in cluster.kafka.logs[CHANGES, partition].open:
        if cluster.kafka.takes(CHANGES, partition):
            cluster.kafka.append(name, session, [OutRecord(CHANGES, partition, b"x", None, [])])
        cluster.engine.after(0.1, _stranger_ends, cluster, name, partition)


@cache
def real_key(name: str, segments: int) -> bytes:
    """The real key of `s<segment>k<number>`: it hashes to the segment."""
    segment = int(name[1:].partition("k")[0])
    for number in range(1_000_000):
        key = f"{name}.{number}".encode()
        if keys.segment_of(key, segments) == segment:
            return key
    raise AssertionError(name)


def _record_key(key: bytes) -> bytes:
    return b'{"key":"' + key + b'"}'
