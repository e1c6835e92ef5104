"""What stands on a change topic of text, by a plain consumer and the reading rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from deelog_schemas.envelope import Envelope, JsonCodec
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import Record, decode


@dataclass
class Topic:
    """A change topic from its beginning to its end at the time of the call."""

    entries: dict[str, str] = field(default_factory=dict)
    resets: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    changes: list[Envelope] = field(default_factory=list)
    repeats: int = 0
    last_kinds: dict[int, Kind] = field(default_factory=dict)
    """By segment: the kind of its last record."""


def read(bootstrap: str, name: str) -> Topic:
    """Reads and folds the topic."""
    codec, topic = JsonCodec(name, "cachetools", "", ""), Topic()
    readers: dict[int, SegmentReader] = {}

    def entry_of(record: Record) -> tuple[bytes, Entry | None]:
        key = codec.decode_key(record.key)
        return key, None if record.value is None else codec.decode_value(record.value).after

    for record in _records(bootstrap, name):
        segment = record.header.segment
        topic.last_kinds[segment] = record.header.kind
        readers.setdefault(segment, SegmentReader(segment)).apply(record, entry_of)
        if record.header.kind is Kind.CHANGE and record.value is not None:
            envelope = codec.decode_value(record.value)
            topic.changes.append(envelope)
            topic.reasons[envelope.source["reason"] or "put"] += 1
    for reader in readers.values():
        assert reader.open is None, f"segment {reader.segment}: a reset without its end"
        topic.resets.update(reader.resets)
        topic.repeats += reader.repeats
        topic.entries.update({key.decode(): entry.value.decode() for key, entry in reader.entries.items()})
    return topic


def _records(bootstrap: str, name: str) -> list[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reading",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    records = []
    try:
        partitions = set(consumer.list_topics(name, 15).topics[name].partitions)
        consumer.assign([TopicPartition(name, partition, 0) for partition in partitions])
        while partitions:
            message: Any = consumer.poll(15)
            assert message is not None, f"{name}: no record and no end for 15 s"
            error = message.error()
            if error is None:
                records.append(
                    decode(
                        name,
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.headers(),
                    )
                )
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                partitions.discard(message.partition())
    finally:
        consumer.close()
    return records
