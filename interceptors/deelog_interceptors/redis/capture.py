"""The capture of one server's stream: the tape, and what the connector asks of it.

No I/O and no clock: the shell (`node.py`) feeds it what it has read of the server, and asks it what to read. All calls
come on the connector's event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from deelog_connector.cache_side import Counted, History, StreamSide, StreamSink
from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.source import Anchor, Source, decode_source, encode_source
from deelog_interceptors.redis.stream import Arguments
from deelog_interceptors.redis.tape import Tape
from deelog_schemas.errors import RecordError
from deelog_schemas.positions import PositionState

log = logging.getLogger(__name__)

LOST: Final = "stream_lost"
"""The reason of a reset where changes of the stream are missing."""
UNKNOWN: Final = "unknown_command"
"""That of one where it is not known what a command has changed."""


@dataclass(frozen=True, slots=True)
class _Counting:
    """A question for what the stream has of a segment."""

    segment: int
    generation: int
    position: PositionState | None


@dataclass(slots=True)
class _Reset:
    """Rows that were asked for. Once they are read: `images`, of keys that were listed up to the offset `listed`."""

    reset_id: str
    images: list[Image] | None = None
    listed: int = 0

    @property
    def offset(self) -> int:
        """Up to where what they say, and what they do not, may have happened."""
        return max([self.listed, *(image.offset for image in self.images or ())])


class Capture(StreamSide):
    """See the module. `sink` is the connector's; `member` its member.

    `changed` is called where changes do not wait for Kafka any longer, and where something is to be read.
    """

    sink: StreamSink

    def __init__(self, member: str, tape: Tape, changed: Callable[[], None] = lambda: None) -> None:
        self._member, self.changed = member, changed
        self._epoch = 0
        self.tape = tape
        self.acked = 0
        """The offset up to which every replica that counts has the stream."""
        self.outranked = False
        """Whether somebody else has claimed a segment since the last `promote` or `demote`."""
        self._counting: list[_Counting] = []
        self._asked: list[tuple[int, _Counting]] = []
        """With the offset that the stream must be read to."""
        self._counted: dict[int, tuple[Anchor, Source | None]] = {}
        self._resets: dict[int, _Reset] = {}
        self._images: deque[tuple[int, Image]] = deque()
        """Images by segment, which the stream has not reached yet."""
        self._reading: set[tuple[int, bytes]] = set()
        self._wanting: set[int] = set()
        """Segments that may have keys to read."""

    # -- what is to be read ---------------------------------------------------------------------------------------

    @property
    def wants_offset(self) -> bool:
        """Whether the server is to be asked how far its stream is; the answer goes to `offset_is`."""
        return bool(self._counting)

    def keys_to_read(self, limit: int) -> list[tuple[int, bytes]]:
        """Keys with their segments, at most so many; their images go to `images_read`."""
        found: list[tuple[int, bytes]] = []
        for segment in list(self._wanting):
            for key in self.tape.segments[segment].touched:
                if (segment, key) not in self._reading:
                    found.append((segment, key))
                    if len(found) == limit:
                        break
            else:
                self._wanting.discard(segment)
                continue
            break
        self._reading.update(found)
        return found

    def segments_to_read(self) -> list[tuple[int, str]]:
        """Segments of which all keys are to be listed and read, with the id of the reset, for `rows_read`."""
        return [(segment, reset.reset_id) for segment, reset in self._resets.items() if reset.images is None]

    def waits(self, offset: int) -> bool:
        """Whether something up to that offset that is this connector's to write is not known to be in Kafka."""
        writes = any(tape.is_open for tape in self.tape.segments)
        return bool(self._resets) or (writes and self.tape.low()[0] < offset)

    def is_full(self) -> bool:
        """Whether the stream is not to be read on: too much waits for Kafka, and nothing for the stream itself."""
        if self._counting or self._asked or self._resets or self._images:
            return False
        return self.tape.length() >= self.sink.budget.max_operations or not self.sink.has_room(0)

    # -- what was read --------------------------------------------------------------------------------------------

    def fed(self, commands: Iterable[tuple[Arguments, int]], ts_us: int) -> None:
        """The next commands of the stream."""
        self.tape.feed(commands, ts_us)
        if self.tape.unknown:
            log.warning("%s: it is not known what they change; all is sent anew", ", ".join(sorted(self.tape.unknown)))
            for segment, tape in enumerate(self.tape.segments):
                if tape.is_open:  # the others find the gap when they are counted, or their rows are there
                    self.sink.request_reset(segment, UNKNOWN)
            self.tape.unknown.clear()
        self.progress()

    def offset_is(self, offset: int) -> None:
        """The server's stream is at this offset now."""
        self._asked += [(offset, question) for question in self._counting]
        self._counting.clear()
        self.progress()

    def images_read(self, images: Sequence[tuple[int, Image]], failed: Iterable[tuple[int, bytes]] = ()) -> None:
        """Images of keys that were to be read, in the order of their offsets; `failed` are to be read again."""
        self._images += images
        for place in failed:
            self._reading.discard(place)
            self._wanting.add(place[0])
        self.progress()

    def rows_read(self, segment: int, reset_id: str, images: list[Image], listed: int) -> None:
        """All entries of a segment that was to be read. Its keys were listed before the server was at `listed`."""
        reset = self._resets.get(segment)
        if reset is not None and reset.reset_id == reset_id:
            reset.images, reset.listed = images, listed
        self.progress()

    def acknowledged(self, offset: int) -> None:
        """Every replica that counts has the stream up to here."""
        self.acked = max(self.acked, offset)
        self.progress()

    def resumes_at(self, lineage: Lineage) -> tuple[int, int] | None:
        """Up to where Kafka has all of that server's stream, and in which database it goes on; None: of no place."""
        sources = [source for _, source in self._positions() if source.low <= lineage.end_of(source.id)]
        return max(((source.low, source.database) for source in sources), default=None)

    def is_superseded(self) -> bool:
        """Whether somebody writes in a later epoch whose server's stream is none that this one knows of."""
        later = [source for epoch, source in self._positions() if epoch > self._epoch]
        return any(self.tape.lineage.end_of(source.id) < 0 for source in later)

    def _positions(self) -> Iterator[tuple[int, Source]]:
        """Epoch and source of the last position of each segment that has one of a stream."""
        for segment in range(len(self.tape.segments)):
            position = self.sink.position(segment)
            source = _source_of(position)
            if position is not None and source is not None:
                yield position.epoch, source

    def promote(self, must_reset: str | None = None) -> None:
        """The server is primary: its segments are claimed, in a new epoch."""
        self._epoch = max(self._epoch, self.sink.highest_claim()) + 1
        self._forget()
        for segment, tape in enumerate(self.tape.segments):
            tape.close()
            self.sink.promote(segment, self._epoch, must_reset)

    def demote(self) -> None:
        """The server is a replica: what it has is only kept."""
        self._forget()
        for segment, tape in enumerate(self.tape.segments):
            tape.close()
            self.sink.demote(segment)

    def goes_on_as(self, lineage: Lineage) -> None:
        """The stream goes on from where the tape ends, perhaps as another one: what was read of it beyond is void."""
        tape = self.tape
        if lineage.id != tape.lineage.id:
            self._images.clear()
            self._reading.clear()
            self._wanting.update(range(len(tape.segments)))
            self._asked = [(tape.offset, question) for _, question in self._asked]
            self.acked = min(self.acked, tape.offset)
            for reset in self._resets.values():
                reset.images = None
        tape.lineage = lineage

    def replaced(self, tape: Tape) -> None:
        """Another tape. `promote` or `demote` follows."""
        self.tape, self.acked = tape, 0

    def progress(self) -> None:
        """Hands over and answers all that can be."""
        tape = self.tape
        upto = min(self.acked, tape.offset)
        while self._images and self._images[0][1].offset <= tape.offset:
            segment, image = self._images.popleft()
            tape.segments[segment].place(image)
            self._reading.discard((segment, image.key))
            tape.busy.add(segment)
        asked = [each for each in self._asked if each[0] <= tape.offset]
        if asked:
            low, _ = self.resumes_at(tape.lineage) or (-1, 0)
            self._asked = [each for each in self._asked if each[0] > tape.offset]
            for _, question in asked:
                self._answer(question, low)
        for segment, reset in list(self._resets.items()):
            if reset.images is not None and reset.offset <= upto:
                self._send_rows(segment, reset)
        for segment in list(tape.busy):
            one = tape.segments[segment]
            if one.is_open:
                one.hand_over(segment, upto, self.sink)
                if one.touched:
                    self._wanting.add(segment)
            if not one.is_open or not one.waiting or one.waiting[0].key in one.touched:
                tape.busy.discard(segment)

    def _forget(self) -> None:
        for kept in (self._counting, self._asked, self._counted, self._resets, self._images, self._reading):
            kept.clear()
        self._wanting.clear()
        self.outranked = False

    def _answer(self, question: _Counting, low: int) -> None:
        segment, position, source = question.segment, question.position, _source_of(question.position)
        counted, anchor = Counted(), Anchor(self.tape.segments[segment].begin, 0)
        found = None if source is None else self.tape.counted(segment, source, low)
        if position is not None and source is not None and found is not None:
            anchor, last = found
            counted = Counted((*source.past, (position.epoch, last)), anchor.sequence + 1)
        elif position is not None:
            counted = Counted(lost=LOST)
        self._counted[segment] = anchor, source
        self.sink.counted(segment, question.generation, counted)

    def _send_rows(self, segment: int, reset: _Reset) -> None:
        tape, sequence = self.tape.segments[segment], self.sink.last_sequence(segment)
        # Behind a gap nothing is known. Of a clear any key may be there again after a failover, and none is listed.
        if self.tape.gap > tape.begin or tape.is_cleared(reset.listed):
            self.read_rows(segment, reset.reset_id)
            return
        del self._resets[segment]
        rows = tape.take_rows(reset.images or [], reset.listed, sequence)
        self.sink.acked(segment, sequence)
        if self.sink.rows_read(segment, reset.reset_id, rows):
            self.tape.busy.add(segment)
        else:
            tape.drop(self.tape.offset)

    # -- what the connector asks ----------------------------------------------------------------------------------

    def source(self, segment: int, sequence: int, past: History) -> str:
        return encode_source(self.tape.source(segment, sequence, past))

    def count(self, segment: int, generation: int, position: PositionState | None) -> None:
        self.tape.segments[segment].close()
        self._counting.append(_Counting(segment, generation, position))
        self.changed()

    def decided(self, segment: int, written: int | None) -> None:
        tape = self.tape.segments[segment]
        self.sink.resumed(segment)
        if written is None:
            tape.drop(self.tape.offset)
            return
        anchor, source = self._counted.pop(segment)
        later = {} if source is None else source.later
        tape.open(anchor, written, later)
        tape.correct(later)
        if self.tape.gap > anchor.offset:
            self.sink.request_reset(segment, UNKNOWN)
        self.tape.busy.add(segment)
        self.progress()
        self.changed()

    def read_rows(self, segment: int, reset_id: str) -> None:
        self.tape.segments[segment].drop(self.tape.offset)
        self._reading = {place for place in self._reading if place[0] != segment}
        self._images = deque(each for each in self._images if each[0] != segment)
        self._resets[segment] = _Reset(reset_id)
        self.changed()

    def correct(self, segment: int, keys: frozenset[bytes]) -> None:
        tape = self.tape.segments[segment]
        if tape.is_open:
            tape.correct(keys)
            self.tape.busy.add(segment)
            self.progress()
            self.changed()

    def position_read(self, segment: int, state: PositionState) -> None:
        tape, source = self.tape.segments[segment], _source_of(state)
        if source is None:
            return  # it is looked at when the segment is taken over
        if not tape.is_open:
            self.tape.position_read(segment, source)
        elif state.member == self._member:
            tape.prune(source.end)
        self.progress()
        self.changed()

    def released(self, segment: int) -> None:
        self.tape.segments[segment].close()

    def stepped_down(self, segment: int, reason: str) -> None:
        self.tape.segments[segment].close()
        self._resets.pop(segment, None)
        self.outranked = True


def _source_of(position: PositionState | None) -> Source | None:
    """What a position says of a stream; None where it says nothing of one."""
    if position is None:
        return None
    try:
        return decode_source(position.source)
    except RecordError:
        return None
