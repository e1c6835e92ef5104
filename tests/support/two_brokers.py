"""A Kafka of two brokers, of which one may be lost, or out of reach."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.devkafka.ports import HOST, free_ports
from tests.support.network import INSIDE, OUTSIDE, Network
from tests.support.waiting import waiting

SECONDS = 60.0
OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
TRANSACTION_PARTITIONS: Final = 10
"""The first half of them is on the first broker. Did they alternate, the two ids of a node would have one coordinator:
their hashes are both even or both odd."""


class Gates:
    """A gate before each of two brokers, for clients of this process that begin at `bootstrap`. Use it with `serving`.

    The brokers, and clients that begin elsewhere, reach both of them at any time.
    """

    def __init__(self) -> None:
        self.ports = free_ports(2)
        self.bootstrap = ",".join(f"{OUTSIDE}:{port}" for port in self.ports)
        self._network = Network(lambda: {"clients": os.getpid()})

    @contextmanager
    def serving(self) -> Iterator[Gates]:
        self._network.start()
        try:
            for number, port in enumerate(self.ports, 1):
                self._network.gate(f"broker {number}", port)
            yield self
        finally:
            self._network.stop()

    @contextmanager
    def without_second(self, held: bool) -> Iterator[None]:
        """Within this block what is sent to the second broker is held, or its connections are reset."""
        ways = [("clients", "broker 2"), ("broker 2", "clients")]
        if held:
            self._network.hold(ways)
        else:
            self._network.cut(*ways[0])
        try:
            yield
        finally:
            self._network.heal(ways)


@contextmanager
def two_brokers(
    folder: Path, groups: int = 1, gates: Gates | None = None, *, shares_transactions: bool = False
) -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    """The second one has nothing but the topics that are put on it, by `replica_assignment`: their ids are 1 and 2.

    `groups` is the one that has the offsets of consumer groups. The first one has the transactions; where they are
    shared, `coordinator_of` tells.
    """
    first_port, port, controller = free_ports(3)
    more = {"transaction_state_log_num_partitions": str(TRANSACTION_PARTITIONS)} if shares_transactions else {}
    doors = [(f"{INSIDE}:{gate}", f"{OUTSIDE}:{gate}") for gate in gates.ports] if gates else [("", "")] * 2
    with broker(folder / "1", 1, first_port, controller, *doors[0], **more) as first:
        if not shares_transactions:
            coordinate(first.bootstrap, groups == 1)
        with broker(folder / "2", 2, port, controller, *doors[1], **more) as second:
            if groups == 2:
                offsets = NewTopic(OFFSETS, 8, replica_assignment=[[2]] * 8, config={"cleanup.policy": "compact"})
                admin = AdminClient(_settings(first.bootstrap))
                admin.create_topics([offsets])[OFFSETS].result(SECONDS)
                _wait_for_groups(first.bootstrap)
            if shares_transactions:
                half, admin = TRANSACTION_PARTITIONS // 2, AdminClient(_settings(first.bootstrap))
                places = [[1]] * half + [[2]] * half
                state = NewTopic(
                    TRANSACTIONS, len(places), replica_assignment=places, config={"cleanup.policy": "compact"}
                )
                admin.create_topics([state])[TRANSACTIONS].result(SECONDS)
                coordinate(first.bootstrap, groups == 1)
            yield first, second


def coordinator_of(transactional_id: str) -> int:
    """The broker that coordinates it where transactions are shared: by Java's hash of a string."""
    hashed = 0
    for character in transactional_id:
        hashed = (31 * hashed + ord(character)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return 1 + abs(signed) % TRANSACTION_PARTITIONS // (TRANSACTION_PARTITIONS // 2)


def broker(
    folder: Path, number: int, port: int, controller: int, inside: str = "", outside: str = "", **more: str
) -> EmbeddedKafka:
    """One of them, not started; the first is the controller too.

    `inside` is one more place at which it listens, `host:port`, and `outside` what it says of it to its clients there.
    `more` are other settings, which have `_` for `.`.
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
        **{name.replace("_", "."): value for name, value in more.items()},
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
