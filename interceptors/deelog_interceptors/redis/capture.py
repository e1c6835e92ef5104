"""The capture of one server's stream: the tape, and what the connector asks of it.

No I/O and no clock: the shell (`node.py`) feeds it what it has read of the server, and asks it what to read. All calls
come on the connector's event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from deelog_connector.cache_side import Counted, History, StreamSide, StreamSink
from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.source import Anchor, Source, decode_source, encode_source
from deelog_interceptors.redis.stream import Arguments
from deelog_interceptors.redis.tape import Tape
from deelog_interceptors.redis.view import View, alone
from deelog_schemas.errors import RecordError
from deelog_schemas.positions import PositionState

log = logging.getLogger(__name__)

LOST: Final = "stream_lost"
"""The reason of a reset where changes of the stream are missing."""
UNKNOWN: Final = "unknown_command"
"""That of one where it is not known what a command has changed."""
_MOST_HINTS: Final = 64
"""Beyond, where the stream is read far behind them, new ones are dropped: those keys are told as removed.

Each is `MOST_PUSHED` bytes at most.
"""


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


class _Hint(NamedTuple):
    """Between two offsets of the stream keys went, and why: by key, once for each time."""

    low: int
    high: int
    reasons: Mapping[bytes, Sequence[str]]


class Capture(StreamSide):
    """See the module. `sink` is the connector's; `member` its member.

    `changed` is called where changes do not wait for Kafka any longer, and where something is to be read: call
    `progress`, once for many such calls (there are as many as segments), and see what that is.
    """

    sink: StreamSink

    def __init__(self, member: str, tape: Tape, changed: Callable[[], None] = lambda: None) -> None:
        self._member, self.changed = member, changed
        self._epoch = 0
        self.tape = tape
        self.view = alone(False, len(tape.segments))
        """Whose segments are, as `take` was told last."""
        self._is_new = True
        """Whether nothing was claimed with this tape."""
        self._resumed = self._low = (-1, -1)
        """A rank, and up to where Kafka had all of the segments of that rank when it was asked where the tape is to
        begin, and where it began there: the positions that said so are replaced one by one."""
        self._epochs: dict[int, int] = {}
        """Of the segments that were claimed."""
        self._unread: set[int] = set()
        """Of them those that were claimed while Kafka did not tell what was written of them before."""
        self._released: set[int] = set()
        """Segments that move."""
        self.acked = 0
        """The offset up to which every replica that counts has the stream."""
        self.outranked: set[int] = set()
        """Segments that are this server's by its view, and that somebody else has claimed since."""
        self._heard_upto: int | None = None
        """The offset up to which changes do not wait to hear why keys went; None: nobody hears it."""
        self._hints: deque[_Hint] = deque()
        """What the stream has not reached yet."""
        self._heard_at = 0
        """The offset of the last answer."""
        self._shed_from = 0
        """Of as many changes held on it is tried again what may be dropped: to look at all takes long."""
        self.shed = 0
        """How often a segment was dropped that another connector writes, since too much was held."""
        self._warn_at = 1
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

    def segments_to_read(self, limit: int) -> dict[int, str]:
        """Segments of which all keys are to be listed and read, with the id of the reset, for `rows_read`."""
        unread = ((segment, reset.reset_id) for segment, reset in self._resets.items() if reset.images is None)
        return dict(islice(unread, limit))

    def wants_rows(self, segment: int, reset_id: str) -> bool:
        """Whether they are still to be read."""
        reset = self._resets.get(segment)
        return reset is not None and reset.reset_id == reset_id

    def waits(self, offset: int) -> bool:
        """Whether something up to that offset that is this connector's to write is not known to be in Kafka."""
        writes = any(tape.is_open for tape in self.tape.segments)
        return bool(self._resets) or (writes and self.tape.waits(offset, self.view.writes - self.outranked))

    def is_full(self) -> bool:
        """Whether the stream is not to be read on: too much waits for Kafka, and nothing for the stream itself."""
        if self._counting or self._asked or self._resets or self._images:
            return False
        return self.tape.length() >= self.sink.budget.max_operations or not self.sink.has_room(0)

    # -- what was read --------------------------------------------------------------------------------------------

    def fed(self, commands: Sequence[tuple[Arguments, int]], ts_us: int) -> None:
        """The next commands of the stream."""
        self.tape.feed(commands, ts_us)
        if self.tape.unknown:
            log.warning("%s: it is not known what they change; all is sent anew", ", ".join(sorted(self.tape.unknown)))
            for segment, tape in enumerate(self.tape.segments):
                if tape.is_open:  # the others find the gap when they are counted, or their rows are there
                    self.sink.request_reset(segment, UNKNOWN)
            self.tape.unknown.clear()
        self._shed()
        self.progress()

    def _shed(self) -> None:
        """Where too much is held, segments that others write give way: if they become this one's, they are reset."""
        most, others = self.sink.budget.max_operations, self.view.follows | self.outranked
        if not others or self.tape.length() < max(most, self._shed_from):
            return
        self.shed += self.tape.shed(others, most // 2)
        self._shed_from = self.tape.length() + most // 2
        if self.shed >= self._warn_at:
            self._warn_at = 10 * self.shed
            log.warning(
                "max.queue.size is too small for what another connector has not written: what was held of %d segments "
                "is dropped, and they are reset if this one is to write them",
                self.shed,
            )

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
        if self.wants_rows(segment, reset_id):
            reset = self._resets[segment]
            reset.images, reset.listed = images, listed
            self._send_rows(segment, reset)

    def acknowledged(self, offset: int) -> None:
        """Every replica that counts has the stream up to here."""
        self.acked = max(self.acked, offset)
        self.progress()

    @property
    def heard_at(self) -> int | None:
        """The offset of the last answer that told why keys went; None: nobody hears it."""
        return None if self._heard_upto is None else self._heard_at

    def hears(self, offset: int) -> None:
        """Somebody hears why keys go, from that offset on. What is read from now on is told once that is known."""
        self._heard_at, self._heard_upto = offset, max(offset, self.tape.offset)

    def heard(self, offset: int, reasons: Mapping[bytes, Sequence[str]]) -> None:
        """Up to that offset keys went, since the last answer, for these reasons: by key, once for each time."""
        if self._heard_upto is None:
            return
        hint = _Hint(self._heard_at, offset, reasons)
        self._heard_at = offset
        if len(self._hints) == _MOST_HINTS:
            hint = _Hint(self._hints.pop().low, offset, {})
        self._hints.append(hint)
        self.progress()

    def unheard(self) -> None:
        """Nobody hears it any more."""
        self._forget_hints()
        self.progress()

    def resumes_at(self, lineage: Lineage, view: View, oldest: int = 0) -> tuple[int, int] | None:
        """Up to where Kafka has all of that server's stream, and in which database it goes on; None: of no place.

        The server has the stream from `oldest` on, a replica of it may have less.
        """
        sources = self._sources(lineage, view.writes | view.follows)
        low = _low(sources, view.rank)
        self._resumed = view.rank, low[0]
        places = [low if source.rank == view.rank else (source.low, source.database) for source in sources.values()]
        return min((place for place in places if place[0] >= oldest), default=None)

    def is_superseded(self) -> bool:
        """Whether another server is primary of a segment that was claimed by somebody else, by a later view.

        It writes in a later epoch, with a higher rank. Without ranks, its stream is none that this one knows of.
        """
        for segment in self.outranked:
            position = self.sink.position(segment)
            source = _source_of(position)
            if position is None or source is None or position.epoch <= self._epochs[segment]:
                continue
            if source.rank > self.view.rank:
                return True
            if source.rank == self.view.rank and self.tape.lineage.end_of(source.id) < 0:
                return True
        return False

    def _sources(self, lineage: Lineage, segments: Iterable[int]) -> dict[int, Source]:
        """By segment the source of its last position, where that is of this lineage."""
        found = ((segment, _source_of(self.sink.position(segment))) for segment in segments)
        return {n: source for n, source in found if source is not None and source.low <= lineage.end_of(source.id)}

    def take(self, view: View, again: Set[int] = frozenset()) -> None:
        """Whose segments are. Those that have become this server's, and those of `again`, are claimed anew."""
        tapes, before = self.tape.segments, self.view.writes
        claimed = view.writes if self._is_new else view.writes - (before - again)
        # Who gets them then needs to fence nobody. What is not written of them, and what comes, is sent anew.
        released = {segment for segment in before & view.moving if tapes[segment].is_open and not self._is_new}
        lost = (before | self._released) - view.writes - view.moving | (before & view.moving) - released
        self._released = (self._released & view.moving) | released
        self.tape.view_is(view)
        self.view, self._is_new = view, False
        self._forget(lost | released | claimed)
        for segment in released:
            self.sink.release(segment)
        for segment in lost:
            tapes[segment].close()
            self.sink.demote(segment)
        if claimed:
            self._epoch = max(self._epoch, self.sink.highest_claim()) + 1
        for segment in sorted(claimed):
            tapes[segment].close()
            self._epochs[segment] = self._epoch
            self.sink.promote(segment, self._epoch)
            if self.sink.position(segment) is None and self.sink.withholds(segment):
                self._unread.add(segment)

    def goes_on_as(self, lineage: Lineage) -> None:
        """The stream goes on from where the tape ends, perhaps as another one: what was read of it beyond is void."""
        tape = self.tape
        if lineage.id != tape.lineage.id:
            self._images.clear()
            self._reading.clear()
            self._wanting.update(range(len(tape.segments)))
            self._counting += [question for _, question in self._asked]  # of the new one
            self._asked.clear()
            self._low = self._low[0], min(self._low[1], lineage.shared(tape.lineage))
            self.changed()
            self._forget_hints()
            self.acked = min(self.acked, tape.offset)
            for reset in self._resets.values():
                reset.images = None
        tape.lineage = lineage

    def replaced(self, tape: Tape, resumes: bool = False) -> None:
        """Another tape, which perhaps begins where `resumes_at` said last. `take` follows."""
        self._forget_hints()
        self._low = self._resumed if resumes else (-1, -1)
        self.tape, self.acked, self._is_new = tape, 0, True

    def progress(self) -> None:
        """Hands over and answers all that can be."""
        tape = self.tape
        upto = min(self.acked, tape.offset)
        while self._hints and (self._hints[0].high <= tape.offset or not self._hints[0].reasons):
            hint = self._hints.popleft()
            tape.name(*hint)
            # A server that is started anew tells of 0 until it has read its data.
            self._heard_upto = max(self._heard_upto or 0, hint.high)
        # Where the tape is full it is not read on, perhaps not up to what was heard.
        if self._heard_upto is not None and tape.length() < self.sink.budget.max_operations:
            upto = min(upto, self._heard_upto)
        while self._images and self._images[0][1].offset <= tape.offset:
            segment, image = self._images.popleft()
            tape.segments[segment].place(image)
            self._reading.discard((segment, image.key))
            tape.busy.add(segment)
        asked = [each for each in self._asked if each[0] <= tape.offset]
        if asked:
            rank = self.view.rank
            low, _ = _low(self._sources(tape.lineage, self.view.writes), rank)
            low = max(low, self._low[1] if self._low[0] == rank else -1)
            self._asked = [each for each in self._asked if each[0] > tape.offset]
            for _, question in asked:
                self._answer(question, low, rank)
        for segment, reset in list(self._resets.items()):
            self._send_rows(segment, reset)
        for segment in list(tape.busy):
            one = tape.segments[segment]
            writes = one.is_open and one.is_kept
            if writes:
                one.hand_over(segment, upto, self.sink)
                if one.touched:
                    self._wanting.add(segment)
            if not writes or not one.waiting or one.waiting[0].key in one.touched:
                tape.busy.discard(segment)

    def _forget_hints(self) -> None:
        """They are of another stream, or nobody hears more: the caller of `hears` begins again."""
        self._heard_upto = None
        self._hints.clear()

    def _forget(self, segments: Set[int]) -> None:
        """What was asked of these segments."""
        self._counting = [question for question in self._counting if question.segment not in segments]
        self._asked = [each for each in self._asked if each[1].segment not in segments]
        self._images = deque(each for each in self._images if each[0] not in segments)
        self._reading = {place for place in self._reading if place[0] not in segments}
        for segment in segments:
            self._counted.pop(segment, None)
            self._resets.pop(segment, None)
        self._wanting -= segments
        self.outranked -= segments
        self._unread -= segments

    def _answer(self, question: _Counting, low: int, rank: int) -> None:
        """`low`: up to there Kafka has all of the segments that this server was primary of by a view of that rank."""
        segment, position, source = question.segment, question.position, _source_of(question.position)
        counted, anchor = Counted(), Anchor(self.tape.segments[segment].begin, 0)
        found = None
        if source is not None:  # with another rank the segment may have been another's since
            found = self.tape.counted(segment, source, low if source.rank == rank else source.low)
        if position is not None and source is not None and found is not None:
            anchor, last = found
            counted = Counted((*source.past, (position.epoch, last)), anchor.sequence + 1)
        elif position is not None:
            counted = Counted(lost=LOST)
        self._counted[segment] = anchor, source
        self.sink.counted(segment, question.generation, counted)

    def _send_rows(self, segment: int, reset: _Reset) -> None:
        """Gives the rows of a reset once they are read, and all is acknowledged that they say."""
        if reset.images is None or reset.offset > min(self.acked, self.tape.offset):
            return
        tape, sequence = self.tape.segments[segment], self.sink.last_sequence(segment)
        # Behind a gap nothing is known. Of a clear any key may be there again after a failover: none is listed behind
        # it, and those that were listed before it are read as gone.
        if self.tape.gap > tape.begin or tape.is_cleared(reset.offset):
            self.read_rows(segment, reset.reset_id)
            return
        del self._resets[segment]
        rows = tape.take_rows(reset.images, reset.listed, sequence)
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
        self._unread.discard(segment)
        self.sink.resumed(segment)
        if written is None:
            tape.drop(self.tape.offset)
            return
        anchor, source = self._counted.pop(segment)
        later = {} if source is None else _later(source, self.tape.lineage)
        tape.open(anchor, written, later)
        tape.correct(later)
        if self.tape.gap > anchor.offset:
            self.sink.request_reset(segment, UNKNOWN)
        self.tape.busy.add(segment)
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
            self.changed()

    def position_read(self, segment: int, state: PositionState) -> None:
        tape = self.tape.segments[segment]
        source = _source_of(state) if tape.is_kept else None
        if source is None:
            return  # it is looked at when the segment is taken over
        if not tape.is_open:
            self.tape.position_read(segment, source)
        elif state.member == self._member:
            self.tape.written(segment, source)
        self.tape.busy.add(segment)
        self.changed()

    def released(self, segment: int) -> None:
        self.tape.segments[segment].close()

    def stepped_down(self, segment: int, reason: str) -> None:
        self.tape.segments[segment].close()
        self._resets.pop(segment, None)
        self.outranked.add(segment)
        position = self.sink.position(segment) if segment in self._unread else None
        source = _source_of(position)
        if position is not None and source is not None and source.rank <= self.view.rank:
            self._epochs[segment] = position.epoch  # it was there before the claim
        self._unread.discard(segment)


def _low(sources: Mapping[int, Source], rank: int) -> tuple[int, int]:
    """Up to where all is in Kafka, and the database of the command behind it, by positions of that rank."""
    lows = ((source.low, source.database) for source in sources.values() if source.rank == rank)
    return max(lows, default=(-1, 0))


def _later(source: Source, lineage: Lineage) -> dict[bytes, int]:
    """What a position says of keys that are told later. A change behind a fork is not the one that a row shows."""
    end = lineage.end_of(source.id)
    return {key: shown if shown <= end else 0 for key, shown in source.later.items()}


def _source_of(position: PositionState | None) -> Source | None:
    """What a position says of a stream; None where it says nothing of one."""
    if position is None:
        return None
    try:
        return decode_source(position.source)
    except RecordError:
        return None
