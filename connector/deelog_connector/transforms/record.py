"""What a transform of the user's is, and what it sees.

Weighed in docs/decisions.md, "Transforms declare their options".

A transform runs in the writer's thread, once for each record of a transaction, again where the transaction is tried
again, and on another node after a takeover. So it must decide by the record and its options alone: no clock, no
randomness, no state that goes from record to record, no look at anything outside. It may change values, add headers, or
drop the record. It may not change key, operation, expiry, topic or position: by these a record finds its partition, and
a reader folds, in the order in which the cache changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from deelog_schemas.config.field import Field, Type


class Row(NamedTuple):
    """An entry, before or after a change.

    `value` is a str where `cache.value.format` is `string`, bytes where it is `bytes`, what the JSON says where it is
    `json`. `expires_at` is in Unix milliseconds or None, and None in every `before`.
    """

    value: Any
    expires_at: int | None = None


Header = tuple[str, str | bytes | None]


class Record(NamedTuple):
    """One change, or one row of a reset. Immutable: a transform returns another one, or the same."""

    topic: str
    key: Any
    """By `cache.key.format`, as values are by theirs."""
    op: str
    """`c`, `u`, `d`, or `r` for a row of a reset."""
    before: Row | None
    """None where there was none, and where the capture has the key alone (`before.image=key`)."""
    after: Row | None
    """None in a `d`."""
    source: Mapping[str, Any]
    """`cache`, `segment`, `epoch`, `seq` and `reason`, as in the envelope; only to be read."""
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
    """What it takes. Whatever else is given is refused."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` has a typed value for each of `OPTIONS`. Raise `ValueError` where they do not go together."""
        self.options = options


class Transform(_Configured, ABC):
    """A single-message transform. See the module for what it must not do."""

    NEEDS_PREDICATE: ClassVar[bool] = False
    """Whether it makes no sense on every record."""

    @abstractmethod
    def apply(self, record: Record) -> Record | None:
        """The record as it is to be written, or None to drop it."""


class Predicate(_Configured, ABC):
    """Tells which records a transform applies to."""

    @abstractmethod
    def test(self, record: Record) -> bool:
        """Whether it holds for the record."""
