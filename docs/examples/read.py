"""Read a topic of deelog's from its beginning to its end, and print the changes.

    python docs/examples/read.py shop.sessions

A plain consumer of Debezium's envelope, with what every consumer of these topics needs: isolation.level=read_committed.
"""

import json
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

topic = sys.argv[1]
consumer = Consumer(
    {
        "bootstrap.servers": "127.0.0.1:9092",
        "group.id": "read",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
)
left = set(consumer.list_topics(topic, 10).topics[topic].partitions)
consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
while left:
    record = consumer.poll(10)
    if record is None:
        sys.exit("Kafka does not answer")
    if record.error():
        if record.error().code() != KafkaError._PARTITION_EOF:
            sys.exit(record.error().str())
        left.discard(record.partition())
    elif record.value() is not None:  # else a tombstone, or one of deelog's own control records
        change = json.loads(record.value())
        before, after = ((change[side] or {}).get("value") or "-" for side in ("before", "after"))
        print(change["op"], json.loads(record.key())["key"], before, "->", after)
consumer.close()
