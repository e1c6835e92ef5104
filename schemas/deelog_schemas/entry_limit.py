"""How large an entry may be: what the configuration allows, and what fits into one record.

A write that is larger is refused before the cache changes. Its record would be refused by Kafka later, when the write
is acknowledged already and its segment can go no further.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from deelog_schemas.config import Config
from deelog_schemas.config.shapes import CLIENT_MESSAGE_MAX_BYTES, MESSAGE_MAX, RECORD_MARGIN_BYTES
from deelog_schemas.envelope import written_as

_GROWTH: Final = 6
"""The most bytes that JSON text has for one of a key or value: a control character is \\u00XX."""


@dataclass(frozen=True, slots=True)
class EntryLimit:
    """Of one configuration: `EntryLimit.of`. `most` is `max.entry.bytes`."""

    most: int
    room: int
    """Bytes of one record for keys, values and what transforms add."""
    key: str
    """How keys are written: the format, the encoding of binary keys, or `avro`."""
    value: str
    keys: int
    """How often a record has the key, and how often the value: twice with the image from before."""
    values: int
    sure: int = field(init=False)
    """Key and value of so many bytes together always fit, whatever is in them."""

    def __post_init__(self) -> None:
        # Once: every write compares with it.
        sure = min(self.most, self.room // (_GROWTH * max(self.keys, self.values)))
        object.__setattr__(self, "sure", sure)

    @classmethod
    def of(cls, config: Config) -> EntryLimit:
        """Raises `ConfigError` where a reference cannot be resolved."""
        binary = config["binary.handling.mode"]
        formats = {part: written_as(config[f"cache.{part}.format"], binary) for part in ("key", "value")}
        avro = {part: config[f"{part}.converter"] == "avro" for part in ("key", "value")}
        return cls(
            most=config["max.entry.bytes"],
            room=int(config.get(MESSAGE_MAX, CLIENT_MESSAGE_MAX_BYTES)) - RECORD_MARGIN_BYTES // 2,
            key="avro" if all(avro.values()) else formats["key"],
            value="avro" if avro["value"] else formats["value"],
            keys=4 if config["value.converter"] == "cloudevents" else 3,
            values=2 if config["before.image"] == "full" else 1,
        )

    def within(self, max_message_bytes: int) -> EntryLimit:
        """The same for a topic that takes no larger records than these."""
        room = max_message_bytes - min(RECORD_MARGIN_BYTES, max_message_bytes) // 2
        return replace(self, room=room) if room < self.room else self

    def problem(self, key: bytes, value: bytes, more: int = 0) -> str:
        """Why an entry cannot be written; empty where it can. `more` are bytes that its record has beside it."""
        size = len(key) + len(value)
        if size > self.most:
            return f"key and value are {size} bytes, max.entry.bytes allows {self.most}"
        if size + more <= self.sure:
            return ""
        record = self.keys * _written(key, self.key) + self.values * _written(value, self.value) + more
        if record <= self.room:
            return ""
        return (
            f"key and value take up to {record} bytes of a record, {self.room} fit: raise "
            f"{MESSAGE_MAX} and the topic's max.message.bytes"
        )


def _written(raw: bytes, how: str) -> int:
    """The bytes that a key or value takes in a record."""
    if how == "avro":
        return len(raw)
    if how == "hex":
        return 2 * len(raw)
    if how in ("string", "json"):
        return len(orjson.dumps(raw.decode()))
    return 4 * -(-len(raw) // 3)
