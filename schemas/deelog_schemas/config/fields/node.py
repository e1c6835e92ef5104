"""A node beside its capture: the grid, and what it tells and is told."""

from __future__ import annotations

import re

from deelog_schemas.config.field import Field, Type
from deelog_schemas.config.fields.roles import HIGH, LOW, NODE, WITH_CACHE
from deelog_schemas.config.fields.shapes import address

GRID = [
    Field(
        name="node.id",
        type=Type.STRING,
        group="grid",
        roles=NODE,
        importance=HIGH,
        pattern=re.compile(r"[A-Za-z0-9_-]{1,64}"),
        doc="Name of this node, no two alike and the same after a restart: Kafka fences the older of two.",
    ),
    Field(
        name="cache.name",
        type=Type.STRING,
        group="grid",
        roles=WITH_CACHE,
        importance=HIGH,
        pattern=re.compile(r"[A-Za-z0-9._-]{1,200}"),
        doc="Name of the cache; its topic is `<topic.prefix>.<cache.name>`. Must not end with positions, topology or "
        "diff.",
    ),
    Field(
        name="cache.policy",
        type=Type.ENUM,
        group="grid",
        default="lru",
        allowed=("lru", "lfu", "fifo", "rr"),
        doc="What is evicted from a full cache: the least recently used entry, the least frequently used, the oldest, "
        "or any (`rr`). Expiry is per entry, with any of them.",
    ),
    Field(
        name="cache.max.entries",
        type=Type.LONG,
        group="grid",
        default=1_000_000,
        low=1,
        importance=HIGH,
        doc="Most entries of the whole cache, on all nodes, each counted once whatever the number of its backups. They "
        "are spread evenly: a segment evicts beyond its share of `cache.max.entries` divided by `segment.count`, "
        "rounded down, so eviction in one segment may begin a little before the cache is full. At least "
        "`segment.count`.",
    ),
    Field(
        name="cache.backups",
        type=Type.INT,
        group="grid",
        default=1,
        low=0,
        high=7,
        importance=HIGH,
        doc="Copies of each entry beside the primary's. With 0, every loss of a node is repaired by resets.",
    ),
    Field(
        name="cache.listen",
        type=Type.STRING,
        group="grid",
        default="127.0.0.1:6379",
        check=address,
        importance=HIGH,
        doc="Where clients of the Redis protocol connect; port 0 takes any free one.",
    ),
    Field(
        name="cache.peer.listen",
        type=Type.STRING,
        group="grid",
        default="127.0.0.1:0",
        check=address,
        doc="Where the other nodes connect; port 0 takes any free one, and the others learn it from Kafka. There is no "
        "password: keep it in a network of your own.",
    ),
    Field(
        name="cache.advertised.host",
        type=Type.STRING,
        group="grid",
        default=None,
        derived="the host of `cache.listen`",
        pattern=re.compile(r"[A-Za-z0-9.:_-]{1,253}"),
        doc="The name or address by which clients and nodes reach this node. Required where `cache.listen` or "
        "`cache.peer.listen` names all interfaces (`0.0.0.0`, `[::]`).",
    ),
    Field(
        name="unclean.election",
        type=Type.BOOLEAN,
        group="grid",
        default=False,
        doc="Let a node that is not in sync take a segment while an in-sync one may still be alive. What it does not "
        "hold is lost, and reset.",
    ),
    Field(
        name="cache.controller.session.timeout.ms",
        type=Type.INT,
        group="grid",
        default=6000,
        low=100,
        high=300_000,
        doc="After this without a sign of life the controller's place goes to another node. The broker's "
        "`group.min.session.timeout.ms` (6000) must allow less.",
    ),
    Field(
        name="cache.failure.timeout.ms",
        type=Type.INT,
        group="grid",
        default=2000,
        low=100,
        high=300_000,
        doc="After this without a heartbeat the controller declares a node dead and gives its segments to others.",
    ),
]

OBSERVE = [
    Field(
        name="heartbeat.interval.ms",
        type=Type.INT,
        group="observe",
        default=5000,
        low=100,
        high=3_600_000,
        doc="The written position of an idle segment is renewed this often, so that silence and progress differ; and "
        "a heartbeat is written to `__debezium-heartbeat.<topic.prefix>`, as Debezium does.",
    ),
    Field(
        name="signal.enabled.channels",
        type=Type.LIST,
        group="observe",
        default=("kafka",),
        allowed=("kafka", "file"),
        planned=("source", "jmx", "in-process"),
        importance=LOW,
        doc="Where signals are taken from; empty for nowhere.",
    ),
    Field(
        name="signal.kafka.topic",
        type=Type.STRING,
        group="observe",
        default=None,
        derived="`<topic.prefix>-signal`",
        importance=LOW,
        doc="Topic of the signals; key `topic.prefix`, value `{id, type, data}`. One partition. It is read from its "
        "beginning at the start: it tells whether writing is paused, and which incremental snapshots go on.",
    ),
    Field(
        name="signal.file",
        type=Type.STRING,
        group="observe",
        default="file-signals.txt",
        importance=LOW,
        doc="File of signals for this process alone, one in a line, with `file` among `signal.enabled.channels`. What "
        "was read is taken out of the file.",
    ),
    Field(
        name="signal.poll.interval.ms",
        type=Type.INT,
        group="observe",
        default=5000,
        low=10,
        high=3_600_000,
        importance=LOW,
        doc="How often `signal.file` is looked at.",
    ),
    Field(
        name="notification.enabled.channels",
        type=Type.LIST,
        group="observe",
        default=(),
        allowed=("sink", "log"),
        planned=("jmx",),
        importance=LOW,
        doc="Where notifications go: to a topic (`sink`), or into the log at level INFO.",
    ),
    Field(
        name="notification.sink.topic.name",
        type=Type.STRING,
        group="observe",
        default=None,
        pattern=re.compile(r"[A-Za-z0-9._-]{1,249}"),
        importance=LOW,
        doc="Topic of the notifications, created with one partition if it is missing. Required where "
        "`notification.enabled.channels` names `sink`.",
    ),
]

METRICS = [
    Field(
        name="metrics.port",
        type=Type.INT,
        group="metrics",
        default=0,
        low=0,
        high=65_535,
        doc="Port of `/metrics` for Prometheus and of `/health`; 0 is none. Several captured caches of one process may "
        "name the same one.",
    ),
    Field(
        name="metrics.host",
        type=Type.STRING,
        group="metrics",
        default="127.0.0.1",
        check=lambda host: None if host.strip() else "must be a host or an address; 0.0.0.0 is all",
        doc="Address that `metrics.port` is bound to; `0.0.0.0` is all. There is no password: what is told there are "
        "numbers, names of caches and members, and error texts.",
    ),
    Field(
        name="tracing.headers.enabled",
        type=Type.BOOLEAN,
        group="metrics",
        default=False,
        importance=LOW,
        doc="Give each change the trace context of the write that made it, as the headers `traceparent` and "
        "`tracestate` (W3C). For caches captured in the application's own process, with `deelog[otel]`; clients of "
        "the grid have no way to send one.",
    ),
]

REST = [
    Field(
        name="rest.port",
        type=Type.INT,
        group="rest",
        default=0,
        low=0,
        high=65_535,
        doc="Port of the REST API, Kafka Connect's own is 8083; 0 is none.",
    ),
    Field(
        name="rest.host.name",
        type=Type.STRING,
        group="rest",
        default="127.0.0.1",
        pattern=re.compile(r"[A-Za-z0-9.:_-]{1,253}"),
        doc="Address that `rest.port` is bound to; `0.0.0.0` is all. Any but this machine's own needs a token or "
        "`rest.ssl.ca.location`.",
    ),
    Field(
        name="rest.token",
        type=Type.PASSWORD,
        group="rest",
        default=None,
        doc="Who may do everything sends `Authorization: Bearer` with it. At least 16 characters.",
    ),
    Field(
        name="rest.readonly.token",
        type=Type.PASSWORD,
        group="rest",
        default=None,
        doc="Who sends this one instead may look and change nothing. Needs `rest.token`.",
    ),
    Field(
        name="rest.ssl.certificate.location",
        type=Type.STRING,
        group="rest",
        default=None,
        doc="PEM file with the REST API's certificate and the chain behind it: HTTPS instead of HTTP.",
    ),
    Field(
        name="rest.ssl.key.location",
        type=Type.STRING,
        group="rest",
        default=None,
        doc="PEM file with the key of that certificate.",
    ),
    Field(
        name="rest.ssl.key.password",
        type=Type.PASSWORD,
        group="rest",
        default=None,
        doc="Password of that key.",
    ),
    Field(
        name="rest.ssl.ca.location",
        type=Type.STRING,
        group="rest",
        default=None,
        doc="PEM file with the authorities of clients' certificates: whoever connects must show one (mutual TLS).",
    ),
]
