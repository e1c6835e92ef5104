"""The state of the diff model: immutable and hashable; keys and values are small integers, 0 is "absent"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.model.explore import Step

BUDGETS: Final = (
    "OPS",  # client writes
    "DEL",  # client deletes
    "RESETS",  # resets without a cause
    "LOSE",  # an operation never reaches Kafka; the next owner owes a reset
    "CLAIM",  # a new owner claims; within a reset it abandons that one and owes another
    "TAIL",  # a new owner claims, then writes an operation that was captured in the old epoch
    "REPEAT",  # the writer writes a committed operation again
    "COMPACT",  # compaction runs
    "RETAIN",  # retention removes the head of the topic
    "BATCH",  # batches that end before the end of the topic
    "WALLOST",  # Spark's record of a batch is lost: its range may change
    "SCRATCH",  # the checkpoint is deleted
    "STALE",  # the job is stopped for longer than reader.max.lag.ms
)


@dataclass(frozen=True)
class Config:
    """The bounds of one search. Names in capitals are those of the command line."""

    SEGS: int = 1
    KEYS: int = 2
    """Keys of each segment."""
    NULLS: int = 1
    """1: compaction also removes records without a value, as it does once delete.retention.ms has passed."""
    PAUSE: int = 0
    """1: the job may stop for longer than reader.max.lag.ms while it carries out a plan."""
    budgets: tuple[int, ...] = (0,) * len(BUDGETS)
    removed: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def parse(cls, text: str) -> Config:
        """The configuration in `OPS=2 COMPACT=1 age=0`. ValueError names an unknown word."""
        sizes: dict[str, int] = {}
        budgets = {name: int(name == "OPS") for name in BUDGETS}
        removed = set()
        for word in text.split():
            name, _, value = word.partition("=")
            if name in budgets:
                budgets[name] = int(value)
            elif name in ("SEGS", "KEYS", "NULLS", "PAUSE"):
                sizes[name] = int(value)
            elif value == "0" and not name.isupper():
                removed.add(name)
            else:
                raise ValueError(
                    f"{word!r}: neither a bound (SEGS, KEYS, NULLS, PAUSE, {', '.join(BUDGETS)}) nor a rule=0"
                )
        return cls(**sizes, budgets=tuple(budgets[b] for b in BUDGETS), removed=frozenset(removed))


class Rec(NamedTuple):
    """A record of the change topic: C change or delete, T tombstone, R row, B begin, E end, X claim."""

    kind: str
    seg: int
    pos: tuple[int, int]
    key: int = 0
    val: Any = 0  # in B and E the reset's id; in E also the entries at its position


class Owner(NamedTuple):
    """A segment's owner and cache. `rows`: keys still to be written by the reset that is open."""

    cache: tuple[int, ...]
    epoch: int = 1
    seq: int = 0
    opened: int = -1  # offset of the begin of its open reset
    rows: tuple[int, ...] = ()
    owed: int = 0
    asked: int = 0  # the job asked for a reset
    base: int = -1
    named: tuple[int, ...] = ()  # the positions topic's state of the open reset: (epoch, sequence, offset)
    again: tuple[Rec, ...] = ()  # records that it writes again


class Job(NamedTuple):
    """The checkpoint. States hold (run, number, end, segments); a plan also its rows; `wal` (number, end)."""

    run: int = 0
    done: tuple[Any, ...] = ()
    plan: tuple[Any, ...] = ()
    wal: tuple[int, ...] = ()
    stale: int = 0


class World(NamedTuple):
    """Everything. `told` has the entries of the diff topic, `mark` (run, end) the metadata in the job's group."""

    log: tuple[Rec | None, ...]
    head: int
    owners: tuple[Owner, ...]
    refs: tuple[tuple[int, ...], ...]  # the entries of a reader that read from the beginning, after each prefix
    job: Job
    told: tuple[int, ...]
    mark: tuple[int, ...]
    since: tuple[int, ...]  # per key, the prefix in which its last value in `told` was true
    left: tuple[int, ...]


WorldStep = Step[World]
_INDEX: Final = {name: i for i, name in enumerate(BUDGETS)}


def left(w: World, budget: str) -> int:
    """How often an event may still happen."""
    return w.left[_INDEX[budget]]


def use(w: World, budget: str) -> World:
    """The world after it has happened once more."""
    i = _INDEX[budget]
    return w._replace(left=(*w.left[:i], w.left[i] - 1, *w.left[i + 1 :]))


def put(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """The tuple with one element replaced."""
    return (*items[:index], value, *items[index + 1 :])
