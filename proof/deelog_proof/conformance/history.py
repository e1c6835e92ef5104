"""The history of a cache, and whether the records of a change topic agree with it.

The writes of one thread give the cache one state after the other. The topic agrees with them if each change record is
the next write, if each reset holds one of these states, no earlier than what came before it, and if nothing is left at
the end. A reset may stand for the writes before it, which then need no record of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple


class Write(NamedTuple):
    """`key` None: a clear. `value` None: a delete."""

    key: str | None
    value: str | None


class Change(NamedTuple):
    """A change record: `op` is c, u or d."""

    op: str
    key: str
    value: str | None


class Reset(NamedTuple):
    """A reset from its begin to its end, and what the segment holds after it."""

    reason: str
    entries: Mapping[str, str]


Step = Change | Reset


@dataclass
class History:
    """The entries of a cache when its capture began, and every write since, in order."""

    entries: Mapping[str, str]
    writes: list[Write] = field(default_factory=list)

    @property
    def content(self) -> dict[str, str]:
        """What the cache holds now."""
        content = dict(self.entries)
        for write in self.writes:
            _apply(content, write)
        return content

    @property
    def keys(self) -> set[str]:
        """Every key that ever had an entry."""
        return {*self.entries, *(write.key for write in self.writes if write.key is not None)}

    def of(self, keys: Set[str]) -> History:
        """The history of some keys. A clear that removes none of them is not part of it."""
        part = History({key: value for key, value in self.entries.items() if key in keys})
        content = dict(part.entries)
        for write in self.writes:
            if content if write.key is None else write.key in keys:
                part.writes.append(write)
                _apply(content, write)
        return part

    def contradiction(self, steps: Sequence[Step]) -> str | None:
        """Why these steps of a topic are not what happened, or None. They must begin with a reset."""
        possible: set[int] | None = None  # after how many of the writes a reader may be
        expected = self._changes()
        for step in steps:
            if isinstance(step, Reset):
                earliest = 0 if possible is None else min(possible)
                after = {count for count in self._moments(step.entries) if count >= earliest}
            elif possible is None:
                return f"{step} comes before any reset"
            else:
                earliest = max(possible)
                after = {count + 1 for count in possible if expected.get(count) == step}
            if not after:
                done = f"{earliest} of {len(self.writes)} writes"
                return f"{step} cannot come after {done}; the next write is {self._next(earliest)}"
            possible = after
        if possible is None and not self.entries:
            possible = {0}  # of a segment that was always empty
        if possible and len(self.writes) in possible:
            return None
        last = max(possible or {0})
        return f"the topic ends after {last} of {len(self.writes)} writes; missing: {self._next(last)}"

    def _next(self, count: int) -> str:
        return str(self.writes[count]) if count < len(self.writes) else "nothing"

    def _changes(self) -> dict[int, Change]:
        """The change record of each write, by the number of writes before it; a clear is a reset."""
        content, changes = dict(self.entries), {}
        for count, write in enumerate(self.writes):
            if write.key is not None:
                op = "d" if write.value is None else "u" if write.key in content else "c"
                changes[count] = Change(op, write.key, write.value)
            _apply(content, write)
        return changes

    def _moments(self, entries: Mapping[str, str]) -> Iterator[int]:
        """After how many writes the cache held exactly these entries."""
        content = dict(self.entries)
        if content == entries:
            yield 0
        for count, write in enumerate(self.writes, 1):
            _apply(content, write)
            if content == entries:
                yield count


def _apply(content: dict[str, str], write: Write) -> None:
    if write.key is None:
        content.clear()
    elif write.value is None:
        del content[write.key]
    else:
        content[write.key] = write.value
