"""Names, Kafka and the format of records: what all that touch the topics must agree on."""

from __future__ import annotations

import re

from deelog_schemas.config.field import Field, Importance, Type
from deelog_schemas.config.fields.roles import HIGH, LOW
from deelog_schemas.config.fields.shapes import addresses, all_servers, not_empty

IDENTITY = [
    Field(
        name="name",
        type=Type.STRING,
        group="identity",
        default="deelog",
        doc="Name of the connector in logs and metrics.",
    ),
    Field(
        name="connector.class",
        type=Type.CLASS,
        group="identity",
        default="deelog.CachetoolsConnector",
        allowed=("deelog.CachetoolsConnector",),
        planned=("deelog.RedisConnector", "deelog.InfinispanConnector"),
        doc="Which caches are captured.",
    ),
    Field(
        name="topic.prefix",
        type=Type.STRING,
        group="identity",
        importance=HIGH,
        pattern=re.compile(r"[A-Za-z0-9._-]{1,200}"),
        doc="First part of the name of every topic, and `source.name` of every record. Never change it: with another "
        "prefix nothing that was written before is found.",
    ),
    Field(
        name="topic.delimiter",
        type=Type.STRING,
        group="identity",
        default=".",
        importance=LOW,
        pattern=re.compile(r"[._-]{1,8}"),
        doc="What stands between prefix, cache and suffix in the names of topics.",
    ),
    Field(
        name="topic.naming.strategy",
        type=Type.STRING,
        group="identity",
        default=None,
        importance=LOW,
        pattern=re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII),
        doc="Dotted path of a Python function `(prefix, delimiter, cache) -> topic` that names the change topic of a "
        "cache, and with it the topics that have its name and a suffix. The same on every node and for the Spark job, "
        "which import it; it must always give the same answer, and another one for every cache. Without it: "
        "`<topic.prefix><topic.delimiter><cache.name>`.",
    ),
    Field(
        name="cache.include.list",
        type=Type.REGEX_LIST,
        group="identity",
        default=(),
        doc="Regular expressions, each matched against the whole name of a cache: those that match are captured. "
        "Not together with `cache.exclude.list`.",
    ),
    Field(
        name="cache.exclude.list",
        type=Type.REGEX_LIST,
        group="identity",
        default=(),
        doc="Regular expressions, each matched against the whole name of a cache: those that match are not captured. "
        "Not together with `cache.include.list`.",
    ),
]

KAFKA = [
    Field(
        name="bootstrap.servers",
        type=Type.LIST,
        group="kafka",
        importance=HIGH,
        check=all_servers,
        doc='Brokers to begin with. As a string for a client: `",".join(config["bootstrap.servers"])`.',
    ),
    Field(
        name="topic.creation.default.partitions",
        type=Type.INT,
        group="kafka",
        default=8,
        low=1,
        high=16384,
        importance=HIGH,
        doc="Partitions of the change, positions and diff topics when deelog creates them. A topic that exists keeps "
        "its own number, which never may change: the place of every segment follows from it.",
    ),
    Field(
        name="topic.creation.default.replication.factor",
        type=Type.INT,
        group="kafka",
        default=-1,
        low=-1,
        high=32767,
        check=lambda n: "must be -1 (the broker's default) or at least 1" if n == 0 else None,
        doc="Replicas of topics that deelog creates; -1 is the broker's default.",
    ),
    Field(
        name="topic.creation.default.cleanup.policy",
        type=Type.LIST,
        group="kafka",
        default=("compact",),
        allowed=("compact", "delete"),
        check=not_empty,
        doc="`compact` keeps the last record of every key, `delete` drops old records; both are possible, separated "
        "by a comma. For the change topic; the others are always compacted.",
    ),
    Field(
        name="topic.audit",
        type=Type.ENUM,
        group="kafka",
        default="warn",
        allowed=("warn", "strict"),
        doc="What to do at start about a topic whose settings put data at risk (`min.insync.replicas` 1, unclean "
        "leader election, lags below `reader.max.lag.ms`): warn, or refuse to start.",
    ),
    Field(
        name="reader.max.lag.ms",
        type=Type.LONG,
        group="kafka",
        default=604_800_000,
        low=1000,
        doc="How far a reader may be behind, in milliseconds. Topics are created with `min.compaction.lag.ms` and "
        "`delete.retention.ms` of this much; a reader further behind starts over from the base offsets.",
    ),
    Field(
        name="transaction.timeout.ms",
        type=Type.INT,
        group="kafka",
        default=5000,
        low=1000,
        high=900_000,
        doc="After this the broker aborts a transaction that its node left open. A paused node hides the records of "
        "all others from readers for as long. Must be longer than `commit.interval.ms`.",
    ),
]

FORMAT = [
    Field(
        name=f"{part}.converter{suffix}",
        type=kind,
        group="format",
        default=default,
        importance=importance,
        allowed=allowed,
        check=check,
        doc=doc,
    )
    for part, formats in (("key", ("json", "avro")), ("value", ("json", "avro", "cloudevents")))
    for suffix, kind, default, importance, allowed, check, doc in (
        ("", Type.ENUM, "json", HIGH, formats, None, f"How the {part} of a record is written: see docs/formats.md."),
        (
            ".schemas.enable",
            Type.BOOLEAN,
            False,
            Importance.MEDIUM,
            (),
            None,
            f'Write the {part} as `{{"schema": …, "payload": …}}`, for consumers that need the schema in each record. '
            "Not with avro, which always has one.",
        ),
        (
            ".schema.registry.url",
            Type.LIST,
            (),
            HIGH,
            (),
            addresses,
            f"Schema registry for the {part} with `{part}.converter=avro`, with Confluent's API; of several addresses "
            "the next is asked where one does not answer. Without it the pinned schemas of deelog are used.",
        ),
        (
            ".basic.auth.user.info",
            Type.PASSWORD,
            None,
            Importance.MEDIUM,
            (),
            None,
            "`user:password` for the schema registry.",
        ),
        (
            ".schema.registry.ssl.ca.location",
            Type.STRING,
            None,
            Importance.MEDIUM,
            (),
            None,
            "File or directory of the certificate authorities that the schema registry is trusted by, PEM; by default "
            "what SSL_CERT_FILE or SSL_CERT_DIR names, else those that come with certifi.",
        ),
        (
            ".auto.register.schemas",
            Type.BOOLEAN,
            True,
            Importance.MEDIUM,
            (),
            None,
            "Register our schemas at start. With false they must be registered already.",
        ),
    )
]

FORMAT.append(
    Field(
        name="extended.headers.enabled",
        type=Type.BOOLEAN,
        group="format",
        default=False,
        doc="Write Debezium's headers `__debezium.context.connectorLogicalName`, `.taskId`, `.connectorName` and "
        "`.runId` on every change, tombstone and row. Debezium's own default is true; here they are left out for their "
        "cost.",
    )
)
