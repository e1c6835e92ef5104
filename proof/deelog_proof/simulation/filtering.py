"""What a run with transforms leaves out, and what is then derived from the topic.

By key (`set skips 1`) what is derived is what the cache holds, without the keys that are filtered, each value as it was
rewritten. By value (`set skips 2`) it depends on what came before: a value that is left out leaves the one before it
standing until the next reset. Of that run the checker asks only that no entry stands there which no survivor ever had.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from typing import Final

from deelog_connector.transforms.loading import Step
from deelog_connector.transforms.pipeline import Pipeline
from deelog_connector.transforms.record import Record, Transform
from deelog_schemas.config import Config, parse

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


def pipeline(skips: int) -> Pipeline | None:
    """Of one node, by the setting."""
    if not skips:
        return None
    transform = ByKey({}) if skips == BY_KEY else ByValue({})
    return Pipeline(_config(), [Step("s", type(transform).__name__, transform)])


def told(held: Mapping[bytes, tuple[bytes, int | None]], skips: int) -> Content:
    """What is derived of a cache that holds this; not of a run that filters by value."""
    if skips != BY_KEY:
        return dict(held)
    return {k: (v + MARK.encode(), at) for k, (v, at) in held.items() if not _is_odd(k.decode())}


def captured(value: bytes) -> bytes:
    """A derived value as the cache had it."""
    return value.removesuffix(MARK.encode())


def _is_odd(key: str) -> bool:
    return key[-1] in "13579"


@cache
def _config() -> Config:
    return parse({"topic.prefix": "p", "cache.name": "c", "node.id": "n", "bootstrap.servers": "h:1"})
