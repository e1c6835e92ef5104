"""What READ takes for whole, readers take for whole: random logs of one segment that have lost some records."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest

from deelog_connector.core.effects import ScannedRecord
from deelog_connector.core.scan import SegmentScan
from deelog_schemas.digest import digest_of
from deelog_schemas.errors import RecordError
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Header, Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record

AT_ONCE = 1000


class Written(NamedTuple):
    kind: Kind
    epoch: int
    sequence: int
    key: bytes
    value: bytes | None
    control: dict[str, Any]


class Owner:
    """Writes changes, and resets, of which some end."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.log: list[Written] = []
        self.held: dict[bytes, bytes] = {}
        self.history = [(1, 0)]
        self._resets = 0
        for _ in range(chance.randrange(3, 25)):
            chance.choice((self.change, self.change, self.skip, self.reset, self.reset, self.begin, self.succeed))()

    @property
    def last(self) -> int:
        return self.history[-1][1]

    def _write(self, kind: Kind, key: bytes = b"", value: bytes | None = None, **control: Any) -> None:
        self.log.append(Written(kind, *self.history[-1], key, value, control))

    def _next(self) -> int:
        self.history[-1] = self.history[-1][0], self.last + 1
        return self.last

    def change(self) -> None:
        key, value = b"k%d" % self.chance.randrange(4), b"v%d" % self._next()
        if self.chance.random() < 0.8:
            self.held[key] = value
        else:
            self.held.pop(key, None)
        self._write(Kind.CHANGE, key, self.held.get(key))

    def skip(self) -> None:
        self._write(Kind.SKIPPED, first=self._next())

    def begin(self) -> None:
        self._resets += 1
        self._write(Kind.RESET_BEGIN, id=str(self._resets), reason="test")

    def reset(self) -> None:
        self.begin()
        for key, value in self.held.items():
            self._write(Kind.READ, key, value)
        digest = digest_of(list(self.held.items()))
        self._write(Kind.RESET_END, id=str(self._resets), count=len(self.held), digest=digest)

    def succeed(self) -> None:
        self.history.append((self.history[-1][0] + 1, self.last))

    def lose(self) -> None:
        """Some records that stand together."""
        first = self.chance.randrange(len(self.log))
        del self.log[first : first + self.chance.choice((1, 1, 1, 2, 4))]


def is_whole(owner: Owner) -> bool:
    """Whether an owner that has all of this in its history would resume from it."""
    scan = SegmentScan(tuple(owner.history), from_base=True, expected=owner.last or -1, unverified_from=0)
    for offset, (kind, epoch, sequence, key, _, control) in enumerate(owner.log):
        scan.apply(ScannedRecord(offset, kind, 0, epoch, sequence, key, control))
    found = set(range(max(scan.reset_at, 0) + 1, owner.last + 1)) <= scan.sequences
    return found and scan.reset_at >= 0 and not (scan.is_truncated or scan.open_reset or scan.end_beyond)


def read(owner: Owner) -> tuple[dict[bytes, bytes], bool]:
    """What a reader has, and whether it is within a reset."""
    reader = SegmentReader(0)
    for offset, (kind, epoch, sequence, key, value, control) in enumerate(owner.log):
        record = Record("t", 0, offset, Header(kind, 0, epoch, sequence, 0), key, value, control)
        try:
            reader.apply(record, lambda r: (r.key, None if r.value is None else Entry(r.key, r.value, None)))
        except RecordError:
            reader = SegmentReader(0)  # it waits for the next reset
    return {key: entry.value for key, entry in reader.entries.items()}, reader.open is not None


@pytest.mark.parametrize("first", [0, AT_ONCE, 2 * AT_ONCE])
def test_who_resumes_has_readers_that_have_all(first: int) -> None:
    whole = 0
    for seed in range(first, first + AT_ONCE):
        owner = Owner(Random(seed))
        for _ in range(seed % 3):
            if owner.log:
                owner.lose()
        if is_whole(owner):
            whole += 1
            assert read(owner) == (owner.held, False), seed
    assert whole > AT_ONCE / 5
