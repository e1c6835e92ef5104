"""Watch what becomes of one key on a topic of deelog's, from now on: its changes, and what is said of its segment.

    python docs/examples/watch.py shop.sessions session:1
    python docs/examples/watch.py shop.sessions session:1 16384      where segments are the slots of a cluster

A plain consumer, with what every consumer of these topics needs: isolation.level=read_committed.
"""

import json
import sys

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from deelog_schemas.header import CONTROL_HEADER_NAME, HEADER_NAME, Kind, unpack
from deelog_schemas.keys import partition_of, segment_of

topic, key, *more = sys.argv[1:]
SEGMENTS = int(more[0]) if more else 256  # segment.count
consumer = Consumer(
    {
        "bootstrap.servers": "127.0.0.1:9092",
        "group.id": "watch",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
    }
)
segment = segment_of(key.encode(), SEGMENTS)
partitions = len(consumer.list_topics(topic, 10).topics[topic].partitions)
partition = partition_of(segment, partitions, SEGMENTS)
consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
consumer.assign([TopicPartition(topic, partition, OFFSET_END)])
consumer.poll(1)
print(f"{key} is in segment {segment}, on {topic}[{partition}]", flush=True)
while True:
    record = consumer.poll(1)
    if record is None or record.error():
        continue
    headers = dict(record.headers())
    header = unpack(headers[HEADER_NAME])
    if header.segment != segment:
        continue
    place = f"epoch {header.epoch} sequence {header.sequence}"
    record_key = json.loads(record.key())["key"]
    if record.value() is not None:
        change = json.loads(record.value())
        before, after = ((change[side] or {}).get("value") or "-" for side in ("before", "after"))
        print(f"{change['op']}  {record_key}  {before} -> {after}  {place}", flush=True)
    elif record_key == key:
        print(f"tombstone  {record_key}  {place}", flush=True)
    else:  # who owns the segment is a remark here; a reset changes what the key holds
        remark = "" if header.kind in (Kind.RESET_BEGIN, Kind.RESET_END) else "# "
        print(f"{remark}{header.kind.name.lower()}  {headers[CONTROL_HEADER_NAME].decode()}  {place}", flush=True)
