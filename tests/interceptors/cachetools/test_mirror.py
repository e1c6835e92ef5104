"""The connector's copy of a captured cache: what it makes of changes, and what it holds."""

from __future__ import annotations

from typing import Any, cast

import cachetools

from deelog_connector.cache_side import CaptureSink
from deelog_interceptors.cachetools.change_queue import CHECKED, ChangeQueue, charge
from deelog_interceptors.cachetools.mirror import Mirror
from deelog_interceptors.cachetools.serialize import Raw
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry, Operation, Reason
from tests.interceptors.cachetools.support import SEGMENTS, Attached, Clock, Written


def test_the_value_is_taken_at_the_write_and_not_read_again() -> None:
    attached = Attached(cachetools.LRUCache(9), value_serializer="json")
    value = [1]
    attached.cache["k"] = value
    value.append(2)
    assert [o.value for o in attached.drain()] == [b"[1]"]
    assert [entry.value for segment in range(16) for entry in attached.mirror.entries(segment)] == [b"[1]"]


def test_before_is_the_captured_value() -> None:
    attached = Attached(cachetools.LRUCache(9), full_before=True, value_serializer="json")
    attached.cache["k"] = [1]
    attached.cache["k"] = [2]
    del attached.cache["k"]
    assert [o.before for o in attached.drain()] == [None, b"[1]", b"[2]"]


def test_what_changes_nothing_is_no_operation_where_only_changes_are_wanted() -> None:
    clock = Clock()
    timed: Any = cachetools.TTLCache(10, ttl=5, timer=clock)
    attached = Attached(timed, changes_only=True, unix_time=lambda moment: 1_000_000 + moment)
    timed["a"] = "1"
    timed["a"] = "1"
    timed["b"] = "1"
    timed["a"] = "2"
    assert attached.told() == [("put", "a"), ("put", "b"), ("put", "a")]
    clock.now = 1.0
    timed["a"] = "2"  # expires later: that is a change
    timed["a"] = "2"
    assert [o.expires_at for o in attached.drain()] == [1_000_006_000]
    plain: Any = cachetools.LRUCache(2)
    attached = Attached(plain, changes_only=True)
    plain["a"], plain["b"], plain["a"], plain["c"] = "1", "2", "1", "3"  # the third is a use: b is evicted
    assert attached.told() == [("put", "a"), ("put", "b"), ("evict", "b"), ("put", "c")]
    del plain["a"]
    plain["a"] = "1"
    assert attached.told() == [("remove", "a"), ("put", "a")]
    attached.check()
    everything = Attached(cachetools.LRUCache(2))
    everything.cache["a"] = everything.cache["a"] = "1"
    assert everything.told() == [("put", "a"), ("put", "a")]


class Mirrored:
    """A mirror, its queue, and what was written of it."""

    def __init__(self, full_before: bool = False, changes_only: bool = False) -> None:
        self.core, self.queue = Written(), ChangeQueue()
        self.mirror = Mirror(SEGMENTS, full_before, lambda moment: None if moment < 0 else moment * 1000, changes_only)

    def change(self, reason: Reason, key: Raw, value: Raw | None = None, expires: Any = None) -> None:
        self.queue.queue.append((reason, key, value, expires, 1.5, None))

    def drain(self, limit: int = 100) -> int:
        return self.mirror.drain(self.queue, cast(CaptureSink, self.core), limit)

    def operations(self) -> list[Operation]:
        return [operation for _, operation in self.core.operations]

    def get(self, key: bytes) -> Entry | None:
        return self.mirror.get(segment_of(key, SEGMENTS), key)


def test_entries_from_before_the_capture_are_state_and_no_operation() -> None:
    made = Mirrored()
    made.mirror.load("a", "1", 7)
    made.mirror.load(b"\xff", b"2", None)
    assert (len(made.mirror), made.operations()) == (2, [])
    assert (made.get(b"a"), made.get(b"\xff"), made.get(b"b")) == (
        Entry(b"a", b"1", 7000),
        Entry(b"\xff", b"2", None),
        None,
    )
    assert made.mirror.entries(segment_of(b"a", SEGMENTS)) == [Entry(b"a", b"1", 7000)]


def test_changes_become_operations_in_their_order_and_are_acknowledged() -> None:
    made = Mirrored(full_before=True)
    made.change(Reason.PUT, "a", "1", 7)
    made.change(Reason.PUT, "a", b"22")
    made.change(Reason.EXPIRE, "a")
    made.change(Reason.REMOVE, "missing")
    assert [made.drain(3), made.drain(3), made.drain(3)] == [3, 1, 0]
    assert made.operations() == [
        Operation(1, 1, "put", b"a", b"1", 7000, 1_500_000, False, None),
        Operation(1, 2, "put", b"a", b"22", None, 1_500_000, True, b"1"),
        Operation(1, 3, "expire", b"a", None, None, 1_500_000, True, b"22"),
    ]
    segment = segment_of(b"a", SEGMENTS)
    assert (made.core.acks[segment], sum(made.core.acks), len(made.mirror)) == (3, 3, 0)
    changes: list[tuple[str, Raw | None]] = [("a", "1"), ("a", b"22"), ("a", None), ("missing", None)]
    assert made.mirror.drained == sum(charge(key, value) for key, value in changes)


def test_an_expiry_that_is_unknown_or_gone_is_none() -> None:
    made = Mirrored()
    made.change(Reason.PUT, "a", "1", -1)
    made.change(Reason.PUT, "b", "1", 7)
    made.change(Reason.PUT, "b", "2", -1)
    made.change(Reason.PUT, "c", "1", 7)
    made.change(Reason.REMOVE, "c")
    made.change(Reason.PUT, "c", "2")
    made.drain()
    assert [o.expires_at for o in made.operations()] == [None, 7000, None, 7000, None, None]
    assert [made.get(key) for key in (b"b", b"c")] == [Entry(b"b", b"2", None), Entry(b"c", b"2", None)]


def test_a_clear_is_an_operation_of_each_segment_with_entries() -> None:
    made = Mirrored()
    for key in ("a", "b", "c"):
        made.change(Reason.PUT, key, "1", 7)
    made.change(Reason.CLEAR, b"")
    made.change(Reason.PUT, "a", "2")
    made.change(Reason.CLEAR, b"")
    made.drain()
    clears = [segment for segment, operation in made.core.operations if operation.reason == "clear"]
    held = {segment_of(key, SEGMENTS) for key in (b"a", b"b", b"c")}
    assert clears == [*sorted(held), segment_of(b"a", SEGMENTS)]
    assert all(o.existed and not o.key and o.value is None for o in made.operations() if o.reason == "clear")
    assert made.core.acks == made.core.last
    assert (len(made.mirror), made.mirror._expiries) == (0, {})


def test_all_but_some_keys_are_gone() -> None:
    made = Mirrored(full_before=True)
    for key in ("a", "b", b"\xff"):
        made.change(Reason.PUT, key, "1", 7)
    made.drain()
    made.queue.queue.append((Reason.CLEAR, "", frozenset({"b"}), Reason.EXPIRE, 2.5, None))
    assert made.drain() == 1
    gone = made.operations()[3:]
    assert sorted((o.reason, o.key, o.value, o.existed, o.before, o.ts_us) for o in gone) == [
        ("expire", b"a", None, True, b"1", 2_500_000),
        ("expire", b"\xff", None, True, b"1", 2_500_000),
    ]
    assert (len(made.mirror), made.mirror._expiries, made.core.acks) == (1, {"b": 7000}, made.core.last)
    plain = Mirrored()
    plain.change(Reason.PUT, "a", "1")
    plain.queue.queue.append((Reason.CLEAR, "", frozenset({"c"}), Reason.REMOVE, 2.5, None))
    plain.drain()
    assert [(o.reason, o.before) for o in plain.operations()] == [("put", None), ("remove", None)]


def test_of_changes_only_a_write_of_the_same_value_and_expiry_is_left_out() -> None:
    made = Mirrored(changes_only=True)
    for value, expires in (("1", 7), ("1", 7), ("1", 8), ("2", 8), ("2", None)):
        made.change(Reason.PUT, "a", value, expires)
    assert made.drain() == 5
    assert [(o.value, o.expires_at) for o in made.operations()] == [
        (b"1", 7000),
        (b"1", 8000),
        (b"2", 8000),
        (b"2", None),
    ]


def test_what_is_drained_is_done() -> None:
    """Who waits for `drained` reads what came of it."""
    mirror, changes, seen = Mirror(4, False, lambda moment: None), ChangeQueue(), list[int]()
    mirror.load("a", "1", None)
    changes.queue.append((Reason.PUT, "b", "1", None, 1.0, None))
    changes.queue.append((CHECKED, "", None, 1, 1.0, None))
    apply = mirror._apply

    def observed(*given: Any) -> None:
        apply(*given)
        seen.append(mirror.drained)

    mirror._apply = observed  # type: ignore[assignment, method-assign]
    assert mirror.drain(changes, None, 9) == 2
    assert (seen, mirror.surplus) == ([0, 0], 1)
    assert mirror.drained == charge("b", "1") + charge("", None)


def test_what_is_too_large_is_left_out_with_its_expiry() -> None:
    mirror = Mirror(1, False, int)
    for key, size in (("a", 10), ("b", 500), ("c", 501), ("d", 900)):
        mirror.load(key, "v" * size, 7)
    assert mirror.leave_out(0, EntryLimit(10_000, 506, "string", "string", 1, 1)) == ["d"]
    assert mirror.leave_out(0, EntryLimit(10_000, 506, "string", "string", 1, 1)) == []
    assert mirror.leave_out(0, EntryLimit(501, 10_000, "string", "string", 1, 1)) == ["c"]
    assert [entry.key for entry in mirror.entries(0)] == [b"a", b"b"]
    mirror.load("d", "v", None)
    assert mirror.get(0, b"d") == Entry(b"d", b"v", None)
