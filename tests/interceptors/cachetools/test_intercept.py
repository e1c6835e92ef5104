"""The changes that a captured class records, call by call. Arbitrary sequences are in `test_model.py`."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cachetools
import pytest

from deelog_interceptors.cachetools import EntryTooLarge, NotCapturable
from deelog_schemas.errors import DeelogError
from tests.interceptors.cachetools.support import CLEARS, Attached, Clock

PLAIN: list[Callable[[], Any]] = [
    lambda: cachetools.Cache(2),
    lambda: cachetools.LRUCache(2),
    lambda: cachetools.LFUCache(2),
    lambda: cachetools.FIFOCache(2),
    lambda: cachetools.RRCache(2, min),
    lambda: cachetools.TTLCache(2, 10, Clock()),
    lambda: cachetools.TLRUCache(2, lambda k, v, now: now + 10, Clock()),
]
each_kind = pytest.mark.parametrize("make", PLAIN, ids=lambda make: type(make()).__name__)


@each_kind
def test_an_eviction_is_told_before_the_put_that_caused_it(make: Callable[[], Any]) -> None:
    attached = Attached(make())
    attached.cache.update(a="1", b="2")
    attached.cache["c"] = "3"
    told = attached.told()
    assert told[:2] == [("put", "a"), ("put", "b")]
    assert told[2][0] == "evict"
    assert told[2][1] in ("a", "b")
    assert told[3] == ("put", "c")
    attached.check()


@each_kind
def test_what_the_user_removes_is_no_eviction(make: Callable[[], Any]) -> None:
    attached = Attached(make())
    cache = attached.cache
    cache["a"] = "1"
    del cache["a"]
    cache["a"] = "2"
    assert cache.pop("a") == "2"
    cache["a"] = "3"
    assert cache.popitem() == ("a", "3")
    assert cache.setdefault("a", "4") == "4"
    assert cache.setdefault("a", "5") == "4"
    assert attached.told() == [("put", "a"), ("remove", "a")] * 3 + [("put", "a")]


@each_kind
def test_a_clear_is_one_operation_per_segment_with_entries(make: Callable[[], Any]) -> None:
    attached = Attached(make())
    attached.cache.update(a="1", b="2")
    attached.drain()
    for _ in range(2):
        with suppress(*([] if CLEARS else [ValueError])):  # of RRCache, when it is empty
            attached.cache.clear()
    operations = attached.drain()
    if CLEARS:
        assert [(o.reason, o.key, o.value, o.existed) for o in operations] == [("clear", b"", None, True)] * 2
    else:
        assert {(o.reason, o.key, o.existed) for o in operations} == {("remove", b"a", True), ("remove", b"b", True)}
    attached.check()


@each_kind
def test_what_fails_is_not_noted_and_changes_nothing(make: Callable[[], Any]) -> None:
    attached = Attached(make(), max_entry_bytes=10)
    cache = attached.cache
    cache.update(a="1", b="2")
    attached.drain()
    refused: list[tuple[Any, Any, type[DeelogError], str]] = [
        ("k", object(), NotCapturable, "value_serializer"),
        ("k", None, NotCapturable, "NoneType"),
        ("k", bytearray(b"v"), NotCapturable, "bytearray"),
        ("k", b"\xff", NotCapturable, r"not UTF-8 .*cache\.value\.format=bytes"),
        ("k", "\udc80", NotCapturable, "not valid Unicode"),
        ("\udc80", "v", NotCapturable, "not valid Unicode"),
        (1, "v", NotCapturable, "key_serializer"),
        (b"k", "v", NotCapturable, "type bytes"),
        ("\0deelog/claim", "v", NotCapturable, "reserved"),
        ("k", "0123456789", EntryTooLarge, r"11 bytes, max\.entry\.bytes allows 10"),
        ("ä", "012345678", EntryTooLarge, "11 bytes"),
    ]
    for key, value, error, text in refused:
        with pytest.raises(error, match=text):
            cache[key] = value
        with pytest.raises(error, match=text):
            cache.setdefault(key, value)
    for key in ("missing", 1, b"k"):
        with pytest.raises(KeyError):
            del cache[key]
        with pytest.raises(KeyError):
            cache.pop(key)
    assert attached.drain() == []
    assert sorted(cache.items()) == [("a", "1"), ("b", "2")]
    cache["k"] = "012345678"
    attached.check()


def test_a_value_that_the_serializer_refuses_fails_the_write() -> None:
    attached = Attached(cachetools.LRUCache(1), value_serializer="json")
    attached.cache["k"] = {"a": 1}
    with pytest.raises(NotCapturable, match="cannot be serialized") as caught:
        attached.cache["other"] = {"a": {1, 2}}
    assert isinstance(caught.value.__cause__, TypeError)
    assert list(attached.cache) == ["k"]
    attached.check()


def test_expiry_is_told_from_removal_in_each_way_it_is_noticed() -> None:
    clock = Clock()
    attached = Attached(cachetools.TTLCache(9, 10, clock), unix_time=lambda moment: 1000 + moment)
    cache = attached.cache
    cache["a"] = "1"
    assert [o.expires_at for o in attached.drain()] == [1_010_000]
    clock.now = 10
    with pytest.raises(KeyError):
        del cache["a"]  # cachetools removes it and says that it was gone
    assert attached.told() == [("expire", "a")]
    cache["b"] = "1"
    clock.now = 20
    cache["b"] = "2"
    assert attached.told() == [("put", "b"), ("expire", "b"), ("put", "b")]
    clock.now = 30
    assert len(cache) == 0
    assert attached.told() == [("expire", "b")]
    cache["c"] = "1"
    clock.now = 40
    assert [cache.expire(), cache.expire()] == [[("c", "1")], []]
    assert attached.told() == [("put", "c"), ("expire", "c")]
    attached.check()


def test_a_tlru_entry_whose_time_is_over_when_it_is_written() -> None:
    attached = Attached(cachetools.TLRUCache(9, lambda k, v, now: now + len(v), Clock()))
    attached.cache["a"] = ""
    assert attached.told() == []
    attached.cache["a"] = "1"
    attached.cache["a"] = ""
    kept = "a" in attached.cache  # as before cachetools 7.1
    assert attached.told() == [("put", "a")] + [("expire", "a")] * (not kept)
    attached.check()


def test_an_entry_that_its_own_growth_evicts_comes_back() -> None:
    attached = Attached(cachetools.LRUCache(4, getsizeof=len))
    attached.cache.update(a="1", b="22")
    attached.cache["a"] = "4444"
    assert attached.told() == [("put", "a"), ("put", "b"), ("evict", "a"), ("evict", "b"), ("put", "a")]
    with pytest.raises(ValueError, match="value too large"):
        attached.cache["a"] = "55555"
    attached.check()


def test_after_a_write_that_failed_a_popitem_is_the_users_again() -> None:
    caches: list[Any] = [cachetools.LRUCache(4, getsizeof=len), cachetools.TTLCache(4, 10, getsizeof=len)]
    for cache in caches:
        attached = Attached(cache)
        cache["a"] = "1"
        with pytest.raises(ValueError, match="value too large"):
            cache["b"] = "55555"
        cache.popitem()
        assert attached.told()[-1] == ("remove", "a")


def test_the_object_stays_what_it_was() -> None:
    class Mine(cachetools.LRUCache[str, str]):
        """Mine."""

    cache = Mine(2)
    attached = Attached(cache)
    assert isinstance(cache, Mine)
    cache["a"] = "1"
    assert repr(cache) == "Mine({'a': '1'}, maxsize=2, currsize=1)"
    assert type(cache).__doc__ == "Mine."
    attached.check()


def test_copies_and_pickles_are_caches_of_their_own() -> None:
    attached = Attached(cachetools.TTLCache(2, 10))
    attached.cache["a"] = "1"
    attached.drain()
    pickles = [pickle.loads(pickle.dumps(attached.cache, protocol)) for protocol in (0, pickle.HIGHEST_PROTOCOL)]
    for other in (copy.deepcopy(attached.cache), *pickles):
        assert type(other) is cachetools.TTLCache
        other["b"] = "2"
        assert dict(other) == {"a": "1", "b": "2"}
    assert attached.drain() == []
    attached.check()


@pytest.mark.parametrize("locked", [False, True])
def test_cached_functions_are_captured(locked: bool) -> None:
    attached = Attached(cachetools.LRUCache(2), key_serializer="json", value_serializer="json", max_entry_bytes=20)

    @cachetools.cached(attached.cache, lock=threading.Lock() if locked else None)
    def square(number: int) -> int:
        return number * number

    assert [square(n) for n in (1, 2, 2, 3)] == [1, 4, 4, 9]
    assert attached.told() == [("put", "[1]"), ("put", "[2]"), ("evict", "[1]"), ("put", "[3]")]
    square.cache_clear()
    assert {reason for reason, _ in attached.told()} == {"clear" if CLEARS else "remove"}
    attached.check()


def test_a_cached_function_goes_on_where_an_entry_is_too_large_and_fails_where_none_can_be_captured() -> None:
    attached = Attached(cachetools.LRUCache(2), max_entry_bytes=9)

    @cachetools.cached(attached.cache, key=str)
    def call(value: Any) -> Any:
        return value

    assert call("0123456789") == "0123456789"  # as with cachetools' own "value too large"
    with pytest.raises(NotCapturable):
        call(7)
    assert attached.drain() == []


def test_threads_under_one_lock() -> None:
    attached, lock = Attached(cachetools.LRUCache(50)), threading.Lock()
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for turn in range(2000):
            key = f"k{(turn * 7 + number * 13) % 90}"
            with lock:
                if turn % 5 == 0:
                    attached.cache.pop(key, None)
                else:
                    attached.cache[key] = f"{number}:{turn}"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        attached.take(64)
    for thread in threads:
        thread.join()
    attached.check()
    assert len(attached.core.operations) > 8000


def test_room_is_asked_for_before_the_cache_changes_and_only_by_writes() -> None:
    asked: list[tuple[Any, int]] = []

    class Full(Exception):
        pass

    def room(raw_key: Any, size: int) -> None:
        asked.append((raw_key, size))
        if raw_key == "no":
            raise Full

    caches: list[Any] = [cachetools.LRUCache(2), cachetools.TTLCache(2, 10)]
    for cache in caches:
        attached = Attached(cache, room=room)
        asked.clear()
        cache.update(a="1", b="2")
        attached.changes.limit = attached.changes.taken + 203
        cache["c"] = "33"
        assert asked == []
        cache["d"] = "4"
        assert asked == [("d", 202)]
        with pytest.raises(Full):
            cache["no"] = "5"
        assert set(cache) == {"c", "d"}
        del cache["c"]
        cache.clear()
        assert len(asked) == 2
        attached.check()


class TestSubclasses:
    def test_one_that_stores_under_another_key_is_refused(self) -> None:
        class Lower(cachetools.LRUCache[str, str]):
            def __setitem__(self, key: str, value: str) -> None:
                super().__setitem__(key.lower(), value)

        attached = Attached(Lower(9))
        attached.cache["a"] = "fine"
        with pytest.raises(NotCapturable, match="under another key"):
            attached.cache["A2"] = "v"

    @pytest.mark.parametrize("key", ["C", "B"], ids=["a new key", "an overwrite"])
    def test_one_that_stores_under_another_key_in_a_full_cache_is_refused(self, key: str) -> None:
        class Lower(cachetools.LRUCache[str, str]):
            def __setitem__(self, key: str, value: str) -> None:
                super().__setitem__(key.lower(), value)

            def __getitem__(self, key: str) -> str:
                return super().__getitem__(key.lower())

        attached = Attached(Lower(2))
        attached.cache.update(a="1", b="2")
        with pytest.raises(NotCapturable, match="under another key"):
            attached.cache[key] = "3"

    def test_one_that_raises_after_a_removal(self) -> None:
        class Hooked(cachetools.TTLCache[str, str]):
            def __delitem__(self, key: str) -> None:
                super().__delitem__(key)
                raise RuntimeError("del")

            def popitem(self) -> tuple[str, str]:
                cachetools.TTLCache.__delitem__(self, min(self))
                raise RuntimeError("popitem")

            def expire(self, time: float | None = None) -> list[tuple[str, str]]:
                if super().expire(time):
                    raise RuntimeError("expire")
                return []

            def clear(self) -> None:
                super().clear()
                raise RuntimeError("clear")

        clock = Clock()
        attached = Attached(Hooked(3, 10, clock))
        cache = attached.cache
        cache.update(a="1", b="2", c="3")
        with pytest.raises(RuntimeError, match="popitem"):
            cache["d"] = "4"
        assert attached.told()[3:] == [("evict", "a")]
        attached.check()
        with pytest.raises(RuntimeError, match="del"):
            del cache["b"]
        assert attached.told() == [("remove", "b")]
        clock.now = 20
        with pytest.raises(RuntimeError, match="expire"):
            cache.expire()
        assert attached.told() == [("expire", "c")]
        cache["e"] = "5"
        with pytest.raises(RuntimeError, match="clear" if CLEARS else "popitem"):
            cache.clear()
        assert attached.told() == [("put", "e"), ("remove", "e")]
        attached.check()

    def test_one_that_removes_more_than_it_was_asked_for(self) -> None:
        class Tree(cachetools.LRUCache[str, str]):
            def __delitem__(self, key: str) -> None:
                super().__delitem__(key)
                for child in [one for one in self if one.startswith(f"{key}/")]:
                    super().__delitem__(child)

        attached = Attached(Tree(3))
        attached.cache.update({"a": "1", "a/b": "2", "c": "3"})
        del attached.cache["a"]
        assert attached.told()[3:] == [("remove", "a"), ("remove", "a/b")]
        attached.check()

    def test_one_whose_removals_return_nothing(self) -> None:
        class Silent(cachetools.TTLCache[str, str]):
            def popitem(self) -> Any:
                for _ in range(2):
                    super().popitem()

            def expire(self, time: float | None = None) -> Any:
                super().expire(time)

        clock = Clock()
        attached = Attached(Silent(2, 10, clock))
        cache = attached.cache
        cache.update(a="1", b="2", c="3")
        assert attached.told()[2:] == [("evict", "a"), ("evict", "b"), ("put", "c")]
        cache["d"] = "4"
        assert cache.popitem() is None
        assert attached.told() == [("put", "d"), ("remove", "c"), ("remove", "d")]
        cache["e"] = "5"
        clock.now = 20
        cache.expire()
        assert attached.told() == [("put", "e"), ("expire", "e")]
        attached.check()

    def test_one_that_changes_values_is_captured_as_written(self) -> None:
        class Packed(cachetools.LRUCache[str, Any]):
            def __setitem__(self, key: str, value: Any) -> None:
                super().__setitem__(key, ("packed", value))

        attached = Attached(Packed(9))
        attached.cache["a"] = "v"
        assert [o.value for o in attached.drain()] == [b"v"]

    def test_one_that_declines_or_fails_late(self) -> None:
        class Odd(cachetools.LRUCache[str, str]):
            def __setitem__(self, key: str, value: str) -> None:
                if value != "no":
                    super().__setitem__(key, value)
                if value == "late":
                    raise RuntimeError("after it was stored")

            def __delitem__(self, key: str) -> None:
                if key != "kept":
                    super().__delitem__(key)

        attached = Attached(Odd(9))
        cache = attached.cache
        cache["a"] = "no"
        cache["a"] = "1"
        cache["a"] = "no"
        assert attached.told() == [("put", "a")]
        with pytest.raises(RuntimeError):
            cache["a"] = "late"
        cache["kept"] = "1"
        del cache["kept"]
        del cache["a"]
        assert attached.told() == [("put", "a"), ("put", "kept"), ("remove", "a")]
        attached.check()

    def test_one_that_removes_past_its_own_methods(self) -> None:
        class Direct(cachetools.Cache[str, str]):
            def popitem(self) -> tuple[str, str]:
                key = min(self)
                value = self[key]
                cachetools.Cache.__delitem__(self, key)
                return key, value

            def clear(self) -> None:
                for key in list(self):
                    if key != "kept":
                        cachetools.Cache.__delitem__(self, key)

        attached = Attached(Direct(3))
        attached.cache.update(a="1", b="2", kept="3", z="4")
        assert ("evict", "a") in attached.told()
        attached.cache.popitem()
        assert attached.told() == [("remove", "b")]
        attached.cache.clear()
        assert attached.told() == [("remove", "z")]
        attached.check()

    def test_one_that_writes_inside_a_write_and_on_eviction(self) -> None:
        class Busy(cachetools.LRUCache[str, str]):
            def __setitem__(self, key: str, value: str) -> None:
                super().__setitem__(key, value)
                if key == "a":
                    self["copy"] = value

            def popitem(self) -> tuple[str, str]:
                key, value = super().popitem()
                if key == "b":
                    del self["copy"]
                return key, value

        attached = Attached(Busy(3))
        attached.cache.update(b="1", a="2", c="3")
        told = attached.told()
        assert ("evict", "b") in told
        attached.check()


def test_after_a_clear_the_bytes_of_a_key_may_be_anothers() -> None:
    attached = Attached(cachetools.LRUCache(9), key_serializer=lambda key: str(key))
    attached.cache[1] = "int"
    attached.cache.clear()
    attached.cache["1"] = "text"
    assert attached.told() == [("put", "1"), ("clear", "") if CLEARS else ("remove", "1"), ("put", "1")]
    attached.check()


@each_kind
def test_each_change_has_the_trace_of_its_write(make: Callable[[], Any]) -> None:
    traces = iter([(("traceparent", b"%d" % number),) for number in range(9)])
    attached = Attached(make(), trace=lambda: next(traces))
    attached.cache["a"] = "1"
    attached.cache["a"] = "2"
    del attached.cache["a"]
    assert [o.trace for o in attached.drain()] == [(("traceparent", b"%d" % number),) for number in range(3)]


class Copyable(cachetools.LRUCache[str, str]):
    """Copies itself in the ways that are usual."""

    def copy(self) -> Copyable:
        new = type(self)(int(self.maxsize))
        new.update(self)
        return new

    def __copy__(self) -> Copyable:
        new = self.__class__.__new__(self.__class__)
        new.__dict__.update(copy.deepcopy(self.__dict__))
        return new

    @classmethod
    def restored(cls, size: int, items: list[tuple[str, str]]) -> Copyable:
        new = cls(size)
        new.update(items)
        return new

    def __reduce__(self) -> Any:
        return self.restored, (self.maxsize, list(self.items()))


@pytest.mark.parametrize(
    "copied", [Copyable.copy, copy.copy, copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))]
)
def test_a_copy_that_a_subclass_makes_of_its_own_class_is_not_captured(copied: Callable[[Any], Any]) -> None:
    attached = Attached(Copyable(5))
    attached.cache["a"] = "1"
    attached.drain()
    other = copied(attached.cache)
    assert (type(other), dict(other)) == (Copyable, {"a": "1"})
    other["b"] = "2"
    other.clear()
    assert attached.drain() == []
    assert dict(attached.cache) == {"a": "1"}
    attached.check()


def test_an_instance_made_without_arguments_is_whole_and_not_captured() -> None:
    class Small(cachetools.LRUCache[str, str]):
        def __init__(self) -> None:
            super().__init__(2)

    attached = Attached(Small())
    other = type(attached.cache)()
    other["a"] = "1"
    assert (type(other), attached.drain()) == (Small, [])
