"""What stands on a topic of deelog's, by a plain consumer and the reading rule."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from deelog_schemas.envelope import Codec, JsonCodec
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import ON_CHANGES, Record, decode

_SECONDS = 60.0


def read_topic(bootstrap: str, topic: str, allowed: frozenset[Kind] = ON_CHANGES) -> list[Record]:
    """All committed records that are there at the call, and perhaps later ones, in order within each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test-reader",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found = []
    try:
        left = set(consumer.list_topics(topic, _SECONDS).topics[topic].partitions)
        places = [TopicPartition(topic, partition, 0) for partition in left]
        # Of a topic that is being written to, a reader may never see the end.
        ends = {place.partition: consumer.get_watermark_offsets(place, _SECONDS)[1] for place in places}
        consumer.assign(places)
        deadline = time.monotonic() + _SECONDS
        while left:
            assert time.monotonic() < deadline, f"partitions {left} of {topic} have no end"
            message: Any
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition())
                    continue
                where = (message.topic(), message.partition(), message.offset())
                if where[2] >= ends[where[1]] - 1:
                    left.discard(where[1])
                found.append(decode(*where, message.key(), message.value(), message.headers(), allowed))
    finally:
        consumer.close()
    return found


def derived(records: list[Record], codec: Codec | None = None) -> tuple[dict[bytes, bytes], dict[int, SegmentReader]]:
    """The cache's content as a reader derives it, and the readers by segment."""
    codec = codec or JsonCodec("", "test", "", "")
    readers: dict[int, SegmentReader] = {}

    def entry(record: Record) -> tuple[bytes, Entry | None]:
        after = codec.decode_value(record.value).after if record.value is not None else None
        return codec.decode_key(record.key), after

    for record in records:
        segment = record.header.segment
        readers.setdefault(segment, SegmentReader(segment)).apply(record, entry)
    return {e.key: e.value for r in readers.values() for e in r.entries.values()}, readers
