"""Scripts of the grid: settings, the arguments and effect of each verb, and whether it is a fault."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, Protocol

import orjson

from deelog_connector.kafka_port import OutRecord
from deelog_proof.simulation import common_verbs
from deelog_proof.simulation.clients import Clients
from deelog_proof.simulation.common_verbs import LACKS, TOPICS, apply_reach, live, moment
from deelog_proof.simulation.context import CHANGES, POSITIONS, TOPOLOGY, Context
from deelog_proof.simulation.failpoints import Failpoints
from deelog_proof.simulation.language import Language, Settings, Verbs, numbered, on_or_off, one_of, whole
from deelog_proof.simulation.process import Process
from deelog_schemas import keys
from deelog_schemas.config import Config
from deelog_schemas.header import Kind
from deelog_schemas.member import node_id_of
from deelog_schemas.records import decode

LET: Final = ("primary", "backup", "other", "controller", "it")
"""The node that `let NAME WHO SEGMENT` names: the primary, the in-sync backup that is elected next, a live node without
the segment, the controller; `it` is the node that reached a failpoint."""

OPERATIONS: Final = ("pause", "resume", "stop", "restart", "configure")
"""Of a connector, as REST asks for them."""
SELDOM: Final = ("repair", "reset", "rename")
"""More of them: a restart with its tasks, a reset of the stopped connector's offsets, a configuration that is refused.
Generated scripts draw them from a stream of their own."""
SIGNALS: Final = (
    "reset-segment", "pause-writing", "resume-writing", "stop-snapshot", "log", "unknown", "malformed", "other-key",
)  # fmt: skip
"""Records of the signal topic that `send` knows; `snapshot` sends the other one."""


SETTINGS: Final[Settings] = {
    "nodes": 3,
    "segments": 4,
    "partitions": 2,
    "copies": 2,
    "keys": 4,
    "capacity": 3,
    "batch": 50,
    "chunk": 2,
    "max_operations": 500,
    "acks_all": 1,
    "tombstones": 1,
    "strategy": 0,
    "interval": 0,
    "skips": 0,
    "notifications": 0,
    "size": 0,
    "cost": 0,
    "seed": 0,
}
"""Settings and their defaults; `keys` and `capacity` are per segment; `strategy` is the index of `reset.strategy` in
the list of its values, `interval` is `reset.interval.ms`. `skips`: 1 filters by key and rewrites values, 2 filters by
value, 3 fails by key. `notifications`: whether nodes send them. `size`: bytes by which values are longer than they are
shown. `cost`: microseconds that a node takes to read an entry."""

LEAST: Final[Settings] = {
    "seed": 0,
    "acks_all": 0,
    "tombstones": 0,
    "strategy": 0,
    "interval": 0,
    "skips": 0,
    "notifications": 0,
    "size": 0,
    "cost": 0,
}
"""The least value of a setting, where it is not 1."""


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


VERBS: Final = Verbs()
_verb = VERBS.verb
is_fault, happen = VERBS.is_fault, VERBS.happen


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
def leave(cluster: Cluster, node_id: str) -> bool:
    node = live(cluster.nodes, node_id)
    if node is None or node.leaving or node.paused or len(cluster.living()) < 2:
        return False
    node.leave()
    return True


@_verb("", "operation", ends="resume")
def connector(cluster: Cluster, node_id: str, operation: str) -> bool:
    """REST asks for an operation of its connector; a paused process reads that later."""
    node = live(cluster.nodes, node_id)
    if node is None or node.leaving:
        return False
    node.now(node.ask, operation)
    return True


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
    apply_reach(cluster, node_id)


@_verb(fault=False)
def see(cluster: Cluster, node_id: str) -> None:
    cluster.blind.discard(node_id)
    apply_reach(cluster, node_id)


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


@_verb("number", "number")
def cut_positions(cluster: Cluster, partition: str, count: str) -> bool:
    """An unclean election loses the last records of a partition of positions."""
    lost = cluster.kafka.truncate(POSITIONS, int(partition), int(count))
    cluster.checker.epochs_lost(int(partition))
    return bool(lost)


@_verb()
def recreate_topology(cluster: Cluster) -> None:
    cluster.kafka.recreate(TOPOLOGY)
    cluster.checker.topology_lost()


@_verb("", "segment")
def overflow(cluster: Cluster, node_id: str, segment: str) -> bool:
    """Fills an op log, on a primary or a backup."""
    node, number = live(cluster.nodes, node_id), int(segment)
    if node is None or node.paused or not node.core.history(number):
        return False
    node.now(lambda: node.core.history(number) and node.core.overflow(number))  # it may lose the segment until then
    return True


@_verb()
def coalesce(cluster: Cluster, node_id: str) -> bool:
    node = live(cluster.nodes, node_id)
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


@_verb("", "who", "segment", fault=False)
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


def _key(argument: str, settings: Settings, _: Sequence[str]) -> str:
    key, segments = re.fullmatch(r"s(\d{1,6})k\d{1,6}", argument), settings["segments"]
    known = key is not None and int(key[1]) < segments
    return "" if known else f"{argument} is no key: s0k1 is a key of segment 0, the last segment is {segments - 1}"


def _partition(argument: str, settings: Settings, before: Sequence[str]) -> str:
    if "topology" in before:
        return "" if argument == "0" else "the topology topic has one partition, 0"
    return numbered("partition")(argument, settings, before)


VERBS.update(common_verbs.VERBS)
LANGUAGE: Final = Language(
    SETTINGS,
    LEAST,
    VERBS,
    {
        "key": _key,
        "segment": numbered("segment"),
        "partition": _partition,
        "number": whole,
        "state": on_or_off,
        "moment": moment,
        "who": one_of(LET),
        "kind": one_of(Kind.__members__),
        "operation": one_of((*OPERATIONS, *SELDOM)),
        "signal": one_of(SIGNALS),
        "topic": one_of(TOPICS),
        "lack": one_of(LACKS),
    },
)
