"""A captured cache without Kafka: the real write path and mirror, and a core that records operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import cachetools

from deelog_connector.cache_side import CaptureSink
from deelog_interceptors.cachetools.change_queue import ChangeQueue
from deelog_interceptors.cachetools.expiry import expiry_of, unix_ms_of
from deelog_interceptors.cachetools.intercept import captured_class, keys_for
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.serialize import Serializer, Values, encoded, keys_of, named
from deelog_interceptors.cachetools.telling import CaptureContext, Skipped
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Operation, Reason, Trace, TracedOperation

SEGMENTS = 16
CLEARS = "clear" in vars(cachetools.Cache)
"""Else, before cachetools 7, a clear takes one entry after the other."""


class Clock:
    """A timer that tests advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Written:
    """A core that only appends. It checks that `existed` fits the earlier operations and that acks are in order."""

    def __init__(self) -> None:
        self.operations: list[tuple[int, Operation]] = []
        self.states: list[dict[bytes, bytes]] = [{} for _ in range(SEGMENTS)]
        self.last = [0] * SEGMENTS
        self.acks = [0] * SEGMENTS

    def append(
        self,
        segment: int,
        reason: str,
        key: bytes,
        value: bytes | None,
        expires_at: int | None,
        ts_us: int,
        existed: bool,
        before: bytes | None = None,
        trace: Trace | None = None,
    ) -> Operation:
        self.last[segment] += 1
        operation = Operation(1, self.last[segment], reason, key, value, expires_at, ts_us, existed, before)
        operation = operation if trace is None else TracedOperation.of(operation, trace)
        self.operations.append((segment, operation))
        state = self.states[segment]
        if reason == Reason.CLEAR:
            assert state, "a clear of a segment without entries"
            state.clear()
            return operation
        assert segment == segment_of(key, SEGMENTS)
        assert existed == (key in state), f"{reason} of {key!r}: existed {existed}"
        assert before is None or before == state[key]
        if value is None:
            assert reason in (Reason.EVICT, Reason.EXPIRE, Reason.REMOVE, Reason.CORRECT)
            del state[key]
        else:
            assert reason in (Reason.PUT, Reason.CORRECT)
            state[key] = value
        return operation

    def acked(self, segment: int, sequence: int) -> None:
        assert self.acks[segment] < sequence == self.last[segment]
        self.acks[segment] = sequence

    @property
    def entries(self) -> dict[bytes, bytes]:
        """The entries of a reader of all operations."""
        return {key: value for state in self.states for key, value in state.items()}


class Attached:
    """`cache`, captured into `core`. `room` is called if a write would exceed `changes.limit`."""

    def __init__(
        self,
        cache: Any,
        *,
        key_format: str = "string",
        value_format: str = "string",
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        max_entry_bytes: int = 1000,
        max_room: int = 1_000_000,
        full_before: bool = False,
        unix_time: Callable[[Any], float] | None = None,
        room: Callable[[Any, int], None] | None = None,
        trace: Callable[[], Trace | None] | None = None,
        changes_only: bool = False,
        skips: bool = False,
    ) -> None:
        self.skipped = Skipped()
        self.cache, self.core, self.changes = cache, Written(), ChangeQueue()
        self.changes.limit = 10**9
        self.plain = type(cache)
        self.mirror = Mirror(SEGMENTS, full_before, unix_ms_of(cache, unix_time), changes_only)
        self.keys = keys_for(self.plain, keys_of(key_format, key_serializer))
        self.values = Values(value_format, None if value_serializer is None else named(value_serializer))
        written = EntryLimit(max_entry_bytes, max_room, key_format, value_format, 3, 1)
        skipped = self.skipped if skips else None
        room = room or self._no_room
        self.context = CaptureContext(self.changes, self.keys, self.values, written, room, trace, skipped)
        cache.__class__ = captured_class(self.plain, self.context, expiry_of(cache))

    @staticmethod
    def _no_room(raw_key: Any, size: int) -> None:
        raise AssertionError("a write asked for room that there is")

    def take(self, limit: int) -> int:
        """Takes some changes and returns how many."""
        return self.mirror.drain(self.changes, cast("CaptureSink", self.core), limit)

    def drain(self) -> list[Operation]:
        """Takes all changes and returns their operations."""
        before = len(self.core.operations)
        while self.take(3):
            pass
        assert self.mirror.drained == self.changes.taken, "what was charged is what was drained"
        return [operation for _, operation in self.core.operations[before:]]

    def told(self) -> list[tuple[str, str]]:
        """Reason and key of the operations since the last drain."""
        return [(str(o.reason), o.key.decode()) for o in self.drain()]

    def check(self) -> None:
        """The operations, the mirror and the cache have the same entries."""
        self.drain()
        held = {}
        for key in list(cachetools.Cache.__iter__(self.cache)):
            raw_key = self.keys.prepare(key)
            held[encoded(raw_key)] = encoded(self.values.prepare(cachetools.Cache.__getitem__(self.cache, key)))
        assert self.core.entries == held
        mirrored = [entry for segment in range(SEGMENTS) for entry in self.mirror.entries(segment)]
        assert {entry.key: entry.value for entry in mirrored} == held
        assert len(mirrored) == len(self.mirror) == len(held)
        assert self.core.acks == self.core.last, "with one owner, what has a position is acknowledged"
        assert len(self.mirror._expiries) <= len(held), "nothing is kept of what is gone"
        for entry in mirrored:
            assert self.mirror.get(segment_of(entry.key, SEGMENTS), entry.key) == entry
