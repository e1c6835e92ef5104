"""The records of a cache whose owners change: every event that the job must handle."""

from __future__ import annotations

import random
from typing import Protocol

from deelog_schemas.header import Kind, Position
from deelog_schemas.operation import Operation, Reason
from tests.support.changes import Cache

_TURNS = ("put", "delete", "lose", "repeat", "claim", "reset", "garble")


class Carried(Protocol):
    """The fixture `carried_by_driver`."""

    def __call__(self, records: int, ranges_records: int | None = None) -> None:
        """See the fixture."""


def scripted(cache: Cache) -> None:
    """One event of each kind, each in its own segment. Segment 7 has none."""
    key = cache.key
    # Repeats, an older epoch, a new owner that still writes an operation of the old epoch.
    for n in range(3):
        cache.put(key(0, n), b"v%d" % n, again=2 if n == 1 else 1)
    old = Operation(1, 2, Reason.PUT, key(0, 1), b"zombie", None, 0, True)
    cache.claim(0)
    cache.put(key(0, 0), b"new epoch")
    cache.write(0, old)
    # Delete and create again; a tombstone of which compaction removed the delete.
    cache.put(key(1, 0), b"a")
    cache.put(key(1, 0), None)
    cache.put(key(1, 0), b"b", expires_at=1_800_000_000_000)
    cache.put(key(1, 1), b"x")
    cache.put(key(1, 1), None, lost=True)
    live = cache.live[1]
    with cache.batch():
        cache.produce(1, Kind.TOMBSTONE, (live.epoch, live.sequence), cache.codec.key(key(1, 1)), None)
    # A reset with losses to repair, and changes before, within and after it.
    for n in range(4):
        cache.put(key(2, n), b"v%d" % n)
    cache.put(key(2, 0), b"lost", lost=True)
    cache.put(key(2, 1), None, lost=True)
    cache.put(key(2, 9), b"lost too", lost=True)
    cache.begin(2)
    cache.rows(2, [key(2, 0), key(2, 2)])
    cache.put(key(2, 2), b"inside")
    cache.rows(2, [key(2, 3), key(2, 9)])
    cache.put(key(2, 3), None)
    cache.end(2)
    cache.put(key(2, 0), b"behind")
    # A reset that its owner abandons and the next owner begins again; an end of another reset.
    cache.put(key(3, 0), b"v")
    cache.begin(3)
    cache.rows(3, [key(3, 0)])
    cache.put(key(3, 0), b"w", lost=True)
    cache.claim(3)
    cache.begin(3, "takeover")
    cache.end(3, reset="another")
    cache.rows(3)
    cache.end(3)
    two_resets(cache, 4)
    # An empty reset: a cache that restarted without entries.
    cache.put(key(5, 0), b"v")
    cache.put(key(5, 1), b"v")
    cache.live[5].entries.clear()
    cache.reset(5, "restart")
    # A reset that stays open.
    cache.put(key(6, 0), b"v")
    cache.begin(6)
    cache.put(key(6, 1), b"held")


def two_resets(cache: Cache, segment: int) -> None:
    """Two resets of one segment in one transaction, with a change between them."""
    cache.put(cache.key(segment, 0), b"v")
    with cache.batch():
        cache.put(cache.key(segment, 0), b"lost", lost=True)
        cache.reset(segment)
        cache.put(cache.key(segment, 1), b"between")
        cache.put(cache.key(segment, 1), None, lost=True)
        cache.reset(segment)


def close(cache: Cache) -> None:
    """Ends the reset that `scripted` leaves open."""
    cache.rows(6)
    cache.end(6)


class Player:
    """Random turns; the same seed gives the same records. Without `repeats` no record repeats an older one: compaction
    would keep the repeat instead of the newer record. With `garbled` some changes cannot be decoded."""

    def __init__(self, cache: Cache, seed: int, repeats: bool = True, garbled: bool = False) -> None:
        self.cache, self.random = cache, random.Random(seed)
        self._weights = (50, 12, 6, 8 if repeats else 0, 3, 16, 8 if garbled else 0)
        self.rows: dict[int, list[bytes]] = {}
        self.past: list[tuple[int, Operation]] = []

    def turn(self) -> None:
        """One transaction."""
        with self.cache.batch():
            for _ in range(self.random.randint(1, 6)):
                self._one()

    def finish(self) -> None:
        """Ends every open reset, and repairs every segment by another one."""
        for segment in range(self.cache.segments):
            if segment in self.rows:
                self._rows(segment, 1000)
                self.cache.end(segment)
                del self.rows[segment]
            self.cache.reset(segment, "final")

    def _one(self) -> None:
        cache, pick = self.cache, self.random
        segment = pick.randrange(cache.segments - 1)
        live = cache.live[segment]
        key = cache.key(segment, pick.randrange(5))
        match pick.choices(_TURNS, self._weights)[0]:
            case "put":
                cache.put(key, b"v%d" % pick.randrange(10**6), again=pick.choice((1, 1, 1, 2)))
                self._remember(segment, key, (live.epoch, live.sequence))
            case "delete" if key in live.entries:
                cache.put(key, None)
            case "lose" if segment not in self.rows:  # else the reset would be abandoned and begin again
                cache.put(key, b"lost" if pick.random() < 0.5 else None, lost=True)
            case "repeat" if self.past:
                cache.write(*pick.choice(self.past))
            case "claim" if segment not in self.rows:
                cache.claim(segment)
            case "reset":
                self._reset(segment)
            case "garble" if segment not in self.rows:  # within a reset it would stop the job
                cache.garble(key, again=pick.choice((1, 1, 2)))

    def _reset(self, segment: int) -> None:
        if segment not in self.rows or self.random.random() < 0.1:
            self.cache.begin(segment, self.random.choice(("overflow", "takeover")))
            self.rows[segment] = sorted(self.cache.live[segment].entries)
        elif self.rows[segment]:
            self._rows(segment, self.random.randint(1, 3))
        else:
            self.cache.end(segment)
            del self.rows[segment]

    def _rows(self, segment: int, most: int) -> None:
        due = self.rows[segment]
        live = self.cache.live[segment].entries
        self.cache.rows(segment, [key for key in due[:most] if key in live])
        del due[:most]

    def _remember(self, segment: int, key: bytes, position: Position) -> None:
        value = self.cache.live[segment].entries[key].value
        self.past.append((segment, Operation(*position, Reason.PUT, key, value, None, 0, True)))
