"""What fields must be to one another. Looked at when a file is read, and again once references are resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deelog_schemas.config.fields import CLIENT_MESSAGE_MAX_BYTES, RECORD_MARGIN_BYTES, split_address
from deelog_schemas.errors import ConfigError, FieldError
from deelog_schemas.topics import Topics

_MESSAGE_MAX = "producer.override.message.max.bytes"
_ALL_INTERFACES = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0")


def across(values: Mapping[str, Any], given: Mapping[str, str]) -> list[FieldError]:
    """The errors between fields. A check is left out while one of its fields has no value yet.

    `values`: typed values by name, without those that are wrong or not resolved. `given`: all names in the file.
    """
    known = {name: value for name, value in values.items() if value is not None}
    errors = []
    if "cache.include.list" in given and "cache.exclude.list" in given:
        errors.append(FieldError("cache.exclude.list", "must not be set together with cache.include.list: keep one"))
    errors += [e for check in (_times, _sizes, _segments, _sinks, _addresses) for e in check(known, given)]
    errors += _names(known)
    return errors


def _times(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if {"commit.interval.ms", "transaction.timeout.ms"} <= known.keys():
        interval, timeout = known["commit.interval.ms"], known["transaction.timeout.ms"]
        if interval >= timeout:
            yield FieldError("commit.interval.ms", f"must be below transaction.timeout.ms ({timeout})", str(interval))


def _sizes(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    name = "max.entry.bytes"
    if name not in known:
        return
    entry = known[name]
    if entry > known.get("max.queue.size.in.bytes", entry):
        yield FieldError(
            name, f"must not exceed max.queue.size.in.bytes ({known['max.queue.size.in.bytes']})", str(entry)
        )
    if _MESSAGE_MAX in given and _MESSAGE_MAX not in known:
        return
    if "before.image" not in known:
        return
    values = 2 if known["before.image"] == "full" else 1
    largest = known.get(_MESSAGE_MAX, str(CLIENT_MESSAGE_MAX_BYTES))
    if not largest.isdecimal():
        yield FieldError(_MESSAGE_MAX, "must be a whole number of bytes", repr(largest[:80]))
        return
    limit = (int(largest[:20]) - RECORD_MARGIN_BYTES) // values
    if entry > limit:
        why = " with before.image=full, which puts two values into a record" if values == 2 else ""
        yield FieldError(
            name,
            f"must be at most {max(limit, 0)}{why}: a record has to fit into {_MESSAGE_MAX} ({int(largest[:20])}) with "
            f"{RECORD_MARGIN_BYTES} bytes to spare",
            str(entry),
        )


def _segments(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if "segment.count" not in known:
        return
    segments = known["segment.count"]
    partitions = known.get("topic.creation.default.partitions", 1)
    if partitions > segments:
        problem = f"must not exceed segment.count ({segments}): some partitions would stay empty"
        yield FieldError("topic.creation.default.partitions", problem, str(partitions))
    entries = known.get("cache.max.entries", segments)
    if entries < segments:
        problem = f"must be at least segment.count ({segments}): every segment has room for one entry or more"
        yield FieldError("cache.max.entries", problem, str(entries))


def _sinks(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if "parquet" in known.get("diff.sinks", ()) and "diff.parquet.path" not in known.keys() | given.keys():
        yield FieldError("diff.parquet.path", "is required, since diff.sinks names parquet")


def _addresses(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if "cache.advertised.host" in known.keys() | given.keys():
        return
    for name in ("cache.listen", "cache.peer.listen"):
        if name in known and split_address(known[name])[0] in _ALL_INTERFACES:
            problem = f"is required, since {name} is on all interfaces and others need one address to connect to"
            yield FieldError("cache.advertised.host", problem)
            return


def _names(known: Mapping[str, Any]) -> list[FieldError]:
    if not {"topic.prefix", "topic.delimiter", "cache.name"} <= known.keys():
        return []
    try:
        Topics(
            known["topic.prefix"],
            known["cache.name"],
            known["topic.delimiter"],
            known.get("diff.topic"),
            known.get("signal.kafka.topic"),
        )
    except ConfigError as error:
        return error.errors
    return []
