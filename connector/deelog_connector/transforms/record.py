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
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from deelog_schemas.config.field import Field, Type


class Row:
    """An entry, before or after a change. Immutable: `with_value` makes another one."""

    __slots__ = ("_expires_at", "_load", "_value")

    def __init__(self, value: Any, expires_at: int | None = None) -> None:
        self._value, self._expires_at = value, expires_at
        self._load: Callable[[], Any] | None = None

    @classmethod
    def loaded_by(cls, load: Callable[[], Any], expires_at: int | None) -> Row:
        """A row whose value `load` gives once a transform asks for it: many ask for the key alone."""
        made = cls(None, expires_at)
        made._load = load
        return made

    def waits_for(self, load: Callable[[], Any]) -> bool:
        """Whether nobody has asked for the value that this gives."""
        return self._load == load

    @property
    def value(self) -> Any:
        """By `cache.value.format` a str (`string`), bytes (`bytes`), or the parsed JSON (`json`)."""
        if self._load is not None:
            self._value, self._load = self._load(), None
        return self._value

    @property
    def expires_at(self) -> int | None:
        """In Unix milliseconds or None, and None in every `before`."""
        return self._expires_at

    def with_value(self, value: Any) -> Row:
        """With another value, and the same expiry."""
        return Row(value, self._expires_at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and (self.value, self.expires_at) == (other.value, other.expires_at)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Row({self.value!r}, {self.expires_at!r})"


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
        return self._replace(after=self.after.with_value(value))

    def with_before(self, value: Any) -> Record:
        """With another value before the change; raises `ValueError` where there is none to replace."""
        if self.before is None:
            raise ValueError("there is no value before this change")
        return self._replace(before=self.before.with_value(value))

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
