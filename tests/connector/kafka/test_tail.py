"""The tail of a topic to which others write all the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_connector.kafka.tail import Tail
from deelog_schemas.config import parse
from tests.interceptors.cachetools.test_capture import config
from tests.support.kafka import Broker

PARTITIONS, BEFORE = 2, 50


class Traffic:
    """Transactions with one record to each partition, one after the other."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 0})
        self._producer.init_transactions(10)
        self.written = 0
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def write(self) -> None:
        self._producer.begin_transaction()
        for partition in range(PARTITIONS):
            self._producer.produce(self._topic, b"%d" % self.written, b"k", partition)
        self._producer.commit_transaction(10)
        self.written += 1

    def _run(self) -> None:
        while not self.ends.is_set():
            self.write()


@pytest.fixture
def traffic(kafka: Broker, prefix: str) -> Iterator[Traffic]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(prefix, PARTITIONS, 1)])[prefix].result()
    made = Traffic(kafka.bootstrap, prefix)
    for _ in range(BEFORE):
        made.write()
    yield made
    made.ends.set()
    if made.thread.ident is not None:
        made.thread.join()


@pytest.mark.parametrize("busy", [True, False])
def test_it_catches_up_with_what_stood_there_when_it_began(
    kafka: Broker, prefix: str, traffic: Traffic, busy: bool
) -> None:
    if busy:
        traffic.thread.start()
    tail = Tail(parse(config(kafka, prefix)), prefix, PARTITIONS)
    behind = traffic.written + 1  # one transaction may be under way
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    while not tail.caught_up:
        for record in tail.read(0.1):
            assert record.value is not None
            found[record.partition].append(int(record.value))
        # It has read ten times the records that were there and still does not know the end: it waits for a pause.
        assert len(found[0]) < 10 * behind
    tail.close()
    for read in found.values():
        assert read == list(range(len(read)))
        assert len(read) >= BEFORE
