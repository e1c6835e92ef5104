"""A run as text: settings and events. Generated from a seed, written by hand, or shortened.

    set nodes 3
    0.250 put s0k1 v1
    0.300 pause n1                      # SIGSTOP
    0.400 let old primary 0             # from here on `old` names a node
    0.500 at old commit:claim crash it  # at this failpoint, not at a time
    0.900 resume n1
    expect kafka fenced_commits 1..

One line per event: seconds, a verb of `VERBS`, its arguments. An event that cannot happen (a crash of a dead
node) is skipped, so that any line can be left out. `expect` bounds a count of the run. Text after a line `---` is
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from deelog_proof.simulation.event import Event
from deelog_proof.simulation.failpoints import FAILPOINTS
from deelog_proof.simulation.verbs import LACKS, LET, OPERATIONS, SELDOM, SIGNALS, TOPICS, VERBS
from deelog_schemas.errors import DeelogError
from deelog_schemas.header import Kind


class ScriptError(DeelogError):
    """A script that cannot be read; the message names the line."""

    exit_code = 2


class Expect(NamedTuple):
    """Bounds of a count of the run: `low` to `high` (None: no bound)."""

    name: str
    low: int
    high: int | None

    def __str__(self) -> str:
        high = "" if self.high is None else self.high
        return f"expect {self.name} " + (f"{self.low}" if self.low == self.high else f"{self.low}..{high}")


SETTINGS: Final[dict[str, int]] = {
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

LEAST: Final = {
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


@dataclass(frozen=True)
class Script:
    """Settings and events, in order of time."""

    settings: dict[str, int]
    events: tuple[Event, ...] = ()
    about: str = ""
    end: float = field(default=0.0)
    expects: tuple[Expect, ...] = ()

    def __str__(self) -> str:
        head = [f"# {line}" for line in self.about.splitlines()]
        sets = [f"set {name} {value}" for name, value in self.settings.items() if SETTINGS[name] != value]
        return "\n".join([*head, *sets, *map(str, self.events), *map(str, self.expects)]) + "\n"

    def without(self, events: Iterable[Event]) -> Script:
        """The script without these events."""
        gone = set(map(id, events))
        return replace(self, events=tuple(e for e in self.events if id(e) not in gone))

    def only(self, events: Sequence[Event]) -> Script:
        """The script with only these events."""
        return replace(self, events=tuple(events))


def parse(text: str) -> Script:
    """Reads a script; raises `ScriptError` with the line."""
    settings = dict(SETTINGS)
    events: list[Event] = []
    about: list[str] = []
    expects: list[Expect] = []
    lines: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.rstrip() == "---":
            break
        event, _, remark = line.partition("#")
        words = event.split()
        if not words:
            if not events and remark:
                about.append(remark.strip())
            continue
        try:
            if words[0] == "expect":
                expects.append(_expect(words))
            else:
                events += _event(words, settings)
                lines.append((number, line, words))
        except (ValueError, KeyError) as error:
            raise ScriptError(f"line {number}: {line.strip()!r}: {error}") from error
    for number, line, words in lines:
        if words[0] != "set" and (wrong := _wrong(words[1:], settings)):
            raise ScriptError(f"line {number}: {line.strip()!r}: {wrong}")
    events.sort(key=lambda e: e.at)
    return Script(settings, tuple(events), "\n".join(about), expects=tuple(expects))


def _expect(words: list[str]) -> Expect:
    low, dots, high = words[-1].partition("..")
    return Expect(" ".join(words[1:-1]), int(low), int(high) if high else None if dots else int(low))


def _event(words: list[str], settings: dict[str, int]) -> list[Event]:
    if len(words) < 2 or (words[0] == "set" and len(words) != 3):
        raise ValueError("a line is `set NAME NUMBER`, `SECONDS VERB ARGUMENT…` or `expect COUNT LOW..HIGH`")
    if words[0] == "set":
        if words[1] not in SETTINGS:
            raise ValueError(f"{words[1]} is none of {', '.join(SETTINGS)}")
        settings[words[1]] = int(words[2])
        if settings[words[1]] < LEAST.get(words[1], 1):
            raise ValueError(f"{words[1]} is {LEAST.get(words[1], 1)} at least")
        return []
    verb, arguments = words[1], tuple(words[2:])
    if verb not in VERBS:
        raise ValueError(f"{verb} is none of {', '.join(VERBS)}")
    least, most = VERBS[verb].least, VERBS[verb].most
    if not least <= len(arguments) <= most:
        raise ValueError(f"{verb} takes {least} to {most} arguments")
    if verb == "let" and arguments[1] not in LET:
        raise ValueError(f"{arguments[1]} is none of {', '.join(LET)}")
    if verb == "at":
        if arguments[1].partition(":")[0] not in FAILPOINTS:
            raise ValueError(f"{arguments[1]} is none of {', '.join(FAILPOINTS)}")
        _event([words[0], *arguments[2:]], settings)
    if not 0 <= float(words[0]) <= 1e6:
        raise ValueError("it happens at 0 to 1,000,000 seconds")
    return [Event(float(words[0]), verb, arguments)]


def _wrong(words: Sequence[str], settings: dict[str, int]) -> str:
    """What is wrong with a verb's arguments; to be called after all settings are read."""
    verb, *arguments = words
    if verb == "at":
        return _wrong(arguments[2:], settings)
    if arguments[:1] == ["topology"] and arguments[1:2] != ["0"]:
        return "the topology topic has one partition, 0"
    for kind, argument in zip(VERBS[verb].shapes, arguments, strict=False):
        key = re.fullmatch(r"s(\d{1,6})k\d{1,6}", argument)
        if kind == "key" and (key is None or int(key[1]) >= settings["segments"]):
            return f"{argument} is no key: s0k1 is a key of segment 0, the last segment is {settings['segments'] - 1}"
        if kind in ("segment", "partition"):
            last = settings[f"{kind}s"] - 1
            if not argument.isdecimal() or int(argument) > last:
                return f"{argument} is no {kind}: they are 0 to {last}"
        if kind == "number" and not re.fullmatch(r"-?\d{1,9}", argument):
            return f"{argument} is no whole number"
        if kind == "state" and argument not in ("on", "off"):
            return f"{argument} is neither on nor off"
        choices = {
            "kind": Kind.__members__,
            "operation": (*OPERATIONS, *SELDOM),
            "signal": SIGNALS,
            "topic": TOPICS,
            "lack": LACKS,
        }
        known = choices.get(kind)
        if known is not None and argument not in known:
            return f"{argument} is none of {', '.join(known)}"
    return ""
