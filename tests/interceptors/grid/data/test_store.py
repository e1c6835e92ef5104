"""A store alone: what it captures, what it applies, and what expires."""

from __future__ import annotations

import time

import pytest

from deelog_connector.core import ConnectorCore
from deelog_connector.core import Settings as CoreSettings
from deelog_interceptors.grid.data.segment import Role, Segment
from deelog_interceptors.grid.data.store import Store
from deelog_interceptors.grid.settings import Settings
from deelog_schemas.config import parse
from deelog_schemas.operation import Entry, Operation


class Entries:
    def entries(self, segment: int) -> list[Entry]:
        return []

    def get(self, segment: int, key: bytes) -> Entry | None:
        return None


class Kept:
    """A store of two segments, and the operations that it captured."""

    def __init__(self, **config: str) -> None:
        given = {"topic.prefix": "p", "cache.name": "c", "node.id": "x", "bootstrap.servers": "h:1"}
        given |= {"segment.count": "2", "topic.creation.default.partitions": "1"}
        self.operations: list[Operation] = []
        core = ConnectorCore("x@1", CoreSettings(2, 1), Entries())
        self.store = Store(Settings.of(parse(given | config)), core, self._captured, time)

    def _captured(self, _: Segment, operation: Operation) -> None:
        self.operations.append(operation)

    def primary(self, number: int) -> Segment:
        segment = self.store.segments[number]
        segment.role = Role.PRIMARY
        self.store.become_primary(segment, 1, None)
        return segment


def expiry_of(store: Store, now: int) -> float | None:
    """What `expire_due` returns once there is nothing more to do at `now`."""
    while (left := store.expire_due(now)) == 0.0:
        pass
    return left


@pytest.mark.parametrize(("skip", "captured"), [("true", [b"1", b"2"]), ("false", [b"1", b"1", b"2"])])
def test_a_write_that_changes_nothing_is_captured_unless_such_are_skipped(skip: str, captured: list[bytes]) -> None:
    kept = Kept(**{"skip.messages.without.change": skip})
    segment = kept.primary(0)
    sequences = [kept.store.put(segment, b"k", value, None) for value in (captured[0], b"1", b"2")]
    assert sequences == ([1, 1, 2] if skip == "true" else [1, 2, 3])
    assert [operation.value for operation in kept.operations] == captured


def test_a_backup_applies_writes_removals_and_clears() -> None:
    kept, backup = Kept(), Kept()
    segment, copy = kept.primary(0), backup.store.segments[0]
    for key in (b"a", b"b", b"c"):
        kept.store.put(segment, key, b"1", None)
    kept.store.remove(segment, b"a")
    for operation in kept.operations:
        backup.store.apply(copy, operation)
    assert copy.data == {b"b": (b"1", None), b"c": (b"1", None)}
    kept.store.clear(segment)
    backup.store.apply(copy, kept.operations[-1])
    assert copy.data == {}


def test_what_the_policy_evicts_is_captured_before_the_write_that_evicts_it() -> None:
    kept = Kept(**{"cache.max.entries": "2", "before.image": "full", "max.entry.bytes": "1000"})
    segment = kept.primary(0)
    kept.store.put(segment, b"a", b"1", None)
    kept.store.put(segment, b"b", b"2", None)
    assert [(o.reason, o.key, o.before) for o in kept.operations] == [
        ("put", b"a", None), ("evict", b"a", b"1"), ("put", b"b", None)
    ]  # fmt: skip
    assert kept.store.evicted == 1


@pytest.mark.parametrize("closed", ["", "releasing", "stepped_down"])
def test_an_entry_past_its_time_is_gone_and_an_open_primary_captures_that(closed: str) -> None:
    kept = Kept()
    segment, now = kept.primary(0), kept.store.now_ms()
    for key, expires_at in ((b"a", now), (b"b", None), (b"c", now + 1_000_000)):
        kept.store.put(segment, key, b"1", expires_at)
    if closed:
        setattr(segment, closed, True)
    found = [kept.store.find(segment, key) for key in (b"a", b"b", b"c", b"d")]
    assert found == [None, (b"1", None), (b"1", now + 1_000_000), None]
    assert [(o.reason, o.key) for o in kept.operations[3:]] == ([] if closed else [("expire", b"a")])
    assert kept.store.expired == (not closed)


def test_an_entry_goes_with_its_segment_from_role_to_role() -> None:
    kept = Kept()
    store, segment = kept.store, kept.primary(0)
    due = store.now_ms() + 1_000_000
    store.put(segment, b"a", b"1", due)
    assert expiry_of(store, due - 2000) == 2.0
    store.become_backup(segment)
    segment.role = Role.BACKUP
    assert (store.plain(segment), store.core.phase(0)) == ({b"a": (b"1", due)}, "idle")
    assert expiry_of(store, due) is None  # only its primary expires it
    segment.role, segment.last = Role.PRIMARY, 0
    store.become_primary(segment, 2, None)
    assert (segment.last, store.find(segment, b"a")) == (1, (b"1", due))
    assert expiry_of(store, due) is None
    assert [(o.reason, o.sequence) for o in kept.operations[1:]] == [("expire", 2)]
    store.drop(segment)
    assert (segment.data, store.core.last_sequence(0)) == ({}, 0)


def test_expiries_that_are_no_more_do_not_gather() -> None:
    """Each is queued again whenever its segment takes writes again. Those of other segments stay."""
    kept = Kept()
    other, segment = kept.primary(0), kept.primary(1)
    due = kept.store.now_ms() + 1_000_000
    kept.store.put(other, b"o", b"v", due)
    for number in range(500):
        kept.store.put(segment, b"k%d" % number, b"v", due)
    for _ in range(100):
        kept.store.opened(segment)
    runs = 1
    while kept.store.expire_due(due) is not None:
        runs += 1
    assert runs < 10
    assert kept.store.expired == 501


def test_a_view_that_promotes_and_demotes_much_converts_nothing_before_it_is_used() -> None:
    kept = Kept()
    store, (first, second) = kept.store, kept.store.segments
    due = store.now_ms() + 1_000_000
    for segment in (first, second):
        segment.data = {b"a": (b"1", due), b"b": (b"2", None)}
        held = segment.data
        segment.role = Role.PRIMARY
        store.become_primary(segment, 1, None)
        assert segment.data is held
    assert store.find(first, b"b") == (b"2", None)
    store.put(second, b"c", b"3", None)
    for segment, size in ((first, 2), (second, 3)):
        cache = segment.data
        assert not isinstance(cache, dict)
        assert list(cache)[:2] == [b"a", b"b"]
        segment.role = Role.BACKUP
        store.become_backup(segment)
        assert segment.data is cache
        store.apply(segment, Operation(1, 9, "put", b"d", b"4", None, 17, False))
        assert isinstance(segment.data, dict)
        assert len(segment.data) == size + 1


@pytest.mark.parametrize("closed", ["releasing", "stepped_down"])
def test_a_segment_that_takes_no_writes_gives_nothing_up_to_a_reader(closed: str) -> None:
    """Its node has less room than the one before: what it evicts is an operation."""
    kept = Kept(**{"cache.max.entries": "2"})
    segment = kept.primary(0)
    segment.data = {b"a": (b"1", None), b"b": (b"2", None)}
    setattr(segment, closed, True)
    assert kept.store.find(segment, b"a") == (b"1", None)
    assert len(segment.data) == 2
    setattr(segment, closed, False)
    assert kept.store.find(segment, b"b") == (b"2", None)
    assert [(o.reason, o.key) for o in kept.operations] == [("evict", b"a")]
