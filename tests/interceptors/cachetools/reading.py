"""Reads a change topic of text by the reading rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from deelog_schemas.envelope import Envelope, JsonCodec
from deelog_schemas.header import Kind
from tests.support.kafka import Broker
from tests.support.memory import Memory
from tests.support.topics import derived, read_topic


@dataclass
class Topic:
    """A change topic, from its beginning to its end at the time of the call."""

    entries: dict[str, str] = field(default_factory=dict)
    resets: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    changes: list[Envelope] = field(default_factory=list)
    repeats: int = 0
    last_kinds: dict[int, Kind] = field(default_factory=dict)
    """The kind of each segment's last record."""


def read(kafka: Broker | Memory, name: str) -> Topic:
    """Reads and folds the topic."""
    codec, topic = JsonCodec(name, "cachetools", "", ""), Topic()
    records = kafka.records(name) if isinstance(kafka, Memory) else read_topic(kafka.bootstrap, name)
    for record in records:
        topic.last_kinds[record.header.segment] = record.header.kind
        if record.header.kind is Kind.CHANGE and record.value is not None:
            envelope = codec.decode_value(record.value)
            topic.changes.append(envelope)
            topic.reasons[envelope.source["reason"] or "put"] += 1
    entries, readers = derived(records)
    topic.entries = {key.decode(): value.decode() for key, value in entries.items()}
    for reader in readers.values():
        assert reader.open is None, f"segment {reader.segment}: a reset without its end"
        topic.resets.update(reader.resets)
        topic.repeats += reader.repeats
    return topic
