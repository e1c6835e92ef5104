"""One chaos run: Kafka, nodes, the Spark job, clients, faults, then rest, and the comparison of everything.

The parts are started as the demo starts them, with gates between them. Faults run in the main thread, since it starts
processes; clients and gates have threads of their own.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deelog_connector.devkafka import jars
from deelog_connector.devkafka.ports import free_ports
from deelog_proof.demo.display import Display
from deelog_proof.harness.child import until
from deelog_proof.harness.cluster import DUMP_SECONDS, Cluster, Held, is_stopped
from deelog_proof.harness.drain import drain
from deelog_proof.harness.environment import assembled, directory_of, ticking
from deelog_schemas.java import find_java
from deelog_schemas.operation import Entry
from tests.support.network import INSIDE, OUTSIDE, Network
from tests.support.two_brokers import broker, coordinate
from tests.system.chaos import faults
from tests.system.chaos.checker import (
    Row,
    Trouble,
    Verdict,
    View,
    check_history,
    check_resets,
    check_states,
    segment_of,
)
from tests.system.chaos.clients import MAX_ENTRY_BYTES, CarefulClient, Client, StockClient
from tests.system.chaos.disk import Disk
from tests.system.chaos.faults import BROKERS, Fault, FaultContext
from tests.system.chaos.history import Write
from tests.system.chaos.reader import ChangeFold, State, Topic, fold_diff, parse, read

SEGMENTS: Final = 64
PREFIX: Final = "chaos"
CACHE: Final = "c"
KEYS: Final = 1000
CAREFUL: Final = 4
STOCK: Final = 2
LEAD_SECONDS: Final = 2.0
_MOST_DIFF_RESTARTS = 50
_COPIES_SECONDS = 90.0
_LONGEST: Final = 8
_MARGIN_MS: Final = 8000
"""For how long after everything is whole again a reset may still begin that a fault called for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play. `rate` is writes per second of all clients together; `files` is where they stay."""

    seconds: float
    seed: int
    nodes: int = 3
    rate: float = 240.0
    kinds: tuple[str, ...] = tuple(faults.KINDS)
    files: Path | None = None


def run(plan: Plan, show: Display) -> dict[str, Any]:
    """Plays it and returns the report. Call it from the main thread, before any other thread runs.

    Raises `RunError` where something got stuck or died by itself: that is a finding, too.
    """
    with ExitStack() as stack:
        begin = time.monotonic()
        directory = directory_of(plan.files, stack)
        disk = Disk(directory / "checkpoint")
        stack.callback(disk.close)
        if plan.files is not None:
            stack.callback(disk.keep)
        scene = _set_up(plan, show, stack, directory, disk)
        environment = scene.environment
        environment.seconds["setup"] = round(time.monotonic() - begin, 1)
        with environment.explained():
            started_ms = faults.now_ms()
            with environment.timed("load"):
                writes = _load(plan, scene)
            with environment.timed("drain"):
                show.say("healed; waiting until everything is at rest")
                caches = drain(environment)
                copies = _copies(environment.cluster)
            with environment.timed("verify"):
                show.say("reading everything with a plain consumer, and comparing")
                report = _compare(plan, scene, writes, caches, copies, started_ms)
        report["seconds"] = environment.seconds
        return report


def _set_up(plan: Plan, show: Display, stack: ExitStack, directory: Path, disk: Disk) -> FaultContext:
    find_java()
    jars.fetch("kafka")
    spark_jars = jars.fetch("spark-kafka")
    names = [f"n{number + 1}" for number in range(plan.nodes)]
    controller, port, second_port, *gates = free_ports(5 + len(names))
    gated = list(zip((*BROKERS, *names), gates, strict=True))
    kafka, second = (
        broker(directory / f"kafka{number}", number, own, controller, f"{INSIDE}:{gate}", f"{OUTSIDE}:{gate}")
        for number, own, gate in ((1, port, gates[0]), (2, second_port, gates[1]))
    )
    stack.callback(kafka.kill)
    kafka.start()
    coordinate(kafka.bootstrap)  # whoever coordinates is not lost with the second
    stack.callback(second.kill)
    second.start()
    common = {"topic.prefix": PREFIX, "cache.name": CACHE, "segment.count": str(SEGMENTS)}
    nodes = {
        "bootstrap.servers": f"{OUTSIDE}:{gates[0]},{OUTSIDE}:{gates[1]}",
        "cache.backups": "1",
        "cache.max.entries": str(KEYS),
        "max.entry.bytes": str(MAX_ENTRY_BYTES),
    }
    own = {name: {"cache.peer.listen": f"{INSIDE}:{gate}"} for name, gate in gated if name in names}
    kept = plan.files is not None
    environment = assembled(show, stack, directory, kept, kafka, spark_jars, names, common, nodes, own)
    environment.most_diff_restarts = _MOST_DIFF_RESTARTS
    cluster = environment.cluster
    network = Network(lambda: {node.node_id: node.pid for node in cluster.nodes if node.pid is not None})
    stack.callback(network.stop)
    network.start()
    for name, gate in gated:
        network.gate(name, gate)
    environment.start(stack)
    show.say(f"{network.connections} connections through gates; disk: {disk.kind}")
    return FaultContext(environment, second, network, disk)


def _load(plan: Plan, scene: FaultContext) -> list[Write]:
    """Clients write, faults strike; returns what the clients did."""
    environment = scene.environment
    kinds = [CarefulClient] * CAREFUL + [StockClient] * STOCK
    rate = plan.rate / len(kinds)
    clients: list[Client] = [
        kind(number, environment.cluster.addresses(), plan.seed, KEYS, rate) for number, kind in enumerate(kinds)
    ]
    begin = time.monotonic()

    def tick() -> None:
        faults.watch_diff(scene)
        writes = sum(client.acknowledged for client in clients)
        behind = ", the Spark job is catching up" if scene.behind else ""
        environment.show.advance(writes, f"{time.monotonic() - begin:.0f} of {plan.seconds:.0f} s{behind}")

    with ticking(environment.show, None, tick):
        try:
            for client in clients:
                client.start()
            time.sleep(LEAD_SECONDS)
            groups = faults.group(faults.plan(plan.seed, plan.seconds, list(plan.kinds)))
            while (left := begin + plan.seconds - time.monotonic()) > LEAD_SECONDS:
                if together := faults.fitting(next(groups), left):
                    faults.strike(scene, together, environment.show.say)
                else:
                    time.sleep(min(left, LEAD_SECONDS))
                _supervise(scene)
            faults.caught_up(scene)
            time.sleep(max(0.0, begin + plan.seconds - time.monotonic()))
        finally:
            for client in clients:
                client.stop()
    for client in clients:
        client.join()
    return [write for client in clients for write in client.history]


def _supervise(scene: FaultContext) -> None:
    """Nobody may have died but by a fault, which starts again whom it killed."""
    for node in scene.nodes:
        node.must_run()
        assert not is_stopped(node), f"{node.name} is still stopped"
    scene.environment.supervise()


def _copies(cluster: Cluster) -> list[str]:
    """Segments whose copies are not equal, as sentences; waits for a while until there are none."""
    found: list[str] = []

    def equal() -> bool:
        found[:] = list(_unequal(cluster))
        return not found

    try:
        until(equal, _COPIES_SECONDS, "backups to hold what their primaries hold", 0.5)
    except TimeoutError:
        return found
    return []


def _unequal(cluster: Cluster) -> Iterator[str]:
    with ExitStack() as stack:
        clients = {node.node_id: stack.enter_context(node.client(DUMP_SECONDS)) for node in cluster.nodes}
        for segment in range(cluster.segments):
            held: dict[str, Held] = {n.node_id: n.held(clients[n.node_id], segment) for n in cluster.nodes}
            copies = {name: copy for name, copy in held.items() if copy.role in ("primary", "backup")}
            roles = Counter(copy.role for copy in copies.values())
            if roles != {"primary": 1, "backup": 1}:
                yield f"segment {segment} has {dict(roles)}"
            elif len({(copy.epoch, copy.sequence, frozenset(copy.entries)) for copy in copies.values()}) > 1:
                yield f"segment {segment}: {' and '.join(copies)} hold different entries or positions"


def _compare(
    plan: Plan, scene: FaultContext, writes: list[Write], caches: dict[bytes, Entry], copies: list[str], started_ms: int
) -> dict[str, Any]:
    environment = scene.environment
    bootstrap, topics = environment.kafka.bootstrap, environment.topics
    fold = ChangeFold()
    for message in read(bootstrap, topics.changes):
        fold.take(parse(message))
    changes = fold.finish()
    diff = fold_diff(map(parse, read(bootstrap, topics.diff)))
    views = [_view(message) for message in read(bootstrap, topics.topology) if message.key() == b"view"]
    verdict = Verdict()
    resets = check_resets(verdict, changes.resets, views, list(_troubles(scene)), started_ms)
    check_history(verdict, writes, changes, resets, SEGMENTS)
    states: dict[bytes, State] = {key: (entry.value, entry.expires_at) for key, entry in caches.items()}
    check_states(verdict, states, changes, diff, copies)
    return _report(plan, scene, writes, verdict, (changes, diff), views)


def _view(message: Any) -> View:
    told = json.loads(message.value())
    names = [*told["names"], None]
    rows = (
        Row(row[1], names[row[2]], tuple(names[member] for member in row[3]), names[row[5]]) for row in told["rows"]
    )
    return View(message.timestamp()[1], tuple(rows))


def _troubles(scene: FaultContext) -> Iterator[Trouble]:
    for fault in scene.faults:
        for node in fault.nodes or [""]:
            yield Trouble(fault.kind, node, fault.from_ms, fault.recovered_ms + _MARGIN_MS)


def _report(
    plan: Plan,
    scene: FaultContext,
    writes: list[Write],
    verdict: Verdict,
    topics: tuple[Topic, Topic],
    views: list[View],
) -> dict[str, Any]:
    monitor = scene.environment.monitor
    longest = sorted(writes, key=lambda write: -write.waited_ms)[:_LONGEST]
    return {
        "seed": plan.seed,
        "nodes": plan.nodes,
        "operations": verdict.operations,
        "outcomes": dict(verdict.outcomes),
        "in_topic": verdict.in_topic,
        "unknown_in_topic": verdict.unknown_in_topic,
        "covered_by_reset": verdict.covered_by_reset,
        "changes": topics[0].changes,
        "diffs": topics[1].changes,
        "keys": verdict.keys,
        "faults": dict(Counter(fault.kind for fault in scene.faults)),
        "resets": dict(verdict.resets),
        "called_for": dict(verdict.called_for),
        "recovery_ms": _by_kind(scene.faults, lambda fault: fault.recovered_ms - fault.healed_ms),
        "longest_wait_ms": _by_kind(scene.faults, lambda fault: _longest(fault, writes)),
        "longest_waits": [_told(write, scene.faults, views) for write in longest],
        "takeovers": monitor.total("takeovers"),
        "fenced": monitor.total("fenced"),
        "pruned": monitor.total("pruned"),
        "corrections": monitor.total("corrections"),
        "connections": scene.network.connections,
        "network_late_ms": round(scene.network.latest_ms),
        "disk": scene.disk.kind,
        "diff_restarts": scene.environment.diff_restarts,
        "violations": verdict.violations(),
        "timeline": [
            {
                "kind": fault.kind,
                "nodes": fault.nodes,
                "from_ms": fault.from_ms,
                "healed_ms": fault.healed_ms,
                "recovered_ms": fault.recovered_ms,
                "notes": fault.notes,
            }
            for fault in scene.faults
        ],
    }


def _by_kind(happened: list[Fault], measure: Any) -> dict[str, dict[str, float]]:
    values: dict[str, list[float]] = {}
    for fault in happened:
        values.setdefault(fault.kind, []).append(measure(fault))
    return {
        kind: {"count": len(found), "p50": round(statistics.median(found)), "max": round(max(found))}
        for kind, found in sorted(values.items())
    }


def _longest(fault: Fault, writes: list[Write]) -> float:
    """The longest that a client waited for an acknowledgement while the fault was there or not yet recovered from."""
    at = (w.waited_ms for w in writes if w.ended_us >= fault.from_ms * 1000 and w.sent_us <= fault.recovered_ms * 1000)
    return max(at, default=0.0)


def _told(write: Write, happened: list[Fault], views: list[View]) -> dict[str, Any]:
    """A write that took long: what was broken then, what the client was told, and who owned the segment."""
    during = [
        f"{fault.kind} {' '.join(fault.nodes)}".strip()
        for fault in happened
        if write.ended_us >= fault.from_ms * 1000 and write.sent_us <= fault.recovered_ms * 1000
    ]
    return {
        "ms": round(write.waited_ms),
        "client": write.client,
        "outcome": write.outcome,
        "sent_us": write.sent_us,
        "key": write.key.decode(),
        "during": during,
        "answers": dict(write.answers.most_common(6)),
        "segment": list(_ownership(write, views)),
    }


def _ownership(write: Write, views: list[View]) -> Iterator[dict[str, Any]]:
    """What the views said of the write's segment from when it was sent on; milliseconds since then."""
    number, former = segment_of(write.key, SEGMENTS), None
    for view, following in zip(views, [*views[1:], None], strict=True):
        at_ms = view.at_ms - write.sent_us // 1000
        over = following is not None and following.at_ms * 1000 < write.sent_us
        if over or number >= len(view.rows) or view.at_ms * 1000 > write.ended_us or view.rows[number] == former:
            continue
        former = view.rows[number]
        yield {"at_ms": at_ms, **former._asdict()}
