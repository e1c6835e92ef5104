"""A dead letter: the change as it was captured, with the reason in Connect's headers."""

from __future__ import annotations

from deelog_connector.transforms.dead_letters import DeadLetterEncoder
from deelog_connector.transforms.pipeline import DeadLetter
from deelog_schemas.envelope import JsonCodec, Stamp
from deelog_schemas.header import Kind, unpack
from deelog_schemas.operation import Entry, Operation
from tests.connector.cache import config_of

CONFIG = config_of("h:1", "p", errors_deadletterqueue_topic_name="dead", name="shop")
CODEC, STAMP = JsonCodec("p.c", "shop", "", ""), Stamp(5, "n1", 99)
CHANGE = Operation(3, 17, "put", b"k", b"v", None, 7, False)
WHY = {
    "topic": "p.c",
    "partition": "2",
    "connector.name": "shop",
    "stage": "TRANSFORMATION",
    "class.name": "mine.Transform",
    "exception.class.name": "ValueError",
    "exception.message": "no",
}


def test_a_change_is_as_it_was_captured() -> None:
    letter = DeadLetter(CHANGE, (0, 0), "", "mine.Transform", "no", "ValueError")
    record = DeadLetterEncoder(CONFIG).record(letter, CODEC, 5, 2, 4, STAMP)
    assert (record.topic, record.partition, record.key) == ("dead", 0, CODEC.key(b"k"))
    assert record.value == CODEC.change(CHANGE, STAMP)
    (name, packed), *headers = record.headers
    assert isinstance(packed, bytes)
    header = unpack(packed)
    assert (name, header.kind, header.segment, header.epoch, header.sequence) == ("deelog", Kind.CHANGE, 5, 3, 17)
    assert header.node == 4
    assert dict(headers) == {f"__connect.errors.{key}": value for key, value in WHY.items()}


def test_a_row_of_a_reset_is_at_the_position_of_the_reset() -> None:
    entry = Entry(b"k", b"v", 7)
    letter = DeadLetter(entry, (3, 20), "signal", "mine.Transform", "no", "")
    record = DeadLetterEncoder(CONFIG).record(letter, CODEC, 5, 2, 4, STAMP)
    assert record.value == CODEC.row(entry, (3, 20), "true", "signal", STAMP)
    (_, packed), *headers = record.headers
    assert isinstance(packed, bytes)
    header = unpack(packed)
    assert (header.kind, header.segment, header.epoch, header.sequence) == (Kind.READ, 5, 3, 20)
    assert dict(headers)["__connect.errors.exception.class.name"] == ""
