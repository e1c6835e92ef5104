"""Reads deelog's topics, by a plain consumer and the reading rule."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from deelog_schemas.envelope import Codec, JsonCodec
from deelog_schemas.fold import SegmentReader
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from deelog_schemas.records import ON_CHANGES, Record, decode
from tests.support.waiting import waiting

_SECONDS = 60.0


def messages(bootstrap: str, topic: str, **settings: str) -> list[Any]:
    """All messages that are committed at the call, and perhaps later ones, in order within each partition.

    `settings` of the consumer have `_` for `.`. Raises TimeoutError if the end is not reached within a minute.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test-reader",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    read: list[Any] = []
    try:
        left = waiting(lambda: _partitions(consumer, topic), _SECONDS, f"the partitions of {topic}")
        places = [TopicPartition(topic, partition, 0) for partition in left]
        # The ends are fixed now: on a topic that is being written to, a reader may never reach the current end.
        ends = {place.partition: _end(consumer, place) for place in places}
        consumer.assign(places)

        def is_read() -> bool:
            message: Any
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    read.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                if error is not None or message.offset() >= ends[message.partition()] - 1:
                    left.discard(message.partition())
            return not left

        waiting(is_read, _SECONDS, f"the end of {topic}")
    finally:
        consumer.close()
    return read


def _partitions(consumer: Consumer, topic: str) -> set[int]:
    """Empty where the broker has just come back and does not know its topics yet."""
    return set(consumer.list_topics(topic, _SECONDS).topics[topic].partitions)


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """A broker that has just come back may not know its partitions yet, or that it leads them."""

    def asked() -> tuple[int, int] | None:
        try:
            return consumer.get_watermark_offsets(place, _SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError._UNKNOWN_PARTITION, KafkaError.NOT_LEADER_FOR_PARTITION):
                raise
            return None

    return waiting(asked, _SECONDS, f"the end of {place.topic}[{place.partition}]")[1]


def read_topic(bootstrap: str, topic: str, allowed: frozenset[Kind] = ON_CHANGES) -> list[Record]:
    """`messages`, decoded."""
    return [
        decode(m.topic(), m.partition(), m.offset(), m.key(), m.value(), m.headers(), allowed)
        for m in messages(bootstrap, topic)
    ]


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
