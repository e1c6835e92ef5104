"""An owner's records of one segment of a change topic, with every event that a reader must handle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from deelog_schemas import canonical
from deelog_schemas.digest import digest_of
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.header import Kind, Position, pack, unpack
from deelog_schemas.keys import control_key
from deelog_schemas.operation import Entry, Operation, Reason

MEMBER = "n@1"
_SOME = 0.2
_EXPIRY = 1_800_000_000_000
_VALUES = (b'v"after":{%d},"source":{', b"%d", b'{"a":%d}\n', b"\xe2\x82\xac%d")
TURNS = {
    "put": 16,
    "claim": 2,
    "release": 1,
    "again": 2,
    "late": 1,
    "lose": 2,
    "forget": 1,
    "stray": 1,
    "skip": 1,
    "clear": 1,
    "begin": 2,
    "go_on": 12,
}
"""Methods of `History` and how often each is called."""


class Turn(NamedTuple):
    """A record in Kafka's form."""

    offset: int
    header: bytes
    control: bytes | None
    key: bytes
    value: bytes | None

    @property
    def kind(self) -> Kind:
        """Its kind."""
        return unpack(self.header).kind


class History:
    """One segment. `entries` are the cache's entries, whether they reached Kafka or not; `rows` are the records.

    A position means one state of the segment: a record that is written twice or late says nothing new. `odd` is the
    probability of forbidden events: one position for two operations, a reset with wrong content or without an end.
    """

    def __init__(
        self,
        chance: random.Random,
        codec: Codec,
        keys: Sequence[bytes],
        segment: int,
        odd: float = 0.0,
        segments: int = 4,
        partitions: int = 1,
    ) -> None:
        self.chance, self.odd, self.keys = chance, odd, keys
        self._codec, self.segment = codec, segment
        self._claimed: dict[str, Any] = {"segments": segments, "partitions": partitions}
        self._stamp = Stamp(segment, "n", 5)
        self.entries: dict[bytes, Entry] = {}
        self.epoch, self.sequence, self.resets = 1, 0, 0
        self._operating = 1  # the epoch of its operations: a new owner first writes those that the old one left
        self.mark: Position = (1, 0)  # the least mark of a reader
        self.due: list[bytes] | None = None
        """The keys of the open reset without a row yet; None if no reset is open."""
        self.level = True
        """Whether all operations of the cache are in Kafka or in a reset."""
        self.rows: list[Turn] = []
        self.first = chance.choice((0, 7))

    @property
    def end(self) -> int:
        """The offset after the last record, if the partition had only this segment."""
        return self.first + 2 * len(self.rows)

    @property
    def position(self) -> Position:
        """The position of a control record or a row."""
        return self.epoch, self.sequence

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turns(self, most: int, *names: str) -> None:
        """Plays up to `most` turns of these kinds."""
        for _ in range(self.chance.randint(0, most)):
            getattr(self, self.chance.choice(names))()

    def play(self, number: int, turns: dict[str, int] = TURNS) -> None:
        """Plays this many turns, chosen by their weights."""
        for name in self.chance.choices(list(turns), list(turns.values()), k=number):
            getattr(self, name)()

    def put(self) -> None:
        """An operation: a value, or a delete with its tombstone."""
        key, value = self._drawn()
        existed, sequence = key in self.entries, self.sequence + 1
        if self.chance.random() < self.odd:
            sequence = max(1, sequence - self.chance.randint(1, 3))  # repeated, or too late
        if self._operating < self.epoch and self.chance.random() < 0.5:
            self._operating = self.epoch
        expires = self._apply(key, value, sequence)
        operation = Operation(self._operating, sequence, Reason.PUT, key, value, expires, 3, existed)
        self.mark = max(self.mark, operation.position)
        self._operation(operation)

    def claim(self) -> None:
        """A new owner, which may continue the open reset or not."""
        self.epoch += 1
        self._add(Kind.CLAIM, self.position, **self._claimed)
        self._add(Kind.ACTIVE, self.position)

    def release(self) -> None:
        """The owner releases the segment."""
        self._add(Kind.RELEASE, self.position, known=True)

    def again(self) -> None:
        """An earlier record once more."""
        there = [turn for turn in self.rows if turn.control is None]
        if there:
            self.rows.append(self.chance.choice(there)._replace(offset=self.end))

    def late(self) -> None:
        """An operation of an older epoch, after those of the newer one."""
        epoch, sequence = self.mark
        if epoch > 1:
            position = (epoch - 1, sequence + self.chance.randint(0, 3))
            self._operation(Operation(*position, Reason.PUT, *self._drawn(), None, 3, True))

    def lose(self) -> None:
        """An operation that is never written to Kafka. It makes an open reset invalid, which is abandoned."""
        self._apply(*self._drawn(), self.sequence + 1)
        self.level = False
        if self.due is not None:
            self.begin()

    def forget(self) -> None:
        """A delete of which compaction has left only the tombstone."""
        key = self._key()
        self._apply(key, None, self.sequence + 1)
        self.mark = (self._operating, self.sequence)
        self._add(Kind.TOMBSTONE, self.mark, key)

    def skip(self) -> None:
        """Operations that a filter drops: nothing changes for readers."""
        first, self.sequence = self.sequence + 1, self.sequence + self.chance.randint(1, 3)
        self._add(Kind.SKIPPED, (self._operating, self.sequence), first=first)

    def stray(self) -> None:
        """A record that belongs to no open reset: a row, or another reset's end."""
        if self.due is None and self.entries:
            self._row(self.chance.choice(sorted(self.entries)))
        else:
            self._end("another", 0)

    def clear(self) -> None:
        """Clears the cache: a reset without rows. It replaces an open one."""
        self.entries.clear()
        self.sequence += 1
        self.begin()
        self.go_on()

    def begin(self) -> None:
        """The begin of a reset. It replaces an open one."""
        self.resets += 1
        self._operating, self.mark = self.epoch, self.position
        self.due = sorted(self.entries)
        self._add(Kind.RESET_BEGIN, self.position, id=f"r{self.resets}", reason="overflow")

    def go_on(self) -> None:
        """The next row of the open reset, or its end."""
        if self.due is not None and not self._next_row():
            self._close()

    def reset(self) -> None:
        """A complete reset, with operations between its rows."""
        self.begin()
        while self._next_row():
            if self.chance.random() < _SOME:
                self.put()
        if self.chance.random() < self.odd:
            self.entries.pop(self.keys[1], None)  # the digest will not match
        if self.chance.random() < self.odd:
            self.due = None
        else:
            self._close()

    def settle(self) -> None:
        """Writes everything, so that Kafka has the cache's entries."""
        if not self.level and self.due is None:
            self.begin()
        while self.due is not None:
            self.go_on()

    # -- records -------------------------------------------------------------------------------------------------------

    def _key(self) -> bytes:
        return self.chance.choice(self.keys)

    def _drawn(self) -> tuple[bytes, bytes | None]:
        key = self._key()
        return key, None if self.chance.random() < 0.25 else self.chance.choice(_VALUES) % self.chance.randrange(5)

    def _apply(self, key: bytes, value: bytes | None, sequence: int) -> int | None:
        """Applies the operation to the cache. Returns the entry's expiry."""
        self.sequence = max(self.sequence, sequence)
        expires = self.chance.choice((None, _EXPIRY))
        if value is None:
            self.entries.pop(key, None)
            return None
        self.entries[key] = Entry(key, value, expires)
        return expires

    def _operation(self, operation: Operation) -> None:
        self._add(Kind.CHANGE, operation.position, operation.key, self._codec.change(operation, self._stamp))
        if operation.value is None:
            self._add(Kind.TOMBSTONE, operation.position, operation.key)

    def _next_row(self) -> bool:
        """Writes the next row of the open reset, if any is left."""
        while self.due:
            key = self.due.pop(0)
            if key in self.entries:
                self._operating, self.mark = self.epoch, self.position
                self._row(key)
                return True
        return False

    def _close(self) -> None:
        self.due, self.level = None, True
        self._end(f"r{self.resets}", len(self.entries))

    def _row(self, key: bytes) -> None:
        value = self._codec.row(self.entries[key], self.position, "true", "overflow", self._stamp)
        self._add(Kind.READ, self.position, key, value)

    def _end(self, reset_id: str, count: int) -> None:
        self._operating = self.epoch
        digest = digest_of((entry.key, entry.value) for entry in self.entries.values())
        self._add(Kind.RESET_END, self.position, id=reset_id, reason="overflow", count=count, digest=digest)

    def _add(
        self, kind: Kind, position: Position, key: bytes | None = None, value: bytes | None = None, **told: Any
    ) -> None:
        control = None
        if key is None:
            control = canonical.dumps({"epoch": position[0], "member": MEMBER, **told})
            key = control_key(kind.name.lower(), self.segment, MEMBER, len(self.rows))
        header = pack(kind, self.segment, *position, 0)
        self.rows.append(Turn(self.end, header, control, self._codec.key(key), value))
