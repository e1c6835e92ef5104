"""Checks between fields. They run when a file is read, and again once references are resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from deelog_schemas.config import secrets, transforms
from deelog_schemas.config.fields import FIELDS
from deelog_schemas.config.secrets import references
from deelog_schemas.config.shapes import (
    CLIENT_MESSAGE_MAX_BYTES,
    MESSAGE_MAX,
    RECORD_MARGIN_BYTES,
    databases_by_name,
    split_address,
)
from deelog_schemas.errors import ConfigError, FieldError
from deelog_schemas.kafka.names import Topics
from deelog_schemas.keys import SLOTS
from deelog_schemas.operation import OVERHEAD

_ALL_INTERFACES = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0")


def across(values: Mapping[str, Any], given: Mapping[str, str]) -> list[FieldError]:
    """The errors between fields. A check is skipped while one of its fields has no value yet.

    `values`: typed values by name, without those that are wrong or not resolved. `given`: the text of each name in
    the file. Errors show this text, so none contains what a reference resolves to.
    """
    known = {name: value for name, value in values.items() if value is not None}
    errors: list[FieldError] = []
    checks = (_times, _sizes, _segments, _letters, _formats, _signals, _addresses, _ports, _rest, _redis, _names)
    for check in (*checks, transforms.check):
        errors += check(known, given)
    return errors


def _times(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    interval, timeout = "commit.interval.ms", "transaction.timeout.ms"
    if {interval, timeout} <= known.keys() and known[interval] >= known[timeout]:
        yield FieldError(
            interval, f"must be below {_with_value(timeout, known, given)}", _shown(interval, known, given)
        )


def _sizes(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    entry, queue = "max.entry.bytes", "max.queue.size.in.bytes"
    images = 2 if known.get("before.image") == "full" else 1
    if {entry, queue} <= known.keys() and images * known[entry] + OVERHEAD > known[queue]:
        what = "with the value from before it and" if images > 1 else "with"
        problem = f"{what} {OVERHEAD} bytes of its own must not exceed {_with_value(queue, known, given)}"
        yield FieldError(entry, problem, _shown(entry, known, given))
    if not {entry, "before.image"} <= known.keys() or (MESSAGE_MAX in given and MESSAGE_MAX not in known):
        return
    room = int(known.get(MESSAGE_MAX, CLIENT_MESSAGE_MAX_BYTES)) - RECORD_MARGIN_BYTES
    if known[entry] * images > room:
        limit = _with_value(MESSAGE_MAX, {MESSAGE_MAX: CLIENT_MESSAGE_MAX_BYTES}, given)
        what = "twice this, since before.image=full puts two values into a record," if images > 1 else "this"
        problem = f"is too large: {what} and {RECORD_MARGIN_BYTES} bytes of the record's own must fit into {limit}"
        yield FieldError(entry, problem, _shown(entry, known, given))


def _segments(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    segments, partitions, entries = "segment.count", "topic.creation.default.partitions", "cache.max.entries"
    if {segments, partitions} <= known.keys() and known[partitions] > known[segments]:
        problem = f"must not exceed {_with_value(segments, known, given)}: some partitions would stay empty"
        yield FieldError(partitions, problem, _shown(partitions, known, given))
    if {segments, entries} <= known.keys() and known[entries] < known[segments]:
        problem = f"must be at least {_with_value(segments, known, given)}: every segment has room for an entry"
        yield FieldError(entries, problem, _shown(entries, known, given))


def _letters(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    name = "errors.deadletterqueue.topic.name"
    for field, value in (("errors.tolerance", "all"), ("event.processing.failure.handling.mode", "dead-letter")):
        if known.get(field) == value and name not in given:
            yield FieldError(name, f"is required, since {field} is {value}: name a topic for what is put aside")


def _signals(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if known.get("signal.kafka.topic") == "" and known.get("on.data.loss") == "reset":
        yield FieldError(
            "signal.kafka.topic", "must not be empty: with on.data.loss=reset the job asks there for resets"
        )


def _formats(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    for part in ("key", "value"):
        kind = known.get(f"{part}.converter")
        if kind == "avro" and known.get(f"{part}.converter.schemas.enable"):
            yield FieldError(f"{part}.converter.schemas.enable", f"must be false with {part}.converter=avro", "'true'")
        if kind is None:
            continue
        mode = "binary.handling.mode"
        within = ("key", "value") if part == "value" else ("key",)  # the envelope of a value contains the key, too
        held = any(known.get(f"cache.{one}.format") == "bytes" for one in within)
        if kind == "avro" and held and known.get(mode, "bytes") != "bytes":
            yield FieldError(
                mode, f"must be bytes with {part}.converter=avro, which has them", _shown(mode, known, given)
            )
        url = f"{part}.converter.schema.registry.url"
        if kind != "avro" and url in given and url in known:
            yield FieldError(url, f"is for {part}.converter=avro, and it is {kind}", _shown(url, known, given))
    urls = [f"{part}.converter.schema.registry.url" for part in ("key", "value")]
    for setting in ("basic.auth.user.info", "schema.registry.ssl.ca.location", "auto.register.schemas"):
        name = f"value.converter.{setting}"
        if name in given and not given.keys() & urls and known.get(name) is not FIELDS[name].default:
            problem = f"is for a schema registry, and {' and '.join(urls)} name none"
            yield FieldError(name, problem, _shown(name, known, given))


def _addresses(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if "cache.advertised.host" in given:
        return
    for name in ("cache.listen", "cache.peer.listen"):
        if name in known and split_address(known[name])[0] in _ALL_INTERFACES:
            problem = f"is required, since {name} is on all interfaces and others need one address to connect to"
            yield FieldError("cache.advertised.host", problem)
            return


def _ports(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    addresses = ("cache.listen", "cache.peer.listen")
    # A cache within a process listens at neither, and names neither.
    of_a_node = any(name in given for name in addresses)
    listeners = [(name, *split_address(known[name])) for name in addresses if of_a_node and name in known]
    pairs = (("metrics.port", "metrics.host"), ("rest.port", "rest.host.name"))
    listeners += [(port, known[host], known[port]) for port, host in pairs if {port, host} <= known.keys()]
    for (one, host, port), (other, there, same) in combinations(listeners, 2):
        if port and port == same and (host == there or {host, there} & set(_ALL_INTERFACES)):
            problem = f"has the port of {one} as well: each listens at one of its own"
            yield FieldError(other, problem, _shown(other, known, given))


def _files_of_tls(names: str) -> tuple[str, str, str]:
    return f"{names}.certificate.location", f"{names}.key.location", f"{names}.ca.location"


def _needed(given: Mapping[str, str], *pairs: tuple[str, str]) -> Iterator[FieldError]:
    """By pair: a field, and the one that it is nothing without."""
    for name, needs in pairs:
        if name in given and needs not in given:
            yield FieldError(needs, f"is required, since {name} is set")


def _rest(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    certificate, key, authority = _files_of_tls("rest.ssl")
    yield from _needed(given, (key, certificate), (authority, certificate), ("rest.readonly.token", "rest.token"))
    host = known.get("rest.host.name", "127.0.0.1")
    if known.get("rest.port") and not is_loopback(host) and not {"rest.token", authority} & given.keys():
        problem = "is not this machine's own: anybody who reaches it could stop the connector; set rest.token, or "
        problem += f"{authority} for mutual TLS"
        yield FieldError("rest.host.name", problem, _shown("rest.host.name", known, given))


def _redis(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    """What cannot be known of a cache whose changes are read of a stream."""
    if known.get("connector.class") != "deelog.RedisConnector":
        return
    for name, refused, problem in (
        ("before.image", "full", "the stream of Redis does not say what was before: set key"),
        ("skip.messages.without.change", True, "what was before is not known: set false"),
        ("cache.acks", "0", "a server answers before its replicas have a change: set 1 or all"),
    ):
        if known.get(name) == refused:
            yield FieldError(name, problem, _shown(name, known, given))
    certificate, key, authority = _files_of_tls("redis.ssl")
    yield from _needed(given, ("redis.username", "redis.password"), (key, certificate))
    yield from _sentinels(known, given)
    yield from _databases(known, given)
    yield from _writer(known, given)
    if not known.get("redis.url", "").startswith("rediss:"):
        for one in (certificate, key, authority):
            if one in given:
                problem = "is for TLS: let redis.url begin with rediss://, and name the server's TLS port"
                yield FieldError(one, problem, _shown(one, known, given))
    if known.get("cache.value.format", "json") != "json":
        yield FieldError("cache.value.format", "entries of Redis have a type and are JSON: set json")


def _sentinels(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    master, username, password = (f"redis.sentinel.{each}" for each in ("master", "username", "password"))
    if "redis.sentinels" not in given:
        for name in (master, username, password):
            if name in given:
                yield FieldError(name, "is for Sentinels: name them in redis.sentinels", _shown(name, known, given))
        return
    yield from _needed(given, ("redis.sentinels", master), (username, password))
    sentinels, problems = known.get("redis.sentinels", ()), list[str]()
    if len({split_address(each.lower()) for each in sentinels}) < len(sentinels):
        problems.append("has one of them twice, and more than half of them decide")
    if known.get("segment.count") == SLOTS:
        problems.append(f"a cluster, which is what segment.count={SLOTS} is for, elects by itself: remove it")
    for problem in problems:
        yield FieldError("redis.sentinels", problem, _shown("redis.sentinels", known, given))


def _databases(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    databases = databases_by_name(known.get("redis.databases", ()))
    problems = list[str]()
    if databases and known.get("segment.count") == SLOTS:
        problems.append(f"a cluster, which is what segment.count={SLOTS} is for, has one: set cache.name")
    if databases and "cache.name" in known and known["cache.name"] not in databases:
        problems.append("holds the names of the caches: remove cache.name, or name one of these to capture it alone")
    for problem in problems:
        yield FieldError("redis.databases", problem, _shown("redis.databases", known, given))


def _writer(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if known.get("redis.writer") != "any":
        return
    for name, refused, problem in (
        ("cache.acks", "all", "a replica does not know what the others have, as redis.writer=any needs it: set 1"),
        ("redis.reasons", "notifications", "a replica does not tell why keys go, and redis.writer is any: set none"),
    ):
        if known.get(name) == refused:
            yield FieldError(name, problem, _shown(name, known, given))
    if "redis.sentinels" in given or known.get("segment.count") == SLOTS:
        problem = "where servers elect a primary, its connector writes: run one beside each, and set primary"
        yield FieldError("redis.writer", problem, _shown("redis.writer", known, given))


def is_loopback(host: str) -> bool:
    """Whether a listener bound to this host can only be reached from this machine."""
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def _names(known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    if not known.keys() >= {"topic.prefix", "topic.delimiter"}:
        return
    several = databases_by_name(known.get("redis.databases", ()))
    for cache in [known["cache.name"]] if "cache.name" in known else several:
        yield from _names_of(cache, known, given)


def _names_of(cache: str, known: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[FieldError]:
    prefix, delimiter = known["topic.prefix"], known["topic.delimiter"]
    try:
        topics = Topics(prefix, cache, delimiter, known.get("diff.topic"), known.get("signal.kafka.topic"))
        own = {topics.changes, topics.positions, topics.topology, topics.diff, topics.signal, topics.heartbeat}
        for name in ("errors.deadletterqueue.topic.name", "notification.sink.topic.name"):
            if known.get(name) in own:
                problem = "must be a topic of its own, not one that the cache or the job uses"
                yield FieldError(name, problem, _shown(name, known, given))
    except ConfigError as error:
        yield from without_resolved(error.errors, given)


def without_resolved(errors: Sequence[FieldError], given: Mapping[str, str]) -> list[FieldError]:
    """Errors of `Topics` as they may be shown: without the topic's name where a reference is part of it."""
    kept = []
    for e in errors:
        if any(references(given.get(name, "")) for name in ("topic.prefix", "cache.name", "topic.delimiter", e.field)):
            kept.append(FieldError(e.field, "resolves to a name that cannot be used", _shown(e.field, {}, given)))
        else:
            kept.append(e)
    return kept


def _shown(name: str, known: Mapping[str, Any], given: Mapping[str, str]) -> str:
    return secrets.shown(name, given[name]) if name in given else str(known.get(name, "(default)"))


def _with_value(name: str, known: Mapping[str, Any], given: Mapping[str, str]) -> str:
    return f"{name} ({_shown(name, known, given)})"
