"""Which subclasses change themselves past what a capture sees. They are refused, and others are not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cachetools
import pytest
from cachetools import LRUCache, TTLCache

import deelog_interceptors.cachetools as deelog
from deelog_interceptors.cachetools.errors import NotCapturable
from deelog_interceptors.cachetools.intercept import own
from deelog_interceptors.cachetools.subclasses import passes_by
from tests.interceptors.cachetools.support import Attached


class Pops(LRUCache[Any, Any]):
    def pop(self, key: Any, default: Any = None) -> Any:
        value = self[key]
        super().__delitem__(key)
        return value


class Named(LRUCache[Any, Any]):
    def replace(self, key: Any, value: Any) -> None:
        super(Named, self).__setitem__(key, value)  # noqa: UP008 - both forms are written


class ByClass(LRUCache[Any, Any]):
    def drop(self, key: Any) -> None:
        LRUCache.__delitem__(self, key)


class ByModule(LRUCache[Any, Any]):
    def drop(self, key: Any) -> None:
        cachetools.Cache.__delitem__(self, key)


class Inner(TTLCache[Any, Any]):
    def sweep(self) -> None:
        def now() -> None:
            super(Inner, self).expire()

        now()


class Heir(Pops):
    """What is passed by is inherited."""


class Mixed:
    """Of no cache: what it does comes to the object's own methods."""

    def drop(self, key: Any) -> None:
        self.__delitem__(key)  # type: ignore[attr-defined]


class Fine(Mixed, LRUCache[Any, Any]):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        LRUCache.__setitem__(self, "first", "1")  # it is there before it is captured

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        LRUCache.__delitem__(self, key)

    def pop(self, key: Any, default: Any = None) -> Any:
        return super().pop(key, default)

    def wipe(self) -> str:
        super().update({})
        self.__setitem__("a", "1")
        self.clear()
        return str(len(self).__str__()) + str(dict.__setitem__)

    size = property(lambda self: len(self))


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Pops, "Pops.pop() calls super().__delitem__()"),
        (Named, "Named.replace() calls super().__setitem__()"),
        (ByClass, "ByClass.drop() calls LRUCache.__delitem__()"),
        (ByModule, "ByModule.drop() calls cachetools.Cache.__delitem__()"),
        (Inner, "Inner.sweep() calls super().expire()"),
        (Heir, "Pops.pop() calls super().__delitem__()"),
        (Fine, ""),
        (LRUCache, ""),
        (TTLCache, ""),
        (cachetools.TLRUCache, ""),
    ],
)
def test_what_passes_a_capture_by_is_named(kind: Any, what: str) -> None:
    assert passes_by(kind) == what


def test_such_a_cache_is_refused_before_anything_starts() -> None:
    with pytest.raises(TypeError, match=r"Pops\.pop\(\) calls super\(\)\.__delitem__\(\), which deelog would not see"):
        deelog.capture(Pops(3), {})


def test_a_cache_whose_init_is_called_again_is_empty() -> None:
    for make, keys in ((LRUCache, None), (LRUCache, "json"), (Fine, None)):
        attached = Attached(make(9), key_serializer=keys, value_serializer=keys)
        attached.cache.update(a="1", b="2")
        attached.cache.__init__(9)
        attached.check()
        attached.cache["c"] = "3"
        attached.check()


def like(method: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return functools.wraps(method)


def test_a_method_that_looks_like_cachetools_is_the_users() -> None:
    class Wrapped(LRUCache[Any, Any]):
        @like(LRUCache.__delitem__)
        def __delitem__(self, key: Any) -> None:
            super().__delitem__(key)
            raise RuntimeError("late")

        @like(LRUCache.popitem)
        def popitem(self) -> Any:
            LRUCache.__delitem__(self, min(self))

    assert [own(Wrapped, name) for name in ("__setitem__", "__delitem__", "popitem")] == [True, False, False]
    assert own(cachetools.Cache, "popitem")
    attached = Attached(Wrapped(2))
    attached.cache.update(a="1", b="2")
    attached.cache.popitem()
    with pytest.raises(RuntimeError, match="late"):
        del attached.cache["b"]
    attached.check()


def test_one_more_key_than_the_given_one_is_refused() -> None:
    class Alias(LRUCache[str, str]):
        def __setitem__(self, key: str, value: str) -> None:
            super().__setitem__(key, value)
            super().__setitem__(f"{key}.alias", value)

    attached = Attached(Alias(9))
    with pytest.raises(NotCapturable, match="or under one more"):
        attached.cache["a"] = "1"


class Blind(str):
    """Equal in any case."""

    def __eq__(self, other: object) -> bool:
        return self.lower() == str(other).lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Same(str):
    """Text."""


@pytest.mark.parametrize("make", [Blind, Same])
def test_keys_that_are_equal_by_a_rule_of_their_own(make: Callable[[str], str]) -> None:
    plain = Attached(LRUCache(9))
    if make is Same:
        plain.cache[make("A")] = "1"
        assert plain.told() == [("put", "A")]
        return
    with pytest.raises(NotCapturable, match="Blind are equal by a rule of their own"):
        plain.cache[make("A")] = "1"
    assert not plain.cache
    serialized = Attached(LRUCache(9), key_serializer=lambda key: key.lower())
    serialized.cache[make("A")] = "1"
    serialized.cache[make("a")] = "2"
    assert serialized.told() == [("put", "a"), ("put", "a")]
    serialized.check()
