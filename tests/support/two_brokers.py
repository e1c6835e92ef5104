"""A Kafka of two brokers, of which one may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.devkafka.ports import HOST, free_ports
from tests.support.waiting import waiting

SECONDS = 60.0


@contextmanager
def two_brokers(folder: Path) -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    """The second one has nothing but the topics that are put on it, by `replica_assignment`: their ids are 1 and 2."""
    cluster = "a-cluster-of-two-brokr"
    port, controller = free_ports(2)
    quorum = {"controller.quorum.voters": f"1@{HOST}:{controller}", "request.timeout.ms": "3000"}
    listener = f"PLAINTEXT://{HOST}:{port}"
    own = {"process.roles": "broker", "node.id": "2", "listeners": listener, "advertised.listeners": listener}
    first_port = free_ports(1)[0]
    first_listeners = {"listeners": f"PLAINTEXT://{HOST}:{first_port},CONTROLLER://{HOST}:{controller}"}
    with EmbeddedKafka(folder / "1", first_port, overrides=quorum | first_listeners, cluster=cluster) as first:
        _coordinates(first.bootstrap)
        with EmbeddedKafka(folder / "2", port, overrides=quorum | own, cluster=cluster) as second:
            yield first, second


def _coordinates(bootstrap: str) -> None:
    """Makes the topics of transactions and of groups, all of whose partitions are then on this broker."""
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    Producer({**settings, "transactional.id": "first"}).init_transactions(SECONDS)
    consumer = Consumer({**settings, "group.id": "first"})

    def answers() -> bool:
        try:
            consumer.committed([TopicPartition("first", 0)], SECONDS)
        except KafkaException:  # it begins to be the coordinator
            return False
        return True

    waiting(answers, SECONDS, "the coordinator of groups")
    consumer.close()
