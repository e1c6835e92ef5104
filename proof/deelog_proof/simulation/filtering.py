"""Transforms of a run, and the state that is then derived from the topic.

By key (`set skips 1`) the derived state is that of the cache without the filtered keys and with rewritten values. By
value (`set skips 2`) it depends on the history: where a value is filtered, the one before it stays until the next
reset. In such a run the checker only checks that a survivor once held each derived entry.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from deelog_connector.transforms.record import Record, Transform

BY_KEY, BY_VALUE = 1, 2
MARK: Final = "~"

Content = dict[bytes, tuple[bytes, int | None]]
"""Value and expiry by key."""


class ByKey(Transform):
    """Drops keys of odd numbers, and marks values."""

    def apply(self, record: Record) -> Record | None:
        if _is_odd(record.key):
            return None
        return record if record.after is None else record.with_value(record.after.value + MARK)


class ByValue(Transform):
    """Drops about half of all values."""

    def apply(self, record: Record) -> Record | None:
        return None if record.after is not None and zlib.crc32(record.after.value.encode()) % 2 else record


NAMES: Final = {kind: f"{each.__module__}.{each.__qualname__}" for kind, each in ((BY_KEY, ByKey), (BY_VALUE, ByValue))}
"""The transforms as a configuration names them, by the setting."""


def content_of(held: Mapping[bytes, tuple[bytes, int | None]], skips: int) -> Content:
    """The derived state of a cache with these entries; not for a run that filters by value."""
    if skips != BY_KEY:
        return dict(held)
    return {k: (v + MARK.encode(), at) for k, (v, at) in held.items() if not _is_odd(k.decode())}


def captured(value: bytes) -> bytes:
    """The cache's value of a derived one."""
    return value.removesuffix(MARK.encode())


def _is_odd(key: str) -> bool:
    return key[-1] in "13579"
