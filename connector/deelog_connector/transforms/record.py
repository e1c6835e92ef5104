"""The base classes of transforms and predicates, and the records that they get.

Weighed in docs/decisions.md, "Transforms declare their options".

A transform runs in a thread, once for each record of a transaction, again where the transaction is
retried, and on another node after a takeover. So its result must depend only on the record and its options: no clock,
no randomness, no state between records, no outside data. It may change values, add headers, or drop the record. It must
not change key, operation, expiry, topic or position: they choose the partition, and readers fold by them, in the order
in which the cache changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from deelog_schemas.config.field import Field, Type


class Row(NamedTuple):
    """An entry, before or after a change.

    `value` is a str where `cache.value.format` is `string`, bytes where it is `bytes`, the parsed JSON where it is
    `json`. `expires_at` is in Unix milliseconds or None, and None in every `before`.
    """

    value: Any
    expires_at: int | None = None


Header = tuple[str, str | bytes | None]


class Record(NamedTuple):
    """One change, or one row of a reset. Immutable: a transform returns a new one, or the same."""

    topic: str
    key: Any
    """By `cache.key.format`, as values are by theirs."""
    op: str
    """`c`, `u`, `d`, or `r` for a row of a reset."""
    before: Row | None
    """None where there was none, and where only the key is captured (`before.image=key`)."""
    after: Row | None
    """None in a `d`."""
    source: Mapping[str, Any]
    """`cache`, `segment`, `epoch`, `seq` and `reason`, as in the envelope; read-only."""
    ts_us: int
    """When the cache changed, in Unix microseconds; of a row, when the segment's reset was written."""
    headers: tuple[Header, ...] = ()

    def with_value(self, value: Any) -> Record:
        """With another value after the change; raises `ValueError` for a `d`, which has none."""
        if self.after is None:
            raise ValueError("a delete has no value after it")
        return self._replace(after=self.after._replace(value=value))

    def with_before(self, value: Any) -> Record:
        """With another value before the change; raises `ValueError` where there is none to replace."""
        if self.before is None:
            raise ValueError("there is no value before this change")
        return self._replace(before=self.before._replace(value=value))

    def with_header(self, name: str, value: str | bytes | None) -> Record:
        """With one header more."""
        return self._replace(headers=(*self.headers, (name, value)))


option: Final = partial(Field, group="transforms", type=Type.STRING)
"""Declares an option: `option(name="fields", type=Type.LIST, doc="…")`; without a `default` it is required."""


class _Configured:
    OPTIONS: ClassVar[tuple[Field, ...]] = ()
    """The options that it takes; others are refused."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` has a typed value for each of `OPTIONS`. Raise `ValueError` where they contradict each other."""
        self.options = options


class Transform(_Configured, ABC):
    """A single-message transform. See the module for what it must not do."""

    NEEDS_PREDICATE: ClassVar[bool] = False
    """Whether it needs a predicate."""

    @abstractmethod
    def apply(self, record: Record) -> Record | None:
        """The record to be written, or None to drop it."""


class Predicate(_Configured, ABC):
    """Decides which records a transform applies to."""

    @abstractmethod
    def test(self, record: Record) -> bool:
        """Whether it is true for the record."""
