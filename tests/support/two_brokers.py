"""A Kafka of two brokers, of which one may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.devkafka.ports import HOST, free_ports
from tests.support.waiting import waiting

SECONDS = 60.0
OFFSETS: Final = "__consumer_offsets"


@contextmanager
def two_brokers(folder: Path, groups: int = 1) -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    """The second one has nothing but the topics that are put on it, by `replica_assignment`: their ids are 1 and 2.

    `groups` is the one that has the offsets of consumer groups. The first one has the transactions.
    """
    first_port, port, controller = free_ports(3)
    with broker(folder / "1", 1, first_port, controller) as first:
        coordinate(first.bootstrap, groups == 1)
        with broker(folder / "2", 2, port, controller) as second:
            if groups == 2:
                offsets = NewTopic(OFFSETS, 8, replica_assignment=[[2]] * 8, config={"cleanup.policy": "compact"})
                admin = AdminClient(_settings(first.bootstrap))
                admin.create_topics([offsets])[OFFSETS].result(SECONDS)
                _wait_for_groups(first.bootstrap)
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


def coordinate(bootstrap: str, groups: bool = True) -> None:
    """Makes the topics of transactions and of groups, all of whose partitions are then on the broker that runs."""
    Producer({**_settings(bootstrap), "transactional.id": "first"}).init_transactions(SECONDS)
    if groups:
        _wait_for_groups(bootstrap)


def _settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0}


def _wait_for_groups(bootstrap: str) -> None:
    consumer = Consumer({**_settings(bootstrap), "group.id": "first"})

    def answers() -> bool:
        try:
            consumer.committed([TopicPartition("first", 0)], SECONDS)
        except KafkaException:  # it begins to be the coordinator
            return False
        return True

    waiting(answers, SECONDS, "the coordinator of groups")
    consumer.close()
