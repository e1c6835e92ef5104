"""The tape of one segment: its changes that were read of a stream and are not known to be in Kafka.

A connector beside a replica only keeps it, so that it can go on where the primary's ended. One that writes a segment
hands its changes to the connector in stream order, each once its value is known and acknowledged. A change that carries
no value is told by an image of its key, an entry that was read at a known offset: the image stands at the key's last
change up to there, and the ones before give way to it. No I/O and no clock; `tape.py` has the tapes of all segments.
Weighed in docs/decisions.md, "Redis: the tape holds what cannot be told yet".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from deelog_connector.cache_side import StreamSink
from deelog_interceptors.redis.source import Anchor
from deelog_schemas.operation import OVERHEAD, Entry, Reason

UNREAD: Final = "unread"
"""The reason of a change whose value is still to be read."""


class TapedChange(NamedTuple):
    """One change of a segment. A clear has an empty key."""

    offset: int
    """Of the stream: of the changes of one command the last one is behind it, the others are within it."""
    reason: str
    """A `Reason`, or `UNREAD`. The value of a `CORRECT` is still to be read, too."""
    key: bytes
    value: bytes | None
    expires_at: int | None
    created: bool
    ts_us: int


class Image(NamedTuple):
    """An entry as a server had it at an offset; no value: there was none."""

    key: bytes
    value: bytes | None
    expires_at: int | None
    offset: int


class _Placed(NamedTuple):
    """An image, and the offset of the change that it stands at."""

    at: int
    image: Image


_NOWHERE: Final = _Placed(-1, Image(b"", None, None, -1))
_PUT: Final = str(Reason.PUT)
_REMOVE: Final = str(Reason.REMOVE)
_CLEAR: Final = str(Reason.CLEAR)
_CORRECT: Final = str(Reason.CORRECT)
_offset: Final = attrgetter("offset")


@dataclass(slots=True)
class SegmentTape:
    """One segment. `begin`: no change behind this offset is missing."""

    begin: int
    mark: Anchor | None = None
    """Up to where Kafka has it; None: not known."""
    told: deque[TapedChange] = field(default_factory=deque)
    """What was handed over, or has given way, and is not known to be in Kafka: one after another in sequence."""
    told_behind: int = 0
    """The sequence before the first of them."""
    waiting: deque[TapedChange] = field(default_factory=deque)
    """What was not handed over."""
    is_kept: bool = True
    """Whether it is the server's, or its primary's, and does not move: else nothing is added or handed over."""
    is_open: bool = False
    """Whether changes are handed over. The fields below have something only then."""
    touched: dict[bytes, list[TapedChange]] = field(default_factory=dict)
    """By key the changes from the first one on that waits to be read."""
    cleared: list[int] = field(default_factory=list)
    """The offsets of the clears that wait."""
    images: dict[bytes, _Placed] = field(default_factory=dict)
    rows: dict[bytes, int] = field(default_factory=dict)
    """Keys whose rows were read ahead: the offset of the change that they show."""
    later: dict[bytes, int] = field(default_factory=dict)
    """Keys of which a change has given way, or a row was read ahead: the offset of the change that tells it."""
    wrong: set[bytes] = field(default_factory=set)
    """Keys of which a correction has given way: the change that tells them is one."""
    skipped: int = 0
    """How many changes have given way since the last one that was handed over."""

    def add(self, change: TapedChange) -> None:
        """The next change."""
        self.waiting.append(change)
        if self.is_open and (self.touched or change.reason != _PUT):  # most are a value of a key that nobody reads
            self._touch(change)

    def lacks_what_was_before(self) -> bool:
        """Whether it is not known that Kafka has all from before `begin`."""
        return self.is_kept and (self.mark is None or self.mark.offset < self.begin)

    def came_back(self, key: bytes) -> bool:
        """A key that had gone to another node is here again: if that is not told yet, it was no delete. Whether so."""
        for number in reversed(range(len(self.waiting))):
            change = self.waiting[number]
            if change.key == key and change.reason != _CLEAR:
                break
        else:
            return False
        if change.reason != _REMOVE:
            return False
        self.waiting[number] = unread = change._replace(reason=UNREAD)
        if self.is_open:
            touched = self.touched.setdefault(key, [unread])
            touched[:] = [unread if each is change else each for each in touched]
        return True

    def prune(self, mark: Anchor) -> None:
        """Kafka has it up to there."""
        if self.mark is not None and mark < self.mark:
            return
        self.mark = mark
        while self.told and self.told_behind < mark.sequence:
            self.told.popleft()
            self.told_behind += 1
        while not self.is_open and self.waiting and self.waiting[0].offset <= mark.offset:
            self.waiting.popleft()
        for kept in (self.later, self.rows):
            for key in [key for key, at in kept.items() if at <= mark.offset]:
                del kept[key]

    def name(self, low: int, high: int, reasons: Mapping[bytes, Sequence[str]]) -> int:
        """Keys went between two offsets for these reasons, each once. Returns how many changes are told so.

        A key that went more often than that was also removed by somebody: which time is not known. Nor is it where a
        change in between is not here any more.
        """
        gone = max(self.begin, self.mark.offset if self.mark else 0, self.told[-1].offset if self.told else 0)
        if low < gone:
            return 0
        removed: dict[bytes, list[int]] = {}
        for number in reversed(range(len(self.waiting))):  # from the end, where those are: there may be very many
            change = self.waiting[number]
            if change.offset <= low:
                break
            if change.offset <= high and change.reason == _REMOVE and change.key in reasons:
                removed.setdefault(change.key, []).append(number)
        named = [
            pair
            for key, at in removed.items()
            if len(at) == len(reasons[key])
            for pair in zip(reversed(at), reasons[key], strict=True)
        ]
        for number, reason in named:
            self.waiting[number] = self.waiting[number]._replace(reason=reason)
        return len(named)

    # -- from one that keeps to one that writes -------------------------------------------------------------------

    def close(self) -> None:
        """Nothing is handed over any more; what is not in Kafka waits again."""
        everything = chain(self.told, self.waiting)
        self.waiting = deque(change for change in everything if change.reason != _CORRECT)
        self.is_open, self.skipped = False, 0
        for kept in (self.told, self.touched, self.cleared, self.images, self.rows, self.later, self.wrong):
            kept.clear()

    def number(self, offset: int, upto: int) -> int:
        """How many changes lie behind the one offset, up to the other."""
        assert not self.is_open
        return sum(offset < change.offset <= upto for change in self.waiting)

    def open(self, anchor: Anchor, written: int, ahead: Mapping[bytes, int]) -> None:
        """Kafka has it up to that sequence, counted from the anchor: what is behind is handed over from now on.

        `ahead`: keys whose rows, in Kafka, show the change at that offset.
        """
        assert written >= anchor.sequence
        waiting, offset = self.waiting, anchor.offset
        while waiting and waiting[0].offset <= offset:
            waiting.popleft()
        for _ in range(written - anchor.sequence):
            offset = waiting.popleft().offset
        self.mark, self.is_open = Anchor(offset, written), True
        for change in waiting:
            if change.offset == ahead.get(change.key) and change.reason != _CLEAR:
                self.rows[change.key] = self.later[change.key] = change.offset
        for change in waiting:
            self._touch(change)

    def correct(self, keys: Iterable[bytes]) -> None:
        """Of these keys Kafka holds what this stream does not have: they are told first, or by a change that waits."""
        assert self.mark is not None
        pending: dict[bytes, int] = {}
        for change in self.waiting:
            if change.reason != _CLEAR:
                pending.setdefault(change.key, change.offset)
        offset = self.told[-1].offset if self.told else self.mark.offset
        for key in pending.keys() & set(keys):  # that change may be lost with its server
            self.later.setdefault(key, pending[key])
        for key in sorted(set(keys) - pending.keys(), reverse=True):
            change = TapedChange(offset, _CORRECT, key, None, None, False, 0)
            self.waiting.appendleft(change)
            self._touch(change)

    # -- a reset --------------------------------------------------------------------------------------------------

    def drop(self, offset: int) -> None:
        """All up to the offset is dropped, and comes as rows."""
        self.close()
        self.waiting.clear()
        self.begin, self.mark = offset, None

    def is_cleared(self, upto: int) -> bool:
        """Whether there was a clear since `drop`, up to that offset."""
        return any(change.reason == _CLEAR and change.offset <= upto for change in self.waiting)

    def take_rows(self, images: Iterable[Image], listed: int, sequence: int) -> list[Entry]:
        """What was read since `drop`: rows of that sequence, the last one. The changes behind are handed over.

        Rows are read one after another, so that they are ahead of the sequence by some changes. Of a key those are not
        told, but for the last one, whose value the row has. A key that changed before `listed`, and was not listed, is
        told later as well: without those changes it may be there.
        """
        read, offset, waiting = {image.key: image for image in images}, self.begin, self.waiting
        while waiting and _is_within(waiting[0], read):
            offset = waiting.popleft().offset
        self.mark, self.is_open = Anchor(offset, sequence), True
        for change in waiting:
            if _is_within(change, read):
                self.rows[change.key] = self.later[change.key] = change.offset
                self.images[change.key] = _Placed(change.offset, read[change.key])
                continue
            if change.offset <= listed and change.key not in read:
                self.later[change.key] = change.offset
            self._touch(change)
        return [Entry(i.key, i.value, i.expires_at) for i in read.values() if i.value is not None]

    # -- telling --------------------------------------------------------------------------------------------------

    def wanted(self) -> list[bytes]:
        """The keys that wait to be read."""
        return list(self.touched)

    def place(self, image: Image) -> None:
        """An image of a key that is touched, read at an offset up to which all changes are here."""
        touched = self.touched.pop(image.key, [])
        count = bisect_right(touched, image.offset, key=_offset)
        if count:
            at, clears = touched[count - 1].offset, bisect_right(self.cleared, image.offset)
            self.images[image.key] = _Placed(max(at, self.cleared[clears - 1]) if clears else at, image)
        first = next((n for n in range(count, len(touched)) if _waits(touched[n])), None)
        if first is not None:
            self.touched[image.key] = touched[first:]

    def hand_over(self, segment: int, acked: int, sink: StreamSink) -> int:
        """Hands over what can be told and is acknowledged up to that offset; returns how many changes.

        It stops before a change that is to be read, and where the op logs have no room.
        """
        waiting, told, images, rows, count = self.waiting, self.told, self.images, self.rows, 0
        last = sink.last_sequence(segment)
        if not told:
            self.told_behind = last
        while waiting:
            change = waiting[0]
            offset, reason, key, value, expires_at, created, ts_us = change
            if offset > acked:
                break
            if reason == _CLEAR:
                if not sink.has_room(OVERHEAD):
                    break
                self._forget(offset)
            else:
                at, image = images.get(key, _NOWHERE)
                unread = reason in (UNREAD, _CORRECT)
                if (unread and offset > at) or not sink.has_room(
                    OVERHEAD + len(key) + len(value or image.value or b"")
                ):
                    break
                ahead = rows.get(key, -1) if rows else -1
                if offset < ahead or (unread and offset < at):
                    self._give_way(waiting.popleft(), max(at, ahead))
                    count += 1
                    continue
                if offset == at:
                    if unread or image.value is not None:  # what has expired since was set all the same
                        value, expires_at = image.value, image.expires_at
                    if value is not None and reason != _CORRECT:
                        reason = _PUT
                    elif reason == UNREAD:
                        reason = _REMOVE
                    del images[key]
                if key in self.wrong:
                    self.wrong.discard(key)
                    reason = _CORRECT
            sink.append(segment, reason, key, value, expires_at, ts_us, not created, skipped=self.skipped)
            last, self.skipped = last + self.skipped + 1, 0
            told.append(waiting.popleft())
            count += 1
        if count:
            sink.acked(segment, last)
        return count

    def _give_way(self, change: TapedChange, at: int) -> None:
        """This change is not told; the one at that offset is."""
        self.skipped += 1
        self.later[change.key] = at
        if change.reason == _CORRECT:
            self.wrong.add(change.key)
        self.told.append(change)

    def offset_at(self, sequence: int) -> int:
        """The offset up to which Kafka has it with that sequence."""
        assert self.mark is not None
        if sequence <= self.mark.sequence:
            return self.mark.offset
        return self.told[sequence - self.told_behind - 1].offset

    def _touch(self, change: TapedChange) -> None:
        if change.reason == _CLEAR:
            self.cleared.append(change.offset)
        elif change.key in self.touched:
            self.touched[change.key].append(change)
        elif _waits(change):
            self.touched[change.key] = [change]

    def _forget(self, offset: int) -> None:
        """A clear is told: nothing before it is told later."""
        self.cleared.remove(offset)
        self.wrong.clear()
        for key in [key for key, placed in self.images.items() if placed.at == offset]:
            del self.images[key]


def _waits(change: TapedChange) -> bool:
    """Whether a change is to be read."""
    return change.reason in (UNREAD, _CORRECT)


def _is_within(change: TapedChange, read: Mapping[bytes, Image]) -> bool:
    if change.reason == _CLEAR:  # its key is no entry's
        return False
    return change.key in read and change.offset <= read[change.key].offset
