"""The vacuity guard: a campaign fails if it never reached an event that it must cover.

Weighed in docs/decisions.md, "What must have happened in a campaign".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from deelog_proof.simulation.generate import FAULTS

Required: TypeAlias = Sequence[tuple[str, int, tuple[str, ...]]]
"""A counter, the number of seeds from which it must not be zero, and the kinds of faults of which any raises it."""

LEAST_SEEDS: Final = 100
LEAST_STEPS: Final = 1000
"""Campaigns of fewer seeds, or of seeds of fewer steps, are not guarded."""

_VERBS: Final = {"both": "crash", "cut_both": "cut", "swizzle": "cut", "zombie": "isolate"}
"""The verb of an entry of `FAULTS`, where it has another name."""

ANY: Final = tuple(FAULTS)
REQUIRED: Final[Required] = (
    ("acked", 100, ANY),
    ("written", 100, ANY),
    ("pruned", 100, ANY),
    ("captured expire", 100, ANY),
    ("captured evict", 100, ANY),
    ("record TOMBSTONE", 100, ANY),
    ("reset initial", 100, ANY),
    ("reset clear", 100, ANY),
    ("taken back", 100, ANY),
    ("reset interval", 100, ANY),
    ("takeovers", 100, ANY),
    ("other owners", 100, ("crash", "pause", "network", "leave")),
    ("controllers", 100, ANY),
    ("caught up by operations", 100, ("crash", "pause", "network", "leave")),
    ("caught up by state", 100, ("crash", "pause", "network", "leave")),
    ("kafka zombie_appends", 100, ("crash", "pause", "network")),
    ("commit_fenced", 100, ("crash", "pause", "network")),
    ("kafka fenced_commits", 300, ("crash", "pause", "kafka")),
    ("kafka aborts", 100, ("crash", "pause", "kafka")),
    ("kafka timeouts", 300, ("kafka",)),
    ("hanging transactions", 100, ("pause",)),
    ("reset owners_lost", 100, ("crash",)),
    ("stale answers", 100, ("pause", "network")),
    ("frames refused", 100, ("pause", "network")),
    ("corrections", 1000, ("network",)),
    ("commit_lost", 100, ("kafka",)),
    ("commit_refused", 300, ("kafka",)),
    ("reset topic_recreated", 100, ("log",)),
    ("reset positions_lost", 100, ("log",)),
    ("views written anew", 100, ("log",)),
    ("truncations", 100, ("log", "truncation")),
    ("reset truncated", 100, ("truncation",)),
    ("overflow reset", 300, ("oplog",)),
    ("reset overflow", 300, ("oplog",)),
    ("overflow backup", 300, ("oplog",)),
    ("coalesced", 20_000, ("oplog",)),
    ("reset signal", 100, ("oplog",)),
    ("record RELEASE", 100, ("leave",)),
    ("snapshots", 100, ANY),
    ("snapshot rows", 100, ANY),
    ("snapshots begun again", 100, ("crash", "pause", "network")),
    ("reset open_reset", 3000, ("crash", "pause", "network")),
    ("reset hole", 10_000, ("pause",)),
)


@dataclass(frozen=True)
class Guard:
    """`faults` are the verbs of each kind of fault, of which seeds draw; `verbs` their names where scripts have others.

    `required` as `REQUIRED`.
    """

    faults: Mapping[str, tuple[str, ...]]
    verbs: Mapping[str, str]
    required: Required

    def missing(self, counts: Mapping[str, int], kinds: Collection[str], seeds: int, steps: int) -> list[str]:
        """The counters that must not be zero, but are, after so many seeds of `steps` steps with these faults."""
        if seeds < LEAST_SEEDS or steps < LEAST_STEPS:
            return []
        asked = [name for name, least, by in self.required if seeds >= least and not set(by).isdisjoint(kinds)]
        asked += [f"fault {self.verbs.get(verb, verb)}" for kind in kinds for verb in self.faults[kind]]
        return [name for name in dict.fromkeys(asked) if not counts.get(name)]


GUARD: Final = Guard(FAULTS, _VERBS, REQUIRED)
