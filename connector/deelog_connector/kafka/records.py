"""Records to and from Kafka, and the error of a transaction."""

from __future__ import annotations

from typing import NamedTuple, cast

from confluent_kafka import Message

from deelog_connector.core.effects import Cause


class OutRecord(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


class InRecord(NamedTuple):
    """One record read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


class WriteFailed(Exception):
    """A transaction was not committed. `cause` is what the core may assume; `denied`: this user may not write."""

    def __init__(self, cause: Cause, reason: str, *, denied: bool = False) -> None:
        super().__init__(f"{cause}: {reason}")
        self.cause, self.denied = cause, denied


def record_of(message: Message) -> InRecord:
    """A message without an error."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    # The client gives a list of pairs, and values as bytes, for records that it read.
    headers = cast("list[tuple[str, bytes | None]] | None", message.headers())
    return InRecord(topic, partition, offset, message.key(), message.value(), headers)


__all__ = ["InRecord", "OutRecord", "WriteFailed", "record_of"]
