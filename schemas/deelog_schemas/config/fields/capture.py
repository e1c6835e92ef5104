"""What is captured, how it is written, and what becomes of what cannot be."""

from __future__ import annotations

from deelog_schemas.config.field import Field, Type
from deelog_schemas.config.fields.roles import HIGH
from deelog_schemas.config.fields.shapes import CLIENT_MESSAGE_MAX_BYTES, RECORD_MARGIN_BYTES, operations
from deelog_schemas.config.transforms import check_aliases

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
        check=operations,
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
