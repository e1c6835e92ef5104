"""Transforms of a run, and the state that is then derived from the topic.

By key (`set skips 1`) the derived state is that of the cache without the filtered keys and with rewritten values. By
value (`set skips 2`) it depends on the history: where a value is filtered, the one before it stays until the next
reset. In such a run the checker only checks that a survivor once held each derived entry. What fails (`set skips 3`)
goes to the dead-letter topic, and the derived state is as if it had been filtered by key.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from deelog_connector.transforms.record import Record, Transform
from deelog_proof.simulation.context import DEAD_LETTERS

BY_KEY, BY_VALUE, FAILING = 1, 2, 3
MARK: Final = "~"

Content = dict[bytes, tuple[bytes, int | None]]
"""Value and expiry by key."""


class ByKey(Transform):
    """Drops keys of odd numbers, and marks values."""

    def apply(self, record: Record) -> Record | None:
        if _is_odd(record.key):
            return None
        return record if record.after is None else record.with_value(record.after.value + MARK)


class Failing(ByKey):
    """Fails where that one drops."""

    def apply(self, record: Record) -> Record | None:
        kept = super().apply(record)
        if kept is None:
            raise ValueError(f"{record.key} is odd")
        return kept


class ByValue(Transform):
    """Drops about half of all values."""

    def apply(self, record: Record) -> Record | None:
        return None if record.after is not None and zlib.crc32(record.after.value.encode()) % 2 else record


_CLASSES: Final = {BY_KEY: ByKey, BY_VALUE: ByValue, FAILING: Failing}


def fields_of(skips: int) -> dict[str, str]:
    """The transform in a configuration, by the setting."""
    if not skips:
        return {}
    each = _CLASSES[skips]
    fields = {"transforms": "s", "transforms.s.type": f"{each.__module__}.{each.__qualname__}"}
    if skips == FAILING:
        fields["event.processing.failure.handling.mode"] = "dead-letter"
        fields["errors.deadletterqueue.topic.name"] = DEAD_LETTERS
    return fields


def content_of(held: Mapping[bytes, tuple[bytes, int | None]], skips: int) -> Content:
    """The derived state of a cache with these entries; not for a run that filters by value."""
    if not skips:
        return dict(held)
    return {k: (v + MARK.encode(), at) for k, (v, at) in held.items() if not _is_odd(k.decode())}


def captured(value: bytes) -> bytes:
    """The cache's value of a derived one."""
    return value.removesuffix(MARK.encode())


def _is_odd(key: str) -> bool:
    return key[-1] in "13579"
