"""The captured entries of the cache, by segment: the connector's copy, which its own thread keeps up to date.

A reset reads the mirror, not the cache, and so needs no lock. Weighed in docs/decisions.md, "A reset reads a mirror".

Keys and values are the cache's own objects; of values that had to be serialized it keeps the bytes. It also knows
whether an entry existed and what its value was, so the write path does not look that up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deelog_connector.cache_side import CaptureSink
from deelog_interceptors.cachetools.change_queue import CHECKED, Change, ChangeQueue, charge
from deelog_interceptors.cachetools.serialize import Raw, encoded
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry, Reason

_CLEAR, _CORRECT = Reason.CLEAR, Reason.CORRECT


class Mirror:
    """Used by one thread, which drains and reads.

    `unix_ms` converts an expiry from the cache's own time to Unix milliseconds, or to None where that is unknown.
    `changes_only`: a write that changes neither value nor expiry makes no operation.
    """

    def __init__(
        self, segments: int, full_before: bool, unix_ms: Callable[[Any], int | None], changes_only: bool = False
    ) -> None:
        self._segments, self._changes_only = segments, changes_only
        self._full_before = full_before
        self._unix_ms = unix_ms
        self._values: list[dict[Raw, Raw]] = [{} for _ in range(segments)]
        self._expiries: dict[Raw, int] = {}
        self.drained = 0
        """Bytes taken from the queue so far. The queue holds `changes.taken` minus this."""
        self.surplus = self.diverged = 0
        """Of the last check: how many entries it has beyond those of the cache. Of all checks: how many differed."""

    def __len__(self) -> int:
        return sum(map(len, self._values))

    def load(self, raw_key: Raw, raw_value: Raw, expires: Any) -> None:
        """Adds an entry from before the capture: it is state, not an operation."""
        self._values[segment_of(encoded(raw_key), self._segments)][raw_key] = raw_value
        self._expires(raw_key, expires)

    def entries(self, segment: int) -> list[Entry]:
        """All entries of a segment."""
        expiry = self._expiries.get
        return [Entry(encoded(key), encoded(value), expiry(key)) for key, value in self._values[segment].items()]

    def leave_out(self, segment: int, limit: EntryLimit) -> list[Raw]:
        """Forgets the entries of a segment that are larger, and returns their keys. A reset has to follow."""
        values = self._values[segment]
        sizes = ((key, value) for key, value in values.items() if len(key) + len(value) > limit.sure)
        found = [key for key, value in sizes if limit.problem(encoded(key), encoded(value))]
        for key in found:
            self._take(values, key, None, None)
        return found

    def get(self, segment: int, key: bytes) -> Entry | None:
        """One entry."""
        raw_key: Raw = key
        value = self._values[segment].get(key)
        if value is None and key.isascii():
            raw_key = key.decode()
            value = self._values[segment].get(raw_key)
        return None if value is None else Entry(key, encoded(value), self._expiries.get(raw_key))

    def drain(self, changes: ChangeQueue, sink: CaptureSink | None, limit: int) -> int:
        """Assigns positions to at most `limit` changes and acknowledges them; returns how many it took.

        Without a sink they get none: a reset is to come, and has them.
        """
        last: dict[int, int] = {}
        count, taken = min(limit, len(changes.queue)), 0
        try:
            for _ in range(count):
                change = changes.queue.popleft()
                taken += charge(change[1], change[2], change[5])
                self._apply(change, sink, last)
        finally:
            self.drained += taken  # at last: who waits for it finds all of them done
        if sink is not None:
            for segment, sequence in last.items():
                sink.acked(segment, sequence)
        return count

    def _apply(self, change: Change, sink: CaptureSink | None, last: dict[int, int]) -> None:
        reason, raw_key, raw_value, expires, at, trace = change
        ts_us = int(at * 1_000_000)
        if reason is _CLEAR:
            last |= self._clear(sink, ts_us) if not raw_value else self._keep(sink, raw_value, expires, ts_us)
            return
        key = encoded(raw_key)
        segment = segment_of(key, self._segments)
        values = self._values[segment]
        before = values.get(raw_key)
        if reason is CHECKED:
            if raw_value is None:
                self.surplus = max(0, len(self) - expires)
                return
            if raw_value == before:
                return
            reason, self.diverged = _CORRECT, self.diverged + 1
        if raw_value is None and before is None:
            return  # the key was not in the mirror
        if self._changes_only and raw_value == before and self._expiries.get(raw_key) == self._moment(expires):
            return
        value, expires_at = self._take(values, raw_key, raw_value, expires)
        image = encoded(before) if self._full_before and before is not None else None
        if sink is not None:
            existed = before is not None
            operation = sink.append(segment, reason, key, value, expires_at, ts_us, existed, image, trace)
            last[segment] = operation.sequence

    def _take(
        self, values: dict[Raw, Raw], raw_key: Raw, raw_value: Raw | None, expires: Any
    ) -> tuple[bytes | None, int | None]:
        if raw_value is None:
            del values[raw_key]
            self._expiries.pop(raw_key, None)
            return None, None
        values[raw_key] = raw_value
        return encoded(raw_value), self._expires(raw_key, expires)

    def _expires(self, raw_key: Raw, expires: Any) -> int | None:
        expires_at = self._moment(expires)
        if expires_at is not None:
            self._expiries[raw_key] = expires_at
        elif self._expiries:
            self._expiries.pop(raw_key, None)
        return expires_at

    def _moment(self, expires: Any) -> int | None:
        return None if expires is None else self._unix_ms(expires)

    def _keep(self, sink: CaptureSink | None, kept: Any, reason: Reason, ts_us: int) -> dict[int, int]:
        """An operation for each entry whose key is not among these; returns the segments' sequences."""
        last = {}
        for segment, values in enumerate(self._values):
            for raw_key in [one for one in values if one not in kept]:
                self.diverged += reason is _CORRECT
                values_before = values[raw_key]
                self._take(values, raw_key, None, None)
                image = encoded(values_before) if self._full_before else None
                if sink is not None:
                    operation = sink.append(segment, reason, encoded(raw_key), None, None, ts_us, True, image)
                    last[segment] = operation.sequence
        return last

    def _clear(self, sink: CaptureSink | None, ts_us: int) -> dict[int, int]:
        """One operation for each segment that has entries; returns their sequences."""
        last = {}
        for segment, values in enumerate(self._values):
            if values:
                values.clear()
                if sink is not None:
                    last[segment] = sink.append(segment, _CLEAR, b"", None, None, ts_us, True).sequence
        self._expiries.clear()
        return last
