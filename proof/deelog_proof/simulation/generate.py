"""Generates the script of a seed: commands, faults at times and at failpoints, and plots of several faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from deelog_proof.simulation.common_verbs import LACKS, TOPICS
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.script import Script
from deelog_proof.simulation.verbs import OPERATIONS, SELDOM, SETTINGS, SIGNALS, is_fault

FAULTS: Final[dict[str, tuple[str, ...]]] = {
    "crash": ("crash", "crash", "both", "twin"),
    "pause": ("pause", "hang", "pause"),
    "network": ("cut", "cut_both", "break", "slow", "swizzle", "zombie", "zombie"),
    "kafka": ("kafka", "nokafka", "lose", "fence", "foreign", "refuse"),
    "log": ("recreate", "recreate_positions", "recreate_topology", "compact", "compact", "compact", "compact"),
    "truncation": ("truncate", "truncate", "cut_positions"),
    "oplog": ("overflow", "coalesce", "signal"),
    "clock": ("skew",),
    "leave": ("leave",),
    "connector": ("connector", "send"),
    "partition": ("away",),
    "quota": ("quota",),
}
"""Kinds of faults by the name that `--faults` gives them."""


TAKEOVER: Final = (
    "view:primary", "open", "commit:claim", "appended:claim", "committed:claim", "scan", "fence", "commit:active",
    "appended:active", "committed:active", "corrected", "commit:begin", "committed:begin", "steppeddown",
)  # fmt: skip
WRITES: Final = (
    "captured", "commit:changes", "appended:changes", "committed:changes", "commit:first", "committed:rows",
    "commit:end", "committed:end", "commit:release", "appended:release", "committed:release", "released",
    "sends:replicate",
)  # fmt: skip
SENDS: Final = (
    "sends:replicate", "sends:answers", "sends:report", "sends:patch", "sends:statechunk", "sends:heartbeat",
    "sends:ask", "view:backup", "view:demoted",
)  # fmt: skip
"""The failpoints of generated faults: of a takeover, of a writing owner, of replication."""
CUTS: Final = ("commit:changes", "commit:changes", "committed:changes", "appended:changes")
"""When the end of a log is cut away under a new owner."""
LOSSES: Final = ("zombie", "zombie", "zombie", "pause", "crash", "leave", "cut_both", "nokafka")
HINDRANCES: Final = (
    "pause", "pause", "crash", "nokafka", "nokafka", "fence", "lose", "hang", "zombie", "compact", "foreign", "signal",
)  # fmt: skip
"""The ways in which a segment loses its primary, and the faults that then delay the takeover."""


def generate(seed: int, steps: int = 3000, faults: Sequence[str] = tuple(FAULTS)) -> Script:
    """The script of a seed. `steps` is roughly the number of steps until its faults end."""
    chance = random.Random(f"script {seed}")
    settings = dict(SETTINGS) | {
        "seed": seed,
        "nodes": chance.choice((3, 3, 3, 4, 5, 7)),
        "copies": chance.choice((2, 2, 3)),
        "batch": chance.choice((2, 5, 50, 50)),
        "chunk": chance.choice((1, 2, 100)),
        "keys": chance.choice((3, 8, 30)),
        "capacity": chance.choice((3, 4, 100, 100)),
        "max_operations": chance.choice((30, 500, 500)),
        "acks_all": chance.choice((0, 1)),
        "tombstones": chance.choice((0, 1)),
        # Not drawn, so that the scripts of all seeds stay the same.
        "strategy": int(seed % 3 > 0),
        "interval": 0 if seed % 4 else 3000,
        "notifications": seed % 2,
        "skips": seed // 5 % 4 if seed % 5 == 0 else 0,
        "cost": 3000 if seed % 7 == 0 else 0,
    }
    narrow = seed % 10 == 7 and "truncation" in faults
    if narrow:
        settings |= {"segments": 1, "partitions": 1, "nodes": 2 + seed // 10 % 2}
    seconds = steps / 1000 / settings["nodes"] * 3 * 0.6
    drawn = [name for name in faults if name not in ("connector", "partition", "quota")]
    allowed = chance.sample(drawn, k=chance.randrange(1, len(drawn) + 1)) if drawn else []
    writer = _Writer(chance, settings, seconds)
    for _ in range(int(seconds * 40)):
        writer.load()
    if allowed:
        for _ in range(max(2, int(seconds * chance.choice((1, 2, 4))))):
            writer.fault(chance.choice(FAULTS[chance.choice(allowed)]))
        for _ in range(max(1, int(seconds * chance.choice((1, 2, 3))))):
            writer.plot([kind for name in allowed for kind in FAULTS[name]])
    # Streams of their own: the rest of a seed does not depend on them.
    writer.chance = random.Random(f"connector {seed}")
    if "connector" in faults:
        for _ in range(writer.chance.choice((0, 0, 1, 2, 4))):
            writer.operate(OPERATIONS)
        writer.chance = random.Random(f"operators {seed}")
        for _ in range(writer.chance.choice((0, 0, 1, 2))):
            writer.operate(SELDOM)
        for _ in range(writer.chance.choice((0, 0, 1, 3))):
            writer.send()
    writer.chance = random.Random(f"partitions {seed}")
    if "partition" in faults:
        for _ in range(writer.chance.choice((0, 0, 1, 2, 5))):
            writer.away()
        writer.chance = random.Random(f"reach {seed}")
        for _ in range(writer.chance.choice((0, 0, 1, 2))):
            writer.unreach()
    writer.chance = random.Random(f"quotas {seed}")
    if "quota" in faults:
        settings["size"] = writer.chance.choice((0, 0, 0, 3000))
        for _ in range(writer.chance.choice((0, 0, 0, 1, 2))):
            writer.quota()
    writer.chance = random.Random(f"snapshots {seed}")
    for _ in range(writer.chance.choice((0, 0, 1, 3, 6))):
        writer.add(writer.chance.uniform(0.3, 0.3 + seconds), "snapshot", writer.segment())
    if narrow:
        writer.chance = random.Random(f"cuts {seed}")
        for _ in range(1 + int(seconds)):
            writer.cut_in_a_takeover()
    events = sorted(writer.events, key=lambda e: e.at)
    return Script(settings, tuple(events), f"seed {seed}")


class _Writer:
    """Draws events."""

    def __init__(self, chance: random.Random, settings: dict[str, int], seconds: float) -> None:
        self.chance, self.settings, self.seconds = chance, settings, seconds
        self.events: list[Event] = []
        self._values = self._names = 0
        self._cast: list[str] = []

    def add(self, at: float, verb: str, *arguments: object) -> None:
        self.events.append(Event(round(at, 4), verb, tuple(map(str, arguments))))

    def load(self) -> None:
        """A client's command."""
        self.command(self.chance.uniform(0.3, 0.3 + self.seconds), self.segment())

    def command(self, at: float, segment: int, number: int = -1) -> None:
        """A client's command on a segment, on any of its keys or on the one of this number."""
        key = f"s{segment}k{self.chance.randrange(self.settings['keys']) if number < 0 else number}"
        verb = self.chance.choices(("put", "ttl", "del", "get", "clear"), (60, 10, 18, 10, 2))[0]
        self._values += 1
        if verb == "clear":
            self.add(at, "clear", segment)
        elif verb == "put":
            self.add(at, "put", key, f"v{self._values}")
        elif verb == "ttl":
            self.add(at, "put", key, f"v{self._values}", self.chance.choice((1, 50, 300, 100_000)))
        else:
            self.add(at, verb, key)

    def node(self) -> str:
        return self.chance.choice(self._cast or [f"n{n}" for n in range(self.settings["nodes"])])

    def segment(self) -> int:
        count = self.settings["segments"]
        return min(self.chance.randrange(count), self.chance.randrange(count))

    def partition(self) -> int:
        return self.chance.randrange(self.settings["partitions"])

    def plot(self, kinds: Sequence[str]) -> None:
        """Several faults close together on the nodes of one segment, while it is written to.

        Faults spread over a run rarely meet. What breaks a protocol is a second fault while the first one is being
        handled, in the middle of a step.
        """
        draw, segment = self.chance, self.segment()
        start = draw.uniform(0.4, 0.3 + self.seconds)
        if "pause" in kinds and draw.random() < 0.5:
            self._duel(start, segment)
            return
        ways = [kind for kind in LOSSES if kind in kinds]
        if ways and draw.random() < 0.7:
            self._takeover(start, segment, draw.choice(ways), kinds)
            return
        length = draw.choice((0.02, 0.1, 0.5))
        cast = [
            self.name(start, who, segment) for who in ("primary", "primary", "backup", "backup", "other", "controller")
        ]
        for _ in range(draw.randrange(3, 12)):
            self.command(start + draw.uniform(-0.02, length), segment)
        for _ in range(draw.randrange(1, 4)):
            at, node = start + draw.uniform(0, length), draw.choice(cast)
            if draw.random() < 0.3:  # the node that has the role then
                node = self.name(at, draw.choice(("primary", "primary", "backup", "controller")), segment)
            first = len(self.events)
            self.fault(draw.choice(kinds), at, node)
            if draw.random() < 0.6:
                self._aim(first, draw.choice((node, draw.choice(cast), "*")), draw.choice(TAKEOVER + WRITES + SENDS))
        self._cast = []

    def _duel(self, start: float, segment: int) -> None:
        """Owners of a segment take turns: each is paused at a failpoint, and resumes when the next reaches one. It was
        declared dead meanwhile, and does not know it yet."""
        draw = self.chance
        players = [self.name(start, who, segment) for who in ("primary", "backup", "other")]
        for _ in range(draw.randrange(5, 20)):
            self.command(start + draw.uniform(-0.03, 0.6), segment)
        if draw.random() < 0.3:
            self.add(start, "signal", segment)
        if draw.random() < 0.2:
            self.add(start, "leave", players[0])
        turn = players[0]
        waits: tuple[str, ...] = ("at", turn, draw.choice(WRITES))
        for player in players[: draw.randrange(3)]:
            self.add(start + draw.choice((0.0, 0.05)), "blind", player)
            self.add(start + 1.0, "see", player)
        for _ in range(draw.randrange(2, 6)):
            following = draw.choice([p for p in (*players[:2], *players) if p != turn])
            self.add(start, *waits, "pause", turn)
            self.add(start, *waits, "resume", following)
            turn, waits = following, (*waits, "at", following, draw.choice(TAKEOVER + TAKEOVER + WRITES))
        for player in players:
            self.add(start + draw.choice((0.8, 1.2)), "resume", player)

    def _takeover(self, start: float, segment: int, way: str, kinds: Sequence[str]) -> None:
        """A primary is lost, for good or for a while, and more goes wrong while another takes over."""
        draw = self.chance
        old, new = self._cast = [self.name(start, who, segment) for who in ("primary", "backup")]
        for _ in range(draw.randrange(5, 20)):
            self.command(start + draw.uniform(-0.03, 0.6), segment)
        first = len(self.events)
        self.fault(way, start, old)
        if draw.random() < 0.3:
            self._aim(first, old, draw.choice(WRITES))
        for _ in range(draw.randrange(1, 4)):
            node, first = draw.choice((new, new, old)), len(self.events)
            self.fault(draw.choice([kind for kind in HINDRANCES if kind in kinds] or kinds), start + 0.1, node)
            self._aim(first, draw.choice((new, new, old, "*")), draw.choice(TAKEOVER + WRITES))
            for number, event in enumerate(self.events[first:], first):
                if not is_fault(event) and event.verb != "at" and draw.random() < 0.5:
                    moment = draw.choice((new, old, "*")), draw.choice(TAKEOVER)
                    self.events[number] = Event(start + 0.1, "at", (*moment, event.verb, *event.arguments))
        self._cast = []

    def cut_in_a_takeover(self) -> None:
        """A segment is handed over, and the new owner's log loses its end before it is looked at again: what the new
        owner has found there, or what the old one wrote last. Here every millisecond counts."""
        draw, segment = self.chance, self.segment()
        start = draw.uniform(0.4, 0.3 + self.seconds)
        old, new = [self.name(start - 0.1, who, segment) for who in ("primary", "backup")]
        for _ in range(draw.randrange(1, 4)):
            self.command(start + draw.uniform(-0.005, 0.001), segment)
        first = draw.choice(("overflow", "clear", "signal", "coalesce", ""))
        if first:
            self.add(start, first, *{"overflow": (old, segment), "coalesce": (old,)}.get(first, (segment,)))
        self.fault("leave", start, old)
        last = "RESET_BEGIN" if first in ("overflow", "clear", "signal") else "CHANGE"
        self.add(start, "at", new, draw.choice(CUTS), "cut_back", segment, last)
        for _ in range(draw.randrange(1, 6)):
            self.command(start + draw.uniform(0.02, 0.3), segment)

    def name(self, at: float, who: str, segment: int) -> str:
        """A name for the node that has a role at this time."""
        self._names += 1
        self.add(at, "let", f"x{self._names}", who, segment)
        return f"x{self._names}"

    def _aim(self, first: int, node: str, moment: str) -> None:
        """Moves the last added fault, not its end, to a failpoint."""
        for number, event in enumerate(self.events[first:], first):
            if is_fault(event):
                self.events[number] = Event(event.at, "at", (node, moment, event.verb, *event.arguments))

    def send(self) -> None:
        """A signal, to a node at a failpoint too. It may pause all nodes for a while."""
        draw, first = self.chance, len(self.events)
        at, kind = draw.uniform(0.3, 0.3 + self.seconds), draw.choice(SIGNALS)
        self.add(at, "send", kind, self.segment())
        if draw.random() < 0.3:
            self._aim(first, "*", draw.choice(TAKEOVER + WRITES))
        if kind == "pause-writing":
            self.add(at + draw.choice((0.01, 0.2, 1.0)), "send", "resume-writing")

    def operate(self, operations: Sequence[str]) -> None:
        """Operations of a node's connector, just after something else has happened, or at a failpoint."""
        draw = self.chance
        near = draw.choice([event for event in self.events if event.verb not in ("get", "let")])
        named = [word for word in near.arguments if word[0] in "nx" and word[1:].isdecimal()]
        at, node = near.at + draw.choice((0.0, 0.002, 0.05)), draw.choice(named or [self.node()])
        first = len(self.events)
        for operation in draw.choices(operations, k=draw.choice((1, 1, 2))):
            if operation == "reset":  # refused, else
                self.add(at, "connector", node, "stop")
                self.add(at + 0.2, "connector", node, operation)
            else:
                self.add(at, "connector", node, operation)
        if draw.random() < 0.5:
            self._aim(first, node, draw.choice(TAKEOVER + WRITES))
        if draw.random() < 0.8:
            self.add(at + draw.choice((0.01, 0.2, 1.0)), "connector", node, "resume")

    def fault(self, kind: str, at: float = 0.0, node: str = "") -> None:
        """One fault, and its end."""
        draw = self.chance
        node = node or self.node()
        at = at or draw.uniform(0.3, 0.3 + self.seconds)
        later = at + draw.choice((0.005, 0.05, 0.2, 0.5, 1.0))
        method = getattr(self, f"_{kind}", None)
        if method is not None:
            method(at, later, node)
        elif kind in ("pause", "hang"):
            self.add(at, kind, node)
            self.add(later, "resume", node)
        elif kind in ("compact", "recreate", "recreate_positions", "recreate_topology"):
            self.add(at, kind)
        elif kind == "nokafka":
            self.add(at, kind, node)
            self.add(later, "yeskafka", node)
        else:
            self.add(at, kind, node)

    def _crash(self, at: float, later: float, node: str) -> None:
        self.add(at, "crash", node)
        self.add(later, "restart", node)

    def _both(self, at: float, later: float, node: str) -> None:
        for one in dict.fromkeys((node, self.node(), self.node())):
            self._crash(at + self.chance.choice((0.0, 0.01, 0.1)), later, one)

    def _leave(self, at: float, later: float, node: str) -> None:
        self.add(at, "leave", node)
        self.add(later + 0.5, "restart", node)

    def _cut(self, at: float, later: float, node: str) -> None:
        other = self.node()
        if other != node:
            self.add(at, "cut", node, other)
            self.add(later, "heal", node, other)

    def _cut_both(self, at: float, later: float, node: str) -> None:
        for other in (f"n{n}" for n in range(self.settings["nodes"])):
            if other != node:
                for pair in ((node, other), (other, node)):
                    self.add(at, "cut", *pair)
                    self.add(later, "heal", *pair)

    def _zombie(self, at: float, later: float, node: str) -> None:
        """Cuts a node off from the others and from views, but not from clients and Kafka's other topics."""
        self.add(at, "isolate", node)
        self.add(at, "blind", node)
        self.add(later, "rejoin", node)
        self.add(later + self.chance.choice((0.0, 0.05, 0.3)), "see", node)

    def _swizzle(self, at: float, later: float, node: str) -> None:
        """Cuts nodes off one after another and heals them in another order (FoundationDB's swizzle-clog)."""
        nodes = [f"n{n}" for n in range(self.settings["nodes"])]
        for one in self.chance.sample(nodes, k=len(nodes) - 1):
            down, up = at + self.chance.uniform(0, 0.2), later + self.chance.uniform(0, 0.3)
            self._cut_both(down, up, one)

    def away(self) -> None:
        """A partition takes no records for a while."""
        chance = self.chance
        at = chance.uniform(0.3, 0.3 + self.seconds)
        topic = chance.choice(tuple(TOPICS))
        place = topic, self.partition() if topic != "topology" else 0
        self.add(at, "away", *place, chance.choice(LACKS))
        self.add(at + chance.choice((0.05, 0.5, 2.0, 6.0)), "back", *place)

    def unreach(self) -> None:
        """A node does not reach the leader of a partition for a while, perhaps that of both topics."""
        chance, node = self.chance, self.node()
        at, partition = chance.uniform(0.3, 0.3 + self.seconds), self.partition()
        for topic in chance.choice((("changes",), ("positions",), ("changes", "positions"))):
            self.add(at, "unreach", node, topic, partition)
        self.add(at + chance.choice((0.5, 2.0, 6.0)), "reach", node)

    def quota(self) -> None:
        """Producers may send so much for a while, or from then on."""
        chance = self.chance
        at = chance.uniform(0.3, 0.3 + self.seconds)
        self.add(at, "quota", chance.choice((150_000, 150_000, 1_000_000)))
        if chance.random() < 0.7:
            self.add(at + chance.choice((0.5, 2.0, 6.0)), "quota", 0)

    def _break(self, at: float, later: float, node: str) -> None:
        self.add(at, "break", node, self.node())

    def _slow(self, at: float, later: float, node: str) -> None:
        self.add(at, "slow", node, self.chance.choice((10, 100)))
        self.add(later, "slow", node, 1)

    def _kafka(self, at: float, later: float, node: str) -> None:
        self.add(at, "kafka", "off")
        self.add(later, "kafka", "on")

    def _foreign(self, at: float, later: float, node: str) -> None:
        self.add(at, "foreign", self.partition(), self.chance.choice((20, 200, 900, 4000)))

    def _refuse(self, at: float, later: float, node: str) -> None:
        key = f"s{self.segment()}k{self.chance.randrange(self.settings['keys'])}"
        self.add(at, "refuse", key)
        self.add(later, "allow", key)

    def _truncate(self, at: float, later: float, node: str) -> None:
        self.add(at, "truncate", self.partition(), self.chance.choice((1, 3, 10, 40)))

    def _cut_positions(self, at: float, later: float, node: str) -> None:
        """While nobody leads the partition, or while it is read."""
        partition = self.partition()
        if self.chance.random() < 0.6:
            self.add(at, "away", "positions", partition, "leader")
            at = later
            self.add(at + 0.001, "back", "positions", partition)
        self.add(at, "cut_positions", partition, self.chance.choice((1, 2, 3, 5, 9, 20)))

    def _overflow(self, at: float, later: float, node: str) -> None:
        self.add(at, "overflow", node, self.segment())

    def _coalesce(self, at: float, later: float, node: str) -> None:
        """Makes coalescing happen: Kafka is unavailable, and the same keys are written again."""
        segment = self.segment()
        node = self.name(at, "primary", segment)
        self.add(at, "nokafka", node)
        for _ in range(self.chance.randrange(4, 20)):
            self.command(at + self.chance.uniform(0, 0.2), segment, self.chance.randrange(3))
        for _ in range(self.chance.randrange(1, 4)):
            self.add(at + self.chance.uniform(0.05, 0.25), "coalesce", node)
        self.add(at + 0.2 + self.chance.uniform(0, 0.1), "yeskafka", node)

    def _signal(self, at: float, later: float, node: str) -> None:
        self.add(at, "signal", self.segment())

    def _skew(self, at: float, later: float, node: str) -> None:
        seconds = self.chance.choice((-3600, -1, 0, 1, 3600))
        self.add(at, "skew", node, 2 * seconds if self.settings["seed"] % 2 else seconds)  # more than brokers take
