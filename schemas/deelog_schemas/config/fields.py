"""Every field of the configuration, declared once, in the order in which the documentation shows them.

Names and values are Debezium's and Kafka Connect's where the meaning is the same. A field is here only if it has an
effect; `PLANNED` names those that a later version adds, so that the error can say so.
"""

from __future__ import annotations

import re
from typing import Final

from deelog_schemas.config import foreign
from deelog_schemas.config.declare import (
    BOOLEAN,
    CLASS,
    DIFF_ONLY,
    ENUM,
    HIGH,
    IN_PROCESS,
    INT,
    LIST,
    LONG,
    LOW,
    NODE,
    PASSWORD,
    STRING,
    WITH_CACHE,
    group,
)
from deelog_schemas.config.field import REQUIRED, Field
from deelog_schemas.config.shapes import (
    CLIENT_MESSAGE_MAX_BYTES,
    RECORD_MARGIN_BYTES,
    address,
    addresses,
    all_servers,
    databases,
    directory,
    not_blank,
    not_empty,
    off_or_a_second,
    operations,
    part_of_a_path,
    replicas,
)
from deelog_schemas.config.transforms import check_aliases


# fmt: off
def _converter(part: str, *formats: str) -> tuple[Field, ...]:
    return (
        Field(f"{part}.converter", ENUM, "json", allowed=formats, importance=HIGH, refused=foreign.CONVERTERS,
            doc=f"How the {part} of a record is written: see docs/formats.md."),
        Field(f"{part}.converter.schemas.enable", BOOLEAN, False,
            doc=f'Write the {part} as `{{"schema": …, "payload": …}}`, for consumers that need the schema in each '
                "record. Not with avro, which always has one."),
        Field(f"{part}.converter.schema.registry.url", LIST, (), check=addresses, importance=HIGH,
            doc=f"Schema registry for the {part} with `{part}.converter=avro`, with Confluent's API; of several "
                "addresses the next is asked where one does not answer. Without it the pinned schemas of deelog are "
                "used."),
    )


_GROUPS: Final = (
group("identity", "Names",
    Field("name", STRING, "deelog", check=part_of_a_path, doc="Name of the connector in logs and metrics."),
    Field("connector.class", CLASS, "deelog.CachetoolsConnector",
        allowed=("deelog.CachetoolsConnector", "deelog.RedisConnector"),
        refused={"deelog.InfinispanConnector": "a later version has this one"},
        doc="Which caches are captured."),
    Field("topic.prefix", STRING, REQUIRED, importance=HIGH, pattern=re.compile(r"[A-Za-z0-9._-]{1,200}"),
        doc="First part of the name of every topic, and `source.name` of every record. Never change it: with another "
            "prefix nothing that was written before is found."),
    Field("topic.delimiter", STRING, ".", importance=LOW, pattern=re.compile(r"[._-]{1,8}"),
        doc="The separator between prefix, cache and suffix in the names of topics."),
),

group("kafka", "Kafka",
    Field("bootstrap.servers", LIST, REQUIRED, importance=HIGH, check=all_servers,
        doc='Brokers to begin with. As a string for a client: `",".join(config["bootstrap.servers"])`.'),
    Field("topic.creation.default.partitions", INT, 8, low=1, high=16384, importance=HIGH,
        doc="Partitions of the change, positions and diff topics when deelog creates them. A topic that exists keeps "
            "its own number, which never may change: the place of every segment follows from it."),
    Field("topic.creation.default.replication.factor", INT, -1, low=-1, high=32767, check=replicas,
        doc="Replicas of topics that deelog creates; -1 is the broker's default."),
    Field("topic.creation.default.cleanup.policy", LIST, ("compact",), allowed=("compact", "delete"), check=not_empty,
        doc="`compact` keeps the last record of every key, `delete` drops old records; both are possible, separated "
            "by a comma. For the change topic; the others are always compacted."),
    Field("topic.audit", ENUM, "warn", allowed=("warn", "strict"),
        doc="What to do at start about a topic whose settings put data at risk (`min.insync.replicas` 1, unclean "
            "leader election, lags below `reader.max.lag.ms`, a positions or topology topic that is compacted late): "
            "warn, or refuse to start. A node that runs looks once a minute, and warns."),
    Field("reader.max.lag.ms", LONG, 604_800_000, low=1000,
        doc="How far a reader may be behind, in milliseconds. Topics are created with `min.compaction.lag.ms` and "
            "`delete.retention.ms` of this much; a reader further behind starts over from the base offsets."),
    Field("transaction.timeout.ms", INT, 5000, low=1000, high=900_000,
        doc="After this the broker aborts a transaction that its node left open. A paused node hides the records of "
            "all others from readers for as long, and until the brokers look next: every ten seconds by default. Must "
            "be longer than `commit.interval.ms`."),
),

group("queue", "Op log and transactions",
    Field("max.batch.size", INT, 8192, low=1, high=1_000_000, doc="Maximum number of operations in one transaction."),
    Field("commit.interval.ms", INT, 50, low=1, high=60_000,
        doc="A transaction is committed after this time at the latest."),
    Field("max.queue.size", INT, 500_000, low=1, importance=HIGH,
        doc="Maximum number of operations in a node's op log, those of its backups included."),
    Field("max.queue.size.in.bytes", LONG, 268_435_456, low=1, importance=HIGH,
        doc="Maximum number of bytes of keys and values in a node's op log. Must have room for one entry of "
            "`max.entry.bytes`, and 200 bytes more; with `before.image=full`, of two."),
    Field("oplog.overflow", ENUM, "block", allowed=("block", "coalesce", "reset"), importance=HIGH,
        doc="When the op log is full: `block` lets the writing client wait up to `max.block.ms`, then resets; "
            "`coalesce` gives up older acknowledged operations of a key for its newest one; `reset` drops the "
            "segment's operations and sends its whole state later."),
    Field("max.block.ms", INT, 1000, low=0,
        doc="How long a write waits for room in the op log with `oplog.overflow=block`."),
),

group("capture", "Capture",
    Field("cache.acks", ENUM, "all", allowed=("all", "1", "0"), importance=HIGH,
        doc="When a write counts as acknowledged: `all` once every in-sync backup has applied it, `1` once the "
            "primary has, `0` once the primary has seen it."),
    Field("segment.count", INT, 256, low=1, high=16384,
        defaults=dict.fromkeys(IN_PROCESS, 16),
        doc="Units of ownership into which the keys are divided. The same on every node and for the diff job, and "
            "never changed once there are topics. Caches of a program, `capture()`, have 16 by default."),
    Field("tombstones.on.delete", BOOLEAN, True,
        doc="Write a tombstone after every delete, so that compaction forgets the key."),
    Field("skipped.operations", LIST, ("none",), allowed=("none", "c", "u", "d"), check=operations,
        doc="Operations that are not written to Kafka: creates (`c`), updates (`u`), deletes (`d`). Rows of resets, "
            "clears and corrections, which repair what Kafka holds, are never skipped."),
    Field("skip.messages.without.change", BOOLEAN, False,
        doc="Capture no write that leaves value and expiry of its entry as they were. The cache itself compares, "
            "so `before.image` need not be `full`."),
    Field("before.image", ENUM, "key", allowed=("key", "full"),
        doc="What `before` holds in updates and deletes: the key alone, or the whole entry where the cache can give "
            "it. `full` puts two values into one record: allow half as much in `max.entry.bytes`."),
    Field("cache.key.format", ENUM, "string", allowed=("string", "json", "bytes"),
        doc="What keys are. With `string`, a key that is not UTF-8 is refused at the write; with `json` also one that "
            "is no JSON, has a number beyond a double, or more than 500 levels."),
    Field("cache.value.format", ENUM, "string", allowed=("string", "json", "bytes"),
        doc="What values are. With `string`, a value that is not UTF-8 is refused at the write; with `json` also one "
            "that is no JSON, has a number beyond a double, or more than 500 levels."),
    Field("binary.handling.mode", ENUM, "bytes", allowed=("bytes", "base64", "base64-url-safe", "hex"),
        doc="How keys and values of format `bytes` are written: as Connect's type bytes (base64 in JSON), or as text "
            "in one of these encodings."),
    Field("max.entry.bytes", INT, CLIENT_MESSAGE_MAX_BYTES - RECORD_MARGIN_BYTES, low=1, high=1_000_000_000,
        importance=HIGH,
        doc="Largest key and value together, in bytes as captured; a larger write fails before the cache changes. The "
            f"record adds the envelope, for which {RECORD_MARGIN_BYTES} bytes are kept free below librdkafka's "
            f"`message.max.bytes` ({CLIENT_MESSAGE_MAX_BYTES}), itself below the topic's own limit, "
            "`max.message.bytes` (1048588). A record has the key three times, and text that JSON must escape and "
            "encoded bytes grow in it: a write whose record would not fit fails, too. To allow more, raise "
            "`producer.override.message.max.bytes` and the topic's `max.message.bytes` as well."),
),

group("snapshot", "Snapshot and reset",
    Field("snapshot.mode", ENUM, "initial", allowed=("initial", "always", "no_data", "initial_only"),
        refused=foreign.SNAPSHOT_MODES,
        doc="`initial` sends the whole state of a segment that has no record in Kafka yet; `always` also resets each "
            "segment the first time that a process takes it over; `no_data` sends only what changes from then on; "
            "`initial_only` ends the capture once every segment is sent, the process with exit code 0. None "
            "holds back a reset that repairs a loss."),
    Field("reset.strategy", ENUM, "marker", allowed=("marker", "tombstones"),
        defaults=dict.fromkeys(IN_PROCESS, "tombstones"),
        refused={"resend": "tombstones sends again what is needed where there are transforms or skipped.operations"},
        doc="How a reset says which keys are gone. `marker` encloses the state in a begin and an end, and keys that "
            "are not between them are gone: for deelog's own readers. `tombstones` also deletes each key that Kafka "
            "holds and the cache does not, for consumers that know nothing of resets: it reads the segment's part of "
            "the topic again. Caches of a program, `capture()`, have `tombstones` by default. See docs/resets.md."),
    Field("reset.interval.ms", LONG, 0, low=0, check=off_or_a_second,
        doc="Each segment is reset again that often, one after the other, in milliseconds; 0 is off. For topics with "
            "`cleanup.policy=delete`, which drop the last record of a key that is not written to: less than half of "
            "the topic's `retention.ms`."),
    Field("incremental.snapshot.chunk.size", INT, 1024, low=1, high=1_000_000,
        doc="Entries that a reset or snapshot reads and writes at a time."),
),

group("format", "Format of records",
    *_converter("key", "json", "avro"),
    *_converter("value", "json", "avro", "cloudevents"),
    Field("value.converter.basic.auth.user.info", PASSWORD, None,
        doc="`user:password` for the schema registry, that of keys as well."),
    Field("value.converter.schema.registry.ssl.ca.location", STRING, None,
        doc="File or directory of the certificate authorities that the schema registry is trusted by, PEM, for keys as "
            "well; by default what SSL_CERT_FILE or SSL_CERT_DIR names, else those that come with certifi."),
    Field("value.converter.auto.register.schemas", BOOLEAN, True,
        doc="Register our schemas at start, those of keys as well. With false they must be registered already."),
),

group("transforms", "Transforms and filters",
    Field("transforms", LIST, (), check=check_aliases,
        doc="Aliases of the transforms that every change and every row of a reset goes through, in this order. Of "
            "each `transforms.<alias>.type` (a class: `my_package.module.Class` or `my_package.module:Class`), "
            "`transforms.<alias>.predicate` and `.negate`, and the options of the class. See [Transforms and "
            "filters](../transforms.md)."),
    Field("predicates", LIST, (), check=check_aliases,
        doc="Aliases of the predicates that transforms name. Of each: `predicates.<alias>.type` and the options of "
            "the class."),
    Field("event.processing.failure.handling.mode", ENUM, "fail", allowed=("fail", "skip", "warn", "dead-letter"),
        doc="When a transform fails on a change: stop writing, with everything kept in the op log (`fail`); leave "
            "the change out (`skip`), and log it (`warn`), or put it as captured on "
            "`errors.deadletterqueue.topic.name` (`dead-letter`, ours)."),
),

group("failure", "Failure",
    Field("errors.max.retries", INT, -1, low=-1,
        doc="How often in a row the producer is built again after an error before the connector fails; -1 is without "
            "end. A transaction that is committed resets the count; being fenced by another node is no error."),
    Field("retriable.restart.connector.wait.ms", INT, 10_000, low=0,
        doc="Longest wait before such an attempt. The first waits are short and double up to this."),
),

group("grid", "Node and grid",
    Field("node.id", STRING, REQUIRED, roles=NODE, importance=HIGH, pattern=re.compile(r"[A-Za-z0-9_-]{1,64}"),
        doc="Name of this node, no two alike and the same after a restart: Kafka fences the older of two."),
    Field("cache.name", STRING, REQUIRED,
        roles=WITH_CACHE, instead="redis.databases", importance=HIGH, pattern=re.compile(r"[A-Za-z0-9._-]{1,200}"),
        doc="Name of the cache; its topic is `<topic.prefix>.<cache.name>`. Must not end with positions, topology or "
            "diff."),
    Field("cache.policy", ENUM, "lru", allowed=("lru", "lfu", "fifo", "rr"),
        doc="What is evicted from a full cache: the least recently used entry, the least frequently used, the "
            "oldest, or any (`rr`). Expiry is per entry, with any of them."),
    Field("cache.max.entries", LONG, 1_000_000, low=1, importance=HIGH,
        doc="Maximum number of entries of the whole cache, on all nodes, each counted once whatever the number of its "
            "backups. They are spread evenly: a segment evicts beyond its share of `cache.max.entries` divided by "
            "`segment.count`, rounded down, so eviction in one segment may begin a little before the cache is full. "
            "At least `segment.count`."),
    Field("cache.backups", INT, 1, low=0, high=7, importance=HIGH,
        doc="Copies of each entry beside the primary's. With 0, every loss of a node is repaired by resets."),
    Field("cache.listen", STRING, "127.0.0.1:6379", check=address, importance=HIGH,
        doc="Where clients of the Redis protocol connect; port 0 takes any free one."),
    Field("cache.peer.listen", STRING, "127.0.0.1:0", check=address,
        doc="Where the other nodes connect; port 0 takes any free one, and the others learn it from Kafka. There is "
            "no password: keep it in a network of your own."),
    Field("cache.advertised.host", STRING, None,
        derived="the host of `cache.listen`", pattern=re.compile(r"[A-Za-z0-9.:_-]{1,253}"),
        doc="The name or address by which clients and nodes reach this node. Required where `cache.listen` or "
            "`cache.peer.listen` names all interfaces (`0.0.0.0`, `[::]`)."),
    Field("unclean.election", BOOLEAN, False,
        doc="Let a node that is not in sync take a segment while an in-sync one may still be alive. What it does not "
            "hold is lost, and reset."),
    Field("cache.failure.timeout.ms", INT, 2000, low=100, high=300_000,
        doc="After this without a heartbeat the controller declares a node dead and gives its segments to others. "
            "After three times this without a sign of life the controller's own place goes to another node: for less "
            "than the default the broker's `group.min.session.timeout.ms` (6000) must be lower."),
),

group("redis", "Redis and Valkey",
    Field("redis.url", STRING, "redis://127.0.0.1:6379/0", importance=HIGH,
        doc="The server beside which a `deelog.RedisConnector` runs, and the database whose changes it captures: "
            "`redis://<host>:<port>/<database>`, or `rediss://` for TLS, which verifies the host's name."),
    Field("redis.databases", LIST, (), check=databases,
        doc="In the place of `cache.name`: several databases of the server, each a cache with topics of its own, "
            "`<database>:<cache.name>` each: `0:sessions,3:carts`. Then `redis.url` names none."),
    Field("redis.username", STRING, None, doc="As whom the connector asks the server; without it the default user."),
    Field("redis.password", PASSWORD, None, doc="The password of that user."),
    Field("redis.sentinels", LIST, (), check=all_servers,
        doc="All Sentinels that watch the server, `<host>:<port>` each. Its connector writes while it is primary and "
            "more than half of them name it; by TLS where `redis.url` is."),
    Field("redis.sentinel.master", STRING, None, doc="The name that the Sentinels have for the primary: `mymaster`."),
    Field("redis.sentinel.username", STRING, None,
        doc="As whom the Sentinels are asked; without it the default user."),
    Field("redis.sentinel.password", PASSWORD, None, doc="The password of that user, if it has one."),
    Field("redis.writer", ENUM, "primary", allowed=("primary", "any"),
        doc="Beside which server a connector writes: beside the one that is primary, or, with `any`, beside a replica, "
            "too, where none can run beside the primary. Not with Sentinels or a cluster, and `cache.acks` is 1 then."),
    Field("redis.reasons", ENUM, "none", allowed=("none", "notifications"),
        doc="Whether `source.reason` tells apart keys that expired, were evicted, or were removed: with "
            "`notifications` the server says so, with `none` all are `remove`."),
    Field("redis.read.keys.per.second", INT, 0, low=0,
        doc="How many entries a second the connector reads for resets and snapshots at most; 0 sets no limit. Entries "
            "that have changed are read as they change, in any case."),
    Field("redis.ssl.ca.location", STRING, None,
        doc="PEM file with the authorities of the server's certificate; without it those of the system count."),
    Field("redis.ssl.certificate.location", STRING, None,
        doc="PEM file with the connector's own certificate and its chain, for servers that ask clients for one "
            "(`tls-auth-clients`, which Redis has on unless told otherwise)."),
    Field("redis.ssl.key.location", STRING, None,
        doc="PEM file with the key of that certificate, where it is not in the same file. It must not be encrypted."),
),

group("observe", "Heartbeat, signals and notifications",
    Field("heartbeat.interval.ms", INT, 5000, low=100, high=3_600_000,
        doc="The written position of an idle segment is renewed this often, so that silence and progress differ; and "
            "a heartbeat is written to `__debezium-heartbeat.<topic.prefix>`, as Debezium does."),
    Field("signal.kafka.topic", STRING, None,
        derived="`<topic.prefix>-signal`", importance=LOW, pattern=re.compile(r"[A-Za-z0-9._-]{0,249}"),
        doc="Topic of the signals; empty: there are none. Key `topic.prefix`, value `{id, type, data}`. One partition. "
            "It is read from its beginning at the start: it says whether writing is paused, and which incremental "
            "snapshots go on."),
    Field("notification.sink.topic.name", STRING, None, pattern=re.compile(r"[A-Za-z0-9._-]{1,249}"), importance=LOW,
        doc="Topic of the notifications, created with one partition if it is missing; each is also logged at level "
            "INFO. Without it there are none."),
),

group("metrics", "Metrics and tracing",
    Field("metrics.port", INT, 0, low=0, high=65_535,
        doc="Port of `/metrics` for Prometheus and of `/health`; 0 is none. Several captured caches of one process "
            "may name the same one."),
    Field("metrics.host", STRING, "127.0.0.1", check=not_blank,
        doc="Address that `metrics.port` and `diff.metrics.port` are bound to; `0.0.0.0` is all. There is no "
            "password: the pages show numbers, names of caches and members, and error texts."),
    Field("tracing.headers.enabled", BOOLEAN, False, importance=LOW,
        doc="Give each change the trace context of the write that made it, as the headers `traceparent` and "
            "`tracestate` (W3C). For caches captured in the application's own process, with `deelog[otel]`; clients "
            "of the grid have no way to send one."),
),

group("rest", "REST API",
    Field("rest.port", INT, 0, low=0, high=65_535, doc="Port of the REST API, Kafka Connect's own is 8083; 0 is none."),
    Field("rest.host.name", STRING, "127.0.0.1", pattern=re.compile(r"[A-Za-z0-9.:_-]{1,253}"),
        doc="Address that `rest.port` is bound to; `0.0.0.0` is all. Any but this machine's own needs a token or "
            "`rest.ssl.ca.location`."),
    Field("rest.token", PASSWORD, None,
        doc="Who may do everything sends `Authorization: Bearer` with it. At least 16 characters."),
    Field("rest.readonly.token", PASSWORD, None,
        doc="Who sends this one instead may look and change nothing. Needs `rest.token`."),
    Field("rest.ssl.certificate.location", STRING, None,
        doc="PEM file with the REST API's certificate and its chain: HTTPS instead of HTTP."),
    Field("rest.ssl.key.location", STRING, None,
        doc="PEM file with the key of that certificate, where it is not in the same file. It must not be encrypted."),
    Field("rest.ssl.ca.location", STRING, None,
        doc="PEM file with the authorities of clients' certificates: whoever connects must show one (mutual TLS)."),
),

group("diff", "Spark job",
    Field("diff.topic", STRING, None, derived="`<topic.prefix>.<cache.name>.diff`",
        doc="Topic that the Spark job writes."),
    Field("diff.parquet.path", STRING, None, check=directory,
        doc="Directory of the parquet sink; without it there is none."),
    Field("diff.jdbc.url", STRING, None, pattern=re.compile(r"jdbc:[A-Za-z0-9_-]+:.+", re.DOTALL),
        doc="JDBC address of the database of the jdbc sink, PostgreSQL or SQLite, as its driver takes it; "
            "without it there is no jdbc sink. Keep the password out of it: `diff.jdbc.password`."),
    Field("diff.jdbc.table", STRING, "deelog_entries",
        pattern=re.compile(r"([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,53}"),
        doc="Table of the jdbc sink, `schema.table` or `table`; created if it is missing. It holds what the cache "
            "holds, a row per key. Several caches may share it."),
    Field("diff.jdbc.user", STRING, None, doc="User of the jdbc sink's database."),
    Field("diff.jdbc.password", PASSWORD, None, doc="Password of the jdbc sink's database."),
    Field("diff.checkpoint.location", STRING, REQUIRED, roles=DIFF_ONLY, importance=HIGH, check=directory,
        doc="Directory of the Spark job's checkpoint, on storage that outlives the job."),
    Field("on.data.loss", ENUM, "fail", allowed=("fail", "reset"),
        doc="When records that the job needs are gone from the change topic: stop, or hold the segment and ask its "
            "owner for a reset."),
    Field("errors.tolerance", ENUM, "none", allowed=("none", "all"),
        doc="A change of deelog's whose key or value cannot be decoded: stop (`none`), or put it on the dead-letter "
            "topic and go on (`all`). What is not deelog's, and what is inside a reset, stops the job whatever this "
            "says."),
    Field("errors.deadletterqueue.topic.name", STRING, None, pattern=re.compile(r"[A-Za-z0-9._-]{1,249}"),
        doc="The dead-letter topic, created if it is missing, with one partition. Dead letters say in headers "
            "`__connect.errors.*` where they were and why they are there. Required with `errors.tolerance=all` and "
            "with `event.processing.failure.handling.mode=dead-letter`."),
    Field("diff.trigger.interval.ms", INT, 500, low=0, high=3_600_000,
        doc="Time from the start of one batch to the start of the next."),
    Field("diff.max.offsets.per.trigger", LONG, 2_000_000, low=1,
        doc="Maximum number of records of the change topic in one batch."),
    Field("diff.metrics.port", INT, 0, low=0, high=65_535, doc="Port of `/metrics` for Prometheus; 0 is none."),
),
)
# fmt: on

GROUPS: Final = {group.name: group.title for group in _GROUPS}
FIELDS: Final[dict[str, Field]] = {field.name: field for group in _GROUPS for field in group.fields}

# Known, but without an effect yet: an error says so instead of suggesting another spelling.
PLANNED: Final = frozenset({"read.max.wait.ms"})
