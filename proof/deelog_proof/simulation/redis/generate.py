"""Generates the script of a seed of Redis: commands, and faults at times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Final

from deelog_proof.simulation.common_verbs import LACKS
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.redis.server import DATA
from deelog_proof.simulation.redis.verbs import SETTINGS, TAGS, VERBS
from deelog_proof.simulation.script import Script

FAULTS: Final[dict[str, tuple[str, ...]]] = {
    "crash": ("crash", "crash_server", "twin"),
    "pause": ("pause", "hang"),
    "network": ("cut", "break", "slow"),
    "kafka": ("kafka", "nokafka", "lose", "fence"),
    "failover": ("failover", "failover", "split"),
    "backlog": ("trim",),
    "slots": ("move", "move", "abort"),
    "leave": ("leave",),
    "partition": ("away",),
    "log": ("recreate_positions",),
}
"""Kinds of faults by the name that `--faults` gives them."""
HINDRANCES: Final = (
    "crash",
    "crash_server",
    "pause",
    "hang",
    "kafka",
    "nokafka",
    "lose",
    "fence",
    "away",
    "trim",
    "move",
)
"""What may go wrong while a replica becomes primary."""
MOMENTS: Final = (
    "open", "commit:claim", "appended:claim", "committed:claim", "scan", "fence", "commit:active", "committed:active",
    "commit:changes", "appended:changes", "committed:changes", "commit:begin", "committed:begin",
    "commit:first", "committed:rows", "commit:end", "committed:end", "commit:release", "released", "steppeddown",
    *["sends:role"] * 3, "sends:info", "sends:psync", "sends:replconf", "sends:multi", "sends:scan", "sends:type",
    "sends:cluster", "sends:sentinel",
)  # fmt: skip
"""When a fault comes that does not come at a time: in a takeover, in what is written, before a question to a server."""
_STEPS_PER_SECOND: Final = 1500
"""About so many steps has a second of a script."""


def generate(seed: int, steps: int = 3000, faults: Sequence[str] = tuple(FAULTS)) -> Script:
    """The script of a seed. `steps` is roughly the number of steps until its faults end."""
    chance = random.Random(f"redis {seed}")
    settings = dict(SETTINGS) | {
        "seed": seed,
        "servers": chance.choice((2, 2, 3)),
        "segments": chance.choice((1, 4, 4, 16)),
        "keys": chance.choice((3, 8, 30)),
        "backlog": chance.choice((300, 3000, 1 << 20, 1 << 20)),
        "batch": chance.choice((2, 5, 50, 50)),
        "max_operations": chance.choice((30, 500, 500)),
        "acks_all": chance.choice((0, 1)),
        "tombstones": chance.choice((0, 1)),
        "strategy": chance.choice((0, 1)),
    }
    settings["shards"] = chance.choice((1, 1, 2))
    if settings["shards"] > 1:
        settings["servers"] = chance.choice((3, 4))
    settings["sentinels"] = chance.choice((0, 0, 3)) if settings["shards"] == 1 else 0
    settings["partitions"] = min(2, settings["segments"])
    seconds = steps / _STEPS_PER_SECOND
    writer = _Writer(chance, settings, seconds)
    for _ in range(int(seconds * 60)):
        writer.command(chance.uniform(0, seconds))
    others = [name for name in faults if name != "log"]
    allowed = chance.sample(others, k=chance.randrange(1, len(others) + 1)) if others else []
    kinds = [verb for name in allowed for verb in FAULTS[name] if settings["shards"] > 1 or name != "slots"]
    for _ in range(max(2, int(seconds * chance.choice((1, 3, 6)))) if kinds else 0):
        writer.plot(kinds)
    for _ in range(chance.choice((1, 3)) if "move" in kinds else 0):
        writer.fault("move", chance.uniform(0.1, seconds))
    # Streams of their own: the rest of a seed does not depend on them.
    losses = random.Random(f"redis log {seed}")
    for _ in range(losses.choice((0, 0, 0, 1, 2)) if "log" in faults else 0):
        writer.add(losses.uniform(0.1, seconds), "recreate_positions")
    writer.chance = random.Random(f"redis moments {seed}")
    for _ in range(writer.chance.choice((0, 0, 1, 3, 6)) if kinds else 0):
        writer.aim(kinds)
    return Script(settings, tuple(sorted(writer.events, key=lambda e: e.at)), f"seed {seed}", cache="redis")


class _Writer:
    """Draws events."""

    def __init__(self, chance: random.Random, settings: dict[str, int], seconds: float) -> None:
        self.chance, self.settings, self.seconds = chance, settings, seconds
        self.events: list[Event] = []
        self._values = 0

    def add(self, at: float, verb: str, *arguments: object) -> None:
        self.events.append(Event(round(at, 4), verb, tuple(map(str, arguments))))

    # -- commands -----------------------------------------------------------------------------------------------------

    def command(self, at: float, server: str = "") -> None:
        """A client's, or a transaction of some."""
        words = self._words()
        while self.chance.random() < 0.1:
            words += ["/", *self._words()]
        self.add(at, "write_to", server, *words) if server else self.add(at, "write", *words)

    def _words(self) -> list[str]:
        draw = self.chance
        self._values += 1
        tag = f"{{{draw.choice(TAGS)}}}" if self.settings["shards"] > 1 else ""
        one, other = (f"{tag}k{draw.randrange(self.settings['keys'])}" for _ in range(2))
        value, soon = f"v{self._values}", str(draw.choice((1, 50, 500, 3000, 1_000_000)))
        if draw.random() < 0.01:
            return draw.choice((["FLUSHDB"], ["FLUSHALL"], ["FLUSHALL"] if tag else ["SWAPDB", "0", "1"]))
        return draw.choice(
            (
                *[["SET", one, value]] * 4,
                ["SET", one, value, "PX", soon],
                ["SET", one, value, "NX"],
                ["SET", one, value, "KEEPTTL"],
                ["MSET", one, value, other, value],
                ["DEL", one],
                ["UNLINK", one, other],
                ["APPEND", one, "+"],
                ["PEXPIRE", one, soon],
                ["PERSIST", one],
                ["RENAME", one, other],
                ["INCR", f"n{one}"],
                ["HSET", f"h{one}", other, value],
                ["HDEL", f"h{one}", other],
                ["RPUSH", f"l{one}", value],
                ["LPOP", f"l{one}"],
            )
        )

    # -- faults -------------------------------------------------------------------------------------------------------

    def plot(self, kinds: Sequence[str]) -> None:
        """Faults close together, while it is written: what breaks a protocol is a second one while the first is
        being handled."""
        draw = self.chance
        start, length = draw.uniform(0.1, 0.1 + self.seconds), draw.choice((0.02, 0.1, 0.5))
        if "failover" in kinds and draw.random() < 0.5:
            self._takeover(start, kinds)
            return
        for _ in range(draw.randrange(3, 15)):
            self.command(start + draw.uniform(-0.02, length))
        for _ in range(draw.randrange(1, 4)):
            self.fault(draw.choice(kinds), start + draw.uniform(0, length))

    def aim(self, kinds: Sequence[str]) -> None:
        """A plot whose faults come at moments of connectors."""
        draw, first = self.chance, len(self.events)
        self.plot(kinds)
        for number, event in enumerate(self.events[first:], first):
            if VERBS.is_fault(event) and draw.random() < 0.7:
                own = [name for name in event.arguments if name[0] == "c"][:1]
                node, moment = draw.choice((*own * 3, "writer", "writer", "reader", "*")), draw.choice(MOMENTS)
                self.events[number] = Event(event.at, "at", (node, moment, event.verb, *event.arguments))

    def _takeover(self, start: float, kinds: Sequence[str]) -> None:
        """A replica that lags becomes primary: what it lacks is lost, Kafka may have it, and more goes wrong."""
        draw = self.chance
        lag, hindrances = draw.choice((0.003, 0.01, 0.05)), [kind for kind in HINDRANCES if kind in kinds]
        for _ in range(draw.randrange(3, 15)):
            self.command(start + draw.uniform(-0.02, 2 * lag))
        if draw.random() < 0.7:
            self.add(start, "cut", "primary", "replica")
        for kind in draw.choices(hindrances, k=draw.randrange(3)) if hindrances else ():
            self.fault(kind, start + draw.uniform(0, 3 * lag))
        self.add(start + lag, draw.choice(("failover", "failover", "split")), "replica")
        later = start + lag + draw.choice((0.02, 0.2, 0.5))
        for _ in range(draw.randrange(8)):
            self.command(draw.uniform(start + lag, later), draw.choice(("", "", "replica")))
        for pair in combinations(self._servers(), 2):
            self.add(later, "heal", *pair)
        self._follow(later)

    def fault(self, kind: str, at: float) -> None:
        """One, and its end."""
        faults: dict[str, Callable[[float, float], None]] = {
            "crash": self._crash,
            "crash_server": self._crash_server,
            "cut": self._cut,
            "slow": self._slow,
            "kafka": self._kafka,
            "split": self._split,
            "away": self._away,
            "move": self._move,
        }
        later = at + self.chance.choice((0.02, 0.1, 0.5, 1.5))
        if kind in faults:
            faults[kind](at, later)
        elif kind in ("pause", "hang"):
            node = self._connector() if kind == "hang" else self._anybody()
            self.add(at, kind, node)
            self.add(later, "resume", node)
        elif kind == "break":
            self.add(at, kind, self._anybody(), self._anybody())
        elif kind == "nokafka":
            node = self._connector()
            self.add(at, kind, node)
            self.add(later, "yeskafka", node)
        elif kind == "failover":
            self.add(at, kind, "replica")
        elif kind == "abort":
            self.add(at, kind, self.chance.choice(TAGS))
        elif kind == "trim":
            self.add(at, kind, self._server(), self.chance.choice((0, 30, 200)))
        elif kind == "leave":
            node = self._connector()
            self.add(at, kind, node)
            self.add(later, "restart", node)
        else:
            self.add(at, kind, self._connector())

    def _servers(self) -> list[str]:
        return [f"r{number}" for number in range(1, self.settings["servers"] + 1)]

    def _follow(self, at: float) -> None:
        """All follow the primary, whoever that is by then."""
        for server in self._servers():
            self.add(at, "follow", server)

    def _number(self) -> int:
        return self.chance.randrange(1, self.settings["servers"] + 1)

    def _server(self) -> str:
        return self.chance.choice(("primary", "replica", f"r{self._number()}"))

    def _connector(self) -> str:
        return f"c{self._number()}"

    def _anybody(self) -> str:
        return self.chance.choice((self._connector(), f"r{self._number()}", *self._sentinels()))

    def _sentinels(self) -> list[str]:
        """Perhaps one."""
        count = self.settings["sentinels"]
        return [f"s{self.chance.randrange(1, count + 1)}"] if count else []

    def _crash(self, at: float, later: float) -> None:
        node = self.chance.choice((*[self._connector()] * 3, *self._sentinels()))
        self.add(at, "crash", node)
        self.add(later, "restart", node)

    def _crash_server(self, at: float, later: float) -> None:
        """A server ends. If it was the primary, a replica may be promoted, before it comes back or never."""
        draw, name = self.chance, f"r{self._number()}"
        if draw.random() < 0.3:
            self.add(at - draw.choice((0.01, 0.2)), "save", name)
        self.add(at, "crash", name)
        if draw.random() < 0.6:
            self.add(at + draw.choice((0.005, 0.1)), "failover", "replica")
        self.add(later, "restart", name, draw.choice(DATA))

    def _split(self, at: float, later: float) -> None:
        """The former primary lives on for a while, and some clients with it."""
        self.add(at, "split", f"r{self._number()}")
        for _ in range(self.chance.randrange(6)):
            other = self._number()
            self.command(self.chance.uniform(at, later), f"r{other}")
        self._follow(later)

    def _cut(self, at: float, later: float) -> None:
        one, other = self._anybody(), self._anybody()
        if one != other:
            for pair in ((one, other), (other, one))[: self.chance.choice((1, 2, 2))]:
                self.add(at, "cut", *pair)
            self.add(later, "heal", one, other)

    def _slow(self, at: float, later: float) -> None:
        node = self._anybody()
        self.add(at, "slow", node, self.chance.choice((10, 100)))
        self.add(later, "slow", node, 1)

    def _kafka(self, at: float, later: float) -> None:
        self.add(at, "kafka", "off")
        self.add(later, "kafka", "on")

    def _move(self, at: float, later: float) -> None:
        """A slot moves while it is written, and may be given up."""
        tag = self.chance.choice(TAGS)
        self.add(at, "move", tag, f"r{self._number()}")
        if self.chance.random() < 0.3:
            self.add(later, "abort", tag)

    def _away(self, at: float, later: float) -> None:
        place = self.chance.choice(("changes", "positions")), self.chance.randrange(self.settings["partitions"])
        self.add(at, "away", *place, self.chance.choice(LACKS))
        self.add(later, "back", *place)
