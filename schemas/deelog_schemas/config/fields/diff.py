"""The Spark job."""

from __future__ import annotations

import re

from deelog_schemas.config.field import Field, Type
from deelog_schemas.config.fields.roles import DIFF_ONLY, HIGH, LOW
from deelog_schemas.config.fields.shapes import directory, has_kafka

DIFF = [
    Field(
        name="diff.topic",
        type=Type.STRING,
        group="diff",
        default=None,
        derived="`<topic.prefix>.<cache.name>.diff`",
        doc="Topic that the Spark job writes.",
    ),
    Field(
        name="diff.sinks",
        type=Type.LIST,
        group="diff",
        default=("kafka",),
        allowed=("kafka", "parquet", "jdbc"),
        check=has_kafka,
        doc="Where the Spark job writes. `kafka` is always among them.",
    ),
    Field(
        name="diff.parquet.path",
        type=Type.STRING,
        group="diff",
        default=None,
        check=directory,
        doc="Directory of the parquet sink. Required where `diff.sinks` names it.",
    ),
    Field(
        name="diff.jdbc.url",
        type=Type.STRING,
        group="diff",
        default=None,
        pattern=re.compile(r"jdbc:[A-Za-z0-9_-]+:.+", re.DOTALL),
        doc="JDBC address of the database of the jdbc sink, PostgreSQL or SQLite, as its driver takes it. Required "
        "where `diff.sinks` names jdbc. Keep the password out of it: `diff.jdbc.password`.",
    ),
    Field(
        name="diff.jdbc.table",
        type=Type.STRING,
        group="diff",
        default="deelog_entries",
        pattern=re.compile(r"([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,53}"),
        doc="Table of the jdbc sink, `schema.table` or `table`; created if it is missing. It holds what the cache "
        "holds, a row per key. Several caches may share it.",
    ),
    Field(
        name="diff.jdbc.user",
        type=Type.STRING,
        group="diff",
        default=None,
        doc="User of the jdbc sink's database.",
    ),
    Field(
        name="diff.jdbc.password",
        type=Type.PASSWORD,
        group="diff",
        default=None,
        doc="Password of the jdbc sink's database.",
    ),
    Field(
        name="diff.jdbc.driver",
        type=Type.STRING,
        group="diff",
        default=None,
        importance=LOW,
        doc="Class of the JDBC driver; by default the first that takes `diff.jdbc.url`.",
    ),
    Field(
        name="diff.checkpoint.location",
        type=Type.STRING,
        group="diff",
        roles=DIFF_ONLY,
        importance=HIGH,
        check=directory,
        doc="Directory of the Spark job's checkpoint, on storage that outlives the job.",
    ),
    Field(
        name="diff.state.backend",
        type=Type.ENUM,
        group="diff",
        default="topic",
        allowed=("topic",),
        planned=("rocksdb",),
        doc="Where the Spark job finds what it has told so far: the diff topic.",
    ),
    Field(
        name="on.data.loss",
        type=Type.ENUM,
        group="diff",
        default="fail",
        allowed=("fail", "reset"),
        doc="When records that the job needs are gone from the change topic: stop, or hold the segment and ask its "
        "owner for a reset.",
    ),
    Field(
        name="errors.tolerance",
        type=Type.ENUM,
        group="diff",
        default="none",
        allowed=("none", "all"),
        doc="A change of ours whose key or value cannot be decoded: stop (`none`), or put it on the dead-letter topic "
        "and go on (`all`). What is not ours, and what stands inside a reset, stops the job whatever this says.",
    ),
    Field(
        name="errors.deadletterqueue.topic.name",
        type=Type.STRING,
        group="diff",
        default=None,
        pattern=re.compile(r"[A-Za-z0-9._-]{1,249}"),
        doc="The dead-letter topic, created if it is missing, with one partition. Required with `errors.tolerance=all` "
        "and with `event.processing.failure.handling.mode=dead-letter`.",
    ),
    Field(
        name="errors.deadletterqueue.topic.replication.factor",
        type=Type.INT,
        group="diff",
        default=3,
        low=1,
        high=32_767,
        doc="Replication factor with which the dead-letter topic is created.",
    ),
    Field(
        name="errors.deadletterqueue.context.headers.enable",
        type=Type.BOOLEAN,
        group="diff",
        default=True,
        doc="Whether dead letters say, in headers `__connect.errors.*`, where they stood and why they are dead. "
        "Connect's own default is false.",
    ),
    Field(
        name="errors.log.enable",
        type=Type.BOOLEAN,
        group="diff",
        default=False,
        doc="Whether each dead letter is logged; else their number, and the first of each partition and batch.",
    ),
    Field(
        name="diff.trigger.interval.ms",
        type=Type.INT,
        group="diff",
        default=500,
        low=0,
        high=3_600_000,
        doc="Time from the start of one batch to the start of the next.",
    ),
    Field(
        name="diff.max.offsets.per.trigger",
        type=Type.LONG,
        group="diff",
        default=2_000_000,
        low=1,
        doc="Most records of the change topic in one batch.",
    ),
    Field(
        name="diff.metrics.port",
        type=Type.INT,
        group="diff",
        default=0,
        low=0,
        high=65_535,
        doc="Port of `/metrics` for Prometheus; 0 is none.",
    ),
    Field(
        name="diff.metrics.host",
        type=Type.STRING,
        group="diff",
        default="127.0.0.1",
        doc="Address that `diff.metrics.port` is bound to; `0.0.0.0` is all.",
    ),
]
