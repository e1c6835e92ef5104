"""The faults of a chaos run: each begins, lasts, is healed, and then there is a time until all is as before.

Kinds and victims are drawn from the seed before the run begins, so that the same seed is the same plan; the moment in
which one strikes is the machine's. Faults may overlap: what begins while another lasts is healed with it.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_proof.audit.topics import end_offsets
from deelog_proof.harness.child import ProcessError, until
from deelog_proof.harness.cluster import Cluster, Node, is_stopped
from deelog_proof.harness.drain import unwritten
from deelog_proof.harness.environment import Environment
from tests.support.network import Direction, Network
from tests.system.chaos.disk import Disk

BROKERS: Final = "kafka", "kafka-second"
OVERLAP: Final = 0.3
"""How often a fault begins while another one lasts."""
RECOVERY_SECONDS: Final = 120.0
DIFF_LEAD_SECONDS: Final = 35.0
DIFF_SECONDS: Final = 300.0
"""Until a Spark job that was started again has caught up; starting it alone takes 20 s of two busy cores."""
_STOP_SECONDS = 40.0
_FENCED_SECONDS = 20.0
_LIST_SECONDS = 10.0
_RESTART_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come. `wait` is the pause before it, `lasts` how long it is left alone (s). `victim` is a draw."""

    kind: str
    wait: float
    lasts: float
    victim: float
    overlaps: bool
    """Whether it begins while the one before it lasts."""


@dataclass(slots=True)
class Fault:
    """A fault as it was. Times are Unix milliseconds; `recovered_ms` minus `healed_ms` is the recovery."""

    kind: str
    nodes: list[str]
    from_ms: int
    healed_ms: int = 0
    recovered_ms: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class FaultContext:
    """What faults act on."""

    environment: Environment[Cluster]
    second: EmbeddedKafka
    """A broker that has half of the partitions, but no coordinator."""
    network: Network
    disk: Disk
    faults: list[Fault] = field(default_factory=list)
    behind: list[tuple[Fault, dict[int, int]]] = field(default_factory=list)
    """Faults of the Spark job that it has not caught up after, and the offsets up to which it has to."""

    @property
    def nodes(self) -> list[Node]:
        return self.environment.cluster.nodes

    def pick(self, victim: float, count: int = 1) -> list[Node]:
        """`count` nodes that run and are not stopped, fewer where there are none."""
        able = [node for node in self.nodes if node.pid is not None and not is_stopped(node)]
        first = int(victim * len(self.nodes))
        return [node for node in self.nodes[first:] + self.nodes[:first] if node in able][:count]


Heal = Callable[[], None]
Begin = Callable[[FaultContext, Fault, float], Heal]


def plan(seed: int, seconds: float, kinds: list[str]) -> Iterator[Planned]:
    """Faults without end: every kind once before any comes again. `seconds` is the run's, for how long each lasts."""
    draw = random.Random(f"plan/{seed}")
    longest = 6.0 if seconds >= 120 else 3.0
    while True:
        for kind in draw.sample(kinds, len(kinds)):
            lasts = draw.choice((draw.uniform(0.2, 1.0), draw.uniform(1.0, longest)))
            yield Planned(kind, draw.uniform(0.3, 2.0), lasts, draw.random(), draw.random() < OVERLAP)


def _kill(scene: FaultContext, fault: Fault, victim: float, count: int = 1) -> Heal:
    nodes = scene.pick(victim, count)
    fault.nodes = [node.node_id for node in nodes]
    for node in nodes:
        scene.environment.monitor.poll(node)
    for node in nodes:
        node.kill()
    return lambda: _start(nodes)


def _kill_owners(scene: FaultContext, fault: Fault, victim: float) -> Heal:
    return _kill(scene, fault, victim, 2)


def _start(nodes: list[Node]) -> None:
    for node in nodes:
        if node.pid is None:
            node.start()


def _pause(scene: FaultContext, fault: Fault, victim: float) -> Heal:
    nodes = scene.pick(victim)
    fault.nodes = [node.node_id for node in nodes]
    for node in nodes:
        node.send(signal.SIGSTOP)

    def heal() -> None:
        for node in nodes:
            if node.pid is not None:
                node.send(signal.SIGCONT)

    return heal


def _kill_broker(second: bool) -> Begin:
    def begin(scene: FaultContext, _fault: Fault, _victim: float) -> Heal:
        broker = scene.second if second else scene.environment.kafka
        broker.kill()
        return lambda: broker.start() if broker.pid is None else None

    return begin


def _pause_broker(second: bool) -> Begin:
    """The second one until it is fenced: when it goes on, clients first hear of partitions without a leader."""

    def begin(scene: FaultContext, _fault: Fault, _victim: float) -> Heal:
        broker = scene.second if second else scene.environment.kafka
        if broker.pid is not None:
            broker.pause()
            if second:
                until(_leaderless(scene), _FENCED_SECONDS, "the paused broker to be fenced")
        return lambda: broker.resume() if broker.pid is not None else None

    return begin


def _leaderless(scene: FaultContext) -> Callable[[], bool]:
    """Whether a partition of the changes has no leader. To be called until the answer is the wanted one."""
    admin = AdminClient({"bootstrap.servers": scene.environment.kafka.bootstrap, "log_level": 2})
    name = scene.environment.topics.changes

    def look() -> bool:
        topic = admin.list_topics(name, _LIST_SECONDS).topics[name]
        # A broker that has just come back may not know the topic yet.
        return topic.error is not None or any(partition.leader < 0 for partition in topic.partitions.values())

    return look


def _apart(both: bool, cut: bool, brokers: Sequence[str] = ()) -> Begin:
    def begin(scene: FaultContext, fault: Fault, victim: float) -> Heal:
        fault.nodes = [node.node_id for node in scene.pick(victim, 1 if brokers else 2)]
        directions: list[Direction] = [(one, other) for one in fault.nodes[:1] for other in brokers or fault.nodes[1:]]
        back = [(other, one) for one, other in directions]
        if both:
            directions += back
        elif victim * 1000 % 1 < 0.5:
            directions = back
        fault.notes["held" if not cut else "cut"] = [f"{a} to {b}" for a, b in directions]
        if cut:
            for one, other in directions:
                scene.network.cut(one, other)
        else:
            scene.network.hold(directions)
        return lambda: scene.network.heal(directions)

    return begin


def _kill_diff(scene: FaultContext, _fault: Fault, _victim: float) -> Heal:
    diff = scene.environment.diff
    diff.kill()
    return lambda: _started(scene)


def _fill_disk(scene: FaultContext, fault: Fault, _victim: float) -> Heal:
    scene.disk.fill()
    fault.notes["disk"] = scene.disk.kind

    def heal() -> None:
        scene.disk.free()
        fault.notes["the Spark job"] = "ran on" if scene.environment.diff.pid is not None else "ended"
        _started(scene)

    return heal


def _started(scene: FaultContext) -> None:
    if scene.environment.diff.pid is None:
        scene.environment.diff.kill()  # what it may have left of its group
        scene.environment.diff.start()


def _rolling(scene: FaultContext, fault: Fault, victim: float) -> Heal:
    """Every node in turn: SIGTERM, its end, its start; the next one once everything is in sync again."""
    for node in scene.pick(victim, len(scene.nodes)):
        fault.nodes.append(node.node_id)
        node.send(signal.SIGTERM)
        until(lambda node=node: node.pid is None, _STOP_SECONDS, f"{node.name} to end in order")  # type: ignore[misc]
        if node.exit_code:
            raise ProcessError(f"{node.name} ended with exit code {node.exit_code} on SIGTERM; its log {node.tail()}")
        node.start()
        node.wait_ready()
        scene.environment.cluster.wait_whole(_RESTART_SECONDS)
    return lambda: None


KINDS: Final[dict[str, Begin]] = {
    "kill": _kill,
    "kill-owners": _kill_owners,
    "pause": _pause,
    "kafka-kill": _kill_broker(second=False),
    "kafka-pause": _pause_broker(second=False),
    "kafka-second-kill": _kill_broker(second=True),
    "kafka-second-pause": _pause_broker(second=True),
    "part": _apart(both=True, cut=False),
    "part-one-way": _apart(both=False, cut=False),
    "part-cut": _apart(both=True, cut=True),
    "part-kafka": _apart(both=True, cut=False, brokers=BROKERS),
    "part-kafka-one-way": _apart(both=False, cut=False, brokers=BROKERS),
    "part-kafka-cut": _apart(both=True, cut=True, brokers=BROKERS),
    "part-kafka-second": _apart(both=True, cut=False, brokers=BROKERS[1:]),
    "part-kafka-second-cut": _apart(both=True, cut=True, brokers=BROKERS[1:]),
    "diff-kill": _kill_diff,
    "diff-disk-full": _fill_disk,
    "rolling-restart": _rolling,
}
"""All kinds. `part-…` are partitions: of two nodes, or of a node and Kafka, or one of its brokers. `kafka-second-…`
take away some of the partitions of each topic, and leave a client with a leader that is none any more."""
_DIFF = ("diff-kill", "diff-disk-full")
_ALONE = ("rolling-restart",)
"""What waits for others to be well cannot overlap with them."""


def fitting(planned: list[Planned], left: float) -> list[Planned]:
    """Those that can be recovered from in the `left` seconds; a restarted Spark job needs its time."""
    return [one for one in planned if one.kind not in _DIFF or left >= DIFF_LEAD_SECONDS]


def strike(scene: FaultContext, planned: list[Planned], say: Callable[[str], None]) -> None:
    """Begins the faults one by one, leaves them alone, heals them in turn, and waits until all is as before."""
    healing: list[tuple[Fault, Heal, float]] = []
    if any(one.kind in _DIFF for one in planned):
        caught_up(scene)
    for one in planned:
        time.sleep(one.wait)  # the plan's, drawn from the seed
        fault = Fault(one.kind, [], now_ms())
        scene.faults.append(fault)
        heal = KINDS[one.kind](scene, fault, one.victim)
        say(f"{one.kind} {' '.join(fault.nodes)} for {one.lasts:.1f} s")
        healing.append((fault, heal, time.monotonic() + one.lasts))
    for _, _, at in healing:
        time.sleep(max(0.0, at - time.monotonic()))
    # What starts again may wait for what is paused: a broker for its controller.
    for fault, heal, _ in sorted(healing, key=lambda one: one[0].kind.endswith("kill")):
        heal()
        fault.healed_ms = now_ms()
    begin = time.monotonic()
    for fault, _, _ in healing:
        _recovered(scene, fault)
    say(f"recovered after {time.monotonic() - begin:.1f} s")


def group(planned: Iterator[Planned]) -> Iterator[list[Planned]]:
    """Faults that overlap, together: two at most."""
    kept: Planned | None = None
    while True:
        first = kept or next(planned)
        second, kept = next(planned), None
        if second.overlaps and first.kind not in _ALONE and second.kind not in _ALONE and first.kind != second.kind:
            yield [first, second]
        else:
            kept = second
            yield [first]


def _recovered(scene: FaultContext, fault: Fault) -> None:
    """As before: every copy in sync, and what was captured until now in Kafka. The Spark job is not waited for."""
    environment = scene.environment
    if fault.kind in _DIFF:
        scene.behind.append((fault, end_offsets(environment.kafka.bootstrap, environment.topics.changes)))
        return
    for node in scene.nodes:
        node.wait_ready(RECOVERY_SECONDS)
    leaderless = _leaderless(scene)
    until(lambda: not leaderless(), RECOVERY_SECONDS, "each partition to have a leader")
    environment.cluster.wait_whole(RECOVERY_SECONDS)
    ends = end_offsets(environment.kafka.bootstrap, environment.topics.changes)

    def written() -> bool:
        return unwritten(environment) == 0 or _beyond(environment, ends)

    until(written, RECOVERY_SECONDS, f"the nodes to write to Kafka after {fault.kind}", 0.1)
    fault.recovered_ms = now_ms()


def caught_up(scene: FaultContext) -> None:
    """Returns once the Spark job has read all that stood in Kafka when it was last healed."""

    def level() -> bool:
        scene.environment.supervise()
        return not scene.behind

    until(level, DIFF_SECONDS, "the Spark job to catch up after it was killed or its disk was full", 0.2)


def watch_diff(scene: FaultContext) -> None:
    """To be called often: notes when the Spark job has caught up."""
    for waiting in list(scene.behind):
        fault, ends = waiting
        if scene.environment.has_read(ends):
            fault.recovered_ms = now_ms()
            scene.behind.remove(waiting)


def _beyond(environment: Environment[Cluster], ends: dict[int, int]) -> bool:
    now = end_offsets(environment.kafka.bootstrap, environment.topics.changes)
    return all(now[partition] > end for partition, end in ends.items())


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000
