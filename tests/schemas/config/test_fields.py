"""The fields: their declarations hold together, and each takes what its page says."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_schemas.config import FIELDS, GROUPS, Type, parse
from deelog_schemas.config.field import REQUIRED
from deelog_schemas.config.fields import PLANNED, _converter
from deelog_schemas.config.secrets import is_secret
from tests.schemas.config.builders import GOOD, only_error


def test_every_default_is_what_its_own_field_would_parse() -> None:
    for field in FIELDS.values():
        if field.default_text:
            assert field.parse(field.default_text) == field.default, field.name


def test_the_declarations_hold_together() -> None:
    for field in FIELDS.values():
        assert field.group in GROUPS, field.name
        assert field.doc.endswith("."), field.name
        assert not set(field.allowed) & field.refused.keys(), field.name
        assert (field.type is Type.PASSWORD) <= is_secret(field.name), field.name
    assert not PLANNED & FIELDS.keys()


def test_keys_and_values_have_the_same_fields_for_their_converter() -> None:
    made = _converter("key", "json", "avro")
    assert [(field.name, field.default) for field in made] == [
        ("key.converter", "json"),
        ("key.converter.schemas.enable", False),
        ("key.converter.schema.registry.url", ()),
    ]
    assert made[0].allowed == ("json", "avro")
    for part in ("key", "value"):
        assert [name for name in FIELDS if name.startswith(f"{part}.converter")][:3] == [
            field.name for field in _converter(part)
        ]


def test_what_no_program_can_do_without() -> None:
    required = {field.name for field in FIELDS.values() if field.default is REQUIRED}
    assert required == {"topic.prefix", "bootstrap.servers", "node.id", "cache.name", "diff.checkpoint.location"}


BAD_VALUES: list[tuple[str, Any, str]] = [
    ("max.batch.size", 0, "from 1 to 1000000"),
    ("errors.max.retries", -2, "at least -1"),
    ("reader.max.lag.ms", 999, "at least 1000"),
    ("topic.creation.default.replication.factor", 0, "at least 1"),
    ("reset.interval.ms", 999, "at least 1000"),
    ("tombstones.on.delete", 1, "true or false"),
    ("oplog.overflow", "drop", "one of block, coalesce, reset"),
    ("cache.acks", -1, "one of all, 1, 0"),
    ("cache.policy", "ttl", "one of lru"),
    ("snapshot.mode", "sometimes", "must be one of initial, always"),
    ("reset.strategy", "replace", "must be one of marker, tombstones"),
    ("reset.strategy", "resend", "must be one of marker, tombstones: tombstones sends again what is needed"),
    ("snapshot.mode", "when_needed", "initial, always, no_data, initial_only: initial sends again what is needed"),
    (
        "connector.class",
        "deelog.InfinispanConnector",
        "must be one of deelog.CachetoolsConnector, deelog.RedisConnector: a later",
    ),
    ("connector.class", "io.debezium.connector.mysql.MySqlConnector", "must be one of deelog.CachetoolsConnector"),
    ("key.converter", "cloudevents", "one of json, avro"),
    ("value.converter", "protobuf", "one of json, avro, cloudevents"),
    ("value.converter", "io.confluent.connect.avro.AvroConverter", "one of json, avro, cloudevents"),
    ("key.converter.schema.registry.url", "registry:8081", "http://HOST or https://HOST"),
    ("value.converter.schema.registry.url", "http://r:8081,ftp://r", "http://HOST or https://HOST"),
    ("diff.jdbc.url", "postgresql://db/app", "matches jdbc:"),
    ("diff.jdbc.table", "Entries", "matches"),
    ("diff.jdbc.table", 'a"b', "matches"),
    ("diff.parquet.path", "s3a://bucket/x", "must be a directory that is mounted"),
    ("diff.checkpoint.location", "hdfs://n:8020/x", "must be a directory that is mounted"),
    ("errors.tolerance", "some", "one of none, all"),
    ("errors.deadletterqueue.topic.name", "a b", "matches"),
    ("event.processing.failure.handling.mode", "ignore", "must be one of fail, skip, warn, dead-letter"),
    ("binary.handling.mode", "utf8", "must be one of bytes, base64, base64-url-safe, hex"),
    ("skipped.operations", "t", "must be a comma separated list of none, c, u, d"),
    ("skipped.operations", "", "must not be empty"),
    ("skipped.operations", "none,c", "must be none alone, or some of c, u, d"),
    ("topic.creation.default.cleanup.policy", ",", "must not be empty"),
    ("metrics.host", " ", "must not be empty"),
    ("topic.prefix", "a b", "matches"),
    ("topic.prefix", "", "must not be empty"),
    ("topic.delimiter", "/", "matches"),
    ("node.id", "a.b", "matches"),
    ("node.id", "x" * 65, "matches"),
    ("node.id", "n1\nn2", "matches"),
    ("cache.name", "sess/ions", "matches"),
    ("bootstrap.servers", "localhost:0", "HOST:PORT"),
    ("cache.listen", "6379", "HOST:PORT"),
    ("cache.peer.listen", "host:65536", "HOST:PORT"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD_VALUES, ids=[f"{n}={v!s:.20}" for n, v, _ in BAD_VALUES])
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: Any, words: str) -> None:
    error = only_error(GOOD | {name: value})
    assert error.field == name
    assert words in error.problem
    assert len(str(error)) < 500


def test_a_directory_may_be_an_address_of_a_mounted_one() -> None:
    for field in ("diff.checkpoint.location", "diff.parquet.path"):
        assert parse(GOOD | {field: "file:///data/x"})[field] == "file:///data/x"
