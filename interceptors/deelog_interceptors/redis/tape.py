"""The tape of a stream: its commands as changes, by segment, and what Kafka is told of where they stand.

No I/O and no clock; `segment_tape.py` has the rules of one segment.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from deelog_interceptors.redis.commands import (
    COMMANDS,
    Cleared,
    CommandError,
    Put,
    Removed,
    Swapped,
    Touched,
    changes,
    rule_of,
)
from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.segment_tape import UNREAD, SegmentTape, TapedChange
from deelog_interceptors.redis.source import Anchor, Source
from deelog_interceptors.redis.stream import Arguments, Omitted, StreamError
from deelog_interceptors.redis.view import View
from deelog_schemas.keys import SLOTS, segment_of
from deelog_schemas.operation import Reason

_PASSED_OVER: Final = frozenset({b"PING", b"MULTI", b"EXEC", b"REPLCONF", b"ping", b"multi", b"exec"})
_SELECT: Final = frozenset({b"SELECT", b"select"})
_PUT: Final = str(Reason.PUT)
_REMOVE: Final = str(Reason.REMOVE)
_KNOWN: Final = _PASSED_OVER | _SELECT | COMMANDS.keys()


class _Entry(NamedTuple):
    """A change of the stream that may not be in Kafka: `begin` and `database` are those before its command."""

    begin: int
    database: int
    segment: int
    offset: int


class _Floor(NamedTuple):
    """Where changes of a segment begin that are not kept, and the offset up to which its entries say nothing more.

    Nobody may begin behind it before the segment is there anew.
    """

    begin: int
    database: int
    upto: int


class Captured(Protocol):
    """Which entries are captured, and as what: `deelog_interceptors.redis.values.Values`."""

    def accepts(self, key: bytes) -> bool:
        """Whether entries of that key are."""

    def string(self, key: bytes, value: bytes) -> bytes:
        """The value of a string."""


def unknown_of(commands: Sequence[tuple[Arguments, int]]) -> list[int]:
    """The places of those commands of which it is not known what they change. Raises `StreamError`."""
    try:
        strange = [place for place, (given, _) in enumerate(commands) if given[0] not in _KNOWN]
    except IndexError as error:
        raise StreamError("a command without a name") from error
    return [place for place in strange if rule_of(commands[place][0][0]) is None]


class Tape:
    """All segments of one database's stream from a place on.

    `lineage`, `offset` and `database` say up to where it was read, and in which database the next command is;
    `captured` is the database whose changes are kept, `values` says which entries are.
    """

    def __init__(
        self,
        lineage: Lineage,
        offset: int,
        database: int,
        captured: int,
        segments: int,
        values: Captured,
    ) -> None:
        self.lineage, self.offset, self.database = lineage, offset, database
        self.segments = [SegmentTape(offset) for _ in range(segments)]
        self.busy: set[int] = set()
        """Segments with changes that came since the caller last emptied this."""
        self.unknown: set[str] = set()
        """Commands that are not known, since the caller last emptied this."""
        self.gap = -1
        """Behind the last of them: what it changed is not here, so that every segment is to be sent anew."""
        self.passed_over: int = 0
        """Changes of keys that are not captured: reserved, too long, or not text where text is written."""
        self.named = 0
        """Changes of which `name` has said why the key went."""
        self.rank = 0
        """That of the view that `view_is` was told last."""
        self._floors: dict[int, _Floor] = {}
        """Of segments that move, and may stay after all, and of those that were dropped."""
        self._unsettled = set(range(segments))
        """Among them are all kept segments of which changes may be missing from before they begin here."""
        self._captured, self._values = captured, values
        self._order: deque[_Entry] = deque()

    def view_is(self, view: View) -> None:
        """Whose segments are from here on. What comes of others, or of those that move, is not kept."""
        kept = view.writes | view.follows
        firsts: dict[int, _Entry] = {}
        for entry in reversed(self._order) if any(self.segments[number].is_kept for number in view.moving) else ():
            if entry.segment in view.moving and self._lacks(entry):
                firsts[entry.segment] = entry
        for number, tape in enumerate(self.segments):
            if tape.is_kept and number in view.moving:
                self._give_up(number, firsts.get(number))
            elif tape.is_kept != (number in kept):
                tape.drop(self.offset)
            tape.is_kept = number in kept
        for number in self._floors.keys() - view.moving - kept:
            self.segments[number].drop(self.offset)
            del self._floors[number]
        self.rank = view.rank

    def shed(self, segments: Container[int], most: int) -> int:
        """Drops of these segments those with the oldest changes, until it holds at most so many; how many it drops."""
        lacking = [entry for entry in self._order if self._lacks(entry)]
        number, counts, dropped = len(lacking), Counter(entry.segment for entry in lacking), set[int]()
        for entry in lacking:
            if number <= most:
                break
            if entry.segment in segments and entry.segment not in dropped:
                dropped.add(entry.segment)
                number -= counts[entry.segment]
                self._give_up(entry.segment, entry)
                self.segments[entry.segment].drop(self.offset)
        self._order = deque(entry for entry in lacking if entry.segment not in dropped)
        return len(dropped)

    def _give_up(self, number: int, first: _Entry | None) -> None:
        """`first`: of the segment's changes that Kafka lacks."""
        floor = self._floors.get(number)
        begin, database = (first.begin, first.database) if first is not None else (self.offset, self.database)
        if floor is not None:
            begin, database = floor.begin, floor.database
        self._floors[number] = _Floor(begin, database, self.offset)

    def feed(self, commands: Sequence[tuple[Arguments, int]], ts_us: int) -> None:
        """The next commands of the stream, each with the offset behind it; `ts_us` is when they came."""
        for arguments, offset in commands:
            name = arguments[0]
            if name in _SELECT:
                self.database = int(arguments[1])  # type: ignore[arg-type]
            elif name not in _PASSED_OVER:
                self._command(arguments, offset, ts_us)
            self.offset = offset

    def name(self, low: int, high: int, reasons: Mapping[bytes, Sequence[str]]) -> None:
        """Keys went between two offsets for these reasons, which have been read up to the second one."""
        by_segment: dict[int, dict[bytes, Sequence[str]]] = {}
        for key, each in reasons.items():
            by_segment.setdefault(segment_of(key, len(self.segments)), {})[key] = each
        for number, those in by_segment.items():
            self.named += self.segments[number].name(low, high, those)

    def low(self) -> tuple[int, int]:
        """The offset up to which all is in Kafka, and the database of the command behind it; 0 if that is not known."""
        # One that is still to be taken over, or reset, may lack what came before this tape.
        while self._unsettled:
            number = next(iter(self._unsettled))
            if self.segments[number].lacks_what_was_before():
                return 0, 0
            self._unsettled.discard(number)
        return min([self._first(), *((floor.begin, floor.database) for floor in self._floors.values())])

    def waits(self, offset: int, segments: Container[int]) -> bool:
        """Whether a change of these segments, up to that offset, is not in Kafka."""
        return any(e.begin < offset and e.segment in segments and self._lacks(e) for e in self._order)

    def length(self) -> int:
        """How many changes are held, about: those before the first one that Kafka lacks are passed over."""
        self._first()
        return len(self._order)

    def _first(self) -> tuple[int, int]:
        """The place of the first change that is kept and that Kafka lacks."""
        order = self._order
        while order:
            if self._lacks(order[0]):
                return order[0].begin, order[0].database
            order.popleft()
        return self.offset, self.database

    def _lacks(self, entry: _Entry) -> bool:
        tape, floor = self.segments[entry.segment], self._floors.get(entry.segment)
        if not tape.is_kept or (floor is not None and entry.offset <= floor.upto):
            return False
        return tape.mark is None or entry.offset > tape.mark.offset

    def source(self, segment: int, sequence: int, past: Sequence[tuple[int, int]]) -> Source:
        """What a position of that sequence says of where it stands. `past`: the epochs before its own."""
        tape = self.segments[segment]
        assert tape.mark is not None
        end = Anchor(tape.offset_at(sequence), sequence)
        later = {key: tape.rows.get(key, 0) for key, at in tape.later.items() if at > end.offset}
        return Source(self.lineage.id, tape.mark, end, *self.low(), later, tuple(past), self.rank)

    def written(self, segment: int, source: Source) -> None:
        """A position that was written of this tape was read in Kafka."""
        self.segments[segment].prune(source.end)
        self._floors.pop(segment, None)

    def position_read(self, segment: int, source: Source) -> None:
        """A position of a segment that this tape keeps for another's loss was read in Kafka."""
        known = min(self.lineage.end_of(source.id), self.offset)  # what comes may still fork before that position
        tape = self.segments[segment]
        for anchor in (source.end, source.begin):
            if anchor.offset <= known:
                tape.prune(anchor)
                if segment in self._floors and anchor.offset >= self._floors[segment].upto:
                    del self._floors[segment]
                return

    def counted(self, segment: int, source: Source, low: int) -> tuple[Anchor, int] | None:
        """From where a segment's changes are counted by its last position, and the last sequence that is of its stream.

        All of the segment's up to `low` is in Kafka. None where the position is of another stream, or where changes
        behind it are missing.
        """
        known, tape = min(self.lineage.end_of(source.id), self.offset), self.segments[segment]
        anchor, (offset, sequence), mark = source.begin, source.end, tape.mark or Anchor(-1, -1)
        if offset <= known:  # what there was of the segment up to `low` is in Kafka, and so its last position's
            anchor = Anchor(max(offset, min(low, known)), sequence)
        elif anchor < mark < source.end and mark.offset <= known and anchor.sequence <= mark.sequence <= sequence:
            anchor = mark  # an earlier position of the run
        else:  # of a run that forks: when it began, all up to its `low` was in Kafka, and so its last position's
            anchor = Anchor(max(anchor.offset, min(source.low, known)), anchor.sequence)
        # What was pruned is not here any more. A position may be of before that, where a server of an older stream was
        # taken for the primary meanwhile.
        if not max(tape.begin, self.gap, mark.offset) <= anchor.offset <= known:
            return None
        return anchor, anchor.sequence + tape.number(anchor.offset, known)

    def _command(self, arguments: Arguments, offset: int, ts_us: int) -> None:
        try:
            found = changes(arguments)
        except CommandError:
            found = None
        if found is None:
            self._unknown(repr(arguments[0])[:80], offset)
            return
        for at, change in enumerate(found, offset - len(found) + 1):
            if isinstance(change, Cleared):
                if change.everywhere or self.database == self._captured:
                    slot = change.slot
                    for segment in self._kept() if slot is None else self._kept_of_slot(slot):
                        self._add(segment, TapedChange(at, Reason.CLEAR, b"", None, None, False, ts_us))
            elif isinstance(change, Swapped):
                if self._captured in (change.one, change.other) and change.one != change.other:
                    self._unknown("SWAPDB", offset)
            else:
                self._change(change, at, ts_us)

    def _unknown(self, name: str, offset: int) -> None:
        self.unknown.add(name)
        self.gap = offset
        # Nobody may begin behind it before each segment is there anew.
        self._order += [_Entry(self.offset, self.database, number, offset) for number in self._kept()]

    def _kept_of_slot(self, slot: int) -> list[int]:
        """The segment that is the slot, if it is kept."""
        assert len(self.segments) == SLOTS, "only a cluster has slots"
        return [slot] if self.segments[slot].is_kept else []

    def _kept(self) -> list[int]:
        return [number for number, tape in enumerate(self.segments) if tape.is_kept]

    def _change(self, change: Put | Removed | Touched, at: int, ts_us: int) -> None:
        key, database = change.key, self.database
        if isinstance(change, Touched) and change.database is not None:
            database = change.database
        if database != self._captured:
            return
        if isinstance(key, Omitted) or not self._values.accepts(key):
            self.passed_over += 1
            return
        segment = segment_of(key, len(self.segments))
        tape = self.segments[segment]
        if not tape.is_kept:
            return
        reason, value, expires_at, created = UNREAD, None, None, False
        if isinstance(change, Put):
            _, string, expires_at, created = change
            if isinstance(string, Omitted):
                expires_at = None
            else:
                reason, value = _PUT, self._values.string(key, string)
        elif isinstance(change, Removed):
            reason = _REMOVE
        else:
            created = change.created and not (change.arrived and tape.came_back(key))
        self._add(segment, TapedChange(at, reason, key, value, expires_at, created, ts_us))

    def _add(self, segment: int, change: TapedChange) -> None:
        self._order.append(_Entry(self.offset, self.database, segment, change.offset))
        self.segments[segment].add(change)
        self.busy.add(segment)
