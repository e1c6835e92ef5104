"""Writes one record outside any transaction. It blocks."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka.client import common_settings, failure, hear, opened
from deelog_connector.kafka_port import REQUEST_SECONDS
from deelog_schemas.config import Config

_LOOK_SECONDS: Final = 0.1


def publish(config: Config, topic: str, key: str, value: bytes, seconds: float = REQUEST_SECONDS) -> None:
    """See `kafka_port.Brokers`. Gives up before `seconds` have passed where waiting cannot help."""
    failures: list[KafkaError] = []

    def report(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    settings = {**common_settings(config), "linger.ms": 0, **dict(config.overrides("producer"))}
    settings |= {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0}
    producer, connections = opened(Producer, "producer", settings)
    what = f"topic {topic}: {key} cannot be written"
    try:
        producer.produce(topic, value, key, partition=0, on_delivery=report)
    except KafkaException as error:
        raise failure(what, error, connections, topic=("Write", topic)) from error
    left, waited = 1, 0.0
    try:
        while left and waited < seconds and not connections.hopeless:
            left = int(producer.flush(_LOOK_SECONDS))
            waited += _LOOK_SECONDS
    except KafkaException as error:  # fatal: the user may write nothing at all
        raise failure(what, error, connections, topic=("Write", topic)) from error
    if failures:
        raise failure(what, KafkaException(failures[0]), connections, topic=("Write", topic))
    if left:
        hear(producer, connections)
        producer.purge()
        raise KafkaUnavailable(f"{what}: {connections.why}")
