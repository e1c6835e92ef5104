"""Which segments are a server's, by what it says itself: its role, or in a cluster its view of the slots. Where
Sentinels watch it they must name it too.

In a cluster segments are slots. A slot that is on its way to another node is nobody's to write: its keys are at both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from deelog_schemas.keys import SLOTS


@dataclass(frozen=True, slots=True)
class View:
    """See the module. No segment is in two of the sets."""

    is_primary: bool
    writes: frozenset[int]
    """What the connector beside it is to write: what the server is primary of, as a rule."""
    follows: frozenset[int] = frozenset()
    """What its primary is primary of."""
    moving: frozenset[int] = frozenset()
    """What it is about to give away."""
    rank: int = 0
    """How late the ownership is: a cluster's config epoch, which grows with each slot that comes and each failover."""


def alone(primary: bool, segments: int, always: bool = False) -> View:
    """The view of a server that is not in a cluster; `always`: its connector writes though it be a replica."""
    everything, none = frozenset(range(segments)), frozenset[int]()
    return View(primary, everything, none) if primary or always else View(primary, none, everything)


def of_sentinels(primary: bool, named: bool, segments: int) -> View:
    """The view of a server that is watched by Sentinels; `named`: as the primary.

    One that they do not name may have been cut off, or be about to be named: what it has is kept, and not written.
    """
    everything, none = frozenset(range(segments)), frozenset[int]()
    return View(True, everything, none) if primary and named else View(primary, none, everything)


def of_cluster(nodes: bytes) -> View:
    """The view of a server in a cluster, of what CLUSTER NODES answers. Raises `ValueError`, `IndexError`."""
    lines = [line.split(" ") for line in nodes.decode().splitlines()]
    (myself,) = (line for line in lines if "myself" in line[2].split(","))
    if "master" in myself[2].split(","):
        slots = _slots(tuple(myself[8:]))
        moving = frozenset(int(each[1:].partition("->-")[0]) for each in myself[8:] if "->-" in each)
        return View(True, slots - moving if moving else slots, moving=slots & moving, rank=int(myself[6]))
    primaries = [line for line in lines if line[0] == myself[3]]
    slots = frozenset[int]().union(*(_slots(tuple(line[8:])) for line in primaries))
    return View(False, frozenset(), slots, rank=max((int(line[6]) for line in primaries), default=0))


@lru_cache(maxsize=8)  # a server is asked a hundred times a second, and answers the same
def _slots(words: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for word in words:
        if not word.startswith("["):  # else it comes or goes
            first, _, last = word.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    if found and max(found) >= SLOTS:
        raise ValueError(f"no slots: {words!r}")
    return frozenset(found)
