"""Names of Debezium and Connect that deelog has not: the error says what is in their place."""

from __future__ import annotations

import pytest

from deelog_schemas.config import FIELDS
from deelog_schemas.config.fields import PLANNED
from deelog_schemas.config.foreign import CONVERTERS, NAMES, PREFIXES, SNAPSHOT_MODES, java_class, reason
from tests.schemas.config.builders import GOOD, only_error

STOCK = (
    "Cast", "DropHeaders", "ExtractField", "Filter", "Flatten", "HeaderFrom", "HoistField", "InsertField",
    "InsertHeader", "MaskField", "RegexRouter", "ReplaceField", "SetSchemaMetadata", "TimestampConverter",
    "TimestampRouter", "ValueToKey",
    "predicates.HasHeaderKey", "predicates.RecordIsTombstone", "predicates.TopicNameMatches",
)  # fmt: skip
"""Those that come with Kafka Connect."""


def test_no_field_is_refused_by_its_name() -> None:
    assert not NAMES.keys() & FIELDS.keys()
    assert not NAMES.keys() & PLANNED
    for texts in (NAMES, PREFIXES, CONVERTERS, SNAPSHOT_MODES):
        assert not [text for text in texts.values() if text.endswith(".") or text[0].isspace()]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tasks.max", "a node writes what it owns"),
        ("database.server.name", "its name is topic.prefix"),
        ("database.hostname", "it is of a connector for databases; a cache is named by cache.name"),
        ("table.include.list", "it is of a connector for databases"),
        ("schema.history.internal.kafka.topic", "a cache has no DDL"),
        ("security.protocol", "name it for each client: producer.override.security.protocol, consumer.override.sec"),
        ("sasl.jaas.config", "name it for each client: producer.override.sasl.jaas.config"),
        ("ssl.truststore.location", "name it for each client"),
        ("snapshot.locking.mode", "snapshot.mode alone says what is sent at the start"),
        ("offset.storage.topic", "no worker of Connect runs here"),
        ("topic.creation.groups", "all topics are created with topic.creation.default.*"),
        ("errors.log.enable", "the first dead letter of each partition and batch is logged"),
    ],
)
def test_a_name_of_theirs_is_answered_with_ours_or_the_reason(name: str, words: str) -> None:
    error = only_error({**GOOD, name: "x"})
    assert str(error).startswith(f"{name}: is no field of deelog: {words}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("snapshot.modes", "snapshot.mode"),
        ("topic.creation.default.partition", "topic.creation.default.partitions"),
        ("errors.max.retrys", "errors.max.retries"),
    ],
)
def test_a_slip_in_a_name_of_ours_is_still_one(name: str, meant: str) -> None:
    assert str(only_error({**GOOD, name: "x"})) == f"{name}: is no field of deelog; did you mean {meant}?"


def test_of_other_names_nothing_is_known() -> None:
    assert (reason("tombstones.on.delte"), reason("my.own")) == ("", "")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "value.converter",
            "org.apache.kafka.connect.json.JsonConverter",
            "must be one of json, avro, cloudevents: json",
        ),
        (
            "key.converter",
            "io.confluent.connect.avro.AvroConverter",
            "must be one of json, avro: avro is what it writes",
        ),
        ("value.converter", "io.confluent.connect.protobuf.ProtobufConverter", "Protobuf is not written"),
        ("snapshot.mode", "schema_only", "no_data is its name now"),
        ("snapshot.mode", "never", "no_data is its name now"),
        ("snapshot.mode", "when_needed", "initial sends again what is needed"),
    ],
)
def test_a_value_of_theirs_is_answered_with_ours(field: str, value: str, words: str) -> None:
    assert words in str(only_error({**GOOD, field: value}))


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("part", ["", "$Value", "$Key"])
def test_a_transform_of_connect_is_a_class_of_java(name: str, part: str) -> None:
    why = java_class(f"org.apache.kafka.connect.transforms.{name}{part}")
    assert why.startswith("is a class of Java: ")
    assert ("names its segment" in why) >= (part == "$Key")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("org.apache.kafka.connect.transforms.MaskField$Value", "deelog_connector.transforms.builtin.MaskField does"),
        ("io.debezium.transforms.Filter", "deelog_connector.transforms.builtin.Filter does that, with a predicate"),
        ("io.debezium.transforms.ExtractNewRecordState", "readers need the envelope"),
        ("io.debezium.transforms.outbox.EventRouter", "a record stays on the topic and partition of its segment"),
        ("io.confluent.connect.transforms.Drop", "write a class of your own, see docs/transforms.md"),
        ("my_transforms.Mask", ""),
        ("org.apache.other.Mask", ""),
    ],
)
def test_the_class_of_a_transform(path: str, words: str) -> None:
    assert words in java_class(path)
    assert bool(java_class(path)) == bool(words)
