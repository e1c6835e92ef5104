"""What Debezium and Kafka Connect have and deelog has not, or names otherwise, and what earlier versions had.

An error says by it what to write instead, or why there is nothing. The names are those of Debezium 3.7 and Connect 4.3.
"""

from __future__ import annotations

from typing import Final

_BUILTIN: Final = "deelog_connector.transforms.builtin"
_NO_FILE: Final = "signals are taken from the topic alone, which all nodes read: `deelog signal` writes to it"
_BY_CALL: Final = "a cache is captured where it is named, by cache.name or capture()"
_NO_DATABASE: Final = "it is of a connector for databases; a cache is named by cache.name"
_EACH_CLIENT: Final = "name it for each client: producer.override.{0}, consumer.override.{0} and admin.override.{0}"
_ENDLESS: Final = "what Kafka refuses for a while is tried again until it takes it"
_NO_WORKER: Final = "no worker of Connect runs here: progress is kept in <topic>.positions"
_TRANSACTIONS: Final = "changes are always written in transactions, each once"

NAMES: Final = {
    "topic.naming.strategy": "the change topic is always <topic.prefix><topic.delimiter><cache.name>",
    "cache.include.list": _BY_CALL,
    "cache.exclude.list": _BY_CALL,
    "signal.enabled.channels": "signals are taken from signal.kafka.topic, and leaving that empty turns them off",
    "signal.file": _NO_FILE,
    "signal.poll.interval.ms": _NO_FILE,
    "notification.enabled.channels": "notification.sink.topic.name turns notifications on",
    "key.converter.basic.auth.user.info": "value.converter.basic.auth.user.info is for keys as well",
    "key.converter.schema.registry.ssl.ca.location": (
        "value.converter.schema.registry.ssl.ca.location is for keys as well"
    ),
    "key.converter.auto.register.schemas": "value.converter.auto.register.schemas is for keys as well",
    "cache.controller.session.timeout.ms": "it is three times cache.failure.timeout.ms",
    "extended.headers.enabled": "records have the header of deelog; a transform adds others",
    "rest.ssl.key.password": "the key must not be encrypted: keep its file where the process alone may read it",
    "diff.sinks": "the diff topic is always written, parquet with diff.parquet.path, a table with diff.jdbc.url",
    "diff.jdbc.driver": "the driver is the one registered by its jar that takes diff.jdbc.url",
    "diff.metrics.host": "metrics.host is for all ports of metrics",
    "errors.deadletterqueue.topic.replication.factor": "topic.creation.default.replication.factor is for all topics",
    "errors.deadletterqueue.context.headers.enable": "dead letters always say where they were and why they are there",
    "errors.log.enable": "the first dead letter of each partition and batch is logged, and how many there were",
    "diff.state.backend": "the diff topic is all the state there is of keys and values",
    "tasks.max": "a node writes what it owns: with more nodes there are more tasks",
    "exactly.once.support": _TRANSACTIONS,
    "transaction.boundary": _TRANSACTIONS,
    "provide.transaction.metadata": "a cache has no transactions of several keys to tell of",
    "poll.interval.ms": "changes are taken as they come, and committed every commit.interval.ms",
    "max.poll.records": "max.batch.size is the most entries of one transaction",
    "database.server.name": "its name is topic.prefix",
    "signal.data.collection": "a cache has no table for signals: they are taken from signal.kafka.topic",
    "snapshot.fetch.size": "incremental.snapshot.chunk.size is the number of rows in one chunk",
    "incremental.snapshot.watermarking.strategy": "a chunk is read between two changes: it needs no watermarks",
    "heartbeat.action.query": "a cache has no queries; heartbeat.interval.ms turns heartbeats on",
    "topic.heartbeat.prefix": "heartbeats are on __debezium-heartbeat.<topic.prefix>",
    "topic.creation.enable": "topics that are not there are always created, with topic.creation.default.*",
    "errors.retry.timeout": _ENDLESS,
    "errors.retry.delay.max.ms": _ENDLESS,
    "errors.log.include.messages": "values of a cache are never logged",
    "header.converter": "headers are text or bytes, as a transform gives them",
    "plugin.path": "transforms are Python: put their folder into PYTHONPATH",
    "group.id": _NO_WORKER,
    "schema.name.adjustment.mode": "names of schemas are always adjusted for Avro",
    "field.name.adjustment.mode": "values are what the cache has: none of their fields is renamed",
    "skip.messages.without.change.columns": "skip.messages.without.change compares whole values",
}
"""By name why there is no such field, as an error goes on behind it."""

PREFIXES: Final = {
    "schema.history.internal.": "a cache has no DDL, and so no history of schemas",
    "offset.storage": _NO_WORKER,
    "config.storage.": _NO_WORKER,
    "status.storage.": _NO_WORKER,
    "database.": _NO_DATABASE,
    "table.": _NO_DATABASE,
    "schema.include.list": _NO_DATABASE,
    "schema.exclude.list": _NO_DATABASE,
    "collection.": _NO_DATABASE,
    "column.": "values are what the cache has: a transform masks or leaves out fields",
    "message.key.columns": "the key of a record is the key of the entry",
    "decimal.handling.mode": "values are what the cache has: they have no types of columns",
    "time.precision.mode": "values are what the cache has: they have no types of columns",
    "snapshot.": "snapshot.mode alone says what is sent at the start, and signals ask for more",
    "slot.": _NO_DATABASE,
    "publication.": _NO_DATABASE,
    "plugin.name": _NO_DATABASE,
    "mongodb.": _NO_DATABASE,
    "topic.creation.": "all topics are created with topic.creation.default.*",
    "custom.metric.tags": "metrics have the labels of the cache; Prometheus adds others",
}
"""The same for names that begin so, unless they are in `NAMES`."""

_CLIENTS: Final = ("security.", "sasl.", "ssl.")

CONVERTERS: Final = {
    "org.apache.kafka.connect.json.JsonConverter": "json is what it writes",
    "org.apache.kafka.connect.storage.StringConverter": "json is the nearest, a record is a document",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "json is the nearest, see binary.handling.mode for bytes",
    "io.confluent.connect.avro.AvroConverter": "avro is what it writes",
    "io.apicurio.registry.utils.converter.AvroConverter": "avro writes Confluent's format, which Apicurio serves, too",
    "io.confluent.connect.json.JsonSchemaConverter": "json and schemas.enable carry a schema, but need no registry",
    "io.confluent.connect.protobuf.ProtobufConverter": "Protobuf is not written; avro has a registry, too",
    "io.debezium.converters.CloudEventsConverter": "cloudevents is what it writes, for values",
    "io.debezium.converters.BinaryDataConverter": "json is the nearest, see binary.handling.mode for bytes",
}
"""By class of a converter what to write instead."""
SNAPSHOT_MODES: Final = {
    "schema_only": "no_data is its name now",
    "never": "no_data is its name now",
    "schema_only_recovery": "there is no schema to recover",
    "recovery": "there is no schema to recover",
    "when_needed": "initial sends again what is needed, as all of them do",
    "configuration_based": "there is data alone, and no schema",
    "custom": "initial, always, no_data and signals are all there is",
}
"""By the value of `snapshot.mode` what to write instead."""

_OWN: Final = "write a class of your own, see docs/transforms.md"
_TOPIC: Final = "a record stays on the topic and partition of its segment, or readers miss it"
_KEY: Final = "the key of a record is that of the entry, and names its segment"
_BEHIND: Final = "readers need the envelope: use it behind the topic, in a sink or stream that takes it"
_TYPES: Final = {
    "MaskField": f"{_BUILTIN}.MaskField does that",
    "ReplaceField": f"{_BUILTIN}.ReplaceField does that",
    "Filter": f"{_BUILTIN}.Filter does that, with a predicate",
    "TopicNameMatches": f"{_BUILTIN}.TopicNameMatches does that",
    "RecordIsTombstone": f"{_BUILTIN}.OperationIs with operations=d is for deletes; a tombstone follows its delete",
    "RegexRouter": _TOPIC,
    "TimestampRouter": _TOPIC,
    "ByLogicalTableRouter": _TOPIC,
    "ContentBasedRouter": _TOPIC,
    "PartitionRouting": _TOPIC,
    "EventRouter": _TOPIC,
    "ValueToKey": _KEY,
    "ExtractNewRecordState": _BEHIND,
    "ExtractNewDocumentState": _BEHIND,
    "ExtractChangedRecordState": "the diff job tells what has changed",
    "SetSchemaMetadata": "schemas have the names of the topic, which readers find them by",
}


def reason(name: str) -> str:
    """Why a configuration has no field of this name, or what is in its place; empty where nothing is known of it."""
    if name in NAMES:
        return NAMES[name]
    if name.startswith(_CLIENTS):
        return _EACH_CLIENT.format(name)
    return next((why for prefix, why in PREFIXES.items() if name.startswith(prefix)), "")


def java_class(path: str) -> str:
    """Why the class of a transform or predicate cannot be imported; empty where it is none of Java's known ones."""
    name, _, part = path.partition("$")
    if not name.startswith(("org.apache.kafka.", "io.debezium.", "io.confluent.")):
        return ""
    short = name.rpartition(".")[2]
    return f"is a class of Java: {_KEY if part == 'Key' else _TYPES.get(short, _OWN)}"
