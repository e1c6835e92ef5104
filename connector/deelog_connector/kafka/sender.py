"""Writes one record to the signal topic."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deelog_connector.errors import KafkaUnusable
from deelog_connector.kafka.client import common_settings, opened
from deelog_connector.kafka_port import REQUEST_SECONDS
from deelog_schemas.config import Config
from deelog_schemas.kafka.acls import missing_acl


def send(config: Config, value: bytes) -> None:
    """Produces one signal under the key `topic.prefix`; raises `KafkaUnusable` where no broker acknowledges it."""
    failures: list[str] = []

    def report(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(missing_acl(error, "producer", topic=("Write", topic)) or error.str())

    topic = config.topics.signal
    settings = {**common_settings(config), **dict(config.overrides("producer")), "acks": "all"}
    producer, connections = opened(Producer, "producer", settings)
    try:
        producer.produce(topic, value, config["topic.prefix"], partition=0, on_delivery=report)
        left = producer.flush(REQUEST_SECONDS)
    except KafkaException as error:
        raise KafkaUnusable(f"topic {topic}: {error.args[0].str()}") from error
    if left or failures:
        raise KafkaUnusable(f"topic {topic}: {failures[0] if failures else connections.why or 'no broker answered'}")
