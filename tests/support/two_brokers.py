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
    first_port, port, controller = free_ports(3)
    with broker(folder / "1", 1, first_port, controller) as first:
        coordinate(first.bootstrap)
        with broker(folder / "2", 2, port, controller) as second:
            yield first, second


def broker(folder: Path, number: int, port: int, controller: int, inside: str = "", outside: str = "") -> EmbeddedKafka:
    """One of them, not started; the first is the controller too.

    `inside` is one more place at which it listens, `host:port`, and `outside` what it says of it to its clients there.
    """
    listeners = advertised = f"PLAINTEXT://{HOST}:{port}"
    if inside:
        listeners, advertised = f"{listeners},MORE://{inside}", f"{advertised},MORE://{outside}"
    overrides = {
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MORE:PLAINTEXT",
        "advertised.listeners": advertised,
        "request.timeout.ms": "3000",
        "node.id": str(number),
    }
    if number == 1:
        overrides["listeners"] = f"{listeners},CONTROLLER://{HOST}:{controller}"
    else:
        overrides |= {"listeners": listeners, "process.roles": "broker"}
    return EmbeddedKafka(folder, port, overrides=overrides, cluster="a-cluster-of-two-brokr")


def coordinate(bootstrap: str) -> None:
    """Makes the topics of transactions and of groups, all of whose partitions are then on the broker that runs."""
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
