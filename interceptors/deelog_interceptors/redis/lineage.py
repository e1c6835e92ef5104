"""Which offsets of two replication streams are the same bytes.

A replication id and an offset name a stream up to there: a server that is promoted takes a new id and keeps the stream
up to the offset of its promotion (Redis' `PSYNC2`). A server knows its own id and one before it. So a lineage is kept
longer here, and is written to Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MOST: Final = 64
"""Ids that are kept: as many promotions may lie between two connectors' views of a stream."""
_NONE: Final = "0" * 40
_ENDLESS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Lineage:
    """`ids`: replication ids, the present one last, each with the offset at which it began.

    The bytes up to that offset are those of the id before it. The first one's offset is 0: what was before is unknown.
    """

    ids: tuple[tuple[str, int], ...]

    @property
    def id(self) -> str:
        """The replication id that new bytes have."""
        return self.ids[-1][0]

    def shared(self, other: Lineage) -> int:
        """The offset up to which both are one stream; -1 where no byte is known to be."""
        ends, others = _ends(self.ids), _ends(other.ids)
        return max((min(end, others[one]) for one, end in ends.items() if one in others), default=-1)

    def end_of(self, one: str) -> int:
        """The offset up to which the bytes of that id are this stream's; -1 where the id is unknown."""
        return _ends(self.ids).get(one, -1)

    def after(self, earlier: Lineage) -> Lineage:
        """This one with all that `earlier` knows of what was before: an earlier view of the same stream.

        Where the two are not known to be one stream, it is this one alone.
        """
        known = [one for one, _ in earlier.ids]
        first = next((n for n, (one, _) in enumerate(self.ids) if one in known), None)
        if first is None:
            return self
        at = known.index(self.ids[first][0])
        return Lineage((*earlier.ids[: at + 1], *self.ids[first + 1 :])[-_MOST:])


@lru_cache(maxsize=16)
def _ends(ids: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """By id of a lineage: the offset up to which the stream is its.

    An id may begin below the one before: its server had not got so far yet when it was promoted.
    """
    ends, end = {}, _ENDLESS
    for one, begin in reversed(ids):
        ends[one] = end
        end = min(end, begin)
    return ends


def told(info: Mapping[str, str]) -> Lineage:
    """What a server tells of itself, in the section `replication` of INFO."""
    now, before, fork = info["master_replid"], info["master_replid2"], int(info["second_repl_offset"])
    # The first offset that is not the id's before; what the stream had up to there is one byte less.
    return Lineage(((now, 0),) if before == _NONE or fork < 1 else ((before, 0), (now, fork - 1)))


def written(lineage: Lineage) -> list[list[str | int]]:
    """As JSON has it."""
    return [[one, begin] for one, begin in lineage.ids]


def read(ids: Sequence[Sequence[str | int]]) -> Lineage:
    """What `written` gave. Raises `ValueError`."""
    found = tuple((one, begin) for one, begin in ids if isinstance(one, str) and isinstance(begin, int))
    if not found or len(found) != len(ids):
        raise ValueError(f"no lineage: {ids!r}")
    return Lineage(found)
