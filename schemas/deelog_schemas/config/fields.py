"""Every field of the configuration, declared once, in the order in which the documentation shows them.

Words and shapes are Debezium's and Kafka Connect's where the meaning is the same. A field is here only when
something obeys it; `PLANNED` names those that a later version brings, so that the error can say so.
"""

from __future__ import annotations

import re
from typing import Final

from deelog_schemas.config.field import Field, Importance, Role, Type, words
from deelog_schemas.config.transforms import check_aliases

HIGH, LOW = Importance.HIGH, Importance.LOW
_NODE = frozenset({Role.NODE, Role.CONNECTOR})
_DIFF = frozenset({Role.DIFF})
_WITH_CACHE = frozenset({Role.NODE, Role.DIFF})

# librdkafka's own limit for one message, and what a record needs beside key and value: the envelope's source block,
# the key's repetitions, the header, the batch. The rest of the way to the topic's 1048588 is left to JSON's escapes.
CLIENT_MESSAGE_MAX_BYTES: Final = 1_000_000
RECORD_MARGIN_BYTES: Final = 20_000

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


def split_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair, brackets removed. Call it with values that were validated."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(text: str) -> str | None:
    if _HOST_PORT.fullmatch(text) and int(text.rpartition(":")[2]) <= 65535:
        return None
    return "must be HOST:PORT or [IPv6]:PORT, the port from 0 to 65535"


def _servers(servers: tuple[str, ...]) -> str | None:
    if servers and all(_address(server) is None and split_address(server)[1] > 0 for server in servers):
        return None
    return "must be HOST:PORT, several of them separated by commas"


def _addresses(urls: tuple[str, ...]) -> str | None:
    if not all(re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", url) for url in urls):
        return "must be http://HOST or https://HOST, with port and path as needed; several separated by commas"
    if any("@" in url for url in urls):
        return "must not hold a user or a password: set basic.auth.user.info of the same converter"
    return None


def _has_kafka(sinks: tuple[str, ...]) -> str | None:
    if "kafka" in sinks:
        return None
    return "must include kafka: what a reset removed is told from the diff topic"


def _not_empty(entries: tuple[str, ...]) -> str | None:
    return None if entries else "must not be empty"


def _operations(codes: tuple[str, ...]) -> str | None:
    if not codes:
        return "must not be empty: none is the word for nothing"
    return "must be none alone, or some of c, u, d" if "none" in codes and len(codes) > 1 else None


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
        check=_servers,
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
        check=_not_empty,
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

QUEUE = [
    Field(
        name="max.batch.size",
        type=Type.INT,
        group="queue",
        default=8192,
        low=1,
        high=1_000_000,
        doc="Most operations in one transaction.",
    ),
    Field(
        name="commit.interval.ms",
        type=Type.INT,
        group="queue",
        default=50,
        low=1,
        high=60_000,
        doc="A transaction is committed after this time at the latest.",
    ),
    Field(
        name="max.queue.size",
        type=Type.INT,
        group="queue",
        default=500_000,
        low=1,
        importance=HIGH,
        doc="Most operations in a node's op log, those of its backups included.",
    ),
    Field(
        name="max.queue.size.in.bytes",
        type=Type.LONG,
        group="queue",
        default=268_435_456,
        low=1,
        importance=HIGH,
        doc="Most bytes of keys and values in a node's op log. Must have room for one entry of `max.entry.bytes`.",
    ),
    Field(
        name="oplog.overflow",
        type=Type.ENUM,
        group="queue",
        default="block",
        allowed=("block", "coalesce", "reset"),
        importance=HIGH,
        doc="When the op log is full: `block` lets the writing client wait up to `max.block.ms`, then resets; "
        "`coalesce` gives up older acknowledged operations of a key for its newest one; `reset` drops the segment's "
        "operations and sends its whole state later.",
    ),
    Field(
        name="max.block.ms",
        type=Type.INT,
        group="queue",
        default=1000,
        low=0,
        doc="How long a write waits for room in the op log with `oplog.overflow=block`.",
    ),
]

CAPTURE = [
    Field(
        name="cache.acks",
        type=Type.ENUM,
        group="capture",
        default="all",
        allowed=("all", "1", "0"),
        importance=HIGH,
        doc="When a write counts as acknowledged: `all` once every in-sync backup has applied it, `1` once the primary "
        "has, `0` once the primary has seen it.",
    ),
    Field(
        name="segment.count",
        type=Type.INT,
        group="capture",
        default=256,
        low=1,
        high=16384,
        doc="Units of ownership into which the keys are divided. The same on every node, and never changed once there "
        "are topics.",
    ),
    Field(
        name="tombstones.on.delete",
        type=Type.BOOLEAN,
        group="capture",
        default=True,
        doc="Write a tombstone behind every delete, so that compaction forgets the key.",
    ),
    Field(
        name="skipped.operations",
        type=Type.LIST,
        group="capture",
        default=("none",),
        allowed=("none", "c", "u", "d"),
        check=_operations,
        doc="Operations that are not told to Kafka: creates (`c`), updates (`u`), deletes (`d`). Rows of resets, "
        "clears and corrections, which repair what Kafka holds, are never skipped.",
    ),
    Field(
        name="skip.messages.without.change",
        type=Type.BOOLEAN,
        group="capture",
        default=False,
        doc="Capture no write that leaves value and expiry of its entry as they were. The cache itself tells, so "
        "`before.image` need not be `full`.",
    ),
    Field(
        name="before.image",
        type=Type.ENUM,
        group="capture",
        default="key",
        allowed=("key", "full"),
        doc="What `before` holds in updates and deletes: the key alone, or the whole entry where the cache can give "
        "it. `full` puts two values into one record: allow half as much in `max.entry.bytes`.",
    ),
    Field(
        name="cache.key.format",
        type=Type.ENUM,
        group="capture",
        default="string",
        allowed=("string", "json", "bytes"),
        doc="What keys are. With `string`, a key that is not UTF-8 is refused at the write.",
    ),
    Field(
        name="cache.value.format",
        type=Type.ENUM,
        group="capture",
        default="string",
        allowed=("string", "json", "bytes"),
        doc="What values are. With `string`, a value that is not UTF-8 is refused at the write.",
    ),
    Field(
        name="binary.handling.mode",
        type=Type.ENUM,
        group="capture",
        default="bytes",
        allowed=("bytes", "base64", "base64-url-safe", "hex"),
        doc="How keys and values of format `bytes` are written: as Connect's type bytes (base64 in JSON), or as text "
        "in one of these encodings.",
    ),
    Field(
        name="max.entry.bytes",
        type=Type.INT,
        group="capture",
        default=CLIENT_MESSAGE_MAX_BYTES - RECORD_MARGIN_BYTES,
        low=1,
        high=1_000_000_000,
        importance=HIGH,
        doc="Largest key and value together, in bytes as captured; a larger write fails before the cache changes. The "
        f"record adds the envelope and the key again, for which {RECORD_MARGIN_BYTES} bytes are kept free below "
        f"librdkafka's `message.max.bytes` ({CLIENT_MESSAGE_MAX_BYTES}), itself below the topic's own limit, "
        "`max.message.bytes` (1048588). Text that JSON must escape grows, and one operation whose record is too large "
        "nevertheless stops its segment. To allow more, raise `producer.override.message.max.bytes` and the topic's "
        "`max.message.bytes` as well.",
    ),
]

SNAPSHOT = [
    Field(
        name="snapshot.mode",
        type=Type.ENUM,
        group="snapshot",
        default="initial",
        allowed=("initial", "always", "no_data", "when_needed", "initial_only"),
        doc="`initial` sends the whole state of a segment that has no record in Kafka yet; `always` also resets each "
        "segment the first time that a process takes it over; `no_data` sends only what changes from then on; "
        "`initial_only` ends the capture once every segment is sent, the process with exit code 0; `when_needed` is "
        "`initial`. None holds back a reset that repairs a loss.",
    ),
    Field(
        name="reset.strategy",
        type=Type.ENUM,
        group="snapshot",
        default="marker",
        allowed=("marker", "tombstones", "resend"),
        doc="How a reset tells which keys are gone. `marker` encloses the state in a begin and an end, and keys that "
        "are not between them are gone: for deelog's own readers. `tombstones` also deletes each key that Kafka holds "
        "and the cache does not, `resend` each key that Kafka holds before it sends the segment anew: for consumers "
        "that know nothing of resets. Both read the segment's part of the topic again. See docs/resets.md.",
    ),
    Field(
        name="reset.interval.ms",
        type=Type.LONG,
        group="snapshot",
        default=0,
        low=0,
        check=lambda ms: "must be 0 (off) or at least 1000" if 0 < ms < 1000 else None,
        doc="Each segment is reset again that often, one after the other, in milliseconds; 0 is off. For topics with "
        "`cleanup.policy=delete`, which drop the last record of a key that is not written to: less than half of the "
        "topic's `retention.ms`.",
    ),
    Field(
        name="incremental.snapshot.chunk.size",
        type=Type.INT,
        group="snapshot",
        default=1024,
        low=1,
        high=1_000_000,
        doc="Entries that a reset or snapshot reads and writes at a time.",
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
            _addresses,
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

TRANSFORMS = [
    Field(
        name="transforms",
        type=Type.LIST,
        group="transforms",
        default=(),
        check=check_aliases,
        doc="Aliases of the transforms that every change and every row of a reset goes through, in this order. Of each "
        "`transforms.<alias>.type` (a class: `my_package.module.Class` or `my_package.module:Class`), "
        "`transforms.<alias>.predicate` and `.negate`, and the options of the class. See "
        "[Transforms and filters](../transforms.md).",
    ),
    Field(
        name="predicates",
        type=Type.LIST,
        group="transforms",
        default=(),
        check=check_aliases,
        doc="Aliases of the predicates that transforms name. Of each: `predicates.<alias>.type` and the options of the "
        "class.",
    ),
    Field(
        name="event.processing.failure.handling.mode",
        type=Type.ENUM,
        group="transforms",
        default="fail",
        allowed=("fail", "skip", "warn", "dead-letter"),
        doc="When a transform fails on a change: stop writing, with everything kept in the op log (`fail`); leave the "
        "change out (`skip`), and log it (`warn`), or put it as captured on `errors.deadletterqueue.topic.name` "
        "(`dead-letter`, ours).",
    ),
]

FAILURE = [
    Field(
        name="errors.max.retries",
        type=Type.INT,
        group="failure",
        default=-1,
        low=-1,
        doc="How often in a row the producer is built again after an error before the connector fails; -1 is without "
        "end. A transaction that is committed begins the count anew; being fenced by another node is no error.",
    ),
    Field(
        name="retriable.restart.connector.wait.ms",
        type=Type.INT,
        group="failure",
        default=10_000,
        low=0,
        doc="Longest wait before such an attempt. The first waits are short and double up to this.",
    ),
]

GRID = [
    Field(
        name="node.id",
        type=Type.STRING,
        group="grid",
        roles=_NODE,
        importance=HIGH,
        pattern=re.compile(r"[A-Za-z0-9_-]{1,64}"),
        doc="Name of this node, no two alike and the same after a restart: Kafka fences the older of two.",
    ),
    Field(
        name="cache.name",
        type=Type.STRING,
        group="grid",
        roles=_WITH_CACHE,
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
        check=_address,
        importance=HIGH,
        doc="Where clients of the Redis protocol connect; port 0 takes any free one.",
    ),
    Field(
        name="cache.peer.listen",
        type=Type.STRING,
        group="grid",
        default="127.0.0.1:0",
        check=_address,
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
        check=_has_kafka,
        doc="Where the Spark job writes. `kafka` is always among them.",
    ),
    Field(
        name="diff.parquet.path",
        type=Type.STRING,
        group="diff",
        default=None,
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
        roles=_DIFF,
        importance=HIGH,
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

GROUPS: Final = {
    "identity": "Names",
    "kafka": "Kafka",
    "queue": "Op log and transactions",
    "capture": "Capture",
    "snapshot": "Snapshot and reset",
    "format": "Format of records",
    "transforms": "Transforms and filters",
    "failure": "Failure",
    "grid": "Node and grid",
    "observe": "Heartbeat, signals and notifications",
    "metrics": "Metrics and tracing",
    "rest": "REST API",
    "diff": "Spark job",
}

FIELDS: Final[dict[str, Field]] = {
    field.name: field
    for group in (
        *(IDENTITY, KAFKA, QUEUE, CAPTURE, SNAPSHOT, FORMAT, TRANSFORMS, FAILURE),
        *(GRID, OBSERVE, METRICS, REST, DIFF),
    )
    for field in group
}

# Known, and nothing obeys them yet: an error says so instead of guessing at a misspelling.
PLANNED: Final = words(
    """
    read.max.wait.ms
    """
)
