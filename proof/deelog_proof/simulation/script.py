"""A run as text: settings and events. Generated from a seed, written by hand, or shortened.

    cache grid                          # or redis; grid if it is not said
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from deelog_proof.simulation import verbs
from deelog_proof.simulation.event import Event
from deelog_proof.simulation.language import Language
from deelog_proof.simulation.redis import verbs as redis_verbs
from deelog_schemas.errors import DeelogError

GRID: Final = "grid"
LANGUAGES: Final = {GRID: verbs.LANGUAGE, "redis": redis_verbs.LANGUAGE}
"""By the kind of cache."""
_LINE: Final = "a line is `set NAME NUMBER`, `SECONDS VERB ARGUMENT…` or `expect COUNT LOW..HIGH`"
_ORDER: Final = {"cache": 0, "set": 1}
"""What is read first."""


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


@dataclass(frozen=True)
class Script:
    """Settings and events, in order of time, of a kind of `cache`."""

    settings: dict[str, int]
    events: tuple[Event, ...] = ()
    about: str = ""
    expects: tuple[Expect, ...] = ()
    cache: str = GRID

    @property
    def language(self) -> Language:
        """What it may say."""
        return LANGUAGES[self.cache]

    def __str__(self) -> str:
        head = [f"# {line}" for line in self.about.splitlines()]
        head += [f"cache {self.cache}"] if self.cache != GRID else []
        usual = self.language.settings
        sets = [f"set {name} {value}" for name, value in self.settings.items() if usual[name] != value]
        return "\n".join([*head, *sets, *map(str, self.events), *map(str, self.expects)]) + "\n"

    def only(self, events: Sequence[Event]) -> Script:
        """The script with only these events."""
        return replace(self, events=tuple(events))


def parse(text: str) -> Script:
    """Reads a script; raises `ScriptError` with the line."""
    about: list[str] = []
    lines: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.rstrip() == "---":
            break
        event, _, remark = line.partition("#")
        if words := event.split():
            lines.append((number, line, words))
        elif remark and all(words[0] in ("cache", "set") for _, _, words in lines):
            about.append(remark.strip())
    cache = GRID
    settings: dict[str, int] = {}
    events: list[Event] = []
    expects: list[Expect] = []
    # Events depend on the settings, which may stand below them.
    for number, line, words in sorted(lines, key=lambda each: _ORDER.get(each[2][0], len(_ORDER))):
        try:
            match words[0]:
                case "cache":
                    cache = _cache(words)
                case "set":
                    name, value = _setting(words, LANGUAGES[cache])
                    settings[name] = value
                case "expect":
                    expects.append(_expect(words))
                case _:
                    language = LANGUAGES[cache]
                    events.append(_event(words, {**language.settings, **settings}, language))
        except (ValueError, KeyError) as error:
            raise ScriptError(f"line {number}: {line.strip()!r}: {error}") from error
    events.sort(key=lambda e: e.at)
    return Script({**LANGUAGES[cache].settings, **settings}, tuple(events), "\n".join(about), tuple(expects), cache)


def _cache(words: Sequence[str]) -> str:
    if len(words) != 2 or words[1] not in LANGUAGES:
        raise ValueError(f"a cache is one of {', '.join(LANGUAGES)}")
    return words[1]


def _expect(words: list[str]) -> Expect:
    low, dots, high = words[-1].partition("..")
    return Expect(" ".join(words[1:-1]), int(low), int(high) if high else None if dots else int(low))


def _setting(words: Sequence[str], language: Language) -> tuple[str, int]:
    if len(words) != 3:
        raise ValueError(_LINE)
    name, value = words[1], int(words[2])
    language.check_setting(name, value)
    return name, value


def _event(words: Sequence[str], settings: Mapping[str, int], language: Language) -> Event:
    if len(words) < 2:
        raise ValueError(_LINE)
    verb, arguments = words[1], tuple(words[2:])
    language.check(verb, arguments, settings)
    if not 0 <= float(words[0]) <= 1e6:
        raise ValueError("it happens at 0 to 1,000,000 seconds")
    return Event(float(words[0]), verb, arguments)
